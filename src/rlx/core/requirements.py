"""What ops require of sizes: of those that are known at once, of named dims when a call gives them.

A shape function says `require_size(room, why)`. Whoever plans calls infers the shapes again while
`noting`, and checks what was noted with the sizes of each call.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.core.atoms import Symbol
from rlx.core.dim import Dim, DimLike, evaluate, symbols_of
from rlx.core.errors import GraphError
from rlx.core.extent import is_capacity
from rlx.core.proofs import is_never_negative
from rlx.core.shape import OutOfRange


@dataclass(frozen=True, slots=True)
class Requirement:
    """A size that must not be negative, and what is wrong where it is."""

    size: Dim
    why: str

    def check(self, sizes: Mapping[str, int]) -> None:
        if evaluate(self.size, sizes) < 0:
            names = sorted({s.name for s in symbols_of([self.size])})
            where = ", ".join(f"{n} is {sizes[n]}" for n in names)
            raise OutOfRange(f"{self.why}, where {where}.")


MOST_TRIED = 1 << 40
CANDIDATES = (*range(33), *(1 << n for n in range(6, 17)))
"""Sizes that one named dim is given to meet a requirement, where no size of all of them does."""
MOST_REPAIRS = 100


def some_sizes(symbols: Iterable[Symbol], required: Sequence[Requirement]) -> dict[str, int]:
    """Sizes that a call may have, near the least: where none are known yet, formulas are evaluated
    at these. At others a formula may mean nothing, and a size be negative."""
    known = [s for s in symbols if not s.is_measured and not is_capacity(s.name)]
    least = 0
    while least <= MOST_TRIED:
        sizes = {s.name: max(s.min, min(least, _most(s))) for s in known}
        if all(evaluate(each.size, sizes) >= 0 for each in required):
            return sizes
        least = 2 * least or 1
    return _repaired(known, required)


def _repaired(symbols: Sequence[Symbol], required: Sequence[Requirement]) -> dict[str, int]:
    """Sizes found by changing one at a time, so that the first requirement that fails is met and
    the fewest others fail; those that meet most where none meet all."""
    sizes = best = {s.name: s.min for s in symbols}
    seen: set[tuple[int, ...]] = set()
    for _ in range(MOST_REPAIRS):
        failing = _failing(sizes, required)
        if not failing:
            return sizes
        seen.add(tuple(sizes.values()))
        others = [
            n for n in _neighbours(sizes, symbols, failing[0]) if tuple(n.values()) not in seen
        ]
        if not others:
            break
        sizes = min(others, key=lambda each: len(_failing(each, required)))
        best = min(best, sizes, key=lambda each: len(_failing(each, required)))
    return best


def _neighbours(
    sizes: Mapping[str, int], symbols: Sequence[Symbol], failing: Requirement
) -> list[dict[str, int]]:
    """The same sizes but for one, that meet a requirement."""
    names = {s.name for s in symbols_of([failing.size])}
    changed = [
        {**sizes, s.name: size}
        for s in symbols
        if s.name in names
        for size in CANDIDATES
        if s.min <= size <= _most(s)
    ]
    return [each for each in changed if evaluate(failing.size, each) >= 0]


def _failing(sizes: Mapping[str, int], required: Sequence[Requirement]) -> list[Requirement]:
    return [each for each in required if evaluate(each.size, sizes) < 0]


def _most(symbol: Symbol) -> int:
    return symbol.max if isinstance(symbol.max, int) else MOST_TRIED


class _Notes(threading.local):
    found: list[Requirement] | None = None


_NOTES = _Notes()


def require_size(size: DimLike, why: str) -> None:
    """Raise where a size is negative; where only a call tells, note it."""
    if not isinstance(size, Dim):
        if size < 0:
            raise GraphError(why)
    elif _NOTES.found is not None and may_be_negative(size):
        _NOTES.found.append(Requirement(size, why))


def may_be_negative(size: DimLike) -> bool:
    """Of sizes that a call gives; those that it measures are not known before it runs."""
    return isinstance(size, Dim) and not size.is_measured and not is_never_negative(size)


@contextmanager
def noting() -> Generator[list[Requirement]]:
    """What is required meanwhile of sizes that calls give."""
    before, _NOTES.found = _NOTES.found, []
    try:
        yield _NOTES.found
    finally:
        _NOTES.found = before
