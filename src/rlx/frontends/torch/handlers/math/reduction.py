"""Reductions and scans."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axes_of, axis_of, converted, rank
from rlx.ir.mir import Node

INF = float("inf")


@handles("sum", "mean", "prod", "nansum", "nanmean")
def total(call: Call, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    name = call.op.removeprefix("nan")
    wide = call.node(x, call.dtype)
    axes = axes_of(x, dim)
    if call.op.startswith("nan") and call.dtype.is_float:
        return _without_nan(call, wide, axes, keepdim)
    if not rank(x):
        return wide
    return getattr(ops, name)(wide, axes=axes, keepdims=bool(keepdim))


def _without_nan(call: Call, x: Node, axes: tuple[int, ...], keepdim: bool) -> Node:
    is_nan = ops.is_nan(x)
    made = ops.sum(
        ops.where(is_nan, call.constant(0, x.shape.dtype), x), axes=axes, keepdims=keepdim
    )
    if call.op == "nansum":
        return made
    count = ops.sum(ops.cast(ops.logical_not(is_nan), to=call.dtype), axes=axes, keepdims=keepdim)
    return ops.div(made, count)


def extreme(call: Call, name: str, x: Node, axes: tuple[int, ...], keepdim: bool) -> Node:
    """The greatest or least; of bools, too."""
    if not rank(x) or not axes:
        return x
    if x.shape.dtype is DType.BOOL:
        return (ops.any if name == "max" else ops.all)(x, axes=axes, keepdims=keepdim)
    return getattr(ops, name)(x, axes=axes, keepdims=keepdim)


@handles("amax", "amin")
def amax(call: Call, x: Node, dim: Any = (), keepdim: bool = False) -> Node:
    return extreme(call, call.op[1:], x, axes_of(x, dim), bool(keepdim))


@handles("aminmax")
def aminmax(call: Call, x: Node, dim: int | None = None, keepdim: bool = False) -> list[Node]:
    axes = axes_of(x, dim)
    return [extreme(call, n, x, axes, bool(keepdim)) for n in ("min", "max")]


@handles("max", "min")
def max_(call: Call, x: Node, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
    if call.overload == "other":
        from rlx.frontends.torch.handlers.math.arithmetic import extremum_of

        return extremum_of(call, x, other)
    if not isinstance(call.value, tuple | list):
        return extreme(call, call.op, x, axes_of(x, None), False)
    if not rank(x):
        return [x, call.constant(0, DType.I64)]
    axis = axis_of(x, dim)
    wide = ops.cast(x, to=DType.U8) if x.shape.dtype is DType.BOOL else x
    where = getattr(ops, f"arg{call.op}")(wide, axis=axis, keepdims=bool(keepdim))
    return [extreme(call, call.op, x, (axis,), bool(keepdim)), where]


@handles("argmax", "argmin")
def argmax(call: Call, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    if not rank(x):
        return call.filled(0)
    wide = ops.cast(x, to=DType.U8) if x.shape.dtype is DType.BOOL else x
    function = getattr(ops, call.op)
    if dim is None:
        flat = ops.reshape(wide, dims=(x.shape.num_elements,))
        return ops.reshape(function(flat, axis=0), dims=call.dims)
    return function(wide, axis=axis_of(x, dim), keepdims=bool(keepdim))


@handles("any", "all")
def any_(call: Call, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    if not rank(x):
        return converted(x, DType.BOOL)
    flat = converted(x, DType.BOOL) if x.shape.dtype.is_complex else x
    return getattr(ops, call.op)(flat, axes=axes_of(x, dim), keepdims=bool(keepdim))


@handles("count_nonzero")
def count_nonzero(call: Call, x: Node, dim: Any = None) -> Node:
    flags = ops.cast(converted(x, DType.BOOL), to=DType.I64)
    return ops.sum(flags, axes=axes_of(x, dim)) if rank(x) else flags


@handles("logsumexp", "special_logsumexp")
def logsumexp(call: Call, x: Node, dim: Any, keepdim: bool = False) -> Node:
    wide = call.node(x, call.dtype)
    call.require(not call.dtype.is_complex, "logsumexp of complex numbers")
    return ops.log_sum_exp(wide, axes=axes_of(x, dim), keepdims=bool(keepdim)) if rank(x) else wide


@handles("var", "std", "var_mean", "std_mean")
def variance(
    call: Call, x: Node, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> Any:  # fmt: skip
    less = correction if "correction" in call.overload else (1 if unbiased else 0)
    made, mean = _variance(call, x, axes_of(x, dim), 1 if less is None else less, bool(keepdim))
    if call.op.startswith("std"):
        made = ops.sqrt(made)
    return [made, mean] if call.op.endswith("_mean") else made


def _variance(
    call: Call, x: Node, axes: tuple[int, ...], less: float, keepdim: bool
) -> tuple[Node, Node]:
    wide = ops.cast(x, to=x.shape.dtype.compute)
    mean = ops.mean(wide, axes=axes, keepdims=True)
    away = ops.sub(wide, mean)
    squares = ops.complex_norm_sq(away) if x.shape.dtype.is_complex else ops.mul(away, away)
    folded = ops.sum(squares, axes=axes, keepdims=keepdim)
    count = ops.cast(call.node(product(x.shape.dims[a] for a in axes), DType.I64),
                     to=folded.shape.dtype)  # fmt: skip
    divisor = ops.maximum(ops.sub(count, float(less)), 0.0)
    return ops.div(folded, divisor), ops.mean(wide, axes=axes, keepdims=keepdim)


@handles("linalg_vector_norm")
def vector_norm(call: Call, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Node:  # noqa: A002
    axes = axes_of(x, dim)
    size = ops.abs(call.node(x, _wider(call, x)))
    size = call.node(size, call.dtype.compute)
    if not rank(x):
        return ops.cast(ops.not_equal(size, 0.0), to=call.dtype) if ord == 0 else size
    return p_norm(size, float(ord), axes, bool(keepdim))


def _wider(call: Call, x: Node) -> DType:
    return x.shape.dtype if x.shape.dtype.is_complex else call.dtype


def p_norm(size: Node, order: float, axes: tuple[int, ...], keepdim: bool) -> Node:
    """(Σ sᵖ)^(1/p) of magnitudes, with its limits."""
    how: dict[str, Any] = {"axes": axes, "keepdims": keepdim}
    if order == 2:
        return ops.sqrt(ops.sum(ops.mul(size, size), **how))
    if order == 1:
        return ops.sum(size, **how)
    if order == 0:
        return ops.sum(ops.cast(ops.not_equal(size, 0.0), to=size.shape.dtype), **how)
    if math.isinf(order):
        return (ops.max if order > 0 else ops.min)(size, **how)
    return ops.pow(ops.sum(ops.pow(size, order), **how), 1.0 / order)


SCANS = {"cumsum": "cumsum", "cumprod": "cumprod", "logcumsumexp": "cum_log_sum_exp"}


@handles(*SCANS, "_logcumsumexp")
def scan(call: Call, x: Node, dim: int) -> Node:
    wide = call.node(x, call.dtype)
    name = SCANS[call.op.strip("_")]
    return getattr(ops, name)(wide, axis=axis_of(x, dim)) if rank(x) else wide


@handles("cummax", "cummin", "_cummax_helper", "_cummin_helper")
def cumulative_extreme(call: Call, x: Node, dim: int) -> list[Node]:
    """The greatest so far and where it last was: places where an element equals it, cumulated."""
    if not rank(x):
        return [x, call.constant(0, DType.I64)]
    axis = axis_of(x, dim)
    wide = ops.cast(x, to=DType.U8) if x.shape.dtype is DType.BOOL else x
    made = (ops.cummax if call.op == "cummax" else ops.cummin)(wide, axis=axis)
    is_here = ops.equal(wide, made)
    if wide.shape.dtype.is_float:
        is_here = ops.logical_or(is_here, ops.is_nan(wide))
    places = ops.where(is_here, call.positions(x.shape.dims, axis), call.constant(0, DType.I64))
    return [made, ops.cummax(places, axis=axis)]


@handles("softmax", "_softmax", "_safe_softmax", "special_softmax")
def softmax(call: Call, x: Node, dim: int, half_to_float: bool = False) -> Node:
    wide = call.node(x, call.dtype)
    if not rank(x):
        return ops.reshape(ops.softmax(ops.reshape(wide, dims=(1,)), axis=0), dims=())
    axis = axis_of(x, dim)
    made = ops.softmax(wide, axis=axis)
    if call.op != "_safe_softmax":
        return made
    is_masked = ops.all(ops.equal(wide, -INF), axes=(axis,), keepdims=True)
    return ops.where(is_masked, call.constant(0, call.dtype), made)


@handles("log_softmax", "_log_softmax", "special_log_softmax")
def log_softmax(call: Call, x: Node, dim: int, half_to_float: bool = False) -> Node:
    wide = call.node(x, call.dtype)
    if not rank(x):
        return ops.reshape(ops.log_softmax(ops.reshape(wide, dims=(1,)), axis=0), dims=())
    return ops.log_softmax(wide, axis=axis_of(x, dim))


@handles("trace")
def trace(call: Call, x: Node) -> Node:
    return ops.trace(call.node(x, call.dtype))
