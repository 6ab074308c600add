"""Control-flow ops, which hold graphs, and custom ops.

Bodies are bound by position: their inputs are the operands, in order; they have no params and
see nothing else. Every op here has a tuple of results, read through items.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Body
from rlx.core.dim import Dim, DimLike, dim_max, product, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.extent import ceiling, is_capacity, measured, measured_in
from rlx.core.shape import Shape, dims_differ
from rlx.ops import custom_ops as registry
from rlx.ops.compose import graph_flops
from rlx.ops.draw import Draw, Spec
from rlx.ops.graphs import body_graph
from rlx.ops.op import Array, Kind, op

MAX_UNROLL = 64
"""Loops of up to this many steps may be written out."""
MAX_NODES = 4096
"""And only as far as this many nodes in all."""
FALLIBLE = frozenset({
    "gather", "embedding", "take_along_axis", "gather_nd", "nonzero", "scatter", "scatter_add",
    "scatter_elements", "scatter_nd", "tensor_scatter", "reverse_sequence", "max_unpool",
    "arange", "as_size", "same_size", "grouped_matmul", "dequant_grouped_matmul",
    "gguf_grouped_matmul", "roi_align",
    "max_roi_pool", "nll_loss", "softmax_cross_entropy", "while", "custom",
})  # fmt: skip
"""Ops that may not be run unasked: they can fail on their data, or never end."""
STATIC = "a body states the shapes of what it takes, so operands alone cannot be opened"


def _shown(shapes: Sequence[Shape]) -> str:
    return f"({', '.join(map(str, shapes))})"


def _body_shapes(name: str, body: Any, operands: Sequence[Shape]) -> tuple[Shape, ...]:
    """The results of a body whose inputs must be `operands`."""
    if body.params:
        raise GraphError(
            f"{name} has param {body.params[0].attrs['name']!r}: pass it as an operand"
        )
    if body.states:
        raise GraphError(
            f"{name} has state {body.states[0].attrs['name']!r}: read and update it outside"
        )
    wanted = tuple(leaf.shape for leaf in body.inputs)
    if wanted != tuple(operands):
        raise GraphError(f"{name} takes {_shown(wanted)}, but gets {_shown(operands)}")
    if not body.outputs:
        raise GraphError(f"{name} returns nothing. Return its values")
    return tuple(output.shape for output in body.outputs)


def _check_condition(name: str, shape: Shape) -> None:
    if shape.dtype is not DType.BOOL or any(d != 1 for d in shape.dims):
        raise GraphError(f"{name} is {shape}, expected one bool")


def _check_kept(name: str, given: Sequence[Shape], made: Sequence[Shape]) -> None:
    if len(given) != len(made):
        raise GraphError(f"{name} returns {len(made)} values for {len(given)} carries")
    for i, (before, after) in enumerate(zip(given, made)):
        if before != after:
            what = f"carry {i} is {before}, but {name} returns {after} for it"
            raise dims_differ(what, before.dims, after.dims)


def run(body: Any, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a body for arrays, by the references."""
    names = [leaf.attrs["name"] for leaf in body.inputs]
    return body.evaluate(dict(zip(names, arrays, strict=True)))


def apply(body: Any, operands: Sequence[Any]) -> list[Any]:
    """The outputs of a body for nodes, in their graph, or for arrays."""
    graphs = [o.graph for o in operands if hasattr(o, "graph")]
    return graphs[0].inline(body, operands) if graphs else run(body, operands)


def _check_small(bodies: Sequence[Any], times: int, *, runs_unasked: bool) -> None:
    """Writing out bodies `times` over is sensible, and safe where they would not have run."""
    size = times * sum(len(body) for body in bodies)
    if times > MAX_UNROLL or size > MAX_NODES:
        raise UnsupportedError(
            f"{times} steps of {size} nodes in all are not written out: the limit is "
            f"{MAX_UNROLL} steps and {MAX_NODES} nodes"
        )
    found = [n.op for body in bodies for n in body.order() if n.op in FALLIBLE]
    if runs_unasked and found:
        raise UnsupportedError(f"{found[0]} may fail on values it was never meant to see")


