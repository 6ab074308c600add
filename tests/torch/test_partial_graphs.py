"""`torch.compile(backend="rlx")` where torch runs some: backward passes, and graphs in parts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlx.frontends.torch.dynamo import backend


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend.rlx, options={"target": "cpu", **options})


def close(got: Any, want: Any) -> None:
    """Of sums in another order: a few roundings of f32."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "rlx"]


# -- backward passes ------------------------------------------------------------------------------


class Normed(nn.Module):
    """Batch norm in training, which changes its statistics, and pooling, which keeps indices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.last = nn.Linear(72, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.norm(self.conv(x)).relu_(), 2)
        return self.last(y.flatten(1))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


class Causal(nn.Module):
    """Attention whose heads share keys, and a cell of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.cell = nn.Linear(16, 32), nn.Linear(16, 16), nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x).view(2, 4, 5, 8), self.k(x).view(2, 2, 5, 8)
        made = nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        return self.cell(made.reshape(-1, 8))


@pytest.mark.parametrize(
    ("make", "dims"),
    [(mlp, (5, 16)), (Normed, (2, 3, 8, 8)), (encoder, (2, 5, 16)), (Causal, (2, 5, 16))],
)
def test_gradients_are_eagers(
    make: Callable[[], nn.Module], dims: tuple[int, ...], graphs: list[Any]
) -> None:
    """Of params and of the argument, with buffers changed as eager does; twice, with other params
    the second time."""
    module = make()
    twin, net = copy.deepcopy(module), compiled(module, strict=True)
    for _ in range(2):
        mine = torch.randn(dims, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        got, want = net(mine), twin(theirs)
        close(got, want)
        weight = torch.randn_like(want)
        (got * weight).sum().backward()
        (want * weight).sum().backward()
        close(mine.grad, theirs.grad)
        for a, b in zip(module.parameters(), twin.parameters()):
            close(a.grad, b.grad)
            with torch.no_grad():
                a.sub_(a.grad, alpha=0.01)
                b.sub_(b.grad, alpha=0.01)
        for a, b in zip(module.buffers(), twin.buffers()):
            close(a, b)
    assert len(graphs) == 1


def test_calls_that_need_no_gradient_are_told_how_to_keep_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, x = mlp().eval(), torch.randn(3, 16)
    with caplog.at_level(logging.WARNING, "rlx"):
        net = compiled(module)
        for _ in range(3):
            close(net(x), module(x))
    (text,) = told(caplog)
    assert "rlx runs the forward pass" in text
    assert "torch.no_grad()" in text


def test_one_program_differentiates_all_sizes(graphs: list[Any]) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh())
    twin = copy.deepcopy(module)
    net = torch.compile(module, backend=backend.rlx, dynamic=True, options={"strict": True})
    for length in (3, 5, 8):
        x = torch.randn(2, length, 4)
        net(x).square().sum().backward()
        twin(x).square().sum().backward()
    for a, b in zip(module.parameters(), twin.parameters()):
        close(a.grad, b.grad)
    assert len(graphs) == 1


def test_dropout_in_training_keeps_its_mask(graphs: list[Any]) -> None:
    """The gradient is that of what was kept: 2 where a value came through, 0 elsewhere."""
    x = torch.ones(64, requires_grad=True)
    y = compiled(nn.Dropout(0.5).train(), strict=True)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < int((y == 0).sum()) < 64
    assert len(graphs) == 1


# -- parts ----------------------------------------------------------------------------------------


@torch.library.custom_op("rlx_tests::cumulated", mutates_args=())
def cumulated(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy().cumsum(0))


@cumulated.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Cut(nn.Module):
    """An op of another library between two halves, and a buffer that is counted up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        y = self.first(x).relu()
        z = cumulated(y)
        return self.last(z) + y.sum() + self.count


def test_custom_ops_cut_a_graph_in_parts(
    graphs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    module = Cut().eval()
    twin, net = copy.deepcopy(module), compiled(module)
    line = Cut.forward.__code__.co_firstlineno + 3
    with torch.no_grad(), caplog.at_level(logging.WARNING, "rlx"):
        for _ in range(3):
            x = torch.randn(3, 4)
            close(net(x), twin(x))
        module.first.weight.mul_(2)
        twin.first.weight.mul_(2)
        close(net(x), twin(x))
    assert module.count.item() == 4
    assert len(graphs) == 2
    assert set(graphs[0].model.weights) == {"first.weight", "first.bias"}
    (text,) = told(caplog)
    assert "runs in 2 parts" in text
    assert f"rlx_tests::cumulated at test_partial_graphs.py:{line}" in text


def test_parts_serve_all_sizes(graphs: list[Any]) -> None:
    module = Cut().eval()
    with torch.no_grad():
        net = torch.compile(module, backend=backend.rlx, dynamic=True)
        twin = copy.deepcopy(module)
        for rows in (3, 5, 9):
            x = torch.randn(rows, 4)
            close(net(x), twin(x))
    assert len(graphs) == 2


def test_parts_differentiate(graphs: list[Any]) -> None:
    def halves(x: Tensor, weight: Tensor) -> Tensor:
        y = (x @ weight).tanh()
        wide = y.to(torch.float8_e4m3fn).to(torch.float32)
        return (y * wide.detach()).sum() + weight.square().sum()

    x, weight = torch.randn(3, 4), torch.randn(4, 5)
    mine, theirs = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    compiled(halves)(x, mine).backward()
    halves(x, theirs).backward()
    close(mine.grad, theirs.grad)
    assert len(graphs) >= 1


def test_transforms_of_functions_are_run_by_rlx(graphs: list[Any]) -> None:
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(lambda a, b: a * b.sum() + torch.tensor([1.0, 2.0, 3.0]))(x, y)

    x, y = torch.randn(4, 3), torch.randn(4, 5)
    with torch.no_grad():
        net = compiled(scaled, strict=True)
        close(net(x, y), scaled(x, y))
        close(net(2 * x, y), scaled(2 * x, y))
    assert len(graphs) == 1
