"""No body of a request is a fault of the server, and none leaves a slot occupied."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.serving import Running
from tests.serve.test_wrong_clients import is_idle, post, until

HELLO = {"role": "user", "content": "hello"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#"}}}}
SHAPES: list[Any] = [
    None, True, -1, 0, 2, 0.5, 1e300, 1e-300, 10**400, "", "a", "none", "auto", "required", "\0",
    {}, [], [[]], [1, 2], [[1], [2]], ["a", "hello"], [{}], [HELLO], {"5": 1},
    {"include_usage": True},
    {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
    [{"type": "function", "function": FUNCTION}], {"type": "function", "function": FUNCTION},
    [FUNCTION], FUNCTION, {"type": "allowed_tools", "allowed_tools": {"tools": [{}]}},
    [HELLO, {"role": "assistant", "tool_calls": [{"function": {**FUNCTION, "arguments": "[1]"}}]}],
    [{"role": "tool", "content": [{"type": "refusal"}]}],
]  # fmt: skip
"""Of all kinds that some field has."""


def bodies(base: dict[str, Any], known: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A request with a few fields that are something else."""
    others = st.dictionaries(st.sampled_from(sorted(known)), st.sampled_from(SHAPES), max_size=4)
    return others.map(lambda fields: {**base, **fields, "max_tokens": 2})


def check(server: Running, path: str, body: dict[str, Any]) -> None:
    status, answer = post(server, json.dumps({**body, "stream": False}).encode(), path)
    assert status in (200, 400, 404), answer
    until(lambda: is_idle(server))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bodies_of_chats(server: Running, data: st.DataObject) -> None:
    from rlx.serve.chat import KNOWN

    check(server, "/v1/chat/completions", data.draw(bodies({"messages": [HELLO]}, KNOWN)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bodies_of_completions(server: Running, data: st.DataObject) -> None:
    from rlx.serve.completions import KNOWN

    check(server, "/v1/completions", data.draw(bodies({"prompt": "hello"}, KNOWN)))
