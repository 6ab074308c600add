"""The choices of a buffer plan as reversible decisions: views, in-place reuse, hoisting, splitting.

Each choice is read off the finished plan: which views stay in place, what is written over what,
what is hoisted into the prologue. The planner records nothing for it. Where a caller forces a
verdict, the plan is made, its choices are named, and it is made again with those reversed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rlx.core.layout import Layout
from rlx.core.units import size_text, time_text
from rlx.cost.decision import Decision
from rlx.cost.layout_cost import NO_COST, LayoutCost, inner_results, layout_cost
from rlx.cost.stable_id import Identities
from rlx.ir.lir import BufferPlan, Phase
from rlx.ir.mir import Node, users_of
from rlx.ir.outline import place_of
from rlx.ops.op import Kind
from rlx.plan.phases import is_view_kind

if TYPE_CHECKING:
    from rlx.cost.target import Target
    from rlx.cost.terms import Terms

HOIST, COPY, OVERWRITE, INTO_CONCAT, SPLIT = (
    "hoist", "copy_view", "overwrite", "write_into_concat", "split_work",
)  # fmt: skip
REVERSIBLE = (HOIST, COPY, OVERWRITE, INTO_CONCAT, SPLIT)
"""What `force` may reverse in a plan: the first part of a decision's id."""
MAX_FOLLOWERS = 256
"""Dependent kernels that are counted with one that is no longer hoisted."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of a plan that `force` reverses."""

    per_call: frozenset[Node] = frozenset()
    """Kernels that depend on weights alone and yet run on every call."""
    copied: frozenset[Node] = frozenset()
    """Views that are materialised."""
    not_in_place: frozenset[Node] = frozenset()
    """Kernels that overwrite no operand."""
    copied_concats: frozenset[Node] = frozenset()
    """Concats that copy their operands."""
    split: Mapping[Node, bool] = field(default_factory=dict[Node, bool])
    """Kernels that are parallelised (True) or run on one worker (False), whatever their size."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision of a plan, and the node that it is about."""

    node: Node
    decision: Decision


def choices_of(
    plan: BufferPlan, target: Target, terms: Terms, force: Mapping[str, bool], usual: BufferPlan
) -> list[Choice]:
    """The choices of `plan`, with ids. `usual` is the plan without `force`: its choices are named
    first, so that reversing one renames none."""
    names = Identities()
    found: dict[tuple[str, Node], Choice] = {}
    for each in (usual, plan):
        for node, made in _choices(each, target, terms):
            if (made.what, node) not in found:
                id_ = names.id_of(made.what, (node,), lambda _: False)
                named = replace(made, id=id_, where=(place_of(node),))
                found[made.what, node] = Choice(node, named)
    return [_forced(c, force) for c in found.values()]


def reversed_choices(given: Iterable[Choice], force: Mapping[str, bool]) -> Choices:
    """The choices that `force` reverses."""
    by: dict[str, list[Node]] = {what: [] for what in REVERSIBLE}
    split: dict[Node, bool] = {}
    for choice in given:
        made = choice.decision
        if made.id not in force or not made.is_reversible:
            continue
        if made.what == SPLIT:
            split[choice.node] = force[made.id]
        elif force[made.id] is (made.what == COPY):
            by[made.what].append(choice.node)
    per_call, copied, not_in_place, copied_concats = (
        frozenset(by[what]) for what in REVERSIBLE[:4]
    )
    return Choices(per_call, copied, not_in_place, copied_concats, split)


def names_plan(id_: str) -> bool:
    """Is it the id of a reversible choice of a plan?"""
    return id_.partition(":")[0] in REVERSIBLE


def _forced(choice: Choice, force: Mapping[str, bool]) -> Choice:
    made = choice.decision
    if made.id not in force or not made.is_reversible:
        return choice
    return replace(choice, decision=replace(made, verdict=force[made.id], reason="forced"))


# -- reading a plan -------------------------------------------------------------------------------


def _choices(plan: BufferPlan, target: Target, terms: Terms) -> Iterator[tuple[Node, Decision]]:
    users = users_of(list(plan.phases))
    steps = set(plan.schedule)
    for node, phase in plan.phases.items():
        if node.is_leaf or node.op == "item":
            continue
        if node in plan.views:
            yield node, _view(node, plan, terms, [u for u in users[node] if u in steps], steps)
        elif node.op == "concat" and node not in steps:
            yield node, _assembled(node, terms)
        elif is_view_kind(node) and phase is not Phase.PROLOGUE:
            yield node, _copied(node, plan, target)
        if node in steps and phase is Phase.PROLOGUE:
            yield node, _hoisted(node, plan, terms, users)
        if node in plan.in_place:
            yield node, _overwritten(node, plan, terms)
        if node in steps and phase is not Phase.PROLOGUE and node.decl.kind is not Kind.CONTROL:
            yield node, Decision("", SPLIT, (), False, "", kind="schedule")


