"""Keys of GGUF metadata that change no result, and the check that every other one is read."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.frontends.gguf.reader import GgufFile
from rlx.frontends.tracked_fields import ANY, Neutral

REMOVE = (
    "If the model computes the same without it, remove the key: gguf-new-metadata "
    "--remove-metadata {key} (pip install gguf)."
)
NAMESPACES = ("general", "tokenizer", "split", "adapter", "clip", "control_vector")
"""Of keys that describe a model, beside its architecture's; notes of other tools have theirs."""
_NAMES = (
    "name", "author", "version", "organization", "finetune", "basename", "description",
    "quantized_by", "size_label", "license", "license.*", "url", "doi", "uuid", "repo_url",
    "source.*", "base_model.*", "dataset.*", "datasets", "tags", "languages",
    "quantization_version", "file_type", "alignment", "parameter_count", "source_url", "homepage",
)  # fmt: skip
NEUTRAL: Neutral = {
    **{f"general.{name}": ANY for name in _NAMES},
    "general.type": ("model",), "general.sampling.*": ANY,
    # tokens, which rlx.lm reads: `tokenizer_of`
    "tokenizer.*": ANY,
    "split.no": (0,), "split.count": (0, 1), "split.tensors.count": ANY,
}  # fmt: skip
ARCHITECTURE: Neutral = {
    "tensor_data_layout": ("Meta AI original pth",), "pooling_type": ANY,
    "attention.causal": (True,), "attention.max_alibi_bias": (0.0,), "attention.clamp_kqv": (0.0,),
    "attention.layer_norm_epsilon": ANY, "attention.sliding_window": (0,),
    "attention.sliding_window_pattern": ANY, "rope.scaling.yarn_beta_*": ANY,
    "attention.scale": (0.0,), "attention.shared_kv_layers": (0,),
    "use_parallel_residual": (False,), "expert_count": (0,), "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "rope.scaling.finetuned": ANY, "rope.scaling.original_context_length": ANY,
    "rope.scaling.factor": (0.0, 1.0), "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,), "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,), "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0), "embedding_scale": (0.0, 1.0),
}  # fmt: skip
"""Of the architecture: norms have one epsilon, and what belongs to a window or to YaRN is read
where there is one."""
_TOKEN_IDS = ("padding", "mask", "cls", "seperator", "unknown", "prefix", "suffix", "middle")
TOKENIZER: Neutral = {
    # read when a text is tokenized
    **{f"tokenizer.ggml.{key}": ANY for key in (
        "tokens", "token_type", "merges", "scores", "pre", "bos_token_id", "eos_token_id",
        "eot_token_id", "eom_token_id", "add_bos_token", "add_eos_token", "token_strips",
        "normalizer.form", "ignore_merges", "space_prefix",
    )},
    "tokenizer.chat_template": ANY,
    # for other uses than continuing a text
    **{f"tokenizer.ggml.{name}_token_id": ANY for name in _TOKEN_IDS},
    "tokenizer.ggml.fim_*_token_id": ANY, "tokenizer.ggml.token_type_count": ANY,
    "tokenizer.chat_template.*": ANY, "tokenizer.chat_templates": ANY,
    "tokenizer.huggingface.json": ANY, "tokenizer.ggml.remove_extra_whitespaces": (False,),
}  # fmt: skip
_IS_FALSE: Neutral = {"tokenizer.ggml.add_sep_token": (False,)}
TOKENIZERS: Mapping[str, Neutral] = {
    "gpt2": {"tokenizer.ggml.add_space_prefix": ANY, **_IS_FALSE},
    "llama": {"tokenizer.ggml.add_space_prefix": ANY, **_IS_FALSE},
    "bert": {"tokenizer.ggml.normalizer.*": ANY, "tokenizer.ggml.add_sep_token": (True,)},
}
"""By `tokenizer.ggml.model`. Spaces before a text are a matter of SentencePiece."""


def deny_unread_keys(file: GgufFile, architecture: str) -> None:
    """An error for a key that describes the decoder, that nothing has read and that may matter."""
    own = {f"{architecture}.{key}": values for key, values in ARCHITECTURE.items()}
    _deny(file, [NEUTRAL, own], (*NAMESPACES, architecture))


def deny_unread_tokenizer_keys(file: GgufFile, kind: str) -> None:
    """The same of its tokenizer."""
    _deny(file, [TOKENIZER, TOKENIZERS[kind]], ("tokenizer",))


def _deny(file: GgufFile, neutral: list[Neutral], namespaces: tuple[str, ...]) -> None:
    others = [k for k, _ in file.metadata.unread() if k.partition(".")[0] not in namespaces]
    file.metadata.deny_unread([*neutral, dict.fromkeys(others, ANY)], REMOVE)
