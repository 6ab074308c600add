"""`python -m bench.webgpu [names]`: workloads by WebGPU without a browser, in turns with tinygrad.

Both run on one driver in software, lavapipe, unless --adapter names another: rlx by the package
wgpu, tinygrad by Dawn (the package dawn-python). What a call asks of the API is counted. Numbers go
to bench/results/webgpu.json, the page to web.md.
"""

from __future__ import annotations

import argparse
import datetime
from typing import Any

from bench import page, results_file
from bench.__main__ import versions
from bench.conductor import Plan, Progress, Row, measure, present
from bench.table import Line, lines, text
from bench.workload import Workload
from bench.workloads import WORKLOADS, chosen
from tests.backend.wgpu.drivers import choose, why_not

USUAL = "A_mlp,C_1x16,C_1x128,F_logmel"


def main() -> None:
    asked = _arguments()
    if missing := why_not(asked.adapter):
        raise SystemExit(missing)
    plan = Plan(asked.rounds, asked.seconds, target=choose(asked.adapter))
    peers = [n for n in present(None, plan.target) if n != "rlx-out"]
    names = chosen(asked.names)
    progress, rows = Progress(len(names)), list[dict[str, Any]]()
    for name in names:
        workload = WORKLOADS[name]()
        measured = measure(name, peers, plan, progress.tell)
        found = lines(measured, workload, None)
        progress.clear()
        print(text(f"{workload.name}: {workload.about}", found), end="\n\n", flush=True)
        rows += [_row(workload, line, row) for line, row in zip(found, measured.rows)]
    today = datetime.date.today().isoformat()
    about = {"date": today, "adapter": asked.adapter, "versions": versions(peers)}
    results_file.save("webgpu", {**about, "rows": rows})
    page.write()


def _arguments() -> Any:
    parser = argparse.ArgumentParser("python -m bench.webgpu", description=__doc__)
    parser.add_argument("names", nargs="?", default=USUAL, help="as python -m bench takes them")
    parser.add_argument("--adapter", default="lavapipe", help="or swiftshader")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a peer's turn in a round")
    return parser.parse_args()


def _row(workload: Workload, line: Line, row: Row) -> dict[str, Any]:
    about = {"about": workload.about, "launches": row.setup.get("launches")}
    return {**line.as_dict(), **about}


if __name__ == "__main__":
    main()
