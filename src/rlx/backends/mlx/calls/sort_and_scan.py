"""Sorting and cumulative scans as calls of mlx."""

from __future__ import annotations

from typing import Any

from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.elementwise import FLOATS, make_complex
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType

REAL = frozenset(d for d in DType if d.is_integer) | FLOATS


@TABLE.call("argsort")
def argsort(x: Any, *, axis: int, descending: bool) -> Any:
    """mlx's sort is stable and has NaN last; backwards, that of the reversed axis."""
    if 0 in x.shape:
        return mx.zeros(x.shape, mx.int64)
    if not descending:
        return mx.argsort(x, axis=axis).astype(mx.int64)
    order = mx.argsort(_reversed(x, axis), axis=axis).astype(mx.int64)
    return _reversed(x.shape[axis] - 1 - order, axis)


def _reversed(x: Any, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(None, None, -1),)]


@TABLE.call("sort")
def sort(x: Any, *, axis: int, descending: bool) -> Any:
    if 0 in x.shape:
        return x
    return mx.take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


@TABLE.call("top_k")
def top_k(x: Any, *, k: int, axis: int, largest: bool) -> tuple[Any, Any]:
    order = argsort(x, axis=axis, descending=largest)
    where = order[(slice(None),) * axis + (slice(0, k),)]
    if 0 in where.shape:
        return mx.zeros(where.shape, x.dtype), where
    return mx.take_along_axis(x, where, axis=axis), where


@TABLE.call("cumsum")
def cumsum(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    """Sums of f32 are carried in f64 where mlx has it."""
    if x.dtype == mx.complex64:
        parts = (
            cumsum(p, axis=axis, exclusive=exclusive, reverse=reverse)
            for p in (mx.real(x), mx.imag(x))
        )
        return make_complex(*parts)
    return _carried(mx.cumsum, x, axis, exclusive, reverse)


@TABLE.call("cumprod", dtypes=REAL)
def cumprod(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    return _carried(mx.cumprod, x, axis, exclusive, reverse)


def _carried(scan: Any, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    if 0 in x.shape:
        return x
    is_wide = x.dtype == mx.float32 and numerics.on_processor()
    given = x.astype(mx.float64) if is_wide else x
    return scan(given, axis=axis, reverse=reverse, inclusive=not exclusive).astype(x.dtype)


@TABLE.call("cummax")
def cummax(x: Any, *, axis: int, reverse: bool) -> Any:
    return _running(mx.cummax, x, axis, reverse)


@TABLE.call("cummin")
def cummin(x: Any, *, axis: int, reverse: bool) -> Any:
    return _running(mx.cummin, x, axis, reverse)


def _running(scan: Any, x: Any, axis: int, reverse: bool) -> Any:
    return x if 0 in x.shape else scan(x, axis=axis, reverse=reverse)
