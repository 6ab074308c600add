"""MiniLM-L6 with a named length against the executable made for 128 tokens, turn by turn."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import rlx
from bench import cache
from bench.alone import Check, parser, report
from bench.peers.ours import compiled, options
from bench.table import ratio
from bench.worker import turn, warmed
from bench.workload import errors
from bench.workloads import WORKLOADS, minilm

ROUNDS, SECONDS = 9, 0.3


def main() -> int:
    asked = parser(__doc__).parse_args()
    fixed = WORKLOADS["C_1x128"]()
    params = fixed.rlx_params()
    length = rlx.Dim("length", 1, minilm.MINILM.places)
    model = minilm.minilm_model(params, 1, length, minilm.MINILM)
    named = rlx.compile(model, asked.target, params=params, **options(asked.target, asked.threads))
    static = compiled(fixed, asked.target, asked.threads)
    worst = _worst_error(named, fixed)
    turns: dict[str, list[list[float]]] = {"named": [], "static": []}
    calls = {"named": lambda: named(*fixed.inputs), "static": lambda: static(*fixed.inputs)}
    one = {k: warmed(call) for k, call in calls.items()}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            turns[name].append(turn(call, SECONDS, one[name]))
    rows = [
        Check("MiniLM-L6 1×128, length named / static", ratio(*turns.values()), "×", 1.10),
        *(Check(f"its time, {k}", _milliseconds(v), "ms") for k, v in turns.items()),
        Check("its error at lengths 16 and 128", worst, "", fixed.tolerance),
    ]
    return report("dynamic", rows, asked)


def _worst_error(exe: Any, fixed: Any) -> float:
    """One executable answers rightly at both lengths."""
    both = (fixed, WORKLOADS["C_1x16"]())
    return max(errors((exe(*w.inputs),), cache.exact(w)) for w in both)


def _milliseconds(turns: list[list[float]]) -> float:
    return statistics.median(ns for turn in turns for ns in turn) / 1e6


if __name__ == "__main__":
    sys.exit(main())
