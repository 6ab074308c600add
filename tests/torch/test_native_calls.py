"""Calls on tensors by native code: what it reads, what it makes, and what it leaves to Python."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend
from rlx.frontends.torch.tensor_memory import state_of, tensor_class


class NotNative(AssertionError):
    pass


def _refuse(*args: Any) -> Any:
    raise NotNative


def compiled(module: Any, *args: Any, **how: Any) -> Any:
    """A program that was called once: the first call takes memory."""
    with torch.no_grad():
        made = rlx.compile(module.eval(), args, target="cpu", threads=2, **how)
    made(*args)
    return made


@contextmanager
def native(program: Any) -> Generator[None]:
    """Calls that native code does not make fail."""
    program._general = _refuse
    try:
        yield
    finally:
        del program._general


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def close(got: Any, want: Any) -> None:
    """f32 sums in another order: a few roundings."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, check_stride=True)


def test_tensors_are_read_as_torch_says() -> None:
    kind = tensor_class()
    assert kind is not None
    assert kind.guard is not None
    a = torch.ones(4)
    before = state_of(kind, a)
    assert before == state_of(kind, a)
    a[1:].add_(1)
    assert state_of(kind, a)[3] == before[3] + 1 == a._version
    a.data = torch.ones(4)
    assert state_of(kind, a)[:2] != before[:2]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8,
     torch.uint8, torch.bool, torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 1), (0, 4), (70, 50)])
def test_dtypes_and_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (torch.arange(5000)[: max(1, torch.Size(shape).numel())] % 5).to(dtype)
    x = x.reshape(shape) if torch.Size(shape).numel() else torch.empty(shape, dtype=dtype)
    step = lambda a: torch.cat([a.reshape(-1), a.reshape(-1)])
    program = compiled(Function(step), x)
    with native(program):
        got = program(x)
    close(got, step(x))
    assert got.dtype is dtype


