"""Every law and random graphs by WebGPU: `python -m tests.backend.wgpu.all --adapter lavapipe`.

    --adapter lavapipe | swiftshader | N    a driver in software, or an adapter by its number

Without one, on each driver that is installed. All other options are those of
`tests.backend.gpu.all`. Nothing is installed: what is missing is said, with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.backend.gpu.all import main
from tests.backend.wgpu.drivers import choose, installed, why_not


def on_each(rest: list[str]) -> int:
    """One process per driver, as a process loads one driver only."""
    found = list(installed())
    if not found:
        print(why_not("lavapipe"), file=sys.stderr)
        return 2
    worst = 0
    for name in found:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "tests.backend.wgpu.all", "--adapter", name, *rest]
        worst = max(worst, subprocess.call(command, env=os.environ))
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--adapter", default="")
    given, rest = parser.parse_known_args()
    if not given.adapter and not {"-h", "--help"} & {*rest}:
        sys.exit(on_each(rest))
    if missing := why_not(given.adapter):
        print(missing, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(rest, target=choose(given.adapter)))
