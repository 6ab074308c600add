"""Placement where sizes are formulas: right for every binding, tight at the representative one.

Buffers go into regions that lie one behind the other. Inside a region two buffers that live at
the same step are apart by proof, not by numbers; where no proof is found, a buffer starts a
region of its own. A region's extent is the greatest of its buffers' ends. Where it cannot be shown
that all of them end before the arena does, no two buffers share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlx.core.dim import Dim, DimLike
from rlx.core.formulas import compile_dims
from rlx.plan.arena import Neighbours, Span, peak_bytes
from rlx.plan.size_proofs import Proofs, greatest

MAX_ENDS = 4
"""Incomparable ends a region may have: its extent stays a formula one can read and evaluate."""


@dataclass(frozen=True, slots=True)
class FormulaSpan:
    """A buffer to place, sized by a formula that is a multiple of the alignment."""

    size: DimLike
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class FormulaPlacement:
    """A formula per buffer, and one for the bytes of them all."""

    offsets: tuple[DimLike, ...]
    total: DimLike


class Sizes:
    """Formulas with their value at the representative sizes, and what is proved of them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._names, self._sizes = tuple(sizes), tuple(sizes.values())
        self._values: dict[DimLike, int] = {}
        self._proofs = Proofs()

    def value(self, dim: DimLike) -> int:
        if not isinstance(dim, Dim):
            return dim
        if dim not in self._values:
            (self._values[dim],) = compile_dims([dim], self._names)(*self._sizes)
        return self._values[dim]

    def le(self, a: DimLike, b: DimLike) -> bool:
        """Is a ≤ b proved? A counterexample at the representative sizes saves the attempt."""
        return self.value(a) <= self.value(b) and self._proofs.le(a, b)


@dataclass(slots=True)
class _Region:
    """Buffers whose offsets count from a common start."""

    ends: list[DimLike] = field(default_factory=list[DimLike])
    """None of them provably under another; the extent is the greatest."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where a buffer would go, and that in numbers at the representative sizes."""

    region: int
    start: DimLike
    end: DimLike
    low: int
    high: int


def place_formulas(spans: Sequence[FormulaSpan], sizes: Mapping[str, int]) -> FormulaPlacement:
    """The tightest at the representative sizes of a few orders of placing."""
    known = Sizes(sizes)
    numbers = [Span(known.value(s.size), s.birth, s.death) for s in spans]
    keys: tuple[Callable[[Span], tuple[int, int]], ...] = (
        lambda s: (-s.size, s.birth),
        lambda s: (-s.size * (s.death - s.birth + 1), s.birth),
        lambda s: (s.birth, -s.size),
    )
    floor = peak_bytes(numbers)
    best: FormulaPlacement | None = None
    for key in keys:
        order = sorted(range(len(spans)), key=lambda i: (*key(numbers[i]), i))
        found = _placed(spans, numbers, order, known)
        if best is None or known.value(found.total) < known.value(best.total):
            best = found
        if known.value(best.total) == floor:
            break
    assert best is not None
    return best if _ends_inside(best, spans, known) else _unshared(spans)


def _ends_inside(placed: FormulaPlacement, spans: Sequence[FormulaSpan], known: Sizes) -> bool:
    """Is every buffer shown to end before the arena does?"""
    ends = (offset + span.size for offset, span in zip(placed.offsets, spans, strict=True))
    return all(known.le(end, placed.total) for end in ends)


def _unshared(spans: Sequence[FormulaSpan]) -> FormulaPlacement:
    """One behind the other: what comes later is farther by sizes, which are not negative."""
    *offsets, total = _prefix_sums([s.size for s in spans])
    return FormulaPlacement(tuple(offsets), total)


def _placed(
    spans: Sequence[FormulaSpan], numbers: Sequence[Span], order: Sequence[int], known: Sizes
) -> FormulaPlacement:
    """Each in turn where it makes the arena grow least at the representative sizes."""
    near, regions, seats = Neighbours(numbers), list[_Region](), dict[int, _Seat]()
    for i in order:
        met: dict[int, list[_Seat]] = {}
        for j in near.meeting(i):
            met.setdefault(seats[j].region, []).append(seats[j])
        seats[i] = _best_seat(spans[i].size, regions, met, known)
        _occupy(regions, seats[i], known)
        near.add(i)
    starts = _prefix_sums([greatest(r.ends) for r in regions])
    offsets = tuple(starts[seats[i].region] + seats[i].start for i in range(len(spans)))
    return FormulaPlacement(offsets, starts[-1])


def _best_seat(
    size: DimLike, regions: Sequence[_Region], met: Mapping[int, list[_Seat]], known: Sizes
) -> _Seat:
    least = known.value(size)
    best = _Seat(len(regions), 0, size, 0, least)
    for r, region in enumerate(regions):
        seat = _lowest_seat(r, region, size, met.get(r, ()), known)
        if seat is None or len(_ends_with(region.ends, seat.end, known)) > MAX_ENDS:
            continue
        growth = max(0, seat.high - max(map(known.value, region.ends)))
        if growth < least or (growth == least and best.region == len(regions)):
            best, least = seat, growth
    return best


def _lowest_seat(
    number: int, region: _Region, size: DimLike, met: Sequence[_Seat], known: Sizes
) -> _Seat | None:
    """The lowest start, 0 or the end of another, that is provably apart from all it meets.

    An end that all others of the region are proved to stay under needs no proof of its own.
    """
    bytes_ = known.value(size)
    gaps = _gaps(sorted((m.low, m.high) for m in met), bytes_)
    starts = [(0, 0), *((m.high, m.end) for m in met if m.high in gaps)]
    for low, start in sorted(dict.fromkeys(starts), key=lambda pair: pair[0]):
        end = start + size
        is_top = region.ends == [start]
        if low in gaps and (is_top or _is_apart(start, end, met, known)):
            return _Seat(number, start, end, low, low + bytes_)
    return None


def _gaps(taken: Sequence[tuple[int, int]], size: int) -> set[int]:
    """Where `size` bytes are free in numbers: only there is a proof worth looking for."""
    found, at = set[int](), 0
    for start, end in taken:
        if start - at >= size:
            found.add(at)
        at = max(at, end)
    return found | {at}


def _is_apart(start: DimLike, end: DimLike, met: Sequence[_Seat], known: Sizes) -> bool:
    return all(known.le(m.end, start) or known.le(end, m.start) for m in met)


def _occupy(regions: list[_Region], seat: _Seat, known: Sizes) -> None:
    if seat.region == len(regions):
        regions.append(_Region())
    region = regions[seat.region]
    region.ends = _ends_with(region.ends, seat.end, known)


def _ends_with(ends: Sequence[DimLike], end: DimLike, known: Sizes) -> list[DimLike]:
    """The ends with one more, without those that another provably reaches."""
    if any(known.le(end, e) for e in ends):
        return list(ends)
    return [*(e for e in ends if not known.le(e, end)), end]


def _prefix_sums(sizes: Sequence[DimLike]) -> list[DimLike]:
    sums: list[DimLike] = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    return sums
