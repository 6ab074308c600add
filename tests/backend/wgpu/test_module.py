"""Modules as data: they are saved and read again, and their uniform block is laid out as said."""

from __future__ import annotations

import struct

import pytest

from rlx.backends.wgpu.wgsl.bindings import Access
from rlx.backends.wgpu.wgsl.module import MAX_WORKGROUPS, Argument, Module, dispatch
from rlx.core.dtype import DType

MODULE = Module(
    "copy",
    64,
    (Argument("x", DType.F32), Argument("y", DType.U8)),
    (Argument("n", DType.I64), Argument("f", DType.F32)),
    (Access(0, "load", 4), Access(0, "load"), Access(1, "store", 1, is_masked=True)),
    "",
    "fn body() {}",
    features=("shader-f16",),
)


def test_a_module_is_read_back_as_it_was() -> None:
    assert Module.of_bytes(MODULE.to_bytes()) == MODULE


def test_params_are_firsts_scalars_grid_and_fold() -> None:
    made = MODULE.params((4, 8), (-2, 1.5), (70_000, 3, 1))
    assert len(made) == MODULE.params_bytes == 48
    fold = dispatch((70_000, 3, 1))[0]
    assert made == struct.pack("<2Iqf5I", 4, 8, -2, 1.5, 70_000, 3, 1, fold, 0).ljust(48, b"\0")


def test_a_buffer_that_is_only_loaded_is_vectors_and_one_stored_by_bytes_atomic() -> None:
    text = MODULE.source()
    assert "m0: array<vec4<u32>>" in text
    assert "m1: array<atomic<u32>>" in text
    assert "binding(2) var<uniform>" in text


def test_buffers_that_share_a_binding_have_the_narrowest_type() -> None:
    text = MODULE.source(MODULE.merged)
    assert "m0: array<atomic<u32>>" in text
    assert "m1" not in text


@pytest.mark.parametrize("grid", [(1, 1, 1), (65535, 1, 1), (65536, 1, 1), (3000, 2999, 7)])
def test_a_dispatch_covers_the_grid_within_the_limit(grid: tuple[int, int, int]) -> None:
    x, y, z = dispatch(grid)
    blocks = grid[0] * grid[1] * grid[2]
    assert blocks <= x * y * z < blocks + y
    assert max(x, y) <= MAX_WORKGROUPS
