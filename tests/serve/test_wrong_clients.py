"""Clients that are wrong, slow, too many or gone."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.serve.serving import MODEL, Running, serving

LONG = {"model": MODEL, "prompt": "hello", "max_tokens": 600, "ignore_eos": True, "stream": True}


def post(
    server: Running, body: bytes, path: str = "/v1/completions", **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        given = {"Content-Type": "application/json", **headers}
        connection.request("POST", path, body, given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come to be. It is given up after a minute, on a machine of any speed."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


def is_idle(server: Running) -> bool:
    load = server.lm.engine.load
    return not load.running and not load.waiting


def opened(server: Running, body: Any = LONG) -> socket.socket:
    """A request that is sent, and its first bytes read."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    made.sendall(request_of(body))
    return made


def request_of(body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"prompt": NaN}', "NaN is no number"),
        (b'{"prompt": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b'{"prompt": {}}', "'prompt' must be"),
        (b'{"prompt": []}', "'prompt' must be"),
        (b'{"prompt": [[], []]}', "'prompt' must be"),
        (b'{"prompt": [1, -1]}', "a token is not one of"),
        (b'{"prompt": [99999999999999999999]}', "a token is not one of"),
        (b'{"prompt": ""}', None),
        (b'{"prompt": "\\ud800"}', None),
        (b'{"prompt": "a", "seed": 1e400}', "seed"),
        (b'{"prompt": "a", "temperature": 1e400}', "temperature"),
        (b'{"prompt": "a", "stop": ["a", 1]}', "'stop' must be"),
        (b'{"prompt": "a", "stream": 1}', "'stream' must be"),
    ],
)
def test_malformed_bodies(server: Running, body: bytes, text: str | None) -> None:
    status, answer = post(server, body)
    assert status == 400 if text else status in (200, 400)
    if text:
        assert text in answer["error"]["message"]
        assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": {"5": 10**400}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"10000000": 1}},
        {"logit_bias": {"5": "1"}},
        {"regex": "[ab]{5}", "temperature": 1e300},
        {"temperature": -(10**400)},
        {"repetition_penalty": 1e300},
        {"regex": "a{1000000}"},
        {"regex": "(a{1000}){1000}"},
        {"grammar": "start: start"},
        {"grammar": "start: " + "|".join(f'"a{i}"' for i in range(20_000))},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_what_cannot_be_answered_gets_no_slot(server: Running, wrong: dict[str, Any]) -> None:
    before = server.metric("rlx_prompt_tokens_total")
    for stream in (False, True):
        body = {"prompt": "hello", "stream": stream, "max_tokens": 8, **wrong}
        status, answer = post(server, json.dumps(body).encode())
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert server.metric("rlx_prompt_tokens_total") == before


@pytest.mark.parametrize("how", [{"temperature": 1e-300}, {"temperature": 1e-40},
                                 {"repetition_penalty": 1e-40}])  # fmt: skip
def test_extreme_numbers_keep_to_a_form(server: Running, how: dict[str, Any]) -> None:
    body = {"prompt": "hello", "regex": "[ab]{5}", "max_tokens": 8, **how}
    status, answer = post(server, json.dumps(body).encode())
    assert status == 200
    assert re.fullmatch("[ab]{5}", answer["choices"][0]["text"])


