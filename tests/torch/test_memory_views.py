"""Views by strides, results of several that are written, and 0-d constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import rlx
from rlx.frontends.torch.dynamo import backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def of_rows(x: Tensor) -> Any:
    return x[1:].as_strided((2, 2), (1, 2)), (x[1:] * 2).as_strided((3, 2), (1, 1), 2)


def of_a_transpose(x: Tensor) -> Any:
    return x.t()[1:].as_strided((2, 3), (2, 1), 1), (x + 1).t().as_strided((2, 2), (1, 4), 3)


def written(x: Tensor) -> Any:
    y = x * 2
    y[1:].as_strided((2, 2), (4, 2)).mul_(3)
    return y, y.t().as_strided((3,), (5,))


def items(x: Tensor) -> Any:
    values, places = x.topk(3)
    values /= values.sum(-1, keepdim=True)
    places += 1
    variance, mean = torch.var_mean(x, 0)
    mean.add_(1)
    parts = [t.clone() for t in x.unbind(0)]
    parts[0].zero_()
    return values, places, variance, mean, parts[0] + x[0]


def constants(x: Tensor) -> Any:
    least, two = torch.tensor(torch.finfo(torch.float32).min), torch.tensor(2)
    return torch.where(x > 0, x * two, least / 1e38), torch.zeros(()).add_(two)


FUNCTIONS: list[Callable[[Tensor], Any]] = [of_rows, of_a_transpose, written, items, constants]


@pytest.mark.parametrize("way", ["compiled", "exported", "with gradients"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_those_of_eager(function: Callable[[Tensor], Any], way: str) -> None:
    x = torch.randn(4, 4)
    if way == "exported":
        got: Any = rlx.compile(function, (x,), target="cpu")(x)
    else:
        net = torch.compile(function, backend=backend.rlx, options={"strict": way == "compiled"})
        with torch.set_grad_enabled(way == "with gradients"):
            got = net(x.clone().requires_grad_(way == "with gradients"))
    for a, b in zip(got, function(x), strict=True):
        torch.testing.assert_close(a.detach(), b)