def _view(
    node: Node, plan: BufferPlan, terms: Terms, readers: Sequence[Node], steps: set[Node]
) -> Decision:
    """A value stored in another's buffer."""
    if node in plan.written:
        return _updated(node, terms)
    if node in steps:
        reason = "its kernel writes directly into its slice of the concat"
        return Decision("", "slice_of_concat", (), True, reason, is_reversible=False, kind="layout")
    size = terms.bytes_of(node.shape)
    if plan.phases[node] is Phase.PROLOGUE or plan.layout(node).is_contiguous:
        reason = "a view of the same bytes in the same order: no copy"
        if not plan.layout(node).is_contiguous:
            reason = "a strided view, read once when weights are set: no copy"
        return Decision("", "alias", (), True, reason, is_reversible=False, kind="layout")
    made = _copy(node, plan, terms)
    more = sum((_of_reader(r, node, plan, terms) for r in readers), NO_COST)
    machine, dtype = terms.target.machine, node.shape.dtype
    cost_ns = _ns(terms, 1, 2 * size, 2 * size) + made.ns(machine, 2 * size, dtype)
    more_ns = more.ns(machine, size, dtype)
    reason = f"a contiguous copy would cost {time_text(cost_ns)}"
    if abs(more_ns) >= 1:
        change = "slow its readers down by" if more_ns > 0 else "save its readers"
        reason += f" and {change} {time_text(abs(more_ns))}"
    else:
        reason = f"its readers read it strided; {reason} and save nothing"
    if cost_ns + more_ns < 0:
        reason += "; the planner reads views in place all the same: force the copy to try it"
    return Decision("", COPY, (), False, reason, -cost_ns - more_ns, -2 * size, -1, kind="layout")


def _copy(node: Node, plan: BufferPlan, terms: Terms) -> LayoutCost:
    """What materialising a view costs beyond its bytes, given its base's layout."""
    base = plan.layout(node.inputs[0])
    return layout_cost(node, [base], [Layout.contiguous(node.shape.dims)], terms)


def _of_reader(reader: Node, node: Node, plan: BufferPlan, terms: Terms) -> LayoutCost:
    """What a reader's cost changes by where the view is materialised."""
    if reader.has_items:
        return NO_COST
    results = inner_results(reader, [plan.layout(reader)])
    now = [plan.layout(i) for i in reader.inputs]
    plain = Layout.contiguous(node.shape.dims)
    then = [plain if i is node else layout for i, layout in zip(reader.inputs, now)]
    return layout_cost(reader, then, results, terms) - layout_cost(reader, now, results, terms)


def _assembled(node: Node, terms: Terms) -> Decision:
    profile = terms.kernel(node)
    traffic = profile.device_traffic_bytes
    reason = "every operand is a contiguous slice, written there by its producer"
    gain_ns = _ns(terms, 1, traffic, traffic)
    return Decision("", INTO_CONCAT, (), True, reason, gain_ns, traffic, 1, kind="layout")


def _copied(node: Node, plan: BufferPlan, target: Target) -> Decision:
    """A movement that runs as a copy kernel."""
    layout = target.view(node, plan.layout(node.inputs[0]))
    if node.op == "cast":
        reason = "a cast to a dtype of another size or encoding is computed"
    elif layout is None:
        reason = f"{target.name} kernels cannot read this view in place: it is copied"
    else:
        reason = "an output is contiguous, in a buffer of its own: it is copied"
    return Decision("", "alias", (), False, reason, is_reversible=False, kind="layout")


def _hoisted(
    node: Node, plan: BufferPlan, terms: Terms, users: Mapping[Node, list[Node]]
) -> Decision:
    """A kernel of the prologue, with its dependents there."""
    followers = _followers(node, plan, users)
    profiles = [terms.kernel(n) for n in followers if not is_view_kind(n) or n is node]
    traffic = sum(p.device_traffic_bytes for p in profiles)
    near = max(p.device_traffic_bytes for p in profiles)
    gain_ns = _ns(terms, len(profiles), traffic, near)
    reason = "depends on weights only: runs once, when they are set, not on every call"
    return Decision("", HOIST, (), True, reason, gain_ns, traffic, len(profiles), kind="phase")


def _followers(node: Node, plan: BufferPlan, users: Mapping[Node, list[Node]]) -> list[Node]:
    """The node and its transitive users in the prologue."""
    found, stack = {node: None}, [node]
    while stack and len(found) < MAX_FOLLOWERS:
        fresh = [u for u in users[stack.pop()] if plan.phases[u] is Phase.PROLOGUE]
        stack += [u for u in fresh if u not in found]
        found |= dict.fromkeys(fresh)
    return list(found)


def _overwritten(node: Node, plan: BufferPlan, terms: Terms) -> Decision:
    over, size = plan.in_place[node], terms.bytes_of(node.shape)
    reason = f"written in place over {over.label}, whose last use this is"
    return Decision("", OVERWRITE, (), True, reason, 0.0, size, 0, kind="in_place")


def _updated(node: Node, terms: Terms) -> Decision:
    """The next version of a state. A copy of it would be read and written whole."""
    size, written = terms.bytes_of(node.shape), terms.bytes_of(node.inputs[1].shape)
    saved = 2 * max(0, size - written)
    reason = f"written in place: {size_text(written)} of the state's {size_text(size)}"
    gain_ns = _ns(terms, 0, saved, saved)
    return Decision(
        "", "update_state", (), True, reason, gain_ns, saved, is_reversible=False, kind="in_place"
    )


def _ns(terms: Terms, launches: int, traffic: int, near: int) -> float:
    """The time of memory-bound kernels, at the bandwidth of the cache that holds their bytes."""
    gate = terms.target.gate
    return launches * gate.dispatch_ns + traffic / terms.target.machine.memory_gb_s(near)
