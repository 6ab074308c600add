"""Sorts and selections as launches: long rows, named sizes, corner values, stability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import Launch
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from tests.backend.gpu.launches import node_of, run_special, schedule_of, special_of

Array = np.ndarray[Any, Any]
TINY = GpuMachine(block=64, max_block=64, shared_bytes=800, has_dependent_launch=True)
"""Tiles of 32 items, so that short rows are merged."""
N = Dim("n", 1, 600)
U = Dim("u", 16)


def values(dtype: DType, dims: tuple[int, ...]) -> Array:
    """Few different ones, so that many are equal; with NaN, infinities and both zeros of floats."""
    rng = np.random.default_rng([len(dims), *dims])
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.max, 0, 1, info.max // 2]
        return rng.choice(np.array(ends, dtype.numpy), dims)
    found = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0]), dims)
    mixed = np.where(rng.random(dims) < 0.5, found, rng.standard_normal(dims))
    return mixed.astype(dtype.numpy)


def run(node: Node, machine: GpuMachine, *operands: Array, **sizes: int) -> list[Array]:
    special = special_of(node)
    want = [s.bind(sizes) for s in node.shapes]
    shapes = [(s.static_dims, s.dtype.numpy) for s in want]
    return run_special(special, schedule_of(special, machine), operands, shapes, sizes)[0]


def assert_same(got: Array, want: Array) -> None:
    """Bit for bit: elements are moved, and zeros have signs."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "u64"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_many_runs(dtype: str, descending: bool) -> None:
    """700 items are 22 runs: of eight, then of three."""
    kind = DType.of(dtype)
    x = values(kind, (3, 700))
    wide = x.astype(np.float64) if kind.is_float else x
    order = ops.argsort(wide, axis=1, descending=descending)
    for name, want in (("argsort", order), ("sort", np.take_along_axis(x, order, 1))):
        node = node_of(name, Shape((3, 700), kind), axis=1, descending=descending)
        (got,) = run(node, TINY, x)
        assert_same(got, want)


@pytest.mark.parametrize("size", [16, 31, 32, 33, 600])
def test_rows_of_a_named_length(size: int) -> None:
    x = values(DType.F32, (2, size))
    for dim in (N, U):
        node = node_of("argsort", Shape((2, dim), DType.F32), axis=1)
        (got,) = run(node, TINY, x, **{dim.name: size})
        assert_same(got, ops.argsort(x, axis=1))


@pytest.mark.parametrize(
    ("size", "k"), [(5, 5), (40, 3), (257, 16), (700, 4), (700, 40), (1100, 8)]
)
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_the_first_of_rows(size: int, k: int, dtype: str) -> None:
    """By a warp, by tiles of candidates, by a sort."""
    x = values(DType.of(dtype), (3, size))
    for largest in (True, False):
        shape = Shape((3, size), DType.of(dtype))
        node = node_of("top_k", shape, k=k, axis=1, largest=largest)
        want = ops.top_k(x, k=k, axis=1, largest=largest)
        for machine in (TINY, GpuMachine())[: 1 + largest]:
            for got, wanted in zip(run(node, machine, x), want, strict=True):
                assert_same(got, wanted)


def test_the_form_follows_from_the_length() -> None:
    def notes(size: Any, k: int) -> list[str]:
        node = node_of("top_k", Shape((3, size), DType.F32), k=k, axis=1)
        tasks = schedule_of(special_of(node), GpuMachine()).tasks
        return [t.note for t in tasks if isinstance(t, Launch)]

    assert notes(257, 16) == ["a warp a row, 9 items a thread"]
    assert notes(2000, 16) == ["sorts tiles of 2048"]
    assert notes(128256, 50) == [
        "the first 50 of tiles of 2048",
        "the first 50 of tiles of 2048",
        "the first 50 of tiles of 128",
    ]
    assert notes(U, 16) == [
        "sorts tiles of 2048",
        *(f"merges runs of {2**i}" for i in range(11, 31, 3)),
    ]
