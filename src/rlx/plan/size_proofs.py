"""Inequality proofs over symbolic sizes: what holds for every value that named dims can take.

Interval arithmetic alone takes `64·((n+63)//64)` and `n` for unrelated, and `max(a, b)` for
unrelated to `a`. Byte counts are rounded up and slots are maxima, so both matter here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.core.dim import (
    Call,
    Dim,
    DimLike,
    Monomial,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    _sum,  # pyright: ignore[reportPrivateUsage]
    dim_max,
    provably_le,
)
from rlx.core.proofs import quotient_in

MAX_DEPTH = 6
"""Of quotients of quotients, such as sizes of images that strided convolutions halve."""


def round_up(size: DimLike, alignment: int) -> DimLike:
    """The next multiple of `alignment`."""
    return (size + (alignment - 1)) // alignment * alignment


def greatest(dims: Sequence[DimLike]) -> DimLike:
    """The maximum of dims, as a balanced tree of calls."""
    row = list(dims)
    while len(row) > 1:
        pairs = [dim_max(a, b) for a, b in zip(row[::2], row[1::2])]
        row = pairs + row[2 * len(pairs) :]
    return row[0] if row else 0


def proves_le(a: DimLike, b: DimLike) -> bool:
    """Is a ≤ b for every size the symbols can take? False also where no proof was found."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a <= b
    return provably_le(a, b) or any(provably_le(0, low) for low in _lower_bounds(b - a))


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


class Proofs:
    """Memoised proofs."""

    def __init__(self) -> None:
        self._known: dict[tuple[DimLike, DimLike], bool] = {}

    def le(self, a: DimLike, b: DimLike) -> bool:
        found = self._known.get((a, b))
        if found is None:
            found = self._known[a, b] = proves_le(a, b)
        return found


def _lower_bounds(dim: DimLike) -> Iterator[DimLike]:
    """Expressions that are at most `dim`: without maxima, without floors, or both."""
    for form in _without_maxima(dim):
        yield form
        yield _without_floors(form)
        yield _without_floors(form, in_products=True)
        yield _without_floors(_without_pairs(form))
        yield from _without_nested_floors(form)


def _without_nested_floors(dim: DimLike) -> Iterator[DimLike]:
    """`dim` without the quotients that are added, then without those that these were of, until what
    is left meets what is subtracted: halving thrice takes three of these."""
    for _ in range(MAX_DEPTH):
        lower = _without_floors(dim, only_added=True)
        if lower == dim:
            return
        yield lower
        dim = lower


def _without_maxima(dim: DimLike) -> Iterator[DimLike]:
    """`dim`, then with a member in place of a maximum, then of one inside that member."""
    yield dim
    for member in _members(dim):
        yield member
        yield from _members(member)


def _without_floors(
    dim: DimLike, *, only_added: bool = False, in_products: bool = False
) -> DimLike:
    """`dim` with whole quotients replaced by exact ones that make it no greater.

    (x - k + 1)/k ≤ x//k ≤ x/k, for terms c·(x//k) whose c is a multiple of k. Those that are
    subtracted may be left, to meet themselves inside of those that are added.
    """
    if not isinstance(dim, Dim):
        return dim
    parts = (
        _from_terms({m: c})
        if (only_added and c < 0) or (len(m) > 1 and not in_products)
        else _without_floor(m, c)
        for m, c in dim.terms
    )
    return _sum((part, 1) for part in parts)


def _without_floor(monomial: Monomial, coefficient: int) -> DimLike:
    found = quotient_in(monomial)
    if found is None or coefficient % found[2]:
        return _from_terms({monomial: coefficient})
    rest, x, k = found
    slack = k - 1 if coefficient > 0 else 0
    return coefficient // k * rest * (x - slack)


def _without_pairs(dim: DimLike) -> DimLike:
    """`dim` without its terms c·(x//k) - c·(y//k) where y ≤ x, which are not negative."""
    if not isinstance(dim, Dim):
        return dim
    kept = dict(dim.terms)
    for high, c in dim.terms:
        for low, d in dim.terms:
            if c > 0 > d and high in kept and low in kept and _is_quotient_le(low, high):
                common = min(kept[high], -kept[low])
                kept[high], kept[low] = kept[high] - common, kept[low] + common
    return _from_terms(kept)


def _is_quotient_le(a: Monomial, b: Monomial) -> bool:
    match a, b:
        case (Call("//", (x, int(k))),), (Call("//", (y, int(same))),) if k == same and k > 0:
            return provably_le(x, y)
        case _:
            return False


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
