"""Loop: a native loop over a body or, where types change from step to step, unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.extent import measured
from rlx.core.shape import Shape
from rlx.frontends.dim_ranges import equal_for, ranges_for
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.handlers.control.row_sizes import (
    Places,
    RowSizes,
    begins,
    first_sizes,
    measured_rows,
    open_places,
)
from rlx.frontends.onnx.importer import TooMany
from rlx.frontends.onnx.node_call import Call, NeedsShape, NeedsValue
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.subgraphs import applied, captures_of, closed, graph_of
from rlx.frontends.onnx.trip_count import Reading, counters, steps_of
from rlx.frontends.onnx.values import Absent, Items, Sizes, Value, Weight
from rlx.ir.mir import Graph, Node
from rlx.ops.control import variants

MAX_STEPS = 1024
"""Steps that are written out."""
MAX_ROWS = 1 << 10
"""Steps that room is made for before any is done; where there may be more, it grows."""
MAX_READINGS = 8
"""Times that a body is read to find out which sizes its steps change."""
MAX_WRITTEN = 64
"""Steps that are written out where a loop would do."""
COUNT = Shape((), DType.I64)


class ChangesRank(UnsupportedError):
    """A step gives a carried value another rank."""


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
    shapes: list[Shape]
    """Of the carried values in a step: with sizes of the loop's own where steps change them."""
    extent: str
    open_rows: Places
    """The sizes of rows that only a step can tell."""
    first: int = 0
    """The number of its first step: 1 where one was written out before it."""

    @property
    def num_rows(self) -> int:
        return len(self.results) - len(self.carried)

    @property
    def changes(self) -> bool:
        """Do sizes of carried values change from step to step?"""
        return bool(variants(self.extent, self.shapes))


@handles("Loop")
def loop(call: Call) -> tuple[Value, ...]:
    if _has_sequence(call.inputs[2:]):
        return _written_out(call)
    try:
        found = _read(call)
    except (NeedsValue, TooMany):
        raise
    except ChangesRank as error:
        return _behind_first(call, error) if _does_begin(call) else _instead(call, error)
    except (GraphError, UnsupportedError) as error:
        return _instead(call, error)
    return _lowered(found)


def _lowered(found: Loop) -> tuple[Value, ...]:
    steps = _steps(found)
    if steps is None:
        return _asked(found)
    found = replace(found, trip=steps)
    return _changing(found) if found.changes else _counted(found)


def _does_begin(call: Call) -> bool:
    """Is it known that there is a first step?"""
    trip, start = _trip(call), call.importer.as_array(_start(call))
    is_counted = trip is None or (not isinstance(trip, Node) and provably_le(1, trip))
    return is_counted and start is not None and bool(start.all())


def _behind_first(call: Call, error: Exception) -> tuple[Value, ...]:
    """A loop whose first step gives a carried value its rank, as exporters of frameworks that have
    undefined variables write them: that step is written out, and the loop makes the others."""
    proto, state, trip = call.required("body"), list(call.inputs[2:]), _trip(call)
    number = Sizes((0,), _step_shape(proto).static_dims)
    goes_on, *made = call.importer.inlined(call, proto, [number, _truth(), *map(_given, state)])
    rest = None if trip is None or isinstance(trip, Node) else Sizes((trip - 1,), ())
    carried, rows = made[: len(state)], [call.as_node(r) for r in made[len(state) :]]
    others = replace(call, inputs=(rest, goes_on, *carried))
    try:
        found = replace(_read(others), first=1)
    except ChangesRank:
        return _instead(call, error)
    values = _lowered(found)
    stacked = [_joined(r, call.as_node(v)) for r, v in zip(rows, values[len(state) :])]
    return (*values[: len(state)], *stacked)


def _joined(first: Node, others: Node) -> Node:
    """The row of the first step, and those of the others."""
    return ops.concat([ops.expand_dims(first, axes=(0,)), others], axis=0)


