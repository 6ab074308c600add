"""What differs between decoder architectures, read from a file's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.gguf.fields import Fields
from rlx.frontends.gguf.reader import GgufFile
from rlx.frontends.gguf.rotary import Rotary, rotary_of

MAX_CONTEXT = 1 << 20
"""Tokens: rotary tables have a row for each."""
Gate = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture fixes, whatever a file says."""

    is_interleaved: bool = False
    """Rotary pairs are elements 2i and 2i + 1, not i and i + n/2."""
    gate: Gate = "silu"
    scales_embeddings: bool = False
    """Rows of the embedding are multiplied by √width."""
    global_every: int | None = None
    """Of so many layers the last sees all keys, the others a window; None: all layers are alike."""
    local_base: float | None = None
    """The rotary base of layers with a window, where it is another."""
    window: int | None = None
    """Keys that a layer with a window sees, if the file does not say."""
    softcaps: tuple[float, float] = (0.0, 0.0)
    """Of attention scores and of logits, if the file does not say; 0 is none."""
    unturned_every: int | None = None
    """Of so many layers the last has no rotary embedding."""


_GEMMA = Family(gate="gelu_tanh", scales_embeddings=True)
FAMILIES: Mapping[str, Family] = {
    "llama": Family(is_interleaved=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "phi3": Family(),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, global_every=2, window=4096, softcaps=(50.0, 30.0)),
    "gemma3": replace(_GEMMA, global_every=6, local_base=10_000.0),
    "smollm3": Family(is_interleaved=True, unturned_every=4),
}
"""By `general.architecture`. SmolLM, SmolLM2 and Mistral are files of llama."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a decoder, and its family."""

    name: str
    family: Family
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    eps: float
    rotary: Rotary
    local_rotary: Rotary
    windows: tuple[int | None, ...]
    """Of each layer: how many keys a query sees, its own among them; None all."""
    rotated: tuple[bool, ...]
    """Of each layer: has it a rotary embedding?"""
    attention_softcap: float | None
    logit_softcap: float | None
    scale: float | None

    def rotary_at(self, layer: int) -> Rotary | None:
        if not self.rotated[layer]:
            return None
        return self.rotary if self.windows[layer] is None else self.local_rotary


def architecture_of(file: GgufFile) -> Architecture:
    """The decoder that a file holds."""
    name = Fields(file, "").text("general.architecture")
    if name not in FAMILIES:
        raise UnsupportedError(
            f"{file.name} is of the architecture {name[:80]!r}. rlx reads {', '.join(FAMILIES)}."
        )
    return _read(file, name, FAMILIES[name])


def _read(file: GgufFile, name: str, family: Family) -> Architecture:
    fields = Fields(file, name)
    width, heads = fields.count("embedding_length"), fields.count("attention.head_count", most=4096)
    head_dim = fields.count("attention.key_length", _whole(file, width, heads))
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{file.name} has values of another depth than keys.")
    context = fields.count("context_length", most=MAX_CONTEXT)
    layers = fields.count("block_count", most=4096)
    rotary = rotary_of(file, fields, head_dim, context)
    return Architecture(
        name, family, layers, width, fields.count("feed_forward_length"), heads,
        fields.count("attention.head_count_kv", heads, most=4096), head_dim,
        _vocabulary(file, fields, width), context,
        fields.positive("attention.layer_norm_rms_epsilon"), rotary,
        _local_rotary(fields, family, rotary), _windows(fields, family, layers),
        _rotated(fields, family, layers),
        _softcap(fields, "attn_logit_softcapping", family.softcaps[0]),
        _softcap(fields, "final_logit_softcapping", family.softcaps[1]),
        _scale(fields, name, layers, width, heads),
    )  # fmt: skip


def _whole(file: GgufFile, width: int, heads: int) -> int:
    if width % heads:
        raise Error(f"{file.name}: {heads} heads do not divide a width of {width}.")
    return width // heads


def _vocabulary(file: GgufFile, fields: Fields, width: int) -> int:
    """How many rows the embedding has, as the file states it."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.dims) != 2 or table.dims[1] != width:
        raise Error(f"{file.name} has no token_embd.weight of rows of {width}.")
    if fields.has("vocab_size") and fields.raw("vocab_size") != table.dims[0]:
        stated = fields.raw("vocab_size")
        raise Error(
            f"{file.name}: {fields.name('vocab_size')} is {stated!r:.60}, and token_embd.weight "
            f"has {table.dims[0]:,} rows."
        )
    return table.dims[0]


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """Which layers see a window of keys: a file says so by layer, or of how many one does not."""
    key = "attention.sliding_window"
    if (fields.has(key) and fields.raw(key) == 0) or (not fields.has(key) and not family.window):
        return (None,) * layers
    window = fields.count(key, family.window)
    found = fields.raw(f"{key}_pattern")
    if isinstance(found, np.ndarray):
        local = fields.numbers(f"{key}_pattern", layers, "biu")
        return tuple(window if is_local else None for is_local in local)
    every = fields.count(f"{key}_pattern", family.global_every or 1 << 20)
    return tuple(None if i % every == every - 1 else window for i in range(layers))


def _rotated(fields: Fields, family: Family, layers: int) -> tuple[bool, ...]:
    """Which layers have a rotary embedding: as a folder's configuration lists them, or all but each
    so manieth."""
    if fields.has("rope.layer_pattern"):
        return tuple(map(bool, fields.numbers("rope.layer_pattern", layers, "biu")))
    every = family.unturned_every
    return tuple(every is None or (i + 1) % every != 0 for i in range(layers))


def _local_rotary(fields: Fields, family: Family, rotary: Rotary) -> Rotary:
    """Of layers with a window: another base, and no scaling, where a family has one."""
    if family.local_base is None:
        return rotary
    return Rotary.plain(rotary.turned, fields.positive("rope.freq_base_swa", family.local_base))


def _softcap(fields: Fields, key: str, default: float) -> float | None:
    found = fields.real(key, default)
    if found < 0:
        raise Error(f"{fields.where}: {key} is {found:g}, below 0.")
    return found or None


def _scale(fields: Fields, name: str, layers: int, width: int, heads: int) -> float | None:
    """The factor of scores where it is not 1/√head_dim: one that is stated, and that of the largest
    Gemmas, which have heads of another depth than width/heads, and divide by the latter."""
    if fields.has("attention.scale") and fields.raw("attention.scale"):
        return fields.positive("attention.scale")
    largest = {"gemma2": 46, "gemma3": 62}
    return 1 / math.sqrt(width // heads) if largest.get(name) == layers else None
