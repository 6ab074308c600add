"""A decoder evaluated in double precision, from what the package gguf reads: shares no code with
the front end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gguf

Array = np.ndarray[Any, Any]


class Tensors(Mapping[str, Array]):
    """The weights of a file as f64, each decoded when it is asked for: all of a large model would
    not be in memory at once."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._found = {t.name: t for t in reader.tensors}

    def __getitem__(self, name: str) -> Array:
        tensor = self._found[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Evaluator:
    """The weights of a file as f64, and the logits of a sequence of tokens."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = {k: v.contents() for k, v in reader.fields.items()}
        self.name = self.fields["general.architecture"]
        self.tensors = Tensors(reader)
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        self.depth = self.get("attention.key_length", self.get("embedding_length") // self.heads)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.name}.{key}", default)

    def logits(self, ids: list[int]) -> Array:
        """One row for each token."""
        own = "output.weight" in self.tensors
        out = self.tensors["output.weight" if own else "token_embd.weight"]
        made = self.states(ids) @ out.T
        cap = self.get("final_logit_softcapping")
        return np.tanh(made / cap) * cap if cap else made

    def states(self, ids: list[int]) -> Array:
        """One row for each token, after the last norm."""
        x = self.tensors["token_embd.weight"][ids]
        if self.name.startswith("gemma"):
            x = x * math.sqrt(x.shape[-1])
        for i in range(self.get("block_count")):
            x = self._layer(x, i)
        return self._norm(x, "output_norm.weight")

    def _layer(self, x: Array, i: int) -> Array:
        at = f"blk.{i}"
        mixed = self._attention(self._norm(x, f"{at}.attn_norm.weight"), i)
        x = x + self._norm(mixed, f"{at}.post_attention_norm.weight")
        h = self._norm(x, f"{at}.ffn_norm.weight")
        if f"{at}.ffn_gate.weight" in self.tensors:
            gate, up = self._linear(h, f"{at}.ffn_gate"), self._linear(h, f"{at}.ffn_up")
        else:
            gate, up = np.split(self._linear(h, f"{at}.ffn_up"), 2, axis=-1)
        down = self._linear(self._activated(gate) * up, f"{at}.ffn_down")
        return x + self._norm(down, f"{at}.post_ffw_norm.weight")

    def _activated(self, x: Array) -> Array:
        if self.name.startswith("gemma"):
            return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    def _attention(self, h: Array, i: int) -> Array:
        at = f"blk.{i}"
        if f"{at}.attn_qkv.weight" in self.tensors:
            wide, narrow = self.heads * self.depth, self.kv_heads * self.depth
            q, k, v = np.split(self._linear(h, f"{at}.attn_qkv"), [wide, wide + narrow], axis=-1)
        else:
            q, k, v = (self._linear(h, f"{at}.attn_{n}") for n in "qkv")
        q, k, v = (a.reshape(len(h), -1, self.depth) for a in (q, k, v))
        q, k = self._norm(q, f"{at}.attn_q_norm.weight"), self._norm(k, f"{at}.attn_k_norm.weight")
        q, k = self._turned(q, i), self._turned(k, i)
        each = self.heads // self.kv_heads
        scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, each, axis=1)) / math.sqrt(self.depth)
        cap = self.get("attn_logit_softcapping")
        scores = np.tanh(scores / cap) * cap if cap else scores
        scores = np.where(self._sees(len(h), i), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", weights, np.repeat(v, each, axis=1))
        return self._linear(mixed.reshape(len(h), -1), f"{at}.attn_output")

    def _window(self, i: int) -> int | None:
        """How many keys layer i sees."""
        window = self.get("attention.sliding_window")
        pattern = self.get(
            "attention.sliding_window_pattern", {"gemma2": 2, "gemma3": 6}.get(self.name)
        )
        if isinstance(pattern, list):
            return window if pattern[i] else None
        return None if pattern is not None and i % pattern == pattern - 1 else window

    def _sees(self, count: int, i: int) -> Array:
        apart = np.arange(count)[:, None] - np.arange(count)
        return (apart >= 0) & (apart < (self._window(i) or count))

    def _frequencies(self, turned: int, i: int, count: int) -> tuple[Array, float]:
        """Angles of position 1 by pair of elements, and what turned elements are multiplied by."""
        if self.name == "gemma3" and self._window(i):
            return self.get("rope.freq_base_swa", 10000.0) ** (
                -np.arange(0, turned, 2) / turned
            ), 1.0
        base, kind = self.get("rope.freq_base"), self.get("rope.scaling.type", "linear")
        found = base ** (-np.arange(0, turned, 2) / turned)
        trained = self.get("rope.scaling.original_context_length", self.get("context_length"))
        size = "long" if count > trained else "short"
        for name in ("rope_freqs.weight", f"rope_factors_{size}.weight"):
            found = found / self.tensors.get(name, 1.0)
        factor, magnitude = (
            self.get("rope.scaling.factor", 1.0),
            self.get("rope.scaling.attn_factor", 1.0),
        )
        if kind != "yarn":
            return found / factor, magnitude
        # pairs that turn beta times in the trained context: fast ones stay, slow ones are divided
        first, last = (
            turned * math.log(trained / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (32, 1)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), turned - 1)
        slow = np.clip((np.arange(turned // 2) - first) / max(last - first, 1e-3), 0, 1)
        return found * (1 - slow) + found / factor * slow, magnitude * (1 + 0.1 * math.log(factor))

    def _turned(self, x: Array, i: int) -> Array:
        """Rotary embedding of [tokens, heads, depth]."""
        pattern = self.get("rope.layer_pattern", [self.name != "smollm3" or i % 4 != 3] * (i + 1))
        if not pattern[i]:
            return x
        turned = self.get("rope.dimension_count", self.depth)
        frequency, magnitude = self._frequencies(turned, i, len(x))
        angle = np.arange(len(x))[:, None, None] * frequency
        cos, sin = magnitude * np.cos(angle), magnitude * np.sin(angle)
        made = x.copy()
        is_interleaved = self.name in ("llama", "smollm3")
        half = turned // 2
        first = slice(0, turned, 2) if is_interleaved else slice(0, half)
        second = slice(1, turned, 2) if is_interleaved else slice(half, turned)
        a, b = x[..., first], x[..., second]
        made[..., first], made[..., second] = a * cos - b * sin, b * cos + a * sin
        return made

    def _norm(self, x: Array, name: str) -> Array:
        if name not in self.tensors:
            return x
        eps = self.get("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.tensors[name]

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)
