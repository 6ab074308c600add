"""`python -m bench.web [names]`: workloads in headless Chromium, rlx in turns with onnxruntime-web.

WebGPU runs on the browser's driver in software, unless --gpu is given. A call is from typed arrays
to typed arrays; what is shown is the median. Results are compared with those in double precision.
"""

from __future__ import annotations

import argparse
import base64
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import cache
from bench.web.peers import page_folder, peer_folder
from bench.workload import Array, Workload
from bench.workloads import WORKLOADS, chosen
from demo.web.server import served
from rlx.core.dtype import DType
from tests.browser.driver import WEBGPU, Browser, browser

USUAL = "C_1x16,C_1x128,F_logmel"
SCRIPT = "const { bench } = await import('/bench.js'); return bench(...given);"
HEAD = ("workload", "rlx", "ort webgpu", "ratio", "ort wasm", "rlx load", "ort load", "kernels")


def main() -> None:
    asked = _arguments()
    workloads = [WORKLOADS[name]() for name in chosen(asked.names)]
    with tempfile.TemporaryDirectory() as root:
        page_folder(Path(root), workloads, peer_folder(asked.ort))
        flags = ("--enable-unsafe-webgpu",) if asked.gpu else WEBGPU
        with served(Path(root)) as address, browser(flags=flags) as window:
            print(" | ".join(HEAD))
            for workload in workloads:
                window.open(address)
                print(_line(workload, _measured(window, workload, asked.rounds)), flush=True)


def _arguments() -> Any:
    parser = argparse.ArgumentParser("python -m bench.web", description=__doc__)
    parser.add_argument("names", nargs="?", default=USUAL, help="as python -m bench takes them")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gpu", action="store_true", help="the adapter that Chromium finds")
    parser.add_argument("--ort", type=Path, help="the dist folder of onnxruntime-web")
    return parser.parse_args()


def _measured(window: Browser, workload: Workload, rounds: int) -> Mapping[str, Any]:
    given = list(map(_sent, workload.inputs))
    found = window.wait(SCRIPT, workload.name, given, rounds, timeout_s=550)
    want = cache.exact(workload)[0].reshape(-1)
    for engine in found.values():
        if "made" in engine:
            engine["off_by"] = float(np.abs(np.array(engine["made"]) - want).max())
    return found


def _sent(array: Array) -> list[Any]:
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [DType.of(array.dtype).value, list(array.shape), raw]


def _line(workload: Workload, found: Mapping[str, Any]) -> str:
    ours, peer, wasm = (found[k] for k in ("rlx", "ort-webgpu", "ort-wasm"))
    is_whole = ours.get("times") and peer.get("times")
    ratio = f"{_median(ours) / _median(peer):.2f}" if is_whole else "-"
    return " | ".join(
        (
            workload.name, _time(ours), _time(peer), ratio, _time(wasm), _load(ours), _load(peer),
            str(ours.get("kernels", "-")),
        )
    )  # fmt: skip


def _median(engine: Mapping[str, Any]) -> float:
    return statistics.median(engine["times"])


def _time(engine: Mapping[str, Any]) -> str:
    """The median, and how far the result is from the one in double precision."""
    if "error" in engine:
        return engine["error"]
    return f"{_median(engine):.1f} ms (off by {engine['off_by']:.0e})"


def _load(engine: Mapping[str, Any]) -> str:
    """Until the first result is there."""
    if "loadMs" not in engine:
        return "-"
    return f"{(engine['loadMs'] + engine['firstMs']) / 1e3:.1f} s"


if __name__ == "__main__":
    main()
