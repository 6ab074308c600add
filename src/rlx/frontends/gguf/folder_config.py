"""config.json of a decoder as GGUF's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.gguf.architecture import FAMILIES
from rlx.frontends.gguf.folder_families import FOLDER_FAMILIES, NEUTRAL
from rlx.frontends.tracked_fields import TrackedFields

MOST = 1 << 24
MOST_LAYERS = 4096
SLIDING, FULL = "sliding_attention", "full_attention"
DENY = (
    "Delete the field if the model computes the same without it; otherwise run the model with "
    "transformers."
)


class Config:
    """Typed values of a config.json. Every field that matters is read, or an error."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = TrackedFields(values, where), where
        kind = self.fields.get("model_type")
        if not isinstance(kind, str) or kind not in FOLDER_FAMILIES:
            known = ", ".join(FOLDER_FAMILIES)
            raise UnsupportedError(f"{where}: model_type {kind!r:.60}. rlx reads {known}.")
        self.kind, self.family = kind, FOLDER_FAMILIES[kind]
        self.architecture = self.family.architecture
        self.heads = self.count("num_attention_heads")
        self.kv_heads = self.count("num_key_value_heads", self.heads)
        self.layers = self.count("num_hidden_layers", most=MOST_LAYERS)
        default = self.family.head_dim or self.count("hidden_size") // self.heads
        self.head_dim = self.count("head_dim", default)
        self.context = self.count("max_position_embeddings", self.family.context)
        self.is_tied = self.flag("tie_word_embeddings", default=self.family.is_tied)
        self._check_activation()

    def deny_unread(self) -> None:
        """An error for a field that nothing has read and that may matter."""
        self.fields.deny_unread([self.family.neutral, NEUTRAL], DENY)

    def raw(self, key: str, default: Any = None) -> Any:
        found = self.fields.get(key)
        return default if found is None else found

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        found = self.raw(key, default)
        if type(found) is not int or not least <= found <= most:
            raise Error(f"{self.where}: {key} is {found!r:.60}, not a count.")
        return found

    def real(self, key: str, default: float | None = None) -> float:
        return self.number(self.raw(key, default), key)

    def number(self, found: Any, key: str) -> float:
        if type(found) not in (int, float) or not math.isfinite(found) or found <= 0:
            raise Error(f"{self.where}: {key} is {found!r:.60}, not a number above 0.")
        return float(found)

    def flag(self, key: str, *, default: bool) -> bool:
        found = self.raw(key, default)
        if not isinstance(found, bool):
            raise Error(f"{self.where}: {key} is {found!r:.60}, not true or false.")
        return found

    @property
    def biased(self) -> frozenset[str]:
        """Parts of a layer with a `.bias`."""
        fields = self.family.bias_fields
        parts = [fields[key] for key in fields if self.flag(key, default=False)]
        return frozenset(self.family.biased).union(*parts)

    def _check_activation(self) -> None:
        key, known = self.family.activation, self.family.activations
        found = self.raw(key, known[0])
        if found not in known:
            raise UnsupportedError(f"{self.where}: activation {found!r:.60}, not {known[0]}.")


def metadata_of(config: Config, folder: Path) -> dict[str, Any]:
    """GGUF's pairs of the sizes, the attention windows and the scales."""
    rotated = rotated_layers(config)
    found: dict[str, Any] = {
        "block_count": config.layers, "context_length": config.context,
        "embedding_length": config.count("hidden_size"),
        "feed_forward_length": config.count("intermediate_size"),
        "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.real("rms_norm_eps", config.family.eps),
        **_windows(config, rotated), **_rotated(config, rotated), **_softcaps(config),
        **_scale(config),
    }  # fmt: skip
    named = {f"{config.architecture}.{key}": value for key, value in found.items()}
    return {
        "general.architecture": config.architecture, "general.name": folder.resolve().name, **named,
    }  # fmt: skip


