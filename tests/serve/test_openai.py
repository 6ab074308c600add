"""The server by OpenAI's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlx.lm.sampling_defaults import FILTERED, SERVED
from tests.serve.serving import MODEL, Running, serving

openai: Any = pytest.importorskip("openai", reason="the package openai is not installed")
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def expected(server: Running, **how: Any) -> Any:
    """What the model says without a server."""
    return server.lm.complete(server.lm.prompt_of(HELLO), **{"max_tokens": 12, **how})


def test_chat(server: Running, client: Any) -> None:
    made = client.chat.completions.create(messages=HELLO, **GREEDY)
    alone = expected(server)
    assert made.choices[0].message.content == alone.text
    assert made.choices[0].finish_reason == "length"
    assert made.usage is not None
    assert made.usage.prompt_tokens == alone.prompt_tokens
    assert made.usage.completion_tokens == 12
    assert made.model == MODEL
    assert made.object == "chat.completion"


def test_chat_in_a_stream(server: Running, client: Any) -> None:
    options: Any = {"include_usage": True}
    events = list(
        client.chat.completions.create(
            messages=HELLO, stream=True, stream_options=options, **GREEDY
        )
    )
    texts = [e.choices[0].delta.content or "" for e in events if e.choices]
    assert "".join(texts) == expected(server).text
    assert len([t for t in texts if t]) > 1
    assert events[-2].choices[0].finish_reason == "length"
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 12


def test_samples_seeds_and_stops(server: Running, client: Any) -> None:
    how: dict[str, Any] = {**GREEDY, "temperature": 1.5, "seed": 4}
    made = client.chat.completions.create(messages=HELLO, n=3, **how)
    texts = [c.message.content for c in made.choices]
    assert texts == [
        expected(server, temperature=1.5, seed=4 + i, **FILTERED).text for i in range(3)
    ]
    assert [c.index for c in made.choices] == [0, 1, 2]
    whole = texts[0] or ""
    stop = next(c for c in whole[2:] if c.isalpha())
    ended = client.chat.completions.create(messages=HELLO, stop=[stop], **how).choices[0]
    assert ended.message.content == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"


def test_logprobs(server: Running, client: Any) -> None:
    made = client.chat.completions.create(
        messages=HELLO, logprobs=True, top_logprobs=2, **GREEDY
    ).choices[0]
    assert made.logprobs is not None
    content = made.logprobs.content or []
    alone = expected(server, logprobs=2)
    assert [c.logprob for c in content] == pytest.approx(alone.log_probabilities, abs=1e-5)
    assert all(c.top_logprobs[0].token == c.token for c in content)


def test_completions(server: Running, client: Any) -> None:
    lm = server.lm
    made = client.completions.create(prompt=["hello", "zebra"], logprobs=1, **GREEDY)
    texts = [c.text for c in made.choices]
    assert texts == [lm.complete(p, max_tokens=12).text for p in ("hello", "zebra")]
    first = made.choices[0].logprobs
    assert first is not None
    assert first.tokens is not None
    assert len(first.tokens) == 12
    tokens = lm.tokens_of("hello")
    again = client.completions.create(prompt=tokens, echo=True, **GREEDY)
    assert again.choices[0].text == " hello" + texts[0]
    stream = client.completions.create(prompt="hello", stream=True, **GREEDY)
    assert "".join(e.choices[0].text for e in stream) == texts[0]


def test_forms(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["he", "hello"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    how: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 80, "seed": 1}
    made = client.chat.completions.create(response_format=form, **how)
    assert json.loads(made.choices[0].message.content or "")["a"] in ("he", "hello")
    made = client.chat.completions.create(extra_body={"regex": "[ab]{3}"}, **how)
    assert set(made.choices[0].message.content or "") <= {"a", "b"}


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_tools(client: Any, choice: Any) -> None:
    how: dict[str, Any] = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    made = client.chat.completions.create(**how, seed=2).choices[0]
    assert made.finish_reason == "tool_calls"
    call: Any = (made.message.tool_calls or [])[0]
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "b"}
    events = list(client.chat.completions.create(**how, seed=2, stream=True))
    delta: Any = next(e.choices[0].delta for e in events if e.choices[0].delta.tool_calls)
    assert delta.tool_calls[0].function.arguments == call.function.arguments
    assert events[-1].choices[0].finish_reason == "tool_calls"
    results: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    how |= {"tool_choice": "none", "messages": results, "max_tokens": 4}
    after = client.chat.completions.create(**how, extra_body={"ignore_eos": True})
    assert after.choices[0].finish_reason == "length"


def test_requests_that_do_not_say_are_filtered(server: Running, client: Any) -> None:
    """The file states no way to draw; one that does is how a server draws."""
    made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, seed=9)
    alone = expected(server, seed=9, **SERVED)
    assert made.choices[0].message.content == alone.text
    server.lm.stated_sampling = {"temperature": 0.0}
    try:
        made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
        assert made.choices[0].message.content == expected(server).text
    finally:
        server.lm.stated_sampling = {}


def test_models_and_tokens(server: Running, client: Any) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    described: Any = client.get(f"{server.address}/v1/models/{MODEL}", cast_to=object)
    assert SERVED.items() <= described["default_sampling"].items()
    found: Any = client.post(
        f"{server.address}/tokenize", body={"content": "hello"}, cast_to=object
    )
    assert found["tokens"] == server.lm.tokenizer.encode("hello", begin=False)
    back: Any = client.post(f"{server.address}/detokenize", body=found, cast_to=object)
    assert back["content"] == " hello"
    with pytest.raises(openai.BadRequestError, match="integers below") as caught:
        client.post(f"{server.address}/detokenize", body={"tokens": [10**30]}, cast_to=object)
    assert "/" not in caught.value.body["message"]  # no path of this machine


def test_embeddings(server: Running, client: Any) -> None:
    texts = ["hello", "zebra"]
    expected = server.lm.embed(texts)
    for how in ({}, {"encoding_format": "float"}):  # the client's own is base64
        made = client.embeddings.create(model=MODEL, input=texts, **how)
        assert np.allclose([d.embedding for d in made.data], expected, atol=1e-7)  # one rounding
    assert made.usage.prompt_tokens == sum(len(server.lm.tokens_of(t)) for t in texts)
    many = client.embeddings.create(model=MODEL, input=["hello"] * 200)
    assert len(many.data) == 200
    for wrong in ({"input": []}, {"input": "a", "dimensions": 7}, {"input": {"a": 1}}):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model=MODEL, **wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"top_p": 0}, openai.BadRequestError, "top_p"),
        ({"n": 0}, openai.BadRequestError, "'n' must be an integer"),
        ({"n": 1000}, openai.BadRequestError, "'n' must be an integer"),
        ({"max_tokens": -5}, openai.BadRequestError, "max_tokens"),
        ({"messages": []}, openai.BadRequestError, "at least one"),
        ({"messages": [{"role": "cat", "content": ""}]}, openai.BadRequestError, "role"),
        ({"messages": "hello"}, openai.BadRequestError, "must be a list"),
        ({"model": "gpt-9"}, openai.NotFoundError, "no model 'gpt-9'"),
        ({"extra_body": {"max_token": 3}}, openai.BadRequestError, "'max_token' is not a known"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"logit_bias": {"3": 101}}, openai.BadRequestError, "logit_bias"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"regex": "("}}, openai.BadRequestError, "regular expression"),
        ({"tools": [{}]}, openai.BadRequestError, "a tool must be"),
        ({"top_logprobs": 2}, openai.BadRequestError, "logprobs"),
    ],
)
def test_bad_parameters(client: Any, wrong: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        client.chat.completions.create(**{**GREEDY, "messages": HELLO, **wrong})


def test_a_prompt_beyond_the_context(client: Any) -> None:
    long: list[Any] = [{"role": "user", "content": "hello zebra " * 500}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=long, **GREEDY)
    assert caught.value.code == "context_length_exceeded"
    longer: list[Any] = [{"role": "user", "content": "x" * 4_000_000}]
    many: list[Any] = [{"role": "user", "content": "x" * 1000}] * 1000
    for messages in (longer, many):  # without being tokenized
        with pytest.raises(openai.BadRequestError, match="characters") as caught:
            client.chat.completions.create(messages=messages, **GREEDY)
        assert caught.value.code == "context_length_exceeded"


def test_many_clients_get_what_one_gets(server: Running, client: Any) -> None:
    alone = expected(server).text
    found: list[str | None] = []

    def ask() -> None:
        made = client.chat.completions.create(messages=HELLO, **GREEDY)
        found.append(made.choices[0].message.content)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 12


def test_a_token_is_asked_for(server: Running) -> None:
    with serving(server.lm, token="secret") as guarded:
        base = f"{guarded.address}/v1"
        wrong = openai.OpenAI(base_url=base, api_key="wrong", max_retries=0)
        with wrong as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with openai.OpenAI(base_url=base, api_key="secret", max_retries=0) as client:
            assert [m.id for m in client.models.list()] == [MODEL]
