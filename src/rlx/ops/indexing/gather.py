"""Gather and scatter-add by index. No index wraps: out of range is an error."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape, dims_differ
from rlx.ops.compose import nullary
from rlx.ops.indexing.movement import dims_of, movement
from rlx.ops.op import Array, Kind, op

_READS = "a primitive: where it reads is data"
_FIRST = Axis(0)
_LAST = Axis(-1)


def checked_indices(indices: Array, axis: int, size: int) -> Array:
    """The indices as NumPy takes them, each one inside the axis."""
    outside = (indices < 0) | (indices >= size)
    if np.any(outside):
        where = tuple(int(w) for w in np.argwhere(outside)[0])
        at = f" at {list(where)}" if where else ""
        raise Error(f"index {indices[where]}{at} is out of range for axis {axis} of size {size}")
    return indices.astype(np.intp)


def gathered(x: Shape, indices: Shape, *, axis: int) -> Shape:
    return x.with_dims((*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]))


@movement("a[...], i[...] -> a[...]", shape=gathered, aliases=("take",), why_no_lowering=_READS)
def gather(x: Array, indices: Array, *, axis: Axis = _FIRST) -> Array:
    """The entries of an axis at `indices`, whose dims take the place of the axis."""
    return np.take(x, checked_indices(indices, axis, x.shape[axis]), axis)


@movement("a[v d], i[*b] -> a[*b d]")
def embedding(table: Array, ids: Array) -> Array:
    """The rows of `table` at `ids`."""
    return np.take(table, checked_indices(ids, 0, table.shape[0]), 0)


@embedding.lowering
def _(table: Any, ids: Any) -> Any:
    return ops.gather(table, ids, axis=0)


def _along(x: Shape, indices: Shape, *, axis: int) -> Shape:
    is_compatible = x.rank == indices.rank and all(
        d == i for a, (d, i) in enumerate(zip(x.dims, indices.dims)) if a != axis
    )
    if not is_compatible:
        raise GraphError(
            f"indices are {indices}, but x is {x}: all dims but that of axis {axis} must be equal"
        )
    return x.with_dims(indices.dims)


@movement(
    "a[...], i[...] -> a[...]",
    shape=_along,
    aliases=("gather_elements",),
    why_no_lowering=_READS,
)
def take_along_axis(x: Array, indices: Array, *, axis: Axis = _LAST) -> Array:
    """For each place of `indices`, the entry of x with that index on the axis, and otherwise
    in the same place."""
    return np.take_along_axis(x, checked_indices(indices, axis, x.shape[axis]), axis)


def _added(x: Shape, indices: Shape, updates: Shape, *, axis: int) -> Shape:
    wanted = gathered(x, indices, axis=axis)
    if updates.dims != wanted.dims:
        what = f"updates are {updates}, expected {wanted}, as gather would give"
        raise dims_differ(what, updates.dims, wanted.dims)
    return x


@op(
    "t[...], i[...], t[...] -> t[...]",
    kind=Kind.SPECIAL,
    shape=_added,
    flops="size2",
    why_no_lowering="a primitive: where it adds is data, and indices may repeat",
)
def scatter_add(x: Array, indices: Array, updates: Array, *, axis: Axis = _FIRST) -> Array:
    """x with `updates` added to the entries of an axis at `indices`, in their order; the
    counterpart of gather."""
    made = np.array(x)
    places: Any = (slice(None),) * axis + (checked_indices(indices, axis, x.shape[axis]),)
    np.add.at(made, places, updates)
    return made


def _encoded(indices: Shape, *, depth: int, to: DType) -> Shape:
    if depth < 0:
        raise GraphError(f"depth is {depth}, which is negative. Give 0 or more")
    return Shape((*indices.dims, depth), to)


@op("i[*s] -> $to[*s depth]", kind=Kind.SPECIAL, shape=_encoded, is_exact=True)
def one_hot(indices: Array, *, depth: int, to: DType = DType.F32) -> Array:
    """A row of `depth` per index: 1 at the index, else 0. An index out of range gives zeros."""
    return (indices[..., None] == np.arange(depth)).astype(to.numpy)


@one_hot.lowering
def _(indices: Any, *, depth: int, to: DType) -> Any:
    """Wide enough for every place: places and indices are compared as i64, or u64 as such."""
    wide = DType.U64 if DType.of(indices.dtype) is DType.U64 else DType.I64
    column = ops.cast(ops.expand_dims(indices, axes=(len(dims_of(indices)),)), to=wide)
    line = nullary(column, "iota", dims=(depth,), axis=0, dtype=wide)
    return ops.cast(ops.equal(column, line), to=to)


# -- samples --------------------------------------------------------------------------------------


def _indices(draw: Any, dims: tuple[int, ...], size: int) -> Any:
    from rlx.ops.draw import Spec

    return Spec(dims, draw.dtype("i"), f"index:{size}")


def _indexed(draw: Any, letter: str) -> tuple[Any, Any, int]:
    """Something to index, an axis of it that has entries or no index, and the indices."""
    from rlx.ops.draw import Spec

    dims = draw.dims(1, 4)
    axis = draw.integer(0, len(dims) - 1)
    run = draw.dims(0, 2)
    if dims[axis] == 0:
        run = (*run, 0)
    return Spec(dims, draw.dtype(letter)), _indices(draw, run, dims[axis]), axis


@gather.sample
def _(draw: Any) -> Any:
    x, indices, axis = _indexed(draw, "a")
    return [x, indices], {"axis": axis - len(x.dims) * draw.coin(0.3)}


@embedding.sample
def _(draw: Any) -> Any:
    from rlx.ops.draw import Spec

    rows, ids = draw.size(1), draw.dims(0, 4)
    table = Spec((rows, draw.size()), draw.dtype("a"))
    return [table, _indices(draw, ids, rows)], {}


@take_along_axis.sample
def _(draw: Any) -> Any:
    x, _, axis = _indexed(draw, "a")
    count = draw.size() if x.dims[axis] else 0
    dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    return [x, _indices(draw, dims, x.dims[axis])], {"axis": axis - len(x.dims) * draw.coin(0.3)}


@scatter_add.sample
def _(draw: Any) -> Any:
    x, indices, axis = _indexed(draw, "t")
    dims = (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :])
    return [x, indices, type(x)(dims, x.dtype)], {"axis": axis}


@one_hot.sample
def _(draw: Any) -> Any:
    depth = draw.size()
    indices = _indices(draw, draw.dims(0, 4), depth + draw.coin(0.3))
    return [indices], {"depth": depth, "to": draw.dtype("a")}
