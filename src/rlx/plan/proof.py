"""Proofs about sizes: what holds for every value that named dims can take.

Interval arithmetic alone takes `64·((n+63)//64)` and `n` for unrelated, and `max(a, b)` for
unrelated to `a`. Byte counts are rounded up and slots are maxima, so both matter here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.dim import (
    Call,
    Dim,
    DimLike,
    Monomial,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    dim_max,
    provably_le,
)


def round_up(size: DimLike, alignment: int) -> DimLike:
    """The next multiple of `alignment`."""
    return (size + (alignment - 1)) // alignment * alignment


def greatest(dims: Sequence[DimLike]) -> DimLike:
    """The maximum of dims, with calls nested as little as can be."""
    row = list(dims)
    while len(row) > 1:
        pairs = [dim_max(a, b) for a, b in zip(row[::2], row[1::2])]
        row = pairs + row[2 * len(pairs) :]
    return row[0] if row else 0


def proves_le(a: DimLike, b: DimLike) -> bool:
    """Is a ≤ b for every size the symbols can take? False also where no proof was found."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a <= b
    return provably_le(a, b) or any(provably_le(0, low) for low in _never_above(b - a))


def is_multiple(dim: DimLike, factor: int) -> bool:
    """Is `dim` a multiple of `factor` for every size? False also where it is not seen."""
    if not isinstance(dim, Dim):
        return dim % factor == 0
    return all(c % factor == 0 or _is_multiple(m, factor) for m, c in dim.terms)


def _is_multiple(monomial: Monomial, factor: int) -> bool:
    """A maximum of multiples is one."""
    match monomial:
        case (Call("max", args),):
            return all(is_multiple(a, factor) for a in args)
        case _:
            return False


def _never_above(dim: DimLike) -> Iterator[DimLike]:
    """Expressions that are at most `dim`: exact quotients, and each member of a maximum."""
    yield _without_floors(dim)
    for member in _members(dim):
        yield _without_floors(member)
        for inner in _members(member):
            yield _without_floors(inner)


def _without_floors(dim: DimLike) -> DimLike:
    """`dim` with whole quotients replaced by exact ones that make it no greater.

    (x - k + 1)/k ≤ x//k ≤ x/k, for terms c·(x//k) whose c is a multiple of k.
    """
    if not isinstance(dim, Dim):
        return dim
    total: DimLike = 0
    for monomial, coefficient in dim.terms:
        total = total + _without_floor(monomial, coefficient)
    return total


def _without_floor(monomial: Monomial, coefficient: int) -> DimLike:
    match monomial:
        case (Call("//", (x, int(k))),) if k > 0 and coefficient % k == 0:
            slack = k - 1 if coefficient > 0 else 0
            return coefficient // k * (x - slack)
        case _:
            return _from_terms({monomial: coefficient})


def _members(dim: DimLike) -> Iterator[DimLike]:
    """For each maximum that adds to `dim`: `dim` with one of its members in its stead."""
    if not isinstance(dim, Dim):
        return
    for monomial, coefficient in dim.terms:
        match monomial:
            case (Call("max", args),) if coefficient > 0:
                rest = dim - _from_terms({monomial: coefficient})
                yield from (rest + coefficient * member for member in args)
            case _:
                pass
