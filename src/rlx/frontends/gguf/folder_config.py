"""config.json of a decoder as GGUF's metadata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.ops.op import Array

FAMILY_OF = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "smollm3": "smollm3",
}  # fmt: skip
"""By `model_type`."""
MOST = 1 << 24
ACTS = {"gemma": ("gelu_pytorch_tanh", "gelu"), "": ("silu",)}
"""Gemma's first files say gelu, and mean its tanh form."""
GEMMA_HEAD_DIM = 256
THETAS = {"gemma3": 1e6, "smollm3": 2e6}
"""Rotary bases of configurations that do not say."""


class Config:
    """Typed values of a config.json."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where
        kind = values.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILY_OF:
            known = ", ".join(FAMILY_OF)
            raise UnsupportedError(f"{where}: model_type {kind!r:.60}. rlx reads {known}.")
        self.family = FAMILY_OF[kind]
        self.heads = self.count("num_attention_heads")
        self.kv_heads = self.count("num_key_value_heads", self.heads)
        self.layers = self.count("num_hidden_layers")
        default = GEMMA_HEAD_DIM if self.is_gemma else self.count("hidden_size") // self.heads
        self.head_dim = self.count("head_dim", default)
        self.is_tied = bool(self.raw("tie_word_embeddings", self.is_gemma))
        self._check_act()

    @property
    def is_gemma(self) -> bool:
        return self.family.startswith("gemma")

    def raw(self, key: str, default: Any = None) -> Any:
        found = self._values.get(key)
        return default if found is None else found

    def count(self, key: str, default: int | None = None) -> int:
        found = self.raw(key, default)
        if type(found) is not int or not 1 <= found <= MOST:
            raise Error(f"{self.where}: {key} is {found!r:.60}, not a count.")
        return found

    def real(self, key: str, default: float | None = None) -> float:
        return self.number(self.raw(key, default), key)

    def number(self, found: Any, key: str) -> float:
        if type(found) not in (int, float) or not math.isfinite(found) or found <= 0:
            raise Error(f"{self.where}: {key} is {found!r:.60}, not a number above 0.")
        return float(found)

    @property
    def scaling(self) -> Mapping[str, Any]:
        """How rotary angles are scaled, by either of the names that configurations have for it."""
        return self.rotary("full_attention")

    @property
    def kinds(self) -> Iterable[str]:
        """Kinds of layers that have rotary parameters of their own."""
        found = self.raw("rope_parameters")
        return found if isinstance(found, dict) else ()

    def rotary(self, kind: str) -> Mapping[str, Any]:
        """The same for a kind of layers, where configurations tell them apart."""
        found = self.raw("rope_scaling") or self.raw("rope_parameters") or {}
        found = found.get(kind) or found if isinstance(found, dict) else found
        if not isinstance(found, dict):
            raise Error(f"{self.where}: rope_scaling is {found!r:.60}, not an object.")
        return found

    @property
    def scaling_kind(self) -> str:
        found = str(self.scaling.get("rope_type", self.scaling.get("type", "default")))
        return {"su": "longrope"}.get(found, found)

    def _check_act(self) -> None:
        found = self.raw("hidden_activation") or self.raw("hidden_act", ACTS[""][0])
        known = ACTS["gemma" if self.is_gemma else ""]
        if not isinstance(found, str) or found not in known:
            raise UnsupportedError(f"{self.where}: activation {found!r:.60}, not {known[0]}.")


def metadata_of(config: Config, folder: Path) -> dict[str, Any]:
    """GGUF's pairs of the sizes and the rotary embedding."""
    scaling, context = config.scaling, config.count("max_position_embeddings", 8192)
    theta = config.raw("rope_theta", scaling.get("rope_theta", THETAS.get(config.family, 1e4)))
    turned = int(config.head_dim * config.real("partial_rotary_factor", 1.0))
    found: dict[str, Any] = {
        "block_count": config.layers, "context_length": context,
        "embedding_length": config.count("hidden_size"),
        "feed_forward_length": config.count("intermediate_size"),
        "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.real("rms_norm_eps", 1e-6),
        "rope.dimension_count": turned, "rope.freq_base": config.number(theta, "rope_theta"),
        **_windows(config), **_caps(config), **_scaling(config, context),
    }  # fmt: skip
    named = {f"{config.family}.{key}": value for key, value in found.items()}
    return {
        "general.architecture": config.family, "general.name": folder.resolve().name, **named,
    }  # fmt: skip


