"""Transforms and spectra as launches: lengths of every kind, against f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.library.fft.plans import plan_of, radices_of
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from tests.backend.gpu.launches import Host, node_of, run_special, schedule_of, special_of

Array = np.ndarray[Any, Any]
SMALL = GpuMachine(block=64, max_block=64, shared_bytes=16 << 10, has_dependent_launch=True)
B = Dim("b")
LENGTHS = [1, 2, 6, 9, 16, 17, 26, 31, 64, 105, 128, 200, 512, 600]
"""Powers of two, other factors, primes of butterflies, and 17, 31: convolutions."""


def run(node: Node, machine: GpuMachine, *operands: Array, **sizes: int) -> list[Array]:
    special = special_of(node)
    shapes = [(s.bind(sizes).static_dims, s.dtype.numpy) for s in node.shapes]
    return run_special(special, schedule_of(special, machine), operands, shapes, sizes)[0]


def assert_close(got: Array, want: Array, n: int) -> None:
    """Every pass rounds a few times, relative to the norm of the row."""
    eps = np.finfo(got.dtype).eps
    size = np.abs(want).max(initial=0.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=float(eps * size * (4 + 2 * np.log2(n))))


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n: int) -> None:
    machine = GpuMachine() if n in (26, 512) else SMALL
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((5, n)) + 1j * rng.standard_normal((5, n))).astype(np.complex64)
    (got,) = run(node_of("fft", Shape((B, n), DType.C64)), machine, x, b=5)
    assert_close(got, np.fft.fft(x.astype(np.complex128)), n)
    (got,) = run(node_of("rfft", Shape((B, n), DType.F32)), machine, x.real.copy(), b=5)
    assert_close(got, np.fft.rfft(x.real.astype(np.float64)), n)
    wide = x.astype(np.complex128)
    (got,) = run(node_of("ifft", Shape((B, n), DType.C128)), machine, wide, b=5)
    assert_close(got, np.fft.ifft(wide), n)
    bins = n // 2 + 1
    (got,) = run(node_of("irfft", Shape((B, bins), DType.C64), n=n), machine, x[:, :bins], b=5)
    assert_close(got, np.fft.irfft(wide[:, :bins], n), n)


@pytest.mark.parametrize("n", [720, 37])
def test_rows_that_do_not_fit_shared_memory(n: int) -> None:
    """In four steps, and as a convolution of such; real rows are complex ones then."""
    machine = GpuMachine(block=64, max_block=64, shared_bytes=700, has_dependent_launch=True)
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((3, n)) + 1j * rng.standard_normal((3, n))).astype(np.complex64)
    (got,) = run(node_of("fft", Shape((B, n), DType.C64), inverse=True), machine, x, b=3)
    assert_close(got, np.fft.ifft(x.astype(np.complex128)), n)
    (got,) = run(node_of("rfft", Shape((B, n), DType.F32)), machine, x.real.copy(), b=3)
    assert_close(got, np.fft.rfft(x.real.astype(np.float64)), n)


def test_plans() -> None:
    assert radices_of(512) == (8, 8, 8)
    assert radices_of(1024) == (8, 8, 4, 4)
    assert radices_of(400) == (8, 2, 5, 5)
    assert radices_of(17) is None
    plan = plan_of(512, DType.F32, GpuMachine())
    assert plan is not None
    assert (plan.threads, plan.count, plan.block) == (64, 2, 128)


def test_an_unknown_length_is_the_hosts() -> None:
    with pytest.raises(Host, match="has no plan yet"):
        schedule_of(special_of(node_of("fft", Shape((3, B), DType.C64))), SMALL)


# -- spectra of frames ----------------------------------------------------------------------------

T = Dim("t", 64)


def meaning(name: str, *operands: Array, **attrs: Any) -> Array:
    """In f64."""
    wide = [a.astype(np.float64) for a in operands]
    return np.asarray(getattr(ops, name)(*wide, **attrs))


@pytest.mark.parametrize("name", ["stft", "power_frames", "mean_power"])
@pytest.mark.parametrize(("n", "hop", "length"), [(64, 32, 300), (50, 20, 1000), (27, 40, 200)])
def test_frames_of_named_sizes(name: str, n: int, hop: int, length: int) -> None:
    """Even lengths are pairs of points, odd ones complex; the mean's pairs of frames may end with
    one alone."""
    rng = np.random.default_rng(n)
    x, window = (rng.standard_normal(d).astype(np.float32) for d in ((3, length), (n,)))
    attrs = {"n_fft": n, "hop": hop, "center": True}
    node = node_of(name, Shape((B, T), DType.F32), Shape((n,), DType.F32), **attrs)
    (got,) = run(node, SMALL, x, window, b=3, t=length)
    assert_close(got, meaning(name, x, window, **attrs), n)


def test_blocks_share_the_frames_of_a_long_signal() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    attrs = {"n_fft": 16, "hop": 8, "one_sided": True}
    node = node_of("mean_power", Shape((2, 4000), DType.F32), **attrs)
    special = special_of(node)
    schedule = schedule_of(special, SMALL)
    assert len(schedule.tasks) == 2
    (got,) = run(node, SMALL, x)
    assert_close(got, meaning("mean_power", x, **attrs), 4000)


@pytest.mark.parametrize("is_constant", [False, True])
def test_bands_of_weights_are_ranges(is_constant: bool) -> None:
    """And a power that is not finite makes NaN of every band of its frame, as a product does."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 400)).astype(np.float32)
    x[1, 200] = np.inf
    filters = np.zeros((33, 9), np.float32)
    for band in range(8):  # the last one is empty
        filters[3 * band : 3 * band + 6, band] = rng.random(6)
    attrs = {"n_fft": 64, "hop": 30}
    node = node_of("mel_frames", Shape((2, T), DType.F32), Shape((33, 9), DType.F32), **attrs)
    special = special_of(node)
    schedule = schedule_of(special, SMALL, frozenset({1} if is_constant else ()))
    assert len(schedule.packed) == 1 + is_constant
    shapes = [((2, 12, 9), np.float32)]
    ((got,), _) = run_special(special, schedule, [x, filters], shapes, {"t": 400})
    with np.errstate(invalid="ignore"):
        want = meaning("mel_frames", x, filters, **attrs)
    finite = np.isfinite(want)
    assert finite[0].all()
    assert not finite[1].all()
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert_close(got[finite], want[finite], 64)
