"""Automatic mixed precision: regions inside of what is compiled, and around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend

LINEAR, NORM, CONV = nn.Linear(64, 64), nn.LayerNorm(64), nn.Conv1d(4, 4, 3)
autocast = torch.autocast


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def inside(x: Tensor) -> Any:
    with autocast("cpu", dtype=torch.bfloat16):
        y = LINEAR(x)
        return y, torch.softmax(y, -1), y + x


def half(x: Tensor) -> Any:
    with autocast("cpu", dtype=torch.float16):
        return LINEAR(x) @ x.T


def disabled_inside(x: Tensor) -> Any:
    with autocast("cpu", dtype=torch.bfloat16):
        y = LINEAR(x)
        with autocast("cpu", enabled=False):
            return y, x @ x.T, torch.outer(x[0], x[1]).cos()


def disabled(x: Tensor) -> Any:
    """As the rotary embeddings of transformers."""
    with autocast(device_type="cpu", enabled=False):
        angles = (x[:, :, None].float() @ x[:, None, :4].float()).transpose(1, 2)
        return angles.cos(), angles.sin()


def of_all_kinds(x: Tensor) -> Any:
    """Ops of lower precision, of f32, of the widest operand, and of none of these lists."""
    with autocast("cpu", dtype=torch.bfloat16):
        y = NORM(LINEAR(x))
        z = CONV(x.reshape(1, 4, 64)).flatten(1)[:, :64]
        both = torch.cat([y, x]) + z
        attended = nn.functional.scaled_dot_product_attention(x[None], y[None], y[None])
        return both, attended, nn.functional.mse_loss(y, x), torch.stack([y, x]).mean()


def of_another_device(x: Tensor) -> Any:
    with autocast("cuda", dtype=torch.float16, enabled=False):
        return LINEAR(x)


@torch.no_grad()
def without_gradients(x: Tensor) -> Tensor:
    with autocast("cpu", enabled=False):
        return x @ x.T


def nested(x: Tensor) -> Any:
    with autocast("cpu", dtype=torch.bfloat16):
        y = without_gradients(x)
        with autocast("cpu", dtype=torch.float16):
            return y, LINEAR(x), [LINEAR(x[i : i + 1]) for i in range(2)]


REGIONS = [inside, half, disabled_inside, disabled, of_all_kinds, of_another_device, nested]


class Held(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.norm, self.conv, self.function = LINEAR, NORM, CONV, function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def by_dynamo(function: Callable[..., Any], x: Tensor) -> Any:
    return torch.compile(function, backend=backend.rlx, options={"strict": True})(x)


def by_export(function: Callable[..., Any], x: Tensor) -> Any:
    return rlx.compile(Held(function), (x,), target="cpu")(x)


@pytest.mark.parametrize("ambient", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compiled", [by_dynamo, by_export])
@pytest.mark.parametrize("function", REGIONS)
def test_regions(function: Any, compiled: Any, ambient: Any) -> None:
    x = torch.randn(4, 64)
    with autocast("cpu", ambient, enabled=ambient is not None):
        want, got = function(x), compiled(function, x)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (got, want)), strict=True):
        # a rounding of an operand or of a result, and none where the region is in f32
        exact = b.dtype == torch.float32 and function is disabled
        bound = 1e-6 if exact else 2**-6
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


def test_a_region_rounds_operands_as_torch_does() -> None:
    """2⁻¹² is lost in bf16, beside 1."""
    x = torch.full((1, 64), 1 + 2.0**-12)

    def summed(x: Tensor) -> Tensor:
        with autocast("cpu", dtype=torch.bfloat16):
            return torch.nn.functional.linear(x, torch.ones(1, 64)).float()

    def plain(x: Tensor) -> Tensor:
        with autocast("cpu", enabled=False):
            return torch.nn.functional.linear(x, torch.ones(1, 64))

    for compiled in (by_dynamo, by_export):
        with autocast("cpu", dtype=torch.bfloat16):
            assert compiled(summed, x) == 64
            assert compiled(plain, x) == 64 * (1 + 2.0**-12)