def _steps(found: Loop) -> DimLike | None:
    """How many steps it makes, where that is known before."""
    if isinstance(found.trip, Node):
        return None
    importer = found.call.importer
    inputs = found.scope.graph.inputs
    lines = counters(importer, inputs, found.carried, found.results, found.first)
    start = Reading(importer).conditions(found.call.as_node(found.start))
    return steps_of(found.trip, start, Reading(importer, lines).conditions(found.goes_on))


def _changing(found: Loop) -> tuple[Value, ...]:
    """Values whose sizes change in a known number of steps: each step unrolled, whose
    sizes are then numbers, where there are few."""
    if found.first or not isinstance(found.trip, int) or found.trip > MAX_WRITTEN:
        return _asked(found)
    try:
        return _written_out(found.call)
    except (GraphError, UnsupportedError):
        return _asked(found)


def _instead(call: Call, error: Exception) -> tuple[Value, ...]:
    """The loop written out; where that cannot be done, it is for the reason of this error. Where a
    range of named dims settles it, the model is read again for that, not for values of inputs."""
    try:
        return _written_out(call, error)
    except NeedsValue:
        if ranges_for(error) is None and equal_for(error) is None:
            raise
        raise error from None
    except (NeedsShape, TooMany):
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
    """The body as a graph of its own: whenever it runs, its condition was true. Sizes that a step
    changes are sizes of the loop's own, and the body is read again with those."""
    proto = call.required("body")
    carried = [call.node(i) for i in range(2, call.num_inputs)]
    if len(proto.input) != len(carried) + 2:
        raise GraphError(f"its body takes {len(proto.input)} values, gets {len(carried) + 2}")
    extent = call.graph.extents.fresh("while")
    given = [c.shape for c in carried]
    for _ in range(MAX_READINGS):
        inputs = [_step_shape(proto), _truth(), *given]
        scope, values = call.importer.body(call, proto, inputs, step=proto.input[0].name)
        nodes = closed(scope, values)
        made = [n.shape for n in nodes[1 : 1 + len(carried)]]
        opened = _opened(call, extent, [c.shape for c in carried], given, made)
        if opened == given:
            break
        given = opened
    else:
        raise call.unsupported("the sizes of its values change in a way that is not supported")
    rows = [n.shape for n in nodes[1 + len(carried) :]]
    return Loop(
        call, _trip(call), _start(call), carried, scope, nodes[0], nodes[1:], given, extent,
        open_places(scope.graph, rows, extent),
    )  # fmt: skip


def _row_sizes(found: Loop, captures: Sequence[Node], start: Node | None) -> RowSizes:
    """The sizes of stacked rows, where the first step measures them."""
    call, count = found.call, len(found.carried)
    sizes = first_sizes(found.extent, found.shapes, found.carried)

    def rows(graph: Graph, given: list[Node]) -> list[Node]:
        own = [_number(found, graph.constant(np.int64(0))), *given[:count]]
        made = applied(graph, found.scope, own, captures, given[count:], sizes)
        return made[1 + count :]

    if not found.open_rows:
        return RowSizes()
    operands = [*found.carried, *captures]
    return measured_rows(
        call, begins(call.graph, start, found.trip), operands, rows, found.open_rows
    )


def _opened(
    call: Call, extent: str, first: Sequence[Shape], given: Sequence[Shape], made: Sequence[Shape]
) -> list[Shape]:
    """The shapes of carried values, with a size of the loop's own wherever a step changes one.
    Sizes that begin equal and that every step makes equal are one."""
    for i, (before, after) in enumerate(zip(first, made)):
        if (before.rank, before.dtype) != (after.rank, after.dtype):
            what = f"{call.label}: carried value {i} is {before}, then {after}"
            raise (ChangesRank if before.dtype is after.dtype else UnsupportedError)(what)
    names: dict[tuple[DimLike, DimLike], Dim] = {}
    opened: list[Shape] = []
    for start, before, after in zip(first, given, made):
        dims = list(before.dims)
        for axis, (d, e) in enumerate(zip(before.dims, after.dims)):
            if d == e and not (isinstance(d, Dim) and d.name.startswith(f"{extent}.")):
                continue
            key = start.dims[axis], e
            if key not in names:
                names[key] = measured(f"{extent}.{len(names)}")
            dims[axis] = names[key]
        opened.append(before.with_dims(dims))
    return opened


