"""Fourier transforms as native code: what the reference gives, as exact as SciPy's or more."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.fft

import rlx
from bench.fft_error import errors
from rlx import ops
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, ISAS, SSE2, Isa, host
from rlx.backends.cpu.kernels import dedicated
from rlx.backends.cpu.library.fft.plans import MAX_CONSTANT_TABLE_POINTS
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule
from tests.backend.cpu.kernels import assert_close
from tests.backend.cpu.sequences import Runner, functions
from tests.backend.cpu.steps import Steps, Trial, trials

Array = np.ndarray[Any, Any]
OPS = ("fft", "ifft", "rfft", "irfft")
RUNNABLE = (host(), AVX2, SSE2) if host().triple.startswith("x86") else (host(),)
RUN = [i.name for i in RUNNABLE]
PRIMES = (67, 97, 127, 251, 509, 1021)
ROUND = (81, 100, 121, 125, 128, 143, 169, 243, 256, 343, 400, 512, 1000, 1024, 1155, 4096)
ROWS = 19
"""Rows in a batch: not a whole number of vectors."""
WORSE = 1.2
"""The error may be this many times SciPy's."""


# -- drawn ----------------------------------------------------------------------------------------


def drawn(op: str, cases: int) -> Iterator[Trial]:
    for seed in range(cases):
        draw = Draw([zlib.crc32(op.encode()), seed])
        yield from trials(draw, draw.case(lookup(op)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_drawn_transforms_mean_the_same_natively(op: str, isa: Isa) -> None:
    given = list(drawn(op, 10 if isa is host() else 3))
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        once, apart = (steps.run(i, cuts)[0] for cuts in ("once", "apart"))
        assert once.tobytes() == apart.tobytes(), str(trial)
        assert_close(once, trial.wanted()[0], str(trial))


# -- lengths --------------------------------------------------------------------------------------


class Batch:
    """Transforms compiled together."""

    def __init__(self, nodes: list[Node], isa: Isa) -> None:
        self.nodes = nodes
        self.schedules: list[Schedule[Task]] = [
            dedicated(n.op)(Step.alone(n, CpuMachine.of(isa)), f"f{i}") for i, n in enumerate(nodes)
        ]
        self.text = module([f for r in self.schedules for f in functions(r)], isa)
        self.native = Native(self.text, isa)

    def run(self, number: int, x: Array, sizes: dict[str, int], cuts: str = "once") -> Array:
        shape = self.nodes[number].shape.bind(sizes)
        made = np.zeros(shape.static_dims, shape.dtype.numpy)
        Runner(self.native, self.schedules[number], sizes).run([x], [made], cuts)
        return made


def applied(op: str, dims: tuple[DimLike, ...], dtype: DType, **attrs: Any) -> Node:
    g = Graph(op)
    return g.node(op, [g.input("x", Shape(dims, dtype))], attrs)


def rows_of(n: int) -> int:
    """Of short rows so many that chance does not decide whose error is less."""
    return ROWS + 4096 // n


def points(n: int, dtype: DType = DType.C64, rows: int = ROWS) -> Array:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(rows, n)) + 1j * rng.normal(size=(rows, n))
    return (x if dtype.is_complex else x.real).astype(dtype.numpy)


def error(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def assert_as_exact(got: Array, want: Array, peer: Array, n: DimLike) -> None:
    mine, theirs = error(got, want), error(peer, want)
    assert mine <= WORSE * theirs, f"{n} points: {mine:.2e}, and SciPy's {theirs:.2e}"


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_lengths_are_as_exact_as_scipy(isa: Isa) -> None:
    lengths = (
        [*range(1, 65), *PRIMES, *ROUND] if isa is host() else [*range(1, 9), 12, 97, 400, 512]
    )
    batch = Batch([applied("fft", (rows_of(n), n), DType.C64) for n in lengths], isa)
    for i, n in enumerate(lengths):
        x = points(n, rows=rows_of(n))
        got = batch.run(i, x, {})
        assert_as_exact(got, np.fft.fft(x.astype(np.complex128)), scipy.fft.fft(x), n)
        if n % 8 == 1:
            assert got.tobytes() == batch.run(i, x, {}, "apart").tobytes()


@pytest.mark.parametrize("isa", RUNNABLE[:2], ids=lambda i: i.name)
def test_real_lengths_are_as_exact_as_scipy(isa: Isa) -> None:
    lengths = [*range(1, 9), 30, 32, 34, 36, 62, 64, 67, 68, 100, 400, 512, 1000, 1001, 4096]
    lengths = lengths if isa is host() else lengths[::4]
    there = [applied("rfft", (rows_of(n), n), DType.F32) for n in lengths]
    again = [applied("irfft", (rows_of(n), n // 2 + 1), DType.C64, n=n) for n in lengths]
    forth, back = Batch(there, isa), Batch(again, isa)
    for i, n in enumerate(lengths):
        x = points(n, DType.F32, rows_of(n))
        z = points(n // 2 + 1, rows=rows_of(n))
        assert_as_exact(forth.run(i, x, {}), np.fft.rfft(x.astype(float)), scipy.fft.rfft(x), n)
        want = np.fft.irfft(z.astype(np.complex128), n)
        assert_as_exact(back.run(i, z, {}), want, scipy.fft.irfft(z, n), n)


def test_a_length_known_only_in_a_run() -> None:
    n = Dim("n", 0)
    nodes = [
        applied("fft", (ROWS, n), DType.C64),
        applied("rfft", (ROWS, n), DType.F32, norm="ortho"),
        applied("irfft", (ROWS, n + 2), DType.C64, norm="forward"),
        applied("fft", (ROWS, 2 * n), DType.F64, inverse=True),
    ]
    for isa in RUNNABLE:
        batch = Batch(nodes, isa)
        for size in (1, 2, 3, 8, 9, 31, 97, 250):
            for i, node in enumerate(nodes):
                last = node.inputs[0].shape.bind({"n": size}).static_dims[-1]
                x = points(last, node.inputs[0].shape.dtype)
                want = lookup(node.op).run([x], node.attrs)
                assert_close(batch.run(i, x, {"n": size}), want, f"{node.op} of {size}")


def test_a_length_is_the_same_known_or_not() -> None:
    """Of other than small factors: `bench.fft_error` tries those by one program for all."""
    lengths = [17, 34, 997, 1003]
    batch = Batch([applied("fft", (ROWS, n), DType.C64) for n in (*lengths, Dim("n", 1))], host())
    for i, n in enumerate(lengths):
        x = points(n)
        assert batch.run(i, x, {}).tobytes() == batch.run(len(lengths), x, {"n": n}).tobytes()


def test_the_command_that_compares_errors() -> None:
    found = list(errors([8, 17, 34, 36]))
    assert {(e.op, e.n) for e in found} == {(op, n) for op in OPS for n in (8, 17, 34, 36)}
    assert max(e.ratio for e in found) <= WORSE
    assert min(e.ours for e in found) > 1e-9, "nothing was rounded"


def test_tables_of_long_transforms_are_filled_once() -> None:
    lengths = [
        MAX_CONSTANT_TABLE_POINTS + 1,
        2 * MAX_CONSTANT_TABLE_POINTS,
        2 * 3 * 5 * 7 * 11 * 13,
    ]
    cases = [(n, dtype) for n in lengths for dtype in (DType.C64, DType.C128)]
    batch = Batch([applied("fft", (2, n), dtype) for n, dtype in cases], host())
    assert all(r.packed for r in batch.schedules)
    for i, (n, dtype) in enumerate(cases):
        x = points(n, rows=2)
        want = np.fft.fft(x.astype(np.complex128))
        got = batch.run(i, x.astype(dtype.numpy), {})
        if dtype is DType.C64:
            assert_as_exact(got, want, scipy.fft.fft(x), n)
        else:
            assert error(got, want) < 1e-15


def test_tables_are_there_when_weights_are_transformed() -> None:
    """The tables of a step that runs before any call are filled before it."""
    g = Graph("weights")
    x, w = g.input("x", Shape((3, 34), DType.F32)), g.param("w", Shape((34,), DType.F32))
    g.set_outputs([ops.add(ops.fft(x), ops.fft(w))])
    values = {"w": points(34, DType.F32)[0]}
    native, reference = (rlx.compile(g, target=t, params=values) for t in ("cpu", "reference"))
    given = points(34, DType.F32)[:3]
    assert_close(*(np.asarray(e(given)) for e in (native, reference)))


def test_no_points_known_only_in_a_run() -> None:
    batch = Batch([applied("fft", (ROWS, Dim("n", 0)), DType.C64)], host())
    assert batch.run(0, np.zeros((ROWS, 0), np.complex64), {"n": 0}).shape == (ROWS, 0)


def test_doubles_are_exact() -> None:
    """A few roundings of 1.1e-16 each: a wrong turn of a stage would show at once."""
    lengths = [2, 3, 12, 17, 64, 97, 400, 1000, 4096]
    batch = Batch([applied("fft", (ROWS, n), DType.C128) for n in lengths], host())
    for i, n in enumerate(lengths):
        x = points(n, DType.C128)
        assert error(batch.run(i, x, {}), np.fft.fft(x)) < 1e-15


def test_a_point_reaches_every_bin() -> None:
    """Transforms of single points, one per row, are the roots of unity themselves."""
    for n in (24, 35, 64):
        batch = Batch([applied("fft", (n, n), DType.C64)], host())
        number = np.outer(np.arange(n), np.arange(n)) % n
        want = np.exp(-2j * np.pi * number / n)
        assert_close(batch.run(0, np.eye(n, dtype=np.complex64), {}), want.astype(np.complex64))


def test_tables_are_shared_and_code_stays_small() -> None:
    many = [applied("fft", (b, 512), DType.C64) for b in range(1, 9)]
    one, all_ = (len(Batch(many[:k], host()).text) for k in (1, 8))
    assert all_ < 1.5 * one


@pytest.mark.parametrize(
    "isa", [i for i in ISAS.values() if i.name not in RUN], ids=lambda i: i.name
)
def test_other_machines_have_code_for_it(isa: Isa) -> None:
    nodes = [applied("fft", (9, n), DType.C64) for n in (9, 17, 60)]
    nodes += [applied("rfft", (9, 60), DType.F16), applied("irfft", (9, 31), DType.C128)]
    schedules = [
        dedicated(n.op)(Step.alone(n, CpuMachine.of(isa)), f"f{i}") for i, n in enumerate(nodes)
    ]
    made = [f for r in schedules for f in functions(r)]
    text = assembled(module(made, isa), isa)
    assert all(f"{f.name}:" in text for f in made)
