"""The sizes that a kernel depends on, and where their ranges are divided.

Where a kernel has named dims in products only, as rows of a batch times a length, the product is
the size: the grid is a line, whatever the number of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rlx.core.atoms import Atom, Monomial, Symbol
from rlx.core.dim import Dim, DimLike, lower_bound, product, symbols_of, upper_bound
from rlx.core.extent import is_capacity, of_symbol
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import Conv
from rlx.kernel.substitute import with_dims

FEW = 16
"""Rows for each of which a product takes longer: more of them are parts of one tile."""
Resizable: TypeAlias = Kernel | Contract | Conv | Attention


@dataclass(frozen=True, slots=True)
class SizeAxis:
    """A size that kernels are made for, and where its range is divided."""

    monomial: Monomial
    """What it is a product of; one symbol, where it is that."""
    size: Dim
    edges: tuple[int, ...]
    """The greatest sizes of all cells but the last."""

    @property
    def name(self) -> str:
        return str(self.size)

    @property
    def ranges(self) -> tuple[tuple[int, int | None], ...]:
        """Of its cells."""
        ends = (*self.edges, upper_bound(self.size))
        starts = (lower_bound(self.size), *(e + 1 for e in self.edges))
        return tuple(zip(starts, ends))


def size_axes(form: Resizable, edges: tuple[int, ...], most: int) -> tuple[SizeAxis, ...]:
    """The sizes that the grid is made of, of so many cells at most."""
    monomials = monomials_of(form)
    found: list[SizeAxis] = []
    for group in _connected(monomials):
        whole = len(group) == 1 and all(isinstance(a, Symbol) for a in group[0])
        parts = group if whole else sorted({(s,) for m in group for s in symbols_in(m)}, key=str)
        found += [_axis(p, edges) for p in parts if all(map(_is_given, symbols_in(p)))]
    axes = tuple(a for a in found if a.edges)
    while _cells(axes) > most:
        axes = coarser(axes)
    return axes


def monomials_of(form: Resizable) -> list[Monomial]:
    """All products of sizes that occur in a kernel."""
    seen: dict[Monomial, None] = {}

    def note(dim: DimLike) -> DimLike:
        if isinstance(dim, Dim):
            seen.update(dict.fromkeys(m for m, _ in dim.terms if m))
        return dim

    with_dims(form, note)
    return list(seen)


def symbols_in(monomial: Monomial) -> frozenset[Symbol]:
    return frozenset(s for atom in monomial for s in _symbols_of(atom))


def _symbols_of(atom: Atom) -> Iterator[Symbol]:
    if isinstance(atom, Symbol):
        yield atom
    else:
        yield from (d.symbol for d in symbols_of(atom.args) if d.symbol is not None)


def _is_given(symbol: Symbol) -> bool:
    """Is it known before the call, and not the runtime's choice?"""
    return not symbol.is_measured and not is_capacity(symbol.name)


def _connected(monomials: Sequence[Monomial]) -> list[list[Monomial]]:
    """Products in groups that share no symbol."""
    groups: list[list[Monomial]] = []
    for monomial in monomials:
        own = symbols_in(monomial)
        near = [g for g in groups if any(symbols_in(m) & own for m in g)]
        groups = [g for g in groups if g not in near]
        groups.append([m for g in near for m in g] + [monomial])
    return groups


def _axis(monomial: Monomial, edges: tuple[int, ...]) -> SizeAxis:
    size = product(of_symbol(s) for s in monomial if isinstance(s, Symbol))
    assert isinstance(size, Dim)
    low, high = lower_bound(size), upper_bound(size)
    inside = (e for e in edges if low <= e and (high is None or e < high))
    return SizeAxis(monomial, size, tuple(inside))


def coarser(axes: tuple[SizeAxis, ...]) -> tuple[SizeAxis, ...]:
    """Fewer cells: every other edge of the longest range goes, but not the first, as schedules
    differ most where sizes are too small to fill a device; those of a few rows go last."""
    longest = max(axes, key=lambda a: len(a.edges))
    few = [e for e in longest.edges if e <= FEW]
    rest = longest.edges[len(few) :]
    if len(rest) > len(few):
        edges = (*few, *rest[1::2])
    else:
        edges = longest.edges[::2] if len(longest.edges) > 1 else ()
    made = (replace(a, edges=edges) if a is longest else a for a in axes)
    return tuple(a for a in made if a.edges)


def _cells(axes: Iterable[SizeAxis]) -> int:
    count = 1
    for axis in axes:
        count *= len(axis.edges) + 1
    return count
