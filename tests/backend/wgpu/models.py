"""Published models by WebGPU against native code: `python -m tests.backend.wgpu.models`.

    --adapter lavapipe | swiftshader | N    as of `tests.backend.wgpu.all`
    --only RE                               models whose names this expression finds

Both compute in f32 and add in unlike orders: outputs may differ by a part of the largest element of
each, which is stated for every model. Files are those of `tests.onnx.zoo` (RLX_ZOO names their
folder), MiniLM-L6 and the spectra those of the benchmarks.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from tests.backend.wgpu.drivers import choose, why_not
from tests.onnx.zoo import FOLDER, ZOO, fetched

Array = np.ndarray[Any, Any]
Case = tuple[Any, Mapping[str, Array] | Sequence[Array], dict[str, Any]]
"""A model, its inputs by name or in order, and options of its compile."""
ROUNDINGS = 2e-4
"""Of the largest element: what some dozen layers make of other orders of sums."""
CALLS = 4
"""The third and later ones replay what was recorded."""


@dataclass(frozen=True, slots=True)
class Model:
    make: Callable[[], Case]
    tolerance: float = ROUNDINGS


def of_zoo(name: str) -> Case:
    rng = np.random.default_rng(0)
    made = {key: make(rng) for key, make in ZOO[name].inputs.items()}
    model = rlx.load(fetched(name, FOLDER))
    return model, made, {}


def of_workload(make: Callable[[], Any]) -> Case:
    made = make()
    given = made.rlx_params()
    return made.model(given), made.inputs, {"params": given}


def minilm(batch: int, length: int) -> Case:
    from bench.workloads import minilm as family
    from bench.workloads import minilm_params

    return of_workload(lambda: family.minilm(batch, length, minilm_params()))


def spectrum(name: str) -> Case:
    from bench.workloads import spectral

    return of_workload(getattr(spectral, name))


MODELS: dict[str, Model] = {
    "minilm_l6 1x16": Model(lambda: minilm(1, 16)),
    "minilm_l6 1x128": Model(lambda: minilm(1, 128)),
    **{
        name: Model(lambda n=name: of_zoo(n))
        for name in (
            "minilm_l3", "silero_vad", "ppocr4_rec", "ppocr4_det", "nudenet_320n", "eeg_spindle",
        )
    },
    "log_mel": Model(lambda: spectrum("logmel")),
    "welch": Model(lambda: spectrum("welch")),
}  # fmt: skip


def differences(got: Any, wanted: Any) -> float:
    """The largest difference as a part of the largest element, of all outputs."""
    worst = 0.0
    for a, b in zip(_all(got), _all(wanted), strict=True):
        assert a.shape == b.shape, f"{a.shape}, not {b.shape}"
        if a.size:
            most = max(float(np.abs(b.astype(np.float64)).max()), 1e-30)
            worst = max(worst, float(np.abs(a.astype(np.float64) - b).max()) / most)
            worst = float("inf") if np.isnan(a).any() != np.isnan(b).any() else worst
    return worst


def _all(outputs: Any) -> tuple[Array, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def run(name: str, model: Model, target: str) -> bool:
    source, inputs, options = model.make()
    start = time.perf_counter()
    exe = rlx.compile(source, target=target, **options)
    compiled = time.perf_counter() - start
    given = [inputs[n] for n in exe.inputs] if isinstance(inputs, Mapping) else list(inputs)
    start = time.perf_counter()
    got = exe(*given)
    first = time.perf_counter() - start
    wanted = rlx.compile(source, target="cpu", **options)(*given)
    worst, times = differences(got, wanted), list[float]()
    for _ in range(CALLS):
        start = time.perf_counter()
        got = exe(*given)
        times.append(time.perf_counter() - start)
        worst = max(worst, differences(got, wanted))
    is_right = worst <= model.tolerance
    print(
        f"{name}: {worst:.1e} of at most {model.tolerance:g}, compiled in {compiled:.1f} s, first "
        f"call {first * 1e3:.0f} ms, later {min(times) * 1e3:.1f} ms{'' if is_right else ' WRONG'}",
        flush=True,
    )
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", default="lavapipe")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if missing := why_not(args.adapter):
        print(missing, file=sys.stderr)
        return 2
    target, wrong = choose(args.adapter), 0
    os.environ.setdefault("RLX_CACHE", "off")
    for name, model in MODELS.items():
        if re.search(args.only, name):
            try:
                wrong += not run(name, model, target)
            except rlx.Error as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
