"""Gather and scatter by rows, elements or coordinates.

No index is wrapped: one out of range is an error. A model that counts from the back, as ONNX
allows, adds the size to negative indices first. Where one place is written several times without
a reduction the last update wins, in row-major order of the indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import Dim, DimLike, product, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape, dims_differ, may_exceed
from rlx.ops.compose import composed, dims_of, nullary, shape_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.gather import checked_indices, gathered
from rlx.ops.op import Array, Kind, op

Reduction = Literal["none", "add", "mul", "max", "min"]
_FIRST = Axis(0)
_RUNS = Axis(-2)
_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _check_reduction(x: Shape, reduction: Reduction) -> None:
    """Can values of this dtype be combined so?"""
    if x.dtype is DType.BOOL and reduction != "none":
        raise GraphError(f"x is {x}: reduction {reduction} takes numbers. Cast it to u8 first")
    if x.dtype.is_complex and reduction in ("max", "min"):
        raise GraphError(f"x is {x}: complex numbers have no {reduction}")


def _written(rows: Array, places: Array, updates: Array, reduction: Reduction) -> Array:
    """`rows` with updates[i] put into, or combined with, the row places[i], in order."""
    made = np.array(rows, order="C")
    if reduction != "none":
        _UFUNCS[reduction].at(made, places, updates)
        return made
    kept, from_end = np.unique(places[::-1], return_index=True)
    made[kept] = updates[len(places) - 1 - from_end]
    return made


# -- whole rows -----------------------------------------------------------------------------------


def _scattered(
    x: Shape, indices: Shape, updates: Shape, *, axis: int, reduction: Reduction
) -> Shape:
    _check_reduction(x, reduction)
    wanted = gathered(x, indices, axis=axis)
    if updates.dims != wanted.dims:
        what = f"updates are {updates}, expected {wanted}, as gather would give"
        raise dims_differ(what, updates.dims, wanted.dims)
    return x


@op(
    "a[...], i[...], a[...] -> a[...]",
    kind=Kind.SPECIAL,
    shape=_scattered,
    flops="size2",
    why_no_lowering="a primitive: where it writes is data, and indices may repeat",
)
def scatter(
    x: Array,
    indices: Array,
    updates: Array,
    *,
    axis: Axis = _FIRST,
    reduction: Reduction = "none",
) -> Array:
    """x with `updates` put into the entries of an axis at `indices`, or combined with them; the
    counterpart of gather."""
    places = checked_indices(indices, axis, x.shape[axis]).ravel()
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    between = tuple(range(axis, axis + indices.ndim))
    front = np.moveaxis(updates, between, tuple(range(indices.ndim)))
    rows = front.reshape((len(places), *rest))
    return np.moveaxis(_written(np.moveaxis(x, axis, 0), places, rows, reduction), 0, axis)


# -- single elements ------------------------------------------------------------------------------


def _elements(
    x: Shape, indices: Shape, updates: Shape, *, axis: int, reduction: Reduction
) -> Shape:
    _check_reduction(x, reduction)
    if updates.dims != indices.dims:
        what = f"updates are {updates}, but indices are {indices}: one update each"
        raise dims_differ(what, updates.dims, indices.dims)
    if indices.rank != x.rank:
        raise GraphError(f"indices are {indices}, but x is {x}: their ranks must be equal")
    for a, (i, d) in enumerate(zip(indices.dims, x.dims)):
        if a != axis and not provably_le(i, d):
            what = f"indices are {indices}, but x is {x}: {i} on axis {a} may exceed {d}"
            raise may_exceed(what, i, d)
    return x


@op("a[...], i[...], a[...] -> a[...]", kind=Kind.SPECIAL, shape=_elements, flops="size2")
def scatter_elements(
    x: Array,
    indices: Array,
    updates: Array,
    *,
    axis: Axis = _FIRST,
    reduction: Reduction = "none",
) -> Array:
    """x with each update put into, or combined with, the element that has its index on the axis
    and otherwise its own place; the counterpart of take_along_axis."""
    places: list[Array] = [*np.indices(indices.shape, sparse=True)]
    places[axis] = checked_indices(indices, axis, x.shape[axis])
    flat = _raveled(places, x.shape, indices.shape)
    return _written(x.reshape(-1), flat, updates.reshape(-1), reduction).reshape(x.shape)


def _raveled(places: Sequence[Array], dims: Sequence[int], wanted: Sequence[int]) -> Array:
    """Coordinates as row-major numbers, in row-major order of where they stand."""
    flat = np.zeros((), np.intp)
    for place, size in zip(places, dims, strict=True):
        flat = flat * size + place
    return np.broadcast_to(flat, wanted).reshape(-1)


@scatter_elements.lowering
def _(x: Any, indices: Any, updates: Any, *, axis: int, reduction: Reduction) -> Any:
    dims, wanted = dims_of(x), dims_of(indices)
    places = [nullary(x, "iota", dims=wanted, axis=a, dtype=DType.I64) for a in range(len(dims))]
    places[axis] = ops.cast(indices, to=DType.I64)
    flat = _numbered(x, places, dims)
    made = ops.scatter(
        ops.reshape(x, dims=(product(dims),)),
        ops.reshape(flat, dims=(product(wanted),)),
        ops.reshape(updates, dims=(product(wanted),)),
        axis=0,
        reduction=reduction,
    )
    return ops.reshape(made, dims=dims)


def _numbered(x: Any, places: Sequence[Any], dims: Sequence[DimLike]) -> Any:
    """Coordinates as row-major numbers; -1, which is no place, where one is out of range."""
    flat: Any = None
    inside: Any = None
    for place, dim in zip(places, dims, strict=True):
        size = nullary(x, "extent", dim=dim) if isinstance(dim, Dim) else dim
        fits = ops.logical_and(ops.greater_equal(place, 0), ops.less(place, size))
        flat = place if flat is None else ops.add(ops.mul(flat, size), place)
        inside = fits if inside is None else ops.logical_and(inside, fits)
    return ops.where(inside, flat, -1)


# -- by coordinates -------------------------------------------------------------------------------


def _coordinates(x: Shape, indices: Shape, batch: int) -> int:
    """How many axes the rows of `indices` name, after those of the batch."""
    count = indices.dims[-1] if indices.rank else None
    if count is None or isinstance(count, Dim) or not 1 <= count <= x.rank - batch:
        raise GraphError(
            f"indices are {indices}: their last dim is a row of coordinates, which must be 1 to "
            f"{x.rank - batch} for x of {x}" + (f" after {batch} batch dims" if batch else "")
        )
    return count


def _read(x: Shape, indices: Shape, *, batch_dims: int) -> Shape:
    if not 0 <= batch_dims < min(x.rank, indices.rank):
        raise GraphError(f"batch_dims {batch_dims} is out of range for x of {x} and {indices}")
    if x.dims[:batch_dims] != indices.dims[:batch_dims]:
        what = f"x is {x} and indices are {indices}: their batch dims must be equal"
        raise dims_differ(what, x.dims[:batch_dims], indices.dims[:batch_dims])
    count = _coordinates(x, indices, batch_dims)
    return x.with_dims((*indices.dims[:-1], *x.dims[batch_dims + count :]))


@op("a[...], i[...] -> a[...]", kind=Kind.SPECIAL, shape=_read, flops="0", is_exact=True)
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """For each row of `indices`, what x has at those coordinates. The first `batch_dims` axes
    belong together: each batch of indices reads its own part of x."""
    count = indices.shape[-1]
    wanted = indices.shape[:-1]
    inner = _split(indices, x.shape[batch_dims : batch_dims + count])
    places = [*np.indices(wanted, sparse=True)[:batch_dims], *inner]
    known = x.shape[: batch_dims + count]
    rows = x.reshape((math.prod(known), *x.shape[batch_dims + count :]))
    return rows[_raveled(places, known, wanted)].reshape((*wanted, *rows.shape[1:]))


def _split(indices: Array, dims: Sequence[int]) -> list[Array]:
    """Rows of coordinates as one array per axis, each inside it."""
    found: list[Array] = []
    for j, size in enumerate(dims):
        try:
            found.append(checked_indices(indices[..., j], j, size))
        except Error as error:
            raise Error(f"coordinate {j} of a row: {error}") from None
    return found


@gather_nd.lowering
def _(x: Any, indices: Any, *, batch_dims: int) -> Any:
    dims, wanted = dims_of(x), dims_of(indices)[:-1]
    inner = _columns(indices)
    count = batch_dims + len(inner)
    outer = [nullary(x, "iota", dims=wanted, axis=a, dtype=DType.I64) for a in range(batch_dims)]
    flat = _numbered(x, [*outer, *inner], dims[:count])
    rows = ops.reshape(x, dims=(product(dims[:count]), *dims[count:]))
    return ops.gather(rows, flat, axis=0)


def _columns(indices: Any) -> list[Any]:
    """Rows of coordinates as one value per axis."""
    dims = dims_of(indices)
    wide = ops.cast(indices, to=DType.I64)
    last = len(dims) - 1
    return [
        ops.reshape(ops.narrow(wide, axis=last, start=j, length=1), dims=dims[:-1])
        for j in range(int(dims[-1]))  # pyright: ignore[reportArgumentType]
    ]


def _put(x: Shape, indices: Shape, updates: Shape, *, reduction: Reduction) -> Shape:
    _check_reduction(x, reduction)
    wanted = (*indices.dims[:-1], *x.dims[_coordinates(x, indices, 0) :])
    if updates.dims != wanted:
        text = f"updates are {updates}, expected {x.with_dims(wanted)}"
        raise dims_differ(text, wanted, updates.dims)
    return x


@op("a[...], i[...], a[...] -> a[...]", kind=Kind.SPECIAL, shape=_put, flops="size2")
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: Reduction = "none") -> Array:
    """x with each update put into, or combined with, what is at the coordinates in its row of
    `indices`; the counterpart of gather_nd."""
    count = indices.shape[-1]
    known, rest = x.shape[:count], x.shape[count:]
    flat = _raveled(_split(indices, known), known, indices.shape[:-1])
    rows = x.reshape((math.prod(known), *rest))
    return _written(rows, flat, updates.reshape((len(flat), *rest)), reduction).reshape(x.shape)


@scatter_nd.lowering
def _(x: Any, indices: Any, updates: Any, *, reduction: Reduction) -> Any:
    dims, inner = dims_of(x), _columns(indices)
    flat = _numbered(x, inner, dims[: len(inner)])
    rows = ops.reshape(x, dims=(product(dims[: len(inner)]), *dims[len(inner) :]))
    return ops.reshape(ops.scatter(rows, flat, updates, axis=0, reduction=reduction), dims=dims)


# -- KV-cache updates ----------------------------------------------------------------------------


def _check_run(cache: Any, update: Any, axis: int) -> None:
    old, new = dims_of(cache), dims_of(update)
    if axis == 0:
        raise GraphError("axis is 0, which is the batch's: updates are along another")
    is_compatible = (
        len(old) == len(new) and old[:axis] + old[axis + 1 :] == new[:axis] + new[axis + 1 :]
    )
    if not is_compatible or not provably_le(new[axis], old[axis]):
        raise GraphError(
            f"update is {shape_of(update)}, but the cache is {shape_of(cache)}: all dims but that "
            f"of axis {axis} must be equal, and that one no greater"
        )


@composed("a[...], a[...], i64[b]? -> a[...]", kind=Kind.SPECIAL)
def tensor_scatter(
    cache: Any,
    update: Any,
    starts: Any = None,
    *,
    axis: Axis = _RUNS,
    mode: Literal["linear", "circular"] = "linear",
) -> Any:
    """The cache with `update` written over a run of `axis` that begins at `starts`, one place for
    each entry of axis 0, or at 0. A `circular` run goes on at the front where the axis ends, and
    its start may be anywhere; a linear one that leaves the axis is an error."""
    _check_run(cache, update, axis)
    dims, size = dims_of(update), dims_of(cache)[axis]
    places = nullary(cache, "iota", dims=dims, axis=axis, dtype=DType.I64)
    length = nullary(cache, "extent", dim=size) if isinstance(size, Dim) else np.int64(size)
    if starts is not None:
        if dims_of(starts) != dims[:1]:
            raise GraphError(f"starts are {shape_of(starts)}, but the batch is {dims[0]}")
        first = ops.mod(starts, length) if mode == "circular" else starts
        first = ops.expand_dims(first, axes=tuple(range(1, len(dims))))
        places = ops.add(places, first)
        places = ops.mod(places, length) if mode == "circular" else places
    return ops.scatter_elements(cache, places, update, axis=axis)


# -- drawing --------------------------------------------------------------------------------------


def _draw_reduction(draw: Draw) -> tuple[DType, Reduction]:
    reduction: Reduction = draw.choice(("none", "none", "add", "mul", "max", "min"))
    letter = {"none": "a", "max": "n", "min": "n"}.get(reduction, "t")
    return draw.dtype(letter), reduction


def _draw_indices(draw: Draw, dims: tuple[int, ...], size: int) -> Spec:
    return Spec(dims, draw.dtype("i"), f"index:{size}")


@scatter.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, reduction = _draw_reduction(draw)
    dims, run = draw.dims(1, 4), draw.dims(0, 2)
    axis = draw.integer(0, len(dims) - 1)
    run = run if dims[axis] else (*run, 0)
    specs = [
        Spec(dims, dtype),
        _draw_indices(draw, run, dims[axis]),
        Spec((*dims[:axis], *run, *dims[axis + 1 :]), dtype),
    ]
    return specs, {"axis": axis - len(dims) * draw.coin(0.3), "reduction": reduction}


@scatter_elements.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, reduction = _draw_reduction(draw)
    dims = draw.dims(1, 4)
    axis = draw.integer(0, len(dims) - 1)
    count = draw.size() if dims[axis] else 0
    run = tuple(
        count if a == axis else draw.integer(0, d) if draw.coin(0.3) else d
        for a, d in enumerate(dims)
    )
    specs = [Spec(dims, dtype), _draw_indices(draw, run, dims[axis]), Spec(run, dtype)]
    return specs, {"axis": axis - len(dims) * draw.coin(0.3), "reduction": reduction}


def _draw_rows(draw: Draw, dims: tuple[int, ...], batch: int) -> Spec:
    """Rows of coordinates into `dims`: each below the least of the sizes it is to fit."""
    count = draw.integer(1, len(dims) - batch)
    least = min(dims[batch : batch + count])
    run = (*dims[:batch], *draw.dims(0, 2))
    run = run if least or 0 in run else (*run, 0)
    return _draw_indices(draw, (*run, count), least)


@gather_nd.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(1, 4)
    batch = draw.integer(0, len(dims) - 1)
    rows = _draw_rows(draw, dims, batch)
    return [Spec(dims, draw.dtype("a")), rows], {"batch_dims": batch}


@scatter_nd.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, reduction = _draw_reduction(draw)
    dims = draw.dims(1, 4)
    rows = _draw_rows(draw, dims, 0)
    updates = Spec((*rows.dims[:-1], *dims[rows.dims[-1] :]), dtype)
    return [Spec(dims, dtype), rows, updates], {"reduction": reduction}


@tensor_scatter.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = draw.dims(2, 4), draw.dtype("a")
    axis = draw.integer(1, len(dims) - 1)
    length = draw.integer(0, dims[axis])
    mode = draw.choice(("linear", "circular"))
    domain = "any" if mode == "circular" else f"index:{dims[axis] - length + 1}"
    specs = [Spec(dims, dtype), Spec((*dims[:axis], length, *dims[axis + 1 :]), dtype)]
    starts = [Spec(dims[:1], DType.I64, domain)] * draw.coin(0.7)
    return [*specs, *starts], {"axis": axis - len(dims) * draw.coin(0.3), "mode": mode}
