"""Resize.

Where sizes are known, or elements are repeated by a whole factor, it is the table's resize. Where
they are not, taps are computed when the model runs: their places, their weights, and then one
gather per axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, get_args

import numpy as np

from rlx import ops
from rlx.core.dim import (
    Dim,
    DimLike,
    dim_max,
    dim_min,
    exact_div,
    lower_bound,
    product,
    upper_bound,
)
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.data_dependent_sizes import MAX_ELEMENTS, scalar_size
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Node
from rlx.ops.compose import nullary
from rlx.ops.nn import resize as resampling
from rlx.ops.nn.resize import Coordinates, Rounding, positions

DENOMINATORS = 64, 4096
"""Scales of sizes that are not known are read as fractions up to here: 0.333… is 1/3."""
MAX_DENOMINATOR = 2**40
"""Of the fraction that a float is: more would leave no room for sizes in 64 bits."""
TRIED = 1 << 16
"""Sizes for which a fraction is to give what the product in f32 gives."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A scale that follows from sizes that are not known: new over old of an axis, or the least or
    the greatest of several axes."""

    pairs: tuple[tuple[DimLike, DimLike], ...]
    is_least: bool = True

    def node(self, call: Call, dtype: DType) -> Node:
        sizes = [(_size(call, new, dtype), _size(call, old, dtype)) for new, old in self.pairs]
        pick: Any = ops.minimum if self.is_least else ops.maximum
        return functools.reduce(pick, (ops.div(new, old) for new, old in sizes))

    def reach(self, support: int) -> DimLike:
        """support / scale, rounded up, where an axis shrinks; else the support."""
        pick = dim_max if self.is_least else dim_min
        taps = [(support * old + new - 1) // new for new, old in self.pairs]
        return dim_max(support, functools.reduce(pick, taps))

    def rounded(self, size: DimLike) -> DimLike:
        """The size times the scale, to the nearest."""
        pick = dim_min if self.is_least else dim_max
        return functools.reduce(
            pick, ((2 * new * size + old) // (2 * old) for new, old in self.pairs)
        )


@dataclass(frozen=True, slots=True, eq=False)
class ComputedScale:
    """A scale that is data, in f32."""

    value: Node

    def node(self, call: Call, dtype: DType) -> Node:
        return ops.cast(self.value, to=dtype)

    def reach(self, support: int) -> DimLike:
        """support / scale, rounded up, where an axis shrinks; else the support."""
        least = ops.minimum(ops.cast(self.value, to=DType.F64), 1.0)
        return scalar_size(ops.cast(ops.ceil(ops.div(float(support), least)), to=DType.I64))

    def rounded_down(self, call: Call, size: DimLike) -> DimLike:
        """The whole part of the product."""
        scaled = ops.floor(ops.mul(_size(call, size, DType.F32), self.value))
        return scalar_size(ops.cast(scaled, to=DType.I64))


Scale = float | Ratio | ComputedScale


@dataclass(frozen=True, slots=True)
class Line:
    """One axis."""

    axis: int
    old: DimLike
    new: DimLike
    scale: Scale
    crop: tuple[float, float] | None = None
    length: float | None = None
    """How long the new axis counts as, where that is not its size."""

    def is_in_table(self, rule: Rule) -> bool:
        """Is it an axis that the table's resize takes?"""
        if isinstance(self.old, int) and isinstance(self.new, int):
            return self.length in (None, self.new)
        is_whole = isinstance(self.scale, float) and self.new == self.old * int(self.scale)
        return rule.repeats and is_whole

    @property
    def is_same(self) -> bool:
        same = self.old == self.new and self.scale == 1.0
        return same and self.crop in (None, (0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Rule(resampling.Rule):
    """How new elements are interpolated, by ONNX's attributes."""

    nearest_mode: Rounding = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0

    @property
    def attrs(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


# -- the operators --------------------------------------------------------------------------------


@handles("Upsample", since=7)
def upsample_by_attribute(call: Call) -> Node:
    return _scaled_from_corner(call, call.required("scales"))


@handles("Upsample", since=9)
@handles("Resize", since=10)
def upsample(call: Call) -> Node:
    return _scaled_from_corner(call, _scales(call, 1))


def _scaled_from_corner(call: Call, scales: Sequence[float | ComputedScale]) -> Node:
    """Pixels by their corners. The nearest is the one before, or, where there become fewer, the
    one after: so it was before opset 11."""
    dims = call.shape(0).dims
    lines = [_by_scale(call, i, d, s) for i, (d, s) in enumerate(zip(dims, scales, strict=True))]
    mode = "nearest" if call.attr("mode", "nearest") == "nearest" else "linear"
    rule = Rule(mode, "asymmetric", "floor")
    if mode == "linear" or _is_copied(call, lines, rule):
        return _resized(call, call.node(0), lines, rule)
    if any(isinstance(line.scale, ComputedScale) for line in lines):
        raise call.unsupported("computed scales, whose nearest element opset 11 says first")
    fewer = [line for line in lines if isinstance(line.scale, float) and line.scale < 1]
    more = [line for line in lines if line not in fewer]
    made = _interpolated(call, call.node(0), more, rule)
    return _interpolated(call, made, fewer, replace(rule, nearest_mode="ceil"))


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
    if coordinates == "align_corners" and call.has(2) and call.importer.is_given(call.value(2)):
        lines = [_unrounded(line) for line in lines]
    return _as_before(call.node(0), rule, lambda x: _resized(call, x, lines, rule))


def _unrounded(line: Line) -> Line:
    """With `align_corners`, frameworks and runtimes divide by the whole size of the new axis less
    1, ONNX's own evaluator by the old size times the scale less 1. Scales that a model brings along
    were written by an exporter, and mean what its framework does. Those that are an input of the
    model are written by none, and are read as ONNX has them."""
    if isinstance(line.scale, float) and isinstance(line.old, int):
        return replace(line, length=line.scale * line.old)
    return line


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
        scales = _scales(call, 2)
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


def _scales(call: Call, number: int) -> list[float | ComputedScale]:
    """Scales as numbers, or as values where they are computed at run time."""
    value = call.value(number)
    is_data = call.importer.as_array(value) is None and call.may_measure(number)
    if not is_data or not isinstance(value, Node) or not value.shape.is_static:
        return call.array(number).reshape(-1).tolist()
    if value.op == "input" and call.importer.is_outermost(value.graph):  # a setting
        return call.array(number).reshape(-1).tolist()
    count = int(product(value.shape.dims))
    if count > MAX_ELEMENTS:
        raise call.refused(f"{count:,} scales, more than tensors have axes")
    return [_scale(call, value, i) for i in range(count)]


def _scale(call: Call, scales: Node, index: int) -> float | ComputedScale:
    """One of them: a number where the graph joins it with what is computed."""
    if scales.op == "concat" and all(i.shape.is_static for i in scales.inputs):
        for part in scales.inputs:
            count = int(product(part.shape.dims))
            if index < count:
                return _scale(call, part, index)
            index -= count
    known = call.importer.as_array(scales)
    if known is not None:
        return float(known.reshape(-1)[index])
    flat = ops.reshape(scales, dims=(product(scales.shape.dims),))
    one = ops.narrow(flat, axis=0, start=index, length=1)
    return ComputedScale(ops.cast(ops.reshape(one, dims=()), to=DType.F32))


def _check_count(call: Call, name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise GraphError(f"{call.label}: {name} has {found} numbers for {wanted} axes")


def _by_scale(call: Call, axis: int, old: DimLike, scale: float | ComputedScale) -> Line:
    """The new size is the whole part of the product, which ONNX takes in f32."""
    if isinstance(scale, ComputedScale):
        return Line(axis, old, scale.rounded_down(call, old), scale)
    if not 0 < scale < math.inf:
        raise GraphError(f"{call.label}: an axis is scaled by {scale}")
    if isinstance(old, int):
        return Line(axis, old, int(_products(np.array(old), scale)), float(scale))
    near = _fraction(old, float(scale))
    if near is None:
        raise call.needs_shape(f"{old} elements are scaled by {scale}, in f32")
    return Line(axis, old, old * near.numerator // near.denominator, float(scale))


def _products(sizes: Any, scale: float) -> Any:
    return np.floor(sizes.astype(np.float32) * np.float32(scale)).astype(np.int64)


def _fraction(size: Dim, scale: float) -> Fraction | None:
    """A fraction that has the whole part of its product where the scale has that in f32: the number
    that was meant (1.4, of which 45 are 63), or the float itself (62.999…), or neither."""
    exact = Fraction(scale)
    least, most = lower_bound(size), upper_bound(size)
    sizes = np.arange(least, min(least + TRIED, TRIED if most is None else most + 1))
    wanted = _products(sizes, scale)
    for near in (*map(exact.limit_denominator, DENOMINATORS), exact):
        if near.denominator <= MAX_DENOMINATOR:
            made = sizes.astype(object) * near.numerator // near.denominator
            if np.array_equal(made.astype(np.int64), wanted):
                return near
    return None


def _by_size(axis: int, old: DimLike, new: DimLike) -> Line:
    if isinstance(old, int) and isinstance(new, int):
        return Line(axis, old, new, new / old if old and new else 1.0)
    ratio = exact_div(new, old) if isinstance(old, Dim) or old > 0 else None
    return Line(axis, old, new, float(ratio) if isinstance(ratio, int) else Ratio(((new, old),)))


def _in_proportion(
    call: Call, dims: Sequence[DimLike], sizes: Sequence[DimLike], axes: Sequence[int], policy: str
) -> list[Line]:
    """One scale for all axes, so that none is larger than asked, or none smaller."""
    if policy not in ("not_larger", "not_smaller"):
        raise GraphError(f"{call.label}: keep_aspect_ratio_policy {policy!r} is not one ONNX has")
    if any(isinstance(d, int) and d == 0 for d in (*dims, *sizes)):
        raise GraphError(f"{call.label}: keep_aspect_ratio_policy {policy!r} of an empty image")
    scale = Ratio(tuple(zip(sizes, dims)), policy == "not_larger")
    if not all(isinstance(d, int) for d in (*dims, *sizes)):
        return [Line(a, d, scale.rounded(d), scale) for a, d in zip(axes, dims)]
    ratios = [np.float32(n) / np.float32(d) for n, d in scale.pairs]
    known = float(min(ratios) if scale.is_least else max(ratios))
    return [Line(a, d, int(known * int(d) + 0.5), known) for a, d in zip(axes, dims)]


# -- resizing -------------------------------------------------------------------------------------


def _is_copied(call: Call, lines: Sequence[Line], rule: Rule) -> bool:
    """Does every axis stay as long as it is? Then frameworks and runtimes copy, whatever the scale
    is; but for cubics, which torch computes."""
    if rule.mode == "cubic" or rule.antialias or any(line.crop for line in lines):
        return False
    for line in lines:
        if isinstance(line.old, Dim) and isinstance(line.scale, float) and line.scale > 1:
            require(line.old + 1, line.new, f"{call.label}: a scaled axis")
    return all(line.old == line.new for line in lines)


def _resized(call: Call, x: Node, lines: Sequence[Line], rule: Rule) -> Node:
    return x if _is_copied(call, lines, rule) else _interpolated(call, x, lines, rule)


def _interpolated(call: Call, x: Node, lines: Sequence[Line], rule: Rule) -> Node:
    changed = [line for line in lines if not line.is_same]
    known = [line for line in changed if line.is_in_table(rule)]
    rest = [line for line in changed if line not in known]
    for line in rest:
        x = _along(call, x, line, rule)
    x = _by_table(x, known, rule) if known else x
    for line in rest:
        x = _beyond(call, x, line, rule)
    return x


def _by_table(x: Node, lines: Sequence[Line], rule: Rule) -> Node:
    crops = [line.crop or (0.0, 1.0) for line in lines]
    scales: list[Any] = [line.scale for line in lines]
    return ops.resize(
        x,
        axes=tuple(line.axis for line in lines),
        sizes=tuple(line.new for line in lines),
        scales=tuple(scales),
        roi=(*(a for a, _ in crops), *(b for _, b in crops)),
        **rule.attrs,
    )


def _along(call: Call, x: Node, line: Line, rule: Rule) -> Node:
    """One axis whose size is not known."""
    at = _positions(call, line, rule)
    if rule.mode == "nearest":
        return ops.gather(x, _inside(call, _rounded(at, rule.nearest_mode), line), axis=line.axis)
    reach = _reach(line, rule)
    at = ops.expand_dims(at, axes=(1,))
    places = ops.add(ops.floor(at), _offsets(call, reach))
    weights = _weights(call, ops.abs(ops.sub(places, at)), places, line, rule)
    after = x.shape.rank - line.axis - 1
    weights = ops.cast(weights, to=x.shape.dtype)
    weights = ops.expand_dims(weights, axes=tuple(range(2, 2 + after))) if after else weights
    seen = ops.gather(x, _inside(call, places, line), axis=line.axis)
    return ops.sum(ops.mul(seen, weights), axes=(line.axis + 1,))


def _reach(line: Line, rule: Rule) -> DimLike:
    """How many old elements on each side have a weight."""
    support = 1 if rule.mode == "linear" else 2
    if not rule.antialias:
        return support
    if isinstance(line.scale, Ratio | ComputedScale):
        return line.scale.reach(support)
    return math.ceil(support / min(line.scale, 1.0))


def _offsets(call: Call, reach: DimLike) -> Node:
    """The taps of an element, from the first to the last."""
    first = _size(call, reach - 1, DType.F64)
    return ops.sub(nullary(call.graph, "iota", dims=(2 * reach,), axis=0, dtype=DType.F64), first)


def _beyond(call: Call, x: Node, line: Line, rule: Rule) -> Node:
    """What a crop has past the edges of the old elements is the extrapolation value."""
    if line.crop is None:
        return x
    at = _positions(call, line, replace(rule, mode="nearest"))
    last = _size(call, line.old - 1, at.shape.dtype)
    outside = ops.logical_or(ops.less(at, 0.0), ops.greater(at, last))
    after = x.shape.rank - line.axis - 1
    outside = ops.expand_dims(outside, axes=tuple(range(1, 1 + after))) if after else outside
    value = np.array(rule.extrapolation_value).astype(x.shape.dtype.numpy)
    return ops.where(outside, call.graph.constant(value), x)


def _size(call: Call, dim: DimLike, dtype: DType = DType.F64) -> Node:
    return Sizes((dim,), (), dtype).node(call.graph)


def _positions(call: Call, line: Line, rule: Rule) -> Node:
    """The source coordinate of each new element; centres of old ones are integers."""
    if rule.coordinate_mode not in get_args(Coordinates):
        raise call.unsupported(f"coordinate_transformation_mode {rule.coordinate_mode!r}")
    dtype = DType.F32 if rule.mode == "nearest" else DType.F64
    at = nullary(call.graph, "iota", dims=(line.new,), axis=0, dtype=dtype)
    old, new = (_size(call, d, dtype) for d in (line.old, line.new))
    new = new if line.length is None else line.length
    scale: Any = line.scale
    if isinstance(scale, Ratio | ComputedScale):
        scale = scale.node(call, dtype)
    made = positions(at, old, new, scale, rule.coordinate_mode, line.crop)
    return ops.expand(made, dims=(line.new,))


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
    if rule.antialias:
        distance = ops.mul(distance, _squeezed(call, line))
    if rule.mode == "linear":
        weights = ops.maximum(ops.sub(1.0, distance), 0.0)
    else:
        weights = _cubic(distance, rule.cubic_coeff_a)
    if rule.exclude_outside:
        last = _size(call, line.old - 1)
        inside = ops.logical_and(ops.greater_equal(places, 0.0), ops.less_equal(places, last))
        weights = ops.where(inside, weights, 0.0)
    if not rule.exclude_outside and not rule.antialias:
        return weights
    total = ops.sum(weights, axes=(1,), keepdims=True)
    return ops.div(weights, ops.where(ops.equal(total, 0.0), 1.0, total))


def _squeezed(call: Call, line: Line) -> Any:
    """How much closer together the old elements are to the kernel."""
    if isinstance(line.scale, Ratio | ComputedScale):
        return ops.minimum(line.scale.node(call, DType.F64), 1.0)
    return min(line.scale, 1.0)


def _cubic(x: Node, a: float) -> Node:
    near = ops.sub(ops.mul(x, a + 2), a + 3)
    near = ops.add(ops.mul(near, ops.mul(x, x)), 1.0)
    far = ops.add(ops.mul(ops.sub(ops.mul(x, a), 5 * a), x), 8 * a)
    far = ops.sub(ops.mul(far, x), 4 * a)
    outer = ops.where(ops.less(x, 2.0), far, 0.0)
    return ops.where(ops.less_equal(x, 1.0), near, outer)
