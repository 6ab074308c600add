"""Is the gate right? Its verdicts on real models, reversed and timed: `python -m bench.gate`.

Prices are measured first, unless they are cached. Every reversible decision is reversed,
equivalent ones at once, and both builds are timed in interleaved rounds. Numbers go to
bench/results/gate.json.
"""

from __future__ import annotations

import argparse
import datetime
import re
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench import cache, prepare, results_file
from bench.machine import description
from bench.workloads import WORKLOADS
from rlx.core.disk_cache import Cache
from rlx.cost.calibrate import cached_calibration
from rlx.explain.measure_decisions import LEAST_SHARE, Measurement, summary
from rlx.explain.measured import Measured
from rlx.runtime.calibrate import calibrate
from rlx.runtime.session import Session
from tests.onnx.zoo import FOLDER, ZOO, fetched

MODELS = ("minilm_l3", "ppocr4_rec", "eeg_spindle", "resnet18")
RESNET = "E_resnet18"

MEASURED, REFUSALS, LARGE, RIGHT = 60, 20, 15, 0.8
RATIO = (0.5, 2.0)
"""What must hold: counts, the share of right signs, and the median of predicted / measured."""


def model_of(name: str, folder: Path) -> tuple[Path, Mapping[str, Any] | None]:
    """The file of a model, and its inputs by name; None where the file's own sizes will do."""
    if name == "resnet18":
        workload = WORKLOADS[RESNET]()
        path = prepare.path_of(workload)
        if not path.exists():
            prepare.export(workload)
        return path, None
    rng = np.random.default_rng(0)
    return fetched(name, folder), {k: make(rng) for k, make in ZOO[name].inputs.items()}


def measured(name: str, asked: argparse.Namespace, kept: Cache) -> Measurement:
    """The measured decisions of one model."""
    path, inputs = model_of(name, asked.folder)
    exe = Session("cpu", threads=asked.threads, cache=kept).compile(rlx.load(path))
    if inputs is None:
        inputs = dict(zip(exe.inputs, WORKLOADS[RESNET]().inputs))
    found = exe.measure(inputs, most=asked.most, seconds=asked.seconds, progress=_tell(name))
    return replace(found, name=name)


def _tell(name: str) -> Any:
    def tell(done: int, total: int, what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{name}: {done}/{total} {what}", end="", file=sys.stderr, flush=True)

    return tell


def judged(found: list[Measurement]) -> list[tuple[str, bool]]:
    """What must hold, and whether it does."""
    every = [m for each in found for m in each.measured]
    large = [m for m in every if m.share >= LEAST_SHARE]
    right = sum(m.is_right for m in large) / len(large) if large else 0.0
    ratio = median_ratio(large)
    refusals = sum(not m.verdict for m in every)
    return [
        (f"{len(every)} candidates measured, of at least {MEASURED}", len(every) >= MEASURED),
        (f"{refusals} of them refusals, of at least {REFUSALS}", refusals >= REFUSALS),
        (
            f"{len(large)} over {LEAST_SHARE:.0%} of a call, of at least {LARGE}",
            len(large) >= LARGE,
        ),
        (f"{right:.0%} of those of the right sign, of at least {RIGHT:.0%}", right >= RIGHT),
        (
            f"median predicted/measured of those {ratio:.2f}, from {RATIO[0]} to {RATIO[1]}",
            RATIO[0] <= ratio <= RATIO[1],
        ),
    ]


def sorts(found: list[Measurement]) -> str:
    """Which decisions matter: how many of each sort are over the least share, and right."""
    large = [m for each in found for m in each.measured if m.share >= LEAST_SHARE]
    every, right = Counter(m.what for m in large), Counter(m.what for m in large if m.is_right)
    return ", ".join(f"{what} {right[what]} of {n}" for what, n in every.most_common())


def median_ratio(large: list[Measured]) -> float:
    ratios = [m.ratio for m in large if m.ratio is not None]
    return statistics.median(ratios) if ratios else 0.0


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.gate", description=__doc__)
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of ONNX files ({FOLDER})")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=int, default=40, help="classes of decisions of each model")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each pair of builds")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    asked = parser.parse_args()
    kept = Cache(cache.ROOT / "gate")
    backend = Session("cpu", threads=asked.threads, cache=kept).backend
    if cached_calibration("cpu", backend.architecture, kept) is None:
        print(calibrate("cpu", cache=kept, progress=_tell("calibrating")))
    found: list[Measurement] = []
    for name in (m for m in MODELS if re.search(asked.only, m)):
        found.append(measured(name, asked, kept))
        print(found[-1], flush=True)
    return concluded(found, asked)


def concluded(found: list[Measurement], asked: argparse.Namespace) -> int:
    """Say what holds; 0 if all of it does."""
    lines = judged(found)
    print(summary(found))
    print(f"of the right sign, over {LEAST_SHARE:.0%}: {sorts(found)}")
    for text, holds in lines:
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    if not asked.dry and not asked.only:
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        results_file.save("gate", {
            "date": today, "machine": description(), "threads": asked.threads,
            "summary": summary(found), "sorts": sorts(found), "checks": [[t, h] for t, h in lines],
            "models": [m.as_dict() for m in found],
        })  # fmt: skip
    return 0 if all(h for _, h in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
