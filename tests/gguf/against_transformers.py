"""Folders of safetensors against transformers: `python -m tests.gguf.against_transformers`. Needs
torch and transformers, which `make test` does not.

A small random model of each family is saved by transformers and read by rlx.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlx.frontends.gguf.model import load
from tests.gguf.test_folder import logits_of

TOKENS = [1, 14, 215, 9, 26, 5, 135, 8, 9, 7, 9, 32, 280, 77, 3]
CONTEXT = 64
"""Transformers chooses factors of longrope by the length of a call, rlx by the context."""
TOLERANCE = 2e-5
"""Of the greatest logit: sums of f32."""
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope", "long_factor": [1.5, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0, 8.0],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"rope_scaling": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    ("Llama", {"rope_scaling": YARN, "tie_word_embeddings": True}),
    ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "head_dim": 32}),
    ("Mistral", {"sliding_window": 4}),
    ("Qwen2", {}),
    ("Qwen3", {"head_dim": 32}),
    ("Gemma", {"head_dim": 32}),
    ("Gemma2", {"head_dim": 32, "sliding_window": 4, "query_pre_attn_scalar": 16}),
    (
        "Gemma3Text",
        {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 4, "query_pre_attn_scalar": 32},
    ),
    ("Phi3", {}),
    ("Phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 64}),
    ("SmolLM3", {}),
]


def compared(family: str, more: dict[str, Any], folder: Path) -> bool:
    """Is the difference what f32 explains? Printed either way."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **more})
    name = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    config._attn_implementation = "eager"
    model = getattr(transformers, name)(config).eval()
    for key, value in model.named_parameters():
        if "norm" in key:
            value.data += torch.randn_like(value) / 8
    model.save_pretrained(folder)
    with torch.no_grad():
        exact = model(torch.tensor([TOKENS])).logits[0].numpy()
    made = logits_of(load(folder, CONTEXT), TOKENS)
    far = np.abs(made - exact).max() / np.abs(exact).max()
    print(f"{far:.1e}  {family} {' '.join(f'{k}={v}' for k, v in more.items())}", flush=True)
    return bool(far <= TOLERANCE)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        right = [compared(*case, Path(folder, str(n))) for n, case in enumerate(CASES)]
    print(f"{sum(right)} of {len(right)} models equal")
    return not all(right)


if __name__ == "__main__":
    sys.exit(main())
