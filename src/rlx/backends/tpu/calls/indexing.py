"""Gather and scatter. XLA moves an index that is out of range; here it is an error that names the
node, raised from a flag that the segment computes beside its results.

Updates that are put, and not combined, go in order: XLA writes equal places in any order, so only
the last update of each place is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.ops.op import Array

WORD = np.dtype(np.int32)
MAX_WORD = int(np.iinfo(WORD).max)
MODE = "promise_in_bounds"
INSIDE: Any = {"mode": MODE, "wrap_negative_indices": False}
"""Indices have been moved inside by then."""


def places(site: Site, indices: Any, size: int, axis: int, known: Array | None = None) -> Any:
    """The indices as places of an axis: inside, or the call is an error."""
    wide = _comparable(indices, size)
    if known is None or np.any((known < 0) | (known >= size)):
        inside = (wide >= 0) & (wide < size)
        site.require(inside, f"an index is out of range for axis {axis} of size {size}")
    least, most = (np.asarray(n, wide.dtype) for n in (0, max(size - 1, 0)))
    moved = lax.clamp(least, wide, most)
    return moved.astype(WORD) if size <= MAX_WORD else moved


def _comparable(indices: Any, size: int) -> Any:
    """In a dtype that holds the size of the axis."""
    given = np.dtype(indices.dtype)
    if size <= int(np.iinfo(given).max):
        return indices
    return indices.astype(WORD if size <= MAX_WORD else np.int64)


def _columns(site: Site, indices: Any, dims: Sequence[int]) -> list[Any]:
    """Rows of coordinates as places, one array for each axis."""
    known = site.known(1)
    return [
        places(site, indices[..., j], size, j, None if known is None else known[..., j])
        for j, size in enumerate(dims)
    ]


def _nothing(site: Site, x: Any) -> Any:
    return jnp.zeros(site.result.static_dims, x.dtype)


# -- reading --------------------------------------------------------------------------------------


@TABLE.call("gather")
def gather(x: Any, indices: Any, *, axis: int, site: Site) -> Any:
    where = places(site, indices, x.shape[axis], axis, site.known(1))
    if not x.size or not where.size:
        return _nothing(site, x)
    return x.at[(slice(None),) * axis + (where,)].get(**INSIDE)


@TABLE.call("embedding")
def embedding(table: Any, ids: Any, *, site: Site) -> Any:
    return gather(table, ids, axis=0, site=site)


@TABLE.call("take_along_axis")
def take_along_axis(x: Any, indices: Any, *, axis: int, site: Site) -> Any:
    where = places(site, indices, x.shape[axis], axis, site.known(1))
    if not x.size or not where.size:
        return _nothing(site, x)
    return jnp.take_along_axis(x, where, axis, mode=MODE)


@TABLE.call("gather_nd")
def gather_nd(x: Any, indices: Any, *, batch_dims: int, site: Site) -> Any:
    count = indices.shape[-1]
    inner = _columns(site, indices, x.shape[batch_dims : batch_dims + count])
    if not x.size or not indices.size:
        return _nothing(site, x)
    outer = [lax.broadcasted_iota(WORD, indices.shape[:-1], a) for a in range(batch_dims)]
    return x.at[(*outer, *inner)].get(**INSIDE)


# -- writing --------------------------------------------------------------------------------------


def _written(rows: Any, where: Any, updates: Any, reduction: str, known: Array | None) -> Any:
    """`rows` with updates[i] put into, or combined with, the row where[i]."""
    if not rows.size or not updates.size:
        return rows
    if reduction != "none":
        combine = {"add": "add", "mul": "multiply", "max": "max", "min": "min"}[reduction]
        return getattr(rows.at[where], combine)(updates, **INSIDE)
    if known is None or len(np.unique(known)) < known.size:
        where = _last_of_each(where, len(rows))
    return rows.at[where].set(updates, mode="drop", unique_indices=True)


def _last_of_each(where: Any, size: int) -> Any:
    """The places with all but the last of equals past the end, each at a place of its own."""
    number = lax.iota(WORD, len(where))
    last = jnp.full(size, -1, WORD).at[where].max(number, **INSIDE)
    return jnp.where(last[where] == number, where, size + number)


def _flat(columns: Sequence[Any], dims: Sequence[int]) -> Any:
    """Coordinates as row-major numbers."""
    wide = WORD if math.prod(dims) <= MAX_WORD else np.int64
    total = columns[0].astype(wide)
    for column, size in zip(columns[1:], dims[1:]):
        total = total * size + column
    return total


@TABLE.call("scatter")
def scatter(
    x: Any, indices: Any, updates: Any, *, axis: int, reduction: str = "none", site: Site
) -> Any:
    known = site.known(1)
    where = places(site, indices, x.shape[axis], axis, known).reshape(-1)
    rows = jnp.moveaxis(x, axis, 0)
    between = tuple(range(axis, axis + indices.ndim))
    front = jnp.moveaxis(updates, between, tuple(range(indices.ndim)))
    front = front.reshape(len(where), *rows.shape[1:])
    return jnp.moveaxis(_written(rows, where, front, reduction, known), 0, axis)


@TABLE.call("scatter_add")
def scatter_add(x: Any, indices: Any, updates: Any, *, axis: int, site: Site) -> Any:
    return scatter(x, indices, updates, axis=axis, reduction="add", site=site)


@TABLE.call("scatter_elements")
def scatter_elements(
    x: Any, indices: Any, updates: Any, *, axis: int, reduction: str, site: Site
) -> Any:
    columns = [lax.broadcasted_iota(WORD, indices.shape, a) for a in range(x.ndim)]
    columns[axis] = places(site, indices, x.shape[axis], axis, site.known(1))
    flat = _flat(columns, x.shape).reshape(-1)
    made = _written(x.reshape(-1), flat, updates.reshape(-1), reduction, None)
    return made.reshape(x.shape)


@TABLE.call("scatter_nd")
def scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str, site: Site) -> Any:
    count = indices.shape[-1]
    dims, rest = x.shape[:count], x.shape[count:]
    flat = _flat(_columns(site, indices, dims), dims).reshape(-1)
    rows = x.reshape(math.prod(dims), *rest)
    front = updates.reshape(flat.size, *rest)
    return _written(rows, flat, front, reduction, None).reshape(x.shape)


@TABLE.call("reverse_sequence")
def reverse_sequence(x: Any, lengths: Any, *, batch_axis: int, time_axis: int, site: Site) -> Any:
    steps = x.shape[time_axis]
    wide = _comparable(lengths, steps)
    fits = (wide >= 0) & (wide <= steps)
    site.require(fits, f"a length is out of range for {steps} steps")
    if not x.size:
        return x
    time = lax.broadcasted_iota(WORD, x.shape, time_axis)
    across = [-1 if a == batch_axis else 1 for a in range(x.ndim)]
    ends = jnp.clip(wide, 0, steps).astype(WORD).reshape(across)
    source = jnp.where(time < ends, ends - 1 - time, time)
    return jnp.take_along_axis(x, source, time_axis, mode=MODE)


# -- updates of states ----------------------------------------------------------------------------


@TABLE.call("assign")
def assign(x: Any, value: Any) -> Any:
    """A copy: the next call consumes the state, which may be an argument of this one, too."""
    return jnp.copy(value)


@TABLE.call("append")
def append(x: Any, rows: Any, at: Any, slots: Any = None, *, axis: int, site: Site) -> Any:
    """Slices that are written one after the other, in place where XLA may consume x."""
    starts = _starts(site, at, x.shape[axis] - rows.shape[axis], axis)
    if rows.size == 0:
        return jnp.copy(x)
    if at.ndim == 0:
        return lax.dynamic_update_slice_in_dim(x, rows, starts, axis)
    entries = jnp.arange(rows.shape[0], dtype=WORD)
    entries = entries if slots is None else places(site, slots, x.shape[0], 0).astype(WORD)

    def step(number: Any, made: Any) -> Any:
        where = [jnp.zeros((), WORD)] * x.ndim
        where[0], where[axis] = entries[number], starts[number]
        return lax.dynamic_update_slice(made, lax.dynamic_slice_in_dim(rows, number, 1), where)

    return lax.fori_loop(0, rows.shape[0], step, x)


def _starts(site: Site, at: Any, most: int, axis: int) -> Any:
    """Positions from which rows fit; the call is an error where one is another."""
    wide = at.astype(np.int64)
    text = f"rows do not fit at their position along axis {axis}"
    site.require((wide >= 0) & (wide <= most), text)
    return lax.clamp(np.int64(0), wide, np.int64(most)).astype(WORD)
