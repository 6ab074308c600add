"""Tools: schemas with references, kinds of choices, older functions, messages of calls."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.serving import MODEL, Running

openai: Any = pytest.importorskip("openai", reason="the package openai is not installed")
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
HOW: dict[str, Any] = {"model": MODEL, "messages": HELLO, "seed": 2, "max_tokens": 400}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def fits(server: Running, tools: list[Any], call: dict[str, Any]) -> bool:
    """Does the form of a call that must be made have this one?"""
    from rlx.serve.body import Fields
    from rlx.serve.tools import tools_of

    form = tools_of(Fields({"tools": tools, "tool_choice": "required"})).form
    assert form is not None
    matched = server.lm.constraints.schema(form["schema"]).begin()
    for token in server.lm.tokenizer.exact(json.dumps(call)):
        if not matched.allowed(len(server.lm.tokenizer.texts))[token]:
            return False
        matched.accept(token)
    return matched.is_complete


def called(client: Any, field: str, **how: Any) -> Any:
    """An answer that is a call. Of a model of random weights some are spaces to the end."""
    for seed in range(16):
        made = client.chat.completions.create(**{**HOW, **how, "seed": seed}).choices[0]
        if getattr(made.message, field):
            return made
    pytest.fail("no answer is a call")


def referring(kind: str, definitions: str = "$defs", **more: Any) -> dict[str, Any]:
    """A schema that refers to a definition of its own, and to itself."""
    nested = {"$ref": f"#/{definitions}/P"}
    return {
        **more, definitions: {"P": {"type": kind}}, "type": "object", "required": ["p"],
        "properties": {"p": nested, "again": {"$ref": "#"}}, "additionalProperties": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "dialect",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": "definitions"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "definitions": "definitions"},
        {"$id": "https://example.com/p"},
    ],
)
def test_references_start_at_the_root_of_their_schema(server: Running, dialect: Any) -> None:
    tools = [tool("one", referring("integer", **dialect)), tool("two", referring("boolean"))]
    for name, value, other in (("one", 1, True), ("two", True, 1)):
        for p in ({"p": value}, {"p": value, "again": {"p": value}}):
            assert fits(server, tools, {"name": name, "arguments": p})
        for p in ({"p": other}, {"p": value, "again": {"p": other}}):
            assert not fits(server, tools, {"name": name, "arguments": p})


@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_a_schema_that_is_a_reference(server: Running, dialect: Any) -> None:
    """As pydantic makes of a model that has itself."""
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}},
        "additionalProperties": False,
    }
    tools = [tool("f", {**dialect, "$defs": {"Node": node}, "$ref": "#/$defs/Node"})]
    assert fits(server, tools, {"name": "f", "arguments": {"next": {"next": {}}}})
    assert not fits(server, tools, {"name": "f", "arguments": {"next": {"next": 1}}})


def test_nested_models_over_http(client: Any) -> None:
    made = client.chat.completions.create(
        **HOW, tools=[tool("f", referring("boolean"))], tool_choice="required", temperature=0
    )
    assert made.choices[0].finish_reason in ("tool_calls", "length")


def test_some_of_the_tools_are_allowed(client: Any) -> None:
    tools = [tool(name, EMPTY) for name in ("add", "get", "put")]
    named = [{"type": "function", "function": {"name": "get"}}]
    choice: Any = {
        "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named},
    }  # fmt: skip
    made = called(client, "tool_calls", tools=tools, tool_choice=choice)
    assert [c.function.name for c in made.message.tool_calls] == ["get"]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    client.chat.completions.create(**HOW, tools=tools, tool_choice=choice)
    choice["allowed_tools"]["tools"] = [{"type": "function", "function": {"name": "other"}}]
    with pytest.raises(openai.BadRequestError, match="allowed_tools"):
        client.chat.completions.create(**HOW, tools=tools, tool_choice=choice)


def test_functions_of_the_older_protocol(client: Any) -> None:
    functions: Any = [{"name": "add", "parameters": EMPTY}]
    how: dict[str, Any] = {"functions": functions, "function_call": {"name": "add"}}
    made = called(client, "function_call", **how)
    assert made.finish_reason == "function_call"
    assert made.message.tool_calls is None
    assert (made.message.function_call.name, made.message.function_call.arguments) == ("add", "{}")
    for seed in range(16):
        events = list(client.chat.completions.create(**{**HOW, **how, "seed": seed}, stream=True))
        found = [e.choices[0].delta.function_call for e in events]
        if any(found):
            assert [c.name for c in found if c] == ["add"]
            assert events[-1].choices[0].finish_reason == "function_call"
            break
    else:
        pytest.fail("no stream has a call")
    call = made.message.model_dump(exclude_none=True)
    after = [*HELLO, call, {"role": "function", "name": "add", "content": "3"}]
    how = {**HOW, **how, "messages": after, "function_call": "none", "max_tokens": 4}
    assert client.chat.completions.create(**how).choices[0].message.function_call is None
    with pytest.raises(openai.BadRequestError, match="'functions'"):
        client.chat.completions.create(**HOW, functions=functions, tools=[])


def test_several_calls_in_an_answer() -> None:
    from rlx.serve.body import Fields
    from rlx.serve.tools import calls_in, tools_of

    calls = '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"c": 1}}]'
    for several, names in ((None, ["a", "b"]), (True, ["a", "b"]), (False, ["a"])):
        body = {"tools": [tool("a", EMPTY), tool("b", EMPTY)], "parallel_tool_calls": several}
        message = tools_of(Fields(body)).called(calls_in(calls)[1])
        assert [c["function"]["name"] for c in message["tool_calls"]] == names


def test_messages_in_all_shapes(server: Running) -> None:
    from rlx.serve.body import Fields
    from rlx.serve.chat import messages_of
    from rlx.serve.tools import Tools, prompt_of

    def text_of(*messages: Any) -> str:
        made = messages_of(Fields({"messages": list(messages)}))
        return server.lm.tokenizer.decode(prompt_of(server.lm, made, Tools())).decode()

    plain = text_of({"role": "assistant", "content": "no"})
    refusal = [{"type": "refusal", "refusal": "no"}]
    assert text_of({"role": "assistant", "content": refusal}) == plain
    assert text_of({"role": "assistant", "content": None, "refusal": "no"}) == plain
    texts = [
        text_of({"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
        ]})
        for given in ("", " ", "{}")
    ]  # fmt: skip
    assert len(set(texts)) == 1
    older = {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}
    assert text_of(older) == texts[0]


NEUTRAL: dict[str, Any] = {
    "reasoning_effort": "medium", "verbosity": "medium", "modalities": ["text"],
    "prediction": {"type": "content", "content": "hello"}, "metadata": {"a": "b"}, "store": False,
}  # fmt: skip


def test_fields_whose_value_asks_for_nothing(client: Any) -> None:
    how = {**HOW, "max_tokens": 2}
    client.chat.completions.create(**how, **NEUTRAL)
    for name, value, instead in (
        ("reasoning_effort", "high", "medium"),
        ("modalities", ["text", "audio"], "text"),
        ("audio", {"voice": "alloy", "format": "wav"}, "leave it out"),
        ("web_search_options", {}, "leave it out"),
    ):
        with pytest.raises(openai.BadRequestError, match=f"'{name}' is not supported.*{instead}"):
            client.chat.completions.create(**how, **{name: value})


def test_every_field_of_the_protocol_is_known() -> None:
    """By the types of OpenAI's client: a field is read, or refused for what it asks."""
    from openai.types import completion_create_params as completion
    from openai.types.chat import completion_create_params as chat

    from rlx.serve import chat as chat_route
    from rlx.serve import completions as completions_route
    from rlx.serve.sampling import NEUTRAL, UNREAD

    for types, route in ((chat, chat_route), (completion, completions_route)):
        asked = set(typing.get_type_hints(types.CompletionCreateParamsBase)) | {"stream"}
        assert asked <= route.KNOWN | UNREAD | set(NEUTRAL)
