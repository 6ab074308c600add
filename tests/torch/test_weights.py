"""Weights that are written where torch does not count it: programs have copies of some, packed or
computed, and never answer from old ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend

Write = Callable[[Tensor], Any]


class Cut(nn.Module):
    """Weights that are views, of which programs have contiguous copies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.randn(20, 30).t()[3:9, ::2])
        self.register_buffer("scale", torch.ones(1))
        self.offset = torch.zeros(10)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.rows * self.scale + self.offset


conv = lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), (3, 16)),
    "wide": (lambda: nn.Linear(512, 700), (9, 512)),
    "convolutions": (conv, (1, 3, 8, 8)),
    "channels last": (lambda: conv().to(memory_format=torch.channels_last), (1, 3, 8, 8)),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)), (2, 6)),
    "views": (Cut, (2, 6)),
}


def through_data(p: Tensor) -> None:
    p.data.mul_(1.5)


def through_an_array(p: Tensor) -> None:
    p.detach().numpy()[...] *= 0.9


def one_element(p: Tensor) -> None:
    p.data[..., -1:] += 0.5


def by_dlpack(p: Tensor) -> None:
    torch.from_dlpack(p.detach()).add_(0.1)


def swapped_rows(p: Tensor) -> None:
    p.data.copy_(p.data.flip(0))


def a_sign(p: Tensor) -> None:
    p.detach().view(torch.int32)[:1].bitwise_xor_(-(2**31))


WRITES: list[Write] = [
    through_data, through_an_array, one_element, by_dlpack, swapped_rows, a_sign,
]  # fmt: skip


def compiled(module: nn.Module, x: Tensor, way: str, target: str) -> Any:
    if way == "exported":
        return rlx.compile(module, (x,), target=target)
    torch._dynamo.reset()
    options = {"strict": True, "target": target}
    return torch.compile(module, backend=backend.rlx, options=options)


def close(got: Tensor, want: Tensor) -> None:
    """Sums in another order: a few roundings of f32."""
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("way", ["exported", "compiled"])
@pytest.mark.parametrize("name", MODULES)
def test_writes_are_noticed(name: str, way: str, target: str) -> None:
    make, shape = MODULES[name]
    module, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        net = compiled(module, x, way, target)
        close(net(x), module(x))
        plain = [module.offset] if isinstance(module, Cut) else []
        tensors = [*module.parameters(), *module.buffers(), *plain]
        for tensor in (t for t in tensors if t.is_floating_point()):
            for write in WRITES:
                write(tensor)
                tensor.data.abs_()  # variances stay positive
                close(net(x), module(x))


@pytest.mark.parametrize("grad", [False, True])
def test_fused_optimisers_are_noticed(grad: bool) -> None:
    """They write parameters and count nothing."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    theirs, x = copy.deepcopy(ours), torch.randn(3, 4)
    net = torch.compile(ours, backend=backend.rlx)
    steps = [torch.optim.Adam(m.parameters(), lr=0.1, fused=True) for m in (ours, theirs)]
    for _ in range(5):
        with torch.set_grad_enabled(grad):
            close(net(x), theirs(x))
        for module, optimizer in zip((ours, theirs), steps):
            module.zero_grad()
            (net if grad and module is ours else module)(x).square().sum().backward()
            optimizer.step()


def test_adapters_are_merged_and_averaged() -> None:
    """LoRA merges, moving averages and clipping, as libraries write them."""
    module, x = nn.Linear(64, 64), torch.randn(5, 64)
    low, high = torch.randn(64, 4), torch.randn(4, 64)
    average = copy.deepcopy(module)
    with torch.no_grad():
        net = compiled(module, x, "compiled", "cpu")
        for sign in (1, -1):
            module.weight.data += sign * (low @ high)
            close(net(x), module(x))
        for ours, theirs in zip(module.parameters(), average.parameters()):
            ours.data.lerp_(theirs.data + 1, 0.1)
        close(net(x), module(x))
        module.weight.data.clamp_(-0.05, 0.05)
        close(net(x), module(x))


def test_constants_that_are_changed_are_refused() -> None:
    outside = torch.tensor([1.0, 2.0])

    class Outside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * outside

    exe = rlx.compile(Outside(), (torch.ones(2),), target="cpu")
    close(exe(torch.ones(2)), outside)
    outside.data.mul_(2)
    with pytest.raises(rlx.Error, match="Compile the model again"):
        exe(torch.ones(2))


def test_calls_that_count_writes_alone() -> None:
    module, x = nn.Linear(8, 8), torch.randn(2, 8)
    with torch.no_grad():
        exe = rlx.compile(module, (x,), target="cpu")
        exe.watch_weights("counted")
        module.weight.mul_(2)
        close(exe(x), module(x))
        exe.watch_weights("compared")
        module.weight.data.mul_(2)
        close(exe(x), module(x))
        with pytest.raises(rlx.Error, match="'compared' or 'counted'"):
            exe.watch_weights("never")
