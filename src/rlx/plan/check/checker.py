"""The plan verifier: checks a buffer plan by code that shares nothing with the planner.

It derives reads and writes of each step again, tracks the owner of every byte in shadow memory, and
reports which value would be clobbered where. A plan with symbolic dims is executed at several
sizes, and its buffers are proved disjoint for all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlx.core.attrs import is_symbolic
from rlx.core.dim import Dim, evaluate, symbols_of
from rlx.core.errors import Error, GraphError
from rlx.core.extent import is_capacity, is_measured
from rlx.core.layout import Layout
from rlx.ir.extents import measured_by, symbols_used
from rlx.ir.lir import BufferPlan, LirModule, Phase, Slot, Space
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind
from rlx.plan.check.claims import Facts, Fault, Finding, finding
from rlx.plan.check.shadow_run import check_memory
from rlx.plan.check.states import check_states, first_versions
from rlx.plan.check.symbolic import check_formulas
from rlx.plan.check.tables import check_tables

_MAX_SIZES_TRIED = 1024
_SOUND = "is sound"
"""In the memo of a module whose plan was checked."""


def check(lir: LirModule) -> list[Finding]:
    """Everything wrong with the plan; nothing if it is sound."""
    return check_plan(lir.mir.graph, lir.plan)


def check_plan(graph: Graph, plan: BufferPlan) -> list[Finding]:
    """The same of the plan of a graph inside another, whose inputs may have measured sizes."""
    facts = Facts.of(graph, plan)
    if foreign := [*check_tables(graph, facts)]:
        return list(dict.fromkeys(foreign))
    found = [*_check_schedule(facts), *_check_phases(facts), *_check_end(facts, graph)]
    broken = [*_check_kernels(facts), *_check_slots(facts), *_check_views(facts)]
    broken += [] if broken else check_states(facts)
    if not broken:
        found += _check_in_place(facts)
        found += check_memory(facts)
        found += check_formulas(facts)
    return list(dict.fromkeys([*found, *broken]))


def opened(lir: LirModule) -> BufferPlan:
    """The plan of a module, for what runs it: the one way from a plan to memory. What is wrong with
    it is an Error, whoever made it."""
    require_sound(lir)
    return lir.plan


def require_sound(lir: LirModule) -> None:
    """Raise an Error that lists what is wrong with the plan. A plan is frozen and its graph final,
    so that one check is enough."""
    if _SOUND not in lir.memo:
        require_sound_plan(lir.mir.graph, lir.plan)
        lir.memo[_SOUND] = True


def require_sound_plan(graph: Graph, plan: BufferPlan) -> None:
    """The same of the plan of a graph inside another."""
    found = check_plan(graph, plan)
    if found and all(f.kind is Fault.UNPROVEN for f in found):
        _require_sizes(graph)
    if found:
        shown = "\n  ".join(map(str, found[:10]))
        more = f"\n  and {len(found) - 10} more" if len(found) > 10 else ""
        raise Error(
            f"{graph.name}: the plan is not sound. Compile the model for another; where rlx alone "
            f"made this one, please report it with the model's .ir text.\n  {shown}{more}"
        )


def _require_sizes(graph: Graph) -> None:
    """Nothing can be proven of a plan with a size that may be negative: only the user can say
    that no such size is meant."""
    for node in graph.order():
        for dim in (d for shape in node.shapes for d in shape.dims if isinstance(d, Dim)):
            if dim.min is None or dim.min < 0:
                names = ", ".join(s.name for s in symbols_of([dim]))
                raise GraphError(
                    f"{node.label}: its size {dim} is negative for some values of {names}, so "
                    f"that no memory can be planned. {_bounds_hint(dim)}"
                )


def _bounds_hint(dim: Dim) -> str:
    symbols = symbols_of([dim])
    sizes = _sizes(dim, symbols[0].name) if len(symbols) == 1 else None
    if sizes is None:
        return "Give the dims a range in which it is not: Dim(name, min, max)."
    return f"State the range in which it is not: Dim({symbols[0].name!r}, {sizes})."


def _sizes(dim: Dim, name: str) -> str | None:
    """For which values of its symbol `dim` is a size, as far as is worth looking: the first run."""
    fits = [evaluate(dim, {name: n}) >= 0 for n in range(_MAX_SIZES_TRIED)]
    if True not in fits:
        return None
    least = fits.index(True)
    most = f", max={fits.index(False, least) - 1}" if False in fits[least:] else ""
    return f"min={least}{most}"


# -- the schedule ---------------------------------------------------------------------------------


def _check_schedule(facts: Facts) -> Iterator[Finding]:
    """Every kernel runs once, after its operands; every output is made."""
    for i, kernel in enumerate(facts.plan.schedule):
        if facts.step[kernel] != i:
            yield finding(
                Fault.DUPLICATE_SCHEDULE, kernel, f"runs at steps {facts.step[kernel]} and {i}"
            )
        for operand in kernel.inputs:
            made = facts.ready.get(operand)
            if made is None or made >= i:
                when = "is never made" if made is None else f"is made at step {made}"
                message = f"reads {operand.label} at step {i}, which {when}"
                yield finding(Fault.ORDER_VIOLATION, kernel, message)
    yield from _check_sizes(facts)
    for output in dict.fromkeys(facts.outputs):
        if output not in facts.ready:
            yield finding(Fault.OUTPUT_NOT_SCHEDULED, output, "is an output that no step makes")


def _check_sizes(facts: Facts) -> Iterator[Finding]:
    """A kernel runs when the sizes of what it reads and writes have been measured."""
    known = {s.name for s in facts.given}
    for i, kernel in enumerate(facts.plan.schedule):
        known.update(s.name for s in measured_by(kernel))
        used = (s for node in (*kernel.inputs, kernel) for s in symbols_used(node))
        for name in dict.fromkeys(s.name for s in used):
            if name not in known:
                message = f"uses the size {name} at step {i}, before it is measured"
                yield finding(Fault.ORDER_VIOLATION, kernel, message)


def _check_kernels(facts: Facts) -> Iterator[Finding]:
    known = {n for n in facts.nodes if not n.is_leaf and n.op != "item"}
    for kernel in facts.plan.schedule:
        if kernel not in known:
            yield finding(Fault.ORDER_VIOLATION, kernel, "is scheduled, but is no kernel")


def _check_phases(facts: Facts) -> Iterator[Finding]:
    """Phases never decrease, neither along edges nor along the schedule; Prologue needs no call."""
    phases = facts.plan.phases
    for node in facts.nodes:
        if node not in phases:
            yield finding(Fault.PHASE_VIOLATION, node, "has no phase")
        elif (phases[node] is Phase.PROLOGUE) and _needs_a_call(node):
            yield finding(Fault.PHASE_VIOLATION, node, "is PROLOGUE, but needs what a call gives")
        elif node.is_leaf and phases[node] is not Phase.PROLOGUE:
            yield finding(Fault.PHASE_VIOLATION, node, "is a leaf, but not PROLOGUE")
        elif any(phases.get(i, Phase.PROLOGUE) > phases[node] for i in node.inputs):
            yield finding(Fault.PHASE_VIOLATION, node, "is in an earlier phase than an operand")
        elif node.op == "item" and phases.get(node.inputs[0]) is not phases[node]:
            yield finding(Fault.PHASE_VIOLATION, node, "is in a later phase than its kernel")
    before = Phase.PROLOGUE
    for kernel in facts.plan.schedule:
        if phases.get(kernel, before) < before:
            yield finding(Fault.PHASE_VIOLATION, kernel, f"runs after {before.name} kernels")
        before = phases.get(kernel, before)


def _check_end(facts: Facts, graph: Graph) -> Iterator[Finding]:
    """A step updates all states, and computes the outputs that were not asked for at the end."""
    phases, at_end = facts.plan.phases, facts.plan.io.at_end
    outputs = zip(graph.output_names, graph.outputs)
    early = [] if at_end is None else [o for name, o in outputs if name not in at_end]
    for node in dict.fromkeys([*graph.updates, *early]):
        if phases.get(node) is Phase.EPILOGUE:
            yield finding(Fault.PHASE_VIOLATION, node, "is EPILOGUE, but a step has to compute it")
    for name in at_end or ():
        if name not in graph.output_names:
            yield Finding(Fault.PHASE_VIOLATION, name, "is asked for at the end, but no output")


def _needs_a_call(node: Node) -> bool:
    """Does a kernel or view read an input, or name a size that only a call gives?"""
    if node.is_leaf:
        return False
    named = any(map(is_symbolic, (*node.shapes, *node.attrs.values())))
    return named or any(i.is_given for i in node.inputs)


# -- slots, views, overwriting --------------------------------------------------------------------


def _check_slots(facts: Facts) -> Iterator[Finding]:
    """Every value has a slot of the right space, its own or its root's."""
    plan = facts.plan
    for node in facts.nodes:
        if node.has_items:
            yield from _check_items(facts, node)
        elif (node in plan.views) == (node in plan.assignments):
            yield finding(Fault.BAD_SLOT, node, "must have a slot or be a view, one of the two")
        elif node not in plan.views:
            yield from _check_space(plan, node, plan.assignments[node])
    yield from _check_outputs(facts)
    yield from _check_writers(facts)
    yield from _check_capacities(facts)


