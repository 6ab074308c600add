"""Non-negativity proofs over symbolic sizes.

Interval arithmetic on each term, first as the dim is written, then over symbols counted from their
least, with the arguments of `max` and `min` in their place, and without whole quotients; of sizes
that are measured, at the bounds that they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from rlx.core.atoms import Atom, Call, Monomial, Symbol, facts_of, without
from rlx.core.dim import (
    _FUNCTIONS,  # pyright: ignore[reportPrivateUsage]
    Dim,
    DimLike,
    _from_terms,  # pyright: ignore[reportPrivateUsage]
    _of_symbol,  # pyright: ignore[reportPrivateUsage]
    _sum,  # pyright: ignore[reportPrivateUsage]
    has_cases,
    product,
)
from rlx.core.dim import _terms as terms_of  # pyright: ignore[reportPrivateUsage]
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.extent import floor
from rlx.core.intervals import Interval

MAX_CASES = 3
"""How many `max` and `min` of a size are looked at argument by argument."""


@lru_cache(1 << 14)
def is_never_negative(dim: DimLike) -> bool:
    """Is it at least 0 as it is, or is something that is no greater?"""
    if not isinstance(dim, Dim):
        return dim >= 0
    if any(_not_negative(each, MAX_CASES) for each in _never_greater(dim)):
        return True
    return dim.is_measured and _is_never_negative_at_least(dim)


def proved_bounds(dim: Dim) -> Interval:
    """The bounds term by term, and those without quotients: h - 4·(h // 4) is at most 3."""
    low, high = dim.interval
    if any(quotient_in(m) for m, _ in dim.terms):
        least, most = _least_without_quotients(dim), _least_without_quotients(-dim)
        low = max((v for v in (low, least) if v is not None), default=None)
        if most is not None:
            high = -most if high is None else min(high, -most)
    if low is None or low < 0:
        with suppress(GraphError):
            low = 0 if is_never_negative(dim) else low
    return low, high


def _least_without_quotients(dim: DimLike) -> int | None:
    try:
        lower, k = _replaced(dim, lambda _, __: True)
    except GraphError:
        return None
    low = lower.interval[0] if isinstance(lower, Dim) else lower
    return None if low is None else -(-low // k)


def _is_never_negative_at_least(dim: Dim) -> bool:
    """Is it at least 0 whatever is found for its measured sizes? Each is at most its bound."""
    try:
        return is_never_negative(floor(dim))
    except UnsupportedError:
        return False


def _never_greater(dim: Dim) -> Iterator[DimLike]:
    """The dim, without a factor that all its terms have or all but a number that is added, and
    without quotients, of quotients too: all are negative where the dim is."""
    yield dim
    plain = _without_common(dim)
    if plain != dim:
        yield plain
    number = dict(terms_of(dim)).get((), 0)
    if number > 0:
        yield _without_common(dim - number)
    for _ in range(MAX_CASES):
        lower, k = _replaced(plain, lambda m, _: len(m) == 1)
        if lower == plain:
            return
        yield lower + (k - 1)
        plain = _without_common(lower)


def _without_common(dim: DimLike) -> DimLike:
    """`dim` divided by what all its terms have as a factor, which is not negative."""
    first, *rest = (m for m, _ in terms_of(dim))
    for atom in first if rest else ():
        low = facts_of((atom,)).interval[0]
        if low is not None and low >= 0 and all(atom in m for m in rest):
            return _without_common(
                _from_terms({without(m, (atom,)) or (): c for m, c in terms_of(dim)})
            )
    return dim


def _not_negative(dim: DimLike, cases: int) -> bool:
    return plainly_not_negative(dim) or (cases > 0 and _by_cases(dim, cases - 1))


@lru_cache(1 << 14)
def plainly_not_negative(dim: DimLike) -> bool:
    """As `provably_le(0, dim)`, with no look at the arguments of `max` and `min`."""
    ways = (
        _from_least,
        _cases_from_least,
        _without_quotients,
        _without_subtracted,
        _without_factors,
    )
    return _at_least_zero(dim) or any(_is_shown_by(way, dim) for way in ways)


def _is_shown_by(way: Callable[[DimLike], DimLike], dim: DimLike) -> bool:
    """Is it at least 0 as it is written by `way`? What is too large to be written shows nothing."""
    try:
        return _at_least_zero(way(dim))
    except GraphError:
        return False


@lru_cache(1 << 14)
def _by_cases(dim: DimLike, cases: int) -> bool:
    """A max is no less than either argument, and one of them; a min is no more. First looked at is
    what has most in common with what is subtracted: a proof that exists is found there."""
    terms = terms_of(dim)
    calls = [(m[0], c) for m, c in terms if len(m) == 1 and has_cases(m[0])]
    if not calls:
        return False
    less = frozenset(m for m, c in terms if c < 0)
    call, c = max(calls, key=lambda each: max(len(less & _inside(x)) for x in each[0].args))
    rest = dim - c * _from_terms({(call,): 1})
    is_enough = any if (call.fn == "max") == (c > 0) else all
    args = sorted(call.args, key=lambda x: -len(less & _inside(x)))
    return is_enough(_not_negative(rest + c * x, cases) for x in args)


@lru_cache(1 << 12)
def _inside(dim: DimLike) -> frozenset[Monomial]:
    """The monomials of a dim, and of what its maxima and minima are of."""
    found: set[Monomial] = set()
    for m, _ in terms_of(dim):
        found.add(m)
        if len(m) == 1 and has_cases(m[0]):
            found.update(*map(_inside, m[0].args))
    return frozenset(found)


def _at_least_zero(dim: DimLike) -> bool:
    low = dim.interval[0] if isinstance(dim, Dim) else dim
    return low is not None and low >= 0


@lru_cache(1 << 14)
def _from_least(dim: DimLike) -> DimLike:
    """`dim` over symbols counted from their least: n·(h - 2) with h from 3 on is n·h' + n."""
    if not any(facts_of(m).has_least for m, _ in terms_of(dim)):
        return dim
    return _sum((_monomial_from_least(m), c) for m, c in terms_of(dim))


@lru_cache(1 << 14)
def _monomial_from_least(monomial: Monomial) -> DimLike:
    return product(map(_atom_from_least, monomial))


@lru_cache(1 << 14)
def _atom_from_least(atom: Atom) -> DimLike:
    if not isinstance(atom, Symbol):
        return _FUNCTIONS[atom.fn](*map(_from_least, atom.args))
    if not atom.min:
        return _of_symbol(atom)
    return _of_symbol(replace(atom, min=0, max=None)) + atom.min


def _cases_from_least(dim: DimLike) -> DimLike:
    """`dim` with a symbol for what a maximum or a minimum is above its least: n·(max(h, 2) - 2)
    is n·h'."""
    monomials = [m for m, _ in terms_of(dim)]
    if not any(_least_of_case(a) for m in monomials if len(m) > 1 for a in m):
        return dim
    return _sum((product(map(_case_from_least, m)), c) for m, c in terms_of(dim))


def _case_from_least(atom: Atom) -> DimLike:
    low = _least_of_case(atom)
    return _of_symbol(Symbol(atom.exact)) + low if low else _from_terms({(atom,): 1})


def _least_of_case(atom: Atom) -> int:
    """The least of a maximum or a minimum; 0 where it may be less."""
    return max(atom.interval[0] or 0, 0) if has_cases(atom) else 0


def _without_quotients(dim: DimLike) -> DimLike:
    """What is not negative only where `dim` is not: x - k + 1 ≤ k·(x // k) ≤ x, for k > 0."""
    return _rounded_up(dim, lambda m, _: len(m) == 1)


def _without_factors(dim: DimLike) -> DimLike:
    """The same for quotients that are factors, too."""
    return _rounded_up(dim, lambda _, __: True)


def _without_subtracted(dim: DimLike) -> DimLike:
    """The same for those that are subtracted: those that are added meet what they were of."""
    return _rounded_up(dim, lambda _, c: c < 0)


def _rounded_up(dim: DimLike, chosen: Callable[[Monomial, int], bool]) -> DimLike:
    """At most k·dim + k - 1: `dim` is whole, so it is not negative where k·dim is above -k."""
    lower, k = _replaced(dim, chosen)
    return lower + (k - 1)


def _replaced(dim: DimLike, chosen: Callable[[Monomial, int], bool]) -> tuple[DimLike, int]:
    """At most a positive multiple of `dim`, and which."""
    terms: list[tuple[DimLike, int, int]] = []
    for m, c in terms_of(dim):
        found = quotient_in(m) if chosen(m, c) else None
        rest, x, k = found or (_from_terms({m: 1}), 1, 1)
        terms.append((rest * (x if c < 0 else x - (k - 1)), k, c))
    scale = math.lcm(*(k for _, k, _ in terms))
    return _sum((x, c * scale // k) for x, k, c in terms), scale


@lru_cache(1 << 14)
def quotient_in(monomial: Monomial) -> tuple[DimLike, DimLike, int] | None:
    """r, x and k of a monomial r·(x // k) with k > 0 and an r that is never negative."""
    for atom in monomial:
        match atom:
            case Call("//", (x, int(k))) if k > 0:
                rest = without(monomial, (atom,)) or ()
                low = facts_of(rest).interval[0]
                if low is not None and low >= 0:
                    return _from_terms({rest: 1}), x, k
            case _:
                pass
    return None
