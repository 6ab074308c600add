"""Tools: described to a model, asked for as a form of the answer, and read out of answers.

Models write calls as JSON, `{"name": …, "arguments": …}`, bare or between <tool_call> tags.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.lm.model import LanguageModel
from rlx.lm.stopping import overlap
from rlx.serve.body import Fields
from rlx.serve.errors import Refused

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128
INSTRUCTIONS = """You may call one of these functions:
{tools}
To call one, answer with nothing but {open}{{"name": "…", "arguments": {{…}}}}{close}"""
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request, and whether one must be called."""

    described: tuple[Mapping[str, Any], ...] = ()
    forced: tuple[str, ...] = ()
    """The functions one of which must be called."""

    def __bool__(self) -> bool:
        return bool(self.described)

    @property
    def form(self) -> dict[str, Any] | None:
        """The form of an answer that must be a call."""
        if not self.forced:
            return None
        calls = [_call_schema(t["function"]) for t in self.described]
        return {"schema": {"anyOf": [c for c in calls if c["x-name"] in self.forced]}}


def tools_of(fields: Fields) -> Tools:
    """Tools as they are to be used: none where they are switched off."""
    items = fields.items("tools")
    if len(items) > MAX_TOOLS:
        raise Refused(400, f"at most {MAX_TOOLS} tools.", param="tools")
    names = [_name(Fields(item, "a tool")) for item in items]
    choice = fields.raw("tool_choice") or "auto"
    if choice == "none":
        return Tools()
    if choice == "auto":
        return Tools(tuple(items))
    if choice == "required" and names:
        return Tools(tuple(items), tuple(names))
    wanted = _name(Fields(choice, "'tool_choice'")) if isinstance(choice, dict) else ""
    if wanted not in names:
        raise Refused(400, "'tool_choice' names none of the tools.", param="tool_choice")
    return Tools(tuple(items), (wanted,))


def _name(tool: Fields) -> str:
    name = tool.fields("function").text("name")
    if tool.text("type", "function") != "function" or not name:
        raise Refused(400, "a tool must be a function with a name.", param="tools")
    if not isinstance(tool.fields("function").raw("parameters") or {}, dict):
        raise Refused(400, "a tool's parameters must be a JSON schema.", param="tools")
    return name


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    given = function.get("parameters") or {"type": "object"}
    return {
        "x-name": function["name"],
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": given},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


# -- messages --------------------------------------------------------------------------------------


def prompt_of(lm: LanguageModel, messages: Sequence[Message], tools: Tools) -> list[int]:
    """The tokens of a conversation; where the template knows no tools, they are said in words."""
    knows = lm.template is not None and lm.template.takes_tools
    if knows:
        return lm.prompt_of(
            [_with_objects(m) for m in messages], tools=list(tools.described) or None
        )
    plain = [_in_words(m) for m in messages]
    return lm.prompt_of(_instructed(plain, tools) if tools else plain)


def _with_objects(message: Message) -> Message:
    """Arguments of calls as objects, as templates expect them."""
    if "tool_calls" not in message:
        return message
    calls = [{**c, "function": _with_arguments(c["function"])} for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _with_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    text = function.get("arguments", "{}")
    try:
        return {**function, "arguments": json.loads(text) if isinstance(text, str) else text}
    except ValueError:
        raise Refused(400, "a call's arguments are not JSON.", param="messages") from None


def _in_words(message: Message) -> Message:
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>{message['content']}</tool_response>",
        }
    calls = "".join(
        f"{OPEN}{json.dumps({'name': f['name'], 'arguments': f['arguments']})}{CLOSE}"
        for f in (_with_arguments(c["function"]) for c in message.get("tool_calls", ()))
    )
    return {"role": message["role"], "content": message["content"] + calls}


def _instructed(messages: list[Message], tools: Tools) -> list[Message]:
    listed = "\n".join(json.dumps(t["function"]) for t in tools.described)
    text = INSTRUCTIONS.format(tools=listed, open=OPEN, close=CLOSE)
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


# -- answers ---------------------------------------------------------------------------------------


def calls_in(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text beside the calls, and the calls in OpenAI's shape."""
    tagged = re.findall(f"{OPEN}(.*?)(?:{CLOSE}|$)", text, re.S)
    found = [c for part in tagged or [text] for c in _calls_of(part)]
    if not found:
        return text, []
    beside = re.sub(f"{OPEN}.*?(?:{CLOSE}|$)", "", text, flags=re.S) if tagged else ""
    return beside.strip(), [_call(name, arguments) for name, arguments in found]


def _calls_of(text: str) -> list[tuple[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    made: list[tuple[str, Any]] = []
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return []
        arguments = item.get("arguments", item.get("parameters"))
        if not isinstance(arguments, dict):
            return []
        made.append((item["name"], arguments))
    return made


def _call(name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class CallStream:
    """Text in, text out; what may be a call is held back to the end."""

    def __init__(self) -> None:
        self._held = ""
        self._is_call = False
        self._has_begun = False

    def add(self, text: str) -> str:
        self._held += text
        if self._is_call or not self._held.strip():
            return ""
        if not self._has_begun and self._held.lstrip()[0] in "{[":
            self._is_call = True
            return ""
        at = self._held.find(OPEN)
        self._is_call = at >= 0
        keep = len(self._held) - at if self._is_call else overlap(self._held, OPEN)
        return self._released(len(self._held) - keep)

    def _released(self, count: int) -> str:
        made, self._held = self._held[:count], self._held[count:]
        self._has_begun = self._has_begun or bool(made.strip())
        return made

    def rest(self) -> tuple[str, list[dict[str, Any]]]:
        """What was held back: text, or calls."""
        return calls_in(self._held)