def _check_outputs(facts: Facts) -> Iterator[Finding]:
    """An output is all of a slot, in order, and no other output's."""
    plan, owner = facts.plan, dict[Node, Node]()
    for output in facts.outputs:
        if owner.setdefault(plan.root(output), output) is not output:
            yield finding(Fault.BAD_SLOT, output, "is an output in the slot of another")
        elif not _is_all_of_root(plan, output):
            yield finding(Fault.BAD_SLOT, output, "is an output, but not all of its slot, in order")


def _check_writers(facts: Facts) -> Iterator[Finding]:
    """What the Prologue writes lasts from call to call, all else for a call."""
    plan = facts.plan
    for kernel in plan.schedule:
        is_once = plan.phases.get(kernel) is Phase.PROLOGUE
        for value in facts.written(kernel):
            slot = plan.assignments.get(plan.root(value))
            if slot and slot.space is not Space.STATE and is_once != (slot.space is Space.WEIGHTS):
                yield finding(Fault.BAD_SLOT, value, f"is written into the {slot.space.value}")


def _check_capacities(facts: Facts) -> Iterator[Finding]:
    """A capacity is what bounds a size that a step measures, and determines offsets, not
    values: growing it changes no result."""
    for node in facts.nodes:
        dims = [d for shape in node.shapes for d in shape.dims]
        for name in (d.name for d in symbols_of(dims) if is_capacity(d.name)):
            yield finding(Fault.BAD_SLOT, node, f"its shape depends on the capacity {name}")


