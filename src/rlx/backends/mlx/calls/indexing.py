"""Gather and scatter as calls of mlx, whose own indices wrap and whose reads past the end are
undefined: indices are tested, and clipped before they are used."""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.calls import Site
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType


def inside(indices: Any, axis: int, size: int, site: Site, operand: int = 1) -> Any:
    """The indices as i32 or i64, each one inside of the axis; what is not fails the call."""
    known = site.known(operand)
    wide = indices.astype(mx.int64)
    if known is None or not bool(((known >= 0) & (known < size)).all()):
        fits = mx.logical_and(wide >= 0, wide < size)
        site.require(fits, f"an index is out of range for axis {axis} of size {size}")
        wide = mx.clip(wide, 0, max(size - 1, 0))
    return wide.astype(mx.int32) if size < 2**31 else wide


@TABLE.call("gather")
def gather(x: Any, indices: Any, *, axis: int, site: Site) -> Any:
    where = inside(indices, axis, x.shape[axis], site)
    if 0 in x.shape or 0 in where.shape:
        return mx.zeros(site.result.static_dims, x.dtype)
    return mx.take(x, where, axis=axis)


@TABLE.call("embedding")
def embedding(table: Any, ids: Any, *, site: Site) -> Any:
    return gather(table, ids, axis=0, site=site)


@TABLE.call("take_along_axis")
def take_along_axis(x: Any, indices: Any, *, axis: int, site: Site) -> Any:
    where = inside(indices, axis, x.shape[axis], site)
    if 0 in x.shape or 0 in where.shape:
        return mx.zeros(site.result.static_dims, x.dtype)
    return mx.take_along_axis(x, where, axis=axis)


@TABLE.call("one_hot")
def one_hot(indices: Any, *, depth: int, to: DType, site: Site) -> Any:
    """Compared as i64, or u64 as such, which holds every place."""
    wide = mx.uint64 if indices.dtype == mx.uint64 else mx.int64
    line = mx.arange(depth, dtype=wide)
    return site.cast(mx.equal(indices.astype(wide)[..., None], line), to)


# -- writing --------------------------------------------------------------------------------------


def _rows(x: Any, indices: Any, updates: Any, axis: int, site: Site) -> tuple[Any, Any, Any]:
    """The axis to write in front, flat places, and an update for each of them."""
    where = mx.reshape(inside(indices, axis, x.shape[axis], site), (-1,))
    between = list(range(axis, axis + indices.ndim))
    rest = [a for a in range(updates.ndim) if a not in between]
    front = mx.transpose(updates, between + rest) if updates.ndim else updates
    table = mx.moveaxis(x, axis, 0)
    return table, where, mx.reshape(front, (where.size, *table.shape[1:]))


@TABLE.call("scatter_add")
def scatter_add(x: Any, indices: Any, updates: Any, *, axis: int, site: Site) -> Any:
    return scatter(x, indices, updates, axis=axis, reduction="add", site=site)


@TABLE.call("scatter")
def scatter(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str, site: Site) -> Any:
    if 0 in x.shape or 0 in updates.shape:
        inside(indices, axis, x.shape[axis], site)
        return x
    table, where, rows = _rows(x, indices, updates, axis, site)
    if reduction == "none":
        made = _last(table, where, rows)
    else:
        names = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
        made = getattr(table.at[where], names[reduction])(rows)
    return mx.moveaxis(made, 0, axis)


def _last(table: Any, where: Any, rows: Any) -> Any:
    """Where one place is written several times, the last update stays: the greatest of their
    numbers is found first, as a device writes in any order."""
    count = where.size
    none = mx.full((table.shape[0],), -1, dtype=mx.int32)
    winner = none.at[where].maximum(mx.arange(count, dtype=mx.int32))
    chosen = mx.take(rows, mx.maximum(winner, 0), axis=0)
    is_written = mx.reshape(winner >= 0, (-1, *[1] * (table.ndim - 1)))
    return mx.where(is_written, chosen, table)


# -- updates of states ----------------------------------------------------------------------------


@TABLE.call("assign")
def assign(x: Any, value: Any) -> Any:
    return value


@TABLE.call("append")
def append(x: Any, rows: Any, at: Any, slots: Any = None, *, axis: int, site: Site) -> Any:
    """Slices that are written one after the other."""
    most, wide = x.shape[axis] - rows.shape[axis], at.astype(mx.int64)
    text = f"rows do not fit at their position along axis {axis}"
    site.require(mx.logical_and(wide >= 0, wide <= most), text)
    if slots is not None:
        slots = inside(slots, 0, x.shape[0], site, 3).astype(mx.int32)
    if rows.size == 0:
        return x
    starts = mx.clip(wide, 0, most).astype(mx.int32)
    if at.ndim == 0:
        return mx.slice_update(x, rows, mx.reshape(starts, (1,)), axes=(axis,))
    for number in range(rows.shape[0]):
        entry = mx.array(number, mx.int32) if slots is None else slots[number]
        where = mx.stack([entry, starts[number]])
        x = mx.slice_update(x, rows[number : number + 1], where, axes=(0, axis))
    return x
