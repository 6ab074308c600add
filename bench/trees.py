"""Ensembles of trees on rlx and on onnxruntime, in turns: `python -m bench.trees [--only NAME]`.

Models are learnt by scikit-learn, XGBoost and LightGBM, once, and exported by their converters.
Each runtime has a process of its own that is stopped while the other runs; both get one thread,
then two. What they give for 1000 rows is compared with what the library does. Numbers go to
bench/results/trees.json and to the page.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
import signal
import statistics
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import page, results_file
from bench.conductor import READY_SECONDS, Failed, Plan, Progress, Worker
from bench.forests import FORESTS, NEEDS, made
from bench.machine import QUIET, await_quiet, description
from bench.table import duration, ratio

OURS, THEIRS = "rlx", "onnxruntime"
ROWS, THREADS = (1, 100, 1000), (1, 2)


def measure(name: str, rows: int, plan: Plan) -> dict[str, Any]:
    """Both runtimes on one model and so many rows."""
    path = made(name)
    with ExitStack() as stack:
        workers = {who: _started(who, path, rows, plan, stack) for who in (OURS, THEIRS)}
        turns: dict[str, list[list[float]]] = {OURS: [], THEIRS: []}
        idle: list[float] = []
        for i in range(plan.rounds):
            idle.append(await_quiet(plan.patience))
            for who in (OURS, THEIRS) if i % 2 else (THEIRS, OURS):
                turns[who].append(workers[who][0].turn(plan.seconds))
    ours, theirs = (workers[who][1] for who in (OURS, THEIRS))
    return {
        "name": name,
        "rows": rows,
        "threads": plan.threads,
        "rlx_us": _median(turns[OURS]),
        "onnxruntime_us": _median(turns[THEIRS]),
        "ratio": ratio(turns[OURS], turns[THEIRS]),
        "setup_s": ours["setup_s"],
        "onnxruntime_setup_s": theirs["setup_s"],
        "wrong": ours["wrong"],
        "error": ours["error"],
        "onnxruntime_error": theirs["error"],
        "is_noisy": statistics.median(idle) < QUIET,
    }


def _started(
    who: str, path: Path, rows: int, plan: Plan, stack: ExitStack
) -> tuple[Worker, dict[str, Any]]:
    worker = Worker("bench.trees_worker", (who, f"{path}:{rows}"), plan)
    stack.callback(worker.end)
    said = worker.heard(READY_SECONDS)
    worker.signal(signal.SIGSTOP)
    return worker, said


def _median(turns: list[list[float]]) -> float:
    return statistics.median(ns / 1e3 for turn in turns for ns in turn)


def summary(rows: list[dict[str, Any]]) -> str:
    mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in rows))
    worst = max(rows, key=lambda r: r["ratio"])
    wrong = sum(r["wrong"] for r in rows)
    return (
        f"Geometric mean of rlx / onnxruntime {mean:.2f}, worst {worst['ratio']:.2f} "
        f"({worst['name']}, {worst['rows']} rows, {worst['threads']} threads); labels that are "
        f"not the library's: {wrong}; greatest error of scores {max(r['error'] for r in rows):.0e}"
    )


def shown(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:24} {row['rows']:5} {row['threads']:7}  {duration(row['rlx_us']):>9} "
        f"{duration(row['onnxruntime_us']):>9}  {row['ratio']:5.2f}  {row['setup_s']:5.2f} s  "
        f"{row['error']:.0e} {row['onnxruntime_error']:.0e}"
        f"{'  noisy' if row['is_noisy'] else ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.trees", description=__doc__)
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn in a round")
    parser.add_argument("--patience", type=float, default=3, help="seconds to wait for quiet")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    asked = parser.parse_args()
    if missing := [n for n in (THEIRS, "skl2onnx", "xgboost", "lightgbm") if not find_spec(n)]:
        print(f"{', '.join(missing)} not installed: pip install onnxruntime {NEEDS}")
        return 2
    names = [n for n in FORESTS if re.search(asked.only, n)]
    cases = [(n, rows, threads) for n in names for rows in ROWS for threads in THREADS]
    progress, rows = Progress(len(cases)), list[dict[str, Any]]()
    print(f"{'model':24} {'rows':>5} threads  {'rlx':>9} {'ort':>9}  ratio    load    errors")
    for name, count, threads in cases:
        progress.tell(f"{name}, {count} rows")
        plan = Plan(asked.rounds, asked.seconds, threads, patience=asked.patience)
        try:
            rows.append(measure(name, count, plan))
        except Failed as error:
            print(f"{name:24} {error}", flush=True)
            return 1
        progress.clear()
        print(shown(rows[-1]), flush=True)
    print(summary(rows))
    if not asked.dry and not asked.only:
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        found = {"date": today, "machine": description(), "rows": rows, "summary": summary(rows)}
        results_file.save("trees", found)
        page.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
