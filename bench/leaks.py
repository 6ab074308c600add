"""`python -m bench.leaks`: does memory grow when programs are compiled, called and dropped?

Exit 1 where resident memory grows steadily, by 2 MB or more after the first cycles, which fill
caches.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

import rlx
from rlx import Graph, Shape

LIMIT_BYTES = 2 << 20
SPANS = 4


def model(number: int) -> Graph:
    """A small net; the number is a constant in it, so that each is another program."""
    g = Graph(f"net{number}")
    x, w = g.input("x", Shape([8, 16])), g.param("w", Shape([16, 4]))
    made = g.softmax(g.relu(g.matmul(x, w)) + float(number), axis=-1)
    g.set_outputs([made, g.sort(made)])
    return g


def cycle(number: int, cache: str | bool) -> None:
    """Compile, call, drop."""
    params = {"w": np.full((16, 4), 0.5, np.float32)}
    exe = rlx.compile(model(number), "cpu", params=params, cache=cache)
    first, _ = exe(np.ones((8, 16), np.float32))
    if not np.allclose(first, 0.25):
        raise AssertionError(f"cycle {number} gave {first}")


def resident_bytes() -> int:
    """Of this process, now; where the collector is on, without what it may still find."""
    if gc.isenabled():
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(run: Callable[[int], None], cycles: int, after: int) -> int:
    """Bytes by which memory grows from cycle `after` to the last, at the pace of the span of cycles
    in which it grows least: a leak is in all of them, what an allocator takes once is in one."""
    for number in range(after):
        run(number)
    ends = [after + (cycles - after) * i // SPANS for i in range(SPANS + 1)]
    grown = list[int]()
    for start, stop in pairwise(ends):
        before = resident_bytes()
        for number in range(start, stop):
            run(number)
        grown.append(resident_bytes() - before)
    return SPANS * min(grown)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.leaks", description=__doc__)
    parser.add_argument("--compiled", type=int, default=1_000, help="cycles without cache")
    parser.add_argument("--cached", type=int, default=10_000, help="cycles with a cache")
    parser.add_argument("--after", type=int, default=200, help="cycles before the first look")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "compiled": (args.compiled, lambda n: cycle(n, False)),
            "cached": (args.cached, lambda n: cycle(n % 20, folder)),
        }
        grown = {
            name: growth(run, count, args.after) for name, (count, run) in runs.items() if count
        }
    for name, size in grown.items():
        print(f"{name}: {runs[name][0]} cycles, {size / 2**20:.2f} MB more after {args.after}")
    return 1 if max(grown.values()) >= LIMIT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
