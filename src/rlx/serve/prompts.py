"""Prompts as texts or tokens, and how likely a model finds the tokens of one."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlx.lm.generation import likeliest
from rlx.lm.model import LanguageModel
from rlx.lm.sampling import log_probabilities
from rlx.ops.op import Array
from rlx.serve.body import Fields
from rlx.serve.errors import Refused
from rlx.serve.sampling import check_length

Likeliest = tuple[tuple[int, float], ...]


def given_prompts(fields: Fields, name: str, most: int) -> list[str | list[int]]:
    """A text, several texts, tokens, or several of tokens."""
    given = fields.raw(name)
    listed = [given] if isinstance(given, str) or _is_tokens(given) else given
    is_list = isinstance(listed, list) and 1 <= len(listed) <= most
    if not is_list or not all(isinstance(p, str) or _is_tokens(p) for p in listed):
        text = f"{name!r} must be texts or tokens, at most {most:,}."
        raise Refused(400, text, param=name)
    return listed


def tokens_of(lm: LanguageModel, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    check_length(lm, [p for p in prompts if isinstance(p, str)])
    return [lm.tokens_of(p) for p in prompts]


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)


@dataclass(frozen=True, slots=True)
class Row:
    """A token: where its text begins, how likely it was, and the likeliest in its place."""

    token: int
    offset: int
    log_probability: float | None
    """None of a text's first token."""
    likeliest: Likeliest = ()


class Offsets:
    """Where tokens that follow one another begin in their text."""

    def __init__(self, lm: LanguageModel, begin: int) -> None:
        self.end = begin
        self._tokenizer = lm.tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: int) -> int:
        data = self._tokenizer.piece(token)
        is_new = data[:1] < b"\x80" or data[:1] >= b"\xc0"  # no continuation byte
        cut_short = bool(self._decoder.getstate()[0]) and is_new and bool(data)
        begin = self.end + cut_short  # a replacement character
        self.end += len(self._decoder.decode(data))
        return begin


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt in front of its answers."""

    text: str
    rows: Sequence[Row] = ()


def echo_of(lm: LanguageModel, given: str | list[int], tokens: Sequence[int]) -> Echo:
    """A text as it was given; of tokens their text."""
    is_text = isinstance(given, str)
    return Echo(given if is_text else lm.tokenizer.decode(tokens).decode(errors="replace"))


def scored(lm: LanguageModel, echo: Echo, tokens: Sequence[int], count: int) -> Echo:
    """An echo with the log-probability of each token, given those before it, and of so many of the
    likeliest."""
    found: list[tuple[float | None, Likeliest]] = [(None, ())]
    following = iter(tokens[1:])

    def take(rows: Array) -> None:
        for row, token in zip(rows, following):
            chances = log_probabilities(row)
            found.append((float(chances[token]), likeliest(chances, count) if count else ()))

    if len(tokens) > 1:
        lm.engine.logits(tokens[:-1], take)
    offsets = Offsets(lm, 0)
    begins = [offsets.next(token) for token in tokens]
    added = max(0, offsets.end - len(echo.text))  # some tokenizers put a space before a text
    placed = zip(tokens, begins, found, strict=True)
    rows = [Row(token, max(0, begin - added), *chances) for token, begin, chances in placed]
    return Echo(echo.text, rows)
