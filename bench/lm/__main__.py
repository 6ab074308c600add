"""Tokens a second of `.gguf` files in turns with the peers that are installed, llama.cpp and
openvino-genai: `python -m bench.lm FILE.gguf -p 128 -n 64 --save`.

Each runner loads the file in a process of its own that is stopped unless it is its turn; in every
round each computes every workload. A ratio is the median over rounds of that within a round.
`--save` puts the rows into bench/results/lm.json in place of those of the same file, workload and
number of threads, and writes the page, bench/results/lm.md.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import results_file
from bench.alone import now
from bench.conductor import READY_SECONDS, Failed, Plan, Worker
from bench.lm import page
from bench.lm.runners import RUNNERS, installed, version
from bench.lm.worker import written
from bench.machine import description
from rlx.lm.bench import Workload, workloads_of

Row = dict[str, Any]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.lm", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-p", "--prompt", type=numbers, default=[128])
    parser.add_argument("-n", "--decode", type=numbers, default=[64])
    parser.add_argument("-d", "--depth", type=numbers, default=[0])
    parser.add_argument("-b", "--batch", type=numbers, default=[1])
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(RUNNERS), help="those that take part")
    parser.add_argument("--save", action="store_true", help="keep the rows, and write the page")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def measure(path: Path, tests: Sequence[Workload], names: Sequence[str], plan: Plan) -> list[Row]:
    """The rates of a file, one row for each workload."""
    rates: dict[Workload, dict[str, list[float]]] = {t: {} for t in tests}
    with ExitStack() as stack:
        running = {name: _started(name, path, tests, plan, stack) for name in names}
        for _ in range(plan.rounds):
            for test in tests:
                for name, worker in running.items():
                    rates[test].setdefault(name, []).append(_rate(worker, test))
    return [_row(path, test, plan.threads, found) for test, found in rates.items()]


def _started(
    name: str, path: Path, tests: Sequence[Workload], plan: Plan, stack: ExitStack
) -> Worker:
    worker = Worker("bench.lm.worker", (name, ";".join([str(path), *map(written, tests)])), plan)
    stack.callback(worker.end)
    try:
        worker.heard(READY_SECONDS)
    except Failed as error:
        raise SystemExit(f"{name} cannot load {path.name}: {error}") from None
    worker.signal(signal.SIGSTOP)
    return worker


def _rate(worker: Worker, test: Workload) -> float:
    try:
        return worker.answer(written(test))["rate"]
    except Failed as error:
        raise SystemExit(f"{test.name}: {error}") from None


def _row(path: Path, test: Workload, threads: int, rates: dict[str, list[float]]) -> Row:
    peers = [name for name in rates if name != "rlx"]
    return {
        "file": path.name, "test": test.name, "threads": threads, "measured": now(),
        "rates": {name: statistics.median(found) for name, found in rates.items()},
        "ratios": {name: _ratio(rates["rlx"], rates[name]) for name in peers},
    }  # fmt: skip


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def told(row: Row) -> str:
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in row["rates"].items())
    ratios = ", ".join(f"{r:.2f} of {name}" for name, r in row["ratios"].items())
    return f"{row['file']} {row['test']}, {row['threads']} threads: {rates} tokens/s; {ratios}"


def save(rows: Sequence[Row], names: Sequence[str]) -> None:
    before: dict[str, Any] = results_file.load("lm") or {"rows": []}
    replaced = {page.key(row) for row in rows}
    left = [row for row in before["rows"] if page.key(row) not in replaced]
    versions = {**before.get("versions", {}), **{name: version(name) for name in names}}
    made = {**before, "machine": description(), "versions": versions, "rows": [*left, *rows]}
    results_file.save("lm", made)
    page.write()


def main() -> int:
    asked = options()
    names = [name for name in asked.peers.split(",") if installed(name)]
    tests = workloads_of(asked.prompt, asked.decode, asked.depth, asked.batch)
    for path in asked.files:
        for threads in asked.threads:
            rows = measure(path, tests, names, Plan(rounds=asked.rounds, threads=threads))
            print("\n".join(map(told, rows)), flush=True)
            if asked.save:
                save(rows, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
