"""Sorting and scans. XLA's sort is stable where it is asked to be, takes both zeros for equal, and
puts NaN last."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.core.dtype import DType
from rlx.ops.math.reduction import carried

PLACE = np.dtype(np.int64)

TABLE.derived("searchsorted")

# -- order ----------------------------------------------------------------------------------------


def _ordered(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    """The values along the axis in order, and where they were. Falling order is the rising order
    of the reversed axis, reversed: equals keep theirs."""
    if descending:
        values, where = _ordered(lax.rev(x, (axis,)), axis, False)
        return lax.rev(values, (axis,)), lax.rev(x.shape[axis] - 1 - where, (axis,))
    where = lax.broadcasted_iota(PLACE, x.shape, axis)
    values, where = lax.sort((x, where), dimension=axis, is_stable=True, num_keys=1)
    return values, where


@TABLE.call("argsort")
def argsort(x: Any, *, axis: int, descending: bool) -> Any:
    return _ordered(x, axis, descending)[1]


@TABLE.call("sort")
def sort(x: Any, *, axis: int, descending: bool) -> Any:
    return _ordered(x, axis, descending)[0]


@TABLE.call("top_k")
def top_k(x: Any, *, k: int, axis: int, largest: bool) -> tuple[Any, Any]:
    """XLA's own where it is faster than a sort; it tells zeros apart, and NaN from NaN."""
    if largest and x.dtype == np.float32 and axis == x.ndim - 1 and x.size:
        key = jnp.where(x == 0, jnp.zeros_like(x), jnp.where(jnp.isnan(x), jnp.nan, x))
        where = lax.top_k(key, k)[1]
        return jnp.take_along_axis(x, where, axis, mode="clip"), where
    values, where = _ordered(x, axis, largest)
    return tuple(lax.slice_in_dim(v, 0, k, axis=axis) for v in (values, where))


# -- scans ----------------------------------------------------------------------------------------


def _in_carried(scan: Any, x: Any, axis: int, reverse: bool) -> Any:
    """A scan in the accumulator dtype of its sums."""
    wide = carried(DType.of(x.dtype)).numpy
    return scan(x.astype(wide), axis=axis, reverse=reverse).astype(x.dtype)


def _exclusive(made: Any, axis: int, reverse: bool, first: int) -> Any:
    """Each result moved to the next element, with `first` before all."""
    size = made.shape[axis]
    if not size:
        return made
    start, widths = (1, (0, 1, 0)) if reverse else (0, (1, 0, 0))
    kept = lax.slice_in_dim(made, start, start + size - 1, axis=axis)
    pads = [widths if a == axis else (0, 0, 0) for a in range(made.ndim)]
    return lax.pad(kept, made.dtype.type(first), pads)


@TABLE.call("cumsum")
def cumsum(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    made = _in_carried(lax.cumsum, x, axis, reverse)
    return _exclusive(made, axis, reverse, 0) if exclusive else made


@TABLE.call("cumprod")
def cumprod(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    made = _in_carried(lax.cumprod, x, axis, reverse)
    return _exclusive(made, axis, reverse, 1) if exclusive else made


@TABLE.call("cummax")
def cummax(x: Any, *, axis: int, reverse: bool) -> Any:
    return lax.cummax(x, axis=axis, reverse=reverse)


@TABLE.call("cummin")
def cummin(x: Any, *, axis: int, reverse: bool) -> Any:
    return lax.cummin(x, axis=axis, reverse=reverse)


@TABLE.call("cum_log_sum_exp")
def cum_log_sum_exp(x: Any, *, axis: int, reverse: bool) -> Any:
    def scan(x: Any, *, axis: int, reverse: bool) -> Any:
        return lax.associative_scan(jnp.logaddexp, x, axis=axis, reverse=reverse)

    return _in_carried(scan, x, axis, reverse) if x.size else x
