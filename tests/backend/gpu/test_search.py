"""The timed search of schedules on the simulated device: what it takes, and what it never takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlx import ops
from rlx.backends.gpu import simulated
from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.description import describe
from rlx.backends.gpu.device import Code, Kernel
from rlx.backends.gpu.problems import problems_of, sizes_of_alternatives
from rlx.backends.gpu.runtime.trial import Effort, Problem
from rlx.backends.gpu.search import CODE_S, Search, Tuned
from rlx.backends.gpu.simulated import SimulatedDevice
from rlx.backends.gpu.task import Launch, Variant
from rlx.core.dim import Dim, evaluate
from rlx.core.disk_cache import Cache
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.core.tune import Tune
from rlx.ir.mir import Graph
from rlx.kernel.program.schedule import buffers
from rlx.pipeline import CompilePipeline
from rlx.program.builder import Builder
from rlx.program.program import Program
from tests.backend.gpu.simulated_backend import SimulatedBackend

F32 = DType.F32
COUNT = 64
QUICK = Effort(rounds=1, round_ns=0.0, min_launches=1, max_launches=1)


BLOCKS = [0]
"""That were run."""
ASSEMBLED: list[Program] = []


class Clocked(SimulatedDevice):
    """A device on which a launch takes as many nanoseconds as its grid has blocks."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: BLOCKS[0])

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        given = list(programs)
        ASSEMBLED.extend(given)
        return super().assemble(given)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of every launch are counted by the device that is made in the test."""

    def launch(program: Program, arrays: Any, sizes: Mapping[str, int], *rest: Any) -> None:
        BLOCKS[0] += evaluate(program.grid[0], sizes)
        interpret(program, arrays, sizes, *rest)

    interpret = simulated.launch
    monkeypatch.setattr(simulated, "launch", launch)


class Newer(SimulatedDevice):
    """Another driver."""

    driver = "14.0"


def adding(amount: float, block: int) -> Callable[[str], Program]:
    """y = x + amount, by blocks of so many threads."""

    def write(name: str) -> Program:
        b = Builder(name, block=block, grid=(COUNT // block,))
        x, y = b.input("x", F32), b.output("y", F32)
        at = b.block_index() * block + b.thread
        y[at] = x[at] + amount
        return b.program()

    return write


def launch(*variants: Variant) -> Launch:
    first, *others = variants
    return Launch.of("add", ("add", first.note), ("x", "y"), buffers(1, 1), (), first, others)


def problem(*variants: Variant) -> Problem:
    sizes = {"x": 4 * COUNT, "y": 4 * COUNT}
    return Problem(launch(*variants), {}, sizes, frozenset({"x"}))


SLOW = Variant(adding(1.0, 1), "one by one", 10.0)
FAST = Variant(adding(1.0, 32), "32 at a time", 12.0)
CLOSE = Variant(adding(1.0 + 1e-6, 32), "32 at a time, rounded otherwise", 12.0, order="other")
SAME_ORDER = replace(CLOSE, note="32 at a time, in the same order", order=None)
WRONG = Variant(adding(2.0, 64), "all at a time, and wrong", 12.0)
DISTANT = Variant(adding(1.0, 64), "all at a time", 100.0)


def searched(tune: Tune, given: Problem, cache: Cache | None = None) -> tuple[str, int]:
    """The schedule that is taken, and how many were compiled."""
    ASSEMBLED.clear()
    made = Search(Clocked(), cache, tune, 1e9, QUICK).find([given])
    return made.launches[given.launch.key].note, len(ASSEMBLED)


def test_the_fastest_of_what_gives_the_same_bits_is_taken() -> None:
    given = problem(SLOW, WRONG, CLOSE, SAME_ORDER, FAST, DISTANT)
    assert searched("bitwise", given) == (FAST.note, 4)
    # neither another order, nor what should take far longer


def test_programs_are_known_by_their_notes() -> None:
    same = replace(WRONG, note=SLOW.note), replace(DISTANT, note=FAST.note)
    assert launch(SLOW, same[0], FAST, same[1]).others == (FAST,)


def test_any_order_of_sums_where_that_is_asked_for() -> None:
    assert searched("full", problem(SLOW, WRONG, CLOSE))[0] == CLOSE.note
    assert searched("bitwise", problem(SLOW, WRONG, SAME_ORDER))[0] == SLOW.note


def test_what_was_found_is_kept_for_the_device_and_driver(tmp_path: Path) -> None:
    cache = Cache.of(tmp_path, {})
    given = problem(SLOW, FAST)
    assert searched("bitwise", given, cache)[0] == FAST.note
    assert searched("bitwise", given, cache) == (FAST.note, 0)
    device = SimulatedDevice()
    found = Search(device, cache, "bitwise").known(given)
    assert found is not None
    assert found.times_ns == {SLOW.note: COUNT, FAST.note: COUNT // 32}
    assert Search(device, cache, "full").known(given) is None
    assert Search(Newer(), cache, "bitwise").known(given) is None


def test_what_was_found_holds_for_the_sizes_that_it_was_tried_at(tmp_path: Path) -> None:
    cache, n = Cache.of(tmp_path, {}), Dim("n", 1, COUNT)

    def counting(block: int) -> Callable[[str], Program]:
        def write(name: str) -> Program:
            b = Builder(name, block=block, grid=(n // block,))
            at = b.block_index() * block + b.thread
            b.output("y", F32)[at] = b.input("x", F32)[at] + 1.0
            return b.program()

        return write

    slow, fast = replace(SLOW, write=counting(1)), replace(FAST, write=counting(32))
    given = replace(problem(slow, fast), sizes={"n": COUNT, "m": 1})
    assert searched("bitwise", given, cache)[0] == FAST.note
    search = Search(SimulatedDevice(), cache, "bitwise")
    assert search.known(replace(given, sizes={"n": COUNT, "m": 2})) is not None
    assert search.known(replace(given, sizes={"n": COUNT // 2, "m": 1})) is None


def test_without_time_the_prediction_stands() -> None:
    ASSEMBLED.clear()
    made = Search(Clocked(), None, "bitwise", 0.0, QUICK).find([problem(SLOW, FAST)])
    assert not made.launches
    assert not ASSEMBLED


def test_a_device_that_cannot_run_a_program_keeps_the_prediction() -> None:
    class Failing(SimulatedDevice):
        def load(self, code: Code) -> Kernel:
            raise MemoryError("none is left")

    made = Search(Failing(), None, "bitwise", 1e9, QUICK).find([problem(SLOW, FAST)])
    assert not made.launches


def test_products_are_searched_and_described(tmp_path: Path) -> None:
    graph = Graph("product")
    x = graph.input("x", Shape((16, 32), DType.BF16))
    w = graph.param("w", Shape((32, 32), DType.BF16))
    graph.set_outputs([ops.matmul(x, w)])
    backend = SimulatedBackend(cache=Cache.of(tmp_path, {}))
    program = backend.program(CompilePipeline(backend.target()).compile(graph).lir)
    (given,) = problems_of(program)
    assert given.bytes_of == {"x0": 2 * 16 * 32, "x1": 2 * 32 * 32, "y0": 2 * 16 * 32}
    assert given.weights == {"x1"}
    launch = given.launch
    other = next(c for c in launch.others if c.order == launch.order)
    search = Search(backend.device(), backend.cache, "bitwise", 1e9, QUICK)
    made = search.find([replace(given, launch=replace(launch, others=(other,)))])
    assert made.codes.keys() == made.launches.keys() == {launch.key}
    found = search.known(given)
    assert found is not None
    assert set(found.times_ns) == {launch.note, other.note}  # the same bits
    (facts,) = describe(program, backend.has_special, search).values()
    (decision,) = (d for d in facts.decisions if d.what == "choose_schedule")
    assert decision.reason.count("predicted") > decision.reason.count("measured") == 2
    without_time = replace(search, budget_s=CODE_S)
    assert without_time.tuned(program) == Tuned()
    (facts,) = describe(program, backend.has_special, without_time).values()
    assert not any("measured" in d.reason for d in facts.decisions)


def test_each_alternative_of_a_kernel_is_tried_at_sizes_of_its_own() -> None:
    rows, length = Dim("rows", 1), Dim("length", 1, 512)
    buckets = Buckets((rows * length,), ((128, 2048),), (1, 0, 2))
    usual = {"rows": 64, "length": 96}
    found = sizes_of_alternatives(buckets, usual)
    assert next(iter(found.items())) == (2, usual)
    assert {n: s["rows"] * s["length"] for n, s in found.items()} == {0: 2048, 1: 128, 2: 64 * 96}
    assert sizes_of_alternatives(buckets, {"rows": 64}) == {}
