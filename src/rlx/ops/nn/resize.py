"""Resize: separable resampling, each axis with a few filter taps per new element.

Where sizes are static, the old elements that a new one is made of, and their weights, are
constants: resizing an axis is one gather, times the weights, summed over the taps. An axis of a
named size is repeated: by `nearest` and a whole factor k, new element i is old element i // k.
ONNX's Resize is expressed with its own attribute values; its keep_aspect_ratio_policy is a matter
of which sizes and scales are given, and its integer images are cast to floats and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, exact_div
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.memory_limits import require_table
from rlx.core.shape import Shape, indivisible
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.movement import axes_in
from rlx.ops.op import Array, Kind, op

Mode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
Where = tuple[Sequence[int], Sequence[DimLike], Sequence[float], Sequence[float] | None]
"""Axes, the sizes and the scales of each, and the crops."""
Rounding = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


_TAP_BYTES = 48
"""A place, a weight, and what both are computed from: six numbers of 8 bytes at a time."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How new elements are made of old ones."""

    mode: Mode
    coordinate_mode: Coordinates
    nearest_mode: Rounding
    cubic_coeff_a: float
    exclude_outside: bool
    antialias: bool

    @property
    def precision(self) -> DType:
        """Of positions. Which of two elements is nearest is decided in f32, as runtimes have it:
        with a scale of 0.7 that is given in f32, 3.5 / 0.7 is 5, and a little more in f64."""
        return DType.F32 if self.mode == "nearest" else DType.F64

    @property
    def repeats(self) -> bool:
        """Is each element repeated where the scale is whole? The new elements are spread evenly
        about the centre of their old one then, none of them halfway to the next."""
        if self.mode != "nearest":
            return False
        if self.coordinate_mode in ("asymmetric", "tf_half_pixel_for_nn"):
            return self.nearest_mode == "floor"
        return "half_pixel" in self.coordinate_mode and self.nearest_mode.startswith("round")

    def squeezed(self, scale: float) -> float:
        """How much closer together the old elements are to the kernel."""
        return min(scale, 1.0) if self.antialias else 1.0

    def reach(self, scale: float) -> int:
        """How many old elements on each side have a weight."""
        return math.ceil((1 if self.mode == "linear" else 2) / self.squeezed(scale))

    def kernel(self, distance: Array) -> Array:
        """The weight of a tap: a tent, or Keys' cubic convolution."""
        x, a = np.abs(distance), self.cubic_coeff_a
        if self.mode == "linear":
            return np.maximum(0.0, 1.0 - x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def positions(at: Any, old: Any, new: Any, scale: Any, coordinates: str, crop: Any = None) -> Any:
    """The source coordinates of the elements `at` of a new axis, whose centres are whole
    numbers: in numbers or, of sizes that are not known, in nodes. The scale is the one that is
    given, where one is; lengths are whole, as runtimes and frameworks have them."""
    if coordinates == "tf_crop_and_resize":
        start, end = crop
        middle = (start + end) * 0.5 * (old - 1)
        return _where_long(
            new, start * (old - 1) + at * (end - start) * (old - 1) / _steps(new), middle
        )
    if coordinates == "align_corners":
        return _where_long(new, at * (old - 1) / _steps(new), 0.0)
    if coordinates == "asymmetric":
        return at / scale
    middle = (at + 0.5) / scale
    if coordinates == "tf_half_pixel_for_nn":
        return middle
    if coordinates == "half_pixel_symmetric":
        return old / 2 * (1 - new / (scale * old)) + middle - 0.5
    return (
        _where_long(new, middle - 0.5, 0.0) if coordinates == "pytorch_half_pixel" else middle - 0.5
    )


def _steps(new: Any) -> Any:
    """From the first to the last element; of one alone, any number that divides."""
    return ops.maximum(new - 1, 1)


def _where_long(new: Any, long: Any, short: Any) -> Any:
    """What holds for an axis of more than one element, and what for one."""
    return ops.where(ops.greater(new, 1), long, short)


@dataclass(frozen=True, slots=True)
class Line:
    """An axis of `old` elements that becomes one of `new`. The scale is not always their ratio:
    sizes are whole, and a model may mean the scale that a size was rounded from."""

    axis: int
    old: int
    new: int
    scale: float
    crop: tuple[float, float] | None

    @property
    def is_same(self) -> bool:
        return self.old == self.new and self.scale == 1 and self.crop in (None, (0.0, 1.0))

    def positions(self, coordinates: Coordinates, dtype: DType = DType.F64) -> Array:
        """The source coordinate of each new element; old centres are whole numbers."""
        number = dtype.numpy.type
        at = np.arange(self.new, dtype=dtype.numpy)
        if self.new == 0:
            return at
        crop = self.crop and tuple(map(number, self.crop))
        old, new, scale = map(number, (self.old, self.new, self.scale))
        return np.broadcast_to(positions(at, old, new, scale, coordinates, crop), at.shape)

    def outside(self) -> Array:
        """Which new elements a crop has past the edges of the old ones."""
        at = self.positions("tf_crop_and_resize", DType.F32)
        return (at < 0) | (at > self.old - 1)

    def taps(self, rule: Rule) -> tuple[Array, Array]:
        """[new, taps]: the old elements that each new one is made of, and their weights. Past an
        edge stands the edge, unless that is to have no weight."""
        reach = 1 if rule.mode == "nearest" else rule.reach(self.scale)
        require_table(self.new * 2 * reach * _TAP_BYTES, f"resize: the weights of axis {self.axis}")
        at = self.positions(rule.coordinate_mode, rule.precision)[:, None]
        if rule.mode == "nearest":
            places = _ROUNDED[rule.nearest_mode](at)
            return self._inside(places), np.ones_like(places)
        places = np.floor(at) + np.arange(1 - reach, reach + 1)
        weights = rule.kernel((places - at) * rule.squeezed(self.scale))
        if rule.exclude_outside:
            weights = np.where((places >= 0) & (places < self.old), weights, 0.0)
        if rule.antialias or rule.exclude_outside:
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
        return self._inside(places), weights

    def _inside(self, places: Array) -> Array:
        return np.clip(places, 0, self.old - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Repeat:
    """An axis of a named size, each of whose elements becomes `factor` new ones."""

    axis: int
    old: Dim
    factor: int

    @property
    def new(self) -> DimLike:
        return self.old * self.factor

    @property
    def is_same(self) -> bool:
        return self.factor == 1


def lines_of(dims: Sequence[DimLike], where: Where, rule: Rule) -> list[Line | Repeat]:
    """The axes that change, each with its part of the attributes."""
    axes, sizes, scales, roi = where
    crops = [None] * len(axes) if roi is None else list(zip(roi, roi[len(axes) :]))
    every = zip(axes, sizes, scales, crops, strict=True)
    lines = [_line(a, dims[a], n, scale, crop, rule) for a, n, scale, crop in every]
    return [line for line in lines if not line.is_same]


def _line(
    axis: int, old: DimLike, new: DimLike, scale: float,
    crop: tuple[float, float] | None, rule: Rule,
) -> Line | Repeat:  # fmt: skip
    if isinstance(old, int) and isinstance(new, int):
        return Line(axis, old, new, scale, crop)
    is_repeated = rule.repeats or (scale == 1 and crop is None)
    if isinstance(old, Dim) and is_repeated and scale == int(scale) and old * int(scale) == new:
        return Repeat(axis, old, int(scale))
    raise _no_repeat(old, new)


def _no_repeat(old: DimLike, new: DimLike | str) -> GraphError:
    return GraphError(
        f"{old} elements become {new}: named sizes are resized by mode nearest and a whole scale, "
        "with coordinate_mode asymmetric and nearest_mode floor, or with half_pixel and "
        "round_prefer_floor. Static sizes are resized by all"
    )


# -- resize ---------------------------------------------------------------------------------------


def _resized(x: Shape, **attrs: Any) -> Shape:
    where, rule = parts_of(attrs)
    if rule.mode != "nearest" and not x.dtype.is_float:
        raise GraphError(f"x is {x}: mode {rule.mode} takes floats. Cast it, or use nearest")
    dims = list(x.dims)
    for line in lines_of(x.dims, where, rule):
        if line.old == 0 and line.new != 0:
            raise GraphError(
                f"axis {line.axis} of {x} is empty: there is nothing to resize to {line.new}"
            )
        dims[line.axis] = line.new
    return x.with_dims(dims)


def _resize_flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
    """A product and a sum per tap and element, axis by axis."""
    total: DimLike = 0
    made, (where, rule) = shapes[0], parts_of(attrs)
    for line in lines_of(made.dims, where, rule):
        if isinstance(line, Line) and rule.mode != "nearest":
            made = made.with_dim(line.axis, line.new)
            total = total + made.num_elements * (4 * rule.reach(line.scale))
    return total


def parts_of(attrs: Mapping[str, Any]) -> tuple[Where, Rule]:
    """What says where axes go, and what says how."""
    where = attrs["axes"], attrs["sizes"], attrs["scales"], attrs["roi"]
    return where, Rule(**{k: attrs[k] for k in Rule.__slots__})


@op(
    "a[...] -> a[...]",
    kind=Kind.SPECIAL,
    shape=_resized,
    flops=_resize_flops,
)
def resize(
    x: Array,
    *,
    axes: tuple[int, ...] | None = None,
    sizes: tuple[DimLike, ...] | None = None,
    scales: tuple[float, ...] | None = None,
    mode: Mode = "nearest",
    coordinate_mode: Coordinates = "half_pixel",
    nearest_mode: Rounding = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: tuple[float, ...] | None = None,
    extrapolation_value: float = 0.0,
) -> Array:
    """x with these axes, or the last ones, brought to `sizes`, or to the whole part of their size
    times `scales`; with both given, sizes say how many elements there are and scales where they are
    sampled. `nearest` copies, from places that are computed in f32, so that ties round as they do
    in runtimes; `linear` and `cubic` take floats and weigh 2 and 4 old elements per axis, or with
    `antialias`, where an axis shrinks, as many as fall together. `exclude_outside` gives no weight
    past the edge. `roi` has where the crop of `tf_crop_and_resize` starts on each axis, and then
    where it ends, as parts of the axis; what the crop has past the image is the extrapolation
    value. Axes of named sizes are resized by `nearest` and whole scales, which repeat elements."""
    return _lowered(**locals())


@resize.lowering
def _lowered(x: Any, *, extrapolation_value: float, **attrs: Any) -> Any:
    where, rule = parts_of(attrs)
    outside, rank = np.zeros((), bool), len(dims_of(x))
    for line in lines_of(dims_of(x), where, rule):
        if isinstance(line, Repeat):
            x = _repeated(x, line)
            continue
        places, weights = line.taps(rule)
        if rule.mode == "nearest":
            x = ops.gather(x, places[:, 0], axis=line.axis)
        else:
            weights = _along(weights.astype(dtype_of(x).numpy), line.axis, rank)
            seen = ops.mul(ops.gather(x, places, axis=line.axis), weights)
            x = ops.sum(seen, axes=(line.axis + 1,))
        if line.crop is not None:
            outside = outside | _along(line.outside(), line.axis, rank)
    if not outside.any():
        return x
    value = ops.cast(np.float64(extrapolation_value), to=dtype_of(x))
    return ops.where(outside, value, x)


def _repeated(x: Any, line: Repeat) -> Any:
    dims, axis = dims_of(x), line.axis
    wide = (*dims[: axis + 1], line.factor, *dims[axis + 1 :])
    apart = ops.expand(ops.expand_dims(x, axes=(axis + 1,)), dims=wide)
    return ops.reshape(apart, dims=(*dims[:axis], line.new, *dims[axis + 1 :]))


def _along(values: Array, axis: int, rank: int) -> Array:
    """`values` with their first axis as the one of this number."""
    return values.reshape((1,) * axis + values.shape + (1,) * (rank - axis - 1))


@resize.normal
def _(
    x: Shape,
    *,
    axes: tuple[int, ...] | None,
    sizes: tuple[DimLike, ...] | None,
    scales: tuple[float, ...] | None,
    roi: tuple[float, ...] | None,
    **attrs: Any,
) -> dict[str, Any]:
    """The axes in order, each with its size, its scale and its crop."""
    if attrs["mode"] == "nearest" and attrs["antialias"]:
        raise GraphError("mode nearest copies single elements, so there is no antialias")
    count = len(sizes if sizes is not None else scales or ())
    axes = tuple(range(x.rank - count, x.rank)) if axes is None else axes
    known = axes_in(axes, x.rank)
    order = [next(i for i, a in enumerate(axes) if a % x.rank == k) for k in known]
    crops = roi if attrs["coordinate_mode"] == "tf_crop_and_resize" else None
    if attrs["coordinate_mode"] == "tf_crop_and_resize" and crops is None:
        raise GraphError("coordinate_mode tf_crop_and_resize needs a roi")
    for name, given, wanted in (("sizes", sizes, 1), ("scales", scales, 1), ("roi", crops, 2)):
        if given is not None and len(given) != wanted * len(axes):
            raise GraphError(f"{name} has {len(given)} entries for {len(axes)} axes")
    made = [_sized(x.dims[axes[i]], i, sizes, scales) for i in order]
    return {
        "axes": known,
        "sizes": tuple(size for size, _ in made),
        "scales": tuple(scale for _, scale in made),
        "roi": crops and (*(crops[i] for i in order), *(crops[len(axes) + i] for i in order)),
    }


def _sized(
    old: DimLike, i: int, sizes: Sequence[DimLike] | None, scales: Sequence[float] | None
) -> tuple[DimLike, float]:
    """The size and the scale of the i-th axis that is resized: one of them may follow."""
    if sizes is None and scales is None:
        raise GraphError("resize needs sizes or scales")
    scale = scales[i] if scales is not None else 1.0
    size = sizes[i] if sizes is not None else _scaled(old, scale)
    if (isinstance(size, int) and size < 0) or not 0 < scale < math.inf:
        raise GraphError(f"an axis cannot have the size {size} and the scale {scale}")
    return size, scale if scales is not None else _ratio(size, old)


def _scaled(old: DimLike, scale: float) -> DimLike:
    if isinstance(old, int):
        return math.floor(old * scale)
    if scale != math.floor(scale):
        raise _no_repeat(old, f"{scale}·{old}")
    return old * int(scale)


def _ratio(new: DimLike, old: DimLike) -> float:
    """The scale that follows from sizes: of named ones, a whole factor."""
    if isinstance(new, int) and isinstance(old, int):
        return new / old if old > 0 and new > 0 else 1.0
    factor = exact_div(new, old) if old != 0 else None
    if not isinstance(factor, int) or factor <= 0:
        raise _no_repeat(old, new)
    return float(factor)


# -- blocks of pixels -----------------------------------------------------------------------------


@composed("a[n c h w] -> a[...]", kind=Kind.MOVEMENT)
def depth_to_space(x: Any, *, block: int, order: Literal["DCR", "CRD"] = "DCR") -> Any:
    """Channels laid out as blocks of pixels, `block` by `block`. Channels count the places of a
    block first (`DCR`) or last (`CRD`)."""
    n, c, h, w = dims_of(x)
    outer = _over(c, block)
    if order == "DCR":
        apart = ops.reshape(x, dims=(n, block, block, outer, h, w))
        placed = ops.transpose(apart, perm=(0, 3, 4, 1, 5, 2))
    else:
        apart = ops.reshape(x, dims=(n, outer, block, block, h, w))
        placed = ops.transpose(apart, perm=(0, 1, 4, 2, 5, 3))
    return ops.reshape(placed, dims=(n, outer, h * block, w * block))


@composed("a[n c h w] -> a[...]", kind=Kind.MOVEMENT)
def space_to_depth(x: Any, *, block: int, order: Literal["DCR", "CRD"] = "DCR") -> Any:
    """Blocks of pixels, `block` by `block`, laid out as channels: undoes depth_to_space."""
    n, c, h, w = dims_of(x)
    rows, columns = _over(h, block, 1), _over(w, block, 1)
    apart = ops.reshape(x, dims=(n, c, rows, block, columns, block))
    perm = (0, 3, 5, 1, 2, 4) if order == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(
        ops.transpose(apart, perm=perm), dims=(n, c * (block * block), rows, columns)
    )


def _over(dim: DimLike, block: int, power: int = 2) -> DimLike:
    """How often blocks fit, which must be without a rest."""
    found = exact_div(dim, block**power) if block > 0 else None
    if found is None:
        raise indivisible(
            f"{dim} is not known to be a multiple of {block}^{power}", dim, block**power
        )
    return found


# -- drawing --------------------------------------------------------------------------------------


@resize.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    mode = draw.choice(get_args(Mode))
    dims = draw.dims(1, 4, smallest=draw.integer(0, 1))
    axes = tuple(int(a) for a in draw.rng.permutation(len(dims)) if draw.coin(0.6) and dims[a])
    attrs = {
        "axes": tuple(a - len(dims) * draw.coin(0.3) for a in axes),
        "sizes": tuple(draw.integer(0, 7) for _ in axes) if draw.coin(0.6) else None,
        "mode": mode,
        "coordinate_mode": draw.choice(get_args(Coordinates)),
        "nearest_mode": draw.choice(get_args(Rounding)),
        "cubic_coeff_a": draw.choice((-0.75, -0.5)),
        "exclude_outside": draw.coin(0.3),
        "antialias": mode != "nearest" and draw.coin(),
        "roi": tuple(draw.choice((0.0, 0.2, -0.3, 1.0, 1.3)) for _ in range(2 * len(axes))),
        "extrapolation_value": float(draw.integer(0, 1)),
    }
    if attrs["sizes"] is None or draw.coin(0.3):
        attrs["scales"] = tuple(draw.choice((0.3, 0.5, 1.0, 2.0, 1.7)) for _ in axes)
    dtype = draw.dtype("a" if mode == "nearest" else "f")
    return [Spec(dims, dtype, "any" if mode == "nearest" else "plain")], attrs


def _draw_blocks(draw: Draw, deep: bool) -> tuple[list[Spec], dict[str, Any]]:
    block, c, h, w = draw.integer(1, 3), draw.size(), draw.size(), draw.size()
    dims = (c * block**2, h, w) if deep else (c, h * block, w * block)
    attrs = {"block": block, "order": draw.choice(("DCR", "CRD"))}
    return [Spec((draw.size(), *dims), draw.dtype("a"))], attrs


depth_to_space.sample(lambda draw: _draw_blocks(draw, True))
space_to_depth.sample(lambda draw: _draw_blocks(draw, False))
