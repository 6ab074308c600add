"""Programs printed as WGSL and run on software adapters, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.wgpu.wgsl.printer import module_of
from rlx.core.dim import Dim, evaluate
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.values import Var
from rlx.program.verify import verify
from tests.backend.gpu import kernels
from tests.backend.wgpu.adapter import Adapter, Array, Dispatch
from tests.backend.wgpu.test_arithmetic import ALL, BOOL, F32, INTEGERS

I32, U32, I64 = DType.I32, DType.U32, DType.I64
BLOCK = 32


def both(adapter: Adapter, program: Program, **arguments: Any) -> list[tuple[Array, Array]]:
    """Each buffer after a launch on the adapter and by the interpreter, with bindings of their
    own and with one for all."""
    program = verify(replace(program, warp=1))
    module = module_of(program)
    buffers = {k: v.reshape(-1).copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
    sizes = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    x, y, z = (evaluate(d, sizes) for d in program.grid)
    scalars = tuple(evaluate(s.dim, sizes) for s in program.scalars if s.dim is not None)
    arrays = tuple(buffers[b.name] for b in program.buffers)
    work = Dispatch(module, arrays, scalars, (x, y, z))
    answers = adapter.run(work, replace(work, bindings=module.merged))
    launch(program, buffers, sizes)
    wanted = [buffers[b.name] for b in program.buffers]
    return [pair for got in answers for pair in zip(got, wanted, strict=True)]


def same(adapter: Adapter, program: Program, **arguments: Any) -> None:
    """Every buffer has the same bits."""
    for got, wanted in both(adapter, program, **arguments):
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


def normal(*dims: int) -> Array:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


def some(dtype: DType, count: int) -> Array:
    """Any bits that are a number."""
    rng = np.random.default_rng(count)
    if dtype is BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_float:
        return (rng.standard_normal(count) * 100).astype(dtype.numpy)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype.numpy)


# -- kernels --------------------------------------------------------------------------------------


def test_elementwise_with_a_tail(adapter: Adapter) -> None:
    x = normal(1000)
    same(adapter, kernels.scaled(), x=x, y=np.zeros_like(x), n=1000)


def test_transpose_through_shared_memory(adapter: Adapter) -> None:
    x = normal(37, 50)
    same(adapter, kernels.transpose(), x=x, y=np.zeros_like(x), m=37, n=50)


def test_scan_in_a_loop(adapter: Adapter) -> None:
    x = np.random.default_rng(1).integers(-99, 99, (3, 200)).astype(np.int32)
    same(adapter, kernels.scan(), x=x, y=np.zeros_like(x), m=3, n=200)


def test_softmax_by_block_reductions(adapter: Adapter) -> None:
    """Exponentials are within 2 units on both sides, and a sum of 130 terms is in the same
    order."""
    x = normal(5, 130)
    for got, wanted in both(adapter, kernels.softmax(), x=x, y=np.zeros_like(x), m=5, n=130):
        np.testing.assert_allclose(got, wanted, rtol=8 * 2.0**-23)


# -- memory ---------------------------------------------------------------------------------------


def widths(dtype: DType) -> list[int]:
    return [w for w in (1, 2, 4, 8, 16) if w * dtype.itemsize <= 16]


def copies(dtype: DType, *, is_shared: bool) -> Program:
    """Neighbours of every width, reversed, with and without a mask; through shared memory, where
    they are stored by one thread and loaded by another."""
    b = Builder("copies", block=BLOCK, warp=1)
    x, y = b.input("x", dtype), b.output("y", dtype)
    first = 0
    for width in widths(dtype):
        memory = b.shared(f"s{width}", dtype, BLOCK * width) if is_shared else None
        for has_mask in (False, True):
            mask = (b.thread % 3).ne(1) if has_mask else None
            values = x.load(b.thread * width + first, width, mask)[::-1]
            if memory is not None:
                memory.store(b.thread * width, values)
                b.barrier()
                values = memory.load((BLOCK - 1 - b.thread) * width, width, mask)
                b.barrier()
            y.store(b.thread * width + first, values, mask)
            first += BLOCK * width
    return b.program()


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("dtype", ALL)
def test_every_width(adapter: Adapter, dtype: DType, *, is_shared: bool) -> None:
    count = 2 * BLOCK * sum(widths(dtype))
    x, y = some(dtype, count), some(dtype, count)[::-1].copy()
    same(adapter, copies(dtype, is_shared=is_shared), x=x, y=y)


def test_narrow_numbers_are_packed_where_words_have_no_room(adapter: Adapter) -> None:
    """Bytes that are stored one at a time: a word each does not fit 16 KiB."""
    count = 8192
    b = Builder("packed", block=256, warp=1)
    x, y = b.input("x", DType.U8), b.output("y", DType.U8)
    memory = b.shared("s", DType.U8, count)
    with b.loop(b.thread, count, 256) as i:
        memory[i] = x[i]
    b.barrier()
    with b.loop(b.thread, count, 256) as i:
        y[i] = memory[count - 1 - i]
    assert module_of(b.program()).shared_bytes == count
    same(adapter, b.program(), x=some(DType.U8, count), y=np.zeros(count, np.uint8))


@pytest.mark.parametrize("width", [2, 4])
def test_vectors_and_parts_of_them(adapter: Adapter, width: int) -> None:
    """A buffer that is loaded by vectors and by elements, and one that is stored by vectors."""
    b = Builder("parts", block=BLOCK, warp=1)
    x, y = b.input("x", F32), b.output("y", F32)
    head = x.load(b.thread * width, width)
    pair = x.load(b.thread * 2, 2)
    y.store(b.thread * width, [h + x[b.thread] + pair[i % 2] for i, h in enumerate(head)])
    given = normal(BLOCK * width)
    same(adapter, b.program(), x=given, y=np.zeros_like(given))


def combined(dtype: DType, op: Any) -> Program:
    b = Builder("combined", block=BLOCK, grid=(3,), warp=1)
    x, y = b.input("x", dtype), b.buffer("y", dtype, "update")
    at = b.block_index() * BLOCK + b.thread
    b.atomic(y, op, at % 5, x[at], (at % 4).ne(3))
    return b.program()


@pytest.mark.parametrize("op", ["add", "min", "max", "or", "and"])
def test_atomics(adapter: Adapter, op: str) -> None:
    """Where threads meet: of integers, and minima and maxima of f32."""
    compared = op in ("min", "max")
    dtypes = [d for d in INTEGERS if not (compared and d.itemsize == 8)]
    for dtype in (*dtypes, *([F32] if compared else [])):
        x, y = some(dtype, 3 * BLOCK), some(dtype, 5)
        same(adapter, combined(dtype, op), x=x, y=y)


@pytest.mark.parametrize("dtype", [F32, I64, DType.U8, DType.I16, I32])
def test_tables(adapter: Adapter, dtype: DType) -> None:
    values: list[float] = [0, 1, 3, 100, 127] if not dtype.is_float else [0.5, -0.0, np.inf, 1e-40]
    b = Builder("tables", block=8, warp=1)
    x, y = b.input("x", I32), b.output("y", dtype)
    table = b.table("numbers", dtype, values)
    y[b.thread] = b.table_load(table, x[b.thread] % len(values))
    same(adapter, b.program(), x=np.arange(8, dtype=np.int32), y=np.zeros(8, dtype.numpy))


# -- control flow ---------------------------------------------------------------------------------


def swapped(b: Builder, x: Var) -> Var:
    """Two carried values that take each other's place."""
    one, two = b.variable(x), b.variable(x + 1)
    with b.loop(0, x % 7, 1, carry=[one, two]) as i:
        first, second = Var(b, one.value), Var(b, two.value)
        one.set(second)
        two.set(first + second * i)
    return Var(b, one.value) * 3 + Var(b, two.value)


