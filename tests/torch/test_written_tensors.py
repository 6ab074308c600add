"""Tensors that a program writes: in place, in their own memory, wherever nothing else shares it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.frontends.torch import in_place, program, written
from rlx.frontends.torch.dynamo import backend
from rlx.frontends.torch.model import from_exported

TARGETS = ("reference", "cpu")
Write = Callable[[Tensor, Tensor, Tensor], Any]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is written back by a copy."""
    made: list[Any] = []
    write_back = written.Written.write_back

    def watched(self: Any) -> None:
        made.extend([] if self.is_own else [self.held])
        write_back(self)

    monkeypatch.setattr(written.Written, "write_back", watched)
    return made


class Held(nn.Module):
    """A buffer that a function writes."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("cache", torch.randn(2, 3, 16, 4))

    def forward(self, x: Tensor, at: Tensor) -> Any:
        return self.write(self.cache, x, at)


def index_copy(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    return cache.index_copy_(2, at, x).sum()


def index_put(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at] = x
    return cache.sum()


def index_put_from(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at[0] + torch.arange(2)] = x
    return cache.mean()


def first_axis(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(0, at % 2, (x[:, :, :1] + torch.zeros(16, 1)))
    return cache.sum()


def rows_of_entries(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[torch.arange(2), :, at] = x[:, :, 0]
    return cache.sum()


def sliced(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[:, :, 3:5] = x
    return cache.sum()


def sliced_by_steps(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[:, :, 3:7:2] = x
    return cache.sum()


def narrowed(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.narrow(2, -3, 2).copy_(x)
    return cache.sum()


def selected(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[:, :, 7] = x[:, :, 0]
    return cache.sum()


def twice(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(2, at, x)
    read = cache.sum(2, keepdim=True)
    cache[:, :, :2] = x + read
    return cache.mean()


def read_before(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """What is read after the write is written beside what was there before it."""
    before = cache * 2
    cache.index_copy_(2, at, x)
    return before + cache


def added(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    return cache.add_(x[:, :, :1]).sum()


def rolled(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.copy_(torch.roll(cache, -1, 2))
    cache[:, :, -1] = x[:, :, 0]
    return cache.sum()


def returned_as_it_was(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    before = cache.clone()
    cache.zero_()
    return before


def returned(cache: Tensor, x: Tensor, at: Tensor) -> Any:
    cache.index_copy_(2, at, x)
    return cache.transpose(1, 2), x + 1


WRITES: dict[Write, str] = {
    index_copy: "append", index_put: "append", index_put_from: "append", first_axis: "append",
    rows_of_entries: "append", sliced: "append", sliced_by_steps: "append", narrowed: "append",
    selected: "append", twice: "append", read_before: "assign", added: "assign",
    rolled: "assign", returned_as_it_was: "assign", returned: "append",
}  # fmt: skip
ROWS, AT = torch.randn(2, 3, 2, 4), torch.tensor([4, 11])


def same(got: Any, want: Any) -> None:
    """Values that are moved are equal, and sums differ by roundings of f32."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_a_write_is_an_update_of_a_state(write: Write) -> None:
    model = in_place.in_place(from_exported(torch.export.export(Held(write), (ROWS, AT))))
    assert [u.op for u in model.graph.updates] == [WRITES[write]]
    assert not model.signature.writes


@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_buffers_are_written_in_place(write: Write, target: str, copies: list[Any]) -> None:
    ours = Held(write)
    theirs = copy.deepcopy(ours)
    exe = rlx.compile(ours, (ROWS, AT), target=target)
    address = ours.cache.data_ptr()
    for at in (AT, torch.tensor([0, 15]), torch.tensor([6, 5])):
        before = ours.cache._version
        same(exe(ROWS, at), theirs(ROWS, at))
        same(ours.cache, theirs.cache)
        assert ours.cache._version > before
    assert ours.cache.data_ptr() == address
    assert not copies


@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_arguments_of_compiled_functions_are_written(
    write: Write, target: str, copies: list[Any]
) -> None:
    options = {"target": target, "strict": True}
    compiled = torch.compile(write, backend=backend.rlx, options=options)
    for at in (AT, torch.tensor([0, 15])):
        ours = torch.randn(2, 3, 16, 4)
        theirs, before = ours.clone(), ours._version
        same(compiled(ours, ROWS, at), write(theirs, ROWS, at))
        same(ours, theirs)
        assert ours._version > before
    assert not copies


