"""Fields of config.json against transformers: for each family of decoders each field is given other
values, or left out. What rlx loads has the logits that transformers has; the rest it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import rlx
from rlx.frontends.gguf.model import load
from tests.effort import sample
from tests.gguf.test_folder import logits_of

TOKENS = [1, 14, 215, 9, 26, 5, 135, 8, 9, 7, 9, 32, 280, 77, 3]
TOLERANCE = 3e-5
"""Of the greatest logit: sums of f32."""
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
LISTS = {
    "long_factor": [1.5, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0, 8.0],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
}
ROTARY: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
     "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
    {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 64},
    {"type": "su", **LISTS, "factor": 3.0, "original_max_position_embeddings": 8},
    {"rope_type": "longrope", **LISTS, "attention_factor": 1.3,
     "original_max_position_embeddings": 8},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
]  # fmt: skip
KINDS = ("full_attention", "sliding_attention")
OTHERS: dict[str, list[Any]] = {
    "rope_scaling": ROTARY, "rope_parameters": ROTARY, "rope_theta": [50.0],
    "rope_local_base_freq": [50.0], "partial_rotary_factor": [0.5],
    "layer_types": [[KINDS[i % 2] for i in range(4)], ["full_attention"] * 4,
                    ["sliding_attention"] * 4, ["chunked_attention"] * 4],
    "no_rope_layers": [[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1]],
    "no_rope_layer_interval": [2, 3], "sliding_window": [3], "sliding_window_pattern": [2, 3],
    "use_sliding_window": [True], "max_window_layers": [0, 2],
    "use_bidirectional_attention": [True], "is_causal": [False], "head_dim": [32, 8],
    "hidden_act": ["gelu", "relu", "gelu_pytorch_tanh", "swish"],
    "hidden_activation": ["gelu", "relu", "gelu_new", "silu"],
    "original_max_position_embeddings": [8, 64], "quantization_config": [{"bits": 4}],
    "query_pre_attn_scalar": [9], "attn_logit_softcapping": [2.0],
    "final_logit_softcapping": [2.0], "qk_layernorm": [True],
}  # fmt: skip
"""Values that fields of any family may have, whether its class reads them or not."""
WINDOWED = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama biased": ("Llama", {"attention_bias": True, "mlp_bias": True,
                               "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "qwen2": ("Qwen2", {}),
    "qwen2 windowed": ("Qwen2", WINDOWED),
    "qwen3": ("Qwen3", {"head_dim": 32, "attention_bias": True}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 20}),
    "gemma3": ("Gemma3Text", {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 4}),
    "phi3": ("Phi3", {"sliding_window": 5}),
    "phi3 long": ("Phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LISTS},
                           "original_max_position_embeddings": 64}),
    "smollm3": ("SmolLM3", {}),
    "smollm3 windowed": ("SmolLM3", {**WINDOWED, "no_rope_layers": [0, 1, 0, 1]}),
}  # fmt: skip
MISSING = object()


def saved(name: str, more: dict[str, Any], folder: Path) -> Path:
    """A model of random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    for key, value in model.named_parameters():
        if "norm" in key or key.endswith("bias"):
            value.data += torch.randn_like(value) / 8
    model.save_pretrained(folder)
    return folder


def changes(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each field of a configuration with other values, and those of other families."""
    for key, value in config.items():
        if key not in ("model_type", "transformers_version", "architectures"):
            yield key, MISSING
            yield from ((key, other) for other in others(value))
    yield from ((key, value) for key, values in OTHERS.items() for value in values)


def others(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value, None]
        case int():
            return [value * 2, value + 1, None]
        case float():
            return [value * 2 + 0.5, None]
        case list():
            return [value[::-1], None]
        case _:
            return [None]


def exact(folder: Path) -> Any:
    """Logits of transformers; None, where it refuses the configuration, and no number where it
    lacks weights, which it draws then."""
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    except Exception:  # whatever a field breaks there
        return None
    if report["missing_keys"] or report["mismatched_keys"]:
        return np.full((1, 1), np.nan)
    with torch.no_grad():
        try:
            return model(torch.tensor([TOKENS])).logits[0].numpy()
        except Exception:
            return None


def same_program(a: Any, b: Any) -> bool:
    """The same graph with the same weights?"""
    if str(a.module) != str(b.module):
        return False
    return all(np.array_equal(a.params[n], b.params[n]) for n in a.params)


@pytest.mark.parametrize("case", FAMILIES)
def test_a_field_is_read_or_refused(case: str, tmp_path: Path) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = saved(*FAMILIES[case], tmp_path / "model")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    base, wanted = load(folder), exact(folder)
    base_logits = logits_of(base, TOKENS)
    assert far(base_logits, wanted) <= TOLERANCE
    wrong: list[str] = []
    counts = {"equal": 0, "refused": 0}
    seed = list(FAMILIES).index(case)
    for key, value in sample(list(changes(config)), 5, seed % 5):
        changed = {k: v for k, v in config.items() if k != key}
        path.write_text(json.dumps(changed if value is MISSING else {**changed, key: value}))
        stated = f"{key}={'absent' if value is MISSING else value}"
        try:
            model = load(folder)
        except rlx.Error:
            counts["refused"] += 1
            continue
        theirs = exact(folder)
        if theirs is None:
            continue
        made = base_logits if same_program(model, base) else logits_of(model, TOKENS)
        counts["equal"] += 1
        if not far(made, theirs) <= TOLERANCE:
            wrong.append(f"{stated}: {far(made, theirs):.1e}")
    assert not wrong, "\n".join(wrong)
    assert min(counts.values()) > 5


def far(made: Any, wanted: Any) -> float:
    return float(np.abs(made - wanted).max() / np.abs(wanted).max())