def _scalar(condition: Any) -> Any:
    return ops.reshape(condition, dims=())


# -- if -------------------------------------------------------------------------------------------


def _if_shape(
    pred: Shape, *captures: Shape, then: Any, else_: Any, extent: str
) -> tuple[Shape, ...]:
    _check_condition("pred", pred)
    sides = [_body_shapes(n, b, captures) for n, b in (("then", then), ("else", else_))]
    if extent:
        return _joined(sides[0], sides[1], (then, else_), extent)
    if sides[0] != sides[1]:
        raise GraphError(f"then gives {_shown(sides[0])}, but else gives {_shown(sides[1])}")
    return sides[0]


def _joined(
    one: Sequence[Shape], other: Sequence[Shape], sides: Sequence[Any], extent: str
) -> tuple[Shape, ...]:
    """Results whose sizes are those of the side that ran, where the sides' differ or a side finds
    them out."""
    kinds = [[(s.rank, s.dtype) for s in shapes] for shapes in (one, other)]
    if kinds[0] != kinds[1]:
        raise GraphError(f"then gives {_shown(one)}, but else gives {_shown(other)}")
    number = itertools.count()
    made: list[Shape] = []
    for a, b in zip(one, other):
        pairs = list(zip(a.dims, b.dims))
        dims = [d if is_settled(d, e, sides) else _chosen(d, e, extent, number) for d, e in pairs]
        made.append(a.with_dims(dims))
    return tuple(made)


def is_settled(one: DimLike, other: DimLike, sides: Sequence[Any]) -> bool:
    """Is a size of a branch's result the same whichever side runs, and known before?"""
    own = (s.name for s in measured_in([one]))
    return one == other and not any(name in side.extents for name in own for side in sides)


def _chosen(one: DimLike, other: DimLike, extent: str, number: Iterator[int]) -> Dim:
    """A size that the branch finds out; what bounds it inside a side is not known outside."""
    most = dim_max(ceiling(one), ceiling(other))
    is_open = any(is_capacity(d.name) for d in symbols_of([most]))
    return measured(f"{extent}.{next(number)}", None if is_open else most)


@op(
    "_[...]+ -> ",
    kind=Kind.CONTROL,
    shape=_if_shape,
    flops=lambda shapes, results, attrs: dim_max(
        graph_flops(attrs["then"]), graph_flops(attrs["else"])
    ),
    is_exact=True,
    why_static=STATIC,
)
def if_(
    pred: Array, *captures: Array, then: Body, else_: Body, extent: str = ""
) -> tuple[Array, ...]:
    """One of two graphs applied to `captures`: `then` where `pred` is true. The other side does
    not run. Where their results differ in size, the sizes are those of the side that ran:
    `extent.0`, `extent.1` … in order."""
    return tuple(run(then if pred.reshape(()) else else_, captures))  # pyright: ignore[reportArgumentType]


@if_.lowering
def _(pred: Any, *captures: Any, then: Any, else_: Any, extent: str) -> tuple[Any, ...]:
    if extent:
        raise UnsupportedError("a branch whose results differ in size cannot be a select")
    _check_small((then, else_), 1, runs_unasked=True)
    graph_side, other = apply(then, captures), apply(else_, captures)
    chosen = _scalar(pred)
    return tuple(ops.where(chosen, a, b) for a, b in zip(graph_side, other))


# -- while ----------------------------------------------------------------------------------------


def variants(extent: str, shapes: Sequence[Shape]) -> dict[str, list[tuple[int, int]]]:
    """The sizes among those of a loop's carries that change from step to step, and where they are:
    the carry and the axis."""
    found: dict[str, list[tuple[int, int]]] = {}
    for i, shape in enumerate(shapes):
        for axis, dim in enumerate(shape.dims):
            symbol = dim.symbol if isinstance(dim, Dim) else None
            if extent and symbol is not None and symbol.name.startswith(f"{extent}."):
                found.setdefault(symbol.name, []).append((i, axis))
    return found


