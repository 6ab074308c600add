"""Lanes that a mask rules out are not written, though LLVM knows the mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import Function, module
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.backend.cpu.guarded import guarded
from tests.backend.cpu.steps import Steps, Trial, side_by_side

POISON = 0xA5
COMPUTED = {DType.BF16: DType.F32, DType.F16: DType.F32, DType.BOOL: DType.I32}
NARROW = (DType.BF16, DType.F16, DType.I8, DType.U8, DType.I16, DType.U16, DType.BOOL)
"""Of 8 or 16 bits; they are made of wider numbers."""
LANES = (1, 2, 4, 8, 16)

Case = tuple[DType, DType, int, tuple[int, ...]]
"""What is stored, what it was computed as, how many lanes there are, and which are wanted."""


def masked() -> Iterator[Case]:
    for dtype in NARROW:
        computed = COMPUTED.get(dtype)
        for wide in [computed] if computed else [DType.I32, DType.I64]:
            for lanes in LANES:
                some = [tuple(range(k)) for k in {0, 1, lanes // 2, lanes - 1}]
                yield from ((dtype, wide, lanes, chosen) for chosen in (*some, (lanes - 1,)))


def function(number: int, case: Case, isa: Isa) -> Function:
    dtype, wide, lanes, chosen = case
    w = Writer(isa, lanes)
    value = w.load(0, 0, wide)
    mask = ", ".join(f"i1 {'true' if n in chosen else 'false'}" for n in range(lanes))
    value = value if dtype.is_float else value.to(dtype)
    w.store(value, 1, 0, dtype, 1, w.code.vector_of(f"<{mask}>", DType.BOOL))
    return w.function(f"store{number}")


def written(native: Native, number: int, case: Case) -> list[int]:
    """The bytes behind the address that were changed."""
    _, wide, lanes, _ = case
    given, got = np.ones(lanes, wide.numpy), guarded(np.full(128, POISON, np.uint8))
    native.call_part(f"store{number}", [given.ctypes.data, got.ctypes.data], [], 0, 1)
    return [int(i) for i in np.flatnonzero(got != POISON)]


def bytes_of(case: Case) -> list[int]:
    dtype, _, _, chosen = case
    size = dtype.itemsize
    return [n * size + b for n in sorted(chosen) for b in range(size)]


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
def test_a_mask_known_beforehand(isa: Isa) -> None:
    cases = list(masked())
    functions = [function(i, c, isa) for i, c in enumerate(cases)]
    native = Native(module(functions, isa), isa)
    wrong = [c for i, c in enumerate(cases) if written(native, i, c) != bytes_of(c)]
    assert wrong == []


def test_it_assembles_for_other_machines() -> None:
    functions = [function(i, c, NEON) for i, c in enumerate(masked())]
    text = module(functions, NEON)
    assert "ret" in assembled(text, NEON)


# -- by ops ---------------------------------------------------------------------------------------


def running(dims: Sequence[int], dtype: DType) -> Trial:
    """Every row writes one element behind its whole vectors; the next row begins there."""
    g = Graph("running")
    made = g.node("cumsum", [g.input("x", Shape(dims, dtype))], {"axis": 1})
    x = np.random.default_rng(len(dims)).integers(0, 5, dims).astype(dtype.numpy)
    return side_by_side(made, [x])


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
def test_rows_that_end_with_one_lane(isa: Isa) -> None:
    kinds = (DType.BF16, DType.F16, DType.I8, DType.I16)
    given = [running((2, 3, n), d) for n in (1, 5, 9, 17, 33) for d in kinds]
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        got, want = steps.run(i)[0], trial.wanted()[0]
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), str(trial))
