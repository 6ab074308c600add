"""Optimisers: a compiled step, and whole steps of training, give what eager gives over five."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from rlx.frontends.torch.dynamo import backend

Make = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore")
"""Torch warns of its own modules while it traces."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def _options(kind: Any, **how: Any) -> Make:
    return lambda params, **more: kind(params, **how, **more)


FOREACH: dict[str, Make] = {
    "SGD": _options(optim.SGD, lr=0.1),
    "SGD momentum": _options(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD nesterov": _options(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": _options(optim.Adam, lr=0.01),
    "Adam amsgrad": _options(optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True),
    "AdamW": _options(optim.AdamW, lr=0.01),
    "NAdam": _options(optim.NAdam, lr=0.01),
    "RAdam": _options(optim.RAdam, lr=0.01),
    "Adamax": _options(optim.Adamax, lr=0.01),
    "Adagrad": _options(optim.Adagrad, lr=0.1),
    "Adadelta": _options(optim.Adadelta),
    "Adafactor": _options(optim.Adafactor),
    "RMSprop": _options(optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "Rprop": _options(optim.Rprop),
    "ASGD": _options(optim.ASGD),
}
OTHERS: dict[str, Make] = {
    "Muon": lambda params: optim.Muon([p for p in params if p.ndim == 2], lr=0.01),
    "Adam fused": lambda params: optim.Adam(params, lr=0.01, fused=True),
    "SGD fused": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    "Adam with a tensor of a rate": lambda params: optim.Adam(
        params, lr=torch.tensor(0.01), foreach=False
    ),
}
CASES = [
    *(pytest.param(_options(m, foreach=f), id=f"{n} {f}") for n, m in FOREACH.items()
      for f in (False, True)),
    *(pytest.param(m, id=n) for n, m in OTHERS.items()),
]  # fmt: skip


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _backward(net: nn.Module, x: Tensor) -> None:
    net.zero_grad()
    net(x).square().mean().backward()


def _step_alone(net: nn.Module, optimizer: Any) -> Callable[[Tensor], None]:
    step = torch.compile(optimizer.step, backend=backend.rlx)

    def run(x: Tensor) -> None:
        _backward(net, x)
        step()

    return run


def _whole(net: nn.Module, optimizer: Any) -> Callable[[Tensor], None]:
    @torch.compile(backend=backend.rlx)
    def run(x: Tensor) -> None:
        _backward(net, x)
        optimizer.step()

    return run


@pytest.mark.parametrize("compiled", [_step_alone, _whole], ids=["step", "whole"])
@pytest.mark.parametrize("make", CASES)
def test_five_steps_are_those_of_eager(compiled: Any, make: Make) -> None:
    ours = _net()
    theirs = copy.deepcopy(ours)
    mine, eager = make(ours.parameters()), make(theirs.parameters())
    step = compiled(ours, mine)
    for _ in range(5):
        x = torch.randn(3, 4)
        step(x)
        _backward(theirs, x)
        eager.step()
        _same_state(mine, eager, ours, theirs)


def _same_state(mine: Any, eager: Any, ours: nn.Module, theirs: nn.Module) -> None:
    """Muon orthogonalises in bf16, where a rounding is 2⁻⁸; all else computes in f32."""
    bound = 2**-8 if isinstance(mine, optim.Muon) else 1e-5
    states = zip(mine.state.values(), eager.state.values(), strict=True)
    pairs = [(a[k], b[k]) for a, b in states for k in b]
    for got, want in [*zip(ours.parameters(), theirs.parameters()), *pairs]:
        torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def test_lbfgs() -> None:
    ours = _net()
    theirs, x = copy.deepcopy(ours), torch.randn(3, 4)
    for net, compile_ in ((ours, True), (theirs, False)):
        optimizer = optim.LBFGS(net.parameters(), max_iter=4)

        def loss(net: nn.Module = net, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            made = net(x).square().mean()
            made.backward()
            return made

        step = torch.compile(optimizer.step, backend=backend.rlx) if compile_ else optimizer.step
        for _ in range(5):
            step(loss)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # of 20 line searches


class Counted(nn.Module):
    """Tensors that a graph has as attributes: plain ones of a module, and of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(3)
        self.rest = [torch.ones(2), torch.ones(2)]

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        for t in self.rest:
            t[1:].mul_(2)
        return x + self.count.sum() + self.rest[0].sum()


def test_plain_tensors_of_modules_are_written_once() -> None:
    ours = Counted()
    theirs = copy.deepcopy(ours)
    step = torch.compile(ours, backend=backend.rlx)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(step(x), theirs(x))
        for a, b in zip([ours.count, *ours.rest], [theirs.count, *theirs.rest]):
            assert torch.equal(a, b)
