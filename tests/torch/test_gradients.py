"""Calls where gradients are on: what a backward pass is given, and what has no gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

import rlx
from rlx.frontends.torch.dynamo import backend


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_constants_without_axes() -> None:
    layer = nn.Linear(4, 4)

    def scaled(x: Tensor) -> Tensor:
        return layer(x) * torch.tensor(0.5) + torch.tensor([-1.0]) + torch.tensor(2)

    x = torch.randn(3, 4)
    made = torch.compile(scaled, backend=backend.rlx, options={"strict": True})(x)
    torch.testing.assert_close(made, scaled(x), rtol=1e-6, atol=1e-6)
    assert made.requires_grad


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(8),
    "group": lambda: nn.GroupNorm(2, 8),
    "batch": lambda: nn.BatchNorm1d(8),
    "rms": lambda: nn.RMSNorm(8),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_behind_products_in_autocast(norm: str, dtype: torch.dtype) -> None:
    """Linear gives half floats, the norm has weights in f32, and so has its backward pass. The
    forward pass is rounded at other places: some roundings of 8 or 11 bits."""
    net = nn.Sequential(nn.Linear(8, 8), NORMS[norm](), nn.Linear(8, 3))
    x = torch.randn(16, 8)

    def gradients(forward: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        net.zero_grad()
        with torch.autocast("cpu", dtype):
            made = forward(x)
        made.float().square().mean().backward()
        return [p.grad for p in net.parameters()]

    eager = gradients(net)
    compiled = gradients(torch.compile(net, backend=backend.rlx, options={"strict": True}))
    for got, want in zip(compiled, eager, strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read while torch traces
def test_compiled_autograd() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    net(x).square().sum().backward()
    eager = [p.grad for p in net.parameters()]
    net.zero_grad()
    compiled = torch.compile(net, backend=backend.rlx)
    with compiled_autograd._enable(torch.compile(backend=backend.rlx)):
        compiled(x).square().sum().backward()
    for p, want in zip(net.parameters(), eager, strict=True):
        torch.testing.assert_close(p.grad, want, rtol=1e-4, atol=1e-5)


def test_an_exported_program_says_that_it_has_no_gradients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    program = rlx.compile(net, (x,))
    with caplog.at_level(logging.WARNING, "rlx"):
        with torch.no_grad():
            program(x)
        assert not [r for r in caplog.records if r.name == "rlx"]
        program(x)
        program(x)
    (record,) = [r for r in caplog.records if r.name == "rlx"]
    assert "torch.compile(module, backend='rlx')" in record.getMessage()
    with pytest.raises(rlx.Error, match="argument 0 requires grad"):
        program(x.requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(program(x), net(x), rtol=1e-6, atol=1e-6)
