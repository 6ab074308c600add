"""Updates of arrays that are kept from call to call: rows appended at a position, all replaced.

Of an array of a graph each gives a new one. Of a state (`Graph.state`) it gives the state's next
version, which is written where the state lies: nothing is copied but the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import provably_le
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape, dims_differ, may_exceed
from rlx.ops.compose import dims_of, filled, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.gather import checked_indices
from rlx.ops.op import Array, Kind, op

_FIRST = Axis(0)


def _appended(x: Shape, rows: Shape, at: Shape, slots: Shape | None = None, *, axis: int) -> Shape:
    batch = _batch(x, rows, at, slots, axis)
    wanted = tuple(
        rows.dims[a] if a == axis else batch if a == 0 and at.rank == 1 else d
        for a, d in enumerate(x.dims[: rows.rank])
    )
    if rows.rank != x.rank or rows.dims != wanted:
        what = f"rows are {rows}, but x is {x}: all dims but that of axis {axis} must be equal"
        raise dims_differ(what, rows.dims, wanted)
    if not provably_le(rows.dims[axis], x.dims[axis]):
        what = f"{rows.dims[axis]} rows may be more than the {x.dims[axis]} that x holds"
        raise may_exceed(what, rows.dims[axis], x.dims[axis])
    return x


def _batch(x: Shape, rows: Shape, at: Shape, slots: Shape | None, axis: int) -> Any:
    """How many entries of the first axis are written, each at a position of its own."""
    if rows.rank != x.rank:
        raise GraphError(f"rows are {rows}, but x is {x}: their ranks must be equal")
    if at.rank == 0 and slots is None:
        return None
    if at.rank != 1 or axis == 0:
        raise GraphError(
            f"at is {at} and the axis is {axis}: one position, or one for each entry of the "
            "first axis, and rows along another"
        )
    if slots is not None and slots.dims != at.dims:
        raise dims_differ(f"slots are {slots}, but at is {at}", slots.dims, at.dims)
    if slots is None and at.dims[0] != x.dims[0]:
        raise GraphError(f"at is {at}, but x is {x}: a position for each entry, or slots as well")
    return at.dims[0]


@op(
    "a[...], a[...], i[...], i[...]? -> a[...]",
    kind=Kind.SPECIAL,
    shape=_appended,
    flops="size1",
    is_exact=True,
    is_update=True,
)
def append(
    x: Array, rows: Array, at: Array, slots: Array | None = None, *, axis: Axis = _FIRST
) -> Array:
    """x with `rows` written along an axis from the position `at` on. With a position for each entry
    of the first axis, entry b is written at at[b]; with `slots`, rows[b] go to entry slots[b].
    Rows that do not fit are an error. On a state it is written in place."""
    count, size = rows.shape[axis], x.shape[axis]
    checked_positions(at, count, size, axis)
    made = np.array(x, order="C")
    if at.ndim == 0:
        made[(slice(None),) * axis + (slice(int(at), int(at) + count),)] = rows
        return made
    chosen = np.arange(len(at)) if slots is None else checked_indices(slots, 0, x.shape[0])
    for entry, start, row in zip(chosen, at, rows):
        made[(entry, *(slice(None),) * (axis - 1), slice(int(start), int(start) + count))] = row
    return made


def checked_positions(at: Array, count: int, size: int, axis: int) -> None:
    """Rows from each position on must be inside the axis."""
    outside = (at < 0) | (at > size - count)
    if np.any(outside):
        start = int(np.asarray(at)[outside].reshape(-1)[0])
        raise Error(f"{count} rows at position {start} do not fit axis {axis} of size {size}")


@append.lowering
def _(x: Any, rows: Any, at: Any, slots: Any = None, *, axis: int) -> Any:
    """A scatter of rows; where the positions are many, into entries and positions as one axis.
    What does not fit goes to row -1, which is an error."""
    dims, count = dims_of(x), dims_of(rows)[axis]
    start = ops.cast(at, to=DType.I64)
    line = nullary(start, "iota", dims=(count,), axis=0, dtype=DType.I64)
    if len(dims_of(at)) == 0:
        return ops.scatter(x, ops.add(start, line), rows, axis=axis)
    batch = dims_of(at)[0]
    entry = nullary(start, "iota", dims=(batch,), axis=0, dtype=DType.I64)
    entry = entry if slots is None else ops.cast(slots, to=DType.I64)
    place = ops.add(ops.mul(entry, _size(start, dims[axis])), start)
    places = ops.add(ops.expand_dims(place, axes=(1,)), ops.expand_dims(line, axes=(0,)))
    fits = ops.expand_dims(_fits(entry, start, count, dims[0], dims[axis]), axes=(1,))
    places = ops.where(fits, places, filled(start, -1, (1, 1)))
    flat, moved = _flat(x, axis), _flat(rows, axis)
    made = ops.scatter(flat, ops.reshape(places, dims=(batch * count,)), moved, axis=0)
    return _unflat(made, dims, axis)


def _size(like: Any, dim: Any) -> Any:
    return nullary(like, "extent", dim=dim)


def _fits(entry: Any, start: Any, count: Any, entries: Any, size: Any) -> Any:
    """Is a position inside its entry, and the entry inside the array?"""
    last = ops.less_equal(ops.add(start, _size(start, count)), _size(start, size))
    known = ops.logical_and(
        ops.greater_equal(entry, filled(entry, 0, ())), ops.less(entry, _size(entry, entries))
    )
    first = ops.greater_equal(start, filled(start, 0, ()))
    return ops.logical_and(known, ops.logical_and(first, last))


def _flat(x: Any, axis: int) -> Any:
    """[entries · positions, rest] of an array with positions along an axis."""
    dims = dims_of(x)
    perm = _perm(len(dims), axis)
    rest = tuple(dims[a] for a in perm[2:])
    return ops.reshape(ops.transpose(x, perm=perm), dims=(dims[0] * dims[axis], *rest))


def _unflat(x: Any, dims: Sequence[Any], axis: int) -> Any:
    perm = _perm(len(dims), axis)
    back = tuple(perm.index(a) for a in range(len(dims)))
    return ops.transpose(ops.reshape(x, dims=tuple(dims[a] for a in perm)), perm=back)


def _perm(rank: int, axis: int) -> tuple[int, ...]:
    return (0, axis, *(a for a in range(1, rank) if a != axis))


@append.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, is_ragged = draw.dtype("a"), draw.coin(0.6)
    dims = draw.dims(2 if is_ragged else 1, 4, smallest=1)
    axis = draw.integer(1 if is_ragged else 0, len(dims) - 1)
    count = draw.integer(0, dims[axis])
    room = f"index:{dims[axis] - count + 1}"
    integer = draw.choice((DType.I32, DType.I64))
    has_slots = is_ragged and draw.coin()
    batch = draw.integer(0, dims[0]) if has_slots else dims[0]
    rows = tuple(count if a == axis else d for a, d in enumerate(dims))
    rows = (batch, *rows[1:]) if is_ragged else rows
    specs = [Spec(dims, dtype), Spec(rows, dtype)]
    specs.append(Spec((batch,) if is_ragged else (), integer, room))
    if has_slots:
        specs.append(Spec((batch,), integer, f"index:{dims[0]}"))
    return specs, {"axis": axis}


@op("a[*s], a[*s] -> a[*s]", kind=Kind.SPECIAL, flops="size1", is_exact=True, is_update=True)
def assign(x: Array, value: Array) -> Array:
    """`value` in the place of x. On a state, the state is overwritten at the end of the call."""
    return np.array(value, order="C")


@assign.lowering
def _(x: Any, value: Any) -> Any:
    return value