def _opened(shapes: Sequence[Shape], like: Sequence[Shape], extent: str) -> list[Shape]:
    """Shapes with those sizes of others that change from step to step."""
    made = list(shapes)
    for places in variants(extent, like).values():
        for i, axis in places:
            if i < len(made) and axis < made[i].rank:
                made[i] = made[i].with_dim(axis, like[i].dims[axis])
    return made


def _while_shape(
    *operands: Shape,
    cond: Any,
    body: Any,
    max_iterations: int | None,
    num_bcasts: int,
    num_rows: int,
    at_most: DimLike | None,
    extent: str,
) -> tuple[Shape, ...]:
    inside = _opened(operands, [leaf.shape for leaf in body.inputs], extent)
    if not 0 <= num_bcasts <= len(operands):
        raise GraphError(f"{num_bcasts} bcasts are not among {len(operands)} operands")
    conditions = _body_shapes("cond", cond, inside)
    if len(conditions) != 1:
        raise GraphError(f"cond gives {_shown(conditions)}, expected one bool")
    _check_condition("cond", conditions[0])
    made = _body_shapes("body", body, inside)
    count = len(made) - num_rows
    if num_rows < 0 or count < 0 or (num_rows and not extent):
        raise GraphError(f"num_rows is {num_rows} of {len(made)} results, or extent is missing")
    carried = inside[: len(inside) - num_bcasts]
    _check_kept("body", carried, _opened(made[:count], carried, extent))
    if max_iterations is not None and max_iterations < 0:
        raise GraphError(f"max_iterations is {max_iterations}, which is negative. Give 0 or more")
    rows = made[count:]
    if variants(extent, rows):
        raise GraphError("a row has a size that changes from step to step. Pad it")
    steps = measured(f"{extent}.rows", at_most) if num_rows else 0
    return (*carried, *(r.with_dims((steps, *r.dims)) for r in rows))


def _while_flops(shapes: Any, results: Any, attrs: Mapping[str, Any]) -> DimLike:
    """Of one step, where there is no bound."""
    times = 1 if attrs["max_iterations"] is None else attrs["max_iterations"]
    return times * (graph_flops(attrs["cond"]) + graph_flops(attrs["body"]))


@op(
    "_[...]+ -> ",
    kind=Kind.CONTROL,
    shape=_while_shape,
    flops=_while_flops,
    is_exact=True,
    jumps=True,
    why_static=STATIC,
)
def while_(
    *operands: Array,
    cond: Body,
    body: Body,
    max_iterations: int | None = None,
    num_bcasts: int = 0,
    num_rows: int = 0,
    at_most: DimLike | None = None,
    extent: str = "",
) -> tuple[Array, ...]:
    """`body` applied to the carries for as long as `cond` of them is true, and at most
    `max_iterations` times. Carries keep dtype and rank, and their sizes but for those that the
    bodies' inputs name `extent.0`, `extent.1` …: those are what the step before made them. The last
    `num_bcasts` operands are no carries: both graphs see them as they are. The body's last
    `num_rows` results are stacked, a row for each step: `extent.rows` of them, and no more than
    `at_most`."""
    graph: Any = body
    count = len(graph.outputs) - num_rows
    whole = operands[len(operands) - num_bcasts :]
    values, rows = list(operands[: len(operands) - num_bcasts]), list[list[Array]]()
    while max_iterations is None or len(rows) < max_iterations:
        if not run(cond, [*values, *whole])[0].reshape(()):  # pyright: ignore[reportArgumentType]
            break
        made = run(graph, [*values, *whole])
        values = made[:count]
        rows.append(made[count:])
    columns = zip(*rows) if rows else ([] for _ in range(num_rows))
    shapes = [o.shape for o in graph.outputs[count:]]
    given = [*values, *whole]
    return (*values, *(_stack(graph, given, c, s) for c, s in zip(columns, shapes)))


def _stack(body: Any, values: Sequence[Array], rows: Sequence[Array], row: Shape) -> Array:
    """Rows of one shape; where there are none, the shape is what the body's sizes say."""
    if rows:
        return np.stack(rows)
    names = [leaf.attrs["name"] for leaf in body.inputs]
    sizes = body.infer_binding(dict(zip(names, values)))
    return np.empty((0, *row.bind(sizes).static_dims), row.dtype.numpy)


