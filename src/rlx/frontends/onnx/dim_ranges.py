"""Ranges of named dims, derived from the errors of importing a model for all sizes.

A model that adds the first `length` of 512 rows to `length` rows is one for lengths up to 512: any
other fails where they are added. So the dim gets that range, and the model is read again. One that
halves an image five times, rounded up, and joins what it doubles again with what it was before, is
one for multiples of 32 (and few other sizes): the dim is such a multiple, and the model read again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from rlx.core.dim import Dim, DimLike, dim_max, exact_div, provably_le, symbols_of
from rlx.core.formulas import compile_dims
from rlx.core.intervals import Interval
from rlx.core.shape import DimsDiffer
from rlx.frontends.onnx.named_dims import SizeRange

MOST = 1 << 13
"""Sizes up to here are tried one by one."""
FARTHEST = 1 << 48
"""A range that reaches as far has no end."""
MAX_MULTIPLE = 1024


def ranges_for(error: BaseException) -> dict[str, SizeRange] | None:
    """The range of a named dim outside of which this error is right; None if it is not known."""
    found = behind(error)
    kept = found and _range_where(found.left, found.right, found.may_repeat)
    return dict([kept]) if kept else None


def equal_for(error: BaseException) -> tuple[str, str] | None:
    """Two named dims that must be equal, or may be, for this error not to be right."""
    found = behind(error)
    if found is None:
        return None
    both = [d.symbol if isinstance(d, Dim) else None for d in _reduced(found.left, found.right)]
    left, right = both
    if left is None or right is None or left.is_measured or right.is_measured or left == right:
        return None
    return left.name, right.name


@lru_cache(256)
def _range_where(one: DimLike, other: DimLike, may_repeat: bool) -> tuple[str, SizeRange] | None:
    """Where two sizes agree; a model that is read several times asks again."""
    left, right = _reduced(one, other)
    symbols = symbols_of([left, right])
    if len(symbols) != 1 or symbols[0].is_measured:
        return None
    (low, high), name = symbols[0].bounds, symbols[0].name
    sizes = range(low or 0, MOST if high is None else min(high, MOST) + 1)
    both = compile_dims([left, right], [name])

    def fits(size: int) -> bool:
        first, second = both(size)
        return first == second or (may_repeat and 1 in (first, second))

    kept = _only_run(sizes, fits) or _multiples(symbols[0].bounds, fits)
    return None if kept is None else (name, kept)


def require(small: DimLike, large: DimLike, what: str) -> None:
    """`small` is at most `large` in any call that has a meaning: a named dim gets the range where
    it is, if there is one such dim."""
    if provably_le(small, large):
        return
    error = DimsDiffer(f"{what}: {small} is to be at most {large}", dim_max(small, large), large)
    if ranges_for(error) is not None:
        raise error


def _only_run(sizes: range, fits: Callable[[int], bool]) -> SizeRange | None:
    """The first and last of the sizes that fit, where they are a run, and not all."""
    fitting = [s for s in sizes if fits(s)]
    if not fitting or fitting[-1] - fitting[0] + 1 != len(fitting):
        return None
    last = _last(fits) if fitting[-1] == MOST - 1 else fitting[-1]
    is_all = fitting[0] == sizes[0] and last in (None, sizes[-1]) and last != MOST - 1
    return None if is_all else SizeRange(fitting[0], last)


def _multiples(bounds: Interval, fits: Callable[[int], bool]) -> SizeRange | None:
    """The range of the sizes that are multiples of the least number all of whose multiples fit; not
    of 0, so that more can be proved of it."""
    low, high = bounds[0] or 0, bounds[1]
    most = MOST if high is None else min(high, MOST)
    for number in range(2, min(MAX_MULTIPLE, most // 2) + 1):
        first = max(1, -(-low // number)) * number
        if all(map(fits, range(first, most + 1, number))):
            return SizeRange(first, high, number)
    return None


def _last(fits: Callable[[int], bool]) -> int | None:
    """The last size that fits, of a run that goes on beyond those that are tried one by one."""
    low = MOST - 1
    while fits(2 * low):
        low *= 2
        if low > FARTHEST:
            return None
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def behind(error: BaseException | None) -> DimsDiffer | None:
    """The error of sizes that this one was made of."""
    while error is not None and not isinstance(error, DimsDiffer):
        error = error.__context__
    return error


def _reduced(left: DimLike, right: DimLike) -> tuple[DimLike, DimLike]:
    """Without the factors that both have: where those are 0, neither has elements."""
    for one, other in ((left, right), (right, left)):
        quotient = exact_div(one, other) if isinstance(other, Dim) else None
        if quotient is not None:
            return quotient, 1
    return left, right
