"""How well a language model predicts a text, and how far its predictions are from another's.

A text is cut into windows of equal length, each computed by itself; what is scored are the tokens
of the second half of each, which all have at least half a window before them. llama.cpp measures
the same way, so that numbers compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlx.core.errors import Error
from rlx.lm.model import LanguageModel
from rlx.ops.op import Array

DEFAULT_WINDOW = 512
Done = Callable[[int, int], None]
"""Called after each window: how many are done, of how many."""


@dataclass(frozen=True, eq=False)
class Perplexity:
    """Of a text: e to the mean of what its tokens are less likely than certain."""

    surprises: Array
    """-log p of each scored token."""

    @property
    def tokens(self) -> int:
        return len(self.surprises)

    @property
    def value(self) -> float:
        return math.exp(float(self.surprises.mean()))

    @property
    def error(self) -> float:
        """The standard error, which comes of the text being a sample."""
        spread = float(self.surprises.std(ddof=1)) if self.tokens > 1 else math.nan
        return self.value * spread / math.sqrt(self.tokens)


@dataclass(frozen=True, eq=False)
class Divergence:
    """Of predictions from those of a base: the Kullback-Leibler divergence KL(base ‖ model) at each
    scored token, and whether the likeliest token is the same."""

    model: Perplexity
    base: Perplexity
    divergences: Array
    is_same_top: Array

    @cached_property
    def mean(self) -> float:
        return float(self.divergences.mean())

    @property
    def error(self) -> float:
        return float(self.divergences.std(ddof=1)) / math.sqrt(len(self.divergences))

    def quantile(self, part: float) -> float:
        return float(np.quantile(self.divergences, part))

    @property
    def same_top(self) -> float:
        return float(self.is_same_top.mean())


def perplexity(
    lm: LanguageModel,
    text: str | Sequence[int],
    *,
    window: int = DEFAULT_WINDOW,
    windows: int | None = None,
    done: Done | None = None,
) -> Perplexity:
    """The perplexity of a text, in windows of so many tokens; of the first `windows` of them."""
    parts = _windows(lm, text, window, windows)
    found: list[Array] = []
    for n, ids in enumerate(parts, 1):
        for rows, tokens in _scored(lm, ids):
            found.append(-_log_softmax(rows)[np.arange(len(tokens)), tokens])
        if done:
            done(n, len(parts))
    return Perplexity(np.concatenate(found))


def divergence(
    lm: LanguageModel,
    base: LanguageModel,
    text: str | Sequence[int],
    *,
    window: int = DEFAULT_WINDOW,
    windows: int | None = None,
    done: Done | None = None,
) -> Divergence:
    """How far a model's predictions of a text are from those of a base with the same vocabulary."""
    if list(lm.tokenizer.texts) != list(base.tokenizer.texts):
        raise Error(f"{lm.name} and {base.name} have other vocabularies: nothing can be compared.")
    parts = _windows(lm, text, window, windows)
    found: list[tuple[Array, ...]] = []
    for n, ids in enumerate(parts, 1):
        theirs = [(_log_softmax(rows), tokens) for rows, tokens in _scored(base, ids)]
        pairs = zip(theirs, _scored(lm, ids), strict=True)
        found += [_compared(p, _log_softmax(rows), tokens) for (p, tokens), (rows, _) in pairs]
        if done:
            done(n, len(parts))
    ours, bases, apart, same = (np.concatenate(column) for column in zip(*found, strict=True))
    return Divergence(Perplexity(ours), Perplexity(bases), apart, same)


def _compared(p: Array, q: Array, tokens: Array) -> tuple[Array, ...]:
    """Surprises of both, KL(p ‖ q) and whether the likeliest tokens agree, of each row."""
    at = np.arange(len(tokens)), tokens
    apart = (np.exp(p) * (p - q)).sum(-1, dtype=np.float64)
    return -q[at], -p[at], np.maximum(apart, 0), p.argmax(-1) == q.argmax(-1)


def _windows(
    lm: LanguageModel, text: str | Sequence[int], window: int, most: int | None
) -> list[list[int]]:
    ids = lm.tokens_of(text)
    if not 4 <= window < lm.context:
        raise Error(f"a window has from 4 tokens to below the context, {lm.context:,}: {window:,}.")
    count = min(len(ids) // window, most or len(ids))
    if count < 1:
        raise Error(f"the text has {len(ids):,} tokens, less than one window of {window:,}.")
    parts = [ids[n * window : (n + 1) * window] for n in range(count)]
    begin = lm.tokenizer.begin if lm.tokenizer.adds_begin else None
    return parts if begin is None else [[begin, *part[1:]] for part in parts]


def _scored(lm: LanguageModel, ids: list[int]) -> Iterator[tuple[Array, Array]]:
    """Logits of the second half of a window, and the tokens that they should foresee."""
    made: list[Array] = []
    seen, first = 0, len(ids) // 2

    def take(rows: Array) -> None:
        nonlocal seen
        made.append(rows[max(0, first - seen) :].copy())
        seen += len(rows)

    lm.engine.logits(ids, take)
    following = np.array(ids[first + 1 :])
    for rows in made:
        part, following = following[: len(rows)], following[len(rows) :]
        if len(part):
            yield rows[: len(part)], part


def _log_softmax(rows: Array) -> Array:
    """In f32 from the greatest logit down: sums of exponentials in f64."""
    shifted = rows - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64))
