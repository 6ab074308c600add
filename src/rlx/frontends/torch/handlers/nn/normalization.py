"""Norms."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


def _layer_norm(x: Node, count: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    axis = rank(x) - count
    if weight is None and bias is not None:
        return ops.add(ops.layer_norm(x, axis=axis, eps=float(eps)), bias)
    return ops.layer_norm(x, weight, bias, axis=axis, eps=float(eps))


@handles("layer_norm")
def layer_norm(call: Call, x: Node, normalized_shape: Any, weight: Node | None = None,
               bias: Node | None = None, eps: float = 1e-05) -> Node:  # fmt: skip
    return _layer_norm(x, len(normalized_shape), weight, bias, eps)


def _statistics(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """The mean, and 1 / √(variance + eps)."""
    wide = ops.cast(x, to=x.shape.dtype.compute)
    mean = ops.mean(wide, axes=axes, keepdims=True)
    away = ops.sub(wide, mean)
    variance = ops.mean(ops.mul(away, away), axes=axes, keepdims=True)
    return mean, ops.rsqrt(ops.add(variance, float(eps)))


@handles("native_layer_norm")
def native_layer_norm(call: Call, x: Node, normalized_shape: Any, weight: Node | None,
                      bias: Node | None, eps: float) -> list[Node]:  # fmt: skip
    axes = tuple(range(rank(x) - len(normalized_shape), rank(x)))
    return [_layer_norm(x, len(axes), weight, bias, eps), *_statistics(x, axes, eps)]


@handles("rms_norm", "_fused_rms_norm")
def rms_norm(call: Call, x: Node, normalized_shape: Any, weight: Node | None = None,
             eps: float | None = None) -> Any:  # fmt: skip
    least = torch.finfo(call.fake.dtype).eps if eps is None else eps
    made = ops.rms_norm(x, weight, axis=rank(x) - len(normalized_shape), eps=float(least))
    if call.op == "rms_norm":
        return made
    axes = tuple(range(rank(x) - len(normalized_shape), rank(x)))
    wide = ops.cast(x, to=x.shape.dtype.compute)
    squares = ops.mean(ops.mul(wide, wide), axes=axes, keepdims=True)
    return [made, ops.rsqrt(ops.add(squares, float(least)))]


def _group_norm(x: Node, groups: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    if rank(x) == 2:
        wide = ops.expand_dims(x, axes=(2,))
        return ops.squeeze(_group_norm(wide, groups, weight, bias, eps), axes=(2,))
    if weight is None and bias is not None:
        made = ops.group_norm(x, groups=groups, eps=float(eps))
        return ops.add(made, ops.reshape(bias, dims=(bias.shape.dims[0], *[1] * (rank(x) - 2))))
    return ops.group_norm(x, weight, bias, groups=groups, eps=float(eps))


@handles("group_norm")
def group_norm(call: Call, x: Node, num_groups: int, weight: Node | None = None,
               bias: Node | None = None, eps: float = 1e-05) -> Node:  # fmt: skip
    return _group_norm(x, num_groups, weight, bias, eps)


@handles("native_group_norm")
def native_group_norm(call: Call, x: Node, weight: Node | None, bias: Node | None, N: Any, C: Any,
                      HxW: Any, group: int, eps: float) -> list[Node]:  # fmt: skip
    rows = ops.reshape(x, dims=(N, group, product(x.shape.dims) // (N * group)))
    statistics = (ops.reshape(s, dims=(N, group)) for s in _statistics(rows, (2,), eps))
    return [_group_norm(x, group, weight, bias, eps), *statistics]


# -- batch norms -----------------------------------------------------------------------------------


def _per_channel(x: Node, value: Node) -> Node:
    return ops.reshape(value, dims=(value.shape.dims[0], *[1] * (rank(x) - 2)))


def _filled(call: Call, x: Node, value: Node | None, number: float) -> Node:
    if value is not None:
        return value
    return ops.expand(call.constant(number, x.shape.dtype), dims=(x.shape.dims[1],))


def _with_statistics(
    call: Call, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, eps: float
) -> Node:
    image = ops.expand_dims(x, axes=(2,)) if rank(x) == 2 else x
    scale, shift = _filled(call, x, weight, 1.0), _filled(call, x, bias, 0.0)
    dtype = x.shape.dtype
    if mean.shape.dtype is not dtype or scale.shape.dtype is not dtype:
        image = call.node(image, dtype.compute)
        scale, shift, mean, var = (call.node(v, dtype.compute) for v in (scale, shift, mean, var))
    made = ops.batch_norm(image, scale, shift, mean, var, eps=float(eps))
    return ops.squeeze(made, axes=(2,)) if rank(x) == 2 else made


def _of_batch(x: Node) -> tuple[Node, Node, Any]:
    """Mean and variance of each channel, and of how many elements."""
    axes = (0, *range(2, rank(x)))
    wide = ops.cast(x, to=x.shape.dtype.compute)
    mean = ops.mean(wide, axes=axes)
    away = ops.sub(wide, _per_channel(x, mean))
    var = ops.mean(ops.mul(away, away), axes=axes)
    return mean, var, product(x.shape.dims[a] for a in axes)


def _running(call: Call, old: Node, new: Node, momentum: float) -> Node:
    wide = call.node(old, new.shape.dtype)
    return ops.add(ops.mul(wide, 1.0 - momentum), ops.mul(new, float(momentum)))


def _unbiased(call: Call, var: Node, count: Any) -> Node:
    total = ops.cast(call.node(count, DType.I64), to=var.shape.dtype)
    return ops.mul(var, ops.div(total, ops.sub(total, 1.0)))


def _trained(
    call: Call, x: Node, weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node, Any]:
    mean, var, count = _of_batch(x)
    made = _with_statistics(call, x, weight, bias, mean, var, eps)
    return made, mean, var, count


def _update(
    call: Call, running_mean: Node | None, running_var: Node | None, mean: Node, var: Node,
    count: Any, momentum: float,
) -> None:  # fmt: skip
    """Store the running statistics, where there are any."""
    if running_mean is not None:
        call.write("running_mean", _running(call, running_mean, mean, momentum))
    if running_var is not None:
        grown = _unbiased(call, var, count)
        call.write("running_var", _running(call, running_var, grown, momentum))


@handles("batch_norm", "native_batch_norm", "cudnn_batch_norm")
def batch_norm(
    call: Call, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None,
    running_var: Node | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    is_plain = call.op == "batch_norm"
    if not training and running_mean is not None and running_var is not None:
        made = _with_statistics(call, x, weight, bias, running_mean, running_var, eps)
        return made if is_plain else [made, *(call.filled(0, v) for v in call.value[1:])]
    made, mean, var, count = _trained(call, x, weight, bias, eps)
    _update(call, running_mean, running_var, mean, var, count, momentum)
    return made if is_plain else [made, mean, ops.rsqrt(ops.add(var, float(eps)))]


@handles("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    call: Call, x: Node, weight: Node | None, bias: Node | None, running_mean: Node,
    running_var: Node, momentum: float, eps: float,
) -> list[Node]:  # fmt: skip
    made = _with_statistics(call, x, weight, bias, running_mean, running_var, eps)
    return [made, *(call.filled(0, v) for v in call.value[1:])]


@handles("_native_batch_norm_legit")
def batch_norm_legit(
    call: Call, x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float,
    eps: float, running_mean: Node | None = None, running_var: Node | None = None,
) -> list[Node]:  # fmt: skip
    if not training and running_mean is not None and running_var is not None:
        made = _with_statistics(call, x, weight, bias, running_mean, running_var, eps)
        return [made, *(call.filled(0, v) for v in call.value[1:])]
    made, mean, var, count = _trained(call, x, weight, bias, eps)
    _update(call, running_mean, running_var, mean, var, count, momentum)
    return [made, mean, ops.rsqrt(ops.add(var, float(eps)))]


@handles("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
def batch_norm_functional(
    call: Call, x: Node, weight: Node | None, bias: Node | None, running_mean: Node,
    running_var: Node, momentum: float, eps: float, training: bool = True,
) -> list[Node]:  # fmt: skip
    call.require(training, "statistics that are given to a batch norm in training")
    made, mean, var, count = _trained(call, x, weight, bias, eps)
    found = [made, mean, ops.rsqrt(ops.add(var, float(eps)))]
    if call.op.startswith("_batch_norm"):
        found.append(call.filled(0, call.value[3]))
    grown = _unbiased(call, var, count)
    return [*found, _running(call, running_mean, mean, momentum),
            _running(call, running_var, grown, momentum)]  # fmt: skip


@handles("_batch_norm_with_update")
def batch_norm_with_update(
    call: Call, x: Node, weight: Node | None, bias: Node | None, running_mean: Node,
    running_var: Node, momentum: float, eps: float,
) -> list[Node]:  # fmt: skip
    made, mean, var, count = _trained(call, x, weight, bias, eps)
    _update(call, running_mean, running_var, mean, var, count, momentum)
    return [made, mean, ops.rsqrt(ops.add(var, float(eps))), call.filled(0, call.value[3])]


def _of_instances(x: Node) -> tuple[Node, Node, Any]:
    """The mean over a batch of each instance's mean and variance, and of how many elements."""
    axes = tuple(range(2, rank(x)))
    wide = ops.cast(x, to=x.shape.dtype.compute)
    away = ops.sub(wide, ops.mean(wide, axes=axes, keepdims=True))
    var = ops.mean(ops.mul(away, away), axes=(0, *axes))
    return ops.mean(wide, axes=(0, *axes)), var, product(x.shape.dims[a] for a in axes)


@handles("instance_norm")
def instance_norm(
    call: Call, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None,
    running_var: Node | None, use_input_stats: bool, momentum: float, eps: float,
) -> Node:  # fmt: skip
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _with_statistics(call, x, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or running_var is not None:
        _update(call, running_mean, running_var, *_of_instances(x), momentum)
    if weight is None and bias is not None:
        return ops.add(ops.instance_norm(x, eps=float(eps)), _per_channel(x, bias))
    operands = [v for v in (x, weight, bias) if v is not None]
    return ops.instance_norm(*operands, eps=float(eps))
