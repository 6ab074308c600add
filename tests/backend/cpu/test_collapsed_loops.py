"""Parallel loops that are collapsed: those over a free batch, which may be of one sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rlx
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.errors import Error
from rlx.kernel.expr import Kernel
from rlx.kernel.size_generic import generic
from tests.backend.cpu.kernels import Batch, Work
from tests.backend.cpu.test_loop_nests import DYNAMIC, NESTS, Build, check_run, data, kernel_of

pytest.importorskip("llvmlite")

from dataclasses import replace

from rlx.backends.cpu.codegen.loop.emit import legal
from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host
from rlx.backends.cpu.schedule.loop_schedule import Schedule, check, choose
from rlx.backends.cpu.schedule.strip_mining import MIN_STRIP, strip_mined

ops = rlx.ops
MACHINE = CpuMachine.of(host())


FREE_BATCH: dict[str, tuple[Build, Callable[[Any, Any], tuple[list[Any], ...]], int]] = {
    "scaled channels": (lambda x, s: x * s, lambda b, n: ([b, n, 24], [b, 1, 24]), 2),
    "three channels": (
        lambda x: ops.pad(x, low=(0, 0, 1, 1), high=(0, 0, 1, 1)), lambda b, n: ([b, 3, n, 8],), 2
    ),
    "squares": (lambda x: ops.transpose(x, perm=(0, 2, 1)), lambda b, n: ([b, n, 20],), 2),
    "squares of a free side": (
        lambda x: ops.transpose(x, perm=(1, 0)), lambda b, n: ([16 * b + n, n],), 1
    ),
    "squares of one image": (lambda x: ops.transpose(x, perm=(1, 0)), lambda b, n: ([n, b],), 1),
    "columns": (lambda x: ops.sum(x, axes=1), lambda b, n: ([b, n, 24],), 2),
    "rows": (lambda x: ops.softmax(x, axis=-1), lambda b, n: ([b, n, 40],), 1),
    "means of images": (
        lambda x: x - ops.mean(x, axes=(1, 2), keepdims=True), lambda b, n: ([b, n, 24],), 1
    ),
    "few by few": (lambda x, y: x * y, lambda b, n: ([b, 2, n, 2, 24], [b, 1, n, 1, 24]), 3),
    "enough": (lambda x, y: x * y, lambda b, n: ([8 * b, n, 24], [8 * b, 1, 24]), 1),
}  # fmt: skip
"""What is computed of a free batch, and how many loops are parallel."""


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=["host", "avx2", "sse2"])
@pytest.mark.parametrize("name", FREE_BATCH)
def test_loops_are_collapsed_with_that_over_a_free_batch(name: str, isa: Isa) -> None:
    """A batch of one occupies all workers. Where a task begins changes no bit, in whichever of the
    loops it does, and nothing is written twice or left out, of no samples either."""
    build, dims_of, loops = FREE_BATCH[name]
    shapes = [rlx.Shape(d) for d in dims_of(rlx.Dim("b", 0, 99), rlx.Dim("n", 0, 999))]
    kernel = kernel_of(build, *shapes)
    works: list[Work] = []
    for b, n in ((1, 1), (1, 37), (2, 5), (3, 16), (5, 33), (0, 7), (2, 0)):
        static = [rlx.Shape(d) for d in dims_of(b, n)]
        works.append(Work(kernel, data(*static, seed=n), {"b": b, "n": n}))
    batch = Batch(works[:1], isa)
    assert len(batch.schedules[0].parallel) == loops
    batch.works, batch.kernels = works, batch.kernels * len(works)
    batch.schedules = batch.schedules * len(works)
    batch.name = lambda _: "kernel0"
    for i, work in enumerate(works):
        if 0 not in work.sizes.values():  # NumPy has no softmax or mean of nothing
            check_run(batch, i, build, work)
        whole = batch.run(i)[1]
        for parts in (2, 3, 7, 40):
            for a, b in zip(whole, batch.run(i, parts)[1], strict=True):
                assert a.tobytes() == b.tobytes()


def test_strips_divide_a_free_row_whatever_its_size() -> None:
    """Channels last to channels first, of an image whose sides are multiples of 16."""
    b, h, w = (rlx.Dim(n, 0, 99) for n in "bhw")
    build: Build = lambda x: ops.transpose(x, perm=(0, 2, 1))
    kernel = legal(kernel_of(build, rlx.Shape([b, 256 * h * w, 24])))
    made = strip_mined(kernel, MACHINE)
    schedule = choose(made, MACHINE)
    assert [a.extent for a in schedule.order] == [b, h * w, 24, MIN_STRIP]
    assert [a.extent for a in schedule.parallel] == [b, h * w]
    for sizes in ({"b": 1, "h": 1, "w": 3}, {"b": 2, "h": 2, "w": 1}):
        (x,) = data(rlx.Shape([sizes["b"], 256 * sizes["h"] * sizes["w"], 24]))
        batch = Batch([Work(made, [x], sizes)], host())
        for parts in (1, 2, 5):
            code, (got,) = batch.run(0, parts)
            assert code == 0
            assert got.tobytes() == x.transpose(0, 2, 1).tobytes()


def test_a_row_of_any_length_stays_whole() -> None:
    n = rlx.Dim("n", 0, 999)
    kernel = legal(kernel_of(lambda x: ops.transpose(x, perm=(0, 2, 1)), rlx.Shape([2, n, 24])))
    assert strip_mined(kernel, MACHINE) is kernel


def test_loops_with_work_of_some_of_them_alone_are_not_collapsed() -> None:
    """The sums of samples are those of one iteration of the outer loop."""
    b, n = (rlx.Dim(name, 0, 99) for name in "bn")
    build: Build = lambda x: (x * 2.0, ops.sum(x, axes=(1, 2)))
    kernel = legal(kernel_of(build, rlx.Shape([b, n, 24])))
    schedule = choose(kernel, MACHINE)
    assert len(schedule.parallel) == 1
    with pytest.raises(Error, match="collapsed loops have work of some of them alone"):
        check(replace(schedule, parallel=schedule.order[:2]), kernel)


@pytest.mark.parametrize("name", {**NESTS, **DYNAMIC})
def test_kernels_that_pass_the_caches_have_schedules(name: str) -> None:
    """Of constant sizes, of named ones, and with names for their numbers, as what runs once has
    it: buffers of those have constant sizes, and their loops have not."""
    build, dims_of = {**NESTS, **DYNAMIC}[name]
    shapes = [rlx.Shape(d) for d in dims_of(48)]
    for kernel, sizes in _forms(legal(kernel_of(build, *shapes))):
        batch = Batch([Work(kernel, data(*shapes), sizes)], host(), _past_the_caches)
        check(batch.schedules[0], batch.kernels[0])
        for parts in (1, 3):
            check_run(batch, 0, build, batch.works[0], parts)


def _forms(kernel: Kernel) -> list[tuple[Kernel, dict[str, int]]]:
    return [(kernel, {}), generic(kernel)]


def _past_the_caches(kernel: Kernel, machine: CpuMachine) -> Schedule:
    return choose(kernel, replace(machine, caches=()))
