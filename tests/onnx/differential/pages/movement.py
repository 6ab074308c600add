"""Operators that move elements, or change shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import (
    HIGH,
    LOW,
    MICROSOFT,
    Array,
    Draw,
    Node,
    Operand,
    draws,
    explain,
)


@draws("Slice")
def _slice(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T" if d.coin(0.3) else DType.F32)
    axes = d.subset(x.rank) if d.coin(0.7) else list(range(d.integer(1, x.rank)))
    if not axes:
        axes = [0]
    starts, ends = ([d.bound(x.dims[a]) for a in axes] for _ in range(2))
    is_first = axes == list(range(len(axes))) and d.coin()
    if d.opset < 10:
        return d.node(x, starts=starts, ends=ends, **({} if is_first else {"axes": axes}))
    steps = [d.choice((1, 1, 2, 3, -1, -1, -2, -3, HIGH, LOW + 1)) for _ in axes]
    kind = np.int32 if d.coin(0.2) else np.int64
    clip = (lambda v: np.clip(v, -(2**31), 2**31 - 1)) if kind is np.int32 else np.asarray
    has_steps = d.coin(0.8)
    return d.node(
        x,
        d.shaping(clip(starts), kind),
        d.shaping(clip(ends), kind),
        d.shaping(axes, kind) if has_steps or not is_first else None,
        d.shaping(clip(steps), kind) if has_steps else None,
    )


def _sliced_back(node: Node) -> list[tuple[int, int, int, int]]:
    """Axis, start, end and step where elements are taken from the back."""
    if not node.has(4):
        return []
    axes = node.array(3).tolist() if node.has(3) else range(len(node.array(1)))
    rows = zip(axes, *(node.array(i).tolist() for i in (1, 2, 4)))
    return [(x, a, b, s) for x, a, b, s in rows if s < 0]


def _is_disputed(node: Node) -> bool:
    dims = node.array(0).shape
    return any(b in (2**31 - 1, HIGH) or a < -dims[axis] for axis, a, b, _ in _sliced_back(node))


def _sliced_by_standard(node: Node) -> Array:
    """Negative bounds count from the back; steps forward clamp both to [0, size], steps back the
    start to [0, size - 1] and the end to [-1, size - 1]."""
    x = node.array(0)
    axes = node.array(3).tolist() if node.has(3) else range(len(node.array(1)))
    for axis, a, b, step in zip(axes, *(node.array(i).tolist() for i in (1, 2, 4))):
        size = node.array(0).shape[axis]
        a, b = (v + size if v < 0 else v for v in (a, b))
        low, high = (0, size) if step > 0 else (-1, size - 1)
        taken = range(min(max(a, 0), high), min(max(b, low), high), step)
        x = np.take(x, list(taken), axis)
    return x


explain(
    "Slice",
    right=_sliced_by_standard,
    why="where steps go back, the standard clamps a start before the front to the first element, "
    "of which onnx.reference takes nothing, and an end of INT_MAX to the last, from which "
    "onnxruntime goes on to the front",
    when=_is_disputed,
)


@draws("Transpose")
def _transpose(d: Draw) -> Node:
    x = d.tensor(d.dims(), "T")
    perm = [int(a) for a in d.rng.permutation(x.rank)]
    return d.node(x, **({"perm": perm} if d.coin(0.8) else {}))


@draws("Concat")
def _concat(d: Draw) -> Node:
    dims = list(d.dims(1, 4))
    axis = d.axis(len(dims))
    parts = []
    for _ in range(d.integer(1, 4)):
        dims[axis] = d.size()
        parts.append(d.tensor(dims, "T"))
    return d.node(*parts, axis=axis if d.opset >= 11 else axis % len(dims))


@draws("Reshape")
def _reshape(d: Draw) -> Node:
    x = d.tensor(d.dims(0, 4), "T")
    total = x.array.size
    shape = list(_factors(d, total))
    allow = d.integer(0, 1) if d.has("allowzero") and d.coin(0.5) else None
    if not allow:
        shape = [
            0 if i < x.rank and s == x.dims[i] and d.coin(0.4) else s for i, s in enumerate(shape)
        ]
    if shape and 0 not in shape and total and d.coin(0.4):
        shape[d.integer(0, len(shape) - 1)] = -1
    if not allow and any(s == 0 and i >= x.rank for i, s in enumerate(shape)):
        shape = list(x.dims)
    attrs = {} if allow is None else {"allowzero": allow}
    return d.node(x, d.shaping(shape), **attrs)


def _factors(d: Draw, total: int) -> list[int]:
    """Dims of as many elements, ones among them."""
    if total == 0:
        return [0, *(d.size() for _ in range(d.integer(0, 2)))]
    found: list[int] = []
    while total > 1 and len(found) < 4:
        fitting = [n for n in range(2, total + 1) if total % n == 0]
        found.append(d.choice(fitting))
        total //= found[-1]
    found += [total] * (total > 1)
    for _ in range(d.integer(0, 2)):
        found.insert(d.integer(0, len(found)), 1)
    return found


@draws("Flatten")
def _flatten(d: Draw) -> Node:
    x = d.tensor(d.dims(0 if d.opset >= 9 else 1, 4), "T")
    low = -x.rank if d.opset >= 11 else 0
    attrs = {"axis": d.integer(low, x.rank)} if d.coin(0.8) or x.rank < 1 else {}
    return d.node(x, **attrs)


@draws("Squeeze")
def _squeeze(d: Draw) -> Node:
    dims = tuple(1 if d.coin() else n for n in d.dims(0, 5))
    x = d.tensor(dims, "T")
    ones = [i for i, n in enumerate(dims) if n == 1]
    axes = [int(a) for a in d.rng.permutation(ones)[: d.integer(0, len(ones))]]
    if d.opset >= 11:
        axes = [d.signed(a, x.rank) for a in axes]
    if d.coin(0.3):
        return d.node(x)
    return d.node(x, d.shaping(axes)) if d.opset >= 13 else d.node(x, axes=axes)


@draws("Unsqueeze")
def _unsqueeze(d: Draw) -> Node:
    x = d.tensor(d.dims(0, 3), "T")
    count = d.integer(0 if d.opset >= 13 else 1, 3)
    rank = x.rank + count
    axes = [int(a) for a in d.rng.permutation(rank)[:count]]
    if d.opset >= 11:
        axes = [d.signed(a, rank) for a in axes]
    return d.node(x, d.shaping(axes)) if d.opset >= 13 else d.node(x, axes=sorted(axes))


@draws("Split")
def _split(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T")
    axis = d.axis(x.rank) if d.opset >= 11 else d.integer(0, x.rank - 1)
    length, count = x.dims[axis], d.integer(1, 3)
    attrs = {"axis": axis} if axis or d.coin() else {}
    if d.coin() or (d.opset < 18 and length % count):
        cuts = sorted(d.integer(0, length) for _ in range(count - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, length])]
        if d.opset < 13:
            return d.node(x, outputs=count, split=sizes, **attrs)
        return d.node(x, d.shaping(sizes), outputs=count, **attrs)
    if d.opset >= 18:  # the last part may be shorter, and must not be empty
        count = count if -(-length // count) * (count - 1) < max(length, 1) else 1
        attrs["num_outputs"] = count
    return d.node(x, outputs=count, **attrs)


@draws("Expand")
def _expand(d: Draw) -> Node:
    whole = d.dims(0, 4)
    given = tuple(1 if d.coin(0.4) else n for n in whole[d.integer(0, len(whole)) :])
    wanted = [1 if i >= len(whole) - len(given) and d.coin(0.2) else n for i, n in enumerate(whole)]
    wanted = wanted[d.integer(0, len(whole) - len(given)) :] if d.coin(0.3) else wanted
    return d.node(d.tensor(given, "T"), d.shaping(wanted))


@draws("Tile")
def _tile(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T")
    return d.node(x, d.shaping([d.integer(0, 3) for _ in x.dims]))


@draws("Pad")
def _pad(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4, smallest=1), "T")
    modes = ["constant", "reflect", "edge"] + ["wrap"] * (d.opset >= 19)
    mode = d.choice(modes)
    is_partial = d.opset >= 18 and d.coin()
    axes = d.subset(x.rank) if is_partial else list(range(x.rank))
    pads = [_pad_of(d, mode, x.dims[a]) for a in axes]
    flat = [a for a, _ in pads] + [b for _, b in pads]
    attrs: dict[str, Any] = {} if mode == "constant" and d.coin() else {"mode": mode}
    if d.opset < 11:
        value = d.some(value=2.5)
        return d.node(x, pads=flat, **attrs, **value)
    value = Operand(np.array(3, x.array.dtype), d.coin()) if d.coin() else None
    kind = np.int32 if d.coin(0.3) else np.int64
    where = d.shaping(axes, kind) if is_partial else None
    return d.node(x, d.shaping(flat), value, where, **attrs)


def _pad_of(d: Draw, mode: str, size: int) -> tuple[int, int]:
    """Before and after an axis: negative ones cut, and leave at least one element."""
    most = size - 1 if mode == "reflect" else size if mode == "wrap" else 3
    before, after = d.integer(0, most), d.integer(0, most)
    if d.coin(0.3) and size > 1:
        before = -d.integer(0, size - 1)
    elif d.coin(0.3) and size > 1:
        after = -d.integer(0, size - 1)
    return before, after


@draws("DepthToSpace", "SpaceToDepth")
def _blocks(d: Draw) -> Node:
    block = d.integer(1, 3)
    n, c, h, w = (d.integer(1, 3) for _ in range(4))
    if d.op == "SpaceToDepth":
        return d.node(d.tensor((n, c, h * block, w * block), "T"), blocksize=block)
    x = d.tensor((n, c * block * block, h, w), "T")
    return d.node(x, blocksize=block, **d.some(mode=d.choice(("DCR", "CRD"))))


@draws("ReverseSequence")
def _reverse(d: Draw) -> Node:
    dims = d.dims(2, 4, smallest=1)
    time = d.integer(0, 1)
    x = d.tensor(dims, "T")
    lengths = d.rng.integers(0 if d.coin(0.3) else 1, dims[time] + 1, dims[1 - time])
    attrs = {} if time == 0 and d.coin() else {"time_axis": time, "batch_axis": 1 - time}
    return d.node(x, d.given(lengths.astype(np.int64)), **attrs)


@draws("CenterCropPad")
def _center(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T")
    axes = d.subset(x.rank) if d.coin() else list(range(x.rank))
    sizes = d.shaping([d.size() for _ in axes], d.choice((np.int32, np.int64)))
    attrs = {} if axes == list(range(x.rank)) and d.coin() else {"axes": axes}
    return d.node(x, sizes, **attrs)


@draws("Trilu")
@draws("Trilu", domain=MICROSOFT)
def _trilu(d: Draw) -> Node:
    x = d.tensor(d.dims(2, 4), d.kind_of(0))
    k = d.choice((None, 0, 1, -1, 2, -3, 7, -7, HIGH, LOW, 2**31))
    operand = None if k is None else Operand(np.array(k, np.int64), d.coin(), has_names=False)
    if operand is not None and d.coin(0.2):
        operand = Operand(operand.array.reshape(1), operand.is_known, has_names=False)
    return d.node(x, operand, **d.some(upper=d.integer(0, 1)))


@draws("Shape")
def _shape(d: Draw) -> Node:
    x = d.tensor(d.dims(0, 5), "T")
    ends = (LOW, HIGH, *range(-x.rank - 1, x.rank + 2))
    return d.node(x, **d.some(start=d.choice(ends), end=d.choice(ends)))


@draws("Size")
def _size(d: Draw) -> Node:
    return d.node(d.tensor(d.dims(0, 5), "T"))


explain(
    "Unsqueeze",
    right="onnxruntime",
    why="axes are places in the result, in any order; onnx.reference inserts one after the other",
    when=lambda n: n.opset < 13,
)
explain(
    "Squeeze",
    right="onnxruntime",
    why="no axes are all axes, as runtimes have it; onnx.reference squeezes none",
    when=lambda n: n.opset >= 13 and n.has(1) and n.array(1).size == 0,
    otherwise=lambda n: n.array(0).squeeze(),
)


def _sizes(node: Node) -> Array:
    rank = node.array(0).ndim
    ends = (node.attrs.get("start", 0), node.attrs.get("end", rank))
    start, end = (min(max(e + rank if e < 0 else e, 0), rank) for e in ends)
    return np.array(node.array(0).shape[start:end], np.int64)


explain(
    "Shape",
    right="onnxruntime",
    why="ends are clamped to the rank; onnx.reference slices as NumPy, from the back again",
    when=lambda n: any(abs(n.attrs.get(k, 0)) > n.array(0).ndim for k in ("start", "end")),
    otherwise=_sizes,
)
