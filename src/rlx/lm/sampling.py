"""Choosing the next token: penalties, filters of unlikely tokens, temperature, a seeded draw.

Filters look at the probabilities before temperature, one after the other: top_k, typical, top_p,
min_p. The numbers drawn depend on the seed and on how many were drawn before, nothing else.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.errors import InputError
from rlx.core.intervals import whole
from rlx.core.public_calls import public_class
from rlx.ops.op import Array

DRAW_BLOCK = 256
"""Weights whose sum is searched as one."""
NUCLEUS_LEAST = 2.0**-12
"""A nucleus is first looked for among tokens of this probability, to the likeliest one's: most
often few tokens have the mass."""
SORTED_AT_ONCE = 2048
"""Keys up to which sorting all takes less than bins do."""
MAX_F32 = float(np.finfo(np.float32).max)
BIN_SHIFT = 18
"""Bits of an f32 key that do not choose its bin: 32 bins to an octave."""


@public_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen; temperature 0 takes the likeliest."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_tokens: int = 64
    """Of how many tokens before penalties are counted."""
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("temperature", lambda v: v >= 0, "at least 0")
        self._require("top_k", lambda v: v >= 0, "at least 0; 0 is no limit", whole)
        self._require("top_p", lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._require("min_p", lambda v: 0 <= v < 1, "at least 0 and below 1")
        self._require("typical_p", lambda v: 0 < v <= 1, "above 0 and at most 1")
        self._require("repetition_penalty", lambda v: v > 0, "above 0")
        for name in ("frequency_penalty", "presence_penalty"):
            self._require(name, lambda v: -2 <= v <= 2, "from -2 to 2")
        self._require("penalty_tokens", lambda v: v >= 0, "at least 0", whole)
        self._require("seed", lambda _: True, "of any size", whole)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _require(
        self,
        name: str,
        holds: Callable[[Any], bool],
        wanted: str,
        number: Callable[[Any], float | None] | None = None,
    ) -> None:
        """A field is a number, of Python."""
        given = getattr(self, name)
        value = (number or _number)(given)
        if value is None or not holds(value):
            kind = "a whole number" if number is whole else "a number"
            raise InputError(f"{name} is {reprlib.repr(given)}: it must be {kind} {wanted}.")
        object.__setattr__(self, name, value)

    @property
    def filters(self) -> bool:
        """Are there tokens that are never drawn?"""
        return self.top_k > 0 or self.min_p > 0 or self.top_p < 1 or self.typical_p < 1

    @property
    def changes_scores(self) -> bool:
        """Are there biases or penalties?"""
        is_penalised = self.frequency_penalty or self.presence_penalty
        return bool(self.logit_bias or is_penalised or self.repetition_penalty != 1)


def _number(value: Any) -> float | None:
    """A number of Python or of NumPy that f32 has; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    number = value.item() if isinstance(value, np.generic) else value
    return float(number) if abs(number) <= MAX_F32 else None


def _biases(given: Any) -> dict[int, float]:
    """Biases by token."""
    if not isinstance(given, Mapping):
        raise InputError(f"logit_bias is {reprlib.repr(given)}: it must be a dict by token.")
    made: dict[int, float] = {}
    for token, bias in given.items():  # pyright: ignore[reportUnknownVariableType]
        number, value = whole(token), _number(bias)  # pyright: ignore[reportUnknownArgumentType]
        if number is None or number < 0:
            raise InputError(
                f"a token of logit_bias is {reprlib.repr(token)}: it must be a number."
            )
        if value is None or not -100 <= value <= 100:
            text = f"a logit_bias is {reprlib.repr(bias)}: it must be a number from -100 to 100."
            raise InputError(text)
        made[number] = value
    return made


