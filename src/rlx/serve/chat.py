"""/v1/chat/completions: answers to conversations, with tools."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.lm import generation
from rlx.lm.generation import Piece
from rlx.lm.model import LanguageModel
from rlx.serve.body import Fields
from rlx.serve.completions import Served, gone, token_text, usage_of, with_usage
from rlx.serve.errors import Refused
from rlx.serve.runner import Answers, Numbered
from rlx.serve.sampling import (
    MAX_LOGPROBS,
    SHARED,
    check_fields,
    check_length,
    check_model,
    max_tokens_of,
    requests_of,
)
from rlx.serve.tools import CallStream, Message, Tools, calls_in, prompt_of, tools_of

KNOWN = SHARED | {
    "messages", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs",
    "max_completion_tokens", "functions", "function_call",
}  # fmt: skip
ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant",
         "tool": "tool", "function": "tool"}  # fmt: skip
PARTS = {"text": "text", "refusal": "refusal"}
"""Kinds of parts of a message that are texts, and the field that each has its text in."""


class Chat:
    """The route."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def respond(self, request: Request) -> Response:
        fields = await self._served.fields(request)
        check_fields(fields, KNOWN)
        check_model(fields, self._served.settings)
        tools = tools_of(fields)
        requests = await asyncio.to_thread(self._requests, fields, tools)
        answers = self._served.runner.submit(requests)
        made = _Completion(self._served.lm, fields, tools, answers, self._served.settings.name)
        if fields.flag("stream"):
            return self._served.stream(made.events())
        pieces = await self._served.collected(request, answers)
        return gone() if pieces is None else JSONResponse(made.whole(pieces))

    def _requests(self, fields: Fields, tools: Tools) -> list[generation.Request]:
        lm, settings = self._served.lm, self._served.settings
        messages = messages_of(fields)
        check_length(lm, ["".join(m["content"] for m in messages)])
        prompt = prompt_of(lm, messages, tools)
        most = max_tokens_of(fields, "max_completion_tokens", "max_tokens")
        chances, form = _logprobs(fields), tools.form
        return requests_of(
            lm, settings, fields, [prompt], max_tokens=most, logprobs=chances, form=form
        )


def messages_of(fields: Fields) -> list[Message]:
    """Messages as templates read them."""
    found = fields.items("messages")
    if not found:
        raise Refused(400, "'messages' must have at least one.", param="messages")
    return [_message(Fields(m, "a message")) for m in found]


def _message(fields: Fields) -> Message:
    role = ROLES.get(fields.text("role"))
    if role is None:
        known = ", ".join(ROLES)
        raise Refused(400, f"a message's role must be one of {known}.", param="messages")
    made = {"role": role, "content": _content(fields)}
    names = {n: fields.text(n) for n in ("name", "tool_call_id") if fields.has(n)}
    calls = [_called(Fields(c, "a call")) for c in fields.items("tool_calls")]
    if fields.has("function_call"):
        calls.append(_called(Fields({"function": fields.raw("function_call")})))
    return {**made, **names, **({"tool_calls": calls} if calls else {})}


def _called(call: Fields) -> dict[str, Any]:
    function = call.fields("function")
    named = {"name": function.text("name"), "arguments": function.text("arguments", "{}")}
    return {"id": call.text("id"), "type": "function", "function": named}


def _content(fields: Fields) -> str:
    """A text, or parts that are texts."""
    given = fields.raw("content")
    if given is None or isinstance(given, str):
        return given or fields.text("refusal")
    parts = [Fields(p, "a part of a message") for p in fields.items("content")]
    kinds = [PARTS.get(p.text("type", "text")) for p in parts]
    if None in kinds:
        raise Refused(400, "this model reads text only.", param="messages")
    return "".join(p.text(kind) for p, kind in zip(parts, kinds) if kind)


def _logprobs(fields: Fields) -> int | None:
    most = fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
    if not fields.flag("logprobs"):
        if most:
            raise Refused(400, "'top_logprobs' needs 'logprobs'.", param="top_logprobs")
        return None
    return most


class _Completion:
    """One request's answer in OpenAI's shape."""

    def __init__(
        self, lm: LanguageModel, fields: Fields, tools: Tools, answers: Answers, model: str
    ) -> None:
        self._lm, self._answers, self._tools = lm, answers, tools
        self._n, self._with_usage = fields.integer("n", 1, 1, 1 << 31), with_usage(fields)
        self._has_chances = fields.flag("logprobs")
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    @property
    def _usage(self) -> dict[str, Any]:
        return usage_of([self._answers.generations[0].request.prompt], self._answers)

    # -- in parts ----------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        held = [CallStream() if self._tools else None for _ in self._answers.generations]
        try:
            for index in range(self._n):
                yield self._event(index, {"role": "assistant", "content": ""})
            async for item in self._answers.pieces():
                for event in self._events_of(item, held[item.index]):
                    yield event
            if self._with_usage:
                head = {**self._head, "object": "chat.completion.chunk", "choices": []}
                yield {**head, "usage": self._usage}
        finally:
            self._answers.cancel()

    def _events_of(self, item: Numbered, held: CallStream | None) -> list[Mapping[str, Any]]:
        piece, index = item.piece, item.index
        text = piece.text if held is None else held.add(piece.text)
        made: list[Mapping[str, Any]] = []
        if text or piece.log_probabilities:
            made.append(self._event(index, {"content": text}, chances=self._chances([piece])))
        if piece.finish_reason is None:
            return made
        rest, calls = held.rest() if held is not None else ("", [])
        if rest:
            made.append(self._event(index, {"content": rest}))
        if calls:
            numbered = [{"index": i, **c} for i, c in enumerate(calls)]
            made.append(self._event(index, self._tools.called(numbered)))
        reason = self._tools.reason if calls else piece.finish_reason
        return [*made, self._event(index, {}, reason)]

    def _event(
        self, index: int, delta: Mapping[str, Any], reason: str | None = None, chances: Any = None
    ) -> Mapping[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": chances}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    # -- as a whole --------------------------------------------------------------------------------

    def whole(self, pieces: Sequence[list[Piece]]) -> dict[str, Any]:
        choices = [self._choice(i, found) for i, found in enumerate(pieces)]
        head = {**self._head, "object": "chat.completion"}
        return {**head, "choices": choices, "usage": self._usage}

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        text, calls = "".join(p.text for p in pieces), []
        if self._tools:
            text, calls = calls_in(text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message |= {"content": text or None, **self._tools.called(calls)}
        reason = self._tools.reason if calls else pieces[-1].finish_reason
        chances = self._chances(pieces)
        return {"index": index, "message": message, "finish_reason": reason, "logprobs": chances}

    def _chances(self, pieces: list[Piece]) -> dict[str, Any] | None:
        if not self._has_chances:
            return None
        content: list[dict[str, Any]] = []
        for piece in pieces:
            likeliest = piece.alternatives or ((),) * len(piece.tokens)
            for token, chance, top in zip(piece.tokens, piece.log_probabilities, likeliest):
                listed = [self._token(t, v) for t, v in top]
                content.append({**self._token(token, chance), "top_logprobs": listed})
        return {"content": content}

    def _token(self, token: int, chance: float) -> dict[str, Any]:
        data = list(self._lm.tokenizer.piece(token, special=True))
        return {"token": token_text(self._lm, token), "logprob": chance, "bytes": data}
