"""Ctrl-C while native code runs: KeyboardInterrupt soon, whatever runs, and all is usable after.

An alarm of the system interrupts a call as Ctrl-C does: Python's handler of it raises. The loops
here have no end of their own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import pytest

import rlx

X = np.ones(4, np.float32)


class Interrupted(Exception):
    """What the handler raises."""


@contextmanager
def alarm(seconds: float = 0.1) -> Generator[None]:
    """A signal after a while, whose handler raises."""

    def raised(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raised)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def endless(threads: int, width: int = 4) -> rlx.Executable:
    """A loop that ends where its input is negative."""
    g = rlx.Graph("endless")
    x = g.input("x", rlx.Shape([width]))
    g.set_outputs(
        [rlx.while_loop(lambda v: rlx.ops.sum(v) > 0.0, lambda v: rlx.ops.maximum(v, 0.5), x)]
    )
    return rlx.compile(g, "cpu", threads=threads, cache=False)


@pytest.mark.parametrize("width", [4, 1 << 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_without_an_end_is_interrupted_and_runs_again(threads: int, width: int) -> None:
    exe = endless(threads, width)
    ones = np.ones(width, np.float32)
    for _ in range(2):
        with pytest.raises(Interrupted), alarm():
            exe(ones)
    assert (exe(-ones) == -1).all()
    with pytest.raises(Interrupted), alarm():
        exe(np.ones(2 * width, np.float32)[::2])  # one that is copied first
    assert (exe.run({"x": -ones})["output0"] == -1).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_takes_long_is_interrupted(threads: int) -> None:
    """137 GFLOP in one kernel: some of its output is not written yet."""
    n = 4096
    g = rlx.Graph("product")
    x, y = (g.input(k, rlx.Shape([n, n])) for k in "xy")
    g.set_outputs([g.mm(x, y)])
    exe = rlx.compile(g, "cpu", threads=threads, cache=False)
    ones, out = np.ones((n, n), np.float32), np.zeros((n, n), np.float32)
    with pytest.raises(Interrupted), alarm(0.06):
        exe(ones, ones, out=out)
    assert (out == 0).any()


def test_what_prepares_weights_is_interrupted() -> None:
    g = rlx.Graph("prologue")
    w, x = g.param("w", rlx.Shape([4])), g.input("x", rlx.Shape([4]))
    loop = rlx.while_loop(lambda v: rlx.ops.sum(v) > 0.0, lambda v: rlx.ops.maximum(v, 0.5), w)
    g.set_outputs([loop + x])
    exe = rlx.compile(g, "cpu", threads=1, cache=False, params={"w": -X})
    with pytest.raises(Interrupted), alarm():
        exe.set_params({"w": X})
    assert (exe(X) == 0).all()


def test_a_handler_that_does_not_raise_lets_the_call_go_on() -> None:
    seen: list[int] = []

    def handler(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 3:
            raise Interrupted

    exe, before = endless(1), signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(Interrupted):
            exe(X)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 3


def test_a_call_of_another_thread_goes_on() -> None:
    """Python handles signals in its main thread; one there does not end another's call."""
    exe, out = endless(1), np.zeros(4, np.float32)
    work = threading.Thread(target=lambda: exe(-X, out=out))
    with pytest.raises(Interrupted), alarm():
        _both(work, exe)
    work.join(30)
    assert (out == -1).all()


def _both(work: threading.Thread, exe: rlx.Executable) -> None:
    work.start()
    exe(X)


CTRL_C = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import numpy as np, rlx
g = rlx.Graph("endless")
x = g.input("x", rlx.Shape([4]))
g.set_outputs([rlx.while_loop(lambda v: rlx.ops.sum(v) > 0.0, lambda v: v * 1.0, x)])
exe = rlx.compile(g, "cpu", cache=False)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    exe(np.ones(4, np.float32))
except KeyboardInterrupt:
    print("interrupted", float(exe(-np.ones(4, np.float32))[0]))
"""


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    command = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted -1.0\n"), done.stderr
