"""Operators that move elements, or change shapes."""

from __future__ import annotations

import numpy as np

from rlx.dtype import DType
from tests.onnx.differential.drawing import HIGH, LOW, Draw, Node, draws, explain


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


explain(
    "Slice",
    right="rlx",
    why="the standard clamps an end of INT_MAX to the axis; onnxruntime walks back to the front",
    when=lambda n: _steps_back(n, lambda start, end, size: end in (2**31 - 1, HIGH)),
)
explain(
    "Slice",
    right="onnxruntime",
    why="the standard clamps a start before the front to the first element, also where steps go "
    "back; NumPy, and so onnx.reference, takes nothing",
    when=lambda n: _steps_back(n, lambda start, end, size: start < -size),
)


def _steps_back(node: Node, test: object) -> bool:
    if not node.has(4):
        return False
    axes = node.array(3).tolist() if node.has(3) else range(len(node.array(1)))
    rows = zip(node.array(1).tolist(), node.array(2).tolist(), axes, node.array(4).tolist())
    return any(s < 0 and test(a, b, node.array(0).shape[x]) for a, b, x, s in rows)  # pyright: ignore


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
