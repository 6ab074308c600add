"""Casts and integers at their corners, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx.core.dtype import DType
from rlx.kernel.lower.loop import loop_kernel
from rlx.ops.op import lookup

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host
from tests.backend.cpu.kernels import Batch, Work

ISAS = [host(), AVX2, SSE2]
REAL = [d for d in DType if not d.is_complex]
INTEGERS = [d for d in DType if d.is_integer]


def corners(dtype: DType) -> np.ndarray:
    """Ends of every range, halves between neighbours, and random bits."""
    rng = np.random.default_rng(0)
    if dtype is DType.BOOL:
        return np.array([False, True] * 20)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.min + 1, 0, 1, 2, 3, 7, 8, 31, info.max - 1, info.max]
        drawn = rng.integers(info.min, info.max, 300, dtype.numpy, endpoint=True)
        return np.concatenate([np.array(ends, dtype.numpy), drawn])
    bits = rng.integers(0, 256, 4000 * dtype.itemsize, np.uint8).view(dtype.numpy)
    powers = [s * (2.0**p) * f for p in range(-26, 66) for s in (1, -1) for f in (1, 1.00048828125)]
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, 65519.99, 65520.0, 65535.5, 1e-8]
    with np.errstate(all="ignore"):
        return np.concatenate([np.array([*odd, *powers]).astype(dtype.numpy), bits])


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """The same values, NaN for NaN."""
    if got.dtype.kind in "biu":
        return bool((got == want).all())
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_every_cast_is_exact(isa: Isa) -> None:
    pairs = list(itertools.product(REAL, REAL))
    works: list[Work] = []
    for given, to in pairs:
        x = corners(given)
        g = rlx.Graph("cast")
        node = g.node("cast", [g.input("x", rlx.Shape(x.shape, given))], {"to": to})
        works.append(Work(loop_kernel(node), [x], {}))
    batch = Batch(works, isa)
    for i, (given, to) in enumerate(pairs):
        got, want = batch.run(i)[1][0], lookup("cast").run(works[i].arrays, {"to": to})
        assert same(got, want), (given, to, _differing(works[i].arrays[0], got, want))


def _differing(x: np.ndarray, got: np.ndarray, want: np.ndarray) -> list[object]:
    bad = [k for k in range(len(x)) if not same(got[k : k + 1], want[k : k + 1])]
    return [(x[k], got[k], want[k]) for k in bad[:3]]


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_every_half_goes_to_f32_and_back(isa: Isa) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    for half in (DType.F16, DType.BF16):
        x = bits.view(half.numpy)
        g = rlx.Graph("halves")
        given = g.input("x", rlx.Shape(x.shape, half))
        wide = g.cast(given, to=DType.F32)
        works = [Work(loop_kernel(wide), [x], {})]
        back = g.cast(g.input("y", rlx.Shape(x.shape, DType.F32)), to=half)
        with np.errstate(all="ignore"):
            exact = x.astype(np.float32)
        works.append(Work(loop_kernel(back), [exact], {}))
        batch = Batch(works, isa)
        assert same(batch.run(0)[1][0], exact)
        assert same(batch.run(1)[1][0], x)


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
@pytest.mark.parametrize(
    "name", ["div", "rem", "mod", "floor_div", "pow", "shift_left", "shift_right", "mul"]
)
def test_integers_at_their_corners(name: str, isa: Isa) -> None:
    op = lookup(name)
    works: list[Work] = []
    for dtype in INTEGERS:
        values = corners(dtype)[:24]
        x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values))
        g = rlx.Graph(name)
        inputs = [g.input(f"x{i}", rlx.Shape(x.shape, dtype)) for i in range(2)]
        works.append(Work(loop_kernel(g.node(op, inputs, {})), [x, y], {}))
    batch = Batch(works, isa)
    for i, work in enumerate(works):
        np.testing.assert_array_equal(batch.run(i)[1][0], op.run(work.arrays, {}))
