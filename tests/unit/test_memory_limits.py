"""Memory is computed before it is allocated: a small graph cannot ask for more than there is.

The machine is said to have little, so that nothing here is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.memory_limits import TABLE_SHARE, memory_bytes, require_memory, require_table
from rlx.ops.operands import within_memory

MEMORY = 32 << 20
BIG = MEMORY // 2
"""Elements of 4 bytes that take twice as much as there is."""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.core.memory_limits._of_machine", lambda: MEMORY)


def built(make: Callable[[rlx.Graph, Any], Any], dtype: str = "f32") -> rlx.Graph:
    g = rlx.Graph("tiny")
    g.set_outputs([make(g, g.input("x", rlx.Shape([1, 1], dtype)))])
    return g


GRAPHS: dict[str, Callable[[], rlx.Graph]] = {
    "expand": lambda: built(lambda g, x: g.expand(x, dims=(BIG, 1))),
    "tile": lambda: built(lambda g, x: g.tile(x, repeats=(BIG, 1))),
    "iota": lambda: built(lambda g, x: x + g.cast(
        g.cumsum(g.iota(dims=(BIG,), axis=0, dtype="i32"), axis=0), to="f32")),
    "one_hot": lambda: built(lambda g, x: g.one_hot(x, depth=BIG), "i64"),
    "window": lambda: built(lambda g, x: x + g.hann_window(length=BIG)),
    "eye": lambda: built(lambda g, x: x + g.expand(g.constant(np.float32(1)), dims=(BIG, 2))),
    "mel": lambda: built(lambda g, x: x + g.sum(
        g.mel_filters(n_mels=4096, n_fft=8192, sample_rate=16000.0), axes=(0, 1))),
    "resize": lambda: built(lambda g, x: g.resize(x, sizes=(1, BIG), mode="linear")),
}  # fmt: skip


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("name", GRAPHS)
def test_more_than_there_is_is_refused_with_the_bytes_and_the_limit(name: str, target: str) -> None:
    graph = GRAPHS[name]()
    x = np.zeros((1, 1), graph.inputs[0].shape.dtype.numpy)
    with pytest.raises(rlx.Error, match=r"takes [\d,]+ bytes") as caught:
        rlx.compile(graph, target, cache=False, threads=1)(x)
    assert isinstance(caught.value, MemoryError)
    limits = (f"{MEMORY:,}", f"{MEMORY // TABLE_SHARE:,}")
    assert any(limit in str(caught.value) for limit in limits)


@pytest.mark.usefixtures("_small")
def test_the_error_of_a_call_names_the_model_and_its_largest_value() -> None:
    exe = rlx.compile(GRAPHS["expand"](), "reference", cache=False)
    with pytest.raises(
        MemoryError, match=r"^tiny: .*largest value is that of expand at test_memory_limits"
    ):
        exe(np.zeros((1, 1), np.float32))


@pytest.mark.usefixtures("_small")
def test_the_largest_value_has_the_size_of_the_call() -> None:
    graph = rlx.Graph("wide")
    rows = rlx.Dim("rows")
    x = graph.input("x", rlx.Shape([rows, 1]))
    graph.set_outputs([graph.expand(x, dims=(rows, 1024))])
    exe = rlx.compile(graph, "reference", cache=False)
    count = 2 * MEMORY // 4096
    for call in (exe, lambda x: exe.submit(x).result()):
        with pytest.raises(MemoryError, match=rf"^wide: .* at test_.*, {count * 4096:,} bytes\.$"):
            call(np.zeros((count, 1), np.float32))


@pytest.mark.usefixtures("_small")
def test_an_op_on_arrays_is_bounded_too() -> None:
    with pytest.raises(rlx.Error, match="tile takes"):
        rlx.ops.tile(np.ones(1, np.float32), repeats=(BIG,))


def test_a_memory_error_of_numpy_is_one_of_rlx() -> None:
    def fails() -> None:
        with within_memory("exp", [rlx.Shape([2])]):
            raise MemoryError("Unable to allocate")

    with pytest.raises(rlx.Error, match="exp: there is not enough memory: Unable to allocate"):
        fails()


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("channels", [1, 64])
def test_scratch_of_a_pool_grows_with_its_stride_and_no_faster(op: str, channels: int) -> None:
    """It is seen by `memory`, and a tiny image does not take gigabytes, whatever the stride."""

    def scratch(stride: int) -> int:
        g = rlx.Graph("pool")
        x = g.input("x", rlx.Shape([1, channels, 2, 2]))
        how: dict[str, Any] = {"kernel": (2, 2), "stride": (stride, stride), "padding": (1,) * 4}
        g.set_outputs([getattr(g, op)(x, **how)])
        exe = rlx.compile(g, "cpu", cache=False, threads=1)
        data = np.arange(4 * channels, dtype=np.float32).reshape(1, channels, 2, 2)
        want = rlx.compile(g, "reference", cache=False)(data)
        np.testing.assert_array_equal(exe(data), want)
        need = exe.memory()
        assert need.total_bytes == need.arena_bytes + need.weight_bytes + need.scratch_bytes
        return need.scratch_bytes

    assert scratch(1 << 15) <= 1024 * (1 << 15)
    assert scratch(2) < 1 << 20


def test_scratch_is_for_every_thread() -> None:
    g = rlx.Graph("pool")
    g.set_outputs([g.max_pool(g.input("x", rlx.Shape([1, 1, 64, 64])), kernel=(3, 3))])
    one, two = (
        rlx.compile(g, "cpu", cache=False, threads=n).memory().scratch_bytes for n in (1, 2)
    )
    assert one > 0
    assert two == 2 * one


def test_limits_are_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < memory_bytes() < 1 << 50
    monkeypatch.setattr("rlx.core.memory_limits._of_process", lambda: iter([1000]))
    assert memory_bytes() == 1000
    require_memory(1000, "this")
    require_table(1000 // TABLE_SHARE, "this")
    with pytest.raises(rlx.Error, match="this takes 1,001 bytes, and this machine has 1,000"):
        require_memory(1001, "this")
    with pytest.raises(rlx.Error, match="this takes 63 bytes while compiling; 62 is the most"):
        require_table(63, "this")
