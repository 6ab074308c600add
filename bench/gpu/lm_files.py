"""GGUF files of language models with random weights, for machines that files do not travel to.

Rows of a tensor are drawn from some that are encoded once, so that a large model takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.frontends.gguf.writer import write_gguf
from rlx.ops.op import Array
from rlx.ops.quant.gguf_encoding import encoded

CONTEXT = 16384
ENCODED_ROWS = 256
"""Rows of each width and format that are encoded; a tensor's are some of them, in random order."""
MIXTURES = {"q4_k_m": ("q4_k", "q6_k"), "q4_0": ("q4_0", "q8_0")}
"""Of most tensors, and of the table, values and the second half of the gated network."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a decoder."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    words: int
    is_tied: bool

    @property
    def depth(self) -> int:
        return self.width // self.heads


SHAPES = {
    "tiny": LlamaShape(2, 256, 4, 2, 512, 512, True),
    "smollm2-135m": LlamaShape(30, 576, 9, 3, 1536, 49152, True),
    "llama-1b": LlamaShape(16, 2048, 32, 8, 8192, 32000, False),
}


def write(path: Path, shape: LlamaShape, mixture: str, seed: int = 0) -> Path:
    """A file; `mixture` is one of `MIXTURES`, or the block format of all matrices."""
    rng = np.random.default_rng(seed)
    most, some = MIXTURES.get(mixture, (mixture, mixture))
    tensors = list(_tensors(shape, most, some))
    pools: dict[tuple[int, str], Array] = {}
    write_gguf(path, _metadata(shape), tensors, (_blocks(rng, pools, *t[1:]) for t in tensors))
    return path


def _tensors(s: LlamaShape, most: str, some: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    kv = s.kv_heads * s.depth
    yield "token_embd.weight", (s.words, s.width), _fits(some, s.width)
    yield "output_norm.weight", (s.width,), "f32"
    if not s.is_tied:
        yield "output.weight", (s.words, s.width), _fits(some, s.width)
    rows = {
        "attn_q": (s.width, s.width, most),
        "attn_k": (kv, s.width, most),
        "attn_v": (kv, s.width, some),
        "attn_output": (s.width, s.width, most),
        "ffn_gate": (s.hidden, s.width, most),
        "ffn_up": (s.hidden, s.width, most),
        "ffn_down": (s.width, s.hidden, some),
    }
    for i in range(s.layers):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", (s.width,), "f32"
        for name, (out, given, scheme) in rows.items():
            yield f"blk.{i}.{name}.weight", (out, given), _fits(scheme, given)


def _fits(scheme: str, columns: int) -> str:
    """Rows that are no whole super-blocks of 256 have blocks of 32, as llama.cpp quantises them."""
    if columns % 256 == 0:
        return scheme
    return {"q4_k": "q5_0", "q6_k": "q8_0"}.get(scheme, scheme)


def _blocks(
    rng: np.random.Generator,
    pools: dict[tuple[int, str], Array],
    dims: tuple[int, ...],
    scheme: str,
) -> Array:
    if len(dims) == 1:
        return (1 + rng.normal(size=dims) / 16).astype(np.float32)
    rows, columns = dims
    if (columns, scheme) not in pools:
        drawn = rng.normal(size=(ENCODED_ROWS, columns)) * columns**-0.5
        pools[columns, scheme] = encoded(drawn.astype(np.float32), scheme)
    return pools[columns, scheme][rng.integers(0, ENCODED_ROWS, rows)]


def _metadata(s: LlamaShape) -> dict[str, Any]:
    sizes = {
        "block_count": s.layers,
        "context_length": CONTEXT,
        "embedding_length": s.width,
        "feed_forward_length": s.hidden,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": s.words,
    }
    return {
        "general.architecture": "llama",
        **{f"llama.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"word{i}" for i in range(s.words)],
        "tokenizer.ggml.scores": np.zeros(s.words, np.float32),
    }