@while_.lowering
def _(
    *operands: Any,
    cond: Any,
    body: Any,
    max_iterations: int | None,
    num_bcasts: int,
    extent: str,
    **_: Any,
) -> tuple[Any, ...]:
    if max_iterations is None:
        raise UnsupportedError("a loop without max_iterations cannot be written out")
    if extent:
        raise UnsupportedError("a loop whose sizes change, or that stacks rows, is not written out")
    _check_small((cond, body), max_iterations, runs_unasked=True)
    split = len(operands) - num_bcasts
    values, whole, goes_on = list(operands[:split]), operands[split:], None
    for _step in range(max_iterations):
        condition = _scalar(apply(cond, [*values, *whole])[0])
        goes_on = condition if goes_on is None else ops.logical_and(goes_on, condition)
        made = apply(body, [*values, *whole])
        values = [ops.where(goes_on, new, old) for new, old in zip(made, values)]
    return tuple(values)


# -- scan -----------------------------------------------------------------------------------------


def _scan_shape(
    *operands: Shape, body: Any, length: DimLike, num_carries: int, num_bcasts: int, reverse: bool
) -> tuple[Shape, ...]:
    if num_carries < 0 or num_bcasts < 0 or num_carries + num_bcasts > len(operands):
        raise GraphError(
            f"{num_carries} carries and {num_bcasts} bcasts are not among {len(operands)} operands"
        )
    if not isinstance(length, Dim) and length < 0:
        raise GraphError(f"length is {length}, which is negative. Give 0 or more")
    whole, xs = operands[: num_carries + num_bcasts], operands[num_carries + num_bcasts :]
    for i, x in enumerate(xs, len(whole)):
        if x.rank == 0 or x.dims[0] != length:
            what = f"operand {i} is {x}, expected a leading dim of length={length}"
            raise dims_differ(what, x.dims[:1], (length,))
    made = _body_shapes("body", body, [*whole, *(x.with_dims(x.dims[1:]) for x in xs)])
    _check_kept("body", operands[:num_carries], made[:num_carries])
    ys = [y.with_dims([length, *y.dims]) for y in made[num_carries:]]
    return (*operands[:num_carries], *ys)


@op(
    "_[...]+ -> ",
    kind=Kind.CONTROL,
    shape=_scan_shape,
    flops=lambda shapes, results, attrs: attrs["length"] * graph_flops(attrs["body"]),
    is_exact=True,
    why_static=STATIC,
)
def scan(
    *operands: Array,
    body: Body,
    length: DimLike,
    num_carries: int,
    num_bcasts: int = 0,
    reverse: bool = False,
) -> tuple[Array, ...]:
    """`body` applied `length` times. Operands are the first carries, then what every step sees
    whole, then what each step sees one slice of, along the first axis. The body gives the next
    carries and the step's results; the op gives the last carries and the results stacked.
    `reverse` starts at the last slice."""
    graph: Any = body
    carries, whole, xs = _parts(operands, num_carries, num_bcasts)
    steps = range(int(length))
    stacked = [
        np.empty((len(steps), *o.shape.static_dims), o.shape.dtype.numpy)
        for o in graph.outputs[num_carries:]
    ]
    for t in reversed(steps) if reverse else steps:
        made = run(graph, [*carries, *whole, *(x[t] for x in xs)])
        carries = made[:num_carries]
        for y, row in zip(stacked, made[num_carries:]):
            y[t] = row
    return (*carries, *stacked)


def _parts(operands: Sequence[Any], num_carries: int, num_bcasts: int) -> list[list[Any]]:
    end = num_carries + num_bcasts
    return [list(operands[:num_carries]), list(operands[num_carries:end]), list(operands[end:])]


