"""Kernels that differ in learned numbers alone become one.

A region carries constants of one element in its body, and so in its code. Where regions are equal
but for such numbers, as the layers of a model are whose scale was learned for each, those that
differ become operands: the bodies are then equal, and a backend writes their code once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.core.attrs import key
from rlx.ir.mir import Graph, Node, users_of
from rlx.ops.op import Kind
from rlx.passes.context import Context

ARITHMETIC = frozenset({"add", "sub", "mul"})
"""Ops to which a number is as good from memory: others are done otherwise for some numbers."""


def dedup_kernels(graph: Graph, ctx: Context) -> Graph:
    """The graph with the numbers as operands in which its regions differ."""
    if not ctx.target.jit_compiles:
        return graph
    forms: dict[object, list[tuple[Node, list[Node]]]] = {}
    for node in graph.order():
        if node.decl.kind is Kind.REGION:
            numbers = _numbers(node.attrs["body"])
            if numbers:
                forms.setdefault(_form(node.attrs["body"]), []).append((node, numbers))
    lifted = {node: found for group in forms.values() for node, found in _different(group)}
    if not lifted:
        return graph
    return graph.rebuild(
        lambda new, n, inputs: _with_operands(new, n, inputs, lifted[n]) if n in lifted else None
    )


def _numbers(body: Graph) -> list[Node]:
    """The constants of a body that may as well be operands, in order."""
    users = users_of(body.order())
    return [
        n
        for n in body.order()
        if n.op == "constant" and n.shape.num_elements == 1 and n.shape.dtype.is_float
        and all(u.op in ARITHMETIC for u in users[n])
        and n not in body.outputs
    ]  # fmt: skip


def _form(body: Graph) -> object:
    """What a body is but for extents and other numbers: kernels of other sizes often have the same
    code, too."""
    places: dict[Node, int] = {}
    rows: list[object] = []
    for node in body.order():
        places[node] = len(places)
        kinds = tuple((s.dtype, len(s.dims)) for s in node.shapes)
        rows.append((node.op, tuple(places[i] for i in node.inputs), kinds))
    return tuple(rows), tuple(places[o] for o in body.outputs)


def _different(group: Sequence[tuple[Node, list[Node]]]) -> list[tuple[Node, list[Node]]]:
    """Each region with those of its numbers that are not the same in all of them."""
    values = [[key(n.attrs["value"]) for n in numbers] for _, numbers in group]
    chosen = [i for i, same in enumerate(zip(*values)) if len(set(same)) > 1]
    return [(node, [numbers[i] for i in chosen]) for node, numbers in group] if chosen else []


def _with_operands(
    new: Graph, node: Node, inputs: tuple[Node, ...], numbers: Sequence[Node]
) -> Node:
    names = {n: f"v{len(inputs) + i}" for i, n in enumerate(numbers)}
    body = node.attrs["body"].rebuild(
        lambda made, n, _: made.input(names[n], n.shape) if n in names else None
    )
    given = [new.node(n.decl, (), n.attrs) for n in numbers]
    return new.node(node.decl, (*inputs, *given), {**node.attrs, "body": body})
