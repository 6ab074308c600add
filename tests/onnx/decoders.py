"""Small decoders with a KV cache, of the nodes that `torch.onnx.export(dynamo=True)` writes.

Every cache has a length of its own name, sizes are computed by Shape, Squeeze and Add, heads are
repeated by Expand and Reshape with a -1, and keys pass through three axes before the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

VOCABULARY, HEADS, GROUP, DEPTH = 11, 2, 2, 4
WIDTH = HEADS * GROUP * DEPTH


@dataclass(frozen=True)
class Kind:
    """What one decoder has that others have not."""

    layers: int = 2
    dtype: type[Any] = np.float32
    window: int = 0
    """How far the first layer sees; 0 is all the way."""
    has_cross: bool = False
    """Does it read an encoder's result, whose batch and length have names of their own?"""
    is_quantised: bool = False
    """Are projections products of bytes, with scales computed for each call?"""
    is_folded: bool = False
    """Are sizes slices of shapes, as optimisers leave them?"""


KINDS = {
    "llama": Kind(),
    "llama f16": Kind(dtype=np.float16),
    "gemma3": Kind(layers=3, window=5),
    "gemma3 int8": Kind(window=5, is_quantised=True),
    "whisper": Kind(has_cross=True),
    "whisper optimised": Kind(has_cross=True, is_folded=True),
}


