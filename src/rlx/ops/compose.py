"""Helpers to define an op by a decomposition into others, over nodes, arrays or shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, Shape
from rlx.ops import op as table
from rlx.ops.cost import graph_work
from rlx.ops.graphs import body_graph
from rlx.ops.op import Kind, Op

T = TypeVar("T")


def dims_of(x: Any) -> tuple[DimLike, ...]:
    """The dims of a node, an array or a shape."""
    shape = x if isinstance(x, Shape) else x.shape
    return shape.dims if isinstance(shape, Shape) else tuple(shape)


def dtype_of(x: Any) -> DType:
    """The dtype of a node, an array or a shape."""
    return DType.of(x.dtype)


def shape_of(x: Any) -> Shape:
    """The shape of a node, an array or a shape."""
    return Shape(dims_of(x), dtype_of(x))


def broadcasts_to(dims: Sequence[DimLike], target: Sequence[DimLike]) -> bool:
    """Does a value of `dims` broadcast to `target` without changing it?"""
    lead = len(target) - len(dims)
    return lead >= 0 and all(d in (1, t) for d, t in zip(dims, target[lead:]))


def check_broadcasts(what: str, dims: Sequence[DimLike], target: Sequence[DimLike]) -> None:
    """An error that tells the first two sizes which differ, where `dims` do not broadcast to
    `target`."""
    if broadcasts_to(dims, target):
        return
    lead = len(target) - len(dims)
    pairs = [(d, t) for d, t in zip(dims, target[max(0, lead) :]) if d not in (1, t)]
    raise DimsDiffer(what, *pairs[0], may_repeat=True) if lead >= 0 else GraphError(what)


def nullary(x: Any, name: str, **attrs: Any) -> Any:
    """The op without operands called `name`, made where `x` is: in its graph, or as an array.
    A graph is where it is itself."""
    found = table.lookup(name)
    if isinstance(x, Shape):
        return found.shaped((), attrs)
    graph = x if hasattr(x, "set_outputs") else getattr(x, "graph", None)
    return found.run([], attrs) if graph is None else found.build(graph, (), attrs)


def filled(x: Any, value: Any, dims: Sequence[DimLike]) -> Any:
    """`value` in the dtype of `x` at every place of `dims`, made where `x` is."""
    one = np.asarray(value).astype(dtype_of(x).numpy)
    graph = getattr(x, "graph", None)
    return table.lookup("expand")(one if graph is None else graph.constant(one), dims=tuple(dims))


def count_of(x: Any, axes: Sequence[int]) -> Any:
    """How many elements `axes` of `x` have: a number, or its node where it is not known yet."""
    count = product(dims_of(x)[a] for a in axes)
    if not isinstance(count, Dim):
        return float(count)
    return nullary(x, "extent", dim=count, dtype=dtype_of(x))


def composed(signature: str, *, kind: Kind, **facts: Any) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op whose meaning, shape rule and lowering are one decomposition into other ops.

    So what is fused and what is not agree bit for bit: also half floats round at every step.
    """

    def declare(meaning: Callable[..., Any]) -> Op:
        counts = {"flops": _of_graph(meaning, graph_flops), "cost": _of_graph(meaning, graph_work)}
        made = table.op(signature, kind=kind, shape=meaning, is_exact=True, **counts, **facts)(
            meaning
        )
        made.lowering(meaning)
        return made

    return declare


def _of_graph(meaning: Callable[..., Any], count: Callable[[Any], T]) -> Callable[..., T]:
    """What a decomposition costs is what its ops do."""

    def counted(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> T:
        graph, inputs = body_graph("decomposed", shapes)
        meaning(*inputs, **attrs)
        return count(graph)

    return counted


def graph_flops(graph: Any) -> DimLike:
    """The arithmetic of all nodes of a graph."""
    total: DimLike = 0
    for node in graph.nodes:
        shapes = [s for i in node.inputs for s in i.shapes]
        total = total + node.decl.flops(shapes, node.shapes, node.attrs)
    return total
