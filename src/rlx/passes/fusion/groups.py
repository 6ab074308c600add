"""Acyclic partition of the graph into fusion groups, with incremental topological order.

A region is one kernel, so it must be convex: no value may leave a group, pass through another
kernel and come back. The groups are held in a topological order that is repaired locally when two
merge (Pearce and Kelly, 2006), so that a merge visits only the groups between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlx.ir.mir import Node
from rlx.passes.fusion.reasons import TOO_FAR, WOULD_CYCLE

SEARCH_LIMIT = 1000
"""Groups a merge may look at: past it a merge is refused, which keeps fusion near-linear."""


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
        if len(self._after[first]) > SEARCH_LIMIT:
            return TOO_FAR
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
        """The groups between that `second` needs and those that need `first`, each in order."""
        low, high = self.position[first], self.position[second]
        ahead = self._reach(first, second, self.after, lambda p: p <= high)
        if ahead is None:
            return TOO_FAR
        if second in ahead:
            return WOULD_CYCLE
        behind = self._reach(second, first, self.before, lambda p: p >= low)
        if behind is None:
            return TOO_FAR
        return self._sorted(behind), self._sorted(ahead)

    def _sorted(self, groups: Iterable[int]) -> list[int]:
        return sorted(groups, key=self.position.__getitem__)

    def _reach(
        self,
        start: int,
        other: int,
        step: Callable[[int], set[int]],
        is_between: Callable[[int], bool],
    ) -> set[int] | None:
        """The groups between that a path from `start` visits, except its direct edge to `other`."""
        stack = [g for g in step(start) if g != other and is_between(self.position[g])]
        seen = set(stack)
        while stack and len(seen) <= SEARCH_LIMIT:
            for group in step(stack.pop()):
                if group not in seen and is_between(self.position[group]):
                    seen.add(group)
                    stack.append(group)
        return None if stack else seen

    def _join(self, first: int, second: int, position: int) -> int:
        """One group of two, the larger keeping its number."""
        if len(self.members[first]) < len(self.members[second]):
            first, second = second, first
        self._parent[second] = first
        self.members[first] += self.members[second]
        self.members[second] = []
        self._before[first] = united(self._before[first], self._before[second])
        self._after[first] = united(self._after[first], self._after[second])
        self.position[first] = position
        return first


def united(a: set[int], b: set[int]) -> set[int]:
    """The smaller set merged into the larger, in place."""
    large, small = (a, b) if len(a) >= len(b) else (b, a)
    large |= small
    return large
