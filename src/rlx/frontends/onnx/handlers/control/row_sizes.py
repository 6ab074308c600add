"""Stacked rows of loops and scans whose sizes are data-dependent: measured by the first step.

A loop stacks rows of one shape, so the first step tells the sizes of all of them. It is evaluated
before the loop for its sizes alone: what else it computes is dead code there. The loop compares
each row with those sizes as it runs; rows of a loop without steps have size 0 on these axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, symbols_of
from rlx.core.errors import UnsupportedError
from rlx.core.extent import ceiling, is_capacity, measured_in
from rlx.core.shape import Shape
from rlx.frontends.onnx.data_dependent_sizes import as_long_as
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.subgraphs import Steps, graph_of
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Graph, Node, Origin
from rlx.ops.control import variants

Places = tuple[tuple[int, int], ...]
"""Rows and axes."""


@dataclass(frozen=True, slots=True)
class RowSizes:
    """The sizes of rows that the first step measured."""

    name: str = ""
    """Of the loop."""
    places: Places = ()
    sources: tuple[Node, ...] = ()
    """The nodes that measure them, which a body must capture to have the sizes."""

    def checked(self, rows: Sequence[Node]) -> list[Node]:
        """The rows of a step, with an error where a size differs from that of the first step."""
        found = list(rows)
        for (row, axis), source in zip(self.places, self.sources):
            with found[row].graph.scope(Origin("onnx", self.name)):
                found[row] = as_long_as(found[row], axis, source.shape.dims[0])
        return found


def open_places(graph: Graph, rows: Sequence[Shape], extent: str = "") -> Places:
    """Where sizes of rows are measured in the body, or change from step to step."""
    return tuple(
        (i, axis)
        for i, row in enumerate(rows)
        for axis, dim in enumerate(row.dims)
        if any(_is_open(graph, s.name, extent) for s in measured_in([dim]))
    )


def _is_open(graph: Graph, name: str, extent: str) -> bool:
    return name in graph.extents or (extent != "" and name.startswith(f"{extent}."))


def measured_rows(
    call: Call, begins: Node, operands: Sequence[Node], first: Steps, places: Places
) -> RowSizes:
    """The sizes of the rows that `first` computes of `operands`, where the loop begins."""
    if not places:
        return RowSizes()
    bounds: list[DimLike | None] = []

    def sizes(graph: Graph, values: list[Node]) -> list[Node]:
        rows = first(graph, values)
        dims = [rows[i].shape.dims[axis] for i, axis in places]
        bounds.extend(map(_bound, dims))
        return [Sizes((d,), ()).node(graph) for d in dims]

    def none(graph: Graph, values: list[Node]) -> list[Node]:
        return [graph.constant(np.int64(0)) for _ in places]

    shapes = [o.shape for o in operands]
    then, other = (graph_of(call, n, shapes, s) for n, s in (("first", sizes), ("none", none)))
    found = ops.if_(begins, *operands, then=then, else_=other)
    sources = [ops.as_size(f, at_most=b) for f, b in zip(found, bounds)]
    return RowSizes(call.name, places, tuple(sources))


def _bound(dim: DimLike) -> DimLike | None:
    """What a size never exceeds, in sizes that are known before; None where nothing says so."""
    try:
        most = ceiling(dim)
    except UnsupportedError:
        return None
    return None if any(is_capacity(d.name) for d in symbols_of([most])) else most


def first_sizes(
    extent: str, shapes: Sequence[Shape], carried: Sequence[Node]
) -> Mapping[str, DimLike]:
    """What the sizes that change from step to step are in the first."""
    return {
        name: carried[i].shape.dims[axis]
        for name, ((i, axis), *_) in variants(extent, shapes).items()
    }


def begins(graph: Graph, start: Node | None, count: DimLike | Node | None) -> Node:
    """Is there a first step?"""
    flags = [] if start is None else [ops.reshape(start, dims=())]
    if count is not None:
        limit = count if isinstance(count, Node) else Sizes((count,), ()).node(graph)
        flags.append(ops.greater(limit, np.int64(0)))
    if not flags:
        return graph.constant(np.array(True))
    return flags[0] if len(flags) == 1 else ops.logical_and(*flags)
