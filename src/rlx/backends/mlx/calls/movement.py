"""Movements as calls of mlx: views where strides allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType


@TABLE.call("reshape", "squeeze", "expand_dims", "stop_gradient")
def reshape(x: Any, *, site: Site, **_: Any) -> Any:
    return mx.reshape(x, site.result.static_dims)


@TABLE.call("transpose")
def transpose(x: Any, *, perm: tuple[int, ...]) -> Any:
    return mx.transpose(x, perm) if perm else x


@TABLE.call("expand")
def expand(x: Any, *, site: Site, **_: Any) -> Any:
    return mx.broadcast_to(x, site.result.static_dims)


@TABLE.call("narrow")
def narrow(x: Any, *, axis: int, start: int, length: int) -> Any:
    return x[(slice(None),) * axis + (slice(int(start), int(start) + int(length)),)]


@TABLE.call("slice")
def slice_(x: Any, *, starts: Any, stops: Any, steps: Any, site: Site) -> Any:
    """As Python bounds them: a stop before the front of a step backwards is none."""
    axes = zip(x.shape, starts, stops, steps)
    bounds = [slice(int(a), int(b), c).indices(n) for n, a, b, c in axes]
    if 0 in site.result.static_dims:
        return mx.zeros(site.result.static_dims, x.dtype)
    return x[tuple(slice(a, None if b < 0 else b, c) for a, b, c in bounds)]


@TABLE.call("flip")
def flip(x: Any, *, axes: tuple[int, ...]) -> Any:
    return x[tuple(slice(None, None, -1 if a in axes else 1) for a in range(x.ndim))]


@TABLE.call("concat")
def concat(*xs: Any, axis: int) -> Any:
    return mx.concatenate(list(xs), axis)


@TABLE.call("stack")
def stack(*xs: Any, axis: int) -> Any:
    return mx.stack(list(xs), axis)


@TABLE.call("tile")
def tile(x: Any, *, repeats: tuple[int, ...], site: Site) -> Any:
    if 0 in site.result.static_dims:
        return mx.zeros(site.result.static_dims, x.dtype)
    return mx.tile(x, [int(r) for r in repeats]) if repeats else x


@TABLE.call("split")
def split(x: Any, *, sizes: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    ends, parts = 0, list[Any]()
    for size in map(int, sizes):
        parts.append(narrow(x, axis=axis, start=ends, length=size))
        ends += size
    return tuple(parts)


@TABLE.call("pad")
def pad(x: Any, *, low: Any, high: Any, value: float, mode: str, site: Site) -> Any:
    widths = [(int(a), int(b)) for a, b in zip(low, high)]
    if not any(map(any, widths)):
        return x
    if mode != "constant":
        return _from_inside(x, widths, mode)
    if 0 in x.shape:
        return mx.broadcast_to(_scalar(value, x), site.result.static_dims)
    return mx.pad(x, widths, constant_values=_scalar(value, x))


def _from_inside(x: Any, widths: Sequence[tuple[int, int]], mode: Any) -> Any:
    """What stands around an array is taken from it, axis by axis: NumPy says where from."""
    for axis, width in enumerate(widths):
        if any(width):
            where = np.pad(np.arange(x.shape[axis], dtype=np.int32), width, mode=mode)
            x = mx.take(x, mx.array(where), axis=axis)
    return x


def _scalar(value: float, x: Any) -> Any:
    is_float = mx.issubdtype(x.dtype, mx.inexact)
    return mx.array(value if is_float else int(value), x.dtype)


@TABLE.call("iota")
def iota(*, dims: tuple[int, ...], axis: int, dtype: DType, site: Site) -> Any:
    sizes = site.result.static_dims
    line = site.cast(mx.arange(sizes[axis], dtype=mx.int64), dtype)
    along = [n if a == axis else 1 for a, n in enumerate(sizes)]
    return mx.broadcast_to(mx.reshape(line, along), sizes)


@TABLE.call("extent")
def extent(*, dim: int, dtype: DType, site: Site) -> Any:
    return site.cast(mx.array(int(dim), mx.int64), dtype)


@TABLE.call("trilu")
def trilu(x: Any, *, k: int, upper: bool) -> Any:
    rows, columns = x.shape[-2:]
    offset = mx.arange(columns) - mx.arange(rows)[:, None]
    return mx.where(offset >= k if upper else offset <= k, x, mx.zeros_like(x))