# -- a number of steps ----------------------------------------------------------------------------


def _counted(found: Loop) -> tuple[Node, ...]:
    """As often as is known before: one scan."""
    call, count = found.call, len(found.carried)
    captures = captures_of(found.scope)
    sizes = _row_sizes(found, captures, None)
    whole = [*captures, *sizes.sources]
    shapes = [n.shape for n in (*found.carried, *whole)]

    def steps(graph: Graph, given: list[Node]) -> list[Node]:
        own = [_number(found, given[-1]), *given[:count]]
        outer = given[count : count + len(captures)]
        made = applied(graph, found.scope, own, captures, outer)[1:]
        return [*made[:count], *sizes.checked(made[count:])]

    body = graph_of(call, "body", [*shapes, COUNT], steps)
    trip: Any = found.trip
    numbers = call.graph.node("iota", (), {"dims": (trip,), "axis": 0, "dtype": DType.I64})
    return ops.scan(
        *found.carried, *whole, numbers, body=body, length=trip, num_carries=count,
        num_bcasts=len(whole),
    )  # fmt: skip


def _number(found: Loop, step: Node) -> Node:
    shape = found.scope.graph.inputs[0].shape
    number = ops.add(step, np.int64(found.first)) if found.first else step
    return ops.reshape(number, dims=shape.dims)


# -- until a condition is false -------------------------------------------------------------------


def _asked(found: Loop) -> tuple[Node, ...]:
    """As long as the condition holds."""
    call, captures = found.call, captures_of(found.scope)
    trip = [found.trip] if isinstance(found.trip, Node) else []
    first = [call.graph.constant(np.int64(0)), _flag(call.as_node(found.start))]
    count = 2 + len(found.carried)
    sizes = _row_sizes(found, captures, first[1])
    whole = [*trip, *captures, *sizes.sources]
    shapes = [f.shape for f in first] + found.shapes + [n.shape for n in whole]

    def goes_on(graph: Graph, given: list[Node]) -> list[Node]:
        limit = given[count] if trip else _limit(graph, found.trip)
        return [given[1] if limit is None else given[1] & ops.less(given[0], limit)]

    def step(graph: Graph, given: list[Node]) -> list[Node]:
        own = [_number(found, given[0]), *given[2:count]]
        outer = given[count + len(trip) :][: len(captures)]
        made = applied(graph, found.scope, own, captures, outer)
        state, rows = made[1 : count - 1], made[count - 1 :]
        return [given[0] + 1, _flag(made[0]), *state, *sizes.checked(rows)]

    made = ops.while_(
        *first, *found.carried, *whole, cond=graph_of(call, "cond", shapes, goes_on),
        body=graph_of(call, "body", shapes, step), num_bcasts=len(whole),
        num_rows=found.num_rows, at_most=_most(found), extent=_named(found),
    )  # fmt: skip
    return tuple(made[2:])


def _flag(condition: Node) -> Node:
    return ops.reshape(condition, dims=())


def _limit(graph: Graph, trip: Any) -> Node | None:
    return None if trip is None else Sizes((trip,), ()).node(graph)


def _named(found: Loop) -> str:
    """Only a loop that finds sizes out names them."""
    return found.extent if found.num_rows or found.changes else ""


def _most(found: Loop) -> DimLike | None:
    """How many rows there may be, where that is known; a number that stands for no end says
    nothing."""
    trip = found.trip
    if isinstance(trip, Node | None) or not found.num_rows:
        return None
    return trip if isinstance(trip, Dim) or trip <= MAX_ROWS else None


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
