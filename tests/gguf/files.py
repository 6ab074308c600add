"""Small GGUF files of every architecture, with random weights, written by the package gguf."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gguf
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, WORDS, CONTEXT = 64, 96, 4, 2, 32, 3, 48, 128
ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gemma", "smollm3")
TIED = ("gemma", "gemma2", "gemma3")


def write(
    path: Path,
    architecture: str,
    seed: int = 0,
    *,
    words: int = WORDS,
    head_dim: int = HEAD_DIM,
    context: int = CONTEXT,
    vocabulary: Callable[[GGUFWriter], None] | None = None,
    **more: Any,
) -> Path:
    """A decoder of a few layers. `more` are metadata of the architecture, and "factors" (the name
    of a tensor of rotary divisors), "tied" (no head of its own), "biases" (of every product) and
    "float" (no block formats); `vocabulary` adds a tokenizer of `words` tokens."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(context)
    _metadata(writer, architecture, head_dim, more)
    (vocabulary or _words)(writer)
    for name, (dims, stated) in _tensors(architecture, words, head_dim, more).items():
        kind = Type.F32 if "float" in more else stated
        around = 1.0 if "norm" in name else 0.0
        values = (around + rng.normal(size=dims) / 8).astype(np.float32)
        if name.startswith("rope_"):
            values = rng.uniform(1, 4, dims).astype(np.float32)
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: GGUFWriter, architecture: str, head_dim: int, more: dict[str, Any]) -> None:
    writer.add_block_count(layers_of(architecture))
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    if architecture in ("gemma2", "gemma3") and "attention.sliding_window" not in more:
        writer.add_sliding_window(5)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(20.0)
        writer.add_final_logit_softcapping(3.0)
    for key, value in more.items():
        full = f"{architecture}.{key}"
        if "." not in key and not key.endswith("softcapping"):
            continue
        if isinstance(value, str):
            writer.add_string(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_array(full, value)


def layers_of(architecture: str) -> int:
    """Enough for one layer of each kind."""
    return {"gemma3": 6, "smollm3": 4}.get(architecture, LAYERS)


def _words(writer: GGUFWriter) -> None:
    writer.add_token_list([f"word{i}" for i in range(WORDS)])


def _tensors(
    architecture: str, words: int, head_dim: int, more: dict[str, Any]
) -> dict[str, tuple[tuple[int, ...], Type]]:
    """Dims as NumPy has them, and the block format; several formats in one file."""
    wide, narrow = HEADS * head_dim, KV_HEADS * head_dim
    found: dict[str, tuple[tuple[int, ...], Type]] = {
        "token_embd.weight": ((words, WIDTH), Type.Q8_0),
        "output_norm.weight": ((WIDTH,), Type.F32),
    }
    if architecture not in TIED and "tied" not in more:
        found["output.weight"] = (words, WIDTH), Type.F16
    for name in more.get("factors", ()):
        found[name] = (more.get("rope.dimension_count", head_dim) // 2,), Type.F32
    for i in range(layers_of(architecture)):
        layer = {
            "attn_norm": ((WIDTH,), Type.F32),
            "attn_q": ((wide, WIDTH), Type.Q4_0),
            "attn_k": ((narrow, WIDTH), Type.Q5_0),
            "attn_v": ((narrow, WIDTH), Type.Q8_0),
            "attn_output": ((WIDTH, wide), Type.Q4_1),
            "ffn_norm": ((WIDTH,), Type.F32),
            "ffn_gate": ((HIDDEN, WIDTH), Type.Q5_1),
            "ffn_up": ((HIDDEN, WIDTH), Type.BF16),
            "ffn_down": ((WIDTH, HIDDEN), Type.F32),
        }
        if architecture == "phi3":
            for name in ("attn_q", "attn_k", "attn_v", "ffn_gate"):
                del layer[name]
            layer["attn_qkv"] = (wide + 2 * narrow, WIDTH), Type.Q4_0
            layer["ffn_up"] = (2 * HIDDEN, WIDTH), Type.Q8_0
        if architecture in ("qwen3", "gemma3"):
            layer |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), ((head_dim,), Type.F32))
        if architecture in ("gemma2", "gemma3"):
            layer |= dict.fromkeys(("post_attention_norm", "post_ffw_norm"), ((WIDTH,), Type.F32))
        found |= {f"blk.{i}.{name}.weight": what for name, what in layer.items()}
        biased = ("attn_q", "attn_k", "attn_v") if architecture == "qwen2" else ()
        for name in (n for n in layer if "norm" not in n) if "biases" in more else biased:
            found[f"blk.{i}.{name}.bias"] = (layer[name][0][0],), Type.F32
    return found
