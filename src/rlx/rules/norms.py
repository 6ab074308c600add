"""Recognition of softmax, RMS norm and layer norm from their decompositions.

A norm is found from the inside out: first x / rms(x), then what is centred before it, then the
scale and the bias after it. So the order in which a front end writes them does not matter.
"""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import FLOATS, DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.op import Kind
from rlx.rules.common import is_float
from rlx.rules.engine import Uses, no, rule
from rlx.rules.match import at, scalar_of

_ROUNDINGS = "the decomposition rounds at every step and sums in another order; values reach 40"


def trailing(axes: tuple[int, ...], rank: int) -> int | None:
    """The first of `axes` if they are the last ones of `rank`."""
    return rank - len(axes) if axes and axes == tuple(range(rank - len(axes), rank)) else None


def _drawn(draw: Draw, least: int = 1) -> Node:
    dims, dtype = draw.dims(least, 4, 1), draw.choice(sorted(FLOATS, key=str))
    return Graph("sample").input("x", Shape(dims, dtype))


# -- softmax --------------------------------------------------------------------------------------


def _sample_softmax(draw: Draw) -> Node:
    x = _drawn(draw)
    axis = draw.integer(0, x.rank - 1)
    e = ops.exp(ops.sub(x, ops.max(x, axes=(axis,), keepdims=True)))
    total = ops.sum(e, axes=(axis,), keepdims=True)
    return ops.div(e, total) if draw.coin() else ops.mul(ops.reciprocal(total), e)


@rule(
    lambda x, e, a: ops.div(
        at("e", ops.exp(ops.sub(x, ops.max(x, axes=a, keepdims=True)))),
        ops.sum(e, axes=a, keepdims=True),
    ),
    lambda x, e, a: ops.mul(
        at("e", ops.exp(ops.sub(x, ops.max(x, axes=a, keepdims=True)))),
        ops.reciprocal(ops.sum(e, axes=a, keepdims=True)),
    ),
    sample=_sample_softmax,
    slack=4.0,
    why="a quotient where there may have been a reciprocal; f16 and bf16 round at every step",
)
def softmax_formula(x: Node, e: Node, a: tuple[int, ...], uses: Uses) -> Any:
    """exp(x - max) divided by its sum is the softmax."""
    if len(a) != 1:
        return no("a softmax is over one axis")
    if uses(e) > 2:
        return no("the exponentials are needed elsewhere too")
    return ops.softmax(x, axis=a[0])


def _sample_log_softmax(draw: Draw) -> Node:
    x = _drawn(draw)
    axis = draw.integer(0, x.rank - 1)
    below = ops.sub(x, ops.max(x, axes=(axis,), keepdims=True))
    return ops.sub(below, ops.log(ops.sum(ops.exp(below), axes=(axis,), keepdims=True)))


@rule(
    lambda x, d, a: ops.sub(
        at("d", ops.sub(x, ops.max(x, axes=a, keepdims=True))),
        ops.log(ops.sum(ops.exp(d), axes=a, keepdims=True)),
    ),
    sample=_sample_log_softmax,
    slack=64.0,
    why="in half precision the decomposition rounds differences of up to 80 before the logarithm",
)
def log_softmax_formula(x: Node, a: tuple[int, ...]) -> Any:
    """(x - max) - log of the sum of its exponentials is the log-softmax."""
    return ops.log_softmax(x, axis=a[0]) if len(a) == 1 else None


# -- x / rms(x) -----------------------------------------------------------------------------------


def _sample_rms(draw: Draw) -> Node:
    x = _drawn(draw)
    axes = tuple(range(draw.integer(0, x.rank - 1), x.rank))
    eps = draw.choice((1e-5, 1e-3))
    inside = ops.add(ops.mean(ops.square(x), axes=axes, keepdims=True), eps)
    scale = x.graph.input("s", Shape(x.shape.dims[-1:], x.dtype))
    forms = (
        lambda: ops.div(x, ops.sqrt(inside)),
        lambda: ops.mul(x, ops.rsqrt(inside)),
        lambda: ops.mul(ops.mul(ops.rsqrt(inside), scale), x),
        lambda: ops.mul(ops.rsqrt(inside), ops.mul(scale, x)),
    )
    return draw.choice(forms)()


