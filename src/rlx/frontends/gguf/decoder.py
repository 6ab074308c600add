"""A decoder as a graph: token ids in, logits out, over cached keys and values.

Quantised weights are params of the bytes that the file has; `gguf_matmul` multiplies by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.frontends.gguf.architecture import Architecture
from rlx.frontends.gguf.caches import (
    CacheFormat,
    CacheKind,
    Caches,
    NoCaches,
    caches_of,
    window_rows,
)
from rlx.frontends.gguf.reader import GgufFile
from rlx.frontends.gguf.rotary import Rotary
from rlx.ir.hir import FusionPolicy, HirModule
from rlx.ir.mir import Node
from rlx.ops.op import Array

Made = Callable[[], Array]
MAX_STEP = 4096
"""Tokens of one call at most: longer prompts are given in parts."""
WINDOW_STEP = 512
"""The same, where caches have no more rows than sliding windows take."""


@dataclass(slots=True)
class Builder:
    """Builds a module, and remembers how each of its params is read."""

    module: HirModule
    file: GgufFile
    positions: int
    """How many there are."""
    params: dict[str, Made] = field(default_factory=dict[str, Made])
    _nodes: dict[str, Node] = field(default_factory=dict[str, Node])

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def vector(self, name: str, size: int) -> Node:
        """A tensor of floats, such as the scale of a norm or a bias."""
        self._require(name, (size,))
        return self._param(name, Shape([size]), lambda: self.file.floats(name))

    def product(self, x: Node, name: str, outputs: int, inputs: int) -> Node:
        """x · Wᵀ + bias, of the tensors `name`.weight and, if there is one, `name`.bias."""
        made = self.times(x, f"{name}.weight", outputs, inputs)
        if not self.has(f"{name}.bias"):
            return made
        return self.module.add(made, self.vector(f"{name}.bias", outputs))

    def times(self, x: Node, name: str, outputs: int, inputs: int) -> Node:
        self._require(name, (outputs, inputs))
        if self._scheme(name) == "f32":
            return self.module.mm(x, self.module.transpose(self._plain(name), perm=(1, 0)))
        return self.module.gguf_matmul(x, self._packed(name), scheme=self._scheme(name))

    def rows(self, ids: Node, name: str, count: int, width: int) -> Node:
        """Rows of a table, decoded."""
        self._require(name, (count, width))
        if self._scheme(name) == "f32":
            return self.module.gather(self._plain(name), ids, axis=0)
        found = self.module.gather(self._packed(name), ids, axis=0)
        return self.module.gguf_dequantize(found, scheme=self._scheme(name))

    def table(self, name: str, made: Made, dims: tuple[int, ...]) -> Node:
        """A param that is computed from metadata."""
        return self._param(name, Shape(dims), made)

    def _plain(self, name: str) -> Node:
        dims = self.file.tensors[name].dims
        return self._param(name, Shape(dims), lambda: self.file.floats(name))

    def _packed(self, name: str) -> Node:
        dims = self.file.tensors[name].packed_dims
        return self._param(name, Shape(dims, DType.U8), lambda: self.file.packed(name))

    def _scheme(self, name: str) -> Any:
        return self.file.tensors[name].scheme

    def _param(self, name: str, shape: Shape, made: Made) -> Node:
        if name not in self._nodes:
            self._nodes[name] = self.module.param(name, shape)
            self.params[name] = made
        return self._nodes[name]

    def _require(self, name: str, dims: tuple[int, ...]) -> None:
        if not self.has(name):
            raise Error(f"{self.file.name} has no tensor {name!r}, which its architecture needs.")
        found = self.file.tensors[name].dims
        if found != dims:
            wanted, has = ("×".join(map(str, d)) for d in (dims, found))
            raise Error(f"{self.file.name}: tensor {name!r} is {has}, expected {wanted}.")


def decoder(
    name: str,
    a: Architecture,
    file: GgufFile,
    context: int,
    caches: CacheKind = "arguments",
    cached: CacheFormat = "f32",
    window_step: int = WINDOW_STEP,
) -> Builder:
    """The whole decoder. Inputs: `input_ids` i64[batch, seq], `logit_rows` i64[rows], the tokens
    of a call whose logits are asked for, and those of the caches, which are arguments or states of
    a session. Outputs: `logits` f32[batch, rows, vocabulary], and caches that are results. Where
    layers have a sliding window, and caches no more rows than that takes, a call has at most
    `window_step` tokens of each sequence."""
    is_short = caches == "session" and window_rows(a, context, window_step) is not None
    step = min(context, window_step if is_short else MAX_STEP)
    positions = context + step if caches == "arguments" else context
    build = Builder(HirModule(name, FusionPolicy.DIRECT), file, positions)
    m = build.module
    m.graph.traces_lines = False  # nodes are named by their layers
    batch, seq, rows = Dim("batch", 1), Dim("seq", 1, step), Dim("rows", 1, step)
    ids = m.input("input_ids", Shape([batch, seq], DType.I64))
    asked = m.input("logit_rows", Shape([rows], DType.I64))
    held = caches_of(caches, m, a, batch, (context, step), cached)
    x = _layers(build, a, ids, held)
    with m.scope("output"):
        logits = _logits(build, a, m.gather(x, asked, axis=1))
    m.set_outputs({"logits": logits, **held.outputs})
    return build


def embedder(name: str, a: Architecture, file: GgufFile, context: int) -> Builder:
    """The decoder without its head: of `input_ids` i64[batch, seq], all of a sequence, `hidden`
    f32[batch, seq, width], the states of its tokens after the last norm."""
    step = min(context, MAX_STEP)
    build = Builder(HirModule(name, FusionPolicy.DIRECT), file, step)
    m = build.module
    m.graph.traces_lines = False
    ids = m.input("input_ids", Shape([Dim("batch", 1), Dim("seq", 1, step)], DType.I64))
    x = _layers(build, a, ids, NoCaches(m))
    m.set_outputs({"hidden": _normed_output(build, a, x)})
    return build


def _layers(build: Builder, a: Architecture, ids: Node, caches: Caches) -> Node:
    x = _embedded(build, a, ids)
    for i in range(a.layers):
        with build.module.scope(f"blk.{i}"):
            x = _layer(build, a, i, x, caches)
    return x


def _embedded(build: Builder, a: Architecture, ids: Node) -> Node:
    rows = build.rows(ids, "token_embd.weight", a.vocabulary, a.width)
    if not a.family.scales_embeddings:
        return rows
    return build.module.mul(rows, float(np.float32(a.width**0.5)))


def _layer(build: Builder, a: Architecture, i: int, x: Node, caches: Caches) -> Node:
    """Attention and a gated network, each after a norm and added to what went in."""
    m, at = build.module, f"blk.{i}"
    h = m.rms_norm(x, build.vector(f"{at}.attn_norm.weight", a.width), eps=a.eps)
    q, k, v = _projected(build, a, i, h)
    if (rotary := a.rotary_at(i)) is not None:
        how = {"head_dim": a.head_dim, "n_rot": rotary.turned}
        cos, sin = (
            caches.rows(t, x.shape.dims[1], rotary.trained) for t in _angles(build, a, rotary)
        )
        q, k = (m.rope(n, cos, sin, **how, interleaved=a.family.is_interleaved) for n in (q, k))
    mixed = caches.attend(i, q, k, v, _heads(a, i))
    mixed = build.product(mixed, f"{at}.attn_output", a.width, a.heads * a.head_dim)
    x = m.add(x, _after(build, a, f"{at}.post_attention_norm.weight", mixed))
    h = m.rms_norm(x, build.vector(f"{at}.ffn_norm.weight", a.width), eps=a.eps)
    return m.add(x, _after(build, a, f"{at}.post_ffw_norm.weight", _ffn(build, a, at, h)))


def _heads(a: Architecture, i: int) -> dict[str, Any]:
    window = a.windows[i]
    how: dict[str, Any] = {"num_heads": a.heads, "kv_heads": a.kv_heads}
    how["window"] = None if window is None else window - 1
    if a.scale is not None:
        how["scale"] = a.scale
    if a.attention_softcap is not None:
        how["softcap"] = a.attention_softcap
    return how


def _projected(build: Builder, a: Architecture, i: int, h: Node) -> tuple[Node, Node, Node]:
    """Queries, keys and values; norms of heads where the file has them."""
    at, wide, narrow = f"blk.{i}", a.heads * a.head_dim, a.kv_heads * a.head_dim
    if build.has(f"{at}.attn_qkv.weight"):
        both = build.product(h, f"{at}.attn_qkv", wide + 2 * narrow, a.width)
        q, k, v = build.module.split(both, axis=-1, sizes=(wide, narrow, narrow))
    else:
        sizes = (("q", wide), ("k", narrow), ("v", narrow))
        q, k, v = (build.product(h, f"{at}.attn_{n}", size, a.width) for n, size in sizes)
    return _normed(build, a, f"{at}.attn_q_norm", q), _normed(build, a, f"{at}.attn_k_norm", k), v


def _normed(build: Builder, a: Architecture, name: str, x: Node) -> Node:
    """Each head normalised, if there is a scale for it."""
    if not build.has(f"{name}.weight"):
        return x
    m, (*lead, width) = build.module, x.shape.dims
    by_head = m.reshape(x, dims=(*lead, width // a.head_dim, a.head_dim))
    made = m.rms_norm(by_head, build.vector(f"{name}.weight", a.head_dim), eps=a.eps)
    return m.reshape(made, dims=(*lead, width))


def _after(build: Builder, a: Architecture, name: str, x: Node) -> Node:
    """The norm behind a part of a layer, in architectures that have one."""
    if not build.has(name):
        return x
    return build.module.rms_norm(x, build.vector(name, a.width), eps=a.eps)


def _ffn(build: Builder, a: Architecture, at: str, h: Node) -> Node:
    m = build.module
    if build.has(f"{at}.ffn_gate.weight"):
        gate = build.product(h, f"{at}.ffn_gate", a.hidden, a.width)
        up = build.product(h, f"{at}.ffn_up", a.hidden, a.width)
    else:  # one matrix, the gate's rows first
        both = build.product(h, f"{at}.ffn_up", 2 * a.hidden, a.width)
        gate, up = m.split(both, axis=-1, sizes=(a.hidden, a.hidden))
    gated = m.silu(gate) if a.family.gate == "silu" else m.gelu_tanh(gate)
    return build.product(m.mul(gated, up), f"{at}.ffn_down", a.width, a.hidden)


def _angles(build: Builder, a: Architecture, rotary: Rotary) -> list[Node]:
    """Tables of cos and sin, a row for each position; of long sequences others follow."""
    called = "rotary" if rotary == a.rotary else "rotary.local"
    rows = build.positions * (1 if rotary.trained is None else 2)
    dims = rows, len(rotary.frequencies)
    return [
        build.table(f"{called}.{part}", lambda n=n: rotary.tables(build.positions)[n], dims)
        for n, part in enumerate(("cos", "sin"))
    ]


def _normed_output(build: Builder, a: Architecture, x: Node) -> Node:
    return build.module.rms_norm(x, build.vector("output_norm.weight", a.width), eps=a.eps)


def _logits(build: Builder, a: Architecture, x: Node) -> Node:
    x = _normed_output(build, a, x)
    name = "output.weight" if build.has("output.weight") else "token_embd.weight"
    made = build.product(x, name.removesuffix(".weight"), a.vocabulary, a.width)
    if a.logit_softcap is None:
        return made
    m = build.module
    return m.mul(m.tanh(m.div(made, a.logit_softcap)), a.logit_softcap)
