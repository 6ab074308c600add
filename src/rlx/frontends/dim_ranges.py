"""Ranges of named dims, derived from the errors of importing a model for all sizes.

A model that adds the first `length` of 512 rows to `length` rows is one for lengths up to 512: any
other fails where they are added. So the dim gets that range, and the model is read again. One that
halves an image five times, rounded up, and joins what it doubles again with what it was before, is
one for multiples of 32 (and few other sizes): the dim is such a multiple, and the model read again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

from rlx.core.atoms import Call, Symbol
from rlx.core.dim import (
    Dim,
    DimLike,
    exact_div,
    provably_le,
    substitute,
    symbols_of,
)
from rlx.core.extent import of_symbol, product_of
from rlx.core.formulas import compile_dims
from rlx.core.intervals import Interval
from rlx.core.shape import DimsDiffer, may_exceed
from rlx.frontends.named_dims import NamedDims, SizeRange

MAX_NARROWED = 64
"""Times that a model is read to find out the ranges of its dims."""
MOST = 1 << 13
"""Sizes up to here are tried one by one."""
FARTHEST = 1 << 48
"""A range that reaches as far has no end."""
MAX_MULTIPLE = 1024
MAX_CASES = 3
"""How many maxima and minima of a difference are looked at argument by argument."""


def mended(named: NamedDims, error: BaseException) -> bool:
    """Have named dims been settled so that this error does not come again?"""
    ranges = ranges_for(error)
    if ranges is not None:
        return named.narrow(ranges)
    equal = equal_for(error)
    if equal is not None:
        named.solve(*equal)
    return equal is not None


def ranges_for(error: BaseException) -> dict[str, SizeRange] | None:
    """The range of a named dim outside of which this error is right; None if it is not known."""
    found = behind(error)
    kept = found and _range_where(found.left, found.right, found.may_repeat)
    return dict([kept]) if kept else None


def equal_for(error: BaseException) -> tuple[str, DimLike] | None:
    """A named dim and what it must be of others, or may be, for this error not to be right."""
    found = behind(error)
    if found is None:
        return None
    left, right = _reduced(found.left, found.right)
    named = [d for d in symbols_of([left, right]) if not d.is_measured]
    pairs = ((other.name, one) for one, other in itertools.combinations(named, 2))
    for name, size in itertools.chain(_solutions(left - right, MAX_CASES), pairs):
        is_other = all(d.name != name for d in symbols_of([size]))
        sizes = {name: size}
        if (
            is_other
            and substitute(left, sizes) == substitute(right, sizes)
            and provably_le(0, size)
        ):
            return name, size
    return None


def _solutions(difference: DimLike, cases: int) -> Iterator[tuple[str, DimLike]]:
    """What a named dim is where a difference that it is a term of is 0, or is with one argument of
    a maximum or minimum in its place; of two names first the one that comes last."""
    if not isinstance(difference, Dim) or difference.is_measured:
        return
    for monomial, c in reversed(difference.terms):
        match monomial:
            case (Symbol() as only,) if c in (1, -1):
                yield only.name, of_symbol(only) - c * difference
            case (Call("max" | "min", args),) if cases:
                term = dict(zip(difference.terms, difference.addends()))[monomial, c]
                for argument in args:
                    yield from _solutions(difference - term + c * argument, cases - 1)
            case _:
                pass


@lru_cache(256)
def _range_where(one: DimLike, other: DimLike, may_repeat: bool) -> tuple[str, SizeRange] | None:
    """Where two sizes agree; a model that is read several times asks again."""
    left, right = _reduced(one, other)
    symbols = symbols_of([left, right])
    if len(symbols) != 1 or symbols[0].is_measured:
        return None
    bounds, name = symbols[0].bounds, symbols[0].name
    both = compile_dims([left, right], [name])

    def are_equal(size: int) -> bool:
        first, second = both(size)
        return first == second

    def broadcast(size: int) -> bool:
        first, second = both(size)
        return first == second or 1 in (first, second)

    found = _sizes_where(bounds, are_equal)
    if may_repeat and (found is None or found.high == 0):
        found = _sizes_where(bounds, broadcast)
    return None if found is None else (name, found)


def require_some(dim: DimLike, what: str) -> bool:
    """A dim is not 0 in calls of this program: named dims get ranges in which it is not. Is that
    shown, but for sums of named dims, which are 0 where all of them are?"""
    terms = dim.terms if isinstance(dim, Dim) else ()
    if len(terms) == 1 and len(terms[0][0]) > 1:
        return all(require_some(product_of((atom,)), what) for atom in terms[0][0])
    require(1, dim, what)
    is_sum = all(c > 0 and all(isinstance(a, Symbol) for a in m) for m, c in terms)
    return provably_le(1, dim) or (is_sum and len(terms) > 1)


def _sizes_where(bounds: Interval, fits: Callable[[int], bool]) -> SizeRange | None:
    """Those of the sizes in a range that fit, where they are a run or multiples of a number."""
    low, high = bounds[0] or 0, bounds[1]
    end = low + MOST if high is None else min(high + 1, low + MOST)
    sizes = range(low, end)
    return _only_run(sizes, high, fits) or _multiples(sizes, high, fits)


def require(small: DimLike, large: DimLike, what: str) -> None:
    """`small` is at most `large` in any call that has a meaning: a named dim gets the range where
    it is, if there is one such dim."""
    if provably_le(small, large):
        return
    error = may_exceed(f"{what}: {small} is to be at most {large}", small, large)
    if ranges_for(error) is not None:
        raise error


def _only_run(sizes: range, high: int | None, fits: Callable[[int], bool]) -> SizeRange | None:
    """The first and last of the sizes that fit, where they are a run, and not all."""
    fitting = [s for s in sizes if fits(s)]
    if not fitting or fitting[-1] - fitting[0] + 1 != len(fitting):
        return None
    first, last = fitting[0], fitting[-1]
    if last == sizes[-1]:
        last = high if last == high else _last(last, high, fits)
    return None if (first, last) == (sizes[0], high) else SizeRange(first, last)


def _multiples(sizes: range, high: int | None, fits: Callable[[int], bool]) -> SizeRange | None:
    """The range of the sizes that are multiples of the least number all of whose multiples fit, of
    which there are several; not of 0, so that more can be proved of it."""
    for number in range(2, MAX_MULTIPLE + 1):
        first = max(1, -(-sizes.start // number)) * number
        multiples = range(first, sizes.stop, number)
        if len(multiples) < 2:
            return None
        if all(map(fits, multiples)):
            return SizeRange(first, high, number)
    return None


def _last(low: int, most: int | None, fits: Callable[[int], bool]) -> int | None:
    """The last size that fits, at most `most`, of a run that goes on beyond those that are tried
    one by one."""
    while fits(2 * low):
        low *= 2
        if low > FARTHEST or (most is not None and low >= most):
            return most
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if most is None else min(low, most)


def behind(error: BaseException | None) -> DimsDiffer | None:
    """The error of sizes that this one was made of."""
    while error is not None and not isinstance(error, DimsDiffer):
        error = error.__cause__ or error.__context__
    return error


def _reduced(left: DimLike, right: DimLike) -> tuple[DimLike, DimLike]:
    """Without the factors that both have: where those are 0, neither has elements."""
    for one, other in ((left, right), (right, left)):
        quotient = exact_div(one, other) if isinstance(other, Dim) else None
        if quotient is not None:
            return quotient, 1
    return left, right
