"""Names of sizes and weights by model family: data, so that another family is a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.gguf.folder_families import NEUTRAL
from rlx.frontends.tracked_fields import ANY, Neutral


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one family. A layer's parts are in the order of `encoder_block`'s operands,
    each with a `.weight` and a `.bias`."""

    prefix: str
    """What weights begin with where the file holds more than the encoder."""
    layer: str
    parts: tuple[str, ...]
    sizes: Mapping[str, str]
    """Our name of a size → the configuration's."""
    starts_after_padding: bool = False
    """Do positions start after the padding id, and count non-padding tokens only?"""
    padding: int = 0
    """The padding id, where a configuration does not say."""
    reads_eps: bool = True
    """Is the epsilon of norms a field, not 1e-12 whatever that is?"""


_BERT = Naming(
    "bert.",
    "encoder.layer.{}",
    (
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "attention.output.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
    {
        "width": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers",
        "hidden": "intermediate_size", "act": "hidden_act",
    },
)  # fmt: skip
_ROBERTA = replace(_BERT, prefix="roberta.", starts_after_padding=True, padding=1)
_DISTILBERT = Naming(
    "distilbert.",
    "transformer.layer.{}",
    (
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
    ),
    {
        "width": "dim", "heads": "n_heads", "layers": "n_layers", "hidden": "hidden_dim",
        "act": "activation",
    },
    reads_eps=False,
)  # fmt: skip
FAMILIES = {
    "bert": _BERT, "camembert": _ROBERTA, "distilbert": _DISTILBERT, "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}  # fmt: skip
ENCODER_NEUTRAL: Neutral = {
    **NEUTRAL, "is_causal": (False,), "is_decoder": (False,), "tie_word_embeddings": ANY,
    # sizes of tables, which the file has
    "vocab_size": ANY, "type_vocab_size": ANY, "max_position_embeddings": ANY,
    "sinusoidal_pos_embds": ANY,
    # of training, of heads that are not here, and notes of the first writers
    "*dropout": ANY, "summary_*": ANY, "pooler_*": ANY, "directionality": ("bidi",),
    "tie_weights_": ANY, "mask_token_id": ANY, "cls_token_id": ANY, "unk_token_id": ANY,
    "layer_norm_eps": (1e-12,),
}  # fmt: skip
"""Fields that change no result of an encoder."""
GELUS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
"""Activation → is it GELU's tanh form?"""
EPS = 1e-12
"""Of norms, where a configuration does not say."""
MOST = 1 << 20
"""Of any size in a configuration."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """An encoder's sizes, as its configuration says."""

    width: int
    heads: int
    layers: int
    hidden: int
    eps: float
    is_tanh_gelu: bool
    padding: int

    @classmethod
    def of(cls, config: Mapping[str, Any], naming: Naming, where: Path) -> Sizes:
        def count(name: str) -> int:
            key = naming.sizes[name]
            value = config.get(key)
            if type(value) is not int or not 1 <= value <= MOST:
                raise Error(f"{where}: {key} is {_short(value)}, not a count.")
            return value

        act = config.get(naming.sizes["act"], "gelu")
        if not isinstance(act, str) or act not in GELUS:
            known = ", ".join(GELUS)
            raise UnsupportedError(f"{where}: activation {_short(act)}. rlx reads {known}.")
        width, heads = count("width"), count("heads")
        if width % heads:
            raise Error(f"{where}: {heads} heads do not share a width of {width}.")
        eps = config.get("layer_norm_eps", EPS) if naming.reads_eps else EPS
        padding = config.get("pad_token_id", naming.padding)
        if not isinstance(eps, float | int) or not 0 < eps < 1:
            raise Error(f"{where}: layer_norm_eps is {_short(eps)}, not between 0 and 1.")
        if type(padding) is not int or not 0 <= padding <= MOST:
            raise Error(f"{where}: pad_token_id is {_short(padding)}, not the number of a token.")
        layers, hidden = count("layers"), count("hidden")
        return cls(width, heads, layers, hidden, float(eps), GELUS[act], padding)


def naming_of(config: Mapping[str, Any], where: Path) -> Naming:
    """The names of the family that a configuration is of."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UnsupportedError(f"{where}: model_type {_short(kind)}. rlx reads {known}.")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise UnsupportedError(
            f"{where}: position embeddings are {_short(positions)}. rlx reads absolute ones."
        )
    if config.get("is_decoder"):
        raise UnsupportedError(f"{where}: it is a decoder. rlx reads encoders.")
    return FAMILIES[kind]


def _short(value: Any) -> str:
    return repr(value)[:80]
