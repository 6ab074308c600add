"""Reductions and rows as calls of mlx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.elementwise import div
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ops.math.reduction import NO_INDEX


def count(x: Any, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes)


@TABLE.call("sum")
def sum_(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return numerics.total(x, axes, keepdims=keepdims)


@TABLE.call("mean")
def mean(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    sums = numerics.total(x, axes, keepdims=keepdims)
    return div(sums, mx.array(count(x, axes), sums.dtype))


@TABLE.call("prod", dtypes=frozenset(d for d in DType if not d.is_complex))
def prod(x: Any, *, axes: tuple[int, ...], keepdims: bool, site: Site) -> Any:
    """mlx reads a first element where NumPy's array has none, and may have 0 for the product."""
    if 0 in x.shape:
        return mx.ones(site.result.static_dims, x.dtype)
    return mx.prod(x, axis=list(axes), keepdims=keepdims) if axes else x


@TABLE.call("max")
def max_(x: Any, *, axes: tuple[int, ...], keepdims: bool, empty_ok: bool, site: Site) -> Any:
    return _extreme(mx.max, x, axes, keepdims, -1, site)


@TABLE.call("min")
def min_(x: Any, *, axes: tuple[int, ...], keepdims: bool, empty_ok: bool, site: Site) -> Any:
    return _extreme(mx.min, x, axes, keepdims, 1, site)


def _extreme(fold: Any, x: Any, axes: Any, keepdims: bool, sign: int, site: Site) -> Any:
    """Of nothing it is what every value is at least, or at most."""
    if not axes:
        return x
    if count(x, axes):
        return fold(x, axis=list(axes), keepdims=keepdims)
    dtype = site.operands[0].dtype.compute
    if dtype.is_float:
        end = np.asarray(sign * np.inf, dtype.numpy)
    else:
        info = np.iinfo(dtype.numpy)
        end = np.asarray(info.max if sign > 0 else info.min, dtype.numpy)
    return mx.broadcast_to(site.engine.constant(end), site.result.static_dims)


@TABLE.call("any")
def any_(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return mx.any(x != 0, axis=list(axes), keepdims=keepdims) if axes else x != 0


@TABLE.call("all")
def all_(x: Any, *, axes: tuple[int, ...], keepdims: bool, site: Site) -> Any:
    """As with products, mlx may say of NumPy's array without elements that not all are true."""
    if 0 in x.shape:
        return mx.ones(site.result.static_dims, mx.bool_)
    return mx.all(x != 0, axis=list(axes), keepdims=keepdims) if axes else x != 0


@TABLE.call("softmax")
def softmax(x: Any, *, axis: int) -> Any:
    """mlx's own for the processor gives 0 for what is not quite, and takes the exponentials of
    doubles in f32."""
    if 0 in x.shape:
        return x
    if not numerics.on_processor():
        return mx.softmax(x, axis=axis)
    e = numerics.exp(x - mx.max(x, axis=axis, keepdims=True))
    return e / numerics.total(e, (axis,), keepdims=True)


@TABLE.call("log_softmax")
def log_softmax(x: Any, *, axis: int) -> Any:
    if 0 in x.shape:
        return x
    below = x - mx.max(x, axis=axis, keepdims=True)
    sums = numerics.total(numerics.exp(below), (axis,), keepdims=True)
    return below - mx.log(sums)


@TABLE.call("log_sum_exp")
def log_sum_exp(x: Any, *, axes: tuple[int, ...], keepdims: bool, site: Site) -> Any:
    if not count(x, axes):
        return mx.full(site.result.static_dims, -math.inf, dtype=x.dtype)
    top = mx.max(x, axis=list(axes), keepdims=True) if axes else x
    shift = mx.where(mx.isinf(top), mx.zeros_like(top), top)
    sums = numerics.total(numerics.exp(x - shift), axes, keepdims=True)
    return mx.reshape(mx.log(sums) + shift, site.result.static_dims)


@TABLE.call("argmax")
def argmax(x: Any, *, axis: int | None, keepdims: bool, site: Site) -> Any:
    return _chosen(mx.argmax, x, axis, keepdims, site)


@TABLE.call("argmin")
def argmin(x: Any, *, axis: int | None, keepdims: bool, site: Site) -> Any:
    return _chosen(mx.argmin, x, axis, keepdims, site)


def _chosen(choose: Any, x: Any, axis: int | None, keepdims: bool, site: Site) -> Any:
    if (x.size if axis is None else x.shape[axis]) == 0:
        return mx.full(site.result.static_dims, NO_INDEX, dtype=mx.int64)
    if x.size == 0:
        return mx.zeros(site.result.static_dims, mx.int64)
    if axis is None or x.ndim == 0:
        return mx.reshape(choose(mx.reshape(x, (-1,)), axis=0), site.result.static_dims)
    return choose(x, axis=axis, keepdims=keepdims)
