"""`python -m bench.web [names]`: workloads in headless Chromium, rlx in turns with onnxruntime-web.

Engines of a kind, WebGPU or WebAssembly with one thread, are called in turns. WebGPU runs on the
browser's driver in software, unless --gpu is given. A call is from typed arrays
to typed arrays; the median is kept. Results are compared with those in double precision, and what
each engine asks of WebGPU is counted. Numbers go to bench/results/web.json, the page to web.md.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import cache, page, results_file
from bench.web.peers import PEER, page_folder, peer_folder
from bench.workload import Array, Workload
from bench.workloads import WORKLOADS, chosen
from demo.web.server import served
from rlx.core.dtype import DType
from tests.browser.driver import WEBGPU, Browser, browser

USUAL = "A_mlp,C_1x16,C_1x128,F_logmel"
KINDS = {"webgpu": 1, "wasm": 5}
"""How many rounds of each there are for one that is asked for: calls of WebAssembly are shorter
than those of WebGPU in software."""
SCRIPT = "const { bench } = await import('/bench.js'); return bench(...given);"


def main() -> None:
    asked = _arguments()
    workloads = [WORKLOADS[name]() for name in chosen(asked.names)]
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as root:
        page_folder(Path(root), workloads, peer_folder(asked.ort))
        flags = ("--enable-unsafe-webgpu",) if asked.gpu else WEBGPU
        with served(Path(root)) as address, browser(flags=flags) as window:
            for workload in workloads:
                window.open(address)
                for kind in asked.kinds.split(","):
                    rounds = asked.rounds * KINDS[kind]
                    made = list(_rows(workload, _measured(window, kind, workload, rounds)))
                    print("\n".join(map(str, made)), flush=True)
                    rows += made
            agent = window.run(AGENT)
    if asked.is_saved:
        about = {"date": datetime.date.today().isoformat(), "peer": PEER, "browser": agent}
        results_file.save("web", {**about, "rows": _merged(rows)})
        page.write()


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With those of before that were not measured anew."""
    old = (results_file.load("web") or {}).get("rows", [])
    every = {(r["workload"], r["engine"]): r for r in (*old, *rows)}
    return [every[key] for key in sorted(every, key=_order)]


def _order(key: tuple[str, str]) -> tuple[int, int, str]:
    """By workload and kind; rlx before its peer."""
    workload, engine = key
    ours, kind = engine.split("-")
    return list(WORKLOADS).index(workload), list(KINDS).index(kind), "" if ours == "rlx" else ours


AGENT = "return navigator.userAgent.match(/Chrome.[0-9]+/)[0]"


def _arguments() -> Any:
    parser = argparse.ArgumentParser("python -m bench.web", description=__doc__)
    parser.add_argument("names", nargs="?", default=USUAL, help="as python -m bench takes them")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kinds", default=",".join(KINDS), help="webgpu, wasm, or both")
    parser.add_argument("--no-page", dest="is_saved", action="store_false", help="print, no more")
    parser.add_argument("--gpu", action="store_true", help="the adapter that Chromium finds")
    parser.add_argument("--ort", type=Path, help="the dist folder of onnxruntime-web")
    return parser.parse_args()


def _measured(window: Browser, kind: str, workload: Workload, rounds: int) -> Mapping[str, Any]:
    given = list(map(_sent, workload.inputs))
    found = window.wait(SCRIPT, kind, workload.name, given, rounds, timeout_s=550)
    want = cache.exact(workload)[0].reshape(-1)
    for engine in found.values():
        if "made" in engine:
            engine["off_by"] = float(np.abs(np.array(engine["made"]) - want).max())
    return found


def _sent(array: Array) -> list[Any]:
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [DType.of(array.dtype).value, list(array.shape), raw]


def _rows(workload: Workload, found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is kept of each engine; load is all until the first result is there."""
    for name, engine in sorted(found.items(), key=lambda item: "rlx" not in item[0]):
        row = {"workload": workload.name, "about": workload.about, "engine": name}
        if "error" in engine:
            yield {**row, "error": engine["error"]}
            continue
        load = (engine["loadMs"] + engine["firstMs"]) / 1e3
        kept = {k: engine[k] for k in ("off_by", "modules", "launches")}
        yield {**row, "ms": statistics.median(engine["times"]), "load_s": load, **kept}


if __name__ == "__main__":
    main()
