"""Phase analysis: prologue (once per weights), steady state (every call) and epilogue.

The source says which of its work is the Epilogue: sampling, top-k, peaks, and what only moves or
casts their results. Nodes carry that along as an origin, so that whatever passes make of an op is
in the phase of the op; what comes of both phases is SteadyState.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.core.attrs import is_symbolic
from rlx.ir.lir import Phase
from rlx.ir.mir import LATE, STEADY, Graph, Node, users_of
from rlx.ir.states import chains_of
from rlx.ops.op import Kind


def mark_phases(graph: Graph, _ctx: object = None) -> Graph:
    """The graph with the phase of every node among its origins, where any is in the Epilogue."""
    phases = derive_phases(graph.order())
    if Phase.EPILOGUE not in phases.values():
        return graph
    marks = {Phase.EPILOGUE: (LATE,), Phase.STEADY_STATE: (STEADY,), Phase.PROLOGUE: ()}

    def copied(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
        made = new.copy(node, inputs)
        new.add_origins(made, (*node.origins, *marks[phases[node]]))
        return made

    return graph.rebuild(copied)


def mark_planned(graph: Graph, phases: Mapping[Node, Phase]) -> None:
    """Mark the nodes of a planned graph with the phases of its plan."""
    for node, phase in phases.items():
        if not node.is_leaf and phase is not Phase.PROLOGUE:
            graph.add_origins(node, (LATE if phase is Phase.EPILOGUE else STEADY,))


def derive_phases(
    nodes: Sequence[Node], per_call: frozenset[Node] = frozenset()
) -> dict[Node, Phase]:
    """The phase of every node; `nodes` has inputs before users.

    Leaves are Prologue by definition. So is all that depends on neither an input nor a named dim.
    Epilogue is the tail of sampling-like ops, of what they became, and of what moves or casts
    their results; the rest is SteadyState, and so are the nodes `per_call`, whatever they depend
    on.
    """
    tail = _tail(nodes)
    phases: dict[Node, Phase] = {}
    varies: set[Node] = set()
    for node in nodes:
        is_given = node.is_given or node in per_call or _names_dims(node)
        if is_given or any(i in varies for i in node.inputs):
            varies.add(node)
        phases[node] = _phase(node, node in varies, node in tail, phases)
    return phases


def _phase(node: Node, varies: bool, in_tail: bool, phases: dict[Node, Phase]) -> Phase:
    if node.is_leaf or not varies:
        return Phase.PROLOGUE
    if in_tail and (_is_origin(node) or _follows_epilogue(node, phases)):
        return Phase.EPILOGUE
    return Phase.STEADY_STATE


def _is_origin(node: Node) -> bool:
    return node.is_late or node.decl.is_epilogue


def _follows_epilogue(node: Node, phases: dict[Node, Phase]) -> bool:
    return any(phases[i] is Phase.EPILOGUE for i in node.inputs)


def _tail(nodes: Sequence[Node]) -> set[Node]:
    """Nodes that are of the Epilogue, or move or cast values, and have nothing else downstream. The
    Epilogue may run again, when states have been updated: what reads them is no part of it."""
    users = users_of(nodes)
    reads_state = {r for chain in chains_of(nodes) for each in chain.readers for r in each}
    tail: set[Node] = set()
    for node in reversed(nodes):
        may_end = not node.is_steady and (_is_origin(node) or _only_moves(node))
        may_end = may_end and node not in reads_state
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