def halved(b: Builder, x: Var) -> Var:
    """Collatz's steps, at most 30."""
    value, steps = b.variable(x.max(1)), b.variable(0, I32)
    with b.repeat([value, steps]) as again:
        again.when(Var(b, value.value).ne(1) & (Var(b, steps.value) < 30))
        here = Var(b, value.value)
        value.set((here // 2).where((here % 2).eq(0), here * 3 + 1))
        steps.set(Var(b, steps.value) + 1)
    return Var(b, value.value) + Var(b, steps.value)


def branched(b: Builder, x: Var) -> Var:
    """Branches inside of loops, with what they carry out."""
    total = b.variable(0, I32)
    with b.loop(x % 3, x % 11, 2, carry=[total]) as i:
        with b.when((i % 2).eq(0), [total]):
            total += i * x
        with b.otherwise([total]), b.loop(0, i, 1, carry=[total]) as j:
            total += j
    return Var(b, total.value)


def wide(b: Builder, x: Var) -> Var:
    """A loop of 64-bit indices."""
    total = b.variable(0, I64)
    low = b.const(2**32 - 2, I64)
    with b.loop(low, low + (x % 5).to(I64), b.const(1, I64), carry=[total]) as i:
        total.set(Var(b, total.value) + i * i)
    return (Var(b, total.value) >> 31).to(I32)


@pytest.mark.parametrize("function", [swapped, halved, branched, wide])
def test_control_flow(adapter: Adapter, function: Callable[[Builder, Var], Var]) -> None:
    b = Builder("control", block=BLOCK, warp=1)
    x, y = b.input("x", I32), b.output("y", I32)
    y[b.thread] = function(b, x[b.thread])
    given = np.arange(BLOCK, dtype=np.int32) * 5
    same(adapter, b.program(), x=given, y=np.zeros_like(given))


def test_a_barrier_in_a_loop_whose_length_is_in_memory(adapter: Adapter) -> None:
    b = Builder("rounds", block=BLOCK, warp=1)
    n, y = b.input("n", I32), b.output("y", I32)
    memory = b.shared("s", I32, BLOCK)
    value = b.variable(b.thread)
    with b.loop(0, n[0], 1, carry=[value]):
        memory[b.thread] = Var(b, value.value)
        b.barrier()
        value.set(memory[(b.thread + 1) % BLOCK] + 1)
        b.barrier()
    y[b.thread] = Var(b, value.value)
    same(adapter, b.program(), n=np.array([5], np.int32), y=np.zeros(BLOCK, np.int32))


@pytest.mark.parametrize("dtype", [F32, I32, I64, DType.U8])
def test_reductions_of_a_block(adapter: Adapter, dtype: DType) -> None:
    """In the order of the node, so that floats have the same bits."""
    for op in ("add", "max"):
        b = Builder("reductions", block=96, warp=1)
        x, y = b.input("x", dtype), b.output("y", dtype)
        value = x[b.thread]
        y[b.thread] = b.block_reduce(op, value)
        y[b.thread + 96] = b.block_scan(op, value)
        given = some(dtype, 96)
        same(adapter, b.program(), x=given, y=np.zeros(192, dtype.numpy))


# -- launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(70_001, 1, 1), (300, 20, 13), (7, 5, 3)])
@pytest.mark.parametrize("is_static", [False, True])
def test_blocks_beyond_the_limit_are_folded(
    adapter: Adapter, grid: tuple[int, int, int], *, is_static: bool
) -> None:
    dims = grid if is_static else (Dim("a"), Dim("b"), Dim("c"))
    b = Builder("folded", block=1, grid=dims, warp=1)
    y = b.output("y", I32)
    x, at, z = (b.block_index(d) for d in range(3))
    index = (z * grid[1] + at) * grid[0] + x
    y[index] = x + at * 1000 + z * 1_000_000 + b.block_count(2)
    count = grid[0] * grid[1] * grid[2]
    sizes = {} if is_static else dict(zip("abc", grid))
    same(adapter, b.program(), y=np.zeros(count, np.int32), **sizes)


def test_scalars_of_64_bits(adapter: Adapter) -> None:
    b = Builder("scalars", block=1, warp=1)
    y, n, m = b.output("y", I64), b.size("n", Dim("n"), I64), b.size("m", Dim("m"))
    y[0] = n * 3 + m.to(I64)
    same(adapter, b.program(), y=np.zeros(1, np.int64), n=2**40 + 5, m=-7 + 2**20)


# -- texts ----------------------------------------------------------------------------------------


def test_helpers_are_printed_where_they_are_called() -> None:
    text = module_of(replace(kernels.scaled(), warp=1)).source()
    assert "64" not in text.replace("workgroup_size(64", "").replace("64i", "")
    assert "rounded" not in text


def test_the_text_is_the_same_every_time() -> None:
    first, second = (module_of(replace(kernels.softmax(), warp=1)).source() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("what", ["shuffle", "cluster", "f64"])
def test_what_wgsl_lacks_is_refused(what: str) -> None:
    b = Builder("refused", block=32, cluster=2 if what == "cluster" else 1)
    x, y = b.input("x", F32), b.output("y", F32)
    value = x[b.thread]
    made = {
        "shuffle": lambda: b.shuffle(value, 1),
        "cluster": lambda: value,
        "f64": lambda: value.to(DType.F64).to(F32),
    }
    y[b.thread] = made[what]()
    named = {"shuffle": "Shuffle", "cluster": "clusters", "f64": "f64"}[what]
    with pytest.raises(rlx.UnsupportedError, match=f"program refused.*WGSL has no {named}"):
        module_of(b.program())
