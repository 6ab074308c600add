"""Phase analysis: prologue (once per weights), steady state (every step) and epilogue (at the end).

What a node depends on, and what is asked for at the end, say which phase it is in. Where outputs
are asked for at the end (`FusionOptions.at_end`), what a step's outputs and the updates of states
need is SteadyState, and what only those outputs need is the Epilogue. Where none are named, the
Epilogue is the tail of sampling, top-k and peaks, with what only moves or casts their results.

Nodes carry their phase along as an origin, so that whatever passes make of an op is in the phase of
the op; what comes of both phases is SteadyState.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from rlx.core.attrs import is_symbolic
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import LATE, STEADY, Graph, Node, topological, users_of
from rlx.ir.states import chains_of, is_state_update
from rlx.ops.op import Kind

WEIGHTS_ALONE = "depends on weights alone"
SAMPLES = "samples, or moves what sampling gives, and nothing else needs it"
BOTH = "is one kernel with work of the step"
MARKS = {Phase.EPILOGUE: (LATE,), Phase.STEADY_STATE: (STEADY,), Phase.PROLOGUE: ()}


class HasOptions(Protocol):
    """A compile's context."""

    @property
    def at_end(self) -> Collection[str] | None: ...


def mark_phases(graph: Graph, ctx: HasOptions | None = None) -> Graph:
    """The graph with the phase of every node among its origins, where any is in the Epilogue, or
    may be by its op."""
    at_end, order = None if ctx is None else ctx.at_end, graph.order()
    if at_end is None:
        phases = derive_phases(order)
        if Phase.EPILOGUE not in phases.values():
            return graph
    else:
        phases = demanded_phases(graph, at_end)

    def copied(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
        made = new.copy(node, inputs)
        new.add_origins(made, (*node.origins, *MARKS[phases[node]]))
        return made

    return graph.rebuild(copied)


def mark_demanded(graph: Graph, at_end: Collection[str]) -> None:
    """Mark the nodes of a graph with their phases, where these outputs are asked for at the end."""
    mark_planned(graph, demanded_phases(graph, at_end))


def mark_planned(graph: Graph, phases: Mapping[Node, Phase]) -> None:
    """Mark the nodes of a planned graph with the phases of its plan."""
    for node, phase in phases.items():
        if not node.is_leaf and phase is not Phase.PROLOGUE:
            graph.add_origins(node, (LATE if phase is Phase.EPILOGUE else STEADY,))


def demanded_phases(graph: Graph, at_end: Collection[str]) -> dict[Node, Phase]:
    """The phase of every node, where these outputs are asked for at the end: it is SteadyState if a
    step needs it."""
    order = graph.order()
    varies, needed = _varying(order), set(topological(step_roots(graph, at_end)))
    needed |= {n for n in order if n.op == "item" and n.inputs[0] in needed}
    return {
        n: Phase.PROLOGUE if n.is_leaf or n not in varies
        else Phase.STEADY_STATE if n in needed else Phase.EPILOGUE
        for n in order
    }  # fmt: skip


def step_roots(graph: Graph, at_end: Collection[str]) -> dict[Node, str]:
    """What a step has to compute, and why: the outputs that it gives, updates of states, and what
    reads a state that the step overwrites."""
    pairs = zip(graph.output_names, graph.outputs)
    found = {o: f"the step's output {n!r} needs it" for n, o in pairs if n not in at_end}
    for chain in chains_of(graph.order()):
        name = chain.state.attrs["name"]
        update, reads = f"the state {name!r} needs it", f"the state {name!r} is overwritten then"
        found |= {v: found.get(v, update) for v in chain.versions[1:]}
        old = (reader for readers in chain.readers[:-1] for reader in readers)
        found |= {r: found.get(r, reads) for r in old}
    return found


def derive_phases(
    nodes: Sequence[Node], per_call: frozenset[Node] = frozenset()
) -> dict[Node, Phase]:
    """The phase of every node; `nodes` has inputs before users.

    Leaves are Prologue by definition. So is all that depends on neither an input nor a named dim.
    Epilogue is what is marked as such, or the tail of sampling-like ops, of what they became, and
    of what moves or casts their results; the rest is SteadyState, and so are the nodes `per_call`,
    whatever they depend on.
    """
    tail, varies = _tail(nodes), _varying(nodes, per_call)
    phases: dict[Node, Phase] = {}
    for node in nodes:
        phases[node] = _phase(node, node in varies, node in tail, phases)
    return phases


def _varying(nodes: Sequence[Node], per_call: frozenset[Node] = frozenset()) -> set[Node]:
    """What depends on a call, by an input or by a size."""
    varies: set[Node] = set()
    for node in nodes:
        is_given = node.is_given or node in per_call or _names_dims(node)
        if is_given or any(i in varies for i in node.inputs):
            varies.add(node)
    return varies


def _phase(node: Node, varies: bool, in_tail: bool, phases: dict[Node, Phase]) -> Phase:
    if node.is_leaf or not varies:
        return Phase.PROLOGUE
    if in_tail and (_is_origin(node) or _follows_epilogue(node, phases)):
        return Phase.EPILOGUE
    return Phase.STEADY_STATE


def _is_origin(node: Node) -> bool:
    """An item is there when its kernel has run, whoever reads it."""
    return node.op != "item" and (node.is_late or node.decl.is_epilogue)


def _follows_epilogue(node: Node, phases: dict[Node, Phase]) -> bool:
    return any(phases[i] is Phase.EPILOGUE for i in node.inputs)


def _tail(nodes: Sequence[Node]) -> set[Node]:
    """Nodes that are of the Epilogue, or move or cast values, and have nothing else downstream. The
    Epilogue runs when states have been updated, and may run again: it updates none, and reads no
    version that is overwritten."""
    users = users_of(nodes)
    reads_old = {r for c in chains_of(nodes) for each in c.readers[:-1] for r in each}
    tail: set[Node] = set()
    for node in reversed(nodes):
        may_end = not node.is_steady and (_is_origin(node) or _only_moves(node))
        may_end = may_end and node not in reads_old and not is_state_update(node)
        if may_end and all(u in tail for u in users[node]):
            tail.add(node)
    return tail


def _only_moves(node: Node) -> bool:
    """Does it only move or cast values?"""
    return is_view_kind(node) or node.op == "cast" or node.decl.kind is Kind.MOVEMENT


def is_view_kind(node: Node) -> bool:
    """Does the op only change the layout, whether or not the plan needs a copy for it?"""
    return node.op == "item" or node.decl.view_rule is not None or is_same_cast(node)


def is_same_cast(node: Node) -> bool:
    """A cast to the dtype it has already."""
    return node.op == "cast" and node.inputs[0].shape.dtype is node.shape.dtype


def _names_dims(node: Node) -> bool:
    """Is a size involved that only a call knows? A param's own dims come with the param."""
    if node.is_leaf:
        return False
    return any(map(is_symbolic, node.shapes)) or any(map(is_symbolic, node.attrs.values()))


# -- reasons --------------------------------------------------------------------------------------


def phase_reasons(lir: LirModule, nodes: Iterable[Node]) -> dict[Node, str]:
    """Why each of these nodes of a plan is in its phase."""
    plan, graph = lir.plan, lir.mir.graph
    names = plan.io.late(graph.output_names, plan.phases)
    late = [graph.output_names[i] for i in names]
    step, end = _first_roots(step_roots(graph, late)), _needed_at_end(graph, late)
    is_asked = plan.io.at_end is not None
    found: dict[Node, str] = {}
    for node in nodes:
        match plan.phases[node]:
            case Phase.PROLOGUE:
                found[node] = WEIGHTS_ALONE
            case Phase.STEADY_STATE:
                found[node] = step.get(node, BOTH)
            case Phase.EPILOGUE:
                name = end.get(node)
                asked = f"no step needs it, but {name!r} does, which is asked for at the end"
                found[node] = asked if is_asked and name else SAMPLES
    return found


def _first_roots(roots: Mapping[Node, str]) -> dict[Node, str]:
    """Each node that a root needs, with the reason of the first one that does."""
    found: dict[Node, str] = {}
    for root, why in roots.items():
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = why
                stack += node.inputs
    return found


def _needed_at_end(graph: Graph, late: Sequence[str]) -> dict[Node, str]:
    outputs = dict(zip(graph.output_names, graph.outputs))
    return _first_roots({outputs[name]: name for name in late})
