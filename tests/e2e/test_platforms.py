"""Systems and machines that native code does not run on: `import rlx`, `rlx doctor`, compiles.

A child loses what its pretended system has not (modules, functions, flags), and then uses rlx.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

WINDOWS = """
import asyncio, ctypes, logging, mmap, multiprocessing, os, platform, random, subprocess, sys
import sysconfig, tempfile, time, uuid
import llvmlite.binding, ml_dtypes, numpy.testing, rich.console, typer

sysconfig.get_config_vars()

for name in (
    "preadv", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "geteuid", "getuid",
    "sysconf", "fchmod", "fork", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY",
):
    delattr(os, name)
for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "PROT_READ", "PROT_WRITE", "PROT_EXEC"):
    delattr(mmap, name)
for name in ("clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC"):
    delattr(time, name)
sys.modules.update(resource=None, fcntl=None)
os.supports_dir_fd = frozenset()
load = ctypes.CDLL.__init__

def loading(self, name, *args, **kwargs):
    if name is None:
        raise TypeError("Windows has no library without a name")
    load(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = loading

class Kernel32:
    def GlobalMemoryStatusEx(self, status):
        held = ctypes.cast(status, ctypes.POINTER(ctypes.c_uint64))
        assert held[0] == 64
        held[1] = 8 << 30
        return 1

class Libraries:
    kernel32 = Kernel32()

ctypes.windll = Libraries()
sys.platform = "win32"
platform.system, platform.machine = lambda: "Windows", lambda: "ARM64"
"""
RISCV = """
import platform
platform.machine = lambda: "riscv64"
"""
USE = """
import sys, warnings
from pathlib import Path

import numpy as np

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import rlx

    folder = Path(sys.argv[1])
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    for target in (None, "cpu", "cpu"):
        g = rlx.Graph("scores")
        x, p = g.input("x", rlx.Shape([2, 4])), g.param("w", rlx.Shape([4, 3]))
        g.set_outputs([g.relu(g.mm(x, p))])
        exe = rlx.compile(g, target, params={"w": w}, cache=folder / "cache")
        np.testing.assert_array_equal(exe(np.ones((2, 4), np.float32))[0], w.sum(0))
print(len(seen), "warning:", seen[0].message)
try:
    rlx.compile(g, "cpu:avx2", params={"w": w}, cache=False)
except rlx.UnsupportedError as error:
    print("refused:", error)

from rlx.__main__ import main

sys.argv = ["rlx", "doctor"]
main()
print("doctor is done")
"""


@pytest.mark.parametrize(
    ("pretended", "reason"),
    [
        (WINDOWS, "native code is made for x86_64 under Windows, not for aarch64"),
        (RISCV, "native code is made for x86_64 and aarch64 under Linux, not for riscv64"),
    ],
    ids=["windows", "riscv"],
)
def test_numpy_runs_what_native_code_cannot(tmp_path: Path, pretended: str, reason: str) -> None:
    command = [sys.executable, "-c", pretended + USE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert f"1 warning: target 'cpu' cannot run here: {reason}. Models run on NumPy" in done.stdout
    assert f"refused: target 'cpu:avx2' cannot run here: {reason}" in done.stdout
    assert f"cpu        -     {reason}" in done.stdout
    assert "doctor is done" in done.stdout
