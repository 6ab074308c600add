"""A greedy cover of a DAG by disjoint paths (Jagadish, 1990), which proves reachability in O(1).

A node reaches every node behind it on its path. Merging groups of nodes only adds paths between
groups, so that what is proved once holds for good. What it does not prove may be reachable still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class PathCover:
    """Groups of nodes, at first one of each, and the parts of paths that they span."""

    def __init__(self, before: Sequence[Iterable[int]]) -> None:
        self._spans: list[dict[int, tuple[int, int]]] = []
        tails: dict[int, tuple[int, int]] = {}
        """The last node of a path → its place and the path."""
        for node, reads in enumerate(before):
            longest = max((j for j in reads if j in tails), key=tails.__getitem__, default=None)
            place, path = (0, node) if longest is None else tails.pop(longest)
            tails[node] = place + 1, path
            self._spans.append({path: (place, place)})

    def spans(self, group: int) -> Mapping[int, tuple[int, int]]:
        """Path → the first and the last place on it that the group has."""
        return self._spans[group]

    def join(self, group: int, other: int) -> None:
        """The first is both from now on."""
        a, b = self._spans[group], self._spans[other]
        small, large = (a, b) if len(a) <= len(b) else (b, a)
        for path, (first, last) in small.items():
            start, end = large.get(path, (first, last))
            large[path] = min(start, first), max(end, last)
        self._spans[group], self._spans[other] = large, {}


class Meeting:
    """What a source reaches and what a sink needs: does the one lead to the other along a path of
    the cover? A direct edge between source and sink does not count."""

    def __init__(self, cover: PathCover, source: int, sink: int) -> None:
        self._cover = cover
        self._first = {path: first for path, (first, _) in cover.spans(source).items()}
        self._last = {path: last for path, (_, last) in cover.spans(sink).items()}

    def reached(self, group: int) -> bool:
        """The source reaches the group: does that prove a path to the sink?"""
        for path, (first, _) in self._cover.spans(group).items():
            if first <= self._last.get(path, -1):
                return True
            self._first[path] = min(first, self._first.get(path, first))
        return False

    def needed(self, group: int) -> bool:
        """The sink needs the group: does that prove a path from the source?"""
        for path, (_, last) in self._cover.spans(group).items():
            if self._first.get(path, last + 1) <= last:
                return True
            self._last[path] = max(last, self._last.get(path, last))
        return False
