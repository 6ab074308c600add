"""Values at infinities, NaN, signed zeros and other ends of what functions take are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlx

INF, NAN = float("inf"), float("nan")
PARTS = (0.0, -0.0, 0.5, -2.0, 1e-6, 1e30, -100.0, INF, -INF, NAN)
COMPLEX = (
    "exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sigmoid", "reciprocal",
)  # fmt: skip
FLOATS = (1.5, -1.5, 300.0, -40000.0, 2.0**31, -(2.0**31), 3e9, 2.0**63, -1e30, INF, -INF, NAN)


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def computed(function: Any, target: str, *given: torch.Tensor) -> Any:
    return rlx.compile(Applied(function), given, target=target)(*given)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_functions(name: str, target: str) -> None:
    """1e-4 of the greater part: e^100 overflows, and is of two factors where it does."""
    x = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex64)
    function = getattr(torch, name)
    got, want = (torch.view_as_real(v) for v in (computed(function, target, x), function(x)))
    size = want.abs().nan_to_num(0.0, posinf=0.0).amax(-1, keepdim=True)
    same = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= 1e-4 * size)
    assert same.all(), x[~same.all(-1)]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_sums_and_powers_of_complex_infinities(target: str) -> None:
    x = torch.tensor([complex(a, b) for a in (0.0, -2.0, INF) for b in (1.0, INF, NAN)])
    a, b = (v.reshape(-1).clone() for v in torch.broadcast_tensors(x[:, None], x[None]))
    for function in (torch.add, torch.sub, torch.pow):
        got, want = computed(function, target, a, b), function(a, b)
        assert torch.allclose(torch.view_as_real(got), torch.view_as_real(want), equal_nan=True)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_floats_that_no_integer_is(to: torch.dtype, target: str) -> None:
    """Processors give the least integer, which torch leaves to them."""
    x = torch.tensor(FLOATS, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64, torch.float16):
        given = x.to(dtype)
        assert torch.equal(computed(lambda v: v.to(to), target, given), given.to(to)), dtype


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_labels_after_the_end_do_not_count(target: str) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    labels = torch.tensor([[3, 0, -1, 1], [0, 0, -1, 2], [-1, 1, 2, 3]])
    for reduction in ("none", "mean", "sum"):
        loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)
        assert torch.allclose(computed(loss, target, x, labels), loss(x, labels))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_bins_of_edges_that_fall(target: str) -> None:
    x = torch.linspace(-9, 9, 41)
    edges = torch.tensor([-8.0, -1.5, -4.0, 2.5, 1.0, 6.0])
    function = lambda v, e: torch.histogram(v, e).hist
    assert torch.equal(computed(function, target, x, edges), function(x, edges))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_windows_of_given_samples(rank: int, target: str) -> None:
    pool = getattr(torch.nn.functional, f"fractional_max_pool{rank}d_with_indices")
    x = torch.randn(2, 3, *(8, 9, 7)[:rank], generator=torch.Generator().manual_seed(1))
    samples = torch.linspace(0, 0.99, 6 * rank).reshape(2, 3, rank)
    how = {"kernel_size": (2, 3, 2)[:rank], "output_size": (4, 1, 5)[:rank]}
    function = lambda v, s: pool(v, **how, _random_samples=s)
    for got, want in zip(computed(function, target, x, samples), function(x, samples)):
        assert torch.equal(got, want)
