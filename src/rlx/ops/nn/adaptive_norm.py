"""Adaptive layer norm, Lp, local-response and mean-variance normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axes, Axis
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import check_broadcasts, dims_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.math.reduction import EVERY, LAST, mean
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]

# -- steered by a condition -----------------------------------------------------------------------


def _check_fits(x: Any, *steering: Any) -> None:
    for i, value in enumerate(steering, 1):
        shown = [", ".join(map(str, dims_of(v))) for v in (value, x)]
        what = f"operand {i} has dims [{shown[0]}], which do not fit [{shown[1]}]"
        check_broadcasts(what, dims_of(value), dims_of(x))


def _modulated(x: Shape, shift: Shape, scale: Shape, *, eps: float) -> Shape:
    _check_fits(x, shift, scale)
    return x


@op("f[*s n], f[...], f[...] -> f[*s n]", kind=Kind.ROW, shape=_modulated, flops="10*out")
def ada_layer_norm(x: Array, shift: Array, scale: Array, *, eps: float = 1e-6) -> Array:
    """layer_norm(x) · (1 + scale) + shift over the last axis. Shift and scale, which a condition
    gives, broadcast to x: [batch, 1, n] for a whole sequence."""
    normed = ops.layer_norm(x, eps=eps)
    return normed * (1 + scale) + shift


@ada_layer_norm.lowering
def _(x: Any, shift: Any, scale: Any, *, eps: float) -> Any:
    return ops.add(ops.mul(ops.layer_norm(x, eps=eps), ops.add(scale, 1.0)), shift)


def _draw_steered(draw: Draw, count: int) -> list[Spec]:
    dims, dtype = draw.dims(1, 4), draw.dtype("f")
    steering = [tuple(1 if draw.coin(0.4) else d for d in dims) for _ in range(count)]
    cut = [d[draw.integer(0, len(dims)) :] for d in steering]
    return [Spec(d, dtype) for d in (dims, *cut)]


@ada_layer_norm.sample
def _(draw: Draw) -> Drawn:
    return _draw_steered(draw, 2), {"eps": draw.choice((1e-6, 1e-3))}


@op("t[~s], t[~s], t[~s] -> t[~s]", kind=Kind.ELEMENTWISE, flops="2*out")
def gated_residual(x: Array, gate: Array, residual: Array) -> Array:
    """residual + gate · x: what a block adds, as much as its gate lets through."""
    return residual + gate * x


@gated_residual.lowering
def _(x: Any, gate: Any, residual: Any) -> Any:
    return ops.add(residual, ops.mul(gate, x))


# -- by sums --------------------------------------------------------------------------------------


def _of_power(x: Shape, *, axis: int, p: int) -> Shape:
    if p not in (1, 2):
        raise GraphError(f"p is {p}, expected 1 or 2")
    return x


@op("f[*s n] -> f[*s n]", kind=Kind.ROW, shape=_of_power, flops="4*out", draw="plain")
def lp_normalization(x: Array, *, axis: Axis = LAST, p: int = 2) -> Array:
    """x over its norm along an axis: Σ|x| for p = 1, √Σx² for p = 2; zeros where that is 0."""
    size = np.abs(x).sum(axis, keepdims=True) if p == 1 else _length(x, axis)
    return np.divide(x, size, out=np.zeros_like(x), where=size != 0)


def _length(x: Array, axis: int) -> Array:
    return np.sqrt((x * x).sum(axis, keepdims=True))


@lp_normalization.lowering
def _(x: Any, *, axis: int, p: int) -> Any:
    summed = ops.sum(ops.abs(x) if p == 1 else ops.mul(x, x), axes=(axis,), keepdims=True)
    size = summed if p == 1 else ops.sqrt(summed)
    return ops.where(ops.equal(size, 0.0), 0.0, ops.div(x, size))


@lp_normalization.sample
def _(draw: Draw) -> Drawn:
    dims = draw.dims(1)
    attrs = {"axis": draw.integer(-len(dims), len(dims) - 1), "p": draw.integer(1, 2)}
    return [Spec(dims, draw.dtype("f"), draw.choice(("plain", "unit")))], attrs


def _of_neighbours(x: Shape, *, size: int, **_: float) -> Shape:
    if size < 1:
        raise GraphError(f"size is {size}, expected a number from 1")
    return x


@op(
    "f[b c *s] -> f[b c *s]",
    kind=Kind.SPECIAL,
    shape=_of_neighbours,
    flops="out*(size+4)",
    aliases=("lrn",),
)
def local_response_norm(
    x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Array:
    """x / (bias + alpha/size · Σ x²)^beta, summed over `size` channels (axis 1) around each: of an
    even number, one more after it than before it. ONNX's LRN."""
    squares = np.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
    total = np.sum([squares[:, i : i + x.shape[1]] for i in range(size)], axis=0)
    scale, power = x.dtype.type(alpha / size), x.dtype.type(beta)
    return x / (x.dtype.type(bias) + scale * total) ** power


@local_response_norm.lowering
def _(x: Any, *, size: int, alpha: float, beta: float, bias: float) -> Any:
    rank, channels = len(dims_of(x)), dims_of(x)[1]
    low, high = ([0] * rank for _ in range(2))
    low[1], high[1] = (size - 1) // 2, size // 2
    squares = ops.pad(ops.mul(x, x), low=tuple(low), high=tuple(high))
    total: Any = None
    for i in range(size):
        near = ops.narrow(squares, axis=1, start=i, length=channels)
        total = near if total is None else ops.add(total, near)
    scaled = ops.add(ops.mul(total, alpha / size), bias)
    return ops.div(x, _power(scaled, beta) if alpha >= 0 else ops.pow(scaled, beta))


def _power(x: Any, exponent: float) -> Any:
    """The usual ¾ is the product of two roots, within two roundings of the power; -∞, whose power
    is no product of roots, must not come."""
    if exponent != 0.75:
        return ops.pow(x, exponent)
    root = ops.sqrt(x)
    return ops.mul(root, ops.sqrt(root))


@local_response_norm.sample
def _(draw: Draw) -> Drawn:
    dims = (draw.size(), draw.size(), *draw.dims(0, 3))
    attrs = {"size": draw.integer(1, 5), "alpha": draw.choice((1e-4, 0.5)), "bias": 1.0}
    return [Spec(dims, draw.dtype("f"), "plain")], {**attrs, "beta": draw.choice((0.75, 2.0))}


@op("f[*s n] -> f[*s n]", kind=Kind.ROW, flops="8*out")
def mean_variance_normalization(x: Array, *, axes: Axes = EVERY, eps: float = 1e-9) -> Array:
    """(x - mean) / (√variance + eps) over these axes together; without `axes`, over all. ONNX's
    are (0, 2, 3) unless it says others."""
    centred = x - _mean(x, axes)
    return centred / (np.sqrt(_mean(centred * centred, axes)) + x.dtype.type(eps))


def _mean(x: Array, axes: Axes) -> Array:
    return mean.reference(x, axes=axes, keepdims=True)


@mean_variance_normalization.lowering
def _(x: Any, *, axes: tuple[int, ...], eps: float) -> Any:
    centred = ops.sub(x, ops.mean(x, axes=axes, keepdims=True))
    variance = ops.mean(ops.mul(centred, centred), axes=axes, keepdims=True)
    return ops.div(centred, ops.add(ops.sqrt(variance), eps))


@mean_variance_normalization.sample
def _(draw: Draw) -> Drawn:
    dims = draw.dims(1)
    return [Spec(dims, draw.dtype("f"))], {"axes": draw.axes(len(dims)), "eps": 1e-3}
