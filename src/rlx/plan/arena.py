"""Static memory planning: arena offsets for buffers with known live ranges.

Linear sweeps with best fit, and first fit by decreasing size or area; each is near-linear and
deterministic, and the smallest result is taken. The peak of live bytes is a lower bound, so the
first to reach it ends the search.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

MAX_FIT_WORK = 2_000_000
"""Steps the first-fit search may walk; past it only the sweeps run."""


@dataclass(frozen=True, slots=True)
class Span:
    """A buffer to place: its bytes and its live range, both steps included."""

    size: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Placement:
    """An offset per buffer, and the bytes of them all."""

    offsets: tuple[int, ...]
    total: int


def place(spans: Sequence[Span]) -> Placement:
    """The tightest of a few near-linear placements."""
    floor = peak_bytes(spans)
    best: Placement | None = None
    for method in (sweep, sweep_back, fit_by_size, fit_by_area):
        found = method(spans)
        if found is not None and (best is None or found.total < best.total):
            best = found
        if best is not None and best.total == floor:
            break
    assert best is not None
    return best


def peak_bytes(spans: Sequence[Span]) -> int:
    """The most bytes that live at one step: no placement is smaller."""
    change: dict[int, int] = {}
    for s in spans:
        change[s.birth] = change.get(s.birth, 0) + s.size
        change[s.death + 1] = change.get(s.death + 1, 0) - s.size
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


class FreeList:
    """Free blocks by size and by end; neighbours are merged."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, size: int) -> int:
        """The offset of the smallest free block that fits, or of new bytes at the top."""
        at = bisect_left(self._by_size, (size, -1))
        if at < len(self._by_size):
            block, offset = self._by_size[at]
        else:
            offset = self._ends.get(self.top, self.top)
            block = self.top - offset
        if block:
            self._remove(offset, block)
        self.top = max(self.top, offset + size)
        if block > size:
            self._add(offset + size, block - size)
        return offset

    def give(self, offset: int, size: int) -> None:
        if after := self._starts.get(offset + size):
            self._remove(offset + size, after)
            size += after
        before = self._ends.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            size, offset = size + offset - before, before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._starts[offset] = size
        self._ends[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._starts[offset], self._ends[offset + size]


def sweep(spans: Sequence[Span]) -> Placement:
    """Best fit in order of birth."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].birth, -spans[i].size, i))
    offsets, free = [0] * len(spans), FreeList()
    living: list[tuple[int, int]] = []
    for i in order:
        while living and living[0][0] < spans[i].birth:
            dead = heapq.heappop(living)[1]
            free.give(offsets[dead], spans[dead].size)
        if spans[i].size:
            offsets[i] = free.take(spans[i].size)
            heapq.heappush(living, (spans[i].death, i))
    return Placement(tuple(offsets), free.top)


def sweep_back(spans: Sequence[Span]) -> Placement:
    """Best fit in reverse order of death."""
    return sweep([Span(s.size, -s.death, -s.birth) for s in spans])


def fit_by_size(spans: Sequence[Span]) -> Placement | None:
    """Largest first, each at the lowest offset free over its live range."""
    return _fit(spans, lambda s: (-s.size, s.birth - s.death))


def fit_by_area(spans: Sequence[Span]) -> Placement | None:
    """Largest bytes times steps first, each at the lowest offset free over its life."""
    return _fit(spans, lambda s: (-s.size * (s.death - s.birth + 1), -s.size))


def _fit(spans: Sequence[Span], key: Callable[[Span], tuple[int, int]]) -> Placement | None:
    index = Interference(spans)
    if index.work > MAX_FIT_WORK:
        return None
    offsets = [0] * len(spans)
    for i in sorted(range(len(spans)), key=lambda i: (*key(spans[i]), i)):
        taken = sorted((offsets[j], offsets[j] + spans[j].size) for j in index.overlapping(i))
        offsets[i] = _lowest_gap(taken, spans[i].size)
        index.add(i)
    total = max((o + s.size for o, s in zip(offsets, spans)), default=0)
    return Placement(tuple(offsets), total)


def _lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    at = 0
    for start, end in taken:
        if start - at >= size:
            return at
        at = max(at, end)
    return at


@dataclass(slots=True)
class Interference:
    """Interference of live ranges: which spans added so far are live together with a given one."""

    spans: Sequence[Span]
    work: int = field(init=False)
    """Steps that one query per span walks."""
    _first: int = field(init=False)
    _leaves: int = field(init=False)
    _born: dict[int, list[int]] = field(init=False)
    _over: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._first = min((s.birth for s in self.spans), default=0)
        steps = max((s.death for s in self.spans), default=0) - self._first + 1
        self._leaves = 1 << max(0, steps - 1).bit_length()
        self.work = sum(s.death - s.birth + 1 for s in self.spans)
        self._born = {}
        self._over = [[] for _ in range(2 * self._leaves)]

    def overlapping(self, i: int) -> Iterator[int]:
        """Those alive when span i is born, then those born during its life."""
        span = self.spans[i]
        node = span.birth - self._first + self._leaves
        while node:
            yield from self._over[node]
            node >>= 1
        for step in range(span.birth + 1, span.death + 1):
            yield from self._born.get(step, ())

    def add(self, i: int) -> None:
        """Insert a span at the O(log n) nodes of a segment tree over steps that cover its live
        range."""
        span = self.spans[i]
        self._born.setdefault(span.birth, []).append(i)
        low = span.birth - self._first + self._leaves
        high = span.death - self._first + self._leaves + 1
        while low < high:
            if low & 1:
                self._over[low].append(i)
                low += 1
            if high & 1:
                high -= 1
                self._over[high].append(i)
            low, high = low >> 1, high >> 1
