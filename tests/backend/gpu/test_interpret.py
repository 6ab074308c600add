"""The interpreter: right kernels give what NumPy gives, and planted faults are reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.errors import LaunchError
from rlx.program.interpret.groups import places
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.values import BufferRef, Var
from tests.backend.gpu import kernels
from tests.backend.gpu.kernels import run

Array = np.ndarray[Any, Any]
F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL
EPS = 2.0**-23


def normal(*dims: int) -> Array:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


# -- right kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 64, 1000])
def test_elementwise_with_a_tail(n: int) -> None:
    x = normal(n)
    got = run(kernels.scaled(), x=x, y=np.zeros_like(x), n=n)
    np.testing.assert_array_equal(got["y"], x * 2 + 1)


@pytest.mark.parametrize("n", [1, 64, 130])
def test_softmax_by_block_reductions(n: int) -> None:
    x = normal(5, n)
    got = run(kernels.softmax(), x=x, y=np.zeros_like(x), m=5, n=n)["y"].reshape(x.shape)
    e = np.exp(x.astype(float) - x.max(axis=1, keepdims=True))
    # n terms are rounded, added and divided
    np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=16 * EPS)


def test_transpose_through_shared_memory() -> None:
    x = normal(37, 50)
    got = run(kernels.transpose(), x=x, y=np.zeros_like(x), m=37, n=50)
    np.testing.assert_array_equal(got["y"].reshape(50, 37), x.T)


def test_gemm_in_shared_memory() -> None:
    x, w = normal(19, 21), normal(21, 13)
    y = np.zeros((19, 13), np.float32)
    got = run(kernels.gemm(21, 13), x=x, w=w, y=y, m=19)["y"].reshape(19, 13)
    bound = 21 * EPS * (np.abs(x) @ np.abs(w))
    assert np.all(np.abs(got - x.astype(float) @ w) <= bound)


@pytest.mark.parametrize("k", [16, 32, 80])
def test_gemm_in_matrix_tiles(k: int) -> None:
    """Products of bf16 are exact in f32; the sums are not."""
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((32, k), (16, k)))
    got = run(kernels.tile_gemm(k), x=x, w=w, y=np.zeros((32, 16), np.float32))["y"]
    a, b = x.astype(float), w.astype(float)
    assert np.all(np.abs(got.reshape(32, 16) - a @ b.T) <= k * EPS * (np.abs(a) @ np.abs(b).T))


@pytest.mark.parametrize("k", [64, 96, 160])
def test_gemm_of_four_warps_out_of_shared_memory(k: int) -> None:
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((64, k), (16, k)))
    got = run(kernels.warpgroup_gemm(k), x=x, w=w, y=np.zeros((64, 16), np.float32))["y"]
    a, b = x.astype(float), w.astype(float)
    assert np.all(np.abs(got.reshape(64, 16) - a @ b.T) <= k * EPS * (np.abs(a) @ np.abs(b).T))


@pytest.mark.parametrize("k", [64, 136, 200])
def test_products_of_four_warps_that_overlap(k: int) -> None:
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((64, k), (k, 64)))
    got = run(kernels.pipelined_gemm(k), x=x, w=w, y=np.zeros((64, 64), np.float32))["y"]
    a, b = x.astype(float), w.astype(float)
    assert np.all(np.abs(got.reshape(64, 64) - a @ b) <= k * EPS * (np.abs(a) @ np.abs(b)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"release_early": True}, "race|changed while its product was under way|still filling"),
        ({"fence": False}, "no proxy fence"),
    ],
)
def test_operands_of_products_under_way_are_left_alone(change: dict[str, bool], why: str) -> None:
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((64, 256), (256, 64)))
    program = kernels.pipelined_gemm(256, **change)
    given = {"x": x.reshape(-1), "w": w.reshape(-1), "y": np.zeros(64 * 64, np.float32)}
    with pytest.raises(rlx.Error, match=why):
        launch(program, given)


@pytest.mark.parametrize(("k", "n"), [(16, 8), (90, 80), (130, 128)])
def test_a_batch_of_products_with_the_left_operand_in_registers(k: int, n: int) -> None:
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((64, k), (2, k, n)))
    program = kernels.warpgroup_values(2, k, n)
    got = run(program, x=x, w=w, y=np.zeros((2, 64, n), np.float32))["y"]
    a, b = x.astype(float), w.astype(float)
    assert np.all(np.abs(got.reshape(2, 64, n) - a @ b) <= k * EPS * (np.abs(a) @ np.abs(b)))


def turns(*, gives: bool = True) -> Program:
    """Four warps one after the other add to a word of shared memory, three times each: all wait at
    the same node, each for the one before."""
    b = Builder("turns", block=128)
    y, word, order = b.output("y", DType.I32), b.shared("word", DType.I32, 1), b.mbarrier("o", 4)
    with b.when(b.thread.eq(0)):
        word[0] = 0
        for i in range(4):
            b.mbarrier_init(order, 1, i)
    b.barrier()
    total = b.variable(0)
    with b.loop(0, 3, carry=[total]) as i:
        first = b.const(1, DType.I32).where(b.warp.eq(0), 0)
        b.mbarrier_wait(order, (i + first) % 2, b.warp)
        total.set(word[0] * 2 + b.warp)
        b.barrier("warp")
        with b.when(b.lane.eq(0)):
            word[0] = total
            if gives:
                b.mbarrier_arrive(order, (b.warp + 1) % 4)
    y[b.thread] = total
    return b.program()


def test_warps_of_one_region_take_turns() -> None:
    got = run(turns(), y=np.zeros(128, np.int32))["y"].reshape(4, 32)
    want, word = [0] * 4, 0
    for _ in range(3):
        for warp in range(4):
            word = want[warp] = word * 2 + warp
    np.testing.assert_array_equal(got, np.repeat(np.array(want)[:, None], 32, axis=1))
    with pytest.raises(rlx.Error, match="deadlock"):
        run(turns(gives=False), y=np.zeros(128, np.int32))


def test_sum_over_a_cluster() -> None:
    x = normal(3, 300)
    got = run(kernels.cluster_sum(), x=x, y=np.zeros(3, np.float32), m=3, n=300)["y"]
    assert np.all(np.abs(got - x.sum(axis=1, dtype=float)) <= 12 * EPS * np.abs(x).sum(axis=1))


@pytest.mark.parametrize("n", [1, 64, 200])
def test_scan(n: int) -> None:
    x = np.random.default_rng(n).integers(-99, 99, (3, n)).astype(np.int32)
    got = run(kernels.scan(), x=x, y=np.zeros_like(x), m=3, n=n)["y"]
    np.testing.assert_array_equal(got.reshape(x.shape), x.cumsum(axis=1))


@pytest.mark.parametrize("k", [8, 37])
def test_copy_engine_with_a_producer_and_a_consumer(k: int) -> None:
    x = normal(k, 16)
    got = run(kernels.pipeline(k), x=x, y=np.zeros(16, np.float32))["y"]
    assert np.all(np.abs(got - x.sum(axis=0, dtype=float)) <= k * EPS * np.abs(x).sum(axis=0))


def test_blocks_of_several_batches_are_one_launch() -> None:
    n = 70_000
    x = np.arange(n, dtype=np.float32)
    got = run(kernels.scaled(block=32), x=x, y=np.zeros_like(x), n=n)
    np.testing.assert_array_equal(got["y"], x * 2 + 1)


# -- single nodes ---------------------------------------------------------------------------------


def of_threads(
    block: int, dtype: DType, make: Callable[[Builder, Var], Var], x: Array | None = None
) -> Array:
    """What each thread of one block makes of an input, or of its index."""
    b = Builder("p", block=block)
    source = b.input("x", I32 if x is None else DType.of(x.dtype))
    y = b.output("y", dtype)
    y[b.thread] = make(b, source[b.thread])
    given = np.arange(block, dtype=np.int32) if x is None else x
    return run(b.program(), x=given, y=np.zeros(block, dtype.numpy))["y"]


@pytest.mark.parametrize("block", [1, 3, 32, 48, 64])
def test_reductions_combine_neighbours_first(block: int) -> None:
    """The tree of neighbours, in f32, for any number of threads."""
    x = normal(block)
    got = of_threads(block, F32, lambda b, v: b.block_reduce("add", v), x)
    rows = list(x)
    while len(rows) > 1:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2])] + rows[len(rows) // 2 * 2 :]
    np.testing.assert_array_equal(got, np.full(block, rows[0]))


def test_groups_of_a_warp() -> None:
    got = of_threads(64, I32, lambda b, v: b.warp_reduce("max", v, 8))
    np.testing.assert_array_equal(got, np.arange(64) // 8 * 8 + 7)
    np.testing.assert_array_equal(
        of_threads(64, I32, lambda b, v: b.shuffle(v, 5)), np.arange(64) ^ 5
    )


def test_reduce_scatter() -> None:
    def make(b: Builder, v: Var) -> Var:
        return b.reduce_scatter("add", [v * k for k in (1, 10, 100, 1000)])

    scale = np.repeat([1, 10, 100, 1000], 8)
    np.testing.assert_array_equal(of_threads(32, I32, make), scale * np.arange(32).sum())


def test_exclusive_scan_and_truth_values() -> None:
    x = np.array([3, 1, 2, 5], np.int32)
    got = of_threads(4, I32, lambda b, v: b.block_scan("add", v, is_inclusive=False), x)
    np.testing.assert_array_equal(got, [0, 3, 4, 6])
    any_five = of_threads(4, BOOL, lambda b, v: b.block_reduce("max", v.eq(5)), x)
    assert any_five.all()


def test_loops_and_branches_that_differ_between_threads() -> None:
    def steps(b: Builder, v: Var) -> Var:
        """Collatz."""
        left, count = b.variable(v + 1), b.variable(0, I32)
        with b.repeat([left, count]) as loop:
            loop.when(left > 1)
            with b.when((left % 2).eq(0), carry=[left]):
                left.set(left // 2)
            with b.otherwise(carry=[left]):
                left.set(left * 3 + 1)
            count += 1
        return count

    def expected(n: int) -> int:
        return 0 if n == 1 else 1 + expected(n // 2 if n % 2 == 0 else 3 * n + 1)

    np.testing.assert_array_equal(of_threads(32, I32, steps), [expected(i + 1) for i in range(32)])


def test_integer_division_is_that_of_c() -> None:
    x = np.array([7, -7, 6, -6], np.int32)
    np.testing.assert_array_equal(of_threads(4, I32, lambda b, v: v // 3, x), [2, -2, 2, -2])
    np.testing.assert_array_equal(of_threads(4, I32, lambda b, v: v % 3, x), [1, -1, 0, 0])


@pytest.mark.parametrize("role", ["a", "b", "c"])
@pytest.mark.parametrize("warp", [32, 64])
def test_each_element_of_a_tile_is_held_once(role: Any, warp: int) -> None:
    tile = TileType(role, 16, 16, F32)
    rows, columns = places(tile, warp)
    assert rows.shape == columns.shape == (warp, 256 // warp)
    assert len({(int(r), int(c)) for r, c in zip(rows.flat, columns.flat)}) == 256


# -- planted faults -------------------------------------------------------------------------------


def fails(program: Program, why: str, **arguments: Any) -> None:
    with pytest.raises(LaunchError, match=why):
        run(program, **arguments)


def test_a_missing_barrier_is_a_race_with_both_threads_and_nodes() -> None:
    x = normal(16, 16)
    fails(
        kernels.transpose(barrier=False),
        re.escape("node 31 (shared_load memory=tile): race on tile[17]: thread 1 of block 0 reads")
        + " it, and thread 16 of block 0 writes it at "
        + re.escape("node 20 (shared_store memory=tile)"),
        x=x,
        y=np.zeros_like(x),
        m=16,
        n=16,
    )


def test_a_tile_that_is_refilled_too_early_is_a_race() -> None:
    x, w = normal(8, 16), normal(16, 8)
    y = np.zeros((8, 8), np.float32)
    fails(
        kernels.gemm(16, 8, second_barrier=False),
        r"race on left\[0\]: thread 0 of block 0 writes it, and thread \d+ of block 0 reads it",
        x=x, w=w, y=y, m=8,
    )  # fmt: skip


def test_one_word_written_by_two_threads_is_a_race() -> None:
    b = Builder("p", block=32)
    s = b.shared("s", I32, 16)
    s[b.thread % 16] = b.thread
    fails(
        b.program(), r"race on s\[\d+\]: thread \d+ of block 0 writes it, and thread \d+ of block 0"
    )


def test_a_read_before_another_threads_write_is_a_race() -> None:
    b = Builder("p", block=32)
    s, y = b.shared("s", I32, 32), b.output("y", I32)
    s[b.thread] = b.thread
    b.barrier()
    y[b.thread] = s[31 - b.thread]
    s[b.thread] = 0
    fails(b.program(), "writes it, and thread .* of block 0 reads it", y=np.zeros(32, np.int32))


def global_race(index: Callable[[Builder], Var], access: str = "write") -> Program:
    b = Builder("p", block=4, grid=(4,))
    y = b.buffer("y", I32, "update")
    if access == "read":
        with b.when(b.block_index().eq(1)):
            y[b.thread] = y[b.thread + 4]
        with b.otherwise():
            y[b.block_index() * 4 + b.thread + 4] = 1
    else:
        y[index(b)] = b.thread
    return b.program()


def test_blocks_that_write_the_same_word_race() -> None:
    y = np.zeros(64, np.int32)
    fails(
        global_race(lambda b: b.thread + b.block_index()),
        r"race on y\[1\]: thread 1 of block 0 writes it, and thread 0 of block 1 writes",
        y=y,
    )
    fails(global_race(lambda b: b.thread, "read"), r"race on y\[[4-7]\]", y=y)


def test_threads_of_a_block_may_rewrite_a_buffer_after_a_barrier() -> None:
    b = Builder("p", block=32)
    y = b.buffer("y", I32, "update")
    y[b.thread] = b.thread
    b.barrier()
    (value,) = y.load(31 - b.thread)
    b.barrier()
    y[b.thread] = value
    got = run(b.program(), y=np.zeros(32, np.int32))["y"]
    np.testing.assert_array_equal(got, np.arange(32)[::-1])


def test_a_warp_barrier_orders_a_warp_only() -> None:
    def program(distance: int) -> Program:
        b = Builder("p", block=64)
        s, y = b.shared("s", I32, 64), b.output("y", I32)
        s[b.thread] = b.thread
        b.barrier("warp")
        y[b.thread] = s[b.thread ^ distance]
        return b.program()

    got = run(program(3), y=np.zeros(64, np.int32))["y"]
    np.testing.assert_array_equal(got, np.arange(64) ^ 3)
    fails(program(32), r"race on s\[32\]", y=np.zeros(64, np.int32))


@pytest.mark.parametrize("index", [-1, 16])
def test_an_index_outside_of_a_buffer(index: int) -> None:
    b = Builder("p", block=16)
    x, y = b.input("x", F32), b.output("y", F32)
    with b.when(b.thread.eq(3)):
        y[0] = x[b.thread * 0 + index]
    fails(
        b.program(),
        rf"thread 3 of block 0 is at index {index} of x, which has elements 0 to 15",
        x=normal(16),
        y=normal(16),
    )


def test_an_index_outside_of_shared_memory() -> None:
    b = Builder("p", block=32)
    s = b.shared("s", F32, 16)
    s[b.thread] = 1.0
    fails(b.program(), "thread 16 of block 0 is at index 16 of s, which has elements 0 to 15")


def test_an_unaligned_vector() -> None:
    b = Builder("p", block=4)
    x, y = b.input("x", F32), b.output("y", F32)
    y[b.thread] = x.load(b.thread * 2 + 2, 4)[0]
    fails(b.program(), "accesses 4 elements of x from 2 on", x=normal(16), y=normal(4))


def test_shared_memory_that_was_never_written() -> None:
    b = Builder("p", block=32)
    s, y = b.shared("s", F32, 32), b.output("y", F32)
    with b.when(b.thread < 30):
        s[b.thread] = 1.0
    b.barrier()
    y[b.thread] = s[b.thread]
    fails(b.program(), r"thread 30 of block 0 reads s\[30\], which was never written", y=normal(32))


def test_a_copy_of_the_wrong_group_is_waited_for() -> None:
    x, w = (normal(*d).astype(ml_dtypes.bfloat16) for d in ((32, 64), (16, 64)))
    y = np.zeros(512, np.float32)
    fails(kernels.tile_gemm(64, pending=2), "is still filling; wait for its group", x=x, w=w, y=y)


def test_a_thread_that_ends_while_it_copies() -> None:
    b = Builder("p", block=4)
    x, s = b.input("x", F32), b.shared("s", F32, 16)
    b.async_commit()
    b.async_wait(0)
    b.async_copy(s, b.thread * 4, x, b.thread * 4, 4)
    fails(b.program(), "ends while this copy is under way", x=normal(16))


def test_pushes_that_nobody_waited_for_race() -> None:
    """A wait in another thread does not tell this one."""
    b = Builder("p", block=32, grid=(2,), cluster=2)
    s, bar, y = b.shared("s", F32, 2), b.mbarrier("bar"), b.output("y", F32)
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(bar, 1)
        b.mbarrier_arrive(bar, expected_bytes=8)
    b.barrier("cluster")
    with b.when(b.thread.eq(0)):
        b.push(s, b.rank, [1.0], 0, bar)
        b.push(s, b.rank, [1.0], 1, bar)
    with b.when(b.thread.eq(1)):
        b.mbarrier_wait(bar, 0)
    with b.when(b.thread.eq(2)):
        y[b.rank] = s[0]
    fails(b.program(), r"race on s\[0\]: thread 2 of block 0 reads it, and a copy engine",
          y=normal(2))  # fmt: skip


def test_an_mbarrier_is_used_behind_its_initialisation_only() -> None:
    x = normal(3, 300)
    fails(
        kernels.cluster_sum(sync=False),
        "thread 0 of block 1 uses the mbarrier, and nothing orders that behind its init",
        x=x, y=np.zeros(3, np.float32), m=3, n=300,
    )  # fmt: skip


@pytest.mark.parametrize("planted", ["release", "expect"])
def test_phases_that_never_complete_are_a_deadlock(planted: str) -> None:
    x = normal(37, 16)
    y = np.zeros(16, np.float32)
    fails(kernels.pipeline(37, **{planted: False}), "deadlock: every thread waits", x=x, y=y)


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    """The verifier sees this one; the interpreter does without it."""
    b = Builder("p", block=32)
    with b.when(b.thread < 7):
        b.barrier()
    with pytest.raises(LaunchError, match="thread 0 of block 0 comes here and thread 7 of block 0"):
        launch(b.program(), {})


def test_loops_that_never_end_are_reported() -> None:
    b = Builder("p", block=4)
    y = b.output("y", I32)
    total = b.variable(0, I32)
    with b.loop(0, 4, b.const(0, I32), carry=[total]):
        total += 1
    y[b.thread] = total
    fails(b.program(), "its step is 0", y=np.zeros(4, np.int32))
    b = Builder("p", block=4)
    total = b.variable(0, I32)
    with b.repeat([total]) as again:
        again.when(total >= 0)
        total.set(0)
    fails(b.program(), "it goes on after 16384 steps")


def test_arguments_that_are_missing_or_of_another_dtype() -> None:
    program = kernels.scaled()
    with pytest.raises(LaunchError, match="buffer y is not given"):
        launch(program, {"x": normal(4)}, {"n": 4})
    with pytest.raises(LaunchError, match="buffer x is a flat array of f32"):
        launch(program, {"x": np.zeros(4), "y": normal(4)}, {"n": 4})
    b = Builder("p", block=1)
    b.scalar("eps", F32)
    with pytest.raises(LaunchError, match="scalar eps is not given"):
        launch(b.program(), {})


def test_what_is_left_open_gives_unexpected_numbers() -> None:
    """A program that counts on a division by 0, or a shift by the width, is found out."""
    x = np.zeros(4, np.int32)
    divided = of_threads(4, I32, lambda b, v: b.const(1, I32) // v, x)
    shifted = of_threads(4, I32, lambda b, v: b.const(1, I32) << (v + 32), x)
    cut = of_threads(4, I32, lambda b, v: b.convert(v.to(F32) + 1e20, I32), x)
    for made in (divided, shifted, cut):
        assert not np.isin(made, [0, 1, -(2**31), 2**31 - 1]).any()


def test_a_buffer_reference_stores_vectors() -> None:
    b = Builder("p", block=2)
    y = b.output("y", F32)
    assert isinstance(y, BufferRef)
    y.store(b.thread * 4, [b.thread.to(F32) + k for k in range(4)])
    got = run(b.program(), y=np.zeros(8, np.float32))["y"]
    np.testing.assert_array_equal(got, [0, 1, 2, 3, 1, 2, 3, 4])