def _check_items(facts: Facts, node: Node) -> Iterator[Finding]:
    if len(facts.items.get(node, ())) != len(node.shapes):
        yield finding(Fault.BAD_SLOT, node, "has a result without an item to hold it")


def _check_space(plan: BufferPlan, node: Node, slot: Slot) -> Iterator[Finding]:
    if is_measured(slot.offset) or is_measured(slot.size) or is_measured(plan.arena_formula):
        yield finding(Fault.BAD_SLOT, node, "its slot is not known before the graph runs")
    per_call = node.op == "input" or plan.phases.get(node) is not Phase.PROLOGUE
    if slot.space is not Space.STATE and (slot.space is Space.ARENA) != per_call:
        yield finding(Fault.BAD_SLOT, node, f"does not belong into the {slot.space.value}")


def _check_views(facts: Facts) -> Iterator[Finding]:
    """A view has the layout that its op derives from its operand, or is a slice of a concat."""
    plan = facts.plan
    slices, versions = set[Node](), first_versions(facts)
    for node in facts.nodes:
        if node.op == "concat" and node not in facts.step:
            slices.update(node.inputs)
            yield from _check_assembled(plan, node)
    for node in (n for n in facts.nodes if n in plan.views):
        is_made = node in facts.step or node.op in ("item", "concat")
        if is_made and node not in slices and node not in versions:
            yield finding(Fault.BAD_VIEW, node, "is a kernel's result, but no slice of a concat")
        elif not is_made:
            yield from _check_alias(plan, node)


