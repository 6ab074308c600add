"""Rows in order, and the first of a row: bit for bit what the reference gives."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlx.core.dim import Dim
from rlx.core.dtype import FLOATS, INTEGERS, DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, ISAS, SSE2, Isa, host
from rlx.backends.cpu.kernels import dedicated
from rlx.backends.cpu.library.sort.radix_keys import INSERTION_SORT_MAX_KEYS, MAX_32BIT_POSITIONS
from rlx.backends.cpu.llvm.compile import assembled
from rlx.backends.cpu.llvm.function import module
from tests.backend.cpu.steps import Steps, Trial, side_by_side, trials

Array = np.ndarray[Any, Any]
OPS = ("argsort", "sort", "top_k")
DTYPES = sorted(FLOATS | INTEGERS, key=lambda d: d.value)
RUNNABLE = (host(), AVX2, SSE2) if host().triple.startswith("x86") else (host(),)
RUN = [i.name for i in RUNNABLE]
CORNERS = (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.0, 1.0)


def assert_same(got: Array, want: Array, what: str) -> None:
    """Bit for bit, but any NaN is a NaN."""
    assert got.dtype == want.dtype, what
    if DType.of(want.dtype).is_float:
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=what)
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want, err_msg=what)


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        wanted = trial.wanted()
        for cuts in ("once", "apart"):
            for got, want in zip(steps.run(i, cuts), wanted, strict=True):
                assert_same(got, want, str(trial))


def drawn(op: str, cases: int) -> Iterator[Trial]:
    for seed in range(cases):
        draw = Draw([zlib.crc32(op.encode()), seed])
        yield from trials(draw, draw.case(lookup(op)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_drawn_rows_are_in_the_order_of_the_reference(op: str, isa: Isa) -> None:
    check(list(drawn(op, 12 if isa is host() else 4)), isa)


def row_of(dtype: DType, length: int, seed: int) -> Array:
    """Numbers of which many are equal, corners among them."""
    rng = np.random.default_rng(seed)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        spread = 1 << (8 * dtype.itemsize - 1 - (seed % 2) * 4)
        middle = 0 if dtype.is_signed else spread
        low, high = max(info.min, middle - spread), min(info.max, middle + spread - 1)
        return rng.integers(low, high, length, endpoint=True, dtype=dtype.numpy)
    numbers = np.round(rng.normal(size=length) * 50, seed % 3)
    corners = rng.choice(CORNERS, length)
    with np.errstate(all="ignore"):
        return np.where(rng.random(length) < 0.3, corners, numbers).astype(dtype.numpy)


def applied(op: str, x: Array, dims: tuple[Any, ...], attrs: dict[str, Any]) -> Node:
    g = Graph(op)
    return g.node(op, [g.input("x", Shape(dims, DType.of(x.dtype)))], attrs)


def long_rows(dtype: DType, seed: int) -> Iterator[Trial]:
    """Rows past where the way of sorting changes, k on both sides of where it does."""
    for length, k in (
        (INSERTION_SORT_MAX_KEYS, 1),
        (INSERTION_SORT_MAX_KEYS + 1, INSERTION_SORT_MAX_KEYS + 1),
        (307, 5),
        (1500, INSERTION_SORT_MAX_KEYS + 1),
    ):
        x = row_of(dtype, 2 * length, seed + length).reshape(2, length)
        for flag in (False, True):
            attrs = {"axis": 1, "descending": flag}
            yield side_by_side(applied("argsort", x, x.shape, attrs), [x])
            yield side_by_side(
                applied("top_k", x, x.shape, {"k": k, "axis": 1, "largest": flag}), [x]
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_rows_of_every_dtype(dtype: DType) -> None:
    check(list(long_rows(dtype, 0)), host())


@pytest.mark.parametrize("isa", RUNNABLE[1:], ids=lambda i: i.name)
def test_long_rows_on_older_machines(isa: Isa) -> None:
    for seed, dtype in enumerate((DType.F32, DType.I64, DType.F16)):
        check(list(long_rows(dtype, seed)), isa)


def runs(length: int) -> dict[str, Array]:
    """Rows that meet the worst of some ways of sorting."""
    up = np.arange(length, dtype=np.float32)
    return {
        "up": up,
        "down": -up,
        "equal": np.zeros(length, np.float32),
        "nan": np.full(length, np.nan, np.float32),
        "two": np.where(up % 2 == 0, np.float32(np.nan), np.float32(-np.inf)),
        "saw": up % 37,
    }


@pytest.mark.parametrize("k", [1, 7, INSERTION_SORT_MAX_KEYS, INSERTION_SORT_MAX_KEYS + 1, 500])
def test_rows_with_a_run_in_them(k: int) -> None:
    given: list[Trial] = []
    n = Dim("n", 2000)
    for name, row in runs(2001).items():
        attrs = {"k": k, "axis": -1, "largest": name != "down"}
        node = applied("top_k", row, (3, n), attrs)
        given.append(side_by_side(node, [np.tile(row, (3, 1))], {"n": 2001}))
    check(given, host())


def test_columns_and_rows_turned_around() -> None:
    x = row_of(DType.F32, 600, 3).reshape(2, 100, 3)
    backwards = Layout.contiguous(x.shape).sliced(1, 99, 100, -1)
    plain = Layout.contiguous((2, 3, 100)).permuted((0, 2, 1))
    given = []
    for op, attrs in (("argsort", {}), ("sort", {}), ("top_k", {"k": 9})):
        node = applied(op, x, x.shape, {"axis": 1, **attrs})
        whole = Layout.contiguous(node.shapes[0].dims)
        results = (plain,) if op != "top_k" else (whole, whole)
        given += [Trial(node, (lies,), results, [x]) for lies in (backwards, plain)]
    check(given, host())


def test_a_row_too_long_for_its_words_is_refused() -> None:
    n = Dim("n", 0)
    x = np.zeros(1, np.float32)
    trial = side_by_side(applied("argsort", x, (n,), {"axis": 0}), [x], {"n": 1})
    steps = Steps([trial], host())
    task = steps.schedules[0].tasks[0]
    assert task.sizes == (n,)
    assert steps.native.call_part(task.function.name, [0, 0], [MAX_32BIT_POSITIONS + 1], 0, 1) == 1
    assert "too long" in task.failures[0]


@pytest.mark.parametrize(
    "isa", [i for i in ISAS.values() if i.name not in RUN], ids=lambda i: i.name
)
def test_other_machines_have_code_for_it(isa: Isa) -> None:
    given = [*long_rows(DType.F16, 0), *long_rows(DType.F64, 1)]
    schedules = [dedicated(t.node.op)(t.step(isa), f"f{i}") for i, t in enumerate(given)]
    functions = [t.function for r in schedules for t in r.tasks]
    text = assembled(module(functions, isa), isa)
    assert all(f"{f.name}:" in text for f in functions)
