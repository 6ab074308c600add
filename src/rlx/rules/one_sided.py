"""One-sided doubling and other factors of power spectra, as a product with one vector behind the
mean: doubled bins concatenated, selected or added, before the mean or after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import FLOATS, DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.engine import Uses, no, rule
from rlx.rules.match import scalar_of

# -- doubling as a product with a vector ----------------------------------------------------------


def _drawn(draw: Draw) -> Node:
    dims = (*draw.dims(0, 2), draw.integer(2, 9))
    return Graph("sample").input("x", Shape(dims, draw.choice(sorted(FLOATS, key=str))))


def _sample_scaled_slices(draw: Draw) -> Node:
    x = _drawn(draw)
    n = int(x.shape.dims[-1])
    cuts = sorted({0, 1, n, draw.integer(1, n)})
    parts = [ops.narrow(x, axis=-1, start=a, length=b - a) for a, b in itertools.pairwise(cuts)]
    forms: tuple[Callable[[Node], Node], ...] = (
        lambda p: p,
        lambda p: ops.mul(p, 2.0),
        lambda p: ops.mul(p, 0.5),
        lambda p: ops.add(p, p),
        lambda p: ops.div(p, 4.0),
    )
    scaled: list[Node] = [draw.choice(forms)(p) for p in parts]
    return ops.concat(scaled, axis=-1)


def _may_be_scaled(node: Node) -> bool:
    return (
        node.op == "concat"
        and node.dtype.is_float
        and any(i.op in ("mul", "div", "add") for i in node.inputs)
        and all(i.op in ("mul", "div", "add", "narrow") for i in node.inputs)
    )


@rule(sample=_sample_scaled_slices, when=_may_be_scaled)
def concat_of_scaled_slices(node: Node, uses: Uses) -> Any:
    """Adjacent slices times numbers, concatenated, are one slice times a vector."""
    axis = node.attrs["axis"]
    scaled = [_scaled_slice(i, axis) for i in node.inputs]
    known = [s for s in scaled if s is not None]
    if len(known) < len(scaled) or any(uses(i) > 1 for i in node.inputs if i.op != "narrow"):
        return None
    first = known[0][0]
    end: DimLike = first.attrs["start"]
    factors: list[Any] = []
    for part, factor in known:
        length = part.attrs["length"]
        if part.inputs[0] is not first.inputs[0] or part.attrs["start"] != end:
            return None
        if not isinstance(length, int):
            return None
        end = end + length
        factors += [factor] * length
    x, start = first.inputs[0], first.attrs["start"]
    whole = ops.narrow(x, axis=axis, start=start, length=len(factors))
    dims = (len(factors), *[1] * (x.rank - 1 - axis))
    return ops.mul(whole, np.asarray(factors, node.dtype.numpy).reshape(dims))


def _scaled_slice(x: Node, axis: int) -> tuple[Node, Any] | None:
    """A slice along an axis, and a number that it is multiplied by: a power of 2 if it divides."""
    if x.op == "narrow":
        return (x, 1.0) if x.attrs["axis"] == axis else None
    if x.op == "add":
        return (x.inputs[0], 2.0) if x.inputs[0] is x.inputs[1] and _is_cut(x, 0, axis) else None
    at = 1 if x.op == "mul" and scalar_of(x.inputs[0]) is not None else 0
    value = scalar_of(x.inputs[1 - at])
    if value is None or (x.op == "div" and np.frexp(float(value))[0] != 0.5):
        return None
    factor = value if x.op == "mul" else 1.0 / float(value)
    return (x.inputs[at], factor) if _is_cut(x, at, axis) else None


def _is_cut(x: Node, at: int, axis: int) -> bool:
    part = x.inputs[at]
    return part.op == "narrow" and part.attrs["axis"] == axis and part.shape == x.shape


def _sample_selected(draw: Draw) -> Node:
    x = _drawn(draw)
    n = int(x.shape.dims[-1])
    doubled = ops.add(x, x) if draw.coin() else ops.mul(x, 2.0)
    x, doubled = (x, doubled) if draw.coin() else (ops.mul(x, 0.5), ops.mul(x, 3.0))
    sides = (x, doubled) if draw.coin() else (doubled, x)
    shown = x.graph.constant(np.arange(n) % draw.integer(1, 3) == 0)
    return ops.where(shown, *sides)


@rule(lambda c, x, y: ops.where(c, x, y), sample=_sample_selected)
def select_of_scales(c: Node, x: Node, y: Node, node: Node, uses: Uses) -> Any:
    """A value, or a number times it, by a constant condition is it times a constant."""
    if c.op != "constant" or not node.dtype.is_float or c.rank == node.rank > 1:
        return None
    pairs = [(p, q) for p in ((x, 1.0), _times(x)) for q in ((y, 1.0), _times(y))]
    of_x, a, b = next(((p[0], p[1], q[1]) for p, q in pairs if p[0] is q[0]), (x, 1.0, 1.0))
    if of_x.shape != node.shape or a == b:
        return None
    if any(side is not of_x and uses(side) > 1 for side in (x, y)):
        return None
    factors = np.where(c.attrs["value"].array, a, b).astype(node.dtype.numpy)
    return ops.mul(of_x, factors)


def _times(x: Node) -> tuple[Node, Any]:
    """A value and the number that it is multiplied by."""
    if x.op == "add" and x.inputs[0] is x.inputs[1]:
        return x.inputs[0], 2.0
    for i, other in ((0, 1), (1, 0)) if x.op == "mul" else ():
        value = scalar_of(x.inputs[i])
        if value is not None and x.inputs[other].shape == x.shape:
            return x.inputs[other], value
    return x, 1.0


# -- factors behind the mean ----------------------------------------------------------------------


def is_power(x: Node) -> bool:
    """Is it the power of frames, moved or not?"""
    while x.op in ("reshape", "transpose", "narrow", "mul", "div", "expand"):
        x = x.inputs[0] if x.op != "mul" or _is_wide(x) else x.inputs[1]
    return x.op == "power_frames"


def _is_wide(x: Node) -> bool:
    """Is the first factor the one with all dims?"""
    return x.inputs[0].shape == x.shape and scalar_of(x.inputs[0]) is None


def _sample_factor(draw: Draw) -> Node:
    g, dtype, n = Graph("sample"), draw.choice((DType.F32, DType.F64)), draw.integer(1, 9)
    x = g.input("x", Shape((*draw.dims(0, 2, 1), n + draw.integer(0, 8)), dtype))
    power = ops.power_frames(x, n_fft=n, hop=draw.integer(1, 4))
    dims = draw.choice(((), (n // 2 + 1,), (1, n // 2 + 1)))
    factor = ops.add(ops.abs(g.input("f", Shape(dims, dtype))), 1.0)
    forms = (
        lambda: ops.mul(power, factor),
        lambda: ops.mul(factor, power),
        lambda: ops.div(power, factor),
    )
    return ops.mean(draw.choice(forms)(), axes=(power.rank - 2,), keepdims=draw.coin())


@rule(
    lambda y, a: ops.mean(y, axes=a),
    sample=_sample_factor,
    slack=16.0,
    domain="plain",
    why="each term was rounded, and sums differ in order",
)
def factor_behind_mean(y: Node, a: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """The mean of power times what is the same for all frames is the mean times that."""
    if y.op not in ("mul", "div") or not is_power(y) or uses(y) > 1:
        return None
    at = 0 if y.op == "div" or _is_wide(y) else 1
    power, factor = y.inputs[at], y.inputs[1 - at]
    dims = (*[1] * (y.rank - factor.rank), *factor.shape.dims)
    if power.shape != y.shape or any(dims[i] != 1 for i in a):
        return None
    mean = ops.mean(power, axes=a, keepdims=node.attrs["keepdims"])
    rest = dims if node.attrs["keepdims"] else tuple(d for i, d in enumerate(dims) if i not in a)
    each = factor if factor.rank == 0 else ops.reshape(factor, dims=rest)
    return y.graph.node(y.decl, (mean, each))


def _sample_moved_mean(draw: Draw) -> Node:
    g, dtype, n = Graph("sample"), draw.choice((DType.F32, DType.F64)), draw.integer(1, 9)
    x = g.input("x", Shape((2, 3, n + draw.integer(0, 8)), dtype))
    p = ops.power_frames(x, n_fft=n, hop=draw.integer(1, 4))
    _, _, frames, bins = p.shape.static_dims
    forms = (
        lambda: (ops.transpose(p, perm=(0, 1, 3, 2)), (3,)),
        lambda: (ops.transpose(p, perm=(2, 0, 1, 3)), (0,)),
        lambda: (ops.reshape(p, dims=(6, frames, bins)), (1,)),
        lambda: (ops.narrow(p, axis=3, start=0, length=max(0, bins - 1)), (2,)),
    )
    moved, axes = draw.choice(forms)()
    return ops.mean(moved, axes=axes, keepdims=draw.coin())


@rule(
    lambda y, a: ops.mean(y, axes=a),
    sample=_sample_moved_mean,
    slack=16.0,
    domain="plain",
    why="sums differ in order",
)
def mean_of_moved_power(y: Node, a: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """The mean over the frames of transposed, regrouped or cut power is that of the mean."""
    power = y.inputs[0] if y.inputs else y
    if y.op not in ("transpose", "reshape", "narrow") or not is_power(power):
        return None
    if len(a) != 1 or uses(y) > 1:
        return None
    if y.op == "transpose":
        axis = y.attrs["perm"][a[0]]
    else:
        axis = a[0] + power.rank - y.rank
        is_kept = power.shape.dims[-2:] == y.shape.dims[-2:] and a[0] == y.rank - 2
        if not (is_kept if y.op == "reshape" else y.attrs["axis"] != axis):
            return None
    if axis != power.rank - 2:
        return no("the mean is over another axis than frames")
    mean = ops.mean(power, axes=(axis,), keepdims=y.op != "reshape")
    if y.op == "reshape":
        return ops.reshape(mean, dims=node.shape.dims)
    moved = y.graph.node(y.decl, (mean,), y.attrs)
    return moved if moved.shape == node.shape else ops.reshape(moved, dims=node.shape.dims)
