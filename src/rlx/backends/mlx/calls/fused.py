"""Fused ops as calls of mlx."""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.calls import Site
from rlx.backends.mlx.calls.contraction import matmul
from rlx.backends.mlx.calls.normalization import layer_norm, rms_norm
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ops.op import lookup


@TABLE.call("fused_residual_ln", dtypes=frozenset({DType.F32}))
def fused_residual_ln(
    x: Any, residual: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float
) -> Any:
    return layer_norm(x + residual, scale, bias, axis=axis, eps=eps)


@TABLE.call("fused_residual_rms_norm", dtypes=frozenset({DType.F32}))
def fused_residual_rms_norm(
    x: Any, residual: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float
) -> Any:
    return rms_norm(x + residual, scale, bias, axis=axis, eps=eps)


@TABLE.call("fused_matmul_bias_act", dtypes=frozenset({DType.F32}))
def fused_matmul_bias_act(x: Any, w: Any, bias: Any, *, activation: str | None, site: Site) -> Any:
    """`mx.addmm` adds the bias where it has one row for all, in the product itself."""
    if 0 in x.shape or 0 in w.shape:
        made = matmul(x, w) + bias
    else:
        made = mx.addmm(bias, x, w) if x.ndim > 1 and w.ndim > 1 else matmul(x, w) + bias
    return made if activation is None else site.engine.function(lookup(activation))(made)
