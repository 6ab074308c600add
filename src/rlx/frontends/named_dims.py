"""Named dims of a model: the sizes that its file leaves open."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlx.core.dim import Dim, DimLike, substitute, symbols_of
from rlx.core.errors import GraphError
from rlx.ir.json_form import Decoder, dim_json, symbols_json


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The multiples of a number from `low` to `high`, or without end."""

    low: int = 0
    high: int | None = None
    multiple: int = 1

    def dim(self, name: str) -> DimLike:
        """A named dim of such sizes, a number where there is one: one of multiples is k*(name//k),
        so that what strides leave of it are polynomials in name//k."""
        if self.low == self.high:
            return self.low // self.multiple * self.multiple
        named = Dim(name, self.low, self.high)
        return named if self.multiple == 1 else named // self.multiple * self.multiple

    def within(self, other: SizeRange) -> SizeRange:
        """These sizes, of those that `other` left."""
        return replace(self, multiple=math.lcm(self.multiple, other.multiple))


@dataclass(slots=True)
class NamedDims:
    """The dims of a model's inputs, and what became known of them when it was read."""

    _ranges: dict[str, SizeRange] = field(default_factory=dict[str, SizeRange])
    """What the model turned out to allow."""
    _dims: dict[str, DimLike] = field(default_factory=dict[str, DimLike])
    _names: dict[str, str] = field(default_factory=dict[str, str])
    """What a dim is called in the file, or where it is → the name it has here."""
    _solved: dict[str, DimLike] = field(default_factory=dict[str, DimLike])
    """Name → what it is taken to be of other named dims."""
    _batches: dict[str, None] = field(default_factory=dict[str, None])
    """The names of first dims that have none in the file."""

    def dim(self, name: str, number: int, dim: Any, given: str) -> DimLike:
        """A dim of an input as the file has it; `given` is what it is called there."""
        if not is_open(dim):
            return _size(name, dim)
        # a mark such as "?" is no name: two dims that have it need not be equal
        called = given if any(c.isalnum() or c == "_" for c in given) else f"{name}.{number}"
        if called not in self._names:
            self._names[called] = self._unique(called)
            if number == 0 and called != given:
                self._batches[self._names[called]] = None
        return self.size_of(self._names[called])

    def size_of(self, name: str, stated: SizeRange | None = None) -> DimLike:
        """What is known of a dim, as a size; `stated` is its range where nothing is."""
        if name not in self._dims:
            size = self._solved.get(name)
            self._dims[name] = (
                self._ranges.get(name, stated or SizeRange()).dim(name)
                if size is None
                else substitute(size, {d.name: self.size_of(d.name) for d in symbols_of([size])})
            )
        return self._dims[name]

    def solve(self, name: str, size: DimLike) -> None:
        """A dim is this size of others from now on. Where both are first dims without a name, as
        the batch is of inputs that were exported separately, all such are."""
        symbol = size.symbol if isinstance(size, Dim) else None
        is_batch = symbol is not None and name in self._batches and symbol.name in self._batches
        for each in (*self._batches, name) if is_batch else (name,):
            if each not in self._solved and not (symbol and each == symbol.name):
                known = {k: substitute(v, {each: size}) for k, v in self._solved.items()}
                self._solved = {**known, each: size}
        self._dims.clear()

    def narrow(self, ranges: Mapping[str, SizeRange]) -> bool:
        """Named dims have these ranges from now on; were any others before?"""
        before = dict(self._ranges)
        for name, found in ranges.items():
            self._ranges[name] = found.within(before.get(name, SizeRange()))
        self._dims.clear()
        return self._ranges != before

    def learned(self) -> dict[str, Any]:
        """What became known when the model was read, as JSON has it."""
        ranges = {n: [r.low, r.high, r.multiple] for n, r in self._ranges.items()}
        solved = {n: dim_json(d) for n, d in self._solved.items()}
        return {
            "ranges": ranges, "solved": solved, "names": symbols_json((), self._solved.values()),
        }  # fmt: skip

    def recall(self, learned: Mapping[str, Any]) -> None:
        """What `learned` gave, of the same file."""
        self._ranges = {n: SizeRange(*r) for n, r in learned["ranges"].items()}
        decode = Decoder(learned["names"])
        self._solved = {n: decode.dim(d) for n, d in learned["solved"].items()}
        self._dims.clear()

    def _unique(self, text: str) -> str:
        """A name that a dim can have, and no other has."""
        plain = re.sub(r"\W+", "_", text, flags=re.ASCII)[:40].strip("_") or "dim"
        plain = f"d_{plain}" if plain[0].isdigit() else plain
        taken = set(self._names.values())
        found, number = plain, 2
        while found in taken:
            found, number = f"{plain}_{number}", number + 1
        return found


def is_open(dim: Any) -> bool:
    """Is a declared dim without a size? Some exporters write it as -1."""
    return not dim.HasField("dim_value") or dim.dim_value == -1


def _size(name: str, dim: Any) -> int:
    if dim.dim_value < 0:
        raise GraphError(f"input {name!r}: a dim is {dim.dim_value}")
    return int(dim.dim_value)
