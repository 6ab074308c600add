"""Predictions of published files: `python -m bench.lm.predictions FILE.gguf ... --save`.

The logits of a text are computed in double precision from what the package gguf reads, by rlx in
f32 ("exact") and with int8 activations ("file"), and by llama.cpp where it is installed. Compared
are the greatest difference of "exact", to the greatest logit, and mean KL divergences from double
precision. Exit 1 where "exact" is further off than f32 sums explain, or "file" is further than
llama.cpp by more than two standard errors of the difference.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench import results_file
from bench.lm import page
from bench.lm.runners import installed
from tests.gguf.evaluate import Evaluator

ROOT = Path(__file__).parents[2]
TEXTS = (ROOT / "README.md", ROOT / "tests" / "gguf" / "evaluate.py")
"""English, and code."""
EXACT = 1e-3
"""Of the greatest logit, for some 30 layers of sums in f32."""

Array = np.ndarray[Any, Any]


def ours(path: Path, ids: list[int], precision: str) -> Array:
    lm = rlx.lm.load(path, precision=precision, context=len(ids) + 1, slots=1)
    made: list[Array] = []
    lm.engine.logits(ids, lambda rows: made.append(rows.copy()))
    return np.concatenate(made)


def theirs(path: Path, ids: list[int]) -> Array:
    """llama.cpp's logits, in its own defaults."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    context = max(256, len(ids))
    model = llama_cpp.Llama(str(path), n_ctx=context, logits_all=True, verbose=False, n_threads=2)
    model.eval(ids)
    return np.array(model.scores[: len(ids)])


def log_softmax(rows: Array) -> Array:
    shifted = rows.astype(np.float64) - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergences(p: Array, logits: Array) -> Array:
    """KL(p ‖ q) of each row, p given by its logarithms."""
    return (np.exp(p) * (p - log_softmax(logits))).sum(-1)


def mean_and_error(found: Array) -> tuple[float, float]:
    return float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found)))


def compared(path: Path, count: int) -> tuple[dict[str, Any], bool]:
    """A file's row, and whether it is as good as it should be."""
    tokenizer = rlx.lm.load(path, context=64, slots=1).tokenizer
    parts = [tokenizer.encode(file.read_text())[: count // len(TEXTS)] for file in TEXTS]
    ids = [token for part in parts for token in part]
    expected = Evaluator(path).logits(ids)
    p = log_softmax(expected)
    far = float(np.abs(ours(path, ids, "exact") - expected).max() / np.abs(expected).max())
    del expected
    gc.collect()
    found = [divergences(p, ours(path, ids, "file"))]
    gc.collect()
    found += [divergences(p, theirs(path, ids))] if installed("llama.cpp") else []
    kl = [mean_and_error(each) for each in found]
    return {"file": path.name, "tokens": len(ids), "exact": far, "kl": kl}, far <= EXACT and (
        len(found) < 2 or _is_at_most(*found)
    )


def _is_at_most(mine: Array, other: Array) -> bool:
    """By the differences at the same tokens."""
    mean, error = mean_and_error(mine - other)
    return mean <= 2 * error


def save(row: dict[str, Any]) -> None:
    facts = results_file.load("lm")
    if facts is None:
        raise SystemExit("bench/results/lm.json has no rates yet: run python -m bench.lm --save.")
    left = [r for r in facts.get("predictions", ()) if r["file"] != row["file"]]
    results_file.save("lm", {**facts, "predictions": [*left, row]})
    page.write()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lm.predictions", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--save", action="store_true", help="keep the rows, and write the page")
    asked = parser.parse_args()
    holds = True
    for path in asked.files:
        row, is_right = compared(path, asked.tokens)
        kl = "; llama.cpp ".join(f"{mean:.2e} ± {error:.1e}" for mean, error in row["kl"])
        print(f"{path.name}, {row['tokens']} tokens: exact {row['exact']:.1e}, mean KL {kl}")
        holds &= is_right
        if asked.save:
            save(row)
    return not holds


if __name__ == "__main__":
    sys.exit(main())
