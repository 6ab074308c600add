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
    is_parallel: bool = True
    """May an answer have several calls?"""
    is_legacy: bool = False
    """Were they given as `functions`, which answers call by `function_call`?"""

    def __bool__(self) -> bool:
        return bool(self.described)

    @property
    def form(self) -> dict[str, Any] | None:
        """The form of an answer that must be a call."""
        if not self.forced:
            return None
        forced = [t["function"] for t in self.described if t["function"]["name"] in self.forced]
        return {"schema": {"anyOf": [_call_schema(f, n) for n, f in enumerate(forced)]}}

    @property
    def reason(self) -> str:
        """Why an answer ended that is a call."""
        return "function_call" if self.is_legacy else "tool_calls"

    def called(self, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The field of a message that has its calls."""
        if self.is_legacy:
            return {"function_call": calls[0]["function"]}
        return {"tool_calls": list(calls if self.is_parallel else calls[:1])}


def tools_of(fields: Fields) -> Tools:
    """Tools as they are to be used: none where they are switched off."""
    is_legacy = fields.has("functions") or fields.has("function_call")
    if is_legacy and (fields.has("tools") or fields.has("tool_choice")):
        text = "give 'tools' and 'tool_choice', or 'functions' and 'function_call'."
        raise Refused(400, text, param="functions")
    items = fields.items("functions" if is_legacy else "tools")
    if len(items) > MAX_TOOLS:
        raise Refused(400, f"at most {MAX_TOOLS} tools.", param="tools")
    choice = fields.raw("function_call" if is_legacy else "tool_choice")
    if is_legacy:
        items = [{"type": "function", "function": f} for f in items]
        choice = {"function": choice} if isinstance(choice, dict) else choice
    names = [_name(Fields(item, "a tool")) for item in items]
    allowed, forced = _chosen(choice, names)
    described = tuple(t for t, n in zip(items, names) if n in allowed)
    return Tools(described, forced, fields.flag("parallel_tool_calls", True), is_legacy)


def _chosen(choice: Any, names: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """The functions that may be called, and those one of which must be."""
    if choice is None or choice == "auto":
        return names, ()
    if choice == "none":
        return (), ()
    if choice == "required" and names:
        return names, tuple(names)
    given = Fields(choice, "'tool_choice'", "tool_choice.") if isinstance(choice, dict) else None
    if given is not None and given.text("type") == "allowed_tools":
        return _allowed(given.fields("allowed_tools"), names)
    wanted = "" if given is None else _name(given)
    if wanted not in names:
        raise Refused(400, "'tool_choice' names none of the tools.", param="tool_choice")
    return names, (wanted,)


def _allowed(given: Fields, names: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Some of the tools: the model may call one of them, or must."""
    mode = given.text("mode", "auto")
    wanted = [_name(Fields(t, "an allowed tool")) for t in given.items("tools")]
    if mode not in ("auto", "required") or not wanted or not set(wanted) <= set(names):
        text = "'allowed_tools' must have the mode auto or required, and some of the tools."
        raise Refused(400, text, param="tool_choice")
    return wanted, tuple(wanted) if mode == "required" else ()


def _name(tool: Fields) -> str:
    name = tool.fields("function").text("name")
    if tool.text("type", "function") != "function" or not name:
        raise Refused(400, "a tool must be a function with a name.", param="tools")
    if not isinstance(tool.fields("function").raw("parameters") or {}, dict):
        raise Refused(400, "a tool's parameters must be a JSON schema.", param="tools")
    return name


def _call_schema(function: Mapping[str, Any], number: int) -> dict[str, Any]:
    given = _rooted(function.get("parameters") or {"type": "object"}, f"urn:rlx:tool:{number}")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": given},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _rooted(schema: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """A schema as a resource of its own: references within it (#, #/$defs/…, #anchor) start at its
    root wherever it is embedded. Draft 4 calls `$id` `id`; up to draft 7 neither holds beside a
    `$ref`, which `allOf` therefore takes."""
    made = {"$id": uri, "id": uri, **schema}
    if "$ref" in made:
        others = made.get("allOf", [])
        listed = others if isinstance(others, list) else [others]
        made["allOf"] = [*listed, {"$ref": made.pop("$ref")}]
    return made


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
    try:
        return {**function, "arguments": json.loads(function["arguments"].strip() or "{}")}
    except (ValueError, RecursionError):
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
