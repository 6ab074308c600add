"""A language model of a folder (config.json, safetensors, tokenizer.json) as a GGUF file has it.

Metadata gets GGUF's keys and tensors GGUF's names, so that everything behind it is the same for
both. Weights stay in their files; what GGUF stores in another form is changed as it is read: rows
of queries and keys of families with interleaved rotary pairs, and norms that are stored less 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlx.core.errors import Error
from rlx.core.files import opened
from rlx.frontends.gguf.architecture import FAMILIES
from rlx.frontends.gguf.folder_config import FAMILY_OF, Config, metadata_of, rotary_factors
from rlx.frontends.gguf.folder_tokenizer import tokenizer_metadata
from rlx.frontends.gguf.reader import GgufFile, TensorInfo
from rlx.frontends.safetensors.reader import TensorFile, read_object, tensor_files
from rlx.ops.op import Array

CONFIG = "config.json"
SCHEMES = ("f32", "f16", "bf16")
GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "lm_head.bias": "output.bias",
}  # fmt: skip
PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
}  # fmt: skip
"""Names of a layer's parts. Where there is a norm before the feed-forward network, that after
attention is one of its own."""
UNUSED = ("rotary_emb.inv_freq",)
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def is_language_model(folder: Path) -> bool:
    """Does the folder hold a decoder, as its config.json says?"""
    config = folder / CONFIG
    return config.is_file() and str(read_object(config).get("model_type")) in FAMILY_OF


def read_folder(folder: Path) -> GgufFile:
    """The model of a folder, checked."""
    where = folder / CONFIG
    if not where.is_file():
        raise Error(f"{folder} is no model: it has no {CONFIG}.")
    config = Config(read_object(where), str(where))
    return FolderFile(folder, config, tensor_files(folder))


class FolderFile(GgufFile):
    """Tensors by GGUF's names, each read from its file when it is asked for."""

    def __init__(self, folder: Path, config: Config, files: Mapping[str, TensorFile]) -> None:
        self._config, self._files = config, files
        self._added = rotary_factors(config)
        self._stored = _named(config, files, str(folder))
        infos = {name: self._info(name) for name in self._stored}
        for name, values in self._added.items():
            infos[name] = TensorInfo(name, values.shape, "f32", 0)
        metadata = {**metadata_of(config, folder), **tokenizer_metadata(folder)}
        super().__init__(opened(folder / CONFIG), metadata, infos, 0)

    def packed(self, name: str) -> Array:
        if name in self._added:
            return self._added[name].view(np.uint8)
        values = self._files[self._stored[name]].read(self._stored[name])
        if self._is_less_one(name):
            values = values.astype(np.float32) + np.float32(1)
        heads = {"attn_q": self._config.heads, "attn_k": self._config.kv_heads}
        part = name.split(".")[-2]
        if FAMILIES[self._config.family].is_interleaved and part in heads:
            values = _interleaved(values, heads[part], name)
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return raw.reshape(self.tensors[name].packed_dims)

    def _info(self, name: str) -> TensorInfo:
        stored = self._stored[name]
        file = self._files[stored]
        scheme, dims = file.dtype(stored).value, file.dims(stored)
        if scheme not in SCHEMES or not dims or 0 in dims:
            wanted = ", ".join(SCHEMES)
            raise Error(f"{file.name}: tensor {stored!r} is {scheme}{list(dims)}, not of {wanted}.")
        return TensorInfo(name, dims, "f32" if self._is_less_one(name) else scheme, 0)

    def _is_less_one(self, name: str) -> bool:
        """Norms of Gemma multiply by 1 more than what is stored."""
        return name.endswith("norm.weight") and self._config.family.startswith("gemma")


def _named(config: Config, files: Mapping[str, TensorFile], where: str) -> dict[str, str]:
    """GGUF's names of the tensors, and their own."""
    has_own_norm = any(".pre_feedforward_layernorm." in name for name in files)
    found: dict[str, str] = {}
    for stored in files:
        if stored.endswith(UNUSED) or (config.is_tied and stored.startswith("lm_head.")):
            continue
        name = _name(stored, has_own_norm)
        if name in found:
            raise Error(f"{where}: tensors {found[name]!r} and {stored!r} have one place.")
        found[name] = stored
    return found


def _name(stored: str, has_own_norm: bool) -> str:
    """A name that is unknown stays, and is refused where nothing uses it."""
    found = _LAYER.fullmatch(stored)
    if not found or found[2] not in PARTS:
        return GLOBAL.get(stored, stored)
    layer, part, kind = found.groups()
    is_after = has_own_norm and part == "post_attention_layernorm"
    return f"blk.{layer}.{'post_attention_norm' if is_after else PARTS[part]}.{kind}"


def _interleaved(values: Array, heads: int, name: str) -> Array:
    """Rows of a head: i and i + n/2 become 2i and 2i + 1."""
    if len(values) % (2 * heads):
        raise Error(f"tensor {name}: {len(values)} rows are no {heads} heads of pairs.")
    by_half = values.reshape(heads, 2, -1, *values.shape[1:])
    return by_half.swapaxes(1, 2).reshape(values.shape)
