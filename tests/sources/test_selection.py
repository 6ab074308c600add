"""Sorting, running folds, triangles and what is found in data, against NumPy, SciPy and ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.errors import Error
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "sort": "numpy.sort; onnx.reference TopK where it is descending",
    "argsort": "numpy.argsort(stable); onnx.reference TopK where it is descending",
    "top_k": "onnx.reference TopK",
    "searchsorted": "numpy.searchsorted",
    "cumprod": "onnx.reference CumProd",
    "cumsum": "onnx.reference CumSum",
    "cummax": "a Python loop with max",
    "cummin": "a Python loop with min",
    "cum_log_sum_exp": "scipy.special.logsumexp of every prefix",
    "trilu": "onnx.reference Trilu",
    "reverse_sequence": "onnx.reference ReverseSequence",
}
RNG = np.random.default_rng(5)


def values(*dims: int) -> np.ndarray:
    """Whole numbers as floats: there are equals among them, and arithmetic is exact."""
    return RNG.integers(-3, 4, dims).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_order(axis: int) -> None:
    x = values(4, 5, 6)
    x[1, 2, 3] = np.nan
    np.testing.assert_array_equal(ops.sort(x, axis=axis), np.sort(x, axis))
    np.testing.assert_array_equal(ops.argsort(x, axis=axis), np.argsort(x, axis, kind="stable"))
    plain = np.nan_to_num(x)
    size = np.array([x.shape[axis]])
    attrs = {"axis": axis, "largest": 1}
    top, where = run_onnx("TopK", [plain, size], attrs, 2)
    np.testing.assert_array_equal(ops.sort(plain, axis=axis, descending=True), top)
    np.testing.assert_array_equal(ops.argsort(plain, axis=axis, descending=True), where)


@pytest.mark.parametrize("largest", [False, True])
def test_top_k(largest: bool) -> None:
    x = values(4, 9)
    want = run_onnx("TopK", [x, np.array([3])], {"axis": 1, "largest": int(largest)}, 2)
    for got, wanted in zip(ops.top_k(x, k=3, axis=1, largest=largest), want):
        np.testing.assert_array_equal(got, wanted)


def test_nan_is_greatest() -> None:
    x = np.array([np.nan, 1.0, np.inf, np.nan, -np.inf])
    np.testing.assert_array_equal(ops.argsort(x), [4, 1, 2, 0, 3])
    np.testing.assert_array_equal(ops.argsort(x, descending=True), [0, 3, 2, 1, 4])
    np.testing.assert_array_equal(ops.argsort(x, descending=True), ops.top_k(x, k=5)[1])


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: str) -> None:
    edges, x = np.sort(values(9)), values(4, 5)
    edges[-2:], x[0, :2] = np.nan, [np.nan, np.inf]
    want = np.searchsorted(edges, x, side)
    np.testing.assert_array_equal(ops.searchsorted(edges, x, side=side), want)
    shuffled = RNG.permutation(edges)
    np.testing.assert_array_equal(ops.searchsorted(shuffled, x, side=side), want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_and_products(axis: int, exclusive: bool, reverse: bool) -> None:
    x = values(3, 4, 5)
    attrs = {"exclusive": int(exclusive), "reverse": int(reverse)}
    (want,) = run_onnx("CumProd", [x, np.array(axis)], attrs, opset=26)
    got = ops.cumprod(x, axis=axis, exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(got, want)
    (want,) = run_onnx("CumSum", [x, np.array(axis)], attrs)
    got = ops.cumsum(x, axis=axis, exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_extremes(reverse: bool) -> None:
    x = values(3, 7)
    steps = range(6, -1, -1) if reverse else range(7)
    for name, extreme in (("cummax", max), ("cummin", min)):
        want = np.empty_like(x)
        for row in range(3):
            best = None
            for i in steps:
                best = x[row, i] if best is None else extreme(best, x[row, i])
                want[row, i] = best
        np.testing.assert_array_equal(getattr(ops, name)(x, axis=1, reverse=reverse), want)


def test_running_log_sum_exp() -> None:
    from scipy.special import logsumexp

    x = RNG.normal(size=(3, 8)) * 30
    x[0, :2] = -np.inf
    want = np.stack([logsumexp(x[:, : i + 1], axis=1) for i in range(8)], axis=1)
    # Eight additions of one rounding each, relative to results of up to 100.
    np.testing.assert_allclose(ops.cum_log_sum_exp(x, axis=1), want, rtol=8 * 2**-52)
    back = np.flip(ops.cum_log_sum_exp(np.flip(x, 1), axis=1, reverse=True), 1)
    np.testing.assert_array_equal(back, ops.cum_log_sum_exp(x, axis=1))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("k", [-6, -1, 0, 2, 7])
def test_trilu(k: int, upper: bool) -> None:
    x = RNG.integers(1, 9, (2, 4, 5))
    (want,) = run_onnx("Trilu", [x, np.array(k)], {"upper": int(upper)})
    np.testing.assert_array_equal(ops.trilu(x, k=k, upper=upper), want)


def test_reverse_sequence() -> None:
    x, lengths = values(4, 3, 2), np.array([0, 4, 2])
    (want,) = run_onnx("ReverseSequence", [x, lengths], {"batch_axis": 1, "time_axis": 0})
    np.testing.assert_array_equal(ops.reverse_sequence(x, lengths), want)
    turned = np.swapaxes(x, 0, 1)
    got = ops.reverse_sequence(turned, lengths, batch_axis=0, time_axis=1)
    np.testing.assert_array_equal(got, np.swapaxes(want, 0, 1))
    with pytest.raises(Error, match="length 5 is out of range"):
        ops.reverse_sequence(x, np.array([1, 5, 2]))
