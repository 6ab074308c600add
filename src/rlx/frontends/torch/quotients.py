"""Quotients of quotients: torch folds them into one, rlx keeps them for its proofs about sizes."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.core.atoms import Atom, Call
from rlx.core.dim import (
    Dim,
    DimLike,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    product,
)


def folded(dim: DimLike) -> DimLike:
    """The size with (x // m + k) // n written as (x + k·m) // (m·n)."""
    if not isinstance(dim, Dim):
        return dim
    total: DimLike = 0
    for monomial, factor in dim.terms:
        total = total + product(_folded(atom) for atom in monomial) * factor
    return total


def _folded(atom: Atom) -> DimLike:
    if not isinstance(atom, Call) or atom.fn != "//" or not isinstance(atom.args[1], int):
        return _from_terms({(atom,): 1})
    inner, divisor = folded(atom.args[0]), atom.args[1]
    offset = constant_of(inner)
    match inner - offset:
        case Dim(terms=(((Call(fn="//", args=(x, int(m))),), 1),)) if m > 0 and divisor > 0:
            return folded((x + offset * m) // (m * divisor))
        case _:
            return inner // divisor


def constant_of(dim: DimLike) -> int:
    """What is added to a size whatever its symbols are."""
    return dim if not isinstance(dim, Dim) else sum(c for m, c in dim.terms if not m)


def quotients(dim: DimLike) -> Iterator[DimLike]:
    """The quotients that a size is made of."""
    if isinstance(dim, Dim):
        for monomial, _ in dim.terms:
            for atom in monomial:
                if isinstance(atom, Call) and atom.fn == "//":
                    yield _from_terms({(atom,): 1})
