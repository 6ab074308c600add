"""Images of another size, through grids, and in regions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import (
    Draw,
    Node,
    Operand,
    Rounding,
    draws,
    explain,
    sums,
)
from tests.onnx.differential.resizing import resized

MIXED = Rounding(2.0**10, 30.0)
"""Of values mixed by positions in f32, which are off by some units of numbers up to 30."""
SCALES = (0.5, 0.6, 0.7, 0.13, 1.0, 1.3, 1.5, 1.7, 2.0, 2.1, 2.5, 3.0)


def _floats(d: Draw, values: Any, known: float = 0.9) -> Operand:
    return Operand(np.asarray(values, np.float32), d.coin(known), has_names=False)


@draws("Upsample")
def _upsample(d: Draw) -> Node:
    """Scales from 1 on, as the operator is called."""
    rank = d.integer(1, 4)
    mode = d.choice(("nearest", "linear"))
    rank = d.choice((2, 4)) if mode == "linear" else rank  # what onnxruntime mixes
    scales = [float(d.choice([s for s in SCALES if s >= 1])) for _ in range(rank)]
    if mode == "linear" and rank == 4:
        scales[:2] = [1.0, 1.0]
    dims = [d.integer(1, 5) for _ in range(rank)]
    kind = DType.F32 if mode == "linear" else d.kind("T")
    x = d.tensor(dims, kind, "plain")
    how = d.some(0.8, mode=mode) if mode == "nearest" else {"mode": mode}
    if d.opset < 9:  # before opset 7 it was an experiment
        return replace(d.node(x, scales=scales, tolerance=MIXED, **how), opset=max(7, d.opset))
    return d.node(x, _floats(d, scales), tolerance=MIXED, **how)


COORDINATES = {
    "half_pixel": 11,
    "asymmetric": 11,
    "align_corners": 11,
    "pytorch_half_pixel": 11,
    "tf_half_pixel_for_nn": 11,
    "tf_crop_and_resize": 11,
    "half_pixel_symmetric": 19,
}


@draws("Resize")
def _resize(d: Draw) -> Node:
    mode = (
        d.choice(("nearest", "linear", "cubic"))
        if d.opset >= 11
        else d.choice(("nearest", "linear"))
    )
    outer = d.integer(0, 2) if mode == "nearest" else 2
    axes = d.integer(1, 3) if mode == "nearest" else 2
    dims = [d.integer(1, 3) for _ in range(outer)] + [d.integer(1, 9) for _ in range(axes)]
    kinds = [k for k in d.admitted(d.schema.inputs[0].type_str) if k is not DType.BOOL]
    kind = d.choice([*kinds, *[DType.F32] * len(kinds)]) if mode == "nearest" else DType.F32
    x = d.tensor(dims, kind, "plain")
    attrs: dict[str, Any] = {"mode": mode} if mode != "nearest" or d.coin() else {}
    if d.opset < 11:
        scales = [1.0] * outer + [float(d.choice(SCALES)) for _ in range(axes)]
        return d.node(x, _floats(d, scales), tolerance=MIXED, **attrs)
    return _resize_by_coordinates(d, x, outer, mode, attrs)


def _resize_by_coordinates(
    d: Draw, x: Operand, outer: int, mode: str, attrs: dict[str, Any]
) -> Node:
    coordinates = [c for c, since in COORDINATES.items() if d.opset >= since and (
        c not in ("tf_half_pixel_for_nn",) or (d.opset < 13 and mode == "nearest"))]  # fmt: skip
    how = d.choice(coordinates)
    if how != "half_pixel" or d.coin():
        attrs["coordinate_transformation_mode"] = how
    if mode == "nearest":
        roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attrs |= d.some(0.7, nearest_mode=d.choice(roundings))
    if mode == "cubic":
        attrs |= d.some(0.4, cubic_coeff_a=d.choice((-0.75, -0.5)))
        attrs |= d.some(0.4, exclude_outside=d.integer(0, 1))
    if mode != "nearest" and d.has("antialias") and d.coin(0.3) and how != "tf_crop_and_resize":
        attrs["antialias"] = 1
    axes = list(range(x.rank))
    if d.has("axes") and d.coin(0.4):
        axes = list(range(outer, x.rank))
        attrs["axes"] = [d.signed(a, x.rank) for a in axes]
    roi = None
    if how == "tf_crop_and_resize":
        starts = [float(d.choice((0.0, 0.2, -0.3))) if a >= outer else 0.0 for a in axes]
        ends = [float(d.choice((1.0, 0.9, 1.3, 0.7))) if a >= outer else 1.0 for a in axes]
        roi = _floats(d, [*starts, *ends])
        attrs |= d.some(0.5, extrapolation_value=7.5)
    if d.coin(0.6):
        known = [s for s in SCALES if roi is None or s != 1]  # there onnxruntime forgets the crop
        factors = [float(d.choice(known)) if a >= outer else 1.0 for a in axes]
        empty = roi or (Operand(np.zeros(0, np.float32), True, False) if d.opset < 13 else None)
        return d.node(x, empty, _floats(d, factors), tolerance=MIXED, **attrs)
    sizes = [d.integer(1, 12) if a >= outer else x.dims[a] for a in axes]
    if d.has("keep_aspect_ratio_policy") and "axes" in attrs and roi is None and d.coin(0.5):
        attrs["keep_aspect_ratio_policy"] = d.choice(("stretch", "not_larger", "not_smaller"))
        attrs["axes"] = axes  # onnxruntime takes negative ones for others here
    none = Operand(np.zeros(0, np.float32), True, False) if d.opset < 13 else None
    return d.node(x, roi or none, none, d.shaping(sizes), tolerance=MIXED, **attrs)


# -- grids ----------------------------------------------------------------------------------------


@draws("GridSample")
def _grid_sample(d: Draw) -> Node:
    axes = 2 if d.opset < 20 else d.choice((2, 2, 3))
    names = ("bilinear", "nearest", "bicubic") if d.opset < 20 else ("linear", "nearest", "cubic")
    mode = d.choice(names[: 2 if axes == 3 else 3])
    n = d.integer(1, 2)
    image = [d.integer(1, 5) for _ in range(axes)]
    kind = d.choice([k for k in d.admitted("T1") if k in (DType.F32, DType.F32, DType.F64)])
    x = d.tensor((n, d.integer(1, 3), *image), kind, "plain")
    wanted = [d.integer(1, 4) for _ in range(axes)]
    grid = d.given(d.rng.uniform(-1.7, 1.7, (n, *wanted, axes)).astype(kind.numpy))
    attrs = d.some(0.7, align_corners=d.integer(0, 1))
    attrs |= d.some(0.7, padding_mode=d.choice(("zeros", "border", "reflection")))
    if mode not in ("bilinear", "linear") or d.coin():
        attrs["mode"] = mode
    return d.node(x, grid, tolerance=MIXED, **attrs)


@draws("AffineGrid")
def _affine_grid(d: Draw) -> Node:
    axes, n = d.choice((2, 2, 3)), d.integer(1, 3)
    kind = d.choice([k for k in d.admitted("T1") if k in (DType.F32, DType.F64)])
    theta = d.tensor((n, axes, axes + 1), kind, "plain")
    size = d.shaping([n, d.integer(1, 3), *(d.integer(1, 5) for _ in range(axes))])
    return d.node(theta, size, tolerance=sums(4, 30.0), **d.some(align_corners=d.integer(0, 1)))


# -- regions --------------------------------------------------------------------------------------


def _boxes(d: Draw, count: int, height: int, width: int) -> Any:
    """Corners x1, y1, x2, y2, some past the image, some empty."""
    points = d.rng.uniform(-1, max(height, width) + 1, (count, 2, 2))
    low, high = points.min(1), points.max(1)
    return np.concatenate([low, high], 1)


@draws("RoiAlign")
def _roi_align(d: Draw) -> Node:
    kind = d.choice([k for k in d.admitted("T1") if k in (DType.F32, DType.F64)])
    n, c, h, w = d.integer(1, 2), d.integer(1, 3), d.integer(2, 7), d.integer(2, 7)
    count = d.integer(1, 4)
    x = d.tensor((n, c, h, w), kind, "plain")
    boxes = d.given(_boxes(d, count, h, w).astype(kind.numpy))
    which = d.given(d.rng.integers(0, n, count).astype(np.int64))
    attrs = d.some(
        0.7,
        output_height=d.integer(1, 3), output_width=d.integer(1, 3),
        sampling_ratio=d.integer(0, 3), spatial_scale=float(d.choice((1.0, 0.5, 2.0))),
        mode=d.choice(("avg", "max")),
        coordinate_transformation_mode=d.choice(("half_pixel", "output_half_pixel")),
    )  # fmt: skip
    return d.node(x, boxes, which, tolerance=MIXED, **attrs)


@draws("MaxRoiPool")
def _max_roi_pool(d: Draw) -> Node:
    kind = d.choice([k for k in d.admitted("T") if k in (DType.F32, DType.F64)])
    n, c, h, w = d.integer(1, 2), d.integer(1, 3), d.integer(2, 7), d.integer(2, 7)
    count = d.integer(1, 4)
    boxes = np.round(np.clip(_boxes(d, count, h, w), 0, max(h, w) - 1))
    which = d.rng.integers(0, n, (count, 1))
    rois = d.given(np.concatenate([which, boxes], 1).astype(kind.numpy))
    attrs = d.some(0.5, spatial_scale=float(d.choice((1.0, 0.5))))
    pooled = [d.integer(1, 3), d.integer(1, 3)]
    return d.node(d.tensor((n, c, h, w), kind, "plain"), rois, pooled_shape=pooled, **attrs)


def _affine(node: Node) -> Any:
    theta, size = node.array(0).astype(np.float64), node.array(1)
    lines: list[Any] = []
    for n in size[2:]:
        if node.attrs.get("align_corners", 0):
            lines.append(np.linspace(-1, 1, n) if n > 1 else np.zeros(1))
        else:
            lines.append((2 * np.arange(n) + 1) / n - 1)
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(mesh[0].shape)], -1)
    made = np.einsum("...k,nrk->n...r", points, theta)
    return made.astype(node.array(0).dtype)


explain(
    "AffineGrid",
    right=_affine,
    why="one pixel by its centre is in the middle, as torch has it; onnx.reference makes floats of "
    "doubles",
)
explain(
    "RoiAlign",
    right="onnxruntime",
    why="onnx.reference samples other points of regions whose number of points follows from their "
    "size, or that begin at a corner, and takes the greatest product for the greatest value",
)


def _sampled(node: Node) -> Any:
    """Point by point, as torch has it: a position is moved inside, but of cubics each pixel."""
    x, grid = node.array(0).astype(np.float64), node.array(1).astype(np.float64)
    mode, is_corner = node.attrs.get("mode", "linear"), bool(node.attrs.get("align_corners", 0))
    how, sizes = node.attrs.get("padding_mode", "zeros"), x.shape[2:]
    made = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for at in np.ndindex(*grid.shape[:-1]):
        taps = [_axis_taps(v, n, mode, how, is_corner) for v, n in zip(grid[at][::-1], sizes)]
        for tap in product(*taps):
            places = tuple(place for place, _ in tap)
            if all(0 <= p < n for p, n in zip(places, sizes)):
                weight = np.prod([w for _, w in tap])
                made[(at[0], slice(None), *at[1:])] += weight * x[(at[0], slice(None), *places)]
    return made.astype(node.array(0).dtype)


def _axis_taps(v: float, n: int, mode: str, how: str, is_corner: bool) -> list[tuple[int, float]]:
    """Pixels of one axis, and their weights."""
    at = (v + 1) / 2 * (n - 1) if is_corner else ((v + 1) * n - 1) / 2
    if mode == "nearest":
        return [(int(np.rint(_moved(at, n, how, is_corner))), 1.0)]
    if mode in ("linear", "bilinear"):
        at = _moved(at, n, how, is_corner)
        first = int(np.floor(at))
        return [(first, first + 1 - at), (first + 1, at - first)]
    first, a = int(np.floor(at)), -0.75
    found: list[tuple[int, float]] = []
    for place in range(first - 1, first + 3):
        far = abs(place - at)
        near = ((a + 2) * far - (a + 3)) * far * far + 1
        weight = near if far <= 1 else ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        found.append((int(_moved(place, n, how, is_corner)), weight))
    return found


def _moved(at: float, n: int, how: str, is_corner: bool) -> float:
    """A position past an edge, moved to it or mirrored at it."""
    if how == "zeros":
        return at
    if how == "reflection":
        low, span = (0.0, n - 1.0) if is_corner else (-0.5, float(n))
        turns, rest = divmod(abs(at - low), span) if span else (0.0, 0.0)
        at = low + (rest if turns % 2 == 0 else span - rest)
    return min(max(at, 0.0), n - 1.0)


explain(
    "GridSample",
    right="onnxruntime",
    why="onnx.reference reads positions of doubles in single precision, divides by 0 where one is "
    "mirrored, and moves cubic positions past the border to it, where torch clamps each pixel",
    when=lambda n: (
        n.array(0).dtype == np.float64 or n.attrs.get("padding_mode") in ("border", "reflection")
    ),
    otherwise=_sampled,
)


def _is_fractional(node: Node) -> bool:
    return node.has(2) and node.array(2).size > 0


def _stays(node: Node) -> bool:
    """Is the image as large as it was?"""
    if not _is_fractional(node):
        return False
    x, scales = node.array(0), node.array(2)
    axes = node.attrs.get("axes", range(x.ndim))
    return all(int(np.float32(x.shape[a]) * s) == x.shape[a] for a, s in zip(axes, scales))


def _is_mixed(node: Node) -> bool:
    crops = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return crops or node.attrs.get("mode") == "cubic"


def _sizes(node: Node) -> list[tuple[int, int, int]]:
    """(place, old length, new length) of each axis that `sizes` names; none where scales do."""
    if not node.has(3):
        return []
    x, sizes = node.array(0), node.array(3)
    axes = node.attrs.get("axes", range(x.ndim))
    return [(i, x.shape[a], int(n)) for i, (a, n) in enumerate(zip(axes, sizes))]


def _crops_what_stays(node: Node) -> bool:
    """Is there an axis of the same length before and after of which a part is taken?"""
    if node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return False
    starts, ends = np.split(node.array(1), 2)
    return any(old == new and (starts[i], ends[i]) != (0, 1) for i, old, new in _sizes(node))


def _is_cubic_of_one(node: Node) -> bool:
    how = node.attrs.get("coordinate_transformation_mode")
    is_cubic = how == "pytorch_half_pixel" and node.attrs.get("mode") == "cubic"
    return is_cubic and any(new == 1 != old for _, old, new in _sizes(node))


def _is_symmetric(node: Node) -> bool:
    how = node.attrs.get("coordinate_transformation_mode")
    return how == "half_pixel_symmetric" and node.attrs.get("mode", "nearest") == "nearest"


explain(
    "Resize",
    right=resized,
    why="scales that are an input of the model and not whole: no exporter writes them, and rlx has "
    "align_corners of ONNX's own cases, which onnxruntime has not",
    when=lambda n: (
        n.attrs.get("coordinate_transformation_mode") == "align_corners"
        and _is_fractional(n)
        and n.operands[2] is not None
        and not n.operands[2].is_known
    ),
)
explain(
    "Resize",
    right=resized,
    why="an image that stays as large is copied by onnxruntime, also a crop, and by cubics, which "
    "torch computes; half_pixel_symmetric is rounded otherwise where an element is halfway",
    when=lambda n: (_is_mixed(n) and _stays(n)) or _is_symmetric(n),
)
explain(
    "Resize",
    right=resized,
    why="onnxruntime takes no part of an axis that is as long after as before, where ONNX's "
    "formula of tf_crop_and_resize takes it",
    when=_crops_what_stays,
)
explain(
    "Resize",
    right=resized,
    why="pytorch_half_pixel of an axis of one element is position 0 by ONNX's formula, and -0.5 in "
    "onnx.reference",
    when=_is_cubic_of_one,
)
explain(
    "Resize",
    right="onnxruntime",
    why="onnx.reference takes one scale times a size for the length of the new axis, and has other "
    "positions of the nearest before opset 11",
    when=lambda n: "keep_aspect_ratio_policy" in n.attrs or n.opset < 11,
)
explain(
    "Resize",
    right="onnxruntime",
    why="onnx.reference takes a scale times a size for the length of the new axis, and computes "
    "positions of the nearest in f64",
    when=lambda n: (
        _is_fractional(n)
        or n.attrs.get("mode", "nearest") == "nearest"
        or n.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    ),
    otherwise=resized,
)
