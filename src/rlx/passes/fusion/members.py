"""Fusion legality: the iteration space, row axes, anchor, reads and results of a growing region.

A merge is judged by these alone. `None`: the two groups have nothing to fuse, which is no loss; a
reason: they would fuse but for one condition.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.core.dim import DimLike
from rlx.core.errors import GraphError
from rlx.core.layout import Layout
from rlx.core.shape import broadcast
from rlx.ir.mir import Node
from rlx.ir.states import is_state_update
from rlx.ops.cost import operations_per_element
from rlx.ops.op import Kind
from rlx.passes.context import Context
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.groups import Groups, united

ANCHORS = (Kind.CONTRACTION, Kind.CONVOLUTION, Kind.ATTENTION, Kind.SPECIAL)
ROWS = (Kind.ROW, Kind.REDUCTION)
POINTWISE_ROW_OPS = {"batch_norm": 1, "fused_swiglu": 0, "rope": 0}
"""Row ops whose result at an index needs no other element of the row, and the first operand that
they read at other indices than they write."""
MAX_RESULTS = 8
"""Results of one kernel at most: each one is another store stream."""

Dims = tuple[DimLike, ...]


@dataclass(slots=True)
class Member:
    """A group, as far as merging goes."""

    dims: Dims
    """The iteration space of its kernel."""
    row: frozenset[int] | None
    """The axes of `dims` that are reduced over; None where it is pointwise."""
    anchor: int | None
    steps: int
    row_steps: int
    operations: int
    """Nominal, per element."""
    reads: set[int]
    """Values from outside, except inlined constants."""
    gathered: set[int]
    """Those of them read at other indices than are written: never computed inside."""
    closed: set[int]
    """Values inside of another rank than `dims`: nothing inside reads them."""
    results: set[int]
    """Values that others read, or the caller."""


@dataclass(frozen=True, slots=True)
class Union:
    """Two groups that may be one."""

    first: int
    second: int
    dims: Dims
    hidden: frozenset[int]
    """The results of the first that nothing else reads any more."""
    hides_all: bool


def is_inlined(node: Node) -> bool:
    """Is it a constant of one element, which a kernel carries in its code?"""
    return node.op == "constant" and node.shape.num_elements == 1


def row_axes(node: Node) -> frozenset[int] | None:
    """The axes a node reduces over; None where it has none."""
    rank = node.inputs[0].shape.rank
    if "axes" in node.attrs:
        return frozenset(node.attrs["axes"])
    if "axis" not in node.attrs:
        return None
    axis = node.attrs["axis"]
    if node.decl.reduces_trailing:
        return frozenset(range(axis, rank))
    return frozenset(range(rank)) if axis is None else frozenset({axis})


class Members:
    """The state of every group; none for a node that can be in no group."""

    def __init__(self, facts: Facts, ctx: Context, groups: Groups) -> None:
        self.facts, self.groups, self.ctx = facts, groups, ctx
        self.regions, self.limits = ctx.target.regions, ctx.limits
        self._state = [self._single(i, n) for i, n in enumerate(facts.order)]
        self._outside = [len(facts.users[n]) for n in facts.order]

    def has(self, group: int) -> bool:
        return self._state[group] is not None

    def of(self, group: int) -> Member:
        found = self._state[group]
        assert found is not None
        return found

    # -- single nodes ------------------------------------------------------------------------------

    def _single(self, number: int, node: Node) -> Member | None:
        if node not in self.facts.per_call or not self._is_groupable(node):
            return None
        row = row_axes(node) if node.decl.kind in ROWS else None
        dims = node.shape.dims if row is None else node.inputs[0].shape.dims
        anchor = number if node.decl.kind in ANCHORS else None
        reads = {self.groups.number[i] for i in node.inputs if not is_inlined(i)}
        gathered = {self.groups.number[i] for i in _gathered_operands(node)} & reads
        closed = {number} if node.shape.rank != len(dims) else set[int]()
        operations = operations_per_element(
            node.decl, [s for i in node.inputs for s in i.shapes], node.shapes, node.attrs
        )
        row_steps = 0 if row is None else 1
        return Member(
            dims, row, anchor, 1, row_steps, operations, reads, gathered, closed, {number}
        )

    def _is_groupable(self, node: Node) -> bool:
        if node.is_leaf or node.has_items or node.op == "item" or node.decl.is_epilogue:
            return False
        if node.decl.measures or is_state_update(node):
            return False
        kind = node.decl.kind
        if kind is Kind.ELEMENTWISE:
            return "elementwise" in self.regions
        if kind in ROWS:
            return "row" in self.regions and (node.op in POINTWISE_ROW_OPS or bool(row_axes(node)))
        if kind is Kind.MOVEMENT:
            return "movement" in self.regions and not self._is_in_place(node)
        return kind in ANCHORS and "epilogue" in self.regions

    def _is_in_place(self, node: Node) -> bool:
        """A view costs nothing, so fusing it gains nothing."""
        if not node.inputs:
            return False
        layout = Layout.contiguous(node.inputs[0].shape.dims)
        return self.ctx.target.view(node, layout) is not None

    # -- pairs of groups ---------------------------------------------------------------------------

    def judge(self, first: int, second: int) -> Union | str | None:
        """May `second`, which reads `first`, be one group with it? None: nothing to fuse."""
        a, b = self._state[first], self._state[second]
        if a is None or b is None or not self._may_follow(first, a, b):
            return None
        dims = _common_dims(a, b)
        if dims is None:
            return None
        hidden = frozenset(r for r in a.results if self._is_hidden(r, second))
        results = (a.results - hidden) | b.results
        row = a.row if b.row is None else b.row
        if not all(self._fits(r, dims, row, a.closed | b.closed) for r in results):
            return None
        if self._is_late(first) != self._is_late(second):
            return reasons.OTHER_PHASE
        union = Union(first, second, dims, hidden, len(hidden) == len(a.results))
        return self._why_too_large(a, b, len(results), first) or union

    def _is_late(self, group: int) -> bool:
        """Is it of the Epilogue? All of a group is, or none of it."""
        return self.facts.order[self.groups.members[group][0]] in self.facts.late

    def _may_follow(self, first: int, a: Member, b: Member) -> bool:
        """One anchor at most, no row around it, and nothing read before it is complete."""
        has_anchor = a.anchor is not None or b.anchor is not None
        if a.anchor is not None and b.anchor is not None:
            return False
        if has_anchor and (a.row is not None or b.row is not None):
            return False
        if a.row is not None and b.row is not None and a.row != b.row:
            return False
        if not a.closed.isdisjoint(b.reads):
            return False
        inner = self.groups.members[first]
        if len(inner) < len(b.gathered):
            return b.gathered.isdisjoint(inner)
        return not any(self.groups.find(i) == first for i in b.gathered)

    def _is_hidden(self, number: int, second: int) -> bool:
        """Does only `second` still read the value, of those outside its own group?"""
        node = self.facts.order[number]
        if self.facts.is_output(node):
            return False
        return self._outside[number] == self._readers(number, second)

    def _readers(self, number: int, group: int) -> int:
        """How many nodes of `group` read the value."""
        node, members = self.facts.order[number], self.groups.members[group]
        users = self.facts.users[node]
        if len(members) < len(users):
            return sum(node in self.facts.order[m].inputs for m in members)
        return sum(self.groups.group_of(u) == group for u in users)

    def _fits(self, number: int, dims: Dims, row: frozenset[int] | None, closed: set[int]) -> bool:
        """Can the kernel write the value? Once per index, or once per row."""
        given = self.facts.order[number].shape.dims
        if given == dims or number in closed:
            return True
        return row is not None and given == tuple(1 if i in row else d for i, d in enumerate(dims))

    def _why_too_large(self, a: Member, b: Member, results: int, first: int) -> str | None:
        limits = self.limits
        if results > 1 and "multi_result" not in self.regions:
            return reasons.SEVERAL_RESULTS
        if results > MAX_RESULTS:
            return reasons.TOO_MANY_RESULTS
        counts = (
            (limits.max_elementwise_steps, a.steps + b.steps, reasons.TOO_MANY_STEPS),
            (limits.max_row_steps, a.row_steps + b.row_steps, reasons.TOO_MANY_ROW_STEPS),
            (limits.max_operations, a.operations + b.operations, reasons.TOO_MANY_OPERATIONS),
        )
        for most, count, reason in counts:
            if most is not None and count > most:
                return reason
        most = limits.max_elementwise_inputs
        if most is None:
            return None
        outer = a.reads | {i for i in b.reads if self.groups.find(i) != first}
        return reasons.TOO_MANY_INPUTS if len(outer) > most else None

    # -- merging -----------------------------------------------------------------------------------

    def merged(self, union: Union) -> Member:
        """What the two become. Asked once, right before the groups themselves are merged."""
        a, b = self.of(union.first), self.of(union.second)
        for result in a.results:
            self._outside[result] -= self._readers(result, union.second)
        return Member(
            dims=union.dims,
            row=a.row if b.row is None else b.row,
            anchor=a.anchor if b.anchor is None else b.anchor,
            steps=a.steps + b.steps,
            row_steps=a.row_steps + b.row_steps,
            operations=a.operations + b.operations,
            reads=self._united_reads(union, a, b),
            gathered=united(a.gathered, b.gathered),
            closed=united(a.closed, b.closed),
            results=(a.results - union.hidden) | b.results,
        )

    def place(self, group: int, merged: Member) -> None:
        self._state[group] = merged

    def _united_reads(self, union: Union, a: Member, b: Member) -> set[int]:
        """The reads of both but for what is inside now; the smaller set is merged into the
        larger."""
        inner = self.groups.members[union.first]
        if len(inner) <= len(self.groups.members[union.second]):
            b.reads.difference_update(inner)
            return united(a.reads, b.reads)
        outer = {i for i in b.reads if self.groups.find(i) != union.first}
        return united(a.reads, outer)


def _gathered_operands(node: Node) -> tuple[Node, ...]:
    """Operands that a node reads at other indices than it writes."""
    kind = node.decl.kind
    if kind is Kind.MOVEMENT or kind in ANCHORS:
        return node.inputs
    if node.op in POINTWISE_ROW_OPS:
        return node.inputs[POINTWISE_ROW_OPS[node.op] :]
    if kind is Kind.ELEMENTWISE:
        return tuple(i for i in node.inputs if not _broadcasts_to(i.shape.dims, node.shape.dims))
    return ()


def _common_dims(a: Member, b: Member) -> Dims | None:
    """The common iteration space; None where there is none."""
    if a.dims == b.dims:
        return a.dims
    if a.row is not None:
        return a.dims if b.row is None and _broadcasts_to(b.dims, a.dims) else None
    return b.dims if a.anchor is None and _broadcasts_to(a.dims, b.dims) else None


def _broadcasts_to(small: Dims, large: Dims) -> bool:
    """Is `small` broadcast to exactly `large`?"""
    if small == large:
        return True
    try:
        return broadcast(small, large) == large
    except GraphError:
        return False
