"""States in a plan: one slot for all versions, an update writes its rows and nothing else, and no
version is read once the next one is written.

Versions are followed here from the graph alone: the operand that an update gives with other
elements is its first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.ir.lir import Phase, Space
from rlx.ir.mir import Node
from rlx.plan.check.claims import Facts, Fault, Finding, finding


def check_states(facts: Facts) -> Iterator[Finding]:
    """What is wrong with states and their updates."""
    first = first_versions(facts)
    yield from _check_slots(facts, first)
    for node in facts.plan.written:
        if node not in first or node.is_leaf:
            yield finding(Fault.BAD_VIEW, node, "writes rows of a state, but is no update of one")
    for node in facts.nodes:
        if node in first and not node.is_leaf:
            yield from _check_version(facts, node, first[node])
    yield from _check_reads(facts, first)


def first_versions(facts: Facts) -> Mapping[Node, Node]:
    """Version → its state."""
    found: dict[Node, Node] = {}
    for node in facts.nodes:
        if node.op == "state":
            found[node] = node
        elif node.decl.is_update and node.inputs[0] in found:
            found[node] = found[node.inputs[0]]
    return found


def _check_slots(facts: Facts, first: Mapping[Node, Node]) -> Iterator[Finding]:
    """States have slots of their own, one behind the other; nothing else is in their space."""
    plan = facts.plan
    for node, slot in plan.assignments.items():
        if (slot.space is Space.STATE) != (node.op == "state"):
            yield finding(Fault.BAD_SLOT, node, f"does not belong into the {slot.space.value}")
    end: DimLike = 0
    for _, node in plan.io.states:
        slot = plan.assignments.get(node)
        if slot is None or slot.offset != end:
            yield finding(Fault.BAD_SLOT, node, "is a state that is not behind the one before it")
            return
        end = end + slot.size
    for node in plan.views:
        is_written = node in facts.step and plan.slot(node).space is Space.STATE
        if is_written and node not in first:
            yield finding(Fault.BAD_VIEW, node, "writes a state, but is no update of it")


def _check_version(facts: Facts, node: Node, state: Node) -> Iterator[Finding]:
    """An update runs, its value is the whole state, and what it writes are its rows: as many as
    its operand has, with the strides of the state, from the position it is given on."""
    plan, whole = facts.plan, Layout.contiguous(state.shape.dims)
    if node not in facts.step:
        yield finding(Fault.OUTPUT_NOT_SCHEDULED, node, "updates a state, but is in no step")
    view = plan.views.get(node)
    if view is None or view.root is not state or view.layout != whole:
        yield finding(Fault.BAD_VIEW, node, f"is a version of {state.label}, but not in its slot")
    rows = Layout(node.inputs[1].shape.dims, whole.strides)
    if plan.written.get(node) != rows:
        yield finding(Fault.BAD_VIEW, node, f"writes other elements of {state.label} than its rows")
    phase = plan.phases.get(node)
    if phase not in (None, Phase.STEADY_STATE):
        message = f"updates {state.label}, which a call does once, and is {phase.name}"
        yield finding(Fault.PHASE_VIOLATION, node, message)
    if plan.capacities:
        message = f"updates {state.label}, and the call may be run twice: {plan.capacities[0]}"
        yield finding(Fault.PHASE_VIOLATION, node, message)


def _check_reads(facts: Facts, first: Mapping[Node, Node]) -> Iterator[Finding]:
    """At each step, what is read of a state is the version that was written last."""
    plan, current = facts.plan, {state: state for state in first.values()}
    source = _sources(facts, first)
    for step, kernel in enumerate(plan.schedule):
        for operand in dict.fromkeys(kernel.inputs):
            yield from _stale(source, first, current, operand, f"is read at step {step}")
        if kernel in first:
            current[first[kernel]] = kernel
            yield from _self_read(source, first, kernel)
    for output in dict.fromkeys(facts.outputs):
        yield from _stale(source, first, current, output, "is returned")


def _self_read(
    source: Mapping[Node, Node], first: Mapping[Node, Node], kernel: Node
) -> Iterator[Finding]:
    """What an update writes, and from where, must not be in the state that it writes."""
    for operand in kernel.inputs[1:]:
        if operand in source and first[source[operand]] is first[kernel]:
            message = f"reads {operand.label} while it writes the same state"
            yield finding(Fault.READ_AFTER_OVERWRITE, kernel, message)


def _stale(
    source: Mapping[Node, Node],
    first: Mapping[Node, Node],
    current: Mapping[Node, Node],
    value: Node,
    what: str,
) -> Iterator[Finding]:
    version = source.get(value)
    if version is not None and current[first[version]] is not version:
        message = f"{what}, after {current[first[version]].label} has overwritten it"
        yield finding(Fault.READ_AFTER_OVERWRITE, value, message)


def _sources(facts: Facts, first: Mapping[Node, Node]) -> dict[Node, Node]:
    """Value → the version whose bytes it is: versions, and views of them that no step makes."""
    found: dict[Node, Node] = {}
    for node in facts.nodes:
        if node in first:
            found[node] = node
        elif node in facts.plan.views and node not in facts.step and node.inputs[0] in found:
            found[node] = found[node.inputs[0]]
    return found