@rule(
    lambda x, v: ops.div(x, at("r", ops.sqrt(v))),
    lambda x, v: ops.mul(x, at("r", ops.rsqrt(v))),
    lambda x, v, s: ops.mul(x, ops.mul(at("r", ops.rsqrt(v)), s)),
    lambda x, v, s: ops.mul(ops.mul(x, s), at("r", ops.rsqrt(v))),
    sample=_sample_rms,
    slack=32.0,
    refines=True,
    why=_ROUNDINGS,
)
def rms_norm_formula(x: Node, v: Node, r: Node, node: Node, uses: Uses) -> Any:
    """x / √(mean of x² + eps) is the rms norm; a factor beside it stays a factor."""
    found = _mean_square(v, x)
    if found is None:
        return None
    if uses(r) > 1:
        return no("the root mean square is needed elsewhere too")
    axis, eps = found
    normed = ops.rms_norm(x, axis=axis, eps=eps)
    rest = _other_factor(node, x, r)
    made = normed if rest is None else ops.mul(normed, rest)
    return made if made.shape == node.shape else None


def _mean_square(v: Node, x: Node) -> tuple[int, float] | None:
    """The first axis and the eps of `v` = mean of x² over the last axes + eps."""
    eps = 0.0
    if v.op == "add":
        values = [scalar_of(i) for i in v.inputs]
        if (values[0] is None) == (values[1] is None):
            return None
        eps = float(values[0] if values[1] is None else values[1])
        v = v.inputs[0 if values[0] is None else 1]
    if v.op != "mean" or not v.attrs["keepdims"] or not is_float(x):
        return None
    squared = v.inputs[0]
    axis = trailing(v.attrs["axes"], x.rank)
    is_square = squared.op == "square" and squared.inputs[0] is x
    return (axis, eps) if is_square and axis is not None and eps >= 0.0 else None


def _other_factor(node: Node, x: Node, r: Node) -> Node | None:
    """What is multiplied in beside x and its reciprocal root."""
    inner = next((i for i in node.inputs if i not in (x, r)), None)
    if inner is None or inner.op != "mul":
        return None
    return next((i for i in inner.inputs if i not in (x, r)), inner.inputs[0])


# -- around it ------------------------------------------------------------------------------------


def _sample_centred(draw: Draw) -> Node:
    """In f32 and f64: centring cancels all digits of f16 and bf16 when a row's values are close."""
    x = _drawn(draw)
    while x.dtype.compute is not x.dtype:
        x = _drawn(draw)
    axis = draw.integer(0, x.rank - 1)
    axes = tuple(range(axis, x.rank))
    centred = ops.sub(x, ops.mean(x, axes=axes, keepdims=True))
    rest = _affine(x, axis, draw.integer(0, 2))
    return ops.rms_norm(centred, *rest, axis=axis, eps=draw.choice((1e-5, 1e-3)))


def _affine(x: Node, axis: int, count: int) -> list[Node]:
    shape = Shape(x.shape.dims[axis:], x.dtype)
    return [x.graph.input(name, shape) for name in ("s", "b")[:count]]


@rule(
    lambda: ops.rms_norm,
    sample=_sample_centred,
    slack=64.0,
    refines=True,
    why=_ROUNDINGS,
)
def layer_norm_formula(node: Node) -> Any:
    """The rms norm of x - mean(x) is the layer norm of x."""
    centred, *affine = node.inputs
    if centred.op != "sub":
        return None
    x, mean = centred.inputs
    axes = tuple(range(node.attrs["axis"], x.rank))
    is_mean = mean.op == "mean" and mean.inputs[0] is x and mean.attrs["keepdims"]
    if not is_mean or mean.attrs["axes"] != axes:
        return None
    return ops.layer_norm(x, *affine, **node.attrs)


def _sample_scaled(draw: Draw) -> Node:
    x = _drawn(draw)
    axis = draw.integer(0, x.rank - 1)
    norm = draw.choice((ops.rms_norm, ops.layer_norm))
    (scale,) = _affine(x, axis, 1)
    if draw.coin(0.3):
        scale = ops.reshape(scale, dims=(*[1] * axis, *scale.shape.dims))
    return ops.mul(norm(x, axis=axis), scale)


