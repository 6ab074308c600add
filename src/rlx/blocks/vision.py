"""Convolution blocks with normalisation and activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx import ops
from rlx.ir.block import DIRECT, FUSABLE, FusionPolicy, block
from rlx.ops.fused import activated


def convolved(
    x: Any,
    w: Any,
    bias: Any,
    window: Mapping[str, Any],
    activation: str | None,
    policy: FusionPolicy,
) -> Any:
    """activation(conv(x, w) + bias), over any number of axes."""
    if policy is DIRECT and bias is not None:
        return ops.fused_conv_bias_act(x, w, bias, **window, activation=activation)
    return activated(ops.conv(x, w, bias, **window), activation)


@block("f[n c h w], f[o i kh kw], f[o]? -> f[n o ...]")
def conv_block(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
    activation: str | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """activation(conv2d(x, w) + bias)."""
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved(x, w, bias, window, activation, policy)


@block("f[n c h w], f[o i kh kw], f[o], f[o], f[o], f[o] -> f[n o ...]")
def conv_norm_block(
    x: Any,
    w: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    *,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
    eps: float = 1e-5,
    activation: str | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """activation(batch_norm(conv2d(x, w))). Direct folds the norm into the weights."""
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if policy is DIRECT:
        factor = ops.mul(scale, ops.rsqrt(ops.add(var, eps)))
        folded = ops.mul(w, ops.expand_dims(factor, axes=(1, 2, 3)))
        shift = ops.sub(bias, ops.mul(mean, factor))
        return ops.fused_conv_bias_act(x, folded, shift, **window, activation=activation)
    normed = ops.batch_norm(ops.conv2d(x, w, **window), scale, bias, mean, var, eps=eps)
    return activated(normed, activation)
