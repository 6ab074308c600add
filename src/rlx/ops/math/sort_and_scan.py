"""Sorting, cumulative scans, triangular masks, and reversed sequences.

Everywhere NaN counts as greater than all, and equals keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.control_flow import scan_loop
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.movement import movement
from rlx.ops.math.reduction import LAST, carried, ordered, scanned
from rlx.ops.op import Array, Kind, op

_FIRST, _SECOND = Axis(0), Axis(1)

# -- order ----------------------------------------------------------------------------------------


@op(
    "n[*s n] -> i64[*s n]",
    kind=Kind.SPECIAL,
    flops="size0",
    why_no_lowering="sorting needs a dedicated kernel",
)
def argsort(x: Array, *, axis: Axis = LAST, descending: bool = False) -> Array:
    """Where the elements along `axis` are, from the least to the greatest or the other way round;
    always stable. NaN counts as greater than all."""
    return ordered(x, axis, descending)


@op("n[*s n] -> n[*s n]", kind=Kind.SPECIAL, flops="size0")
def sort(x: Array, *, axis: Axis = LAST, descending: bool = False) -> Array:
    """The elements along `axis` from the least to the greatest, or the other way round; always
    stable. NaN counts as greater than all."""
    return np.take_along_axis(x, ordered(x, axis, descending), axis)


@sort.lowering
def _(x: Any, *, axis: int, descending: bool) -> Any:
    return ops.take_along_axis(x, ops.argsort(x, axis=axis, descending=descending), axis=axis)


@op("n[n], n[*s] -> i64[*s]", kind=Kind.SPECIAL, flops="size0*size1")
def searchsorted(edges: Array, values: Array, *, side: Literal["left", "right"] = "left") -> Array:
    """How many edges are less than each value (`left`), or not greater (`right`): where it would
    stand among them in order. Edges need not be sorted; NaN counts as greater than all."""
    return np.searchsorted(np.sort(edges), values, side).astype(np.int64)


@searchsorted.lowering
def _(edges: Any, values: Any, *, side: str) -> Any:
    column = ops.expand_dims(values, axes=(len(dims_of(values)),))
    before = ops.less(edges, column) if side == "left" else ops.less_equal(edges, column)
    if dtype_of(edges).is_float:
        last = ops.is_nan(column)
        numbers = ops.logical_not(ops.is_nan(edges))
        after_all = ops.logical_and(last, numbers) if side == "left" else last
        before = ops.logical_or(before, after_all)
    return ops.sum(ops.cast(before, to=DType.I64), axes=(-1,))


# -- scans ----------------------------------------------------------------------------------------


@op("t[*s n] -> t[*s n]", kind=Kind.SPECIAL)
def cumprod(
    x: Array, *, axis: Axis = LAST, exclusive: bool = False, reverse: bool = False
) -> Array:
    """The cumulative product along `axis`; `exclusive` leaves each element out of its own product,
    `reverse` runs from the end. Integers wrap; products of f32 are carried in f64."""
    return scanned(np.multiply, x, axis, 1 if exclusive else None, reverse)


@cumprod.lowering
def _(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    made = _scanned(ops.mul, _carried(x), 1, axis, reverse, exclusive)
    return _as(made, x)


@op("n[*s n] -> n[*s n]", kind=Kind.SPECIAL)
def cummax(x: Array, *, axis: Axis = LAST, reverse: bool = False) -> Array:
    """The greatest element so far along `axis`; from a NaN on, NaN."""
    return scanned(np.maximum, x, axis, None, reverse)


@cummax.lowering
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return _scanned(ops.maximum, x, _least(dtype_of(x)), axis, reverse)


@op("n[*s n] -> n[*s n]", kind=Kind.SPECIAL)
def cummin(x: Array, *, axis: Axis = LAST, reverse: bool = False) -> Array:
    """The least element so far along `axis`; from a NaN on, NaN."""
    return scanned(np.minimum, x, axis, None, reverse)


@cummin.lowering
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return _scanned(ops.minimum, x, _greatest(dtype_of(x)), axis, reverse)


@op("f[*s n] -> f[*s n]", kind=Kind.SPECIAL, flops="6*out")
def cum_log_sum_exp(x: Array, *, axis: Axis = LAST, reverse: bool = False) -> Array:
    """log of the cumulative sum of exp(x) along `axis`, without overflow; of f32 carried in f64."""
    return scanned(np.logaddexp, x, axis, None, reverse)


@cum_log_sum_exp.lowering
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return _as(_scanned(_log_add_exp, _carried(x), -np.inf, axis, reverse), x)


def _carried(x: Any) -> Any:
    """x in the accumulator dtype of its scans."""
    wide = carried(dtype_of(x))
    return x if wide is dtype_of(x) else ops.cast(x, to=wide)


def _as(made: Any, x: Any) -> Any:
    return made if dtype_of(made) is dtype_of(x) else ops.cast(made, to=dtype_of(x))


def _log_add_exp(a: Any, b: Any) -> Any:
    """log(exp a + exp b): the greater, and what the lesser adds to it."""
    gap = ops.neg(ops.abs(ops.sub(a, b)))
    more = ops.where(ops.equal(a, b), float(np.log(2.0)), ops.log1p(ops.exp(gap)))
    return ops.add(ops.maximum(a, b), more)


def _least(dtype: DType) -> Any:
    return np.iinfo(dtype.numpy).min if dtype.is_integer else -np.inf


def _greatest(dtype: DType) -> Any:
    return np.iinfo(dtype.numpy).max if dtype.is_integer else np.inf


def _scanned(
    step: Callable[..., Any], x: Any, first: Any, axis: int, reverse: bool, exclusive: bool = False
) -> Any:
    """A scan as a loop along `axis` that carries the accumulator."""
    rank = len(dims_of(x))
    perm = (axis, *(a for a in range(rank) if a != axis))
    rows = ops.transpose(x, perm=perm)

    def body(before: Any, row: Any) -> tuple[Any, Any]:
        now = step(before, row)
        return now, before if exclusive else now

    start = filled(x, first, dims_of(rows)[1:])
    _, made = scan_loop(body, start, rows, reverse=reverse)
    return ops.transpose(made, perm=tuple(perm.index(a) for a in range(rank)))


# -- triangles and sequences ----------------------------------------------------------------------


@movement("a[*b m n] -> a[*b m n]")
def trilu(x: Array, *, k: int = 0, upper: bool = True) -> Array:
    """The upper triangle of each matrix, from the k-th diagonal on, or the lower one, up to it;
    0 elsewhere. Diagonals count from the main one upwards."""
    rows, columns = x.shape[-2:]
    offset = np.arange(columns) - np.arange(rows)[:, None]
    return np.where(offset >= k if upper else offset <= k, x, np.zeros((), x.dtype))


@trilu.lowering
def _(x: Any, *, k: int, upper: bool) -> Any:
    matrix = dims_of(x)[-2:]
    row, column = (nullary(x, "iota", dims=matrix, axis=a, dtype=DType.I64) for a in (0, 1))
    offset = ops.sub(column, row)
    kept = ops.greater_equal(offset, k) if upper else ops.less_equal(offset, k)
    return ops.where(kept, x, np.zeros((), dtype_of(x).numpy))


def _sequences(x: Shape, lengths: Shape, *, batch_axis: int, time_axis: int) -> Shape:
    if batch_axis == time_axis:
        raise GraphError(f"batch_axis and time_axis are both {time_axis}")
    if lengths.dims != (x.dims[batch_axis],):
        raise GraphError(f"lengths are {lengths}, expected one for each of {x.dims[batch_axis]}")
    return x


@op("a[...], i[n] -> a[...]", kind=Kind.SPECIAL, shape=_sequences, flops="0", is_exact=True)
def reverse_sequence(
    x: Array, lengths: Array, *, batch_axis: Axis = _SECOND, time_axis: Axis = _FIRST
) -> Array:
    """Each sequence reversed up to its length, and as it is from there on."""
    steps = x.shape[time_axis]
    outside = (lengths < 0) | (lengths > steps)
    if np.any(outside):
        raise Error(f"length {lengths[outside][0]} is out of range for {steps} steps")
    time = np.arange(steps)
    ends = lengths.astype(np.int64)[:, None]
    source = np.where(time < ends, ends - 1 - time, time)
    table = np.moveaxis(x, (batch_axis, time_axis), (0, 1))
    made = np.take_along_axis(table, source.reshape(source.shape + (1,) * (x.ndim - 2)), 1)
    return np.moveaxis(made, (0, 1), (batch_axis, time_axis))


@reverse_sequence.lowering
def _(x: Any, lengths: Any, *, batch_axis: int, time_axis: int) -> Any:
    dims = dims_of(x)
    time = nullary(x, "iota", dims=dims, axis=time_axis, dtype=DType.I64)
    across = tuple(d if a == batch_axis else 1 for a, d in enumerate(dims))
    ends = ops.reshape(ops.cast(lengths, to=DType.I64), dims=across)
    reversed_time = ops.sub(ops.sub(ends, 1), time)
    source = ops.where(ops.less(time, ends), reversed_time, ops.where(ops.less(ends, 0), -1, time))
    return ops.take_along_axis(x, source, axis=time_axis)


@trilu.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = (*draw.dims(0, 2), draw.size(), draw.size())
    return [Spec(dims, draw.dtype("a"))], {"k": draw.integer(-4, 4), "upper": draw.coin()}


@reverse_sequence.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(2, 4)
    batch, time = (int(a) for a in draw.rng.permutation(len(dims))[:2])
    lengths = Spec((dims[batch],), draw.dtype("i"), f"index:{dims[time] + 1}")
    attrs = {"batch_axis": batch - len(dims) * draw.coin(0.3), "time_axis": time}
    return [Spec(dims, draw.dtype("a")), lengths], attrs
