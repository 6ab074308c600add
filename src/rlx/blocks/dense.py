"""Dense layers: linear, feed-forward networks, residual norms."""

from __future__ import annotations

from typing import Any, Literal

from rlx import ops
from rlx.ir.block import DIRECT, FUSABLE, FusionPolicy, block
from rlx.ops.fused import activated


@block("f[*b m k], f[k n], f[n]? -> f[*b m n]")
def linear(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """activation(x · w + bias)."""
    if bias is None:
        return activated(ops.matmul(x, w), activation)
    if policy is DIRECT:
        return ops.fused_matmul_bias_act(x, w, bias, activation=activation)
    return activated(ops.add(ops.matmul(x, w), bias), activation)


@block("f[*b m k], f[k n], f[n] -> f[*b m n]")
def linear_fused(x: Any, w: Any, bias: Any, *, activation: str | None = None) -> Any:
    """activation(x · w + bias) as one op, whatever the policy."""
    return ops.fused_matmul_bias_act(x, w, bias, activation=activation)


@block("f[*b m k], f[k n], f[k p] -> f[*b m slot*p+(1-slot)*n]", label="{name}[{slot}]")
def shared_linear_pair(x: Any, first: Any, second: Any, *, slot: Literal[0, 1]) -> Any:
    """x · first or x · second. Interning makes each product once, however often it is asked for."""
    return ops.matmul(x, (first, second)[slot])


@block("f[*b m k], f[k n], f[k n], f[n p] -> f[*b m p]")
def swiglu_ffn(x: Any, up: Any, gate: Any, down: Any, *, policy: FusionPolicy = FUSABLE) -> Any:
    """(silu(x · gate) ⊙ (x · up)) · down."""
    if policy is DIRECT:
        both = ops.matmul(x, ops.concat([up, gate], axis=1))
        return ops.matmul(ops.fused_swiglu(both, gate_first=False), down)
    raised = ops.matmul(x, up)
    return ops.matmul(ops.mul(ops.silu(ops.matmul(x, gate)), raised), down)


@block("f[*b m k], f[k n], f[k n], f[n p] -> f[*b m p]")
def geglu_ffn(x: Any, up: Any, gate: Any, down: Any) -> Any:
    """(gelu(x · gate) ⊙ (x · up)) · down."""
    raised = ops.matmul(x, up)
    return ops.matmul(ops.mul(ops.gelu(ops.matmul(x, gate)), raised), down)


@block("f[*b m k], f[k n], f[n p], f[n]?, f[p]? -> f[*b m p]")
def gelu_ffn(
    x: Any,
    up: Any,
    down: Any,
    up_bias: Any = None,
    down_bias: Any = None,
    *,
    approximate: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """gelu(x · up + up_bias) · down + down_bias; approximate is the tanh form."""
    gelu = "gelu_tanh" if approximate else "gelu"
    raised = linear(x, up, up_bias, activation=gelu, policy=policy)
    return linear(raised, down, down_bias, policy=policy)


@block("f[*b n], f[*b n], f[n], f[n]? -> f[*b n]")
def residual_rms_norm(
    x: Any,
    residual: Any,
    scale: Any,
    bias: Any = None,
    *,
    eps: float = 1e-6,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """rms_norm(x + residual) over the last axis."""
    if policy is DIRECT:
        return ops.fused_residual_rms_norm(x, residual, scale, bias, eps=eps)
    return ops.rms_norm(ops.add(x, residual), scale, bias, eps=eps)


@block("f[*b n], f[*b n], f[n], f[n] -> f[*b n]")
def residual_layer_norm(
    x: Any,
    residual: Any,
    scale: Any,
    bias: Any,
    *,
    eps: float = 1e-5,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """layer_norm(x + residual) over the last axis."""
    if policy is DIRECT:
        return ops.fused_residual_ln(x, residual, scale, bias, eps=eps)
    return ops.layer_norm(ops.add(x, residual), scale, bias, eps=eps)
