"""Shadow memory: which value owns each byte, as sorted runs of bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from rlx.ir.mir import Node


class Shadow:
    """Owners of byte runs. Runs never overlap; a later write cuts earlier ones."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: dict[int, tuple[int, Node]] = {}

    def owners(self, start: int, end: int) -> list[Node]:
        """Who owns bytes of the range, each once, from the lowest byte up."""
        found = dict.fromkeys(self._runs[s][1] for s in self._touching(start, end))
        return list(found)

    def is_owned(self, start: int, end: int, owner: Node) -> bool:
        """Does `owner` own every byte of the range?"""
        at = start
        for s in self._touching(start, end):
            run_end, run_owner = self._runs[s]
            if s > at or run_owner is not owner:
                return False
            at = run_end
        return at >= end

    def write(self, start: int, end: int, owner: Node) -> None:
        """The range becomes `owner`'s."""
        if start >= end:
            return
        pieces: list[tuple[int, int, Node]] = [(start, end, owner)]
        touched = self._touching(start, end)
        for s in touched:
            run_end, run_owner = self._runs.pop(s)
            if s < start:
                pieces.append((s, start, run_owner))
            if run_end > end:
                pieces.append((end, run_end, run_owner))
        at = bisect_left(self._starts, touched[0] if touched else start)
        self._starts[at : at + len(touched)] = sorted(p[0] for p in pieces)
        self._runs.update((s, (e, who)) for s, e, who in pieces)

    def _touching(self, start: int, end: int) -> list[int]:
        """The starts of the runs that share a byte with the range."""
        low = max(0, bisect_right(self._starts, start) - 1)
        high = bisect_left(self._starts, end)
        return [s for s in self._starts[low:high] if self._runs[s][0] > start]
