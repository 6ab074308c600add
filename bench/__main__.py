"""`make bench`: rlx and every installed peer on the workloads, then what is measured of rlx alone.

Numbers go to bench/results/NAME.json, the page to bench/results/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from bench import page, results_file
from bench.conductor import Plan, Progress, measure, present
from bench.machine import description
from bench.peak import Limits
from bench.peak import measure as measure_limits
from bench.peers import PEERS
from bench.table import Line, lines, text
from bench.workload import in_precision
from bench.workloads import WORKLOADS, chosen

ALONE = ("calls", "startup", "dynamic", "images", "rooflines")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help="workloads by how their names begin: A,C1x128")
    parser.add_argument("--peers", help=f"of: {','.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a peer's turn in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="cpu", help="what rlx compiles for")
    parser.add_argument("--precision", default="", help="of products: bf16, int8, int8:block=32")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for quiet")
    parser.add_argument("--name", help="of the results; the date if not given")
    parser.add_argument("--quick", action="store_true", help="3 short rounds, nothing written")
    return parser.parse_args(arguments)


def plan_of(asked: argparse.Namespace) -> Plan:
    rounds, seconds = (3, 0.1) if asked.quick else (asked.rounds, asked.seconds)
    return Plan(rounds, seconds, asked.threads, asked.target, asked.patience, asked.precision)


def run(names: list[str], peers: list[str], plan: Plan, limits: Limits | None) -> dict[str, Any]:
    """Measure, printing each workload's table as it is done."""
    progress = Progress(len(names))
    made: list[Line] = []
    about: dict[str, Any] = {}
    for name in names:
        measured = measure(name, peers, plan, progress.tell)
        workload = in_precision(WORKLOADS[name](), plan.precision)
        floor = None if limits is None or plan.precision else limits.floor_us(workload)
        rows = lines(measured, workload, floor)
        about[workload.name] = {"about": workload.about, "floor_us": floor, "idle": measured.idle}
        progress.finished(name)
        progress.clear()
        print(text(f"{workload.name}: {workload.about}", rows), end="\n\n", flush=True)
        made += rows
    return {"workloads": about, "lines": [line.as_dict() for line in made]}


def limits_or_none(threads: int) -> Limits | None:
    """The floors need llvmlite; without it they are left out."""
    try:
        return measure_limits(threads)
    except ImportError:
        return None


def versions(peers: list[str]) -> dict[str, str]:
    return {n: PEERS[n].version() for n in peers if not PEERS[n].missing()}


def main() -> None:
    asked = options()
    names, peers, plan = chosen(asked.only), present(asked.peers, asked.target), plan_of(asked)
    limits = limits_or_none(plan.threads)
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    made = {
        "date": today,
        "machine": description(),
        "limits": None if limits is None else limits.as_dict(),
        "plan": asdict(plan),
        "versions": versions(peers),
        **run(names, peers, plan, limits),
    }
    if asked.quick and not asked.name:
        return
    results_file.save(asked.name or today.replace(" ", "-").replace(":", ""), made)
    for part in ALONE if asked.only is None and not asked.quick else ():
        how = ["--threads", str(plan.threads), "--target", plan.target]
        subprocess.run([sys.executable, "-m", f"bench.{part}", *how], check=False)
    page.write()
    print(f"The page is {results_file.ROOT.name}/README.md.")


if __name__ == "__main__":
    main()
