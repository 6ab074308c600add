"""Helpers of the patterns: operands, and when a value may become internal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rlx.ir.mir import Node
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss

Pattern = Callable[[Facts], Iterator[Match | Miss]]


def at_each(op: str, look: Callable[[Node, Facts], Found]) -> Pattern:
    """A pattern that looks at every `op` node that runs per call, in order."""

    def find(facts: Facts) -> Iterator[Match | Miss]:
        for node in facts.order:
            if node.op == op and node in facts.per_call:
                found = look(node, facts)
                if found is not None:
                    yield found

    return find


def is_linear(node: Node) -> bool:
    """A product of rows with a matrix: the right operand has rank 2."""
    if node.op != "matmul":
        return False
    x, w = node.inputs
    return x.shape.rank >= 2 and w.shape.rank == 2


def other_operand(node: Node, one: Node) -> Node | None:
    """The operand of a binary node beside `one`; None where both are `one`."""
    a, b = node.inputs
    if a is b:
        return None
    return b if a is one else a


def why_escapes(inner: Iterable[Node], inside: Iterable[Node], facts: Facts) -> str | None:
    """Why one of `inner` is read outside of the nodes `inside`; None if none is."""
    held = tuple(inside)
    for node in inner:
        if facts.is_output(node):
            return reasons.IS_OUTPUT
        if not facts.is_inner(node, held):
            return reasons.HAS_OTHER_READERS
    return None


def only_last_differs(node: Node, rank: int) -> bool:
    """Are all dims but the last 1, so that the value is one vector along the last axis?"""
    dims = node.shape.dims
    return 0 < len(dims) <= rank and all(d == 1 for d in dims[:-1])


def flat(node: Node) -> Node:
    """A value whose dims but one are 1, as a vector."""
    dims = node.shape.dims
    if len(dims) == 1:
        return node
    return node.graph.node("reshape", (node,), {"dims": (node.shape.num_elements,)})


def concatenated(nodes: Iterable[Node], axis: int) -> Node:
    """`nodes` concatenated; for weights this runs in the prologue, once per parameters. Transposed
    ones are concatenated as they lie in memory, so that their rows stay contiguous."""
    given = tuple(nodes)
    graph, perm = given[0].graph, given[0].attrs.get("perm")
    if perm is None or any(n.op != "transpose" or n.attrs["perm"] != perm for n in given):
        return graph.node("concat", given, {"axis": axis})
    rows = graph.node("concat", tuple(n.inputs[0] for n in given), {"axis": perm[axis]})
    return graph.node("transpose", (rows,), {"perm": perm})
