"""Loop and Scan: loops of a planned body, or, where values change their form, written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.dim import Dim, DimLike
from rlx.dtype import DType
from rlx.errors import GraphError, UnsupportedError
from rlx.ir.mir import Graph, Node
from rlx.onnx.bodies import applied, captures_of, closed, graph_of, is_measured_inside
from rlx.onnx.call import Call, NeedsShape, NeedsValue
from rlx.onnx.handlers import handles
from rlx.onnx.importer import TooMany
from rlx.onnx.scope import Scope
from rlx.onnx.values import Absent, Items, Sizes, Value, Weight
from rlx.shape import Shape

MAX_STEPS = 1024
"""Steps that are written out."""
MAX_ROWS = 1 << 24
"""Steps that room is made for, where how many there are is found out by running."""
COUNT = Shape((), DType.I64)


@dataclass(frozen=True, slots=True)
class Loop:
    """A Loop whose body was read for all its steps."""

    call: Call
    trip: DimLike | Node | None
    """At most so many steps."""
    start: Value
    """Does it begin at all?"""
    carried: list[Node]
    scope: Scope
    goes_on: Node
    results: list[Node]
    """The next carried values, then a row of each stacked result."""

    @property
    def rows(self) -> list[Shape]:
        return [r.shape for r in self.results[len(self.carried) :]]


@handles("Loop")
def loop(call: Call) -> tuple[Value, ...]:
    if _has_sequence(call.inputs[2:]):
        return _written_out(call)
    try:
        found = _read(call)
    except (NeedsValue, TooMany):
        raise
    except (GraphError, UnsupportedError) as error:
        return _instead(call, error)
    known = [call.importer.as_array(v) for v in (found.start, found.goes_on)]
    if not isinstance(found.trip, Node | None) and all(k is not None and k.all() for k in known):
        return _counted(found)
    return _asked(found)


def _instead(call: Call, error: Exception) -> tuple[Value, ...]:
    """The loop written out; where that cannot be done, it is for the reason of this error."""
    try:
        return _written_out(call, error)
    except (NeedsValue, NeedsShape, TooMany):
        raise
    except UnsupportedError:
        raise error from None


def _has_sequence(values: Sequence[Value | None]) -> bool:
    return any(isinstance(v, Items | Absent | None) for v in values)


def _trip(call: Call) -> DimLike | Node | None:
    if not call.has(0):
        return None
    sizes = call.importer.as_sizes(call.value(0))
    if sizes is None:
        return ops.cast(ops.reshape(call.node(0), dims=()), to=DType.I64)
    return sizes.dims[0] if isinstance(sizes.dims[0], Dim) else max(0, sizes.dims[0])


def _start(call: Call) -> Value:
    return call.value(1) if call.has(1) else _truth()


def _truth() -> Weight:
    return Weight("true", np.array(True))


def _step_shape(proto: Any) -> Shape:
    """The number of a step is a scalar, or as some write it one number in a row."""
    declared = proto.input[0].type.tensor_type
    return Shape((1,) if len(declared.shape.dim) == 1 else (), DType.I64)


def _read(call: Call) -> Loop:
    """The body as a graph of its own: whenever it runs, its condition was true."""
    proto = call.required("body")
    carried = [call.node(i) for i in range(2, call.num_inputs)]
    given: list[Any] = [_step_shape(proto), _truth(), *(c.shape for c in carried)]
    if len(proto.input) != len(given):
        raise GraphError(f"its body takes {len(proto.input)} values, but gets {len(given)}")
    scope, values = call.importer.body(call, proto, given, step=proto.input[0].name)
    nodes = closed(scope, values)
    shapes = [n.shape for n in nodes]
    for i, (before, after) in enumerate(zip(carried, shapes[1:])):
        if before.shape != after:
            raise call.unsupported(f"carried value {i} is {before.shape}, then {after}")
    if is_measured_inside(scope, shapes):
        raise call.unsupported("a size in its body depends on data of one step")
    return Loop(call, _trip(call), _start(call), carried, scope, nodes[0], nodes[1:])


# -- a number of steps ----------------------------------------------------------------------------


def _counted(found: Loop) -> tuple[Node, ...]:
    """As often as is known before: one scan."""
    call, count = found.call, len(found.carried)
    captures = captures_of(found.scope)
    shapes = [n.shape for n in (*found.carried, *captures)]

    def steps(graph: Graph, given: list[Node]) -> list[Node]:
        own = [_number(found, given[-1]), *given[:count]]
        return applied(graph, found.scope, own, captures, given[count:-1])[1:]

    body = graph_of(call, "body", [*shapes, COUNT], steps)
    trip: Any = found.trip
    numbers = call.graph.node("iota", (), {"dims": (trip,), "axis": 0, "dtype": DType.I64})
    return ops.scan(
        *found.carried, *captures, numbers, body=body, length=trip, num_carries=count,
        num_bcasts=len(captures),
    )  # fmt: skip


def _number(found: Loop, step: Node) -> Node:
    shape = found.scope.graph.inputs[0].shape
    return ops.reshape(step, dims=shape.dims)


# -- until a condition is false -------------------------------------------------------------------


def _asked(found: Loop) -> tuple[Node, ...]:
    """As long as the condition holds. Rows are written into room for as many as there may be."""
    call, captures = found.call, captures_of(found.scope)
    room = _room(found)
    trip = [found.trip] if isinstance(found.trip, Node) else []
    first = [call.graph.constant(np.int64(0)), _flag(call.as_node(found.start))]
    carries = [*first, *found.carried, *room, *trip, *captures]
    shapes = [c.shape for c in carries]
    ends = [2, 2 + len(found.carried), 2 + len(found.carried) + len(room)]

    def goes_on(graph: Graph, given: list[Node]) -> list[Node]:
        limit = given[ends[2]] if trip else _limit(graph, found.trip)
        return [given[1] if limit is None else given[1] & ops.less(given[0], limit)]

    def step(graph: Graph, given: list[Node]) -> list[Node]:
        own = [_number(found, given[0]), *given[ends[0] : ends[1]]]
        made = applied(graph, found.scope, own, captures, given[ends[2] + len(trip) :])
        rows = zip(given[ends[1] : ends[2]], made[1 + len(found.carried) :])
        kept = [_with_row(buffer, given[0], row) for buffer, row in rows]
        state = made[1 : 1 + len(found.carried)]
        return [given[0] + 1, _flag(made[0]), *state, *kept, *given[ends[2] :]]

    made = ops.while_(
        *carries, cond=graph_of(call, "cond", shapes, goes_on),
        body=graph_of(call, "body", shapes, step),
    )  # fmt: skip
    return (*made[2 : ends[1]], *_filled(found, made[0], made[ends[1] : ends[2]]))


def _flag(condition: Node) -> Node:
    return ops.reshape(condition, dims=())


def _limit(graph: Graph, trip: Any) -> Node | None:
    return None if trip is None else Sizes((trip,), ()).node(graph)


def _room(found: Loop) -> list[Node]:
    """Zeros for the rows of each stacked result."""
    if not found.rows:
        return []
    if isinstance(found.trip, Node):
        raise found.call.unknown(found.call.value(0), "how many rows it stacks depends on data")
    if found.trip is None or (isinstance(found.trip, int) and found.trip > MAX_ROWS):
        raise found.call.unsupported("it stacks rows without a bound on how many there are")
    dims: list[tuple[DimLike, ...]] = [(found.trip, *row.dims) for row in found.rows]
    zeros = [np.zeros((), row.dtype.numpy) for row in found.rows]
    return [ops.expand(found.call.graph.constant(z), dims=d) for z, d in zip(zeros, dims)]


def _with_row(buffer: Node, step: Node, row: Node) -> Node:
    where = ops.reshape(step, dims=(1,))
    return ops.scatter(buffer, where, ops.expand_dims(row, axes=(0,)), axis=0)


def _filled(found: Loop, count: Node, buffers: Sequence[Node]) -> list[Node]:
    """The rows that were written."""
    if not buffers:
        return []
    trip: Any = found.trip
    zero, one = (found.call.graph.constant(np.int64(n)) for n in (0, 1))
    rows = ops.arange(zero, count, one, at_most=trip)
    return [ops.gather(b, rows, axis=0) for b in buffers]


# -- written out ----------------------------------------------------------------------------------


def _written_out(call: Call, why: Exception | None = None) -> tuple[Value, ...]:
    """One step after the other: for sequences and for values whose shapes change."""
    proto, state = call.required("body"), [_given(v) for v in call.inputs[2:]]
    trip = call.ints(0)[0] if call.has(0) else None
    goes_on = _decided(call, _start(call))
    columns: list[list[Value]] = []
    step = 0
    while goes_on and (trip is None or step < trip):
        if step == MAX_STEPS:
            reason = f" ({why})" if why else ""
            raise call.unsupported(f"more than {MAX_STEPS} steps are not written out{reason}")
        number = Sizes((step,), _step_shape(proto).static_dims)
        made = call.importer.inlined(call, proto, [number, _truth(), *state])
        goes_on = _decided(call, made[0])
        state = made[1 : 1 + len(state)]
        columns.append(made[1 + len(state) :])
        step += 1
    if not columns:
        return (*state, *(_no_rows(call, o) for o in proto.output[1 + len(state) :]))
    return (*state, *(_stacked(call, column) for column in zip(*columns)))


def _given(value: Value | None) -> Value:
    return Absent() if value is None else value


def _decided(call: Call, condition: Value) -> bool:
    known = call.importer.as_array(condition)
    if known is None:
        raise call.unknown(condition, "its condition depends on data, and its values change form")
    return bool(known.all())


def _stacked(call: Call, rows: Sequence[Value]) -> Node:
    nodes = [ops.expand_dims(call.as_node(r), axes=(0,)) for r in rows]
    return nodes[0] if len(nodes) == 1 else ops.concat(nodes, axis=0)


def _no_rows(call: Call, info: Any) -> Node:
    dtype = call.importer.reader.dtype(info.type.tensor_type.elem_type, call.label)
    dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return call.graph.constant(np.zeros((0, *dims), dtype.numpy))