def test_a_client_that_leaves_within_its_body(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall(
        b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    client.close()
    until(lambda: ("/tokenize", "499") in answered(server))
    assert ("/tokenize", "500") not in answered(server)
    assert not caplog.records


def answered(server: Running) -> set[tuple[str, str]]:
    """Routes and statuses that are counted."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return set(re.findall(r'rlx_requests_total{route="(.*?)",status="(.*?)"}', text))


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/models/", "/v1/models/{name:path}"),
        ("/v1/models/v1", "/v1/models/{name:path}"),
        ("/v1/models/a/%7Bname%7D", "/v1/models/{name:path}"),
        ("/page/nothing", "/page"),
        ("/nothing/else", "other"),
    ],
)
def test_routes_are_counted_by_their_templates(server: Running, path: str, route: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    assert connection.getresponse().read()
    connection.close()
    assert (route, "404") in answered(server)
    known = {r.path for r in server.server._app.routes}
    assert {r for r, _ in answered(server)} <= known | {"other"}


def test_bodies_and_hosts_of_other_sites(server: Running) -> None:
    assert post(server, b"{}", **{"Content-Type": "text/plain"})[0] == 415
    assert post(server, b"{}", Host="evil.example")[0] == 403
    status, answer = post(server, b"{}", "/v1/nothing")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    status, answer = post(server, b"{}", "/health")
    assert status == 405


def test_a_body_that_is_too_large(server: Running) -> None:
    status, answer = post(server, b" " * (9 << 20))
    assert status == 413
    assert "8,388,608 bytes" in answer["error"]["message"]


def test_clients_that_leave_free_their_slots(server: Running) -> None:
    until(lambda: is_idle(server))
    before = server.metric("rlx_cancelled_total")
    clients = [opened(server) for _ in range(10)]
    until(lambda: server.lm.engine.load.running == 3)
    for client in clients:
        client.close()
    until(lambda: is_idle(server))
    assert server.metric("rlx_cancelled_total") > before
    whole = opened(server, {**LONG, "stream": False})
    whole.close()
    until(lambda: is_idle(server))


def test_a_client_that_reads_slowly_holds_up_nobody(server: Running) -> None:
    slow = opened(server)
    status, answer = post(server, json.dumps({**LONG, "stream": False}).encode())
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 600
    until(lambda: is_idle(server))
    found = b""
    while b"data: [DONE]" not in found:
        found += slow.recv(64)
    assert found.count(b"data: ") > 2
    slow.close()


def test_a_client_that_does_not_read_is_cut_off(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: is_idle(server))
    body = {**LONG, "n": 16, "max_tokens": 900, "logprobs": 5}
    with serving(server.lm, stall_s=0.2) as hasty:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", hasty.port))
        client.sendall(request_of(body))
        until(lambda: "cut off" in caplog.text)
        until(lambda: is_idle(server))
        found = b""
        with suppress(ConnectionResetError):
            while part := client.recv(1 << 20):
                found += part
        client.close()
    assert b"data: {" in found
    assert b"[DONE]" not in found
    assert not [r for r in caplog.records if r.exc_info]


def test_the_system_drops_connections_that_stall() -> None:
    from rlx.serve.server import bound

    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None:
        pytest.skip("this system has no TCP_USER_TIMEOUT, by which it drops connections")
    with bound("127.0.0.1", 0, stall_s=2.5) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, option) == 2500


class Panic(BaseException):
    """As libraries in Rust raise them."""


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, Panic])
def test_faults_of_the_engine_are_500(
    server: Running, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    until(lambda: is_idle(server))
    body = json.dumps({**LONG, "max_tokens": 4, "stream": False}).encode()

    def fail(parts: Any) -> Any:
        raise kind("broken")

    with monkeypatch.context() as broken:
        broken.setattr(server.lm.engine._cache, "step", fail)
        status, answer = post(server, body)
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert post(server, body)[0] == 200


def test_methods_that_a_route_has(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for method, path, status, allowed in (
        ("HEAD", "/v1/models", 200, None),
        ("OPTIONS", "/v1/models", 405, {"GET", "HEAD"}),
        ("GET", "/v1/completions", 405, {"POST"}),
    ):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        named = answer.headers["Allow"]
        assert answer.status == status
        assert (named and set(named.split(", "))) == allowed
    connection.close()


def test_requests_in_a_pipeline_are_answered_in_turn(server: Running) -> None:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    for tokens in (5, 3, 1):
        client.sendall(request_of({**LONG, "stream": False, "max_tokens": tokens}))
    found = b""
    while found.count(b"completion_tokens") < 3:
        found += client.recv(65536)
    client.close()
    assert re.findall(rb'"completion_tokens":(\d+)', found) == [b"5", b"3", b"1"]


def test_numbers_without_a_fraction_are_integers(server: Running) -> None:
    body = b'{"prompt": "hello", "max_tokens": 3.0, "n": 2e0, "ignore_eos": true}'
    status, answer = post(server, body)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 6)
    status, answer = post(server, b'{"prompt": "hello", "max_tokens": 3.5}')
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


def test_a_full_queue_refuses(server: Running) -> None:
    """What does not fit an idle server is refused for good, all else for as long as others wait."""
    until(lambda: is_idle(server))
    short = {**LONG, "max_tokens": 1, "stream": False}
    with serving(server.lm, queue=2) as small:
        status, answer = post(small, json.dumps({**short, "n": 6}).encode())
        assert (status, answer["error"]["code"]) == (400, "too_many_answers")
        assert "3 slots and a queue of 2" in answer["error"]["message"]
        status, answer = post(small, json.dumps({**short, "n": 5}).encode())
        assert (status, len(answer["choices"])) == (200, 5)
        busy = opened(small, {**LONG, "n": 5})
        until(lambda: small.lm.engine.load.waiting == 2)
        status, answer = post(small, json.dumps(short).encode())
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        busy.close()
        until(lambda: is_idle(server))
    with serving(server.lm) as default:
        body = {**short, "prompt": ["a"] * 64, "n": 16}
        assert post(default, json.dumps(body).encode())[0] == 400


def test_requests_whose_client_left_do_not_fill_the_queue(server: Running) -> None:
    until(lambda: is_idle(server))
    with serving(server.lm, queue=2) as small:
        running = opened(small, {**LONG, "n": 3, "max_tokens": 1000})
        until(lambda: small.lm.engine.load.running == 3)
        waiting = opened(small, {**LONG, "n": 2})
        until(lambda: small.lm.engine.load.waiting == 2)
        waiting.close()
        until(lambda: small.lm.engine.load.waiting == 0)
        running.close()
    until(lambda: is_idle(server))


def test_an_answer_that_takes_too_long(server: Running) -> None:
    with serving(server.lm, timeout_s=0.0) as hasty:
        status, answer = post(hasty, json.dumps({**LONG, "stream": False}).encode())
        assert (status, answer["error"]["code"]) == (504, "timeout")
        until(lambda: is_idle(server))


def test_answers_under_way_are_finished_at_the_end(server: Running) -> None:
    with serving(server.lm) as ending:
        client = opened(ending)
        found = client.recv(1)
        ending.server.should_exit = True
        while part := client.recv(4096):
            found += part
        assert b"data: [DONE]" in found
        client.close()


def test_health_and_metrics(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/health")
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert found["status"] == "ok"
    assert found["slots"] == 3
    before = server.metric("rlx_generated_tokens_total")
    post(server, json.dumps({**LONG, "stream": False, "max_tokens": 7}).encode())
    assert server.metric("rlx_generated_tokens_total") == before + 7
    assert server.metric("rlx_requests_total") > 0
    assert server.metric("rlx_first_token_seconds_count") > 0
