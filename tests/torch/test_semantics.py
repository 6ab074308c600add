"""What a module does beside computing: buffers, in-place writes, aliases, strides, weights."""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.model import from_exported

TARGETS = ("reference", "cpu")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


def close(got: Tensor, want: Tensor) -> None:
    """Of sums in another order: a few roundings of f32."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Counter(nn.Module):
    """A buffer that each call adds to, a running statistic, and a view that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x).relu_()
        self.count.add_(1)
        y[:, 1:3].mul_(2)
        return {"normed": self.norm(y), "seen": x.view(-1), "number": 3, "next": self.count + 1}


def test_buffers_are_changed_and_views_written(target: str) -> None:
    module = Counter()
    twin = copy.deepcopy(module)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}}
    exe = rlx.compile(module, (torch.randn(3, 4),), dynamic_shapes=shapes, target=target)
    for size in (3, 5):
        x = torch.randn(size, 4)
        got, want = exe(x), twin(x)
        assert got["number"] == 3
        for key in ("normed", "seen", "next"):
            close(got[key], want[key])
    for (_, ours), (_, theirs) in zip(module.state_dict().items(), twin.state_dict().items()):
        close(ours, theirs)
    assert module.count.item() == 2


def test_results_alias_arguments(target: str) -> None:
    exe = rlx.compile(Counter(), (torch.randn(3, 4),), target=target)
    x = torch.randn(3, 4)
    seen = exe(x)["seen"]
    seen[0] = 7
    assert x[0, 0] == 7