@dataclass
class Builder:
    """Nodes and weights of one decoder."""

    kind: Kind
    nodes: list[Any] = field(default_factory=list[Any])
    weights: dict[str, Any] = field(default_factory=dict[str, Any])
    rng: Any = field(default_factory=lambda: np.random.default_rng(3))

    def __call__(self, op: str, *operands: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attrs))
        return name

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(value, dtype)
        name = f"c{array.dtype}_{array.tolist()}"
        self.weights[name] = array
        return name

    def weight(self, *dims: int, dtype: Any = None) -> str:
        name = f"w{len(self.weights)}"
        if dtype is not None:
            self.weights[name] = self.rng.integers(-20, 20, dims).astype(dtype)
        else:
            self.weights[name] = (self.rng.normal(size=dims) / 4).astype(self.kind.dtype)
        return name

    def size(self, value: str, axis: int) -> str:
        """One size of a value, as one number."""
        if self.kind.is_folded:
            found = self("Shape", value, start=axis, end=axis + 1)
            return self("Reshape", found, self.const(np.zeros(0)))
        return self("Squeeze", self("Shape", value, start=axis, end=axis + 1))

    def dims(self, *parts: str | int) -> str:
        """Dims from numbers that are computed and numbers that are known."""
        flat = [
            self.const([p]) if isinstance(p, int) else self("Reshape", p, self.const([-1]))
            for p in parts
        ]
        return self("Concat", *flat, axis=0)

    def linear(self, x: str, columns: int, rows: int = WIDTH) -> str:
        if not self.kind.is_quantised:
            return self("MatMul", x, self.weight(rows, columns))
        parts = [f"q{len(self.nodes)}{n}" for n in ("", "s", "z")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], parts))
        sums = self("MatMulInteger", parts[0], self.weight(rows, columns, dtype=np.int8), parts[2])
        scale = self("Mul", parts[1], self.const(0.01, np.float32))
        return self("Mul", self("Cast", sums, to=TensorProto.FLOAT), scale)

    def heads(self, x: str, batch: str, length: str | int) -> str:
        count = HEADS * GROUP if length == -1 else -1
        apart = self("Reshape", x, self.dims(batch, length, count, DEPTH))
        return self("Transpose", apart, perm=[0, 2, 1, 3])

    def repeated(self, x: str, batch: str, length: str) -> str:
        """Each head of keys or values for a group of heads of queries."""
        wide = self.dims(batch, HEADS, GROUP, length, DEPTH)
        many = self("Expand", self("Unsqueeze", x, self.const([2])), wide)
        return self("Reshape", many, self.dims(batch, -1, length, DEPTH))

    def attention(self, q: str, k: str, v: str, batch: str, length: str, seen: str | None) -> str:
        apart = self("Reshape", k, self.dims(-1, length, DEPTH))
        turned = self("Transpose", apart, perm=[0, 2, 1])
        keys = self("Reshape", turned, self.dims(batch, HEADS * GROUP, DEPTH, length))
        scores = self("MatMul", q, keys)
        if seen is not None:
            scores = self("Where", seen, scores, self.const(-1e4, self.kind.dtype))
        shares = self("Softmax", scores, axis=-1)
        zero = self.const(0, self.kind.dtype)
        shares = self("Where", self("IsNaN", shares), zero, shares)
        mixed = self("Transpose", self("MatMul", shares, v), perm=[0, 2, 1, 3])
        return self("Reshape", mixed, self.dims(batch, self.size(q, 2), -1))

    def causal(self, past: str, count: str, total: str, window: int) -> str:
        first, step = self.const(0), self.const(1)
        rows = self("Add", self("Range", first, count, step), past)
        row = self("Unsqueeze", rows, self.const([1]))
        column = self("Unsqueeze", self("Range", first, total, step), self.const([0]))
        seen = self("LessOrEqual", column, row)
        if window:
            near = self("Greater", column, self("Sub", row, self.const(window)))
            seen = self("And", seen, near)
        return seen

    def layer(self, x: str, number: int, batch: str, count: str) -> tuple[str, str, str]:
        """The layer's result and its caches."""
        q = self.heads(self.linear(x, WIDTH), batch, count)
        made = [self.heads(self.linear(x, HEADS * DEPTH), batch, count) for _ in range(2)]
        caches = [
            self("Concat", f"past.{number}.{n}", m, axis=2) for n, m in zip("kv", made, strict=True)
        ]
        lengths = [self("Add", self.size(f"past.{number}.{n}", 2), count) for n in "kv"]
        window = self.kind.window if number == 0 else 0
        seen = self.causal(self.size(f"past.{number}.k", 2), count, lengths[0], window)
        k, v = (self.repeated(c, batch, n) for c, n in zip(caches, lengths, strict=True))
        x = self("Add", x, self.linear(self.attention(q, k, v, batch, lengths[0], seen), WIDTH))
        if self.kind.has_cross:
            x = self("Add", x, self.cross(x, batch, count))
        return x, caches[0], caches[1]

    def cross(self, x: str, batch: str, count: str) -> str:
        q = self.heads(self.linear(x, WIDTH), batch, count)
        k, v = (self.heads(self.linear("encoded", WIDTH), batch, -1) for _ in range(2))
        return self.attention(q, k, v, batch, self.size("encoded", 1), None)


def decoder(kind: Kind) -> ModelProto:
    """ids, caches and what an encoder gave → scores of tokens, and caches with the new ones."""
    make = Builder(kind)
    batch, count = make.size("ids", 0), make.size("ids", 1)
    x = make("Gather", make.weight(VOCABULARY, WIDTH), "ids")
    results: list[tuple[str, str]] = []
    for number in range(kind.layers):
        x, k, v = make.layer(x, number, batch, count)
        results += [(k, f"present.{number}.k"), (v, f"present.{number}.v")]
    results = [(make.linear(x, VOCABULARY), "scores"), *results]
    for value, name in results:
        make.nodes.append(helper.make_node("Identity", [value], [name]))
    real = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["s11", "s27"])]
    if kind.has_cross:
        inputs.append(helper.make_tensor_value_info("encoded", real, ["s94", "s63", WIDTH]))
    for number in range(kind.layers):
        for n in "kv":
            dims = ["s11", HEADS, f"s{number}{n}", DEPTH]
            inputs.append(helper.make_tensor_value_info(f"past.{number}.{n}", real, dims))
    outputs = [helper.make_tensor_value_info(n, real, None) for _, n in results]
    weights = [numpy_helper.from_array(a, n) for n, a in make.weights.items()]
    graph = helper.make_graph(make.nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
