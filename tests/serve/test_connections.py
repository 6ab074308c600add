"""Connections of clients that send nothing, too little, too much, or two lengths."""

from __future__ import annotations

import logging
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.serve import serving

HEADER_S = 0.3
FEW = 8
LIMIT = 1 << 16


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server without a model that has few connections, and waits for headers for a moment."""
    serving.skip_without_packages()
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from rlx.serve import Settings, connections
    from rlx.serve.app import application
    from rlx.serve.body import read_body
    from rlx.serve.metrics import Metrics

    async def echo(request: Request) -> Response:
        return JSONResponse({"size": len(await read_body(request, LIMIT, 5))})

    async def health(request: Request) -> Response:
        del request
        return JSONResponse({})

    routes = [Route("/health", health), Route("/echo", echo, methods=["POST"])]
    app = application(routes, Settings(name="none"), Metrics(), None)
    app.state.drain = lambda: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "MAX_CONNECTIONS", FEW)
        with serving.running(app, HEADER_S) as (address, _):
            yield int(address.rpartition(":")[2])


def connected(port: int, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(data)
    return made


def closed(client: socket.socket) -> bytes:
    """What a connection answers until it is closed by the server."""
    found = b""
    with suppress(ConnectionError):
        while part := client.recv(1 << 16):
            found += part
    client.close()
    return found


def is_healthy(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        return answer.status == 200


HEAD = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("data", [
    b"", b"G", b"GET /health HTTP/1.1\r\nHost: a\r\n", b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /hea",
])  # fmt: skip
def test_a_connection_without_a_whole_request_is_closed(port: int, data: bytes) -> None:
    answer = closed(connected(port, data))
    assert answer.count(b"200 OK") == data.count(b"\r\n\r\nGET")


def test_headers_that_trickle_in_do_not_move_the_deadline(port: int) -> None:
    client, sent = connected(port, b"GET /health HTTP/1.1\r\n"), 0
    with suppress(ConnectionError):
        while sent < 3000:
            client.sendall(b"a")
            sent += 1
            time.sleep(0.01)
    assert sent < 3000
    assert b"200" not in closed(client)


def test_silent_connections_make_room_for_requests(port: int) -> None:
    silent = [connected(port, b"GET / HT"[: i % 9]) for i in range(10 * FEW)]
    assert all(is_healthy(port) for _ in range(3))
    for client in silent:
        client.close()


def test_connections_under_way_do_not_make_room() -> None:
    serving.skip_without_packages()
    from rlx.serve.connections import Connections

    class Held:
        """A connection, as far as it is counted."""

        def __init__(self, address: str) -> None:
            self.address, self.is_closed = address, False

        def abort(self) -> None:
            self.is_closed = True

    found: Any = Connections(most=8)
    refused = Held("a")
    busy, waiting = [Held("a") for _ in range(6)], [Held("b"), Held("c")]
    assert all(found.add(c) for c in busy)
    assert not found.add(refused)
    found.remove(refused)
    for c in waiting:
        assert found.add(c)
        found.waiting[c] = None
    assert found.add(Held("d"))
    assert [c.is_closed for c in (*busy, *waiting)] == [False] * 6 + [True, False]


@pytest.mark.parametrize("order", [1, -1])
def test_a_request_with_both_lengths_is_refused(port: int, order: int) -> None:
    lengths = [b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n"][::order]
    smuggled = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    data = HEAD + b"".join(lengths) + b"\r\n0\r\n\r\n" + smuggled
    answer = closed(connected(port, data))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"not both" in answer
    assert b"200 OK" not in answer


@pytest.mark.parametrize("length", [b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_the_answer_to_a_body_that_is_too_large_arrives(
    port: int, length: bytes, close: bytes
) -> None:
    """The client sends all of it before it reads."""
    size = 16 * LIMIT
    head = HEAD + close + (length % size if b"%d" in length else length) + b"\r\n"
    chunk = b"%x\r\n" % size if b"chunked" in length else b""
    end = b"\r\n0\r\n\r\n" if chunk else b""
    client = connected(port, head + chunk + b" " * size + end)
    assert closed(client).startswith(b"HTTP/1.1 413")


def test_a_client_cannot_fill_the_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            assert closed(connected(port, b"\x00\x01 nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert 0 < len([r for r in caplog.records if "Invalid HTTP" in r.message]) <= 20
    assert is_healthy(port)


def test_what_the_process_logs_itself_is_whole(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """No client can make it write that, so a server in its threads leaves nothing of it out."""
    with caplog.at_level(logging.INFO, "rlx"):
        for _ in range(40):
            logging.getLogger("rlx").info("compiled")
    assert caplog.messages == ["compiled"] * 40
    assert is_healthy(port)
