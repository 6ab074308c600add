"""D: a Llama of 8 layers, 1024 wide: reading a prompt, and one step after 512 tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from bench.workload import Array, Maker, Workload, bytes_of
from bench.workloads.dense import declared
from rlx import ops

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a decoder; several query heads share a key head."""

    layers: int = 8
    width: int = 1024
    heads: int = 16
    kv_heads: int = 4
    hidden: int = 2816
    words: int = 8192
    places: int = 1024

    @property
    def depth(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.depth

    @property
    def weights(self) -> int:
        """Linear weights of the layers."""
        each = 2 * self.width**2 + 2 * self.width * self.kv_width + 3 * self.width * self.hidden
        return self.layers * each

    @property
    def head_weights(self) -> int:
        return self.width * self.words


LLAMA = Size()


# -- for peers ------------------------------------------------------------------------------------


def _turned(k: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + k.concat([-x[..., half:], x[..., :half]], -1) * sin


def _layer(k: Any, p: Any, x: Any, rotary: Any, past: Any, size: Size) -> tuple[Any, Any, Any]:
    batch, length, _ = x.shape

    def by_head(made: Any, heads: int) -> Any:
        return k.swapped(made.reshape(batch, length, heads, size.depth), 1, 2)

    h = k.rms_norm(x, p["n1.g"], EPS)
    q = _turned(k, by_head(k.linear(h, p["q.w"]), size.heads), *rotary)
    new_k = _turned(k, by_head(k.linear(h, p["k.w"]), size.kv_heads), *rotary)
    new_v = by_head(k.linear(h, p["v.w"]), size.kv_heads)
    keys, values = new_k, new_v
    if past is not None:
        keys, values = k.concat([past[0], keys], 2), k.concat([past[1], values], 2)
    each = size.heads // size.kv_heads
    shared = (k.repeated_heads(a, each) for a in (keys, values))
    mixed = k.swapped(k.attention(q, *shared, is_causal=past is None), 1, 2)
    x = x + k.linear(mixed.reshape(batch, length, size.width), p["o.w"])
    h = k.rms_norm(x, p["n2.g"], EPS)
    raised = k.silu(k.linear(h, p["gate.w"])) * k.linear(h, p["up.w"])
    return x + k.linear(raised, p["down.w"]), new_k, new_v


_LAYER = ("n1.g", "q.w", "k.w", "v.w", "o.w", "n2.g", "gate.w", "up.w", "down.w")


def _decoded(k: Any, p: Any, x: Any, rotary: Any, pasts: Any, size: Size) -> Any:
    keys: list[Any] = []
    values: list[Any] = []
    for i in range(size.layers):
        own = {n: p[f"l{i}.{n}"] for n in _LAYER}
        past = None if pasts is None else (pasts[0][i], pasts[1][i])
        x, new_k, new_v = _layer(k, own, x, rotary, past, size)
        keys.append(new_k)
        values.append(new_v)
    logits = k.linear(k.rms_norm(x[:, -1], p["nf.g"], EPS), p["head.w"])
    return logits, k.stacked(keys), k.stacked(values)


def prefill_function(size: Size) -> Any:
    def function(k: Any, p: Any, ids: Any) -> Any:
        length = ids.shape[1]
        rotary = p["cos"][:length], p["sin"][:length]
        return _decoded(k, p, k.embedding(p["emb"], ids), rotary, None, size)

    return function


def decode_function(size: Size) -> Any:
    def function(k: Any, p: Any, ids: Any, place: Any, keys: Any, values: Any) -> Any:
        rotary = k.embedding(p["cos"], place), k.embedding(p["sin"], place)
        return _decoded(k, p, k.embedding(p["emb"], ids), rotary, (keys, values), size)

    return function


# -- for rlx --------------------------------------------------------------------------------------


def _by_head(x: Any, heads: int) -> Any:
    batch, length, width = x.shape.dims
    apart = ops.reshape(x, dims=(batch, length, heads, width // heads))
    return ops.transpose(apart, perm=(0, 2, 1, 3))


def _rlx_layer(p: Any, x: Any, rotary: Any, past: Any, size: Size) -> tuple[Any, Any, Any]:
    h = ops.rms_norm(x, p["n1.g"], eps=EPS)
    q = ops.rope(_by_head(ops.matmul(h, p["q.w"]), size.heads), *rotary)
    new_k = ops.rope(_by_head(ops.matmul(h, p["k.w"]), size.kv_heads), *rotary)
    new_v = _by_head(ops.matmul(h, p["v.w"]), size.kv_heads)
    keys, values = new_k, new_v
    if past is not None:
        keys, values = (ops.concat([a, b], axis=2) for a, b in zip(past, (new_k, new_v)))
    heads = {"num_heads": size.heads, "kv_heads": size.kv_heads}
    mixed = ops.attention(q, keys, values, mask_kind="causal", **heads)
    packed = ops.reshape(ops.transpose(mixed, perm=(0, 2, 1, 3)), dims=x.shape.dims)
    x = x + ops.matmul(packed, p["o.w"])
    h = ops.rms_norm(x, p["n2.g"], eps=EPS)
    raised = ops.silu(ops.matmul(h, p["gate.w"])) * ops.matmul(h, p["up.w"])
    return x + ops.matmul(raised, p["down.w"]), new_k, new_v


def _outputs(m: rlx.HirModule, p: Any, x: Any, rotary: Any, pasts: Any, size: Size) -> None:
    keys: list[Any] = []
    values: list[Any] = []
    for i in range(size.layers):
        own = {n: p[f"l{i}.{n}"] for n in _LAYER}
        past = None if pasts is None else [ops.gather(a, i, axis=0) for a in pasts]
        x, new_k, new_v = _rlx_layer(own, x, rotary, past, size)
        keys.append(new_k)
        values.append(new_v)
    last = ops.narrow(x, axis=1, start=x.shape.dims[1] - 1, length=1)
    logits = ops.matmul(ops.rms_norm(ops.squeeze(last, axes=(1,)), p["nf.g"], eps=EPS), p["head.w"])
    cache = {"keys": ops.stack(keys, axis=0), "values": ops.stack(values, axis=0)}
    m.set_outputs({"logits": logits, **cache})


def _halves(table: Any, size: Size) -> Any:
    """The angles' columns that differ; peers have both halves."""
    return ops.narrow(table, axis=1, start=0, length=size.depth // 2)


def prefill_model(params: Mapping[str, Array], length: int, size: Size) -> rlx.HirModule:
    m = rlx.HirModule("llama_prefill")
    ids, p = m.input("ids", rlx.Shape([1, length], "i64")), declared(m, params)
    tables = [_halves(p[n], size) for n in ("cos", "sin")]
    rotary = [ops.narrow(t, axis=0, start=0, length=length) for t in tables]
    _outputs(m, p, ops.embedding(p["emb"], ids), rotary, None, size)
    return m


def decode_model(params: Mapping[str, Array], past: int, size: Size) -> rlx.HirModule:
    m = rlx.HirModule("llama_decode")
    ids, place = m.input("ids", rlx.Shape([1, 1], "i64")), m.input("place", rlx.Shape([1], "i64"))
    cache = rlx.Shape([size.layers, 1, size.kv_heads, past, size.depth])
    pasts = m.input("keys", cache), m.input("values", cache)
    p = declared(m, params)
    rotary = [_halves(ops.embedding(p[n], place), size) for n in ("cos", "sin")]
    _outputs(m, p, ops.embedding(p["emb"], ids), rotary, pasts, size)
    return m


# -- arrays ---------------------------------------------------------------------------------------


def llama_params(size: Size = LLAMA) -> dict[str, Array]:
    make = Maker(7)
    width, kv = size.width, size.kv_width
    shapes = {
        "q": (width, width), "k": (kv, width), "v": (kv, width), "o": (width, width),
        "gate": (size.hidden, width), "up": (size.hidden, width), "down": (width, size.hidden),
    }  # fmt: skip
    made = {"emb": make.normal(size.words, width)}
    for i in range(size.layers):
        made |= {f"l{i}.{n}.w": make.weight(*dims) for n, dims in shapes.items()}
        made |= {f"l{i}.{n}.g": make.near_one(width) for n in ("n1", "n2")}
    made |= {"nf.g": make.near_one(width), "head.w": make.weight(size.words, width)}
    return made | _angles(size)


def _angles(size: Size) -> dict[str, Array]:
    """cos and sin of place · 10000^(-2i/depth), both halves alike."""
    rates = 10000.0 ** (-np.arange(0, size.depth, 2) / size.depth)
    angles = np.tile(np.outer(np.arange(size.places), rates), 2)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def prefill(params: Mapping[str, Array], length: int = 128, size: Size = LLAMA) -> Workload:
    ids = Maker(8).tokens(0, size.words, 1, length)
    attention = 4.0 * size.layers * length * length * size.width / 2
    cache = 8.0 * size.layers * length * size.kv_width
    return Workload(
        "D_prefill", f"Llama of {size.layers}×{size.width}, a prompt of {length}",
        prefill_function(size), lambda given: prefill_model(given, length, size), params, (ids,),
        flops=2.0 * (length * size.weights + size.head_weights) + attention,
        reads=4.0 * (size.weights + size.head_weights), writes=cache + 4.0 * size.words,
        tolerance=1e-3,
    )  # fmt: skip


def decode(params: Mapping[str, Array], past: int = 512, size: Size = LLAMA) -> Workload:
    make = Maker(9)
    dims = (size.layers, 1, size.kv_heads, past, size.depth)
    cache = make.normal(*dims), make.normal(*dims)
    inputs = np.array([[5]], np.int64), np.array([past], np.int64), *cache
    weights = size.weights + size.head_weights
    return Workload(
        "D_decode", f"Llama of {size.layers}×{size.width}, one token after {past}",
        decode_function(size), lambda given: decode_model(given, past, size), params, inputs,
        flops=2.0 * weights + 4.0 * size.layers * past * size.width,
        reads=4.0 * weights + bytes_of(cache),
        writes=8.0 * size.layers * size.kv_width + 4.0 * size.words, tolerance=1e-3,
    )  # fmt: skip
