"""Native code tried once in a process of its own, on systems that it was never run on.

A wrong guess about a system ends a process; that of the user it must not be. So where
`System.was_run` is false a child compiles a small model, runs it with two threads and compares.
Whether that worked is noted in the cache, and is asked anew for another version of anything.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from rlx.backends.cpu.system.base import System
from rlx.core.disk_cache import Cache, key_of

SECONDS = 120
_WORKS = "works"
Run = Callable[[], "subprocess.CompletedProcess[str]"]


def why_no_native_code(system: System, cache: Cache | None, run: Run | None = None) -> str | None:
    """Why models cannot run as native code here; None where they can."""
    if why := system.why_not():
        return why
    if system.was_run or find_spec("llvmlite") is None:
        return None
    name = f"trial-{key_of('trial', platform.platform(), sys.version)}"
    found = None if cache is None else cache.note(name)
    if found is None:
        found = _tried(system, run or _child)
        if cache is not None and found == _WORKS:
            cache.write_note(name, found)
    return None if found == _WORKS else found


def _tried(system: System, run: Run) -> str:
    """How a trial ended."""
    try:
        done = run()
    except (OSError, subprocess.SubprocessError) as error:
        return f"native code could not be tried under {system.title}: {error}"
    if done.returncode == 0:
        return _WORKS
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"a trial of native code under {system.title} failed (exit {done.returncode}): {last}"


def _child() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", __name__]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def main() -> int:
    """Exit 0 if native code computes what NumPy does, by one thread and by two."""
    from rlx.backends.cpu.backend import CpuBackend
    from rlx.core.shape import Shape
    from rlx.ir.mir import Graph
    from rlx.pipeline import CompilePipeline

    graph = Graph("trial")
    x, y = (graph.input(n, Shape([256, 256])) for n in "xy")
    graph.set_outputs([graph.node("exp", (graph.node("mm", (x, y), {}),), {})])
    given = [np.full((256, 256), v, np.float32) for v in (0.5, 2**-8)]
    expected = np.exp(given[0] @ given[1])
    for threads in (1, 2):
        backend = CpuBackend(threads=threads)
        program = backend.compile(CompilePipeline(backend.target()).compile(graph).lir)
        weights = program.prepare({}, None)
        for _ in range(3):
            for made in (program.run(weights, given, [None])[0], program.quick(weights)(*given)):
                np.testing.assert_allclose(made, expected, rtol=1e-6)  # roundings of exp in f32
    return 0


if __name__ == "__main__":
    sys.exit(main())