class Cache(nn.Module):
    """A key-value cache in buffers: a step writes its row, and attends to those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))
        self.register_buffer("values", torch.zeros(1, 2, 16, 4))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        q, k, v = self.project(x).view(1, 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, place, k)
        self.values[:, :, place] = v
        mask = torch.arange(16) <= place
        made = nn.functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=mask[None]
        )
        return made.reshape(1, 1, 8)


def test_a_key_value_cache_is_written_in_place(target: str) -> None:
    module = Cache().eval()
    twin = copy.deepcopy(module)
    exe = rlx.compile(module, (torch.randn(1, 1, 8), torch.tensor([0])), target=target)
    with torch.no_grad():
        for step in range(4):
            x, place = torch.randn(1, 1, 8), torch.tensor([step])
            close(exe(x, place), twin(x, place))
    close(module.keys, twin.keys)
    close(module.values, twin.values)


def test_arguments_are_written(target: str) -> None:
    def shifted(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y[0] = x.sum()
        return x * y

    given = torch.randn(3), torch.randn(3)
    exe = rlx.compile(shifted, given, target=target)
    ours, theirs = [t.clone() for t in given], [t.clone() for t in given]
    close(exe(*ours), shifted(*theirs))
    for a, b in zip(ours, theirs):
        close(a, b)


def test_strides_are_torchs(target: str) -> None:
    module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    exe = rlx.compile(module, (x,), target=target)
    got, want = exe(x), module(x)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.stride() == want.stride()
    close(got, want)


def test_expanded_results_have_strides_of_zero(target: str) -> None:
    def step(x: Tensor) -> Any:
        total = (x * 2).sum(1, keepdim=True)
        return total.expand(3, 5), (x + 1).sum(0).expand(2, 4).t(), x * 3

    x = torch.randn(3, 4)
    exe = rlx.compile(step, (x,), target=target)
    for _ in range(2):
        got, want = exe(x), step(x)
        assert [t.stride() for t in got] == [t.stride() for t in want]
        for a, b in zip(got, want):
            close(a, b)
    shown, *_ = exe(x.numpy())
    assert shown.shape == (3, 5)


def test_arguments_need_not_be_contiguous(target: str) -> None:
    module = nn.Linear(6, 3)
    exe = rlx.compile(module, (torch.randn(4, 6),), target=target)
    x = torch.randn(6, 4).t()
    close(exe(x), module(x))


def test_changed_weights_are_noticed(target: str) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    x = torch.randn(5, 16)
    exe = rlx.compile(module, (x,), target=target)
    close(exe(x), module(x))
    with torch.no_grad():
        module[2].weight.mul_(3)
    close(exe(x), module(x))
    module.load_state_dict({k: torch.randn_like(v) for k, v in module.state_dict().items()})
    close(exe(x), module(x))


def test_weights_are_torchs_memory() -> None:
    module = nn.Linear(64, 64)
    model = rlx.load(torch.export.export(module, (torch.randn(2, 64),)))
    assert model.params["weight"].ctypes.data == module.weight.data_ptr()


def test_dropout_in_eval_is_nothing(target: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    x = torch.randn(3, 4)
    close(rlx.compile(module, (x,), target=target)(x), module(x))


def test_random_numbers_follow_torchs_seed(target: str) -> None:
    exe = rlx.compile(lambda x: x + torch.rand_like(x), (torch.zeros(1000),), target=target)
    torch.manual_seed(5)
    first, second = exe(torch.zeros(1000)), exe(torch.zeros(1000))
    torch.manual_seed(5)
    assert torch.equal(first, exe(torch.zeros(1000)))
    assert not torch.equal(first, second)
    assert 0 <= first.min() < first.max() < 1
    assert abs(first.mean() - 0.5) < 0.05  # five deviations of a mean of 1000 numbers


def test_control_flow(target: str) -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    exe = rlx.compile(branch, (torch.ones(3),), target=target)
    for x in (torch.ones(3), -torch.ones(3)):
        close(exe(x), branch(x))


def test_loops(target: str) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def doubled(x: Tensor) -> Tensor:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (torch.tensor(0), x))[
            1
        ]

    x = torch.randn(3)
    close(rlx.compile(doubled, (x,), target=target)(x), x * 1.5**5)


def test_scans(target: str) -> None:
    from torch._higher_order_ops.scan import scan

    def summed(x: Tensor) -> Any:
        return scan(lambda c, x: (c + x, c * x), torch.zeros(4), x)

    x = torch.randn(6, 4)
    carry, rows = rlx.compile(summed, (x,), target=target)(x)
    want_carry, want_rows = summed(x)
    close(carry, want_carry)
    close(rows, want_rows)


def test_maps(target: str) -> None:
    from torch._higher_order_ops.map import map as torch_map

    x, y = torch.randn(5, 3), torch.randn(3)
    mapped = lambda x, y: torch_map(lambda row, y: row * y + 1, x, y)
    close(rlx.compile(mapped, (x, y), target=target)(x, y), x * y + 1)


def test_arrays_in_arrays_out(target: str) -> None:
    module = nn.Linear(4, 2)
    exe = rlx.compile(module, (torch.randn(3, 4),), target=target)
    x = np.ones((3, 4), np.float32)
    got = exe(x)
    assert isinstance(got, np.ndarray)
    close(torch.from_numpy(got), module(torch.from_numpy(x)))


def test_files(tmp_path: Path, target: str) -> None:
    module, x = nn.Linear(4, 2), torch.randn(3, 4)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    close(rlx.compile(rlx.load(tmp_path / "m.pt2"), target)(x), module(x))


def test_threads_and_forks() -> None:
    module, x = nn.Linear(32, 32), torch.randn(8, 32)
    exe = rlx.compile(module, (x,), target="cpu")
    made: list[Tensor] = []
    threads = [threading.Thread(target=lambda: made.append(exe(x))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 4
    for got in made:
        close(got, module(x))
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.allclose(exe(x), made[0]) else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- names and errors -----------------------------------------------------------------------------


def test_provenance_is_module_path_and_line() -> None:
    model = from_exported(torch.export.export(Nested(), (torch.randn(2, 4),)))
    texts = [str(o) for node in model.graph.nodes for o in node.origins]
    assert any("encoder.0 · test_semantics.py:" in t for t in texts), texts


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


@torch.library.custom_op("rlxtest::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    return x**3


@cubed.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Cubing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return cubed(x) + 1


def test_an_op_without_handler_is_named() -> None:
    program = torch.export.export(Cubing(), (torch.randn(3),))
    with pytest.raises(rlx.UnsupportedError) as caught:
        rlx.load(program)
    text = str(caught.value)
    assert "rlxtest::cubed" in text
    assert "test_semantics.py:" in text
    assert "@rlx.torch.handler('rlxtest::cubed')" in text


def test_handlers_can_be_registered(target: str) -> None:
    from rlx.frontends.torch import handlers

    @rlx.torch.handler("rlxtest::cubed")
    def cubed_handler(call: rlx.torch.Call, x: Any) -> Any:
        return rlx.ops.mul(x, rlx.ops.mul(x, x))

    try:
        x = torch.randn(3)
        close(rlx.compile(Cubing(), (x,), target=target)(x), x**3 + 1)
    finally:
        handlers._of_users.clear()


def test_torch_can_run_an_op_on_the_host(target: str, caplog: pytest.LogCaptureFixture) -> None:
    from rlx.frontends.torch import handlers

    rlx.torch.host_op("rlxtest::cubed")
    try:
        x = torch.randn(3)
        exe = rlx.compile(Cubing(), (x,), target=target)
        close(exe(x), x**3 + 1)
    finally:
        handlers._of_users.clear()
    assert "rlxtest.cubed" in caplog.text


# -- memory read by strides -----------------------------------------------------------------------


def _written_by_strides(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].as_strided((2, 3), (6, 2)).add_(1)
    return y


STRIDED: dict[str, Any] = {
    "transposed": lambda x: x.t().as_strided((3, 2), (2, 1), 1),
    "of rows": lambda x: x[1:].as_strided((2, 3), (6, 2)),
    "from the beginning": lambda x: x[:, 2:].as_strided((2, 3), (6, 1), 0) + 1,
    "of a result": lambda x: (x * 2).reshape(2, 12)[1:].as_strided((2, 2), (1, 3)),
    "of a transposed result": lambda x: (x.t() * 2).as_strided((6, 2), (1, 6)),
    "overlapping": lambda x: x.as_strided((5, 4), (1, 1), 2).sum(0),
    "written": _written_by_strides,
}


@pytest.mark.parametrize("name", STRIDED)
def test_memory_is_read_by_strides(target: str, name: str) -> None:
    """`as_strided` reads a tensor's memory, whichever view of it the operand is."""
    net = Function(STRIDED[name])
    for x in (torch.randn(4, 6), torch.randn(6, 4).t()):
        close(rlx.compile(net, (x,), target=target)(x), net(x))


def test_memory_that_an_argument_does_not_have_is_refused(target: str) -> None:
    x = torch.randn(4, 6)[1:]
    with pytest.raises(rlx.UnsupportedError, match="memory that is none of its operand's"):
        rlx.compile(Function(lambda x: x.as_strided((2,), (1,), 0)), (x,), target=target)
