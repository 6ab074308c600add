"""Kernel deduplication: regions that differ only in scalar constants become equal.

A region inlines constants of one element into its code. Where regions are equal but for such
scalars, as the layers of a model with a learned scale each, the scalars that differ become
operands: the bodies are then equal, and a backend compiles them once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.core.attrs import key
from rlx.ir.mir import Graph, Node, users_of
from rlx.ops.op import Kind
from rlx.passes.context import Context

ARITHMETIC = frozenset({"add", "sub", "mul"})
"""Ops that a loaded scalar does not make slower: others are strength-reduced for some constants, as
a division by a power of two is."""


def dedup_kernels(graph: Graph, ctx: Context) -> Graph:
    """The graph with the scalars that differ between equal regions lifted to operands."""
    if not ctx.target.jit_compiles:
        return graph
    groups: dict[object, list[tuple[Node, list[Node]]]] = {}
    for node in graph.order():
        if node.decl.kind is Kind.REGION:
            scalars = _scalars(node.attrs["body"])
            if scalars:
                groups.setdefault(_structure(node.attrs["body"]), []).append((node, scalars))
    lifted = {node: found for group in groups.values() for node, found in _different(group)}
    if not lifted:
        return graph
    return graph.rebuild(
        lambda new, n, inputs: _with_operands(new, n, inputs, lifted[n]) if n in lifted else None
    )


def _scalars(body: Graph) -> list[Node]:
    """The scalar constants of a body that may become operands, in order."""
    users = users_of(body.order())
    return [
        n
        for n in body.order()
        if n.op == "constant" and n.shape.num_elements == 1 and n.shape.dtype.is_float
        and all(u.op in ARITHMETIC for u in users[n])
        and n not in body.outputs
    ]  # fmt: skip


def _structure(body: Graph) -> object:
    """A key of the body's structure without extents and constants: kernels of other sizes often
    share their code as well."""
    number: dict[Node, int] = {}
    rows: list[object] = []
    for node in body.order():
        number[node] = len(number)
        kinds = tuple((s.dtype, len(s.dims)) for s in node.shapes)
        rows.append((node.op, tuple(number[i] for i in node.inputs), kinds))
    return tuple(rows), tuple(number[o] for o in body.outputs)


def _different(group: Sequence[tuple[Node, list[Node]]]) -> list[tuple[Node, list[Node]]]:
    """Each region with those of its scalars that differ within the group."""
    values = [[key(n.attrs["value"]) for n in scalars] for _, scalars in group]
    chosen = [i for i, same in enumerate(zip(*values)) if len(set(same)) > 1]
    return [(node, [scalars[i] for i in chosen]) for node, scalars in group] if chosen else []


def _with_operands(
    new: Graph, node: Node, inputs: tuple[Node, ...], scalars: Sequence[Node]
) -> Node:
    names = {n: f"v{len(inputs) + i}" for i, n in enumerate(scalars)}
    body = node.attrs["body"].rebuild(
        lambda made, n, _: made.input(names[n], n.shape) if n in names else None
    )
    given = [new.node(n.decl, (), n.attrs) for n in scalars]
    return new.node(node.decl, (*inputs, *given), {**node.attrs, "body": body})
