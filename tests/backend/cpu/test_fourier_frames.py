"""Spectra of frames and what is added up from them as native code: one kernel each, and what the
reference gives; of rules, that models come to have these kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from bench.workloads import spectral
from rlx import ops
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir import interpret
from rlx.ir.mir import Graph, Node

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import Isa, host
from rlx.backends.cpu.kernels import dedicated
from rlx.backends.cpu.library.fft.power_spectra import FRAMES_PER_CHUNK
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.program.task import Step
from tests.backend.cpu.kernels import assert_close
from tests.backend.cpu.sequences import Runner, functions
from tests.backend.cpu.steps import Steps, side_by_side
from tests.backend.cpu.test_fourier import RUNNABLE, drawn

Array = np.ndarray[Any, Any]
OPS = ("stft", "power_frames", "mean_power", "mel_frames")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_drawn_frames_mean_the_same_natively(op: str, isa: Isa) -> None:
    given = list(drawn(op, 8 if isa is host() else 3))
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        once, apart = (steps.run(i, cuts)[0] for cuts in ("once", "apart"))
        assert once.tobytes() == apart.tobytes(), str(trial)
        assert_close(once, trial.wanted()[0], str(trial))


def applied(op: str, t: DimLike, n: int, **attrs: Any) -> Node:
    g = Graph(op)
    operands = [g.input("x", Shape((3, t), DType.F32))]
    if op == "mel_frames":
        operands.append(g.input("f", Shape((n // 2 + 1, 37), DType.F32)))
    operands.append(g.input("w", Shape((n,), DType.F32)))
    return g.node(op, operands, {"n_fft": n, "hop": 40, "center": True, "pad": "reflect"} | attrs)


def filled(node: Node, t: int) -> list[Array]:
    rng = np.random.default_rng(t)
    shapes = [i.shape.bind({"t": t}).static_dims for i in node.inputs]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("op", OPS)
def test_long_frames(op: str) -> None:
    """By halves and by all points; more than one chunk of frames."""
    given = [
        side_by_side(node, filled(node, t))
        for t in (700, 40 * 2 * FRAMES_PER_CHUNK + 300)
        for node in (applied(op, t, n, pad=p) for n in (64, 75) for p in ("reflect", "zeros"))
    ]
    opened = applied(op, Dim("t", 40), 64)
    given += [side_by_side(opened, filled(opened, t), {"t": t}) for t in (40, 2800)]
    steps = Steps(given, host())
    for i, trial in enumerate(given):
        once, apart = (steps.run(i, cuts)[0] for cuts in ("once", "apart"))
        assert once.tobytes() == apart.tobytes(), str(trial)
        assert_close(once, trial.wanted()[0], str(trial))


@pytest.mark.parametrize("op", OPS)
def test_frames_of_a_prime_length(op: str) -> None:
    """Their tables are filled once, as those of filters that are weights."""
    node = applied(op, 700, 67)
    step = Step.alone(node, CpuMachine.of(host()), frozenset({1}))
    schedule = dedicated(op)(step, "prime")
    assert len(schedule.packed) == (2 if op == "mel_frames" else 1)
    native = Native(module(functions(schedule), host()), host())
    given = filled(node, 700)
    made = np.zeros(node.shape.static_dims, node.shape.dtype.numpy)
    Runner(native, schedule, {}).run(given, [made])
    want = node.decl.evaluate(given, node.attrs, node.shapes)
    assert_close(made, np.asarray(want), op)


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_filters_that_are_zero_still_spread_what_is_not_finite(isa: Isa) -> None:
    """Bands leave out what would add 0: not so where 0 times it is NaN."""
    node = applied("mel_frames", 4000, 64, center=False)
    x, f, w = filled(node, 4000)
    f[:, :] = 0.0
    f[3, 5] = f[4, 6] = f[30, 36] = 1.0
    x[1, 2000] = 1e30
    x[2, 100] = np.nan
    trial = side_by_side(node, [x, f, w])
    (got,) = Steps([trial], isa).run(0)
    with np.errstate(all="ignore"):
        (want,) = trial.wanted()
    assert np.isnan(want).any()
    assert np.isfinite(want).any()
    assert (np.isnan(got) == np.isnan(want)).all()
    finite = np.isfinite(want)
    assert_close(np.where(finite, got, 0.0), np.where(finite, want, 0.0))


# -- models ---------------------------------------------------------------------------------------


def ops_of(exe: Any) -> set[str]:
    """The ops of all kernels and of what regions hold."""
    found: set[str] = set()
    stack = [exe.lir.mir.graph]
    while stack:
        for node in stack.pop().order():
            found.add(node.op)
            stack += [v for v in node.attrs.values() if isinstance(v, Graph)]
    return found


def inputs(m: Any, **dims: tuple[int, ...]) -> list[Node]:
    return [m.input(name, Shape(d, DType.F32)) for name, d in dims.items()]


def log_mel(m: Any) -> Any:
    given = inputs(m, x=(2, 4000), w=(64,), f=(9, 33))
    return m.log_mel_spectrogram(*given, n_fft=64, hop=20)


def peaks(m: Any) -> Any:
    return m.welch(*inputs(m, x=(9, 4000), w=(64,)), k=3, n_fft=64, hop=32)


@pytest.mark.parametrize(("build", "kernel"), [(log_mel, "mel_frames"), (peaks, "mean_power")])
def test_blocks_write_no_frames(build: Callable[[Any], Any], kernel: str) -> None:
    m = rlx.HirModule("block")
    m.set_outputs([build(m)])
    exes = [rlx.compile(m, target=t) for t in ("cpu", "reference")]
    assert kernel in ops_of(exes[0])
    assert not ops_of(exes[0]) & {"frame", "gather", "fft", "rfft", "stft", "power_frames"}
    rng = np.random.default_rng(5)
    dims = [i.shape.static_dims for i in exes[0].lir.mir.graph.inputs]
    given = [np.abs(rng.normal(size=d)).astype(np.float32) for d in dims]
    got, want = (np.asarray(e(*given)) for e in exes)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("work", "kernel"),
    [
        (spectral.welch(2, 96, 32, 3), "mean_power"),
        (spectral.logmel(2, 120, 20, 10, 4), "mel_frames"),
    ],
    ids=["welch", "logmel"],
)
def test_workloads_write_no_frames(work: Any, kernel: str) -> None:
    exe = rlx.compile(work.model(work.rlx_params()), target="cpu", params=work.rlx_params())
    assert kernel in ops_of(exe)
    assert not ops_of(exe) & {"frame", "gather", "rfft", "stft", "power_frames"}


@pytest.mark.parametrize("build", [log_mel, peaks])
def test_any_number_of_threads_gives_the_same(build: Callable[[Any], Any]) -> None:
    m = rlx.HirModule("block")
    m.set_outputs([build(m)])
    made: set[bytes] = set()
    for threads in (1, 2, 3):
        exe = rlx.compile(m, target="cpu", threads=threads)
        rng = np.random.default_rng(7)
        dims = [i.shape.static_dims for i in exe.lir.mir.graph.inputs]
        given = [rng.normal(size=d).astype(np.float32) for d in dims]
        made.add(np.asarray(exe(*given)).tobytes())
    assert len(made) == 1


# -- what a call may be given ---------------------------------------------------------------------


def test_a_signal_shorter_than_a_frame_has_none() -> None:
    """A named length may be less than a frame in a call, also where frames are spelled out."""
    g = Graph("short")
    x = g.input("x", Shape((2, Dim("n")), "f32"))
    g.set_outputs([ops.stft(x, n_fft=8, hop=2), ops.rfft(ops.frame(x, length=8, hop=2))])
    exe, plain = rlx.compile(g, target="cpu"), rlx.compile(g, target="reference")
    for size in (1, 7, 8, 12):
        signal = np.ones((2, size), np.float32)
        for got, want in zip(exe(signal), plain(signal)):
            assert got.shape == (2, max(0, (size - 8) // 2 + 1), 5)
            np.testing.assert_allclose(got, want, atol=1e-5)  # a few roundings of 8


def test_peaks_of_parts_of_frames_are_no_peaks_of_frames() -> None:
    g = Graph("parts")
    frames = ops.frame(g.input("x", Shape((2, 14), "f32")), length=8, hop=3)
    rows = ops.pad(ops.reshape(frames, dims=(12, 4)), low=(0, 0), high=(0, 4), value=0.0)
    g.set_outputs([ops.welch_peaks(ops.fft(rows), k=2, n_segments=3)])
    signal = np.random.default_rng(1).normal(size=(2, 14)).astype(np.float32)
    (want,) = interpret.evaluate(g, {"x": signal})
    made = rlx.compile(g, target="cpu")(signal)
    np.testing.assert_allclose(made, want, rtol=1e-5)  # some dozen roundings of sums of squares
