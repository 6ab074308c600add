"""Maxima and minima in sums, in one form: max(a + c, b + c) = c + max(a, b), and so for minima.

So a + max(b - a, 0) is max(a, b), and max(a, b) - a is max(b - a, 0). A sum is first written with
what the arguments have in common taken out of them; then, atom by atom in the order of the sum,
what would be subtracted from it is taken from the arguments. Both steps are functions of what they
are given, so equal sums have equal forms. Minima are not written as maxima.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rlx.core.atoms import Call, Monomial, facts_of, times, without
from rlx.core.dim import (
    Dim,
    DimLike,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    _terms,  # pyright: ignore[reportPrivateUsage]
    case_of,
    ordered_call,
)


def normal(terms: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """The terms of the same sum, as equal sums have them."""
    made: dict[Monomial, int] = {}
    for monomial, factor in terms.items():
        for part, c in _apart(monomial):
            made[part] = made.get(part, 0) + factor * c
    cases = [m for m, factor in made.items() if factor and case_of(m) is not None]
    for monomial in sorted(cases, key=lambda m: facts_of(m).key):
        _take_in(made, monomial)
    return made


@lru_cache(1 << 14)
def _apart(monomial: Monomial) -> tuple[tuple[Monomial, int], ...]:
    """The monomial with the least of what both arguments have, term by term, outside of them."""
    call = case_of(monomial)
    if call is None:
        return ((monomial, 1),)
    first, second = (dict(_terms(a)) for a in call.args)
    found = {m: min(first.get(m, 0), second.get(m, 0)) for m in {**first, **second}}
    outside = {m: c for m, c in found.items() if c}
    beside = without(monomial, (call,)) or ()
    inner = times(beside, (_moved(call, _from_terms(outside)),))
    return ((inner, 1), *((times(beside, m), c) for m, c in outside.items()))


def _take_in(made: dict[Monomial, int], monomial: Monomial) -> None:
    """k·max(a + h, b) - k·h = k·max(a, b - h), for the terms h of one argument that are there."""
    call, factor = case_of(monomial), made[monomial]
    if call is None or not factor:
        return
    beside = without(monomial, (call,)) or ()
    for argument in call.args:
        taken = {m: c for m, c in _terms(argument) if _is_subtracted(made, beside, m, factor * c)}
        if not taken:
            continue
        del made[monomial]
        for m, c in taken.items():
            made[times(beside, m)] += factor * c
        inner = times(beside, (_moved(call, _from_terms(taken)),))
        made[inner] = made.get(inner, 0) + factor
        return


def _is_subtracted(made: dict[Monomial, int], beside: Monomial, m: Monomial, amount: int) -> bool:
    left = made.get(times(beside, m), 0)
    return left * amount < 0 and abs(left) >= abs(amount)


def _moved(call: Call, by: DimLike) -> Call:
    """The call with its arguments less `by`."""
    first, second = (a - by if isinstance(by, Dim) or by else a for a in call.args)
    return ordered_call(call.fn, first, second)
