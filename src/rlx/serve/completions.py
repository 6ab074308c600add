"""/v1/completions: texts that go on behind prompts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.lm import generation
from rlx.lm.generation import Piece
from rlx.lm.model import LanguageModel
from rlx.serve.body import Fields, parsed, read_body
from rlx.serve.errors import Refused
from rlx.serve.responses import LEFT, EventStream, unless_left
from rlx.serve.runner import Answers, Runner
from rlx.serve.sampling import SHARED, check_length, check_model, max_tokens_of, requests_of
from rlx.serve.settings import Settings

KNOWN = SHARED | {"prompt", "echo", "logprobs", "best_of", "suffix"}
MAX_PROMPTS, DEFAULT_TOKENS = 64, 16


@dataclass(frozen=True, slots=True)
class Served:
    """What routes of a language model have in common."""

    lm: LanguageModel
    runner: Runner
    settings: Settings

    async def fields(self, request: Request) -> Fields:
        limit, seconds = self.settings.max_body_bytes, self.settings.stall_s
        return Fields(parsed(await read_body(request, limit, seconds)))

    def stream(self, events: AsyncGenerator[Mapping[str, Any], None]) -> Response:
        return EventStream(events, self.settings.timeout_s, self.settings.stall_s)

    async def collected(self, request: Request, answers: Answers) -> list[list[Piece]] | None:
        """All pieces of each answer; None if the client left."""
        found: list[list[Piece]] = [[] for _ in answers.generations]

        async def collect() -> bool:
            async for numbered in answers.pieces():
                found[numbered.index].append(numbered.piece)
            return True

        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return found if await unless_left(request, collect()) else None
        finally:
            answers.cancel()


def usage_of(answers: Answers, n: int) -> dict[str, Any]:
    """Tokens: a prompt with several answers counts once."""
    firsts = answers.generations[::n]
    prompt = sum(len(g.request.prompt) for g in firsts)
    made = sum(g.made for g in answers.generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(g.reused for g in firsts)},
    }


def with_usage(fields: Fields) -> bool:
    return fields.fields("stream_options").flag("include_usage")


def gone() -> Response:
    return Response(status_code=LEFT)


class Completions:
    """The route."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def respond(self, request: Request) -> Response:
        fields = await self._served.fields(request)
        fields.only(KNOWN)
        check_model(fields, self._served.settings)
        requests = await asyncio.to_thread(self._requests, fields)
        answers = self._served.runner.submit(requests)
        made = _Completion(self._served.lm, fields, answers, self._served.settings.name)
        if fields.flag("stream"):
            return self._served.stream(made.events())
        pieces = await self._served.collected(request, answers)
        return gone() if pieces is None else JSONResponse(made.whole(pieces))

    def _requests(self, fields: Fields) -> list[generation.Request]:
        if fields.has("suffix"):
            raise Refused(400, "a suffix is not supported.", param="suffix")
        n = fields.integer("n", 1, 1, self._served.settings.max_samples)
        if fields.integer("best_of", n, 1, 1 << 31) != n:
            raise Refused(400, "best_of other than n is not supported.", param="best_of")
        logprobs = fields.integer("logprobs", 0, 0, 5) if fields.has("logprobs") else None
        lm, settings = self._served.lm, self._served.settings
        most = max_tokens_of(fields, "max_tokens") or DEFAULT_TOKENS
        prompts = prompts_of(lm, fields, "prompt")
        return requests_of(lm, settings, fields, prompts, max_tokens=most, logprobs=logprobs)


def prompts_of(lm: LanguageModel, fields: Fields, name: str) -> list[list[int]]:
    """A text, several texts, tokens, or several of tokens."""
    given = fields.raw(name)
    listed = [given] if isinstance(given, str) or _is_tokens(given) else given
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_PROMPTS:
        raise _no_prompt(name)
    check_length(lm, [p for p in listed if isinstance(p, str)])
    return [_tokens(lm, p, name) for p in listed]


def _no_prompt(name: str) -> Refused:
    return Refused(400, f"{name!r} must be texts or tokens.", param=name)


def _tokens(lm: LanguageModel, prompt: Any, name: str) -> list[int]:
    if isinstance(prompt, str):
        return lm.tokens_of(prompt)
    if not _is_tokens(prompt):
        raise _no_prompt(name)
    return prompt


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)


class _Completion:
    """One request's answer in OpenAI's shape."""

    def __init__(self, lm: LanguageModel, fields: Fields, answers: Answers, model: str) -> None:
        self._lm, self._answers = lm, answers
        self._n = fields.integer("n", 1, 1, 1 << 31)
        self._echoes, self._with_usage = fields.flag("echo"), with_usage(fields)
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            for index in range(len(self._answers.generations) if self._echoes else 0):
                yield {**self._head, "choices": [self._choice(index, self._echo(index), [])]}
            async for item in self._answers.pieces():
                piece = item.piece
                if piece.text or piece.finish_reason or piece.log_probabilities:
                    choice = self._choice(item.index, piece.text, [piece])
                    yield {**self._head, "choices": [choice]}
            if self._with_usage:
                yield {**self._head, "choices": [], "usage": usage_of(self._answers, self._n)}
        finally:
            self._answers.cancel()

    def whole(self, pieces: Sequence[list[Piece]]) -> dict[str, Any]:
        choices = [
            self._choice(i, self._echo(i) + "".join(p.text for p in found), found)
            for i, found in enumerate(pieces)
        ]
        return {**self._head, "choices": choices, "usage": usage_of(self._answers, self._n)}

    def _echo(self, index: int) -> str:
        if not self._echoes:
            return ""
        prompt = self._answers.generations[index].request.prompt
        return self._lm.tokenizer.decode(prompt).decode(errors="replace")

    def _choice(self, index: int, text: str, pieces: list[Piece]) -> dict[str, Any]:
        reason = pieces[-1].finish_reason if pieces else None
        chances = self._logprobs(pieces) if any(p.log_probabilities for p in pieces) else None
        return {"index": index, "text": text, "finish_reason": reason, "logprobs": chances}

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any]:
        tokens = [t for p in pieces for t in p.tokens]
        likeliest = [dict(a) for p in pieces for a in p.alternatives]
        offsets, at = [], 0
        for piece in pieces:
            offsets += [at] * len(piece.tokens)
            at += len(piece.text)
        return {
            "tokens": [self._text(t) for t in tokens],
            "token_logprobs": [v for p in pieces for v in p.log_probabilities],
            "top_logprobs": [{self._text(t): v for t, v in a.items()} for a in likeliest] or None,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return token_text(self._lm, token)


def token_text(lm: LanguageModel, token: int) -> str:
    return lm.tokenizer.piece(token, special=True).decode(errors="replace")
