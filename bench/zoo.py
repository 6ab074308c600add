"""Real models on rlx and on onnxruntime, in turns: `python -m bench.zoo [--only NAME]`.

Each runtime has a process of its own that is stopped while the other runs. rlx compiles once with
an empty cache and once more, in a fresh process, from what the first left there; both
count up to the first result, less what a call takes. Numbers go to
bench/results/zoo.json and to the page.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
import signal
import statistics
import tempfile
from compileall import compile_dir
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rlx
from bench import page, results_file
from bench.conductor import READY_SECONDS, Failed, Plan, Progress, Worker
from bench.machine import QUIET, await_quiet, description
from bench.table import duration, ratio
from tests.onnx.zoo import FOLDER, ZOO, fetched

MODULE, OURS, THEIRS = "bench.zoo_worker", "rlx", "onnxruntime"


def measure(name: str, folder: Path, plan: Plan) -> dict[str, Any]:
    """Both runtimes on one model: medians, their ratio, and what compiling took."""
    path = str(fetched(name, folder))
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        cold = _started(OURS, path, plan, stack, cache)
        cold[0].end()  # or its memory would be in the way of the next
        cached = _started(OURS, path, plan, stack, cache)
        other = _started(THEIRS, path, plan, stack, cache)
        turns: dict[str, list[list[float]]] = {OURS: [], THEIRS: []}
        idle: list[float] = []
        for i in range(plan.rounds):
            idle.append(await_quiet(plan.patience))
            pair = [(OURS, cached[0]), (THEIRS, other[0])]
            for who, worker in pair if i % 2 else reversed(pair):
                turns[who].append(worker.turn(plan.seconds))
    return {
        "name": name,
        "rlx_us": _median(turns[OURS]),
        "onnxruntime_us": _median(turns[THEIRS]),
        "ratio": ratio(turns[OURS], turns[THEIRS]),
        "cold_s": cold[1]["setup_s"],
        "cached_s": cached[1]["setup_s"],
        "onnxruntime_setup_s": other[1]["setup_s"],
        "peak_mb": cached[1]["peak_mb"],
        "onnxruntime_peak_mb": other[1]["peak_mb"],
        "is_noisy": statistics.median(idle) < QUIET,
    }


def _started(
    who: str, path: str, plan: Plan, stack: ExitStack, cache: str
) -> tuple[Worker, dict[str, Any]]:
    worker = Worker(MODULE, (who, path), plan, RLX_CACHE="on", RLX_CACHE_DIR=cache)
    stack.callback(worker.end)
    said = worker.heard(READY_SECONDS)
    worker.signal(signal.SIGSTOP)
    return worker, said


def _median(turns: list[list[float]]) -> float:
    return statistics.median(ns / 1e3 for turn in turns for ns in turn)


def summary(rows: list[dict[str, Any]]) -> str:
    ratios = [r["ratio"] for r in rows]
    mean = math.exp(statistics.fmean(math.log(x) for x in ratios))
    worst = max(rows, key=lambda r: r["ratio"])
    slow = max(rows, key=lambda r: r["cold_s"])
    late = max(rows, key=lambda r: r["cached_s"])
    return (
        f"{len(rows)} models: geometric mean of rlx / onnxruntime {mean:.2f}, worst "
        f"{worst['ratio']:.2f} ({worst['name']}); slowest to compile {slow['cold_s']:.1f} s "
        f"({slow['name']}), from the cache {late['cached_s'] * 1e3:.0f} ms ({late['name']})"
    )


def shown(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:18} {duration(row['rlx_us']):>9} {duration(row['onnxruntime_us']):>9}  "
        f"{row['ratio']:5.2f}  {row['cold_s']:5.2f} s {row['cached_s'] * 1e3:6.0f} ms"
        f"{'  noisy' if row['is_noisy'] else ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.zoo", description=__doc__)
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of files ({FOLDER})")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="cpu", help="what rlx compiles for")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for quiet")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    asked = parser.parse_args()
    plan = Plan(asked.rounds, asked.seconds, asked.threads, asked.target, asked.patience)
    compile_dir(Path(rlx.__file__).parent, quiet=2)  # as pip does when it installs
    names = [n for n in ZOO if re.search(asked.only, n)]
    progress, rows, failed = Progress(len(names)), list[dict[str, Any]](), 0
    print(f"{'model':18} {'rlx':>9} {'ort':>9}  ratio     cold    cached")
    for name in names:
        progress.tell(name)
        try:
            rows.append(measure(name, asked.folder, plan))
        except Failed as error:
            failed += 1
            print(f"{name:18} {error}", flush=True)
            continue
        progress.clear()
        print(shown(rows[-1]), flush=True)
    print(summary(rows) if rows else "nothing measured")
    if rows and not asked.dry and not asked.only:
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        made = {"date": today, "machine": description(), "threads": plan.threads, "rows": rows}
        results_file.save("zoo", {**made, "summary": summary(rows)})
        page.write()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
