"""Native code touches nothing outside its buffers: each lies between forbidden pages.

Two hundred graphs are `python -m rlx.fuzz --guard --graphs 200 --backend cpu`.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import rlx
from rlx.fuzz.campaign import SIDES
from rlx.fuzz.guard_pages import PAGE, Guarded, Side
from rlx.fuzz.job import Job, refused_ops, verdict
from rlx.fuzz.workers import Lost, each
from tests.effort import tries

GRAPHS = tries(6, 30)
FIRST = 10_000


def test_random_graphs_touch_nothing_outside() -> None:
    """A crash names the seed; each graph has one of the ways to be guarded, in turn."""
    without = refused_ops(["cpu"])
    seeds = range(FIRST, FIRST + GRAPHS)
    jobs = [Job(s, 12, (), ("cpu",), without, SIDES[s % 3 : s % 3 + 1]) for s in seeds]
    found: list[str] = []
    for job, got in zip(jobs, each(verdict, jobs, 1)):
        lines = [got.reason] if isinstance(got, Lost) else got.found
        found += [f"seed {job.seed}, {job.sides}: {line}" for line in lines]
    assert found == []


# -- the guard itself ------------------------------------------------------------------------------


def guarded(side: Side) -> Guarded:
    g = rlx.Graph("net")
    x, w = g.input("x", rlx.Shape([5, 7])), g.param("w", rlx.Shape([7, 3]))
    g.set_outputs([g.softmax(g.matmul(x, w), axis=0), g.sort(x)])
    return Guarded(g, "host", side)


def reach(place: tuple[str, int]) -> int:
    """Read a byte of a buffer, or outside it."""
    side, at = Side(place[0]), place[1]
    made = guarded(side)
    block = made._guarded(100)  # pyright: ignore[reportPrivateUsage]
    start = block.ctypes.data if side is Side.STARTS else block.ctypes.data + 99
    return ctypes.c_uint8.from_address(start + at).value


def test_a_byte_outside_ends_the_process() -> None:
    """So that the graphs above could not have passed by a guard that is none."""
    places = [("starts", 0), ("starts", -1), ("ends", 0), ("ends", 1), ("tail", 1)]
    got = list(each(reach, places, 1))
    killed = Lost("the process was killed by SIGSEGV")
    assert got == [0xA5, killed, 0xA5, killed, killed]


@pytest.mark.parametrize("side", Side)
def test_slots_lie_apart_and_results_are_right(side: Side) -> None:
    made = guarded(side)
    rng = np.random.default_rng(3)
    values = {n: rng.normal(size=s).astype(np.float32) for n, s in [("x", (5, 7)), ("w", (7, 3))]}
    first, second = made(values)
    product = np.exp(values["x"].astype(float) @ values["w"])
    np.testing.assert_allclose(first, product / product.sum(0), rtol=1e-5)  # a few roundings of f32
    np.testing.assert_array_equal(second, np.sort(values["x"]))
    holes = [h for found in made.holes.values() for h in found]
    assert bool(holes) == (side is not Side.TAIL)
    assert all(h % PAGE == 0 for h in holes)