def rotated_layers(config: Config) -> list[bool]:
    """Which layers have a rotary embedding: of SmolLM 3, as a list or an interval says."""
    default = FAMILIES[config.architecture].unturned_every
    if default is None:
        return [True] * config.layers
    every = config.count("no_rope_layer_interval", default)
    listed = config.raw("no_rope_layers")
    if listed is None:
        return [(i + 1) % every != 0 for i in range(config.layers)]
    if (
        not isinstance(listed, list)
        or len(listed) < config.layers
        or not all(type(v) in (int, bool) and v in (0, 1) for v in listed)
    ):
        raise Error(
            f"{config.where}: no_rope_layers is {listed!r:.60}, not a 0 or 1 for each of "
            f"{config.layers} layers."
        )
    return [bool(v) for v in listed[: config.layers]]


def _rotated(config: Config, rotated: list[bool]) -> dict[str, Any]:
    """What differs from the architecture's own pattern."""
    every = FAMILIES[config.architecture].unturned_every
    if rotated == [every is None or (i + 1) % every != 0 for i in range(config.layers)]:
        return {}
    return {"rope.layer_pattern": np.array(rotated)}


def _windows(config: Config, rotated: list[bool]) -> dict[str, Any]:
    """The window, and which layers have it, unless that is the architecture's own pattern."""
    local = _local_layers(config, rotated)
    if not any(local):
        has_default = FAMILIES[config.architecture].window is not None
        return {"attention.sliding_window": 0} if has_default else {}
    found: dict[str, Any] = {
        "attention.sliding_window": config.count("sliding_window", config.family.window)
    }
    every = FAMILIES[config.architecture].global_every
    if local != [every is None or (i + 1) % every != 0 for i in range(config.layers)]:
        found["attention.sliding_window_pattern"] = np.array(local)
    return found


def _local_layers(config: Config, rotated: list[bool]) -> list[bool]:
    """Which layers see a window of keys: as `layer_types` says, or as the family does it."""
    family = config.family
    has_window = family.windows != "none" and _has_window(config)
    default = [has_window and is_local for is_local in _local_by_rule(config, rotated)]
    listed = _listed(config)
    if listed is None:
        return default
    if not family.lists_layer_types and listed != default:
        raise UnsupportedError(
            f"{config.where}: layer_types are not those of {config.kind}, whose layers are all "
            f"alike. {DENY}"
        )
    if any(listed) and not has_window:
        raise Error(
            f"{config.where}: layer_types name {SLIDING}, and there is no sliding_window"
            f"{' that use_sliding_window switches on' if family.has_window_switch else ''}."
        )
    return listed


def _local_by_rule(config: Config, rotated: list[bool]) -> list[bool]:
    layers = range(config.layers)
    match config.family.windows:
        case "none":
            return [False for _ in layers]
        case "all":
            return [True for _ in layers]
        case "last":
            first = config.count("max_window_layers", 28, least=0)
            return [i >= first for i in layers]
        case "alternating":
            return [i % 2 == 0 for i in layers]
        case "pattern":
            every = config.count("sliding_window_pattern", 6)
            return [(i + 1) % every != 0 for i in layers]
        case "unrotated":
            return [not is_rotated for is_rotated in rotated]


def _has_window(config: Config) -> bool:
    """Is there a window? An absent one is the default of the family, null is none."""
    family, key = config.family, "sliding_window"
    window = config.fields.get(key, family.window)
    is_on = not family.has_window_switch or config.flag("use_sliding_window", default=False)
    return is_on and window is not None


def _listed(config: Config) -> list[bool] | None:
    kinds = config.raw("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != config.layers:
        raise Error(
            f"{config.where}: layer_types is {kinds!r:.60}, not a kind for each of "
            f"{config.layers} layers."
        )
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise UnsupportedError(
                f"{config.where}: layer_types has {kind!r:.60}. rlx reads {SLIDING} and {FULL}."
            )
    return [kind == SLIDING for kind in kinds]


def _softcaps(config: Config) -> dict[str, float]:
    """Caps of scores and logits: null is none, an absent one is the family's."""
    found = {key: config.fields.get(key, cap) for key, cap in config.family.softcaps.items()}
    return {k: 0.0 if v is None else config.number(v, k) for k, v in found.items()}


def _scale(config: Config) -> dict[str, float]:
    """The factor of scores, where it is not 1/√head_dim."""
    if config.family.query_scalar is None:
        return {}
    scalar = config.real("query_pre_attn_scalar", config.family.query_scalar)
    return {"attention.scale": scalar**-0.5}
