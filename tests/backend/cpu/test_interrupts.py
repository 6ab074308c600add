"""Ctrl-C while native code runs: KeyboardInterrupt soon, whatever runs, and all is usable after.

An alarm of the system interrupts a call as Ctrl-C does: Python's handler of it raises. The loops
here have no end of their own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import rlx
from tests.patience import PATIENCE_S, eventually

X = np.ones(4, np.float32)
Array = np.ndarray[Any, Any]
Build = Callable[[rlx.Graph], list[rlx.Node]]


class Interrupted(Exception):
    """What the handler raises."""


@contextmanager
def alarms(count: int, seconds: float = 0.1) -> Generator[list[int]]:
    """Signals that come again and again; the handler raises when it runs for the last time."""
    seen: list[int] = []

    def handler(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == count:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def alarm(seconds: float = 0.1) -> AbstractContextManager[list[int]]:
    """A signal after a while, whose handler raises."""
    return alarms(1, seconds)


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


def sorted_row(g: rlx.Graph) -> list[rlx.Node]:
    return [rlx.ops.sort(g.input("x", rlx.Shape([rlx.Dim("n")])), axis=0)]


def steps(g: rlx.Graph) -> list[rlx.Node]:
    """Of one sequence: the times are one after the other."""
    dims = {"x": [rlx.Dim("n"), 1, 1], "w": [1, 2048, 1], "r": [1, 2048, 2048]}
    return [rlx.ops.rnn(*(g.input(k, rlx.Shape(d)) for k, d in dims.items()))[0]]


def folds(g: rlx.Graph) -> list[rlx.Node]:
    """n² sines of which each result is the sum."""
    n = rlx.Dim("n")
    x, y = g.input("x", rlx.Shape([n])), g.input("y", rlx.Shape([3]))
    table = rlx.ops.reshape(x, dims=(1, n, 1)) * rlx.ops.reshape(x, dims=(1, 1, n))
    return [rlx.ops.sum(rlx.ops.sin(table + rlx.ops.reshape(y, dims=(3, 1, 1))), axes=(1, 2))]


def windows(g: rlx.Graph) -> list[rlx.Node]:
    x = g.input("x", rlx.Shape([1, 1, rlx.Dim("n", 1 << 16)]))
    return [rlx.ops.max_pool(x, kernel=(1 << 16,), stride=(1,))]


def region(g: rlx.Graph) -> list[rlx.Node]:
    """As many points as the region is large, whatever the image is."""
    x, rois = g.input("x", rlx.Shape([1, 1, 8, 8])), g.input("rois", rlx.Shape([1, 4]))
    image = g.constant(np.zeros(1, np.int64))
    return [rlx.ops.roi_align(x, rois, image, output_size=(1, 1), sampling_ratio=0)]


def ones(*dims: int) -> Array:
    return np.ones(dims, np.float32)


RECURRENT = [ones(1, 2048, 1), ones(1, 2048, 2048)]
ONE_UNIT: dict[str, tuple[Build, list[Array], list[Array]]] = {
    "sort": (sorted_row, [-np.arange(1.0, (1 << 24) + 1, dtype=np.float32)], [-ones(9)]),
    "rnn": (steps, [ones(1 << 13, 1, 1), *RECURRENT], [ones(3, 1, 1), *RECURRENT]),
    "fold": (folds, [ones(1 << 17), ones(3)], [ones(9), ones(3)]),
    "max_pool": (windows, [ones(1, 1, 1 << 22)], [ones(1, 1, 1 + (1 << 16))]),
    "roi_align": (
        region,
        [ones(1, 1, 8, 8), np.array([[0, 0, 3e6, 3e6]], np.float32)],
        [ones(1, 1, 8, 8), np.array([[0, 0, 3, 3]], np.float32)],
    ),
}
"""What one thread must do alone: the graph, operands that take seconds or hours, and small ones."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ONE_UNIT)
def test_one_long_unit_of_work_is_interrupted_and_runs_again(name: str, threads: int) -> None:
    """The handler of an alarm that comes again and again runs while the unit does: without that,
    all alarms of a unit are one."""
    build, long, short = ONE_UNIT[name]
    g = rlx.Graph(name)
    g.set_outputs(build(g))
    exe = rlx.compile(g, "cpu", threads=threads, cache=False)
    expected = exe(*short)
    with pytest.raises(Interrupted), alarms(4, 0.002):  # memory is not fast enough to sort in 8 ms
        exe(*long)
    assert np.array_equal(exe(*short), expected)
    assert (expected != 0).all()


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
    exe = endless(1)
    with pytest.raises(Interrupted), alarms(3) as seen:
        exe(X)
    assert len(seen) == 3


def test_calls_of_another_thread_go_on() -> None:
    """Python handles signals in its main thread; one there does not end another's calls."""
    exe, ended = endless(1), threading.Event()
    found: list[Array] = []

    def work() -> None:
        while not ended.is_set():
            found.append(exe(-X))

    other = threading.Thread(target=work)
    other.start()
    try:
        eventually(lambda: found, "a call before")
        with pytest.raises(Interrupted), alarm():
            exe(X)
        before = len(found)
        eventually(lambda: len(found) > before + 1, "calls after")
    finally:
        ended.set()
        other.join()
    assert all((f == -1).all() for f in found)


CTRL_C = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import numpy as np, rlx
g = rlx.Graph("endless")
x = g.input("x", rlx.Shape([4]))
g.set_outputs([rlx.while_loop(lambda v: rlx.ops.sum(v) > 0.0, lambda v: v * 1.0, x)])
exe = rlx.compile(g, "cpu", cache=False)
try:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    exe(np.ones(4, np.float32))
except KeyboardInterrupt:
    print("interrupted", float(exe(-np.ones(4, np.float32))[0]))
"""


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    command = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted -1.0\n"), done.stderr
