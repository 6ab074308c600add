"""Reductions, and rows that are read more than once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.tpu.calls.elementwise import div
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp

TABLE.derived(
    "prod",
    "any",
    "all",
    "log_sum_exp",
    "softmax",
    "log_softmax",
    "argmax",
    "argmin",
    "global_max_pool",
    "global_lp_pool",
    "trace",
)


@TABLE.call("sum")
def sum_(x: Any, *, axes: Sequence[int], keepdims: bool) -> Any:
    """In the operand's dtype: integers wrap."""
    return jnp.sum(x, axis=tuple(axes), keepdims=keepdims, dtype=x.dtype)


@TABLE.call("mean")
def mean(x: Any, *, axes: Sequence[int], keepdims: bool) -> Any:
    return div(sum_(x, axes=axes, keepdims=keepdims), _count(x, axes))


@TABLE.call("max")
def max_(x: Any, *, axes: Sequence[int], keepdims: bool, empty_ok: bool = False) -> Any:
    """Of nothing, the least value of the dtype."""
    return jnp.max(x, axis=tuple(axes), keepdims=keepdims, initial=_ends(x)[0])


@TABLE.call("min")
def min_(x: Any, *, axes: Sequence[int], keepdims: bool, empty_ok: bool = False) -> Any:
    """Of nothing, the greatest value of the dtype."""
    return jnp.min(x, axis=tuple(axes), keepdims=keepdims, initial=_ends(x)[1])


def _ends(x: Any) -> tuple[Any, Any]:
    """The least and the greatest value of a dtype."""
    dtype = np.dtype(x.dtype)
    if dtype.kind not in "iu":
        return dtype.type(-np.inf), dtype.type(np.inf)
    return dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)


def _count(x: Any, axes: Sequence[int]) -> Any:
    return np.asarray(int(np.prod([x.shape[a] for a in axes], dtype=np.int64)), x.dtype)


@TABLE.call("global_avg_pool")
def global_avg_pool(x: Any) -> Any:
    return mean(x, axes=tuple(range(2, x.ndim)), keepdims=True)


# -- norms ----------------------------------------------------------------------------------------


@TABLE.call("layer_norm")
def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    return _affine(_standardised(x, tuple(range(axis, x.ndim)), eps), scale, bias)


@TABLE.call("rms_norm")
def rms_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    square = mean(x * x, axes=tuple(range(axis, x.ndim)), keepdims=True)
    return _affine(x * _over_root(square, eps), scale, bias)


@TABLE.call("group_norm")
def group_norm(x: Any, scale: Any = None, bias: Any = None, *, groups: int, eps: float) -> Any:
    each = int(np.prod([x.shape[1] // groups, *x.shape[2:]], dtype=np.int64))
    rows = _standardised(x.reshape(x.shape[0], groups, each), (2,), eps)
    return _affine(rows.reshape(x.shape), *_by_channel(x, scale, bias))


@TABLE.call("instance_norm")
def instance_norm(x: Any, scale: Any = None, bias: Any = None, *, eps: float) -> Any:
    made = _standardised(x, tuple(range(2, x.ndim)), eps)
    return _affine(made, *_by_channel(x, scale, bias))


TABLE.derived("batch_norm")


def _standardised(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    centred = x - mean(x, axes=axes, keepdims=True)
    variance = mean(centred * centred, axes=axes, keepdims=True)
    return centred * _over_root(variance, eps)


def _over_root(square: Any, eps: float) -> Any:
    """1 / √(square + eps), once for each row."""
    return 1 / jnp.sqrt(square + square.dtype.type(eps))


def _affine(x: Any, scale: Any, bias: Any) -> Any:
    """x · scale + bias, as far as they are given."""
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def _by_channel(x: Any, *vectors: Any) -> list[Any]:
    """Vectors of channels, as far as they are given, set against [batch, channels, …]."""
    dims = (-1, *[1] * (x.ndim - 2))
    return [None if v is None else v.reshape(dims) for v in vectors]