def test_results_are_tuples_with_torchs_strides() -> None:
    x = torch.randn(2, 3, 4, 5)
    step = lambda a: ((a + 1).permute(2, 0, 3, 1).relu(), a.sum(1), (a * 2).contiguous())
    program = compiled(Function(step), x)
    with native(program):
        close(program(x), step(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_channels_last_inputs_are_read_where_they_are(graphs: list[Any], dynamic: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    net = net.to(memory_format=torch.channels_last)
    compiled = torch.compile(net, backend=backend.rlx, dynamic=dynamic, options={"strict": True})
    with torch.no_grad():
        for size in (9, 9, 12) if dynamic else (9, 9):
            x = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last)
            close(compiled(x), net(x))
        assert [s.order for s in graphs[-1].model.signature.inputs] == [(0, 2, 3, 1)]
        with native(graphs[-1]):
            close(compiled(x), net(x))
        (source,) = graphs[-1].model.signature.inputs
        flat: list[Any] = [None] * graphs[-1].model.signature.num_arguments
        flat[source.place] = torch.randn(2, 3, size, size)
        close(graphs[-1].run(flat)[0].contiguous(), net(flat[source.place]).contiguous())


def test_one_program_for_all_sizes() -> None:
    batch = torch.export.Dim("batch", min=1, max=2000)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    program = compiled(net, torch.randn(4, 8), dynamic_shapes=(({0: batch},)))
    for n in (4, 1, 700, 3, 2000):
        x = torch.randn(n, 8)
        program(x)
        with native(program):
            close(program(x), net(x).detach())


def test_parameters_and_tensors_that_require_grad_are_inputs() -> None:
    program = compiled(Function(lambda a: a * 2), torch.ones(3))
    given = nn.Parameter(torch.randn(3))
    with native(program), torch.no_grad():
        close(program(given), given.detach() * 2)
        assert not program(given).requires_grad


class Other(Tensor):
    pass


@pytest.mark.parametrize(
    "given",
    [torch.ones(3, 3).t()[:, ::2], torch.ones(3, 2)._neg_view(),
     torch.ones(3, 2).as_subclass(Other), torch.ones(3, 2, dtype=torch.float64),
     torch.ones(2, 3), torch.ones(3, 2).numpy()],
    ids=["strided", "negated", "subclass", "dtype", "shape", "array"],
)  # fmt: skip
def test_other_arguments_are_left_to_python(given: Any) -> None:
    program = compiled(Function(lambda a: a * 3), torch.ones(3, 2))
    with native(program), pytest.raises(NotNative):
        program(given)


def test_negated_and_strided_values_are_right() -> None:
    with torch.no_grad():
        program = rlx.compile(Function(lambda a: a * 3), (torch.ones(3, 2),), target="cpu")
    x = torch.randn(3, 2)
    close(program(x._neg_view()), x * -3)
    close(program(torch.cat([x, x], 1)[:, ::2]), torch.cat([x, x], 1)[:, ::2].contiguous() * 3)


def test_tensors_of_transforms_are_left_to_python() -> None:
    """They are of torch.Tensor's own class, and have no memory."""
    program = compiled(Function(lambda a: a * 3), torch.ones(2))
    with native(program), pytest.raises(NotNative):
        torch.func.vmap(program)(torch.ones(3, 2))


def test_tensors_on_other_devices_are_refused() -> None:
    with torch.no_grad():
        program = rlx.compile(Function(lambda a: a * 3), (torch.ones(2),), target="cpu")
    with pytest.raises(rlx.Error, match="on meta"):
        program(torch.ones(2, device="meta"))


@pytest.mark.parametrize("size", [8, 5000])
def test_results_own_their_memory(size: int) -> None:
    program = compiled(Function(lambda a: a + 1), torch.zeros(size))
    kept = [program(torch.full((size,), float(i)))[1:] for i in range(20)]
    del program
    gc.collect()
    assert [k.unique().tolist() for k in kept] == [[i + 1.0] for i in range(20)]


def test_blocks_of_dropped_results_are_used_again() -> None:
    program = compiled(Function(lambda a: a + 1), torch.zeros(5000))
    with native(program):
        places = {program(torch.zeros(5000)).data_ptr() for _ in range(50)}
    assert len(places) == 1


def test_threads_drop_one_anothers_results() -> None:
    program = compiled(Function(lambda a: a + 1), torch.zeros(5000))
    wrong: list[float] = []

    def work(value: float) -> None:
        x, kept = torch.full((5000,), value), []
        for _ in range(100):
            kept = [*kept[-3:], program(x)]
            wrong.extend(k[7].item() for k in kept if k[7].item() != value + 1)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_changed_weights_leave_one_call_to_python() -> None:
    net = nn.Linear(4, 3)
    program = compiled(net, torch.ones(2, 4))
    x = torch.randn(2, 4)
    with torch.no_grad():
        for change in (
            lambda: net.weight.add_(1),
            lambda: net.bias.detach().mul_(2),
            lambda: net.weight[:1].zero_(),
            lambda: setattr(net.weight, "data", torch.randn(3, 4)),
        ):
            change()
            with native(program), pytest.raises(NotNative):
                program(x)
            close(program(x), net(x))
            with native(program):
                close(program(x), net(x))


def test_weights_that_are_set_are_used() -> None:
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    program = compiled(net, x)
    program.set_params({"weight": torch.zeros(3, 4).numpy()})
    program(x)
    with native(program):
        close(program(x), net.bias.detach().expand(2, 3).contiguous())


def test_the_process_ends_with_results_alive() -> None:
    text = (
        "import torch, rlx\n"
        "f = rlx.compile(torch.nn.Linear(70, 80).eval(), (torch.ones(90, 70),), target='cpu')\n"
        "torch.set_grad_enabled(False)\n"
        "kept = [f(torch.ones(90, 70)) for _ in range(9)]\n"
        "torch.kept = kept, f\n"
        "print(len(kept))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "9\n", "")
