"""Native code on several threads: the same bits by any number of them, from any number of callers,
after a fork, and while weights change; and no memory is lost when programs go."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape
from rlx.backends.cpu.runtime.support_code import support
from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.job import refused_ops
from tests.effort import tries
from tests.patience import PATIENCE_S

F32 = np.float32
COUNTS = (1, 2, 4)
CALLS = tries(60, 300)
ROOT = Path(__file__).parents[3]


def same(a: Any, b: Any) -> bool:
    """Bit for bit, NaNs too."""
    pairs = zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,))
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


def random(*dims: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=dims).astype(F32)


# -- the same bits ---------------------------------------------------------------------------------


def rows(g: Graph) -> list[np.ndarray]:
    """Elementwise work, rows, and folds of everything: far more than one grain each."""
    x = g.input("x", Shape([700, 900]))
    g.set_outputs([
        g.gelu(x) * 2.0, g.softmax(x, axis=1), g.layer_norm(x, axis=-1), g.sum(x),
        g.mean(x, axes=0), g.argmax(x, axis=0), g.transpose(x, perm=(1, 0)),
    ])  # fmt: skip
    return [random(700, 900)]


def products(g: Graph) -> list[np.ndarray]:
    x, w = g.input("x", Shape([300, 400])), g.input("w", Shape([400, 500]))
    a, b = g.input("a", Shape([16, 60, 70])), g.input("b", Shape([16, 70, 50]))
    thin = g.input("thin", Shape([1, 400]))
    g.set_outputs([g.relu(g.matmul(x, w)), g.matmul(a, b), g.matmul(thin, w)])
    return [
        random(300, 400),
        random(400, 500),
        random(16, 60, 70),
        random(16, 70, 50),
        random(1, 400),
    ]


def windows(g: Graph) -> list[np.ndarray]:
    q, k, v = (g.input(n, Shape([2, 150, 128])) for n in "qkv")
    x, w = g.input("x", Shape([2, 8, 60, 60])), g.input("w", Shape([16, 8, 3, 3]))
    g.set_outputs([
        g.attention(q, k, v, num_heads=4, kv_heads=4, mask_kind="causal"),
        g.max_pool(g.conv(x, w), kernel=(2, 2), stride=(2, 2)),
    ])  # fmt: skip
    return [
        *(random(2, 150, 128, seed=i) for i in range(3)),
        random(2, 8, 60, 60),
        random(16, 8, 3, 3),
    ]


def specials(g: Graph) -> list[np.ndarray]:
    x, i = g.input("x", Shape([400, 600])), g.input("i", Shape([5000], "i64"))
    u = g.input("u", Shape([5000, 600]))
    g.set_outputs([
        g.sort(x), *g.top_k(x, k=7, axis=1), g.cumsum(x, axis=1), g.cumsum(x, axis=0), g.rfft(x),
        g.gather(x, i, axis=0), g.scatter_add(x, i, u, axis=0), g.nonzero(x),
    ])  # fmt: skip
    where = np.random.default_rng(1).integers(0, 400, 5000)
    return [random(400, 600), where, random(5000, 600)]


@pytest.mark.parametrize("model", [rows, products, windows, specials], ids=lambda m: m.__name__)
def test_large_work_has_the_same_bits_by_any_number_of_threads(
    model: Callable[[Graph], list[np.ndarray]], tmp_path: Path
) -> None:
    graph = Graph(model.__name__)
    arrays = model(graph)
    want = None
    for threads in COUNTS:
        exe = rlx.compile(graph, "cpu", threads=threads, cache=str(tmp_path))
        for _ in range(3):
            got = exe(*arrays)
            want = got if want is None else want
            assert same(got, want), f"{threads} threads"
    assert len(support().pool._threads) >= max(COUNTS) - 1  # pyright: ignore[reportPrivateUsage]


@functools.cache
def small(seed: int) -> Grown:
    return grow(seed, 12, refused_ops(["cpu"]))


@pytest.mark.parametrize("seed", range(20_000, 20_000 + tries(4, 8)))
def test_random_graphs_have_the_same_bits(seed: int, tmp_path: Path) -> None:
    grown = small(seed)
    params = {n.attrs["name"]: grown.values[n.attrs["name"]] for n in grown.graph.params}
    arrays = [grown.values[n.attrs["name"]] for n in grown.graph.inputs]
    want = None
    for threads in COUNTS:
        exe = rlx.compile(grown.graph, "cpu", threads=threads, params=params, cache=str(tmp_path))
        for _ in range(2):
            got = exe(*arrays)
            want = got if want is None else want
            assert same(got, want), f"{threads} threads"


# -- callers side by side --------------------------------------------------------------------------


@functools.cache
def net() -> rlx.Executable:
    """Large enough that calls use the pool, with rows of any number."""
    g = Graph("net")
    n = Dim("n", 1, 400)
    x, w, b = (
        g.input("x", Shape([n, 128])),
        g.param("w", Shape([128, 256])),
        g.param("b", Shape([256])),
    )
    hidden = g.gelu(g.matmul(x, w) + b)
    g.set_outputs([g.softmax(hidden, axis=1), g.sum(hidden, axes=0)])
    return rlx.compile(g, "cpu", threads=2, params={"w": random(128, 256), "b": random(256)})


def test_many_callers_get_right_answers() -> None:
    exe, wrong, counts = net(), list[int](), [0] * 8
    given = [random(1 + 50 * i, 128, seed=i) for i in range(8)]
    want = [exe(x) for x in given]

    def call(number: int) -> None:
        while counts[number] < CALLS:
            which = (number + counts[number]) % 8
            if not same(exe(given[which]), want[which]):
                wrong.append(which)
            counts[number] += 1

    _together([functools.partial(call, i) for i in range(8)])
    assert not wrong
    assert counts == [CALLS] * 8


def _together(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=j) for j in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_calls_keep_their_weights_while_others_are_set() -> None:
    """Every call sees all of one set: the two halves are made from the same weights."""
    g = Graph("halves")
    x, w = g.input("x", Shape([64, 64])), g.param("w", Shape([64, 64]))
    g.set_outputs([g.matmul(x, g.concat([w, w * 2.0], axis=1))])
    exe = rlx.compile(g, "cpu", params={"w": np.zeros((64, 64), F32)})
    x_value, wrong, done = np.eye(64, dtype=F32), list[Any](), threading.Event()

    def call() -> None:
        while not done.is_set():
            both = exe(x_value)
            if not ((both[:, :64] == both[0, 0]).all() and (both[:, 64:] == 2 * both[0, 0]).all()):
                wrong.append(both)

    def change() -> None:
        for i in range(100):
            exe.set_params({"w": np.full((64, 64), i, F32)})
        done.set()

    _together([call, call, call, change])
    assert not wrong
    assert exe(x_value)[0, 0] == 99


# -- forks -----------------------------------------------------------------------------------------


def test_a_child_runs_what_its_parent_ran() -> None:
    """Threads do not come along in a fork; the child starts its own."""
    exe, x = net(), random(300, 128)
    want = exe(x)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if not child:
            os._exit(0 if all(same(exe(x), want) for _ in range(5)) else 1)
        assert _exit_code(child) == 0
        assert same(exe(x), want)


def _exit_code(child: int) -> int:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9


# -- memory ----------------------------------------------------------------------------------------


def test_programs_that_go_give_their_memory_back() -> None:
    """Under 2 MB more after half of the cycles; all of them are `python -m bench.leaks`."""
    given = ["--compiled", "50", "--cached", "100", "--after", "25"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.leaks", *given], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
