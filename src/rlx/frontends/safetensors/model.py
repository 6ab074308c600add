"""A model read from a folder: config.json, model.safetensors and, of sentence-transformers,
modules.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.block_model import BlockModel
from rlx.frontends.gguf.folder_config import DENY
from rlx.frontends.safetensors.encoder import Encoded, encoder, pooled
from rlx.frontends.safetensors.naming import ENCODER_NEUTRAL, Sizes, naming_of
from rlx.frontends.safetensors.pooling import sentence
from rlx.frontends.safetensors.reader import WEIGHTS, read_object, read_tensors
from rlx.frontends.tracked_fields import TrackedFields
from rlx.ir.mir import Node
from rlx.ops.op import Array

CONFIG = "config.json"
UNUSED = ("position_ids", "pooler.dense.weight", "pooler.dense.bias")
"""How tensors end that a model may have and not need."""


class FolderModel(BlockModel):
    """An encoder of a folder."""

    def __repr__(self) -> str:
        given, made = ", ".join(self.inputs), ", ".join(self.outputs)
        return f"<FolderModel {self.name!r} ({given}) -> ({made})>"


def load(folder: Path) -> FolderModel:
    """The model in a folder. Its inputs are those of transformers: input_ids, attention_mask and,
    where the model has kinds of tokens, token_type_ids, each i64[batch, length].

    Outputs are `sentence_embedding` where modules.json describes one, else `last_hidden_state`
    and, if there are weights for it, `pooler_output`.
    """
    config_path, weights_path = folder / CONFIG, folder / WEIGHTS
    if not config_path.exists():
        raise Error(f"{folder} is no model: it has no {CONFIG}.")
    if not weights_path.exists():
        raise Error(f"{folder} has no {WEIGHTS}{_instead(folder)}.")
    config = TrackedFields(read_object(config_path), str(config_path))
    naming = naming_of(config, config_path)
    sizes = Sizes.of(config, naming, config_path)
    tensors = read_tensors(weights_path)
    name = folder.resolve().name or config["model_type"]
    encoded = encoder(name, sizes, naming, tensors, weights_path)
    encoded.build.module.set_outputs(_outputs(folder, encoded))
    _check_used(encoded, tensors)
    config.deny_unread([ENCODER_NEUTRAL], DENY)
    return FolderModel(encoded.build.module, {n: tensors[n] for n in encoded.build.taken})


def _instead(folder: Path) -> str:
    """What the folder has that rlx cannot read."""
    if (folder / f"{WEIGHTS}.index.json").exists():
        return ": its weights are in several files, which rlx cannot read yet"
    if (folder / "pytorch_model.bin").exists():
        return ": pytorch_model.bin is a pickle, which rlx does not read. Save it as safetensors"
    return ""


def _outputs(folder: Path, encoded: Encoded) -> dict[str, Node]:
    vector = sentence(folder, encoded)
    if vector is not None:
        return {"sentence_embedding": vector}
    summary = pooled(encoded)
    outputs = {"last_hidden_state": encoded.rows}
    return outputs if summary is None else {**outputs, "pooler_output": summary}


def _check_used(encoded: Encoded, tensors: Mapping[str, Array]) -> None:
    """A tensor that nothing uses is a part of the model that would be missing."""
    taken = encoded.build.taken
    rest = [n for n in tensors if n not in taken and not n.endswith(UNUSED)]
    if rest:
        more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
        raise UnsupportedError(
            f"{encoded.build.where}: rlx reads encoders, and does not know what to do with "
            f"{', '.join(rest[:3])}{more}."
        )