def native(exe: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that Python makes from now on."""
    made: list[Any] = []
    run = program.TorchProgram.run
    watched = lambda self, flat: made.append(flat) or run(self, flat)
    monkeypatch.setattr(program.TorchProgram, "run", watched)
    return made


def test_calls_that_write_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(2, at, x)
        return (cache * 2).sum(2)

    ours = torch.zeros(2, 3, 16, 4)
    exe = rlx.compile(step, (ours, ROWS, AT), target="cpu")
    exe(ours, ROWS, AT)
    slow = native(exe, monkeypatch)
    theirs = ours.clone()
    for first in range(4):
        at, before = torch.tensor([first, 9]), ours._version
        same(exe(ours, ROWS + first, at), step(theirs, ROWS + first, at))
        assert ours._version == before + 1
    assert torch.equal(ours, theirs)
    assert not slow
    other = torch.zeros(2, 3, 16, 4)
    same(exe(other, ROWS, AT), step(torch.zeros(2, 3, 16, 4), ROWS, AT))
    assert len(slow) == 1, "memory that was not seen before is looked at"
    exe(other, ROWS, AT)
    assert len(slow) == 1


def test_calls_in_inference_mode_write_tensors_without_versions() -> None:
    with torch.inference_mode():
        ours = torch.zeros(2, 3, 16, 4)
        exe = rlx.compile(index_copy, (ours, ROWS, AT), target="cpu")
        for _ in range(3):
            ours.zero_()
            exe(ours, ROWS, AT)
            assert torch.equal(ours[:, :, AT], ROWS)


def shifted(x: Tensor, y: Tensor) -> Tensor:
    x[:2] = y[1:3] * 2
    return y.sum() + x.sum()


def both(x: Tensor, y: Tensor) -> Tensor:
    x[:1] = 7
    y[:1] = 9
    return x[1:] + y[1:]


def read_after(x: Tensor, y: Tensor) -> Any:
    before = y * 2
    x.mul_(3)
    return before, y + 1, x.sum()


def accumulated(x: Tensor, y: Tensor) -> Any:
    for i in range(3):
        x[i].add_(y[i])
    return x * y


SHARING = [shifted, both, read_after, accumulated]


def _memory(x_at: int, y_at: int) -> tuple[Tensor, Tensor, Tensor]:
    memory = torch.arange(8.0)
    return memory, memory[x_at : x_at + 4], memory[y_at : y_at + 4]


@pytest.mark.parametrize("function", SHARING)
@pytest.mark.parametrize("way", ["exported", "compiled"])
def test_arguments_that_share_memory(function: Any, way: str, target: str) -> None:
    """Reads and writes are in the order that eager has them."""
    if way == "exported":
        exe: Any = rlx.compile(function, (torch.randn(4), torch.randn(4)), target=target)
    else:
        torch._dynamo.reset()
        options = {"target": target, "strict": True}
        exe = torch.compile(function, backend=backend.rlx, options=options)
    with torch.no_grad():
        for x_at, y_at in ((0, 4), (0, 1), (1, 0), (0, 3), (0, 0), (4, 0)):
            for _ in range(2):
                ours, x, y = _memory(x_at, y_at)
                theirs, *views = _memory(x_at, y_at)
                same(exe(x, y), function(*views))
                assert torch.equal(ours, theirs)


def test_arrays_that_share_memory(target: str) -> None:
    exe = rlx.compile(read_after, (torch.randn(4), torch.randn(4)), target=target)
    (ours, *given), (theirs, *views) = _memory(0, 1), _memory(0, 1)
    got, want = exe(*(v.numpy() for v in given)), read_after(*views)
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, np.ndarray)
        np.testing.assert_allclose(a, b.numpy())
    assert torch.equal(ours, theirs)


def test_places_that_are_shown_twice_are_refused_as_torch_does(target: str) -> None:
    exe = rlx.compile(lambda x: x.mul_(2).sum(), (torch.ones(3, 4),), target=target)
    with pytest.raises(RuntimeError, match="single memory location"):
        exe(torch.ones(4).expand(3, 4))


class Tied(nn.Module):
    """A parameter, and a buffer on its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))
        self.register_buffer("rows", self.weight.detach()[2:4])

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        cache[:1] = x
        self.rows.mul_(2)
        return x @ self.weight.T + cache.sum()


def test_weights_that_share_memory(target: str) -> None:
    ours = Tied()
    theirs = Tied()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        exe = rlx.compile(ours, (torch.randn(1, 16), torch.zeros(8, 16)), target=target)
        for _ in range(3):
            x, cache = torch.randn(1, 16), torch.randn(8, 16)
            same(exe(x, cache.clone()), theirs(x, cache.clone()))
            same(exe(x, ours.weight.detach()), theirs(x, theirs.weight.detach()))
            same(ours.weight, theirs.weight)


