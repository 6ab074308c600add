"""Acyclic partition of the graph into fusion groups, with incremental topological order.

A region is one kernel, so it must be convex: no value may leave a group, pass through another
kernel and come back. The groups are held in a topological order that is repaired locally when two
merge (Pearce and Kelly, 2006), so that a merge visits only the groups between the two. Most paths
that forbid a merge are proved by a path cover, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlx.ir.mir import Node
from rlx.passes.fusion.path_cover import Meeting, PathCover
from rlx.passes.fusion.reasons import TOO_FAR, WOULD_CYCLE

SEARCH_LIMIT = 128
"""Edges that a merge may look at from each side. Past it a merge is refused, which keeps fusion
linear."""


class Groups:
    """Disjoint groups over `order`, each at first a single node."""

    def __init__(self, order: Sequence[Node]) -> None:
        number = {node: i for i, node in enumerate(order)}
        self.number = number
        self.nodes = order
        self._parent = list(range(len(order)))
        self.members: list[list[int]] = [[i] for i in range(len(order))]
        self.position = list(range(len(order)))
        self._before = [{number[i] for i in (*node.inputs, *node.awaits)} for node in order]
        self._after: list[set[int]] = [set() for _ in order]
        for i, before in enumerate(self._before):
            for j in before:
                self._after[j].add(i)
        self._cover = PathCover(self._before)

    def find(self, i: int) -> int:
        """The group that node number `i` is in."""
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def group_of(self, node: Node) -> int:
        return self.find(self.number[node])

    def before(self, group: int) -> set[int]:
        """The groups that `group` reads."""
        self._before[group] = found = {self.find(i) for i in self._before[group]} - {group}
        return found

    def after(self, group: int) -> set[int]:
        """The groups that read `group`."""
        self._after[group] = found = {self.find(i) for i in self._after[group]} - {group}
        return found

    def why_not(self, first: int, second: int) -> str | None:
        """Why the groups, of which `second` reads `first`, may not become one; None if they may."""
        if self._free_position(first, second) is not None:
            return None
        found = self._window(first, second)
        return found if isinstance(found, str) else None

    def merge(self, first: int, second: int) -> int:
        """Make `second`, which reads `first`, one group with it; `why_not` was asked before."""
        position = self._free_position(first, second)
        if position is not None:
            return self._join(first, second, position)
        low, high = self.position[first], self.position[second]
        window = self._window(first, second)
        assert not isinstance(window, str), window
        behind, ahead = window
        positions = sorted([low, high, *(self.position[g] for g in (*behind, *ahead))])
        for group, position in zip(behind, positions):
            self.position[group] = position
        for group, position in zip(reversed(ahead), reversed(positions)):
            self.position[group] = position
        return self._join(first, second, positions[len(behind)])

    def _free_position(self, first: int, second: int) -> int | None:
        """A position for both with no other group moved; the side with fewer edges is checked
        first, which mostly suffices."""
        checks = [self._position_of_first, self._position_of_second]
        if len(self._after[first]) < len(self._before[second]):
            checks.reverse()
        for check in checks:
            position = check(first, second)
            if position is not None:
                return position
        return None

    def _position_of_first(self, first: int, second: int) -> int | None:
        low = self.position[first]
        is_free = all(self.position[g] < low for g in self.before(second) if g != first)
        return low if is_free else None

    def _position_of_second(self, first: int, second: int) -> int | None:
        if len(self._after[first]) > SEARCH_LIMIT:
            return None
        high = self.position[second]
        is_free = all(self.position[g] > high for g in self.after(first) if g != second)
        return high if is_free else None

    def _window(self, first: int, second: int) -> tuple[list[int], list[int]] | str:
        """The groups between that `second` needs and those that need `first`, each in order: both
        are searched in turns, until a path is proved or none is left."""
        low, high = self.position[first], self.position[second]
        behind = _Search(self._before, self.before, lambda g: self.position[g] >= low)
        ahead = _Search(self._after, self.after, lambda g: self.position[g] <= high)
        behind.expand(second, first)
        ahead.expand(first, second)
        meeting = Meeting(self._cover, first, second)
        sides = (behind, meeting.needed), (ahead, meeting.reached)
        while behind.stack or ahead.stack:
            for search, proves_path in sides:
                group = search.next()
                if group is not None and proves_path(group):
                    return WOULD_CYCLE
        if behind.is_over or ahead.is_over:
            return TOO_FAR
        return self._sorted(behind.seen), self._sorted(ahead.seen)

    def _sorted(self, groups: Iterable[int]) -> list[int]:
        return sorted(groups, key=self.position.__getitem__)

    def _join(self, first: int, second: int, position: int) -> int:
        """One group of two, the larger keeping its number."""
        if len(self.members[first]) < len(self.members[second]):
            first, second = second, first
        self._parent[second] = first
        self._cover.join(first, second)
        self.members[first] += self.members[second]
        self.members[second] = []
        self._before[first] = united(self._before[first], self._before[second])
        self._after[first] = united(self._after[first], self._after[second])
        self.position[first] = position
        return first


class _Search:
    """The groups between two that paths from one of them visit; over where they have too many
    edges."""

    def __init__(
        self,
        edges: Sequence[set[int]],
        step: Callable[[int], set[int]],
        is_between: Callable[[int], bool],
    ) -> None:
        self._edges, self._step, self._is_between = edges, step, is_between
        self._num_edges = 0
        self.stack: list[int] = []
        self.seen: set[int] = set()
        self.is_over = False

    def next(self) -> int | None:
        """A group that was not visited; None where there is none, or none yet."""
        if not self.stack:
            return None
        group = self.stack.pop()
        if group in self.seen or not self._is_between(group):
            return None
        self.seen.add(group)
        self.expand(group)
        return group

    def expand(self, group: int, other: int | None = None) -> None:
        """Visit what is next to the group, but for the edge to `other`."""
        self._num_edges += len(self._edges[group])
        self.is_over = self._num_edges > SEARCH_LIMIT
        if self.is_over:
            self.stack.clear()
        else:
            self.stack += (g for g in self._step(group) if g != other)


def united(a: set[int], b: set[int]) -> set[int]:
    """The smaller set merged into the larger, in place."""
    large, small = (a, b) if len(a) >= len(b) else (b, a)
    large |= small
    return large
