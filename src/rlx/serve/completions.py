"""/v1/completions: texts that go on behind prompts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.lm import generation
from rlx.lm.generation import Piece
from rlx.lm.model import LanguageModel
from rlx.serve.body import Fields, parsed, read_body
from rlx.serve.errors import LEFT, Refused
from rlx.serve.prompts import Echo, Offsets, Row, echo_of, given_prompts, scored, tokens_of
from rlx.serve.responses import EventStream, unless_left
from rlx.serve.runner import Answers, Runner
from rlx.serve.sampling import SHARED, check_fields, check_model, max_tokens_of, requests_of
from rlx.serve.settings import Settings
from rlx.serve.turns import Turns

KNOWN = SHARED | {"prompt", "echo", "logprobs", "best_of"}
MAX_PROMPTS, DEFAULT_TOKENS, MAX_LIKELIEST = 64, 16, 5


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


def usage_of(prompts: Sequence[Sequence[int]], answers: Answers) -> dict[str, Any]:
    """Tokens: a prompt with several answers counts once, and they follow one another."""
    generations = answers.generations
    firsts = generations[:: max(1, len(generations) // len(prompts))]
    prompt = sum(map(len, prompts))
    made = sum(g.made for g in generations)
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
        self._turns = Turns(1, served.settings.queue)

    async def respond(self, request: Request) -> Response:
        fields = await self._served.fields(request)
        check_fields(fields, KNOWN)
        check_model(fields, self._served.settings)
        asked = await asyncio.to_thread(self._asked, fields)
        self._served.runner.check_room(len(asked.requests))
        if asked.echoes and asked.likeliest is not None:
            async with asyncio.timeout(self._served.settings.timeout_s):
                echoes = await unless_left(request, self._scored(asked))
            if echoes is None:
                return gone()
            asked = replace(asked, echoes=echoes)
        answers = self._served.runner.submit(asked.requests)
        made = _Completion(self._served.lm, fields, asked, answers, self._served.settings.name)
        if fields.flag("stream"):
            return self._served.stream(made.events())
        pieces = await self._served.collected(request, answers)
        return gone() if pieces is None else JSONResponse(made.whole(pieces))

    def _asked(self, fields: Fields) -> _Asked:
        n = fields.integer("n", 1, 1, self._served.settings.max_samples)
        if fields.integer("best_of", n, 1, 1 << 31) != n:
            raise Refused(400, "best_of other than n is not supported.", param="best_of")
        counts = fields.has("logprobs")
        likeliest = fields.integer("logprobs", 0, 0, MAX_LIKELIEST) if counts else None
        echoes = fields.flag("echo")
        most = max_tokens_of(fields, "max_tokens", least=0 if echoes else 1)
        most = DEFAULT_TOKENS if most is None else most
        lm, settings = self._served.lm, self._served.settings
        given = given_prompts(fields, "prompt", MAX_PROMPTS)
        prompts = tokens_of(lm, given)
        requests = requests_of(
            lm, settings, fields, prompts, max_tokens=max(1, most), logprobs=likeliest
        )
        shown = [echo_of(lm, g, p) for g, p in zip(given, prompts)] if echoes else []
        return _Asked(prompts, requests if most else [], n, likeliest, shown)

    async def _scored(self, asked: _Asked) -> list[Echo]:
        made: list[Echo] = []
        async with self._turns:
            for echo, tokens in zip(asked.echoes, asked.prompts):
                count = asked.likeliest or 0
                made.append(await asyncio.to_thread(scored, self._served.lm, echo, tokens, count))
        return made


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a body asks for."""

    prompts: Sequence[Sequence[int]]
    requests: Sequence[generation.Request]
    """`n` for each prompt; none where no token is to be made."""
    n: int
    likeliest: int | None
    """Log-probabilities of tokens, and of so many of the likeliest."""
    echoes: Sequence[Echo]


class _Completion:
    """One request's answer in OpenAI's shape."""

    def __init__(
        self, lm: LanguageModel, fields: Fields, asked: _Asked, answers: Answers, model: str
    ) -> None:
        self._lm, self._answers, self._asked = lm, answers, asked
        self._with_usage = with_usage(fields)
        self._echoes = [echo for echo in asked.echoes for _ in range(asked.n)]
        ends = [len(e.text) for e in self._echoes] or [0] * len(answers.generations)
        self._offsets = [Offsets(lm, end) for end in ends]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        reason = None if self._answers.generations else "length"
        try:
            for index, echo in enumerate(self._echoes):
                yield self._event(index, echo.text, reason, echo.rows)
            async for item in self._answers.pieces():
                piece = item.piece
                if piece.text or piece.finish_reason or piece.log_probabilities:
                    rows = self._rows(item.index, piece)
                    yield self._event(item.index, piece.text, piece.finish_reason, rows)
            if self._with_usage:
                yield {**self._head, "choices": [], "usage": self._usage}
        finally:
            self._answers.cancel()

    def whole(self, pieces: Sequence[list[Piece]]) -> dict[str, Any]:
        choices = [self._whole(i, pieces[i] if pieces else []) for i in range(len(self._offsets))]
        return {**self._head, "choices": choices, "usage": self._usage}

    def _whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        echo = self._echoes[index] if self._echoes else Echo("")
        text = echo.text + "".join(p.text for p in pieces)
        rows = [*echo.rows, *(r for p in pieces for r in self._rows(index, p))]
        return self._choice(index, text, pieces[-1].finish_reason if pieces else "length", rows)

    @property
    def _usage(self) -> dict[str, Any]:
        return usage_of(self._asked.prompts, self._answers)

    def _event(
        self, index: int, text: str, reason: str | None, rows: Sequence[Row]
    ) -> dict[str, Any]:
        return {**self._head, "choices": [self._choice(index, text, reason, rows)]}

    def _choice(
        self, index: int, text: str, reason: str | None, rows: Sequence[Row]
    ) -> dict[str, Any]:
        chances = None if self._asked.likeliest is None else self._logprobs(rows)
        return {"index": index, "text": text, "finish_reason": reason, "logprobs": chances}

    def _rows(self, index: int, piece: Piece) -> list[Row]:
        """The tokens of an answer's next piece. Those of a stop text are behind its end."""
        begins = [self._offsets[index].next(token) for token in piece.tokens]
        likeliest = piece.alternatives or ((),) * len(piece.tokens)
        return list(map(Row, piece.tokens, begins, piece.log_probabilities, likeliest))

    def _logprobs(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {
            "tokens": [token_text(self._lm, r.token) for r in rows],
            "token_logprobs": [r.log_probability for r in rows],
            "top_logprobs": [self._likeliest(r) for r in rows] if self._asked.likeliest else None,
            "text_offset": [r.offset for r in rows],
        }

    def _likeliest(self, row: Row) -> dict[str, float] | None:
        """By text; of tokens that have the same the likeliest. The row's own is always there."""
        if row.log_probability is None:
            return None
        made: dict[str, float] = {}
        for token, chance in (*row.likeliest, (row.token, row.log_probability)):
            made.setdefault(token_text(self._lm, token), chance)
        return made


def token_text(lm: LanguageModel, token: int) -> str:
    return lm.tokenizer.piece(token, special=True).decode(errors="replace")