@pytest.mark.parametrize("given", ["transposed", "strided", "expanded rows"])
def test_tensors_that_are_not_contiguous_are_written(given: str, target: str) -> None:
    def step(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        return cache.index_copy_(1, at, x).sum(1)

    exe = rlx.compile(step, (torch.zeros(3, 8), torch.ones(3, 1), torch.tensor([2])), target=target)
    memory = {
        "transposed": torch.randn(8, 3).T,
        "strided": torch.randn(3, 16)[:, ::2],
        "expanded rows": torch.randn(3, 9)[:, 1:],
    }[given]
    other = memory.clone()
    for at in (torch.tensor([5]), torch.tensor([0])):
        same(exe(memory, torch.ones(3, 1), at), step(other, torch.ones(3, 1), at))
        assert torch.equal(memory, other)


def test_another_dtype_is_refused_and_nothing_written(target: str) -> None:
    exe = rlx.compile(index_copy, (torch.zeros(2, 3, 16, 4), ROWS, AT), target=target)
    ours = torch.zeros(2, 3, 16, 4, dtype=torch.float64)
    with pytest.raises(rlx.Error, match=r"args_0.* is f32"):
        exe(ours, ROWS, AT)
    assert not ours.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_dtypes(dtype: torch.dtype, target: str, copies: list[Any]) -> None:
    rows = torch.randint(0, 2, (2, 3, 2, 4)).to(dtype)
    step: Any = lambda cache, x, at: (cache.index_copy_(2, at, x) == 1).sum()
    ours = torch.zeros(2, 3, 16, 4, dtype=dtype)
    theirs = ours.clone()
    exe = rlx.compile(step, (ours.clone(), rows, AT), target=target)
    for _ in range(2):
        assert exe(ours, rows, AT) == step(theirs, rows, AT)
        assert torch.equal(ours, theirs)
    assert not copies


def test_arrays_are_written(target: str) -> None:
    exe = rlx.compile(returned, (torch.zeros(2, 3, 16, 4), ROWS, AT), target=target)
    cache = np.zeros((2, 3, 16, 4), np.float32)
    shown, more = exe(cache, ROWS.numpy(), AT.numpy())
    assert np.array_equal(cache[:, :, AT.numpy()], ROWS.numpy())
    assert np.array_equal(shown, cache.transpose(0, 2, 1, 3))
    assert isinstance(more, np.ndarray)


def test_a_failure_in_the_middle_writes_once(target: str) -> None:
    """Rows that depend on what was there would be changed twice, if the call was run again."""

    def step(cache: Tensor, x: Tensor, at: Tensor, other: Tensor) -> Tensor:
        cache[:1] = cache[:1] + x
        return cache.sum() + torch.arange(4.0)[other].sum() * cache[0, 0]

    cache = torch.zeros(4, 4)
    exe = rlx.compile(step, (cache, torch.ones(1, 4), AT, torch.tensor([1])), target=target)
    for count in (1, 2):
        exe(cache, torch.ones(1, 4), AT, torch.tensor([3]))
        assert (cache[0] == count).all()
    before, version = cache.clone(), cache._version
    with pytest.raises(rlx.Error, match="out of range"):
        exe(cache, torch.ones(1, 4), AT, torch.tensor([9]))
    change = cache - before
    assert torch.equal(change, torch.zeros(4, 4)) or torch.equal(change[0], torch.ones(4))
    assert not change[1:].any()
    assert cache._version > version
    before = cache.clone()
    exe(cache, torch.ones(1, 4), AT, torch.tensor([0]))
    assert torch.equal(cache[0], before[0] + 1)


def test_positions_out_of_range_are_errors(target: str) -> None:
    exe = rlx.compile(index_copy, (torch.zeros(2, 3, 16, 4), ROWS, AT), target=target)
    ours = torch.zeros(2, 3, 16, 4)
    exe(ours, ROWS, AT)
    with pytest.raises(rlx.Error, match=r"rows .*do not fit"):
        exe(ours, ROWS, torch.tensor([3, 16]))


def test_sizes_of_what_is_written_vary(target: str, copies: list[Any]) -> None:
    class Step(nn.Module):
        def forward(self, cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
            cache.index_copy_(1, at, x)
            return cache.sum(1)

    step = Step()
    rows = torch.export.Dim("rows", min=4, max=64)
    shapes = ({1: rows}, None, None)
    given = torch.zeros(2, 8, 4), torch.ones(2, 1, 4), torch.tensor([3])
    exe = rlx.compile(step, given, dynamic_shapes=shapes, target=target)
    for size in (8, 8, 31, 4):
        ours = torch.randn(2, size, 4)
        theirs = ours.clone()
        for _ in range(2):
            same(exe(ours, *given[1:]), step(theirs, *given[1:]))
            assert torch.equal(ours, theirs)
    assert not copies