_HALF_PRECISION = "in half precision the decomposition rounds before the scale or bias"


@rule(
    lambda x, s: ops.mul(at("norm", ops.rms_norm(x)), s),
    lambda x, s: ops.mul(at("norm", ops.layer_norm(x)), s),
    sample=_sample_scaled,
    slack=4.0,
    refines=True,
    why=_HALF_PRECISION,
)
def fold_scale_into_norm(x: Node, s: Node, norm: Node, uses: Uses) -> Any:
    """A norm times a vector over its axes is the norm with that scale."""
    scale = _over_axes(s, x.shape.dims[norm.attrs["axis"] :])
    if scale is None:
        return None
    if uses(norm) > 1:
        return no("the norm is needed without its scale too")
    return norm.graph.node(norm.decl, (x, scale), norm.attrs)


def _sample_biased(draw: Draw) -> Node:
    x = _drawn(draw)
    axis = draw.integer(0, x.rank - 1)
    scale, bias = _affine(x, axis, 2)
    return ops.add(draw.choice((ops.rms_norm, ops.layer_norm))(x, scale, axis=axis), bias)


@rule(
    lambda x, s, b: ops.add(at("norm", ops.rms_norm(x, s)), b),
    lambda x, s, b: ops.add(at("norm", ops.layer_norm(x, s)), b),
    sample=_sample_biased,
    slack=4.0,
    refines=True,
    why=_HALF_PRECISION,
)
def fold_bias_into_norm(x: Node, s: Node, b: Node, norm: Node, uses: Uses) -> Any:
    """A scaled norm plus a vector over its axes is the norm with that bias."""
    bias = _over_axes(b, x.shape.dims[norm.attrs["axis"] :])
    if bias is None:
        return None
    if uses(norm) > 1:
        return no("the norm is needed without its bias too")
    return norm.graph.node(norm.decl, (x, s, bias), norm.attrs)


def _over_axes(v: Node, dims: tuple[DimLike, ...]) -> Node | None:
    """`v` as a vector of exactly `dims`, where it only has ones before them."""
    lead = v.shape.dims[: max(0, v.rank - len(dims))]
    if v.shape.dims[len(lead) :] != dims or any(d != 1 for d in lead):
        return None
    return ops.reshape(v, dims=dims) if lead else v


# -- half precision -------------------------------------------------------------------------------


def _sample_casts(draw: Draw) -> Node:
    dtype = draw.choice((DType.F16, DType.BF16))
    graph, dims = Graph("sample"), draw.dims(1, 4, 1)
    wide = [
        ops.cast(graph.input(n, Shape(d, dtype)), to=DType.F32)
        for n, d in (("x", dims), ("s", dims[-1:]))
    ]
    forms = (
        lambda: ops.softmax(wide[0], axis=-1),
        lambda: ops.rms_norm(wide[0]),
        lambda: ops.layer_norm(*wide),
        lambda: ops.gelu(wide[0]),
    )
    return ops.cast(draw.choice(forms)(), to=dtype)


def _is_widened(x: Node, half: DType) -> bool:
    """Is it a cast of `half` to f32?"""
    return x.op == "cast" and x.dtype is DType.F32 and x.inputs[0].dtype is half


@rule(lambda x, to: ops.cast(x, to=to), sample=_sample_casts)
def drop_half_precision_casts(x: Node, to: DType, uses: Uses) -> Any:
    """Casting f16 or bf16 to f32, computing and rounding once is what the op does in that dtype."""
    if to not in (DType.F16, DType.BF16) or x.dtype is not DType.F32 or not x.inputs:
        return None
    if x.decl.kind not in (Kind.ROW, Kind.ELEMENTWISE) or x.decl.is_exact or x.has_items:
        return None
    if uses(x) > 1 or not all(_is_widened(i, to) for i in x.inputs):
        return None
    made = x.graph.node(x.decl, [i.inputs[0] for i in x.inputs], x.attrs)
    return made if made.shape.dtype is to else None
