"""A language model of a folder (config.json, safetensors, tokenizer.json) as a GGUF file has it.

Metadata gets GGUF's keys and tensors GGUF's names, so that everything behind it is the same for
both. Weights stay in their files; what GGUF stores in another form is changed as it is read: rows
of queries and keys of families with interleaved rotary pairs, and norms that are stored less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import opened
from rlx.frontends.gguf.architecture import FAMILIES
from rlx.frontends.gguf.folder_config import Config, metadata_of
from rlx.frontends.gguf.folder_families import FOLDER_FAMILIES
from rlx.frontends.gguf.folder_generation import NEUTRAL, NEXT_STEP, sampling_metadata
from rlx.frontends.gguf.folder_rotary import FolderRotary
from rlx.frontends.gguf.folder_tokenizer import optional_fields, tokenizer_metadata
from rlx.frontends.gguf.reader import GgufFile, TensorInfo
from rlx.frontends.safetensors.reader import TensorFile, read_object, tensor_files
from rlx.ops.op import Array

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
SCHEMES = ("f32", "f16", "bf16")
EMBEDDING = "model.embed_tokens.weight"
GLOBAL = {
    EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight",
}  # fmt: skip
HEAD = {"lm_head.weight": "output.weight"}
"""Of models whose head is not the table of embeddings."""
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


def is_language_model(folder: Path) -> bool:
    """Does the folder hold a decoder, as its config.json says?"""
    config = folder / CONFIG
    return config.is_file() and str(read_object(config).get("model_type")) in FOLDER_FAMILIES


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
        rotary = FolderRotary(config)
        self._added = rotary.tensors()
        self._stored = _stored(config, files, folder)
        infos = {name: self._info(name) for name in self._stored}
        for name, values in self._added.items():
            infos[name] = TensorInfo(name, values.shape, "f32", 0)
        metadata = {**metadata_of(config, folder), **rotary.metadata()}
        generation = optional_fields(folder / GENERATION_CONFIG)
        ends = generation.get("eos_token_id")
        ends = config.raw("eos_token_id") if ends is None else ends
        metadata |= {**tokenizer_metadata(folder, ends), **sampling_metadata(generation)}
        generation.deny_unread([NEUTRAL], NEXT_STEP)
        super().__init__(opened(folder / CONFIG), metadata, infos, 0)
        _check_vocabulary(config, infos["token_embd.weight"])
        config.deny_unread()

    def packed(self, name: str) -> Array:
        if name in self._added:
            return self._added[name].view(np.uint8)
        values = self._files[self._stored[name]].read(self._stored[name])
        if self._is_less_one(name):
            values = values.astype(np.float32) + np.float32(1)
        heads = {"attn_q": self._config.heads, "attn_k": self._config.kv_heads}
        part = name.split(".")[-2]
        if FAMILIES[self._config.architecture].is_interleaved and part in heads:
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
        return name.endswith("norm.weight") and self._config.architecture.startswith("gemma")


def _stored(config: Config, files: Mapping[str, TensorFile], folder: Path) -> dict[str, str]:
    """The names of tensors in the files, by GGUF's: all that the configuration asks for, and no
    others."""
    names = {**GLOBAL, **({} if config.is_tied else HEAD)}
    layer = _layer_names(config)
    for i in range(config.layers):
        names |= {f"model.layers.{i}.{n}": f"blk.{i}.{ours}" for n, ours in layer.items()}
    if missing := next((n for n in names if n not in files), None):
        hint = "" if missing not in HEAD else " (tie_word_embeddings is false)"
        raise Error(f"{folder} has no tensor {missing!r}, which {CONFIG} asks for{hint}.")
    if config.is_tied:
        _check_tied(config, files)
    rest = [n for n in files if n not in {**names, **HEAD} and not n.endswith(UNUSED)]
    if rest:
        more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
        raise UnsupportedError(
            f"{folder}: {config.kind} as {CONFIG} describes it does not use the tensors "
            f"{', '.join(rest[:3])}{more}. rlx does not know what to do with them."
        )
    return {ours: theirs for theirs, ours in names.items()}


def _check_tied(config: Config, files: Mapping[str, TensorFile]) -> None:
    """A head that is stored, too, is the table of embeddings."""
    stored = [files[name].read(name) for name in (*HEAD, EMBEDDING) if name in files]
    if len(stored) == 2 and not np.array_equal(stored[0], stored[1]):
        raise Error(
            f"{config.where}: tie_word_embeddings is true, and {next(iter(HEAD))} is not the table "
            f"of embeddings. Set it to false, or remove the tensor."
        )


def _layer_names(config: Config) -> dict[str, str]:
    """GGUF's names of a layer's tensors."""
    parts, biased = config.family.parts, config.biased
    ours = {part: PARTS[part] for part in parts}
    if "pre_feedforward_layernorm" in ours:
        ours["post_attention_layernorm"] = "post_attention_norm"
    found = {f"{part}.weight": f"{name}.weight" for part, name in ours.items()}
    return found | {f"{p}.bias": f"{name}.bias" for p, name in ours.items() if p in biased}


def _check_vocabulary(config: Config, table: TensorInfo) -> None:
    if (stated := config.raw("vocab_size")) is not None and stated != table.dims[0]:
        raise Error(
            f"{config.where}: vocab_size is {stated!r:.60}, and the embedding has "
            f"{table.dims[0]:,} rows."
        )


def _interleaved(values: Array, heads: int, name: str) -> Array:
    """Rows of a head: i and i + n/2 become 2i and 2i + 1."""
    if len(values) % (2 * heads):
        raise Error(f"tensor {name}: {len(values)} rows are no {heads} heads of pairs.")
    by_half = values.reshape(heads, 2, -1, *values.shape[1:])
    return by_half.swapaxes(1, 2).reshape(values.shape)
