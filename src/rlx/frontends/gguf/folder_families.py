"""Decoders of folders by `model_type`: what transformers' class of each computes where a field of
config.json is absent, and which tensors a layer of it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlx.frontends.tracked_fields import ANY, Neutral

_ATTENTION = tuple(f"self_attn.{n}_proj" for n in "qkvo")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_OUTER_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_TANH = ("gelu_pytorch_tanh", "gelu_new")
Windows = Literal["none", "all", "last", "alternating", "pattern", "unrotated"]
"""Layers with a sliding window, where `layer_types` does not list them: none, all, those from
`max_window_layers` on, every other, all but every `sliding_window_pattern`-th, or those without a
rotary embedding."""


@dataclass(frozen=True, slots=True)
class FolderFamily:
    """What transformers' configuration class of a `model_type` fixes."""

    architecture: str
    """GGUF's name."""
    parts: tuple[str, ...] = (*_NORMS, *_ATTENTION, *_MLP)
    """Tensors of a layer, each with a `.weight`."""
    biased: tuple[str, ...] = ()
    """Parts with a `.bias`, whatever the fields are."""
    bias_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Fields that give parts a `.bias`."""
    activation: str = "hidden_act"
    activations: tuple[str, ...] = ("silu", "swish")
    """Names of the gate's activation; the first is the default."""
    context: int = 32768
    eps: float = 1e-6
    is_tied: bool = False
    head_dim: int | None = None
    """None: hidden_size / heads."""
    theta: float = 1e4
    windows: Windows = "none"
    window: int | None = None
    lists_layer_types: bool = False
    """Is `layer_types` read? Otherwise it has to agree with what the class does."""
    has_window_switch: bool = False
    """Are there windows only where `use_sliding_window` is true?"""
    softcaps: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """Fields of caps of scores and logits."""
    query_scalar: int | None = None
    """`query_pre_attn_scalar`; None: there is no such field."""
    has_partial_rotary: bool = False
    trained_context: int | None = None
    """`original_max_position_embeddings`, which then is a field beside the rotary ones."""
    neutral: Neutral = field(default_factory=dict[str, Any])
    """Fields that this class does not read."""


_BIASES = {"attention_bias": _ATTENTION, "mlp_bias": _MLP}
_GEMMA = FolderFamily(
    "gemma", bias_fields={"attention_bias": _ATTENTION},
    activations=(_TANH[0], "gelu", _TANH[1]), context=8192,
    is_tied=True, head_dim=256, neutral={"hidden_activation": _TANH},
)  # fmt: skip
"""Gemma's first files say gelu, and mean its tanh form."""
_GEMMA2 = replace(
    _GEMMA, architecture="gemma2", parts=(*_GEMMA.parts, *_OUTER_NORMS),
    activation="hidden_activation", activations=_TANH, windows="alternating", window=4096,
    lists_layer_types=True,
    softcaps={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, query_scalar=256,
    neutral={"hidden_act": ANY},
)  # fmt: skip
FOLDER_FAMILIES: Mapping[str, FolderFamily] = {
    "llama": FolderFamily("llama", context=2048, bias_fields=_BIASES),
    "mistral": FolderFamily("llama", context=131072, windows="all", window=4096),
    "qwen2": FolderFamily(
        "qwen2", biased=_ATTENTION[:3], windows="last", window=4096, lists_layer_types=True,
        has_window_switch=True,
    ),
    "qwen3": FolderFamily(
        "qwen3", parts=(*_NORMS, *_ATTENTION, *_HEAD_NORMS, *_MLP), head_dim=128,
        bias_fields={"attention_bias": _ATTENTION}, windows="last", window=4096,
        lists_layer_types=True, has_window_switch=True,
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2, architecture="gemma3", parts=(*_GEMMA2.parts, *_HEAD_NORMS), windows="pattern",
        softcaps={"final_logit_softcapping": None}, theta=1e6, context=131072,
    ),
    "phi3": FolderFamily(
        "phi3", parts=(*_NORMS, "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
        "mlp.down_proj"), eps=1e-5, context=4096, windows="all",
        has_partial_rotary=True, trained_context=4096,
    ),
    "smollm3": FolderFamily(
        "smollm3", bias_fields=_BIASES, is_tied=True, theta=2e6, windows="unrotated",
        lists_layer_types=True, has_window_switch=True,
    ),
}  # fmt: skip

NEUTRAL: Neutral = {
    # names and notes
    "_*": ANY, "architectures": ANY, "transformers_version": ANY, "auto_map": ANY,
    "model_name": ANY, "name_or_path": ANY, "license": ANY, "custom_pipelines": ANY,
    "unsloth_*": ANY, "is_llama_config": ANY,
    # number formats of weights and computations, which files and `precision=` state
    "torch_dtype": ANY, "dtype": ANY, "use_bfloat16": ANY, "torchscript": ANY,
    # training
    "initializer_range": ANY, "attention_dropout": ANY, "hidden_dropout": ANY, "resid_pdrop": ANY,
    "embd_pdrop": ANY, "hidden_dropout_prob": ANY, "attention_probs_dropout_prob": ANY,
    "classifier_dropout": ANY, "gradient_checkpointing": ANY, "problem_type": ANY,
    "label2id": ANY, "id2label": ANY, "num_labels": ANY, "finetuning_task": ANY,
    "pretraining_tp": ANY, "tf_legacy_loss": ANY, "use_return_dict": ANY,
    # how transformers computes the same
    "use_cache": ANY, "attn_implementation": ANY, "cache_implementation": ANY,
    "output_attentions": ANY, "output_hidden_states": ANY, "return_dict": ANY,
    "output_past": ANY, "chunk_size_feed_forward": ANY, "pruned_heads": ({},),
    # what transformers reads of a tokenizer, a template or generation_config.json instead
    "bos_token_id": ANY, "eos_token_id": ANY, "pad_token_id": ANY, "sep_token_id": ANY,
    "tokenizer_class": ANY,
    "model_max_length": ANY, "max_length": ANY, "min_length": ANY, "do_sample": ANY,
    "decoder_start_token_id": ANY, "prefix": ANY, "task_specific_params": ANY,
    # parts that decoders here do not have
    "is_decoder": ANY, "is_encoder_decoder": (False,), "add_cross_attention": (False,),
    "tie_encoder_decoder": ANY, "attention_bias": (False,), "mlp_bias": (False,),
    "qk_layernorm": (False,), "use_qk_norm": (False,), "rope_interleaved": (False,),
    "use_sliding_window": (False,), "use_bidirectional_attention": (False,),
    "max_window_layers": ANY, "partial_rotary_factor": (1.0,), "is_causal": (True,),
    # fields of scalings that are not this model's
    "original_max_position_embeddings": ANY,
    "rope_*.original_max_position_embeddings": ANY, "rope_*.factor": (1.0,),
    "rope_*.partial_rotary_factor": (1.0,), "rope_*.truncate": (True,), "rope_*.finetuned": ANY,
}  # fmt: skip
"""Fields that change no result, and those that do not as long as they have a value."""
