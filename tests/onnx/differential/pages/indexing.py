"""Elements chosen by indices: gather, scatter, and what finds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import Array, Draw, Node, Operand, draws, explain, sums


@draws("Gather")
def _gather(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T")
    axis = d.axis(x.rank)
    where = d.indices(d.dims(0, 3), x.dims[axis])
    if d.opset < 11:
        where = Operand(np.abs(where.array) % max(x.dims[axis], 1), where.is_known)
    return d.node(x, where, **({} if axis == 0 and d.coin() else {"axis": axis}))


@draws("GatherElements")
def _gather_elements(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4, smallest=1), "T")
    axis = d.axis(x.rank)
    dims = [d.integer(0 if d.coin(0.2) else 1, n) for n in x.dims]
    dims[axis] = d.size()
    where = d.indices(dims, x.dims[axis])
    return d.node(x, where, **({} if axis == 0 and d.coin() else {"axis": axis}))


def _tuples(d: Draw, lead: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Index tuples of a tensor of these sizes, negative ones among them."""
    columns = [d.rng.integers(-n if d.coin() else 0, n, lead) for n in sizes]
    return np.stack(columns, axis=-1).astype(np.int64)


@draws("GatherND")
def _gather_nd(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4, smallest=1), "T")
    batch = d.integer(0, x.rank - 1) if d.has("batch_dims") and d.coin() else 0
    depth = d.integer(1, x.rank - batch)
    lead = (*x.dims[:batch], *d.dims(0 if d.opset >= 12 else 1, 2))
    where = _tuples(d, lead, x.dims[batch : batch + depth])
    attrs = {"batch_dims": batch} if batch or (d.has("batch_dims") and d.coin()) else {}
    return d.node(x, d.given(where, known=0.3), **attrs)


REDUCTIONS = {"": 0, "add": 16, "mul": 16, "max": 18, "min": 18}
"""By the opset that brought them; none is to leave the attribute out."""


def _reduction(d: Draw, kind: DType) -> str:
    known = [r for r, since in REDUCTIONS.items() if since <= d.opset and d.has("reduction")]
    known = ["", *known] if d.has("reduction") else [""]
    return "" if kind is DType.BOOL else d.choice(known)


@draws("Scatter", "ScatterElements")
def _scatter_elements(d: Draw) -> Node:
    """Without a reduction no element is named twice: any of them may stay."""
    kind = d.kind("T")
    x = d.tensor(d.dims(1, 4, smallest=1), kind, "plain")
    axis, how = d.axis(x.rank), _reduction(d, kind)
    if d.op == "Scatter" and d.opset < 11:
        axis %= x.rank
    dims = [d.integer(0 if d.coin(0.1) else 1, n) for n in x.dims]
    size = x.dims[axis]
    if how:
        dims[axis] = d.size()
        where = d.rng.integers(-size, size, dims)
    else:
        order = np.argsort(d.rng.random((*dims[:axis], size, *dims[axis:][1:])), axis=axis)
        where = np.take(order, range(dims[axis]), axis=axis)
        where = np.where(d.rng.random(where.shape) < 0.3, where - size, where)
    named = where.astype(d.kind("Tind").numpy)
    attrs: dict[str, Any] = {"axis": axis} if axis or d.coin() else {}
    attrs |= {"reduction": how} if how else d.some(0.2, reduction="none")
    updates = d.tensor(where.shape, kind, "plain")
    return d.node(x, d.given(named, known=0.3), updates, tolerance=sums(8, 100.0), **attrs)


@draws("ScatterND")
def _scatter_nd(d: Draw) -> Node:
    kind = d.kind("T")
    x = d.tensor(d.dims(1, 4, smallest=1), kind, "plain")
    depth, how = d.integer(1, x.rank), _reduction(d, kind)
    lead = d.dims(1, 2)
    where = _tuples(d, lead, x.dims[:depth])
    if not how:  # no place twice
        count = min(int(np.prod(x.dims[:depth])), max(1, int(np.prod(lead))))
        flat = d.rng.permutation(int(np.prod(x.dims[:depth])))[:count]
        where = np.stack(np.unravel_index(flat, x.dims[:depth]), axis=-1).astype(np.int64)
    updates = d.tensor((*where.shape[:-1], *x.dims[depth:]), kind, "plain")
    attrs = {"reduction": how} if how else d.some(0.2, reduction="none")
    return d.node(x, d.given(where, known=0.3), updates, tolerance=sums(8, 100.0), **attrs)


@draws("TensorScatter")
def _tensor_scatter(d: Draw) -> Node:
    dims = [d.integer(1, 4) for _ in range(d.integer(2, 4))]
    axis = d.integer(1, len(dims) - 1)
    mode = d.choice(("linear", "circular", None))
    part = list(dims)
    part[axis] = d.integer(1, dims[axis])
    most = dims[axis] - (0 if mode == "circular" else part[axis])
    most = most - 1 if mode == "circular" else most
    starts = d.given(d.rng.integers(0, most + 1, dims[0]).astype(np.int64)) if d.coin(0.8) else None
    attrs = {} if mode is None else {"mode": mode}
    attrs |= {} if axis == len(dims) - 2 and d.coin() else {"axis": d.signed(axis, len(dims))}
    return d.node(d.tensor(dims, "T"), d.tensor(part, "T"), starts, **attrs)


@draws("Compress")
def _compress(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 3), "T")
    axis = None if d.coin(0.3) else d.axis(x.rank) if d.opset >= 11 else d.integer(0, x.rank - 1)
    size = x.array.size if axis is None else x.dims[axis]
    keep = d.given(d.rng.random(d.integer(0, size)) < 0.5, known=0.3)
    return d.node(x, keep, **({} if axis is None else {"axis": axis}))


@draws("OneHot")
def _one_hot(d: Draw) -> Node:
    """Indices outside of the depth are of no class; those of opset 11 may be negative."""
    depth = d.integer(1, 5)
    wheres, depths = (
        [k for k in d.admitted(t) if k not in (DType.BOOL, DType.F16, DType.BF16)]
        for t in ("T1", "T2")
    )
    kind = DType.I64 if d.coin(0.7) else d.choice(wheres)
    low = 0 if kind.numpy.kind == "u" or d.opset < 11 else -depth - 1
    where = d.rng.integers(low, depth + 2, d.dims(0, 3)).astype(kind.numpy)
    axis = {"axis": d.integer(-where.ndim - 1, where.ndim)} if d.coin() else {}
    size = DType.I64 if d.coin(0.7) else d.choice(depths)
    one = Operand(np.array(depth, size.numpy), d.coin(0.7), has_names=False)
    if d.coin(0.3):
        one = Operand(one.array.reshape(1), one.is_known, has_names=False)
    values = d.tensor((2,), DType.F32 if d.coin() else "T3")
    return d.node(d.given(where), one, values, **axis)


def _chosen(node: Node) -> Array:
    where, depth = node.array(0), int(node.array(1).reshape(()))
    off, on = node.array(2)
    classes = np.arange(depth)
    where = np.where(where < 0, where + depth, where)
    return np.moveaxis(
        np.where(where[..., None] == classes, on, off), -1, node.attrs.get("axis", -1)
    )


explain(
    "OneHot",
    right=_chosen,
    why="each element is one of two values; onnx.reference adds and multiplies, so that infinities "
    "are NaN and values are rounded",
    when=lambda n: n.array(2).dtype.kind not in "iub",
)
