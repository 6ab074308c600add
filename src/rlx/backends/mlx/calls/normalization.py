"""Normalisations as mlx's own fused functions."""

from __future__ import annotations

import math
from typing import Any

from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.elementwise import SINGLES
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx


def _as_rows(x: Any, axis: int, *affine: Any) -> tuple[Any, ...]:
    """The axes from `axis` on as one, as mlx normalises the last axis."""
    size = math.prod(x.shape[axis:])
    rows = mx.reshape(numerics.widened(x), (*x.shape[:axis], size))
    each = map(numerics.widened, affine)
    return rows, *(None if a is None else mx.reshape(a, (size,)) for a in each)


@TABLE.call("layer_norm", dtypes=SINGLES, halves=True)
def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    if 0 in x.shape:
        return x
    rows, scale, bias = _as_rows(x, axis, scale, bias)
    return mx.reshape(mx.fast.layer_norm(rows, scale, bias, eps), x.shape)


@TABLE.call("rms_norm", dtypes=SINGLES, halves=True)
def rms_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    if 0 in x.shape:
        return x
    rows, scale, bias = _as_rows(x, axis, scale, bias)
    made = mx.fast.rms_norm(rows, scale, eps)
    return mx.reshape(made if bias is None else made + bias, x.shape)
