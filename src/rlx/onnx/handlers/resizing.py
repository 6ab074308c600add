"""Images of another size.

Where sizes are known, it is the table's resize, whose taps are constants. Where they are not, taps
are computed when the model runs: their places, their weights, and then one gather per axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from rlx import ops
from rlx.compose import beside
from rlx.dim import Dim, DimLike, exact_div
from rlx.dtype import DType
from rlx.errors import GraphError
from rlx.ir.mir import Node
from rlx.onnx.call import Call
from rlx.onnx.handlers import handles
from rlx.onnx.values import Sizes

MAX_DENOMINATOR = 64
"""Scales of sizes that are not known are read as fractions up to here: 0.333… is 1/3."""


@dataclass(frozen=True, slots=True)
class Line:
    """One axis. The scale is None where it follows from sizes that are not known."""

    axis: int
    old: DimLike
    new: DimLike
    scale: float | None
    crop: tuple[float, float] | None = None

    @property
    def is_known(self) -> bool:
        return isinstance(self.old, int) and isinstance(self.new, int)

    @property
    def is_same(self) -> bool:
        same = self.old == self.new and self.scale in (None, 1.0)
        return same and self.crop in (None, (0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Rule:
    """How new elements are made of old ones, in ONNX's words."""

    mode: str
    coordinate_mode: str
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0

    @property
    def attrs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Rule.__slots__}

    @property
    def repeats(self) -> bool:
        """Is each element repeated where the scale is whole?"""
        if self.mode != "nearest":
            return False
        if self.coordinate_mode == "asymmetric":
            return self.nearest_mode == "floor"
        return self.coordinate_mode == "half_pixel" and self.nearest_mode.startswith("round")


# -- the operators --------------------------------------------------------------------------------


@handles("Upsample", since=7)
def upsample_by_attribute(call: Call) -> Node:
    return _scaled_from_corner(call, call.required("scales"))


@handles("Upsample", since=9)
@handles("Resize", since=10)
def upsample(call: Call) -> Node:
    return _scaled_from_corner(call, call.array(1).reshape(-1).tolist())


def _scaled_from_corner(call: Call, scales: Sequence[float]) -> Node:
    """Pixels by their corners. The nearest is the one before, or, where there become fewer, the
    one after: so it was before opset 11."""
    dims = call.shape(0).dims
    lines = [_by_scale(call, i, d, s) for i, (d, s) in enumerate(zip(dims, scales, strict=True))]
    mode = "nearest" if call.attr("mode", "nearest") == "nearest" else "linear"
    rule = Rule(mode, "asymmetric", "floor")
    if mode == "linear":
        return _resized(call, call.node(0), lines, rule)
    fewer = [line for line in lines if line.scale is not None and line.scale < 1]
    more = [line for line in lines if line not in fewer]
    made = _resized(call, call.node(0), more, rule)
    return _resized(call, made, fewer, replace(rule, nearest_mode="ceil"))


@handles("Resize", since=11)
def resize(call: Call) -> Node:
    coordinates = call.attr("coordinate_transformation_mode", "half_pixel")
    rule = Rule(
        call.attr("mode", "nearest"),
        coordinates,
        call.attr("nearest_mode", "round_prefer_floor"),
        call.attr("cubic_coeff_a", -0.75),
        bool(call.attr("exclude_outside", 0)),
        bool(call.attr("antialias", 0)),
        call.attr("extrapolation_value", 0.0),
    )
    dims = call.shape(0).dims
    axes = [call.axis(a, len(dims)) for a in call.attr("axes") or range(len(dims))]
    lines = _lines(call, dims, axes)
    if coordinates == "tf_crop_and_resize":
        roi = [float(v) for v in call.array(1).reshape(-1)]
        crops = list(zip(roi, roi[len(axes) :]))
        if len(crops) != len(axes):
            raise GraphError(f"{call.label}: roi has {len(roi)} numbers for {len(axes)} axes")
        lines = [replace(line, crop=crop) for line, crop in zip(lines, crops)]
    return _as_before(call.node(0), rule, lambda x: _resized(call, x, lines, rule))


def _as_before(x: Node, rule: Rule, resized: Any) -> Node:
    """Integers are mixed as floats, and rounded back."""
    dtype = x.shape.dtype
    if rule.mode == "nearest" or dtype.is_float:
        return resized(x)
    wide = DType.F64 if dtype.numpy.itemsize > 2 else DType.F32
    return ops.cast(ops.round(resized(ops.cast(x, to=wide))), to=dtype)