@scan.lowering
def _(
    *operands: Any, body: Any, length: DimLike, num_carries: int, num_bcasts: int, reverse: bool
) -> tuple[Any, ...]:
    if isinstance(length, Dim):
        raise UnsupportedError(f"a scan of length {length} cannot be written out")
    _check_small((body,), length, runs_unasked=False)
    carries, whole, xs = _parts(operands, num_carries, num_bcasts)
    rows: dict[int, list[Any]] = {}
    for t in reversed(range(length)) if reverse else range(length):
        slices = [ops.squeeze(ops.narrow(x, axis=0, start=t, length=1), axes=(0,)) for x in xs]
        made = apply(body, [*carries, *whole, *slices])
        carries = made[:num_carries]
        rows[t] = [ops.expand_dims(y, axes=(0,)) for y in made[num_carries:]]
    if length == 0:
        return (*carries, *(_no_rows(operands[0], o.shape) for o in body.outputs[num_carries:]))
    columns = zip(*(rows[t] for t in range(length)))
    return (*carries, *(ops.concat(list(column), axis=0) for column in columns))


def _no_rows(beside: Any, row: Shape) -> Any:
    """A stack of no rows, in the graph of `beside` if it is a node."""
    nothing = np.zeros((0, *(1 for _ in row.dims)), row.dtype.numpy)
    made = beside.graph.constant(nothing) if hasattr(beside, "graph") else nothing
    return ops.expand(made, dims=(0, *row.dims))


# -- custom ---------------------------------------------------------------------------------------


def _custom_shape(*shapes: Shape, name: str, options: str) -> tuple[Shape, ...]:
    return registry.shapes_of(name, shapes, options)


@op(
    "_[...]+ -> ",
    kind=Kind.SPECIAL,
    shape=_custom_shape,
    flops=lambda shapes, results, attrs: sum(product(r.dims) for r in results),
    is_exact=True,
    syncs_host=True,
    jumps=True,
    why_no_lowering="only the program that registered it knows what it is",
    why_no_cases="its operands are known to the program that registered it",
)
def custom(*operands: Array, name: str, options: str = "{}") -> tuple[Array, ...]:
    """The op that `rlx.custom_op` registered under `name`, with options as a JSON object."""
    return registry.run(name, operands, options)


# -- samples --------------------------------------------------------------------------------------


def _graph(name: str, specs: Sequence[Spec]) -> tuple[Any, list[Any]]:
    return body_graph(name, [Shape(s.dims, s.dtype) for s in specs])


@if_.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = draw.dims(0, 4), draw.dtype("t")
    operands = [Spec(dims, dtype, "plain") for _ in range(2)]
    bodies: dict[str, Any] = {}
    for name, ops_ in (("then", (ops.add, ops.mul)), ("else", (ops.sub, ops.add))):
        graph, (x, y) = _graph(name, operands)
        graph.set_outputs([made(x, y) for made in ops_])
        bodies[name] = graph
    return [Spec((1,) * draw.integer(0, 2), DType.BOOL), *operands], bodies


@while_.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    """Count up by steps of the second carry, doubling the third."""
    count = Spec((), DType.I64, "plain")
    specs = [
        count,
        Spec((), DType.I64, "positive"),
        Spec(draw.dims(0, 3), draw.dtype("t"), "plain"),
    ]
    cond, (i, _, _) = _graph("cond", specs)
    cond.set_outputs([ops.less(i, draw.integer(-5, 5))])
    body, (i, step, x) = _graph("body", specs)
    body.set_outputs([ops.add(i, step), step, ops.add(x, x)])
    return specs, {"cond": cond, "body": body, "max_iterations": draw.integer(0, 6)}


@scan.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    """A cumulative sum of products with a factor that every step sees."""
    dims, dtype, length = draw.dims(0, 3), draw.dtype("t"), draw.integer(0, 5)
    one = Spec(dims, dtype, "plain")
    body, (total, factor, x) = _graph("body", [one, one, one])
    new = ops.add(total, ops.mul(factor, x))
    body.set_outputs([new, ops.sub(new, x), x])
    attrs = {"body": body, "length": length, "num_carries": 1, "num_bcasts": 1}
    return [one, one, Spec((length, *dims), dtype, "plain")], {**attrs, "reverse": draw.coin()}
