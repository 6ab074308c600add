"""Pools and convolutions by their definition, window by window."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.differential.drawing import Array, Node


def _count(n: int, span: int, step: int, pads: tuple[int, int], is_up: bool) -> int:
    room = n + sum(pads) - span
    count = (-(-room // step) if is_up or room < 0 else room // step) + 1
    return max(0, count - (is_up and (count - 1) * step >= n + pads[0]))


def padding_of(node: Node, axis: int, n: int, span: int, step: int) -> tuple[int, int]:
    """Of SAME as many windows as strides fit, as TensorFlow has it; never less than none."""
    auto, axes = node.attrs.get("auto_pad", "NOTSET"), len(node.array(0).shape) - 2
    if auto.startswith("SAME"):
        total = max(0, (-(-n // step) - 1) * step + span - n)
        less = total // 2
        return (less, total - less) if auto == "SAME_UPPER" else (total - less, less)
    pads = node.attrs.get("pads", [0] * 2 * axes) if auto == "NOTSET" else [0] * 2 * axes
    return pads[axis], pads[axis + axes]


def _seen(node: Node, x: Any, kernel: tuple[int, ...], fill: float) -> tuple[Any, Any]:
    """[…, *counts, *kernel]: what each window sees, and whether padding counts it as its own."""
    axes = len(kernel)
    is_padded = np.zeros((1, 1, *x.shape[2:]), bool)
    for axis in range(axes):
        n, k = x.shape[2 + axis], kernel[axis]
        step, apart = (node.attrs.get(a, [1] * axes)[axis] for a in ("strides", "dilations"))
        span = apart * (k - 1) + 1
        pads = padding_of(node, axis, n, span, step)
        count = _count(n, span, step, pads, bool(node.attrs.get("ceil_mode", 0)))
        at = (np.arange(count)[:, None] * step + np.arange(k) * apart - pads[0]).reshape(-1)
        outside, past = (at < 0) | (at >= n), at >= n + pads[1]
        near = np.clip(at, 0, n - 1)
        x = np.take(x, near, 2 + axis)
        is_padded = np.take(is_padded, near, 2 + axis)
        wide = (1,) * (2 + axis) + (-1,) + (1,) * (axes - axis - 1)
        x = np.where(outside.reshape(wide), fill, x)
        is_padded = is_padded | past.reshape(wide)
    return _apart(x, kernel), ~_apart(is_padded, kernel)


def _apart(x: Any, kernel: tuple[int, ...]) -> Any:
    """Axes of counts times taps, as axes of counts and then of taps."""
    axes = len(kernel)
    cut = [d for n, k in zip(x.shape[2:], kernel) for d in (n // k, k)]
    wide = x.reshape(*x.shape[:2], *cut)
    pairs = range(2, 2 + 2 * axes)
    return wide.transpose(0, 1, *pairs[::2], *pairs[1::2])


def pooled(node: Node) -> Any:
    x = node.array(0)
    kernel = tuple(node.attrs["kernel_shape"])
    taps = tuple(range(-len(kernel), 0))
    if node.op == "MaxPool":
        lowest = -np.inf if x.dtype.kind == "f" or x.dtype.name == "bfloat16" else None
        lowest = np.iinfo(x.dtype).min if lowest is None else lowest
        seen, _ = _seen(node, x, kernel, lowest)
        return seen.max(taps).astype(x.dtype)
    if node.op == "LpPool":
        p = node.attrs.get("p", 2)
        seen, _ = _seen(node, np.abs(x.astype(np.float64)), kernel, 0.0)
        return ((seen**p).sum(taps) ** (1 / p)).astype(x.dtype)
    seen, inside = _seen(node, x.astype(np.float64), kernel, 0.0)
    if not node.attrs.get("count_include_pad", 0):
        inside, _ = _seen(node, np.ones(x.shape), kernel, 0.0)
    return (seen.sum(taps) / np.maximum(inside.sum(taps), 1)).astype(x.dtype)


def transposed(node: Node) -> Any:
    x, w = (node.array(i).astype(np.float64) for i in range(2))
    kernel, axes, groups = w.shape[2:], w.ndim - 2, node.attrs.get("group", 1)
    step, apart = (node.attrs.get(a, [1] * axes) for a in ("strides", "dilations"))
    more = node.attrs.get("output_padding", [0] * axes)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, apart)]
    natural = [(n - 1) * s + span for n, s, span in zip(x.shape[2:], step, spans)]
    sizes, starts = _placed(node, natural, more, step)
    room = [max(n, b + m) for n, b, m in zip(natural, starts, sizes)]
    inner, outer = x.shape[1] // groups, w.shape[1]
    made = np.zeros((x.shape[0], groups * outer, *room))
    for at in np.ndindex(*x.shape[2:]):
        for tap in np.ndindex(*kernel):
            where = tuple(i * s + t * d for i, s, t, d in zip(at, step, tap, apart))
            for g in range(groups):
                part = slice(g * inner, (g + 1) * inner)
                values = x[(slice(None), part, *at)] @ w[(part, slice(None), *tap)]
                made[(slice(None), slice(g * outer, (g + 1) * outer), *where)] += values
    cut = tuple(slice(b, b + m) for b, m in zip(starts, sizes))
    made = made[(slice(None), slice(None), *cut)]
    if node.has(2):
        made = made + node.array(2).astype(np.float64).reshape(-1, *[1] * axes)
    return made.astype(node.array(0).dtype)


def _placed(node: Node, natural: list[int], more: Any, step: Any) -> tuple[list[int], list[int]]:
    """The sizes of the result, and where it begins."""
    auto, axes = node.attrs.get("auto_pad", "NOTSET"), len(natural)
    if auto in ("NOTSET", "VALID") and "output_shape" not in node.attrs:
        pads = node.attrs.get("pads", [0] * 2 * axes) if auto == "NOTSET" else [0] * 2 * axes
        sizes = [n + m - a - b for n, m, a, b in zip(natural, more, pads, pads[axes:])]
        return sizes, list(pads[:axes])
    wanted = node.attrs.get("output_shape")
    if not wanted:
        wanted = [n * s for n, s in zip(node.array(0).shape[2:], step)]
    totals = [max(0, n + m - w) for n, m, w in zip(natural, more, wanted)]
    return wanted, [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]


def _summed(node: Node, x: Array, taps: Array) -> Array:
    """Whole numbers of every window times those of the taps."""
    kernel, groups = taps.shape[2:], node.attrs.get("group", 1)
    seen, _ = _seen(node, x, tuple(kernel), 0)
    axes, outer, inner = len(kernel), taps.shape[0] // groups, taps.shape[1]
    parts = [
        np.tensordot(
            seen[:, g * inner : (g + 1) * inner],
            taps[g * outer : (g + 1) * outer],
            ((1, *range(2 + axes, 2 + 2 * axes)), (1, *range(2, 2 + axes))),
        )
        for g in range(groups)
    ]
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def _less(x: Array, zero: Array) -> Array:
    """x - zero, which may be one number for each of the first axis."""
    wide = (-1,) + (1,) * (x.ndim - 1)
    return x.astype(np.int64) - zero.astype(np.int64).reshape(wide if zero.ndim else ())


def convolved(node: Node) -> Array:
    """ConvInteger."""
    none = np.zeros((), np.int64)
    zeros = [node.array(i) if node.has(i) else none for i in (2, 3)]
    x = _less(node.array(0), zeros[0].reshape(()))
    return _summed(node, x, _less(node.array(1), zeros[1])).astype(np.int32)


def quantised(node: Node) -> Array:
    """QLinearConv."""
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero = (node.array(i) for i in range(8))
    made = _summed(node, x.astype(np.int64) - int(x_zero), _less(w, w_zero))
    per = (-1,) + (1,) * (w.ndim - 2)
    made = made + node.array(8).astype(np.int64).reshape(per) if node.has(8) else made
    factors = x_scale * w_scale.reshape(per if w_scale.ndim else ()) / scale
    info = np.iinfo(zero.dtype)
    rounded = np.rint((made.astype(np.float32) * factors).astype(np.float32))
    return np.clip(rounded + int(zero), info.min, info.max).astype(zero.dtype)


def global_norm(node: Node) -> Array:
    """GlobalLpPool."""
    x, p = node.array(0), node.attrs.get("p", 2)
    powers = np.abs(x.astype(np.float64)) ** p
    made = powers.sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
    return made.astype(x.dtype)
