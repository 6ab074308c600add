"""`torch.compile(backend="rlx")`: what the compiled function does beside computing."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture(params=("reference", "cpu"))
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """torch.compile for a target, where no graph may stay with torch."""

    def make(function: Any, *, options: dict[str, Any] | None = None, **how: Any) -> Any:
        asked = {"target": request.param, "strict": True, **(options or {})}
        return torch.compile(function, backend=backend.rlx, options=asked, **how)

    return make


def close(got: Any, want: Any) -> None:
    """Of sums in another order: a few roundings of f32; and with torch's strides."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, check_stride=True)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()


# -- graphs ---------------------------------------------------------------------------------------


def test_composites_stay_whole(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu").eval()
    torch.backends.mha.set_fastpath_enabled(False)
    x = torch.randn(2, 5, 16)
    close(compiled(layer)(x), layer(x))
    (program,) = graphs
    assert not program.model.decomposed
    ops = [n.op for n in program.model.graph.nodes]
    assert ops.count("layer_norm") == 2
    assert ops.count("attention") == 1


def test_one_program_serves_all_sizes(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = compiled(module, dynamic=True)
    for batch, side in ((2, 8), (3, 9), (5, 12), (2, 30)):
        x = torch.randn(batch, 3, side, side)
        close(net(x), module(x))
    assert len(graphs) == 1


def test_sizes_are_named_dims_in_torchs_range(
    compiled: Callable[..., Any], graphs: list[Any]
) -> None:
    x = torch.randn(6, 16)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=64)
    module = mlp()
    close(compiled(module)(x), module(x))
    (dim,) = graphs[0].model.graph.dynamic_symbols
    assert (dim.min, dim.max) == (4, 64)


def test_numbers_that_vary_are_inputs(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    def scaled(x: Tensor, n: int) -> Tensor:
        return x * n + torch.arange(n).sum()

    x, net = torch.randn(5), compiled(scaled, dynamic=True)
    for n in (3, 4, 7):
        close(net(x, n), scaled(x, n))
    assert len(graphs) == 1


def test_tensors_made_inside_are_constants(compiled: Callable[..., Any]) -> None:
    def weighted(x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(3)
    close(compiled(weighted)(x), weighted(x))


def test_params_are_named_as_the_module_names_them(graphs: list[Any]) -> None:
    module, x = mlp(), torch.randn(2, 16)
    torch.compile(module, backend=backend.rlx)(x)
    assert set(graphs[0].model.weights) == set(module.state_dict())


def test_params_are_torchs_memory(graphs: list[Any]) -> None:
    module, x = nn.Linear(64, 64), torch.randn(2, 64)
    torch.compile(module, backend=backend.rlx)(x)
    assert graphs[0].model.params["weight"].ctypes.data == module.weight.data_ptr()


# -- memory ---------------------------------------------------------------------------------------


class Counter(nn.Module):
    """A buffer that calls add to, running statistics, and views that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        y = self.linear(x).relu_()
        y[:, 1:3].mul_(2)
        return self.norm(y) + self.count


def test_mutated_buffers(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    module = Counter()
    twin, net = copy.deepcopy(module), compiled(module)
    for _ in range(3):
        x = torch.randn(5, 4)
        close(net(x), twin(x))
    for (_, ours), (_, theirs) in zip(module.state_dict().items(), twin.state_dict().items()):
        close(ours, theirs)
    assert module.count.item() == 3
    assert len(graphs) == 1


class Cache(nn.Module):
    """A key-value cache that a step writes one row of."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))

    def forward(self, x: Tensor, place: Tensor, values: Tensor) -> Tensor:
        q, k, v = self.project(x).view(1, 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, place, k)
        values[:, :, place] = v
        mask = torch.arange(16) <= place
        made = nn.functional.scaled_dot_product_attention(
            q, self.keys, values, attn_mask=mask[None]
        )
        return made.reshape(1, 1, 8)


def test_key_value_caches_are_written_in_place(
    compiled: Callable[..., Any], graphs: list[Any]
) -> None:
    """One in a buffer of the module, one that calls give."""
    module = Cache().eval()
    twin, net = copy.deepcopy(module), compiled(module)
    ours, theirs = torch.zeros(1, 2, 16, 4), torch.zeros(1, 2, 16, 4)
    memory = ours.data_ptr(), module.keys.data_ptr()
    for step in range(4):
        x, place = torch.randn(1, 1, 8), torch.tensor([step])
        close(net(x, place, ours), twin(x, place, theirs))
    close(module.keys, twin.keys)
    close(ours, theirs)
    assert (ours.data_ptr(), module.keys.data_ptr()) == memory
    assert len(graphs) == 1


def test_results_alias_arguments(compiled: Callable[..., Any]) -> None:
    def views(x: Tensor) -> Any:
        first, second = x.chunk(2)
        return x.view(-1), second.t(), first + 1, x.clone()

    x = torch.randn(4, 3)
    flat, turned, _, own = compiled(views)(x)
    before = own.clone()
    x.fill_(7)
    assert (flat == 7).all()
    assert (turned == 7).all()
    assert turned.stride() == x.chunk(2)[1].t().stride()
    assert torch.equal(own, before)


def test_results_alias_one_another(compiled: Callable[..., Any]) -> None:
    def results(x: Tensor) -> Any:
        y = x * 2
        values, places = y.max(dim=0)
        return y, y[1:], y.clone(), values, places

    x = torch.randn(4, 3)
    got = compiled(results)(x)
    for ours, theirs in zip(got, results(x)):
        close(ours, theirs)
    whole, rows, own, *_ = got
    whole.fill_(7)
    assert (rows == 7).all()
    assert not (own == 7).any()


def test_results_alias_weights(compiled: Callable[..., Any]) -> None:
    module = nn.Embedding(4, 3)

    def rows(i: Tensor) -> Any:
        return module(i), module.weight[1:3]

    _, seen = compiled(rows)(torch.tensor([1, 2]))
    assert seen.data_ptr() == module.weight[1].data_ptr()


def test_strides_are_torchs(compiled: Callable[..., Any]) -> None:
    module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    got = compiled(module)(x)
    assert got.is_contiguous(memory_format=torch.channels_last)
    close(got, module(x))
    plain = nn.Linear(6, 3)
    turned = lambda x: plain(x).t()
    x = torch.randn(6, 4).t()
    close(compiled(turned)(x), turned(x))


def test_changed_weights_are_noticed(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    module = mlp()
    x, net = torch.randn(5, 16), compiled(module)
    close(net(x), module(x))
    module[2].weight.mul_(3)
    close(net(x), module(x))
    module.load_state_dict({k: torch.randn_like(v) for k, v in module.state_dict().items()})
    close(net(x), module(x))
    module[0].weight.data = torch.randn(32, 16)
    close(net(x), module(x))
    module[0].weight = nn.Parameter(torch.randn(32, 16))
    close(net(x), module(x))
    assert len(graphs) == 1


def test_changed_buffers_are_noticed(compiled: Callable[..., Any], graphs: list[Any]) -> None:
    module = nn.BatchNorm1d(4).eval()
    x, net = torch.randn(5, 4), compiled(module)
    close(net(x), module(x))
    module.running_mean.add_(1)
    close(net(x), module(x))
    assert len(graphs) == 1


def test_dropout_in_eval_is_nothing(compiled: Callable[..., Any]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    x = torch.randn(3, 4)
    close(compiled(module)(x), module(x))


def test_inference_mode(compiled: Callable[..., Any]) -> None:
    module, x = mlp(), torch.randn(3, 16)
    with torch.inference_mode():
        close(compiled(module)(x), module(x))


def test_threads_and_forks() -> None:
    module, x = mlp(), torch.randn(8, 16)
    net = torch.compile(module, backend=backend.rlx, options={"strict": True})
    want = net(x)
    made: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            made.append(net(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 4
    assert all(torch.equal(got, want) for got in made)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(net(x), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- what stays with torch ------------------------------------------------------------------------


def test_graph_breaks_are_reported_with_their_line(caplog: pytest.LogCaptureFixture) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    line = broken.__code__.co_firstlineno + 2
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "rlx"):
        close(torch.compile(broken, backend=backend.rlx)(x), broken(x))
    (text,) = [r.getMessage() for r in caplog.records if r.name == "rlx"]
    assert text.startswith("torch.compile broke the graph broken[")
    assert f"{Path(__file__).name}:{line}" in text


def unknown(x: Tensor) -> Tensor:
    """rlx has no float8 as a dtype of tensors."""
    return x.sin().to(torch.float8_e4m3fn).to(torch.float32).cos()


def test_ops_without_a_handler_leave_the_graph_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "rlx"):
        close(torch.compile(unknown, backend=backend.rlx)(x), unknown(x))
    told = [r.getMessage() for r in caplog.records if r.name == "rlx"]
    assert len(told) == 2  # to float8, and from it
    assert all("runs in 2 parts, with torch's ops between: torch op" in text for text in told)
    assert all("aten::_to_copy at test_dynamo.py:" in text for text in told)


@pytest.mark.parametrize("how", [{"fullgraph": True}, {"options": {"strict": True}}])
def test_ops_without_a_handler_are_errors_where_one_graph_is_asked_for(how: Any) -> None:
    with pytest.raises(Exception, match=r"of aten::to at test_dynamo\.py:"):
        torch.compile(unknown, backend=backend.rlx, **how)(torch.randn(3))


def test_options_are_checked() -> None:
    with pytest.raises(Exception, match="has no option 'thread'"):
        torch.compile(mlp(), backend=backend.rlx, options={"thread": 1})(torch.randn(2, 16))


def test_options_reach_the_compiler(graphs: list[Any]) -> None:
    x = torch.randn(2, 16)
    torch.compile(mlp(), backend=backend.rlx, options={"threads": 1, "precision": "bf16"})(x)
    assert graphs[0].executable.threads == 1
    assert "bf16" in str(graphs[0].executable.explain())


def test_the_entry_point_names_the_backend(tmp_path: Path) -> None:
    """As torch finds it in what is installed."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = facts["entry-points"]["torch_dynamo_backends"]["rlx"]
    info = tmp_path / "rlx_entry-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlx-entry\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\nrlx = {entry}\n")
    script = (
        "import torch; f = torch.compile(lambda x: x.sin(), backend='rlx', "
        "options={'strict': True}, fullgraph=True); x = torch.ones(3)\n"
        "assert torch.allclose(f(x), x.sin()); print('rlx' in torch._dynamo.list_backends())"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(rlx.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr
