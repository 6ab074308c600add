"""Digits that must not be lost: near zeros of functions, along long axes, far from the mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dtype import DType

pytest.importorskip("llvmlite")

TARGETS = ["cpu", "cpu:avx2", "reference"]
EPS = {np.float32: 2.0**-23, np.float64: 2.0**-52}


def run(op: Callable[..., Any], x: np.ndarray, target: str, **more: Any) -> np.ndarray:
    g = rlx.Graph("digits")
    g.set_outputs([op(g.input("x", rlx.Shape(x.shape, DType.of(x.dtype))))])
    return rlx.compile(g, target, cache=False, **more)(x)


def off(got: np.ndarray, want: np.ndarray) -> float:
    """The greatest relative error, in roundings of the dtype."""
    with np.errstate(all="ignore"):
        error = np.abs((got.astype(np.longdouble) - want) / want)
    return float(error.max()) / EPS[got.dtype.type]


# -- functions near their zeros -------------------------------------------------------------------

GAMMA = 0.57721566490153286061
STEPS = np.array([-(2.0**-k) for k in range(7, 23)] + [2.0**-k for k in range(7, 23)])


def lgamma_near_one(d: np.ndarray) -> np.ndarray:
    """-γd + Σ ζ(k) (-d)ᵏ / k, to d⁸, which is 2⁻⁵⁶ of the first term for |d| ≤ 2⁻⁷."""
    zetas = (1.6449340668482264, 1.2020569031595942, 1.0823232337111382, 1.0369277551433699,
             1.0173430619844491, 1.0083492773819228, 1.0040773561979443)  # fmt: skip
    return -GAMMA * d + sum(z * (-d) ** k / k for k, z in enumerate(zetas, 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lgamma_keeps_its_digits_near_its_zeros(dtype: Any, target: str) -> None:
    one = (1.0 + STEPS).astype(dtype)
    d = one.astype(np.float64) - 1.0
    assert off(run(ops.lgamma, one, target), lgamma_near_one(d)) < 6
    two = (2.0 + 2.0 * STEPS).astype(dtype)
    d = two.astype(np.float64) - 2.0
    keep = np.abs(d) < 2.0**-7
    want = np.log1p(d) + lgamma_near_one(d)  # near 2 it is 0.42 d, and each of these d: 5 roundings
    assert off(run(ops.lgamma, two, target)[keep], want[keep]) < 12


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lgamma_is_the_logarithm_of_factorials(dtype: Any, target: str) -> None:
    """Also between, by Γ(z + ½) = (2z)! √π / (4ᶻ z!)."""
    n = np.arange(3, 25)
    want = np.array([math.log(math.factorial(int(k) - 1)) for k in n])
    assert off(run(ops.lgamma, n.astype(dtype), target), want) < 4
    ratio = [math.factorial(2 * int(k)) * math.sqrt(math.pi) / (4.0 ** int(k)) for k in n]
    want = np.array([math.log(r / math.factorial(int(k))) for r, k in zip(ratio, n)])
    assert off(run(ops.lgamma, (n + 0.5).astype(dtype), target), want) < 4


@pytest.mark.parametrize("target", TARGETS)
def test_digamma_keeps_its_digits_near_its_zero(target: str) -> None:
    """Where it is 0.9676722454476212 of the distance from the root, to the first order."""
    root, low = 1.4616321449683622, 9.549995429965697e-17
    x = root + np.array([k * 2.0**-40 for k in (-64, -8, -1, 1, 8, 64)])
    want = 0.9676722454476212 * ((x - root) - low) - 0.4427631689835921 * (x - root) ** 2
    assert off(run(ops.digamma, x, target), want) < 4
    near = np.nextafter(np.full(9, root, np.float32), np.float32(2)) + np.float32(0)
    d = near.astype(np.float64) - root
    want = 0.9676722454476212 * d - 0.4427631689835921 * d * d
    assert off(run(ops.digamma, near, target), want) < 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logit_keeps_its_digits_near_a_half(dtype: Any, target: str) -> None:
    x = (0.5 + STEPS / 2).astype(dtype)
    d = 2.0 * x.astype(np.float64) - 1.0
    assert off(run(ops.logit, x, target), 2.0 * np.arctanh(d)) < 5


@pytest.mark.parametrize("target", TARGETS)
def test_a_sinc_far_out_has_the_sine_of_its_fraction(target: str) -> None:
    x = (np.arange(-50, 50) * 1001.0 + 0.25).astype(np.float32)
    wide = x.astype(np.float64)
    sine = np.sin(np.pi * (wide - np.round(wide))) * np.where(np.round(wide) % 2, -1.0, 1.0)
    assert off(run(ops.sinc, x, target), sine / (np.pi * wide)) < 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_cube_root_is_as_near_at_the_ends_of_the_range(target: str) -> None:
    roots = np.array([2.0**-49, 1e-14, 0.1, 3.0, 1e12], np.float32)
    x = (roots.astype(np.float64) ** 3).astype(np.float32)
    assert off(run(ops.cbrt, x, target), np.cbrt(x.astype(np.float64))) < 1.5


# -- long axes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_running_sum_does_not_drift(dtype: Any, target: str) -> None:
    """Ten million of 0.1 were 8.8 % off in f32, as a sum that is rounded ten million times is."""
    x = np.full(10**7 if target == "cpu" else 10**5, 0.1, dtype)
    want = np.arange(1, len(x) + 1) * np.longdouble(x[0])
    # the reference adds f64 in blocks of 16, of blocks of 16, and so on
    few = 16 if (target, dtype) == ("reference", np.float64) else 1
    assert off(run(lambda v: ops.cumsum(v, axis=0), x, target), want) <= few
    back = run(lambda v: ops.cumsum(v, axis=0, reverse=True, exclusive=True), x, target)
    assert off(back[:-1], want[:-1][::-1]) <= few
    assert back[-1] == 0


def test_a_running_sum_has_the_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).normal(size=(37, 5000)).astype(np.float32)
    made = [run(lambda v: ops.cumsum(v, axis=1), x, "cpu", threads=n) for n in (1, 2, 3)]
    assert made[0].tobytes() == made[1].tobytes() == made[2].tobytes()
    assert made[0].tobytes() == run(lambda v: ops.cumsum(v, axis=1), x, "reference").tobytes()


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_running_sums_go_on_behind_what_is_not_finite(target: str) -> None:
    x = np.array([1.0, np.inf, 2.0, -np.inf, 3.0])
    want = [1.0, np.inf, np.inf, np.nan, np.nan]
    for dtype in (np.float16, np.float32, np.float64):
        got = run(lambda v: ops.cumsum(v, axis=0), x.astype(dtype), target)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_running_products_and_log_sums_do_not_drift(target: str) -> None:
    n = 300_000
    x = np.full(n, 1.0 + 2.0**-20, np.float32)
    want = np.exp(np.arange(1, n + 1) * np.log1p(2.0**-20))
    assert off(run(lambda v: ops.cumprod(v, axis=0), x, target), want) <= 1
    zeros = np.full(n, 3.0, np.float32)
    want = 3.0 + np.log(np.arange(1, n + 1))
    assert off(run(lambda v: ops.cum_log_sum_exp(v, axis=0), zeros, target), want) <= 1


SUMS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "along memory": ((3, 70_000), (1,)),
    "of one long row": ((300_000,), (0,)),
    "down narrow rows": ((20_000, 48), (0,)),
    "down wide rows": ((3_000, 3_000), (0,)),
    "of images, channels first": ((1, 24, 96, 97), (2, 3)),
    "of images, channels last": ((1, 96, 97, 24), (1, 2)),
    "of all": ((33, 41, 101), (0, 1, 2)),
    "of the ends": ((65, 7, 201), (0, 2)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_do_not_drift_with_their_length(name: str, target: str) -> None:
    """Of positive numbers, whose rounding errors are of the size of the sum so far: one addition
    after the other is hundreds of roundings off where there are thousands."""
    shape, axes = SUMS[name]
    for x in (np.full(shape, 0.1, np.float32), random(shape)):
        want = x.astype(np.longdouble).sum(axes)
        got = run(lambda v: ops.sum(v, axes=axes), x, target)
        assert off(np.atleast_1d(got), np.atleast_1d(want)) < 10


def random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(3).random(shape).astype(np.float32)


def test_long_sums_have_the_same_bits_for_any_number_of_threads() -> None:
    for shape, axes in SUMS.values():
        made = [run(lambda v: ops.mean(v, axes=axes), random(shape), "cpu", threads=n)  # noqa: B023
                for n in (1, 2)]  # fmt: skip
        assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.parametrize("length", [512, 3_000])
def test_products_add_in_chains_of_a_few(length: int) -> None:
    """Of positive numbers, a chain over all steps has an error of about √length / 3 roundings."""
    x, w = random((32, length)), random((length, 48))
    want = x.astype(np.float64) @ w.astype(np.float64)
    got = run(lambda v: ops.matmul(v, v.graph.constant(w)), x, "cpu")
    apart = (got - want) / want / EPS[np.float32]
    assert np.sqrt(np.mean(apart * apart)) < 1.0
    image, kernels = random((1, length // 8, 12, 12)), random((16, length // 8, 3, 3))
    got = run(lambda v: ops.conv(v, v.graph.constant(kernels)), image, "cpu")
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), (2, 3))
    want = np.einsum("bchwij,ocij->bohw", windows, kernels.astype(np.float64))
    apart = (got - want) / want / EPS[np.float32]
    assert np.sqrt(np.mean(apart * apart)) < 1.0
