"""Data-dependent sizes: symbols that a graph measures while it runs, and their upper bounds.

How many elements of an array are not zero is known only when the array is. Such a size is a symbol
like any other, but measured: the node that finds it out names it, and storage is planned for its
ceiling, a formula over sizes that are known before.

Where nothing bounds a size, as of a range whose end is computed, its ceiling is a **capacity**: a
symbol of its own, `name.capacity`, which the runtime binds. A node that finds more than fits says
how much; the runtime grows the capacity and runs the call again, which nothing of the program
can tell: no result depends on a capacity, only offsets do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlx.core.dim import (
    _FUNCTIONS,  # pyright: ignore[reportPrivateUsage]
    Atom,
    Dim,
    DimLike,
    Monomial,
    Symbol,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    _of_symbol,  # pyright: ignore[reportPrivateUsage]
    dim_max,
    dim_min,
    product,
    provably_le,
    symbols_of,
)
from rlx.core.errors import Error, UnsupportedError

CAPACITY = ".capacity"
"""The end of the names of capacities, which no input's dim may have."""
FIRST_CAPACITY = 256
"""What a capacity is before anything outgrew it."""
CAPACITY_EXCEEDED = "more was found than its capacity holds"
"""The failure of a size without a bound: the runtime makes room for what was found, which is in the
table of sizes, and runs the call again."""


def measured(name: str, most: DimLike | None = None) -> Dim:
    """A size that a node finds out while its graph runs: from 0 to `most`, or to its capacity where
    nothing bounds it.

    The bound is over sizes that are known before, so that storage can be planned for it.
    """
    try:
        bound = capacity_of(name) if most is None else ceiling(most)
    except UnsupportedError:
        bound = capacity_of(name)
    plain = Dim(name, 0, None if isinstance(bound, Dim) else bound)
    return _of_symbol(Symbol(plain.name, 0, bound, is_measured=True))


def of_symbol(symbol: Symbol) -> Dim:
    """A symbol as a size."""
    return _of_symbol(symbol)


def product_of(monomial: Monomial) -> DimLike:
    """A product of atoms as a size."""
    return _from_terms({monomial: 1})


def capacity_of(name: str) -> Dim:
    """What storage for a size without a bound is planned for."""
    return Dim(f"{name}{CAPACITY}")


def is_capacity(name: str) -> bool:
    """Is it the name of a size that the runtime chooses?"""
    return name.endswith(CAPACITY)


def has_capacity(symbol: Symbol) -> bool:
    """Does storage for this measured size grow where it must?"""
    return symbol.is_measured and symbol.max == capacity_of(symbol.name)


def grown(capacity: int, found: int) -> int:
    """The capacity after one that was outgrown: a power of two, so that a size that grows step by
    step is met after few calls."""
    return 1 << max(found - 1, 2 * capacity - 1).bit_length()


def outgrown(sizes: Mapping[str, int]) -> dict[str, int]:
    """The capacities that what was found does not fit, and what they are to be."""
    capacities = {n: c for n, c in sizes.items() if is_capacity(n)}
    found = {n: sizes.get(n.removesuffix(CAPACITY), 0) for n in capacities}
    return {n: grown(c, found[n]) for n, c in capacities.items() if found[n] > c}


def is_measured(dim: DimLike) -> bool:
    """Is `dim` known only while a graph runs?"""
    return isinstance(dim, Dim) and dim.is_measured


def measured_in(dims: Iterable[DimLike]) -> tuple[Symbol, ...]:
    """The measured symbols that occur in `dims`, by name."""
    parts = [d for d in dims if is_measured(d)]
    symbols = (d.symbol for d in symbols_of(parts)) if parts else ()
    return tuple(s for s in symbols if s is not None and s.is_measured)


def measure(dims: Sequence[DimLike], found: Sequence[int]) -> dict[str, int]:
    """The measured sizes that stand alone among `dims`, where an array has `found`."""
    sizes: dict[str, int] = {}
    for dim, size in zip(dims, found):
        symbol = dim.symbol if isinstance(dim, Dim) else None
        if symbol is not None and symbol.is_measured:
            if isinstance(symbol.max, int) and size > symbol.max:
                raise Error(f"the size {dim} is {size}, more than its bound {symbol.max}")
            sizes.setdefault(symbol.name, size)
    return sizes


def ceiling(dim: DimLike) -> DimLike:
    """What `dim` never exceeds, in sizes that are known before a graph runs."""
    most = _range(dim)[1]
    known = dim.max if is_measured(dim) and isinstance(dim, Dim) else None
    return most if known is None else dim_min(most, known)


def floor(dim: DimLike) -> DimLike:
    """What `dim` is never less than, in sizes that are known before a graph runs."""
    return _range(dim)[0]


def _range(dim: DimLike) -> tuple[DimLike, DimLike]:
    """The least and the most that measured sizes can make of `dim`."""
    if not isinstance(dim, Dim) or not dim.is_measured:
        return dim, dim
    low: DimLike = 0
    high: DimLike = 0
    for monomial, c in dim.terms:
        least, most = _monomial_range(monomial)
        low, high = low + c * (least if c > 0 else most), high + c * (most if c > 0 else least)
    return low, high


def _monomial_range(monomial: Monomial) -> tuple[DimLike, DimLike]:
    """Products of ranges grow with their factors, where no factor is negative."""
    if not any(atom.is_measured for atom in monomial):
        fixed = _from_terms({monomial: 1})
        return fixed, fixed
    ranges = [_atom_range(atom) for atom in monomial]
    if all(provably_le(0, low) for low, _ in ranges):
        return product(low for low, _ in ranges), product(high for _, high in ranges)
    most = product(dim_max(-low, high) for low, high in ranges)
    return -most, most


def _atom_range(atom: Atom) -> tuple[DimLike, DimLike]:
    if isinstance(atom, Symbol):
        plain = _of_symbol(atom)
        return (atom.min, _bound(atom)) if atom.is_measured else (plain, plain)
    apply, (a, b), (c, d) = _FUNCTIONS[atom.fn], *map(_range, atom.args)
    if atom.fn in ("max", "min"):
        return apply(a, c), apply(b, d)
    if not provably_le(0, c) or (c != d and not provably_le(0, a)):
        raise UnsupportedError(
            f"the size {_from_terms({(atom,): 1})} has no bound that can be shown: "
            "a part of it may be negative."
        )
    if atom.fn == "%":
        return 0, dim_max(0, d - 1)
    return (apply(a, c), apply(b, c)) if c == d else (0, apply(b, dim_max(1, c)))


def _bound(symbol: Symbol) -> DimLike:
    if symbol.max is None:
        raise UnsupportedError(
            f"the size {symbol.name} has no bound, so no memory can be planned for it. "
            "Give the node that measures it one."
        )
    return symbol.max
