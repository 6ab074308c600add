"""Kernels in the ops of a target: those that it lacks are decomposed by their lowerings, at each
point of the index space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.expr import Apply, Expr, Exprs, Kernel
from rlx.kernel.lower.loop import MAX_ROUNDS
from rlx.kernel.refusal import NotLowered
from rlx.kernel.rewrite import rewritten
from rlx.ops.op import Kind

IsNative = Callable[[Apply], bool]


def decomposed(kernel: Kernel, is_native: IsNative) -> Kernel:
    """The same kernel in native ops only."""
    return rewritten(kernel, lambda node, args, exprs: _in_native(node, args, exprs, is_native))


def _in_native(node: Expr, args: list[Expr], exprs: Exprs, is_native: IsNative) -> Expr | None:
    if not isinstance(node, Apply) or is_native(node):
        return None
    graph = _scalar_graph(node, is_native)
    made: dict[Node, Expr] = dict(zip(graph.inputs, args, strict=True))
    for inner in graph.order():
        if inner not in made:
            made[inner] = _expr(inner, [made[i] for i in inner.inputs], exprs)
    return made[graph.outputs[0]]


def _expr(node: Node, args: list[Expr], exprs: Exprs) -> Expr:
    """A node of rank 0."""
    if node.op == "constant":
        value = node.attrs["value"].array.reshape(())
        return exprs.const(value, node.shape.dtype)
    if node.decl.kind is Kind.ELEMENTWISE:
        return exprs.apply(node.decl, args, dict(node.attrs), node.shape.dtype)
    if node.decl.kind is Kind.MOVEMENT and len(args) == 1:
        return args[0]
    raise NotLowered(f"{node.label}: its lowering is not made of elementwise ops")


def _scalar_graph(node: Apply, is_native: IsNative) -> Graph:
    """The op on numbers, lowered until every op is native."""
    graph = Graph(node.op.name)
    graph.traces_lines = False
    inputs = [graph.input(f"v{i}", Shape((), a.dtype)) for i, a in enumerate(node.args)]
    graph.set_outputs([graph.node(node.op, inputs, node.attrs)])
    for _ in range(MAX_ROUNDS):
        todo = {n for n in graph.order() if not _is_done(n, is_native)}
        if not todo:
            return graph
        graph = _lowered_once(graph, todo)
    raise NotLowered(f"{node.op.name}: lowering does not end")


def _is_done(node: Node, is_native: IsNative) -> bool:
    if node.decl.kind is not Kind.ELEMENTWISE:
        return True
    args = tuple(Expr(i.shape.dtype) for i in node.inputs)
    return is_native(Apply(node.shape.dtype, args, op=node.decl, attrs=dict(node.attrs)))


def _lowered_once(graph: Graph, todo: set[Node]) -> Graph:
    new = graph.successor()
    mapped: dict[Node, Any] = {}
    for node in graph.order():
        inputs = [mapped[i] for i in node.inputs]
        if node in todo:
            if node.decl.lower is None:
                why = f"{node.op} has no lowering ({node.decl.why_no_lowering})"
                raise NotLowered(f"{node.label}: the target lacks {node.op}, and {why}")
            mapped[node] = node.decl.lowered(inputs, node.attrs)[0]
        else:
            mapped[node] = new.copy(node, tuple(inputs))
    new.set_outputs([mapped[o] for o in graph.outputs])
    return new
