"""One small graph for every form of kernel that a GPU has, and the words that its launch says.

A form is what has a program of its own: `python -m tests.backend.cuda.sanitize` runs each of them
under compute-sanitizer. That the form was chosen is part of the check: `said` must be found among
the notes of the launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx import ops

Array = np.ndarray[Any, Any]
Made = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Form:
    """A graph of leaves `dtype[dims]`; those behind the bar are weights."""

    name: str
    leaves: str
    make: Made
    said: str
    """An expression that the note of one of its launches, or its name, has."""
    processors: int = 0
    """Of the device, as schedules see it; 0 for all. Small problems fill one that has few, and
    forms for large ones are chosen."""

    def graph(self) -> rlx.Graph:
        graph = rlx.Graph("form")
        inputs, _, weights = self.leaves.partition("|")
        given = [graph.input(f"x{i}", _shape(t)) for i, t in enumerate(inputs.split())]
        kept = [graph.param(f"w{i}", _shape(t)) for i, t in enumerate(weights.split())]
        made = self.make(*given, *kept)
        graph.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
        return graph

    def values(self, seed: int = 0) -> dict[str, Array]:
        """Of the leaves: small numbers, so that sums of products stay small; indices below 8."""
        rng = np.random.default_rng(seed)
        graph = self.graph()
        return {n.attrs["name"]: _drawn(rng, n.shape) for n in (*graph.inputs, *graph.params)}


def _shape(text: str) -> rlx.Shape:
    dtype, _, dims = text.rstrip("]").partition("[")
    return rlx.Shape(tuple(int(d) for d in dims.split(",") if d), dtype)


def _drawn(rng: np.random.Generator, shape: rlx.Shape) -> Array:
    dims = shape.static_dims
    if shape.dtype.is_integer:
        return rng.integers(0, 8, dims).astype(shape.dtype.numpy)
    if shape.dtype.is_float:
        return (rng.standard_normal(dims) * 0.5).astype(shape.dtype.numpy)
    return (rng.random(dims) < 0.5).astype(shape.dtype.numpy)


def _linear(x: Any, w: Any) -> Any:
    return ops.matmul(x, ops.transpose(w, perm=(1, 0)))


def _conv(x: Any, w: Any) -> Any:
    return ops.conv(x, w)


def _depthwise(x: Any, w: Any) -> Any:
    return ops.conv(x, w, groups=16)


def _attention(q: Any, k: Any, v: Any, heads: int = 2) -> Any:
    return ops.attention(q, k, v, num_heads=heads, mask_kind="causal")


def _gated(x: Any, gate: Any, up: Any) -> Any:
    return ops.mul(ops.silu(_linear(x, gate)), _linear(x, up))


def _past(q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
    """Of a step of decoding: keys and values of before, and of now."""
    keys, values = ops.concat([past_k, k], axis=1), ops.concat([past_v, v], axis=1)
    return ops.attention(q, keys, values, num_heads=4, kv_heads=2, mask_kind="causal")


FORMS: tuple[Form, ...] = (
    # loops
    Form("points", "f32[37,65] f32[37,65]", lambda x, y: ops.tanh(ops.add(x, y)), "a point"),
    Form("vectors", "bf16[64,512]", ops.gelu, "8 neighbours"),
    Form("warp rows", "f32[33,65]", lambda x: ops.softmax(x, axis=-1), "a warp of"),
    Form("block rows", "f32[5,4099]", lambda x: ops.softmax(x, axis=-1), "a block of"),
    Form("columns", "f32[513,65]", lambda x: ops.sum(x, axes=(0,)), "a column of"),
    Form("split sum", "f32[300000]", lambda x: ops.sum(x, axes=(0,)), "_part1"),
    Form("squares", "f32[70,90]", lambda x: ops.transpose(x, perm=(1, 0)), "squares of"),
    # products
    Form("gemv", "bf16[2,256]|bf16[96,256]", _linear, "gemv of"),
    Form("fma tiles", "f32[70,50]|f32[50,90]", ops.matmul, "sums a thread"),
    Form("matrix tiles", "bf16[70,70]|bf16[96,70]", _linear, "matrix instructions"),
    Form("split matrix tiles", "bf16[64,4096]|bf16[64,4096]", _linear, "split over"),
    Form("warpgroup tiles", "bf16[300,256]|bf16[520,256]", _linear, "four warps", 8),
    Form("filters", "f32[1,16,20,20]|f32[40,16,3,3]", _conv, r"\.packing"),
    Form("depthwise", "f32[1,16,20,20]|f32[16,1,3,3]", _depthwise, ""),
    Form("window warpgroups", "bf16[2,64,20,20]|bf16[128,64,3,3]", _conv, "four warps", 8),
    Form("windows", "bf16[1,16,20,20]|bf16[32,16,3,3]", _conv, "matrix"),
    Form("small warpgroup tiles", "bf16[70,72]|bf16[97,72]", _linear, "four warps"),
    Form("gated tiles", "bf16[40,70]|bf16[160,70] bf16[160,70]", _gated, "matrix"),
    Form("gated warpgroups", "bf16[40,128]|bf16[160,128] bf16[160,128]", _gated, "four warps"),
    Form("gated gemv", "bf16[1,256]|bf16[160,256] bf16[160,256]", _gated, "gemv of"),
    # attention
    Form("attention by fma", "f32[1,40,64] f32[1,40,64] f32[1,40,64]", _attention, "by fma"),
    Form("attention by tiles", "bf16[1,40,64] bf16[1,40,64] bf16[1,40,64]", _attention, "by m"),
    Form("attention by warpgroups", "bf16[1,520,128] bf16[1,520,128] bf16[1,520,128]",
         _attention, "by warpgroup"),
    Form("attention in a cluster", "bf16[1,1,1024] bf16[1,1000,1024] bf16[1,1000,1024]",
         lambda q, k, v: _attention(q, k, v, 16), "a cluster of"),
    Form("attention of the past", "bf16[1,1,256] bf16[1,1,128] bf16[1,1,128] bf16[1,300,128] "
         "bf16[1,300,128]", _past, "flash attention"),
    Form("attention split", "bf16[1,1,128] bf16[1,2048,128] bf16[1,2048,128]",
         _attention, "keys split"),
)  # fmt: skip
