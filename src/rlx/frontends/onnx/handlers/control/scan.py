"""Scan: a body along an axis of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.extent import is_measured
from rlx.core.shape import DimsDiffer, Shape
from rlx.frontends.onnx.data_dependent_sizes import as_long_as
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.handlers.control.row_sizes import (
    Places,
    RowSizes,
    begins,
    measured_rows,
    open_places,
)
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.subgraphs import applied, captures_of, closed, graph_of
from rlx.ir.mir import Graph, Node

STEP = "\0step"
"""The last input of a body as it is read; no name of a file's."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body that was read: `states` go from step to step, and it sees slices of the rest."""

    call: Call
    scope: Scope
    captures: list[Node]
    num_states: int
    open_rows: Places
    """The sizes of rows that only a step can tell."""

    def steps(self, graph: Graph, operands: Sequence[Node], given: Sequence[Node]) -> list[Node]:
        """One step in a graph that has the values of `captures` as `given`."""
        return applied(graph, self.scope, operands, self.captures, given)

    @property
    def is_numbered(self) -> bool:
        """Does a step depend on its number? Random numbers do."""
        return any(self.scope.step in n.inputs for n in self.scope.graph.nodes)

    def along(self, states: Sequence[Node], xs: Sequence[Node], given: Sequence[Node]) -> Any:
        """The body along the first axis of `xs`, in their graph."""
        count, length = self.num_states, _length(xs)
        if self.is_numbered:
            how = {"dims": (length,), "axis": 0, "dtype": DType.I64}
            xs = [*xs, xs[0].graph.node("iota", (), how)]
        sizes = self._row_sizes(states, xs, given)
        whole = [*given, *sizes.sources]
        kept = [s.shape for s in states]

        def one(graph: Graph, values: list[Node]) -> list[Node]:
            outer, slices = values[count:], values[count + len(whole) :]
            made = self._one(graph, values[:count], slices, outer[: len(given)])
            next_states = [_as_before(v, s) for v, s in zip(made[:count], kept)]
            return [*next_states, *sizes.checked(made[count:])]

        shapes = [*(v.shape for v in (*states, *whole)), *(_slice(x.shape) for x in xs)]
        return ops.scan(
            *states, *whole, *xs, body=graph_of(self.call, "body", shapes, one),
            length=length, num_carries=count, num_bcasts=len(whole),
        )  # fmt: skip

    def _one(
        self, graph: Graph, states: Sequence[Node], slices: Sequence[Node], given: Sequence[Node]
    ) -> list[Node]:
        number = [] if self.is_numbered else [graph.constant(np.int64(0))]
        return self.steps(graph, [*states, *slices, *number], given)

    def _row_sizes(
        self, states: Sequence[Node], xs: Sequence[Node], given: Sequence[Node]
    ) -> RowSizes:
        """The sizes of stacked rows, where the first step measures them."""
        count, whole = self.num_states, self.num_states + len(given)

        def rows(graph: Graph, values: list[Node]) -> list[Node]:
            first = graph.constant(np.int64(0))
            slices = [ops.gather(x, first, axis=0) for x in values[whole:]]
            return self._one(graph, values[:count], slices, values[count:whole])[count:]

        if not self.open_rows:
            return RowSizes()
        graph = xs[0].graph
        return measured_rows(
            self.call, begins(graph, None, _length(xs)), [*states, *given, *xs], rows,
            self.open_rows,
        )  # fmt: skip


def _as_before(value: Node, state: Shape) -> Node:
    """The next state, of the sizes of the one before also where those are data-dependent."""
    for axis, (now, before) in enumerate(zip(value.shape.dims, state.dims)):
        if is_measured(now) or is_measured(before):
            value = as_long_as(value, axis, before)
    return value


def _slice(shape: Shape) -> Shape:
    return shape.with_dims(shape.dims[1:])


def _length(xs: Sequence[Node]) -> DimLike:
    lengths = [x.shape.dims[0] for x in xs]
    other = next((d for d in lengths if d != lengths[0]), None)
    if other is not None:
        what = f"its operands are of different lengths: {', '.join(map(str, lengths))}"
        raise DimsDiffer(what, lengths[0], other)
    return lengths[0]


def _read(call: Call, shapes: Sequence[Shape], num_states: int) -> Body:
    proto = call.required("body")
    if len(proto.input) != len(shapes):
        raise GraphError(f"its body takes {len(proto.input)} values, but gets {len(shapes)}")
    scope, values = call.importer.body(call, proto, shapes, step=STEP)
    rows = [n.shape for n in closed(scope, values)[num_states:]]
    return Body(call, scope, captures_of(scope), num_states, open_places(scope.graph, rows))


@handles("Scan", since=9)
def scan(call: Call) -> tuple[Node, ...]:
    count = call.required("num_scan_inputs")
    nodes = call.nodes()
    if not 0 < count <= len(nodes):
        raise GraphError(f"num_scan_inputs is {count} of {len(nodes)} operands")
    states, xs = nodes[:-count], nodes[-count:]
    axes = call.attr("scan_input_axes") or (0,) * count
    moved = [_to_front(x, call.axis(a, x.shape.rank)) for x, a in zip(xs, axes, strict=True)]
    xs = _reversed(moved, call.attr("scan_input_directions"))
    shapes = [*(s.shape for s in states), *(_slice(x.shape) for x in xs)]
    body = _read(call, shapes, len(states))
    made = list(body.along(states, xs, body.captures))
    ys = _reversed(made[len(states) :], call.attr("scan_output_directions"))
    axes = call.attr("scan_output_axes") or (0,) * len(ys)
    placed = [_from_front(y, call.axis(a, y.shape.rank)) for y, a in zip(ys, axes, strict=True)]
    return (*made[: len(states)], *placed)


def _to_front(x: Node, axis: int) -> Node:
    rest = [i for i in range(x.shape.rank) if i != axis]
    return ops.transpose(x, perm=(axis, *rest)) if axis else x


def _from_front(y: Node, axis: int) -> Node:
    perm = list(range(1, y.shape.rank))
    perm.insert(axis, 0)
    return ops.transpose(y, perm=tuple(perm)) if axis else y


def _reversed(values: Sequence[Node], directions: Sequence[int] | None) -> list[Node]:
    """Those with direction 1 run from the last to the first."""
    if not directions:
        return list(values)
    pairs = zip(values, directions, strict=True)
    return [ops.flip(v, axes=(0,)) if d else v for v, d in pairs]


@handles("Scan", since=8)
def scan_of_batches(call: Call) -> tuple[Node, ...]:
    """As it was in opset 8: operands begin with a batch, and each of it is scanned alone."""
    if call.has(0):
        raise call.unsupported("lengths of sequences, which only opset 8 has")
    count = call.required("num_scan_inputs")
    nodes = [call.node(i) for i in range(1, call.num_inputs)]
    split = len(nodes) - count
    inner = [_slice(n.shape) for n in nodes]
    slices = [*inner[:split], *(_slice(s) for s in inner[split:])]
    body = _read(call, slices, split)
    given = [c.shape for c in body.captures]

    def each(graph: Graph, values: list[Node]) -> list[Node]:
        own = values[len(given) :]
        xs = _reversed(own[split:], call.attr("directions"))
        return list(body.along(own[:split], xs, values[: len(given)]))

    return ops.scan(
        *body.captures, *nodes, body=graph_of(call, "batch", [*given, *inner], each),
        length=_length(nodes), num_carries=0, num_bcasts=len(given),
    )  # fmt: skip