def _check_alias(plan: BufferPlan, node: Node) -> Iterator[Finding]:
    source, claimed = node.inputs[0], plan.views[node]
    rule = node.decl.view_rule
    if rule is not None:
        expected = rule(plan.layout(source), **node.attrs)
    else:
        same = node.op == "cast" and source.shape.dtype is node.shape.dtype
        expected = plan.layout(source) if same else None
    if expected is None or expected != claimed.layout or plan.root(source) is not claimed.root:
        yield finding(Fault.BAD_VIEW, node, f"is not {source.label} in place")


def _check_assembled(plan: BufferPlan, concat: Node) -> Iterator[Finding]:
    """Each operand must be its slice of the whole."""
    axis, start = concat.attrs["axis"], 0
    for operand in concat.inputs:
        view, length = plan.views.get(operand), operand.shape.dims[axis]
        expected = plan.layout(concat).sliced(axis, start, length)
        is_slice = view is not None and view.root is plan.root(concat) and view.layout == expected
        if not is_slice or concat.shape.is_measured:
            message = f"is not made, as {operand.label} is not written into it"
            yield finding(Fault.ORDER_VIOLATION, concat, message)
        start = start + length


def _check_in_place(facts: Facts) -> Iterator[Finding]:
    """A kernel may overwrite a whole dying buffer that it reads at the index it writes."""
    for kernel, operand in facts.plan.in_place.items():
        reason = _why_not_in_place(facts, kernel, operand)
        if reason:
            yield finding(
                Fault.BAD_IN_PLACE, kernel, f"may not overwrite {operand.label}: {reason}"
            )


def _why_not_in_place(facts: Facts, kernel: Node, operand: Node) -> str:
    plan, root = facts.plan, facts.plan.root(operand)
    if kernel not in facts.step or kernel in plan.views or operand not in kernel.inputs:
        return "it is no operand of a kernel with a slot"
    if not _computes_by_index(kernel):
        return "the kernel reads elements other than the one it writes"
    if root.is_leaf or plan.assignments[root].space is not Space.ARENA:
        return "it is a leaf or a weight"
    if facts.last_use.get(root) != facts.step[kernel]:
        return "it is used at another time"
    if plan.assignments[root].offset != plan.assignments[kernel].offset:
        return "it is at another offset"
    if root.shape.dtype.itemsize != kernel.shape.dtype.itemsize:
        return "its elements are of another size"
    is_same_index = all(
        i.shape.dims == kernel.shape.dims and _is_all_of_root(plan, i)
        for i in kernel.inputs
        if plan.root(i) is root
    )
    return "" if is_same_index else "it is read at other indices"


def _computes_by_index(kernel: Node) -> bool:
    if kernel.has_items:
        return False
    inner = kernel.attrs["body"].order() if kernel.op == "elementwise_region" else [kernel]
    return all(n.decl.kind in (Kind.ELEMENTWISE, Kind.LEAF) for n in inner)


def _is_all_of_root(plan: BufferPlan, node: Node) -> bool:
    layout, root = plan.layout(node), plan.root(node)
    plain = Layout.contiguous(layout.dims)
    steps = zip(layout.dims, layout.strides, plain.strides)
    in_order = all(d == 1 or s == p for d, s, p in steps)
    return in_order and layout.offset == 0 and node.shape.num_elements == root.shape.num_elements