# -- sizes and scales -----------------------------------------------------------------------------


def _lines(call: Call, dims: Sequence[DimLike], axes: Sequence[int]) -> list[Line]:
    if call.has(2) and call.shape(2).dims != (0,):
        scales = call.array(2).reshape(-1).tolist()
        _check_count(call, "scales", len(scales), len(axes))
        return [_by_scale(call, a, dims[a], s) for a, s in zip(axes, scales)]
    if not call.has(3):
        raise GraphError(f"{call.label}: it has neither scales nor sizes")
    sizes = call.dims(3)
    _check_count(call, "sizes", len(sizes), len(axes))
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [_by_size(a, dims[a], n) for a, n in zip(axes, sizes)]
    return _in_proportion(call, [dims[a] for a in axes], sizes, axes, policy)


def _check_count(call: Call, name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise GraphError(f"{call.label}: {name} has {found} numbers for {wanted} axes")


def _by_scale(call: Call, axis: int, old: DimLike, scale: float) -> Line:
    """The new size is the whole part of the product, which ONNX takes in f32."""
    if not 0 < scale < math.inf:
        raise GraphError(f"{call.label}: an axis is scaled by {scale}")
    if isinstance(old, int):
        return Line(axis, old, int(np.floor(np.float32(old) * np.float32(scale))), float(scale))
    near = Fraction(scale).limit_denominator(MAX_DENOMINATOR)
    if np.float32(near) != np.float32(scale):
        raise call.unsupported(f"{old} elements are scaled by {scale}, which is no simple fraction")
    return Line(axis, old, old * near.numerator // near.denominator, float(scale))


def _by_size(axis: int, old: DimLike, new: DimLike) -> Line:
    if isinstance(old, int) and isinstance(new, int):
        return Line(axis, old, new, new / old if old and new else 1.0)
    ratio = exact_div(new, old) if isinstance(old, Dim) or old > 0 else None
    return Line(axis, old, new, float(ratio) if isinstance(ratio, int) else None)


def _in_proportion(
    call: Call, dims: Sequence[DimLike], sizes: Sequence[DimLike], axes: Sequence[int], policy: str
) -> list[Line]:
    """One scale for all axes, so that none is larger than said, or none smaller."""
    if not all(isinstance(d, int) and d > 0 for d in (*dims, *sizes)):
        raise call.unsupported(f"keep_aspect_ratio_policy {policy!r} needs sizes that are known")
    if policy not in ("not_larger", "not_smaller"):
        raise GraphError(f"{call.label}: keep_aspect_ratio_policy {policy!r} is not one ONNX has")
    ratios = [int(n) / int(d) for n, d in zip(sizes, dims)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [Line(a, d, int(scale * int(d) + 0.5), scale) for a, d in zip(axes, dims)]


# -- resizing -------------------------------------------------------------------------------------


def _resized(call: Call, x: Node, lines: Sequence[Line], rule: Rule) -> Node:
    changed = [line for line in lines if not line.is_same]
    is_listed = rule.coordinate_mode != "tf_half_pixel_for_nn"
    known = [line for line in changed if line.is_known and is_listed]
    for line in changed:
        if line not in known:
            x = _along(call, x, line, rule)
    return _by_table(x, known, rule) if known else x


def _by_table(x: Node, lines: Sequence[Line], rule: Rule) -> Node:
    crops = [line.crop or (0.0, 1.0) for line in lines]
    return ops.resize(
        x,
        axes=tuple(line.axis for line in lines),
        sizes=tuple(line.new for line in lines),
        scales=tuple(line.scale for line in lines),
        roi=(*(a for a, _ in crops), *(b for _, b in crops)),
        **rule.attrs,
    )


def _along(call: Call, x: Node, line: Line, rule: Rule) -> Node:
    """One axis whose size is not known."""
    if line.crop is not None:
        raise call.unsupported(f"tf_crop_and_resize of an axis of {line.old}, which is not known")
    if rule.antialias and (line.scale is None or line.scale < 1):
        raise call.unsupported(f"antialias of an axis of {line.old}, which is not known")
    if rule.repeats and line.scale is not None and line.new == line.old * int(line.scale):
        return _repeated(x, line.axis, int(line.scale))
    at = _positions(call, line, rule)
    if rule.mode == "nearest":
        return ops.gather(x, _inside(call, _rounded(at, rule.nearest_mode), line), axis=line.axis)
    reach = 1 if rule.mode == "linear" else 2
    offsets = call.graph.constant(np.arange(1 - reach, reach + 1, dtype=np.float64))
    at = ops.expand_dims(at, axes=(1,))
    places = ops.add(ops.floor(at), offsets)
    weights = _weights(call, ops.abs(ops.sub(places, at)), places, line, rule)
    after = x.shape.rank - line.axis - 1
    weights = ops.cast(weights, to=x.shape.dtype)
    weights = ops.expand_dims(weights, axes=tuple(range(2, 2 + after))) if after else weights
    seen = ops.gather(x, _inside(call, places, line), axis=line.axis)
    return ops.sum(ops.mul(seen, weights), axes=(line.axis + 1,))


def _repeated(x: Node, axis: int, times: int) -> Node:
    """Each element of an axis as often as said."""
    dims = x.shape.dims
    wide = ops.expand_dims(x, axes=(axis + 1,))
    wide = ops.expand(wide, dims=(*dims[: axis + 1], times, *dims[axis + 1 :]))
    return ops.reshape(wide, dims=(*dims[:axis], dims[axis] * times, *dims[axis + 1 :]))


def _size(call: Call, dim: DimLike, dtype: DType = DType.F64) -> Node:
    return Sizes((dim,), (), dtype).node(call.graph)


def _positions(call: Call, line: Line, rule: Rule) -> Node:
    """Where each new element lies among the old ones, whose centres are whole numbers."""
    at = beside(call.graph, "iota", dims=(line.new,), axis=0, dtype=DType.F64)
    old, new = _size(call, line.old), _size(call, line.new)
    scale = ops.div(new, old) if line.scale is None else line.scale
    length = new if line.scale is None else ops.mul(old, line.scale)
    middle = ops.div(ops.add(at, 0.5), scale)
    half = ops.sub(middle, 0.5)
    match rule.coordinate_mode:
        case "asymmetric":
            return ops.div(at, scale)
        case "half_pixel":
            return half
        case "tf_half_pixel_for_nn":
            return middle
        case "pytorch_half_pixel":
            return ops.where(ops.greater(length, 1.0), half, 0.0)
        case "align_corners":
            ratio = ops.div(ops.sub(old, 1.0), ops.sub(length, 1.0))
            return ops.where(ops.equal(length, 1.0), 0.0, ops.mul(at, ratio))
        case "half_pixel_symmetric":
            shift = ops.mul(ops.div(old, 2.0), ops.sub(1.0, ops.div(new, length)))
            return ops.add(half, shift)
        case other:
            raise call.unsupported(f"coordinate_transformation_mode {other!r}")


def _rounded(at: Node, mode: str) -> Node:
    match mode:
        case "round_prefer_floor":
            return ops.ceil(ops.sub(at, 0.5))
        case "round_prefer_ceil":
            return ops.floor(ops.add(at, 0.5))
        case "ceil":
            return ops.ceil(at)
        case _:
            return ops.floor(at)


def _inside(call: Call, places: Node, line: Line) -> Node:
    """Past an edge stands the edge."""
    last = _size(call, line.old - 1, DType.I64)
    return ops.minimum(ops.maximum(ops.cast(places, to=DType.I64), 0), last)


def _weights(call: Call, distance: Node, places: Node, line: Line, rule: Rule) -> Node:
    """A tent, or Keys' cubic convolution; where what is outside has none, the rest share it."""
    if rule.mode == "linear":
        weights = ops.maximum(ops.sub(1.0, distance), 0.0)
    else:
        weights = _cubic(distance, rule.cubic_coeff_a)
    if not rule.exclude_outside:
        return weights
    last = _size(call, line.old - 1)
    inside = ops.logical_and(ops.greater_equal(places, 0.0), ops.less_equal(places, last))
    kept = ops.where(inside, weights, 0.0)
    total = ops.sum(kept, axes=(1,), keepdims=True)
    return ops.div(kept, ops.where(ops.equal(total, 0.0), 1.0, total))


def _cubic(x: Node, a: float) -> Node:
    near = ops.sub(ops.mul(x, a + 2), a + 3)
    near = ops.add(ops.mul(near, ops.mul(x, x)), 1.0)
    far = ops.add(ops.mul(ops.sub(ops.mul(x, a), 5 * a), x), 8 * a)
    far = ops.sub(ops.mul(far, x), 4 * a)
    outer = ops.where(ops.less(x, 2.0), far, 0.0)
    return ops.where(ops.less_equal(x, 1.0), near, outer)
