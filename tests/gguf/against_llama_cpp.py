"""The evaluation that decoders are tested against, compared with llama.cpp: `python -m
tests.gguf.against_llama_cpp`. Needs llama-cpp-python, which `make test` does not.

Each architecture with each of its variants is written with f32 weights and read by both.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.gguf import files, vocabularies
from tests.gguf.evaluate import Evaluator
from tests.gguf.test_decoder import CASES

TOKENS = [1, 14, 215, 9, 26, 5, 135, 8, 9, 7, 9, 32, 280, 77, 3]
HEAD_DIM = files.WIDTH // files.HEADS
"""llama.cpp wants heads of this depth in qwen2 and phi3."""
CONTEXT = 256
"""llama.cpp's least."""
SILU, GELU = 5e-6, 1e-3
"""Of the greatest logit. Sums of f32, and angles that are multiplied up in f32; llama.cpp's GELU is
a table of f16."""


def theirs(path: Path, context: int) -> Any:
    """llama.cpp's logits behind each token, its caches in f32."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    model = llama_cpp.Llama(
        str(path), n_ctx=context, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0
    )
    model.eval(TOKENS)
    return np.array(model.scores[: len(TOKENS)], np.float64)


def compared(name: str, stated: dict[str, Any], path: Path) -> bool:
    """Is the difference what arithmetic explains? Printed either way."""
    more = {**stated, "float": True}
    if "rope.dimension_count" in more:
        more["rope.dimension_count"] = 12
    files.write(
        path, name, words=len(vocabularies.pieces()[0]), head_dim=HEAD_DIM,
        context=CONTEXT,        vocabulary=vocabularies.add_pieces, **more,
    )  # fmt: skip
    exact = Evaluator(path).logits(TOKENS)
    far = np.abs(exact - theirs(path, CONTEXT)).max() / np.abs(exact).max()
    print(f"{far:.1e}  {name} {' '.join(f'{k}={v}' for k, v in stated.items())}")
    return bool(far <= (GELU if name.startswith("gemma") else SILU))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        cases = [c for c in CASES if "attention.sliding_window" not in c[1] or c[0] != "llama"]
        right = [compared(*case, Path(folder, f"{n}.gguf")) for n, case in enumerate(cases)]
    left_out = len(CASES) - len(cases)
    print(f"{sum(right)} of {len(right)} variants equal; {left_out} that llama.cpp does not read")
    return not all(right)


if __name__ == "__main__":
    sys.exit(main())
