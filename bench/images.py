"""Detectors with a free height and width: one program against a static compile for each size.

`python -m bench.images`: YOLOv8n (nudenet) and PP-OCR detection at ten sizes of images, in turns
with programs that were compiled for that size alone, and checked against onnxruntime. Static
compiles are taken from the cache where they are there: the first run makes them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench.alone import Check, parser, report
from bench.peers.ours import options
from bench.table import ratio
from bench.worker import turn, warmed
from tests.onnx.zoo import FOLDER, compared, fetched

MODELS = ("nudenet_320n", "ppocr4_det")
SIZES = (
    (160, 160), (192, 320), (256, 256), (320, 320), (320, 480), (416, 416), (480, 640), (512, 288),
    (640, 480), (640, 640),
)  # fmt: skip
ROUNDS, SECONDS = 5, 0.12
Turns = dict[str, list[list[float]]]


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--folder", type=Path, default=FOLDER, help=f"of model files ({FOLDER})")
    asked = made.parse_args()
    how = options(asked.target, asked.threads)
    rows = [row for name in MODELS for row in measured(name, asked.folder, asked.target, how)]
    return report("images", rows, asked)


def measured(name: str, folder: Path, target: str, how: dict[str, Any]) -> list[Check]:
    path = fetched(name, folder)
    model: Any = rlx.load(path)
    exe = rlx.compile(model, target, **how)
    static = rlx.compile(model.by_shapes(), target, **how)
    rng, found, worst = np.random.default_rng(0), dict[tuple[int, int], Turns](), 0.0
    for size in SIZES:
        x = rng.uniform(0, 1, (1, 3, *size)).astype(np.float32)
        worst = max(worst, _error(exe, path, x))
        found[size] = _turns(exe, static, x)
    ratios = {s: ratio(t["free"], t["static"]) for s, t in found.items()}
    most = max(ratios, key=lambda s: ratios[s])
    shown = "×".join(map(str, most))
    times = [f"{_milliseconds(found[most][k]):.3g} ms {k}" for k in ("free", "static")]
    return [
        Check(f"{name} at ten sizes, programs", len(exe.programs), "", 1),
        Check(f"its time / static, worst ({shown}: {', '.join(times)})", ratios[most], "×", 1.10),
        Check("its time / static, median", statistics.median(ratios.values()), "×"),
        Check(
            "its largest difference from onnxruntime, of the largest output or 1", worst, "", 1e-4
        ),
    ]


def _error(exe: Any, path: Path, x: Any) -> float:
    """The largest difference from onnxruntime, of the largest output, or of 1."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(None, {session.get_inputs()[0].name: x})))
    wrong, most = compared(want, dict(zip(names, [exe(x)])))
    if wrong:
        raise SystemExit(f"{path.stem} at {x.shape}: {wrong}")
    return most / max(1.0, *(float(np.abs(a).max()) for a in want.values()))


def _turns(exe: Any, static: Any, x: Any) -> Turns:
    program, arrays = static.settled([x])
    calls = {"free": lambda: exe(x), "static": lambda: program(*arrays)}
    one = {k: warmed(call, SECONDS) for k, call in calls.items()}
    made: Turns = {k: [] for k in calls}
    for _ in range(ROUNDS):
        for k, call in calls.items():
            made[k].append(turn(call, SECONDS, one[k]))
    return made


def _milliseconds(turns: list[list[float]]) -> float:
    return statistics.median(ns for turn in turns for ns in turn) / 1e6


if __name__ == "__main__":
    sys.exit(main())
