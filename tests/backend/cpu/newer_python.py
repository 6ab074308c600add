"""`python -m tests.backend.cpu.newer_python`: native calls in the Python of Debian's next release.

A Python of Debian unstable, with its C library and wheels, unpacked in a folder and run by its own
dynamic linker: nothing is installed. `--fetch` fills the folder, and only it uses the network.
Fresh processes compile and call a program, where the warning that calls are bound in Python is an
error; then the tests of the native runtime and of all ops' and blocks' arguments run.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.backend.cpu.aarch64 import NATIVE
from tests.debian_python import REPO, DebianPython, fetch

FOLDER = REPO / ".newer-python"
RELEASE = "sid"
PROCESSES = 20
LOADER, LIBRARIES = "usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"
TESTS = (*NATIVE, "tests/backend/cpu/test_calls_cpu.py", "tests/unit/test_public_calls.py")
FRESH = """
import platform
import rlx
from rlx.backends.cpu.runtime.cpython_layout import why_not_bound
import numpy as np

g = rlx.Graph("g")
g.set_outputs([g.input("x", ["rows", 4]) * 2.0])
exe = rlx.compile(g)
for rows in (1, 3):
    assert exe(np.ones((rows, 4), np.float32)).tolist() == [[2.0] * 4] * rows
assert why_not_bound() is None, why_not_bound()
print(platform.python_version(), end="")
"""
"""With warnings as errors: one is given where calls are bound in Python."""


def launcher(python: DebianPython) -> Path:
    """A program that is that Python, also for processes that it starts itself."""
    made = python.folder / "python3"
    loader = f"{python.root / LOADER} --library-path {python.root / LIBRARIES} --argv0 $0"
    settings = "\n".join(f"export {k}='{v}'" for k, v in python.settings.items())
    made.write_text(f'#!/bin/sh\n{settings}\nexec {loader} {python.executable} "$@"\n')
    made.chmod(0o755)
    return made


def run(python: DebianPython, *arguments: str) -> subprocess.CompletedProcess[str]:
    called = [str(launcher(python)), *arguments]
    return subprocess.run(called, cwd=REPO, capture_output=True, text=True, check=False)


def missing(python: DebianPython) -> str | None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "Debian's Python for x86-64 runs on Linux on x86-64 alone."
    if not python.is_complete:
        return f"{python.folder} has no newer Python: make fetch-newer-python"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all is right; 2 where something is missing."""
    parser = argparse.ArgumentParser(
        "python -m tests.backend.cpu.newer_python", description=__doc__
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the newer Python")
    parser.add_argument("--release", default=RELEASE, help=f"of Debian ({RELEASE})")
    parser.add_argument("--fetch", action="store_true", help="fill the folder from the network")
    parser.add_argument("--check", action="store_true", help="only say whether it can run")
    args = parser.parse_args(argv)
    if args.fetch:
        fetch(args.folder, "amd64", args.release)
    python = DebianPython(args.folder)
    if why := missing(python):
        print(why)
        return 2
    return 0 if args.check else _report(python)


def _report(python: DebianPython) -> int:
    fresh = [run(python, "-W", "error", "-c", FRESH) for _ in range(PROCESSES)]
    wrong = [p for p in fresh if p.returncode]
    print("".join(p.stderr for p in wrong), end="")
    versions = ", ".join({p.stdout for p in fresh if not p.returncode}) or "newer"
    bound = len(fresh) - len(wrong)
    print(
        f"Python {versions}: {bound} of {len(fresh)} fresh processes bind calls natively",
        flush=True,
    )
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    tests = run(python, "-m", "pytest", *options, *TESTS)
    print(tests.stdout[-4000:], tests.stderr, sep="", end="")
    return 1 if wrong or tests.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
