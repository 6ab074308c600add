"""Groups of nodes that stay free of cycles while they grow.

A region is one kernel, so it may not wait for itself: no value may leave a group, pass through
another kernel and come back. The groups are held in a topological order that is repaired locally
when two merge (Pearce and Kelly, 2006), so that a merge looks only at the groups that lie between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlx.ir.mir import Node
from rlx.passes.fusion.reasons import TOO_FAR, WAITS_FOR_ITSELF

SEARCH_LIMIT = 2000
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
        if self._plain_place(first, second) is not None:
            return None
        if len(self._after[first]) > SEARCH_LIMIT:
            return TOO_FAR
        found = self._window(first, second)
        return found if isinstance(found, str) else None

    def merge(self, first: int, second: int) -> int:
        """Make `second`, which reads `first`, one group with it; `why_not` was asked before."""
        place = self._plain_place(first, second)
        if place is not None:
            return self._join(first, second, place)
        low, high = self.position[first], self.position[second]
        window = self._window(first, second)
        assert not isinstance(window, str), window
        behind, ahead = window
        places = sorted([low, high, *(self.position[g] for g in (*behind, *ahead))])
        for group, place in zip(behind, places):
            self.position[group] = place
        for group, place in zip(reversed(ahead), reversed(places)):
            self.position[group] = place
        return self._join(first, second, places[len(behind)])

    def _plain_place(self, first: int, second: int) -> int | None:
        """Where the two can stand with nothing else moved; the side with fewer edges is asked
        first, which mostly answers."""
        checks = [self._place_of_first, self._place_of_second]
        if len(self._after[first]) < len(self._before[second]):
            checks.reverse()
        for check in checks:
            place = check(first, second)
            if place is not None:
                return place
        return None

    def _place_of_first(self, first: int, second: int) -> int | None:
        low = self.position[first]
        is_free = all(self.position[g] < low for g in self.before(second) if g != first)
        return low if is_free else None

    def _place_of_second(self, first: int, second: int) -> int | None:
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
            return WAITS_FOR_ITSELF
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
        """The groups between that a path from `start` meets, its direct edge to `other` apart."""
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
        self._before[first] = _united(self._before[first], self._before[second])
        self._after[first] = _united(self._after[first], self._after[second])
        self.position[first] = position
        return first


def _united(a: set[int], b: set[int]) -> set[int]:
    """The smaller set added to the larger."""
    large, small = (a, b) if len(a) >= len(b) else (b, a)
    large |= small
    return large
