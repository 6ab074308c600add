"""Forward passes for torch's backward pass: what norms keep in mixed precision, graphs of compiled
autograd; and programs that have no gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.config.compiled_autograd = False


def _gradients(module: Callable[..., Any], net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    module(x).float().square().mean().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(8),
    "layer without bias": lambda: nn.LayerNorm(8, bias=False),
    "layer without weights": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "batch": lambda: nn.BatchNorm1d(8),
    "batch, evaluated": lambda: nn.BatchNorm1d(8).eval(),
    "instance": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.InstanceNorm1d(1, affine=True),
                                      nn.Flatten()),
    "rms": lambda: nn.RMSNorm(8),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_train_under_autocast(norm: str, dtype: torch.dtype) -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), NORMS[norm](), nn.Linear(8, 2)), torch.randn(4, 8)
    compiled = torch.compile(net, backend=backend.rlx)
    with torch.autocast("cpu", dtype=dtype):
        want, got = (_gradients(m, net, x) for m in (net, compiled))
    for a, b in zip(got, want, strict=True):
        bound = 2**-4 if dtype is torch.bfloat16 else 2**-7  # of sums of a few roundings
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


def test_graphs_of_compiled_autograd() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(4, 8)
    want = _gradients(net, net, x)
    torch._dynamo.config.compiled_autograd = True

    @torch.compile(backend=backend.rlx)
    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        net.zero_grad()
        step(x)
        for p, b in zip(net.parameters(), want, strict=True):
            torch.testing.assert_close(p.grad, b, rtol=1e-5, atol=1e-5)


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
