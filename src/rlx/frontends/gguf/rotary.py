"""Rotary frequencies of a file: plain, or scaled for longer contexts (linear, YaRN, Llama 3, long).

Every scaling is a vector of frequencies and a magnitude, so that a graph needs two tables and
nothing else. Frequencies are computed in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.gguf.fields import Fields
from rlx.frontends.gguf.reader import GgufFile
from rlx.ops.op import Array

ALWAYS, SHORT, LONG = (f"rope_{n}.weight" for n in ("freqs", "factors_short", "factors_long"))
"""Tensors of divisors."""
TABLE_ROWS = 4096
"""Of how many positions angles are in memory in double precision."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of a position: position · frequency, for each pair of elements."""

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    trained: int | None = None
    """Tokens of a sequence above which `longer` are the frequencies, of all of its tokens."""
    longer: tuple[float, ...] = ()

    @classmethod
    def plain(cls, turned: int, base: float) -> Rotary:
        return cls(tuple(_plain(turned, base)))

    @property
    def turned(self) -> int:
        """How many elements of a head turn."""
        return 2 * len(self.frequencies)

    def for_context(self, tokens: int) -> Rotary:
        """Those of all sequences of a context, whatever their length."""
        if self.trained is None:
            return self
        return Rotary(self.longer if tokens > self.trained else self.frequencies, self.magnitude)

    def tables(self, positions: int) -> tuple[Array, Array]:
        """cos and sin, f32[positions, pairs]; those of longer sequences are rows behind."""
        if self.trained is None:
            return self._tables(positions)
        both = (self.for_context(n)._tables(positions) for n in (self.trained, self.trained + 1))
        cos, sin = (np.concatenate(parts) for parts in zip(*both))
        return cos, sin

    def _tables(self, positions: int) -> tuple[Array, Array]:
        cos, sin = (np.empty((positions, len(self.frequencies)), np.float32) for _ in range(2))
        for begin in range(0, positions, TABLE_ROWS):
            part = slice(begin, min(begin + TABLE_ROWS, positions))
            angles = np.arange(part.start, part.stop)[:, None] * np.array(self.frequencies)
            cos[part], sin[part] = (self.magnitude * made(angles) for made in (np.cos, np.sin))
        return cos, sin


def rotary_of(file: GgufFile, fields: Fields, head_dim: int, context: int) -> Rotary:
    """The frequencies that a file's metadata and tensors describe, of a model whose context is
    `context`."""
    turned = fields.count("rope.dimension_count", head_dim)
    if turned % 2 or turned > head_dim:
        raise Error(f"{file.name}: {turned} of {head_dim} elements of a head cannot turn.")
    trained = fields.count("rope.scaling.original_context_length", context)
    shorter, longer = (_frequencies(file, fields, turned, trained, n) for n in (SHORT, LONG))
    magnitude = fields.positive("rope.scaling.attn_factor", 1.0)
    if fields.text("rope.scaling.type", "linear") == "yarn":
        magnitude *= max(1.0, 1 + 0.1 * math.log(_factor(fields)))
    if trained >= context or shorter == longer:
        return Rotary(shorter, magnitude)
    return Rotary(shorter, magnitude, trained, longer)


def _frequencies(
    file: GgufFile, fields: Fields, turned: int, trained: int, divisors: str
) -> tuple[float, ...]:
    base = fields.positive("rope.freq_base", 10_000.0)
    frequencies = _plain(turned, base) / _divisors(file, turned, divisors)
    kind, factor = fields.text("rope.scaling.type", "linear"), _factor(fields)
    match kind:
        case "none" | "longrope":  # what is long is in the tensors of divisors
            return tuple(frequencies)
        case "linear":
            return tuple(frequencies / factor)
        case "yarn":
            return tuple(_yarn(fields, frequencies, factor, trained))
        case _:
            raise UnsupportedError(
                f"{file.name} scales rotary angles by {kind[:40]!r}. rlx knows none, linear, yarn "
                "and longrope, and tensors of factors."
            )


def _factor(fields: Fields) -> float:
    """By what positions are divided; files have 0 for 1."""
    key = next((k for k in ("rope.scaling.factor", "rope.scale_linear") if fields.has(k)), "")
    return fields.positive(key) if key and fields.raw(key) else 1.0


def _plain(turned: int, base: float) -> Array:
    return base ** (-np.arange(0, turned, 2) / turned)


def _divisors(file: GgufFile, turned: int, name: str) -> Array:
    """Divisors of the frequencies that the file brings: Llama 3's, or those of Phi 3, which has
    others for sequences that are longer than those of training."""
    if ALWAYS in file.tensors:
        name = ALWAYS
    if name not in file.tensors:
        return np.ones(turned // 2)
    found = file.floats(name).astype(np.float64).reshape(-1)
    if len(found) != turned // 2 or not np.all(np.isfinite(found) & (found > 0)):
        raise Error(f"{file.name}: {name} has no {turned // 2} factors above 0.")
    return found


def _yarn(fields: Fields, frequencies: Array, factor: float, trained: int) -> Array:
    """YaRN: frequencies with many turns in the trained context stay, those with few are divided by
    `factor`, and between the two it is a ramp."""
    base, pairs = fields.positive("rope.freq_base", 10_000.0), len(frequencies)
    fast = fields.positive("rope.scaling.yarn_beta_fast", 32.0)
    slow = fields.positive("rope.scaling.yarn_beta_slow", 1.0)
    if base == 1:
        raise Error(f"{fields.where}: YaRN needs a rope.freq_base other than 1.")
    low, high = (_pair_of(turns, 2 * pairs, base, trained) for turns in (fast, slow))
    first, last = max(0, math.floor(low)), min(2 * pairs - 1, math.ceil(high))
    ramp = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp


def _pair_of(turns: float, turned: int, base: float, trained: int) -> float:
    """Which pair turns so often in the trained context."""
    return turned * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))
