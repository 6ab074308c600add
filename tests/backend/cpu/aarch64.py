"""`python -m tests.backend.cpu.aarch64`: the laws of the CPU backend on aarch64, emulated.

A Python of Debian's for arm64 and wheels for aarch64, unpacked in a folder, run by qemu's emulator
of user programs: the compiler, LLVM, the linker, the thread pool and the binder are those that run
on the real machine. Nothing is installed: `--fetch` fills the folder, and only it uses the network.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.backend.cpu.laws import CLAIMED
from tests.debian_python import REPO, DebianPython, fetch

FOLDER = REPO / ".aarch64"
EMULATOR = "qemu-aarch64"
LAWS = "tests/backend/cpu/test_laws_cpu.py::test_an_op_means_the_same"
NATIVE = (
    "tests/backend/cpu/test_native_blob.py",
    "tests/backend/cpu/test_native_binder.py",
    "tests/backend/cpu/test_native_pool.py",
)
SHARD = 12
"""Tests of one emulated process: so many are worth its start."""


def missing(python: DebianPython) -> str | None:
    if shutil.which(EMULATOR) is None:
        return f"{EMULATOR} is not installed: apt install qemu-user"
    if not python.is_complete:
        return f"{python.folder} has no Python for aarch64: make fetch-aarch64"
    return None


def command(python: DebianPython, *arguments: str) -> list[str]:
    settings = [
        text for name, value in python.settings.items() for text in ("-E", f"{name}={value}")
    ]
    return [EMULATOR, "-L", str(python.root), *settings, str(python.executable), *arguments]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process of tests gave."""

    passed: int
    text: str
    is_right: bool


def ran(python: DebianPython, tests: Sequence[str]) -> Outcome:
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    called = command(python, "-m", "pytest", *options, *tests)
    done = subprocess.run(called, capture_output=True, text=True, cwd=REPO, check=False)
    found = re.search(r"(\d+) passed", done.stdout)
    return Outcome(int(found[1]) if found else 0, done.stdout + done.stderr, done.returncode == 0)


def shards(names: Sequence[str]) -> list[list[str]]:
    laws = [f"{LAWS}[{n}]" for n in names]
    made = [laws[i : i + SHARD] for i in range(0, len(laws), SHARD)]
    return made if len(names) < len(CLAIMED) else [[n] for n in NATIVE] + made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all that ran is right; 2 where something is missing."""
    parser = argparse.ArgumentParser("python -m tests.backend.cpu.aarch64", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the Python for aarch64")
    parser.add_argument("--fetch", action="store_true", help="fill the folder from the network")
    parser.add_argument("--check", action="store_true", help="only say whether it can run")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after this")
    parser.add_argument("ops", nargs="*", help="ops by name (all that are claimed)")
    args = parser.parse_args(argv)
    if args.fetch:
        fetch(args.folder, "arm64")
    python = DebianPython(args.folder)
    if why := missing(python):
        print(why)
        return 2
    return 0 if args.check else _report(python, args.ops, args.jobs, args.seconds)


def _report(python: DebianPython, ops: Sequence[str], jobs: int, seconds: float) -> int:
    end, todo = time.monotonic() + seconds, shards(ops or [o.name for o in CLAIMED])

    def one(tests: Sequence[str]) -> Outcome | None:
        return ran(python, tests) if time.monotonic() < end else None

    done: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        for tests, outcome in zip(todo, pool.map(one, todo)):
            if outcome is not None:
                done.append(outcome)
                print(f"{outcome.passed:4} passed from {tests[0]}", flush=True)
                print("" if outcome.is_right else outcome.text, end="", flush=True)
    wrong = [o for o in done if not o.is_right]
    passed, left = sum(o.passed for o in done), len(todo) - len(done)
    late = f"; time was up before {left} of {len(todo)} groups" if left else ""
    print(f"aarch64 by {EMULATOR}: {passed} tests passed, {len(wrong)} groups failed{late}")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
