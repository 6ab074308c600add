"""Resize by ONNX's formulas, from opset 11 on: a matrix of weights for every axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.onnx.differential.drawing import Array, Node


@dataclass(frozen=True, slots=True)
class Line:
    """An axis; its length is not whole where scales are an input of the model."""

    axis: int
    old: int
    new: int
    scale: float
    length: float
    crop: tuple[float, float] | None


def resized(node: Node) -> Array:
    x, mode = node.array(0), node.attrs.get("mode", "nearest")
    lines = _lines(node)
    is_mixed = mode == "cubic" or node.attrs.get("antialias", 0) or any(a.crop for a in lines)
    if not is_mixed and all(a.old == a.new for a in lines):
        return x  # as frameworks have it, whatever the scale
    made, past = x.astype(np.float64), np.zeros([1] * x.ndim, bool)
    for line in lines:
        at = _positions(line, node, np.float32 if mode == "nearest" else np.float64)
        wide = (1,) * line.axis + (-1,) + (1,) * (x.ndim - line.axis - 1)
        if line.crop:
            near = _positions(line, node, np.float32)
            past = past | ((near < 0) | (near > line.old - 1)).reshape(wide)
        if (line.scale, line.new, line.crop or (0, 1)) != (1, line.old, (0, 1)):
            weights = _weights(node, line, at, mode)
            made = np.moveaxis(np.tensordot(weights, made, (1, line.axis)), 0, line.axis)
    return np.where(past, node.attrs.get("extrapolation_value", 0.0), made).astype(x.dtype)


def _lines(node: Node) -> list[Line]:
    """Without keep_aspect_ratio_policy."""
    x, roi = node.array(0), node.array(1).tolist() if node.has(1) else []
    axes = [a % x.ndim for a in node.attrs.get("axes", range(x.ndim))]
    is_crop = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    crops = list(zip(roi, roi[len(axes) :])) if is_crop else [None] * len(axes)
    if node.array(2).size:
        given = node.operands[2]
        is_input = given is not None and not given.is_known
        every = [(a, x.shape[a], s) for a, s in zip(axes, node.array(2))]
        news = [int(np.float32(old) * s) for _, old, s in every]
        return [
            Line(a, old, new, float(s), float(s) * old if is_input else new, crop)
            for (a, old, s), new, crop in zip(every, news, crops)
        ]
    sizes = [int(n) for n in node.array(3)]
    return [
        Line(a, x.shape[a], n, n / x.shape[a], n, crop) for a, n, crop in zip(axes, sizes, crops)
    ]


def _positions(line: Line, node: Node, number: Any) -> Array:
    """Where new elements lie among the old ones."""
    at, half = np.arange(line.new, dtype=number), number(0.5)
    old, new, scale = number(line.old), number(line.new), number(line.scale)
    centre = (at + half) / scale - half
    match node.attrs.get("coordinate_transformation_mode", "half_pixel"):
        case "half_pixel":
            return centre
        case "pytorch_half_pixel":
            return centre if line.new > 1 else 0 * at
        case "half_pixel_symmetric":
            return old / number(2) * (number(1) - new / (scale * old)) + centre
        case "asymmetric":
            return at / scale
        case "tf_half_pixel_for_nn":
            return (at + half) / scale
        case "align_corners":
            length = number(line.length)
            return 0 * at if length == 1 else at * (old - number(1)) / (length - number(1))
        case _:
            start, end = map(number, line.crop or (0, 1))
            if line.new > 1:
                return start * (old - 1) + at * (end - start) * (old - 1) / (new - 1)
            return 0 * at + half * (start + end) * (old - 1)


def _weights(node: Node, line: Line, at: Array, mode: str) -> Array:
    """[new, old]: what past an edge has a weight gives it to the edge, or to none."""
    made = np.zeros((line.new, line.old))
    squeezed = min(1.0, line.scale) if node.attrs.get("antialias", 0) else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / squeezed)) + 1
    for row, here in enumerate(at):
        if mode == "nearest":
            made[row, np.clip(_rounded(here, node), 0, line.old - 1)] = 1
            continue
        taps = int(np.floor(here)) + np.arange(-reach, reach + 1)
        weights = _kernel(np.abs(taps - here) * squeezed, mode, node.attrs)
        is_cut = node.attrs.get("exclude_outside", 0)
        weights = np.where((taps >= 0) & (taps < line.old), weights, 0) if is_cut else weights
        if is_cut or node.attrs.get("antialias", 0):
            weights = weights / (weights.sum() or 1)
        np.add.at(made[row], np.clip(taps, 0, line.old - 1), weights)
    return made


def _rounded(at: Any, node: Node) -> int:
    match node.attrs.get("nearest_mode", "round_prefer_floor"):
        case "round_prefer_floor":
            return int(np.ceil(at - type(at)(0.5)))
        case "round_prefer_ceil":
            return int(np.floor(at + type(at)(0.5)))
        case "floor":
            return int(np.floor(at))
        case _:
            return int(np.ceil(at))


def _kernel(far: Array, mode: str, attrs: Any) -> Array:
    if mode == "linear":
        return np.maximum(0, 1 - far)
    a = float(np.float32(attrs.get("cubic_coeff_a", -0.75)))
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    rest = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.where(far <= 1, near, np.where(far < 2, rest, 0))
