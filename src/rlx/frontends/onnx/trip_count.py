"""How many steps a loop makes, where its condition counts them.

A `while` of TensorFlow has no trip count: it carries a counter, and goes on while that is less than
a size that no step changes. Such a condition is s·k < d in step k, with a step s and a distance d
that are known before the loop; it first fails in step max(0, ⌈d / s⌉), which is the last one made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from rlx.core.dim import DimLike, dim_max, dim_min, provably_le
from rlx.core.dtype import DType
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.data_dependent_sizes import element
from rlx.frontends.onnx.importer import Importer
from rlx.ir.mir import Node

MAX_DEPTH = 32
"""Ops between a condition and a counter."""
ENDLESS = 1 << 31
"""A trip count from here on stands for no end."""
_WHOLE_UP_TO = {DType.F16: 1 << 11, DType.BF16: 1 << 8, DType.F32: 1 << 24, DType.F64: 1 << 53}
"""Up to here floats hold every whole number."""
_COUNTERS = (DType.I32, DType.I64)
_SAME = frozenset({"reshape", "squeeze", "expand_dims"})
_ORDERS = {
    "less": (0, 1, 0), "less_equal": (0, 1, 1), "greater": (1, 0, 0), "greater_equal": (1, 0, 1),
}  # fmt: skip
"""Which operand is the lesser, which the greater, and whether they may be equal."""


@dataclass(frozen=True, slots=True)
class Line:
    """A number that is first + k·step in step k."""

    first: DimLike
    step: int


@dataclass(frozen=True, slots=True)
class Counted:
    """A condition that holds in step k where k·step < distance."""

    distance: DimLike
    step: int

    @property
    def before(self) -> DimLike:
        """The distance if the condition is asked before the first step as it is in each."""
        return self.distance + self.step

    def count(self, is_asked_first: bool) -> DimLike:
        """The steps made; there may be none where it is asked before the first, too."""
        if is_asked_first:
            return dim_max(0, -(-self.before // self.step))
        return dim_max(0, -(-self.distance // self.step)) + 1


@dataclass(slots=True)
class Reading:
    """The numbers of a graph as lines over the steps of a loop; outside of one, all stand still."""

    importer: Importer
    lines: dict[Node, Line | None] = field(default_factory=dict[Node, Line | None])

    def line(self, node: Node, depth: int = 0) -> Line | None:
        if node not in self.lines:
            is_one = node.shape.num_elements == 1 and depth < MAX_DEPTH
            self.lines[node] = self._line(node, depth) if is_one else None
        return self.lines[node]

    def _line(self, node: Node, depth: int) -> Line | None:
        size = self._standing(node)
        if size is not None:
            return Line(size, 0)
        if node.op in _SAME or (node.op == "cast" and node.inputs[0].shape.dtype in _COUNTERS):
            return self.line(node.inputs[0], depth + 1)
        if node.op not in ("add", "sub") or node.shape.dtype not in _COUNTERS:
            return None
        one, other = (self.line(i, depth + 1) for i in node.inputs)
        if one is None or other is None:
            return None
        sign = 1 if node.op == "add" else -1
        return Line(one.first + sign * other.first, one.step + sign * other.step)

    def _standing(self, node: Node) -> DimLike | None:
        """What is known before: a number, or a size."""
        while node in self.importer.outside:
            node = self.importer.outside[node]
        known = self.importer.as_array(node)
        if known is None:
            return element(node, 0) if node.shape.dtype.is_integer else None
        value = known.reshape(-1)[0]
        is_whole = known.dtype.kind in "iu" or (known.dtype.kind == "f" and value % 1 == 0)
        return int(value) if is_whole else None

    def conditions(self, node: Node) -> list[Counted] | None:
        """What must hold for `node` to hold, where all of it is counted."""
        found: dict[Counted, None] = {}
        seen, todo = set[Node](), [node]
        while todo:
            each = todo.pop()
            known = None if each in seen else self.importer.as_array(each)
            if each in seen or (known is not None and known.all()):
                continue
            seen.add(each)
            if each.op == "logical_and" or each.op in _SAME:
                todo += each.inputs
                continue
            counted = self._compared(each) if known is None else None
            if counted is None:
                return None
            found[counted] = None
        return list(found)

    def _compared(self, node: Node) -> Counted | None:
        if node.op not in _ORDERS:
            return None
        low, high, or_equal = _ORDERS[node.op]
        lines = [self.line(i) for i in node.inputs]
        lesser, greater = lines[low], lines[high]
        if lesser is None or greater is None:
            return None
        dtype = node.inputs[0].shape.dtype
        if not (_is_held(lesser, dtype) and _is_held(greater, dtype)):
            return None
        return Counted(greater.first - lesser.first + or_equal, lesser.step - greater.step)


def _is_held(line: Line, dtype: DType) -> bool:
    """Is every number of it that decides a comparison what it is as this dtype? Floats hold sizes
    up to a bound: a named dim gets the range where they do. Larger steps may wrap around in i32."""
    if dtype is DType.I64 or (dtype is DType.I32 and abs(line.step) < 2):
        return True
    most = _WHOLE_UP_TO.get(dtype)
    if most is None or abs(line.step) > 1:
        return False
    require(line.first, most, "a size that is compared as a float")
    return provably_le(line.first, most) and provably_le(-most, line.first)


def steps_of(
    trip: DimLike | None, start: list[Counted] | None, goes_on: list[Counted] | None
) -> DimLike | None:
    """How many steps are made: at most `trip`, while all conditions hold; None where only data can
    tell. What is asked before the first step is asked in each."""
    if start is None or goes_on is None or any(c.step <= 0 for c in goes_on):
        return None
    asked = {c.distance for c in start}
    if not asked <= {c.before for c in goes_on}:
        return None
    counts = [c.count(c.before in asked) for c in goes_on]
    is_endless = isinstance(trip, int) and trip >= ENDLESS
    if trip is not None and not (is_endless and counts):
        counts.append(trip)
    return reduce(dim_min, counts) if counts else None


def counters(
    importer: Importer,
    inputs: Sequence[Node],
    carried: Sequence[Node],
    results: Sequence[Node],
    first_number: int = 0,
) -> dict[Node, Line | None]:
    """The inputs of a body that are lines: the number of the step, which comes first, then of what
    is carried what no step changes and what every step adds a constant to."""
    found: dict[Node, Line | None] = {inputs[0]: Line(first_number, 1)}
    outside = Reading(importer)
    for given, start, result in zip(inputs[1:], carried, results):
        by, first = _increment(importer, given, result), outside.line(start)
        found[given] = None if by is None or first is None else Line(first.first, by)
    return found


def _increment(importer: Importer, given: Node, result: Node) -> int | None:
    """What a step adds to a carried value, where that is a constant: result = 1·given + constant,
    a line over the given value."""
    if result is given:
        return 0
    line = Reading(importer, {given: Line(0, 1)}).line(result)
    return line.first if line is not None and line.step == 1 and type(line.first) is int else None
