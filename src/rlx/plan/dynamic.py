"""Symbolic memory planning: offset formulas, valid for all sizes, tight at representative ones.

Buffers go into consecutive segments. Inside a segment two buffers with overlapping live ranges are
proved disjoint for all sizes; where no proof is found, a buffer starts a new segment. A segment's
extent is the maximum of its buffers' ends. Where it cannot be proved that all of them end before
the arena does, no two buffers share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlx.core.dim import Dim, DimLike
from rlx.core.formulas import compile_dims
from rlx.plan.arena import Interference, Span, peak_bytes
from rlx.plan.size_proofs import Proofs, greatest

MAX_ENDS = 4
"""Incomparable ends a segment may have, so that its extent stays a short formula."""


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
    """Formulas with their value at the representative sizes, and a memo of proofs about them."""

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
class _Segment:
    """Buffers whose offsets count from a common start."""

    ends: list[DimLike] = field(default_factory=list[DimLike])
    """None of them provably under another; the extent is the greatest."""


@dataclass(frozen=True, slots=True)
class _Position:
    """A candidate byte range of a buffer, and its value at the representative sizes."""

    segment: int
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
    return best if _ends_inside(best, spans, known) else _without_reuse(spans)


def _ends_inside(placed: FormulaPlacement, spans: Sequence[FormulaSpan], known: Sizes) -> bool:
    """Is every buffer shown to end before the arena does?"""
    ends = (offset + span.size for offset, span in zip(placed.offsets, spans, strict=True))
    return all(known.le(end, placed.total) for end in ends)


def _without_reuse(spans: Sequence[FormulaSpan]) -> FormulaPlacement:
    """Prefix sums: disjoint, as sizes are not negative."""
    *offsets, total = _prefix_sums([s.size for s in spans])
    return FormulaPlacement(tuple(offsets), total)


def _placed(
    spans: Sequence[FormulaSpan], numbers: Sequence[Span], order: Sequence[int], known: Sizes
) -> FormulaPlacement:
    """Each in turn where it makes the arena grow least at the representative sizes."""
    near, segments, positions = Interference(numbers), list[_Segment](), dict[int, _Position]()
    for i in order:
        met: dict[int, list[_Position]] = {}
        for j in near.overlapping(i):
            met.setdefault(positions[j].segment, []).append(positions[j])
        positions[i] = _best_position(spans[i].size, segments, met, known)
        _occupy(segments, positions[i], known)
        near.add(i)
    starts = _prefix_sums([greatest(r.ends) for r in segments])
    offsets = tuple(starts[positions[i].segment] + positions[i].start for i in range(len(spans)))
    return FormulaPlacement(offsets, starts[-1])


def _best_position(
    size: DimLike, segments: Sequence[_Segment], met: Mapping[int, list[_Position]], known: Sizes
) -> _Position:
    least = known.value(size)
    best = _Position(len(segments), 0, size, 0, least)
    for r, segment in enumerate(segments):
        position = _lowest_position(r, segment, size, met.get(r, ()), known)
        if position is None or len(_ends_with(segment.ends, position.end, known)) > MAX_ENDS:
            continue
        growth = max(0, position.high - max(map(known.value, segment.ends)))
        if growth < least or (growth == least and best.segment == len(segments)):
            best, least = position, growth
    return best


def _lowest_position(
    number: int, segment: _Segment, size: DimLike, met: Sequence[_Position], known: Sizes
) -> _Position | None:
    """The lowest start, 0 or the end of another, that is provably disjoint from all it overlaps in
    time.

    An end that all others of the segment are proved to stay under needs no proof of its own.
    """
    bytes_ = known.value(size)
    gaps = _gaps(sorted((m.low, m.high) for m in met), bytes_)
    starts = [(0, 0), *((m.high, m.end) for m in met if m.high in gaps)]
    for low, start in sorted(dict.fromkeys(starts), key=lambda pair: pair[0]):
        end = start + size
        is_top = segment.ends == [start]
        if low in gaps and (is_top or _is_disjoint(start, end, met, known)):
            return _Position(number, start, end, low, low + bytes_)
    return None


def _gaps(taken: Sequence[tuple[int, int]], size: int) -> set[int]:
    """Where `size` bytes are free at the representative sizes: only there a proof is attempted."""
    found, at = set[int](), 0
    for start, end in taken:
        if start - at >= size:
            found.add(at)
        at = max(at, end)
    return found | {at}


def _is_disjoint(start: DimLike, end: DimLike, met: Sequence[_Position], known: Sizes) -> bool:
    return all(known.le(m.end, start) or known.le(end, m.start) for m in met)


def _occupy(segments: list[_Segment], position: _Position, known: Sizes) -> None:
    if position.segment == len(segments):
        segments.append(_Segment())
    segment = segments[position.segment]
    segment.ends = _ends_with(segment.ends, position.end, known)


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
