"""Helpers to define an op by a decomposition into others, over nodes, arrays or shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.core import attrs as attributes
from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, Shape
from rlx.ops import op as table
from rlx.ops.cost import MAX_KNOWN, Work, graph_work
from rlx.ops.graphs import body_graph
from rlx.ops.op import Kind, Op


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
        counts = _Counts(meaning)
        made = table.op(
            signature, kind=kind, shape=meaning, flops=counts.flops, cost=counts.work,
            is_exact=True, **facts,
        )(meaning)  # fmt: skip
        made.lowering(meaning)
        return made

    return declare


class _Counts:
    """What a decomposition costs: what its ops do. Counted once for equal operands, as layers are
    repeated."""

    def __init__(self, meaning: Callable[..., Any]) -> None:
        self._meaning = meaning
        self._known: dict[tuple[object, ...], tuple[DimLike, Work]] = {}

    def flops(
        self, shapes: Sequence[Shape], _: Sequence[Shape], attrs: Mapping[str, Any]
    ) -> DimLike:
        return self._counted(shapes, attrs)[0]

    def work(self, shapes: Sequence[Shape], _: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
        return self._counted(shapes, attrs)[1]

    def _counted(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> tuple[DimLike, Work]:
        keys = tuple(map(attributes.key, attrs.values()))
        found = self._known.get((*shapes, *keys))
        if found is None:
            graph, inputs = body_graph("decomposed", shapes)
            self._meaning(*inputs, **attrs)
            found = graph_flops(graph), graph_work(graph)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            if not any(isinstance(k, attributes.Data) for k in keys):
                self._known[(*shapes, *keys)] = found
        return found


def graph_flops(graph: Any) -> DimLike:
    """The arithmetic of all nodes of a graph."""
    total: DimLike = 0
    for node in graph.nodes:
        shapes = [s for i in node.inputs for s in i.shapes]
        total = total + node.decl.flops(shapes, node.shapes, node.attrs)
    return total