def _windows(config: Config) -> dict[str, Any]:
    """Layers with a window: all, those that a list or a number names, or none."""
    window = config.raw("sliding_window")
    if not window or config.raw("use_sliding_window", True) is False:
        return {}
    found: dict[str, Any] = {"attention.sliding_window": config.count("sliding_window")}
    kinds = config.raw("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != config.layers:
            raise Error(f"{config.where}: layer_types has {len(kinds)} of {config.layers} layers.")
        found["attention.sliding_window_pattern"] = np.array(
            [k == "sliding_attention" for k in kinds]
        )
    elif config.raw("sliding_window_pattern"):
        found["attention.sliding_window_pattern"] = config.count("sliding_window_pattern")
    if config.family == "gemma3":
        local = config.rotary("sliding_attention").get("rope_theta")
        local = config.raw(
            "rope_local_base_freq", local if "full_attention" in config.kinds else 1e4
        )
        found["rope.freq_base_swa"] = config.number(local, "rope_local_base_freq")
    return found


def _caps(config: Config) -> dict[str, float]:
    """Caps of scores and logits (null is none), and a factor of scores that is not 1/√head_dim."""
    found: dict[str, float] = {}
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.is_gemma:
            found[key] = config.real(key) if config.raw(key) else 0.0
    scalar = config.raw("query_pre_attn_scalar")
    if scalar is not None and scalar != config.head_dim:
        found["attention.scale"] = config.number(scalar, "query_pre_attn_scalar") ** -0.5
    return found


def _scaling(config: Config, context: int) -> dict[str, Any]:
    kind, scaling = config.scaling_kind, config.scaling
    if kind in ("default", "llama3"):  # llama3 is a tensor of factors
        return {}
    if kind == "linear":
        return {"rope.scaling.type": kind, "rope.scaling.factor": _number(config, "factor")}
    trained = scaling.get("original_max_position_embeddings")
    trained = trained or config.raw("original_max_position_embeddings", context)
    found = {"rope.scaling.type": kind, "rope.scaling.original_context_length": trained}
    if kind == "longrope":
        return {**found, "rope.scaling.attn_factor": _long_magnitude(config, context, trained)}
    if kind == "yarn":
        for theirs, ours in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if scaling.get(theirs) is not None:
                found[f"rope.scaling.{ours}"] = _number(config, theirs)
        factor = _number(config, "factor")
        if scaling.get("attention_factor") is not None:
            plain = 1 + 0.1 * math.log(factor)
            found["rope.scaling.attn_factor"] = _number(config, "attention_factor") / plain
        return {**found, "rope.scaling.factor": factor}
    raise UnsupportedError(
        f"{config.where} scales rotary angles by {kind!r:.60}. rlx knows default, linear, yarn, "
        "llama3 and longrope."
    )


def _long_magnitude(config: Config, context: int, trained: int) -> float:
    """As much as more keys make scores' spread wider."""
    if config.scaling.get("attention_factor") is not None:
        return _number(config, "attention_factor")
    scale = context / config.number(trained, "original_max_position_embeddings")
    return math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0


def _number(config: Config, key: str) -> float:
    return config.number(config.scaling.get(key), f"rope_scaling.{key}")


def rotary_factors(config: Config) -> dict[str, Array]:
    """Tensors of rotary divisors: Llama 3's, by formula, and those of longrope, as listed."""
    if config.scaling_kind == "llama3":
        return {"rope_freqs.weight": _llama3(config).astype(np.float32)}
    if config.scaling_kind != "longrope":
        return {}
    found: dict[str, Array] = {}
    for size in ("long", "short"):
        values = config.scaling.get(f"{size}_factor")
        if not isinstance(values, list) or not 0 < len(values) <= MOST:
            raise Error(f"{config.where}: rope_scaling.{size}_factor is no list of numbers.")
        listed = [config.number(v, f"rope_scaling.{size}_factor") for v in values]
        found[f"rope_factors_{size}.weight"] = np.array(listed, np.float32)
    return found


def _llama3(config: Config) -> Array:
    """Frequencies of long waves are divided by `factor`, those of short waves stay, and between
    the two it is a ramp in waves of the trained context."""
    theta = config.raw("rope_theta", config.scaling.get("rope_theta", 10_000.0))
    base = config.number(theta, "rope_theta")
    factor, low, high, trained = (
        _number(config, key)
        for key in (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
    )
    if low >= high:
        raise Error(f"{config.where}: low_freq_factor is not below high_freq_factor.")
    waves = trained * base ** (-np.arange(0, config.head_dim, 2) / config.head_dim) / (2 * math.pi)
    part = np.clip((waves - low) / (high - low), 0, 1)
    return 1 / (part + (1 - part) / factor)