class Sampler:
    """Chooses tokens of one answer."""

    def __init__(self, how: Sampling) -> None:
        self.how = how
        self._draws = np.random.Generator(np.random.Philox(key=how.seed % (1 << 64)))

    def choose(self, logits: Array, before: Sequence[int], allowed: Array | None = None) -> int:
        """The next token, given the logits of all, the tokens before it, and which are allowed."""
        scores = self._penalised(logits, before)
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        if self._is_greedy:
            return int(scores.argmax())
        return self._drawn(scores)

    def skip(self) -> None:
        """Go on as if a token had been chosen."""
        if not self._is_greedy:
            self._draws.random()

    @property
    def _is_greedy(self) -> bool:
        """Is the temperature zero in the precision of logits?"""
        return np.float32(self.how.temperature) == 0

    def _drawn(self, scores: Array) -> int:
        if not self.how.filters:
            return _draw(self._weights(scores), self._draws.random())
        tokens = self._kept(scores)
        return int(tokens[_draw(self._weights(scores[tokens]), self._draws.random())])

    def _weights(self, scores: Array) -> Array:
        with np.errstate(over="ignore"):  # -inf, of a weight that is zero
            return np.exp((scores - scores.max()) / np.float32(self.how.temperature))

    def _penalised(self, logits: Array, before: Sequence[int]) -> Array:
        how = self.how
        if not how.changes_scores:
            return logits
        scores = logits.copy()
        for token, bias in how.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += bias
        counts = Counter(before[-how.penalty_tokens :] if how.penalty_tokens else ())
        tokens, times = np.array(list(counts), np.int64), np.array(list(counts.values()))
        found, factor = scores[tokens], np.float32(how.repetition_penalty)
        with np.errstate(over="ignore", divide="ignore"):
            found = np.where(found > 0, found / factor, found * factor)
        found = found.clip(-MAX_F32, MAX_F32)
        scores[tokens] = found - times * how.frequency_penalty - how.presence_penalty
        return scores

    def _kept(self, scores: Array) -> Array:
        """Tokens that may be drawn, each filter among those that the one before left."""
        how, tokens = self.how, None
        if 0 < how.top_k < len(scores):
            tokens = _likeliest(scores, how.top_k)
        for kept, is_asked in (
            (self._typical, how.typical_p < 1),
            (self._nucleus, how.top_p < 1),
            (self._likely, how.min_p > 0),
        ):
            if is_asked:
                found = scores if tokens is None else scores[tokens]
                places = kept(found - found.max())
                tokens = places if tokens is None else tokens[places]
        return np.arange(len(scores)) if tokens is None else tokens

    def _typical(self, shifted: Array) -> Array:
        """Tokens whose surprise is nearest to the expected one, up to a mass of `typical_p`."""
        weights = np.exp(shifted)
        total = float(weights.sum())
        finite = np.maximum(shifted, np.finfo(np.float32).min)  # of tokens that cannot be
        expected = -float((weights * finite).sum()) / total
        return _until_mass(np.abs(shifted + expected), weights, self.how.typical_p * total)

    def _nucleus(self, shifted: Array) -> Array:
        """The likeliest tokens, up to a mass of `top_p`."""
        weights = np.exp(shifted)
        mass = self.how.top_p * float(weights.sum())
        is_likely = weights >= NUCLEUS_LEAST
        if np.count_nonzero(is_likely) <= SORTED_AT_ONCE:
            likely = np.flatnonzero(is_likely)
            if weights[likely].sum() >= mass:
                return likely[_until_mass(np.abs(shifted[likely]), weights[likely], mass)]
        return _until_mass(np.abs(shifted), weights, mass)

    def _likely(self, shifted: Array) -> Array:
        return np.flatnonzero(shifted >= math.log(self.how.min_p))


def _until_mass(keys: Array, weights: Array, mass: float) -> Array:
    """The places of the least keys, none of them negative, whose weights sum to a mass; of equal
    keys the first, at least one place, and in their order. Bits of floats are ordered as the floats
    are: of many, only the bin of keys in which the mass is reached is sorted."""
    if len(keys) <= SORTED_AT_ONCE:
        return np.sort(_first_until(keys, weights, mass))
    bits = keys.astype(np.float32, copy=False).view(np.int32)
    bins = (bits >> BIN_SHIFT).astype(np.intp)
    sums = np.cumsum(np.bincount(bins, weights))
    edge = min(int(np.searchsorted(sums, mass)), len(sums) - 1)
    here = np.flatnonzero(bins == edge)
    left = mass - (float(sums[edge - 1]) if edge else 0.0)
    is_kept = bins < edge
    is_kept[here[_first_until(keys[here], weights[here], left)]] = True
    return np.flatnonzero(is_kept)


def _first_until(keys: Array, weights: Array, mass: float) -> Array:
    """The same, the least first."""
    order = np.argsort(keys, kind="stable")
    return order[: int(np.searchsorted(np.cumsum(weights[order]), mass)) + 1]


def _draw(weights: Array, drawn: float) -> int:
    """The place whose share of the sum a number from 0 to 1 falls into. Of many weights the sums of
    blocks are searched first."""
    count = len(weights)
    if count <= 2 * DRAW_BLOCK:
        return _place(np.cumsum(weights, dtype=np.float64), drawn)
    whole = count - count % DRAW_BLOCK
    sums = weights[:whole].reshape(-1, DRAW_BLOCK).sum(axis=1)
    bounds = np.cumsum([*sums, weights[whole:].sum()], dtype=np.float64)
    block = _place(bounds, drawn)
    start = block * DRAW_BLOCK
    inside = np.cumsum(weights[start : start + DRAW_BLOCK], dtype=np.float64)
    before = bounds[block - 1] if block else 0.0
    return start + _place(inside, (drawn * bounds[-1] - before) / inside[-1])


def _place(bounds: Array, drawn: float) -> int:
    """Where a share of the last bound lies; never behind the last weight above zero."""
    found = np.searchsorted(bounds, drawn * bounds[-1], "right")
    return int(min(found, np.searchsorted(bounds, bounds[-1])))


def _likeliest(scores: Array, count: int) -> Array:
    """The tokens of the highest scores, in order; of equal ones the first."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    tokens = np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]])
    return tokens[np.argsort(-scores[tokens], kind="stable")]


def log_probabilities(logits: Array) -> Array:
    """The logarithms of the probabilities that logits stand for, in double precision."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return scores - math.log(np.exp(scores).sum())
