"""Kernels in the words of a target: ops that it lacks are spelled out by their lowerings, at each
point of the index space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.expr import (
    Apply,
    Choose,
    Const,
    Expr,
    Exprs,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Size,
    Store,
)
from rlx.kernel.lower.loop import MAX_ROUNDS
from rlx.kernel.refusal import NotLowered
from rlx.ops.op import Kind

IsNative = Callable[[Apply], bool]


def decomposed(kernel: Kernel, is_native: IsNative) -> Kernel:
    """The same kernel in native ops only."""
    return rebuilt(kernel, lambda node, args, exprs: _spelled(node, args, exprs, is_native))


def rebuilt(kernel: Kernel, make: Callable[[Expr, list[Expr], Exprs], Expr]) -> Kernel:
    """The kernel with every expression made anew from its new arguments."""
    exprs = Exprs()
    new: dict[Expr, Expr] = {}
    for node in kernel.nodes:
        new[node] = make(node, [new[a] for a in node.args], exprs)
    stores = tuple(Store(s.result, s.at, new[s.value]) for s in kernel.stores)
    return replace(kernel, stores=stores)


def copied(node: Expr, args: Sequence[Expr], exprs: Exprs) -> Expr:
    """The same expression of other arguments."""
    match node:
        case Const():
            return exprs.const(node.value, node.dtype)
        case Size():
            return exprs.size(node.dim, node.dtype)
        case Index():
            return exprs.index(node.at)
        case Inside():
            return exprs.inside(node.at, node.low, node.high)
        case Load():
            if not args:
                return exprs.load(node.operand, node.at, node.dtype)
            number, stride, bound = node.operand, node.stride, node.bound
            return exprs.gather(number, node.at, node.dtype, args[0], stride, bound)
        case Apply():
            return exprs.apply(node.op, args, node.attrs, node.dtype)
        case Choose():
            return exprs.choose(args[0], args[1], args[2])
        case Reduce():
            return exprs.reduce(node.fold, node.axis, args[0])
        case _:
            raise NotLowered(f"{type(node).__name__} is no expression that can be copied")


def _spelled(node: Expr, args: list[Expr], exprs: Exprs, is_native: IsNative) -> Expr:
    if not isinstance(node, Apply) or is_native(node):
        return copied(node, args, exprs)
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
