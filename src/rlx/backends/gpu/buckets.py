"""Buckets: a grid over the sizes of a call, and a number for each of its cells."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from itertools import product as every_pair

from rlx.core.dim import DimLike


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which one of several alternatives sizes take."""

    sizes: tuple[DimLike, ...]
    edges: tuple[tuple[int, ...], ...]
    """Of each size: the greatest of every range but the last, in order."""
    table: tuple[int, ...]
    """By cells, the last size the fastest."""

    def at(self, value: Callable[[DimLike], int]) -> int:
        """The number of the cell that sizes are in."""
        cell = 0
        for size, edges in zip(self.sizes, self.edges):
            cell = cell * (len(edges) + 1) + bisect_left(edges, value(size))
        return self.table[cell]

    def text(self, number: int) -> str:
        """Where a number is, in words."""
        if len(self.sizes) == 1:
            return " or ".join(self._runs(number))
        every = every_pair(*(range(len(e) + 1) for e in self.edges))
        held = [cell for cell, n in zip(every, self.table) if n == number]
        ranges = (self._range(i, min(c), max(c)) for i, c in enumerate(zip(*held)))
        box = ", ".join(r for r in ranges if r)
        return f"{box or 'any sizes'} ({len(held)} of {len(self.table)} cells)"

    def _runs(self, number: int) -> Iterator[str]:
        """The ranges of the only size that have the number."""
        for found, run in groupby(enumerate(self.table), key=lambda cell: cell[1]):
            held = [cell for cell, _ in run]
            if found == number:
                yield self._range(0, held[0], held[-1])

    def _range(self, axis: int, low: int, high: int) -> str:
        """From the cell `low` of a size to the cell `high`; nothing if these are all."""
        edges = self.edges[axis]
        above = f"{edges[low - 1]} < " if low else ""
        below = f" <= {edges[high]}" if high < len(edges) else ""
        return f"{above}{self.sizes[axis]}{below}" if above or below else ""
