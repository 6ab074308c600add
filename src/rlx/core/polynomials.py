"""Polynomials over atoms as their terms: exact division.

Every atom counts as an indeterminate, so a quotient that exists is one for all sizes. The terms of
a dim are in graded lexicographic order (the longest monomial first, then by its atoms), which
products keep: the leading term of a product is the product of the leading terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.core.atoms import Monomial, facts_of, times, without

Term = tuple[Monomial, int]


def quotient(
    dividend: Sequence[Term], divisor: Sequence[Term], most: int
) -> Mapping[Monomial, int] | None:
    """The terms of dividend / divisor where all coefficients are whole and nothing is left, else
    None; None also of a quotient that takes more than `most` products of terms."""
    if len(divisor) == 1:
        return _by_one_term(dividend, *divisor[0])
    left, found = {m: c for m, c in dividend if c}, dict[Monomial, int]()
    leading, coefficient = divisor[0]
    while left and len(found) * len(divisor) <= most:
        first = min(left, key=lambda m: facts_of(m).key)
        rest = without(first, leading)
        if rest is None or left[first] % coefficient:
            return None
        found[rest] = left[first] // coefficient
        for m, c in divisor:
            _add(left, times(rest, m), -c * found[rest])
    return None if left else found


def _by_one_term(
    dividend: Sequence[Term], monomial: Monomial, coefficient: int
) -> Mapping[Monomial, int] | None:
    found = dict[Monomial, int]()
    for m, c in dividend:
        rest = without(m, monomial) if c else ()
        if rest is None or c % coefficient:
            return None
        found[rest] = c // coefficient
    return found


def _add(terms: dict[Monomial, int], monomial: Monomial, c: int) -> None:
    total = terms.pop(monomial, 0) + c
    if total:
        terms[monomial] = total
