"""Kernels written by hand with the builder, each with a fault that may be planted in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.tensor_map import OuterDim
from rlx.program.types import TileType
from rlx.program.values import Var
from rlx.program.verify import verify

Array = np.ndarray[Any, Any]
F32, BF16, I32 = DType.F32, DType.BF16, DType.I32


def run(program: Program, **arguments: Any) -> dict[str, Array]:
    """Copies of the buffers, after a launch of the verified program; numbers are sizes."""
    verify(program)
    buffers = {k: v.reshape(-1).copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
    sizes = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    launch(program, buffers, sizes)
    return buffers


def scaled(block: int = 64) -> Program:
    """y = 2 x + 1, with a tail."""
    n = Dim("n")
    b = Builder("scaled", block=block, grid=((n + block - 1) // block,))
    x, y, count = b.input("x", F32, n), b.output("y", F32, n), b.size("n", n)
    i = b.block_index() * block + b.thread
    with b.when(i < count):
        y[i] = x[i] * 2.0 + 1.0
    return b.program()


def softmax(block: int = 64) -> Program:
    """A block a row, in three passes."""
    m, n = Dim("m"), Dim("n")
    b = Builder("softmax", block=block, grid=(m,))
    x, y, count = b.input("x", F32), b.output("y", F32), b.size("n", n)
    base = b.block_index() * count
    most = b.variable(float("-inf"), F32)
    with b.loop(b.thread, count, block, carry=[most]) as i:
        most.set(most.max(x[base + i]))
    top = b.block_reduce("max", most)
    total = b.variable(0.0, F32)
    with b.loop(b.thread, count, block, carry=[total]) as i:
        total += b.call("exp", x[base + i] - top)
    whole = b.block_reduce("add", total)
    with b.loop(b.thread, count, block) as i:
        y[base + i] = b.call("exp", x[base + i] - top) / whole
    return b.program()


def transpose(*, barrier: bool = True) -> Program:
    """Tiles of 16 x 16 through shared memory, one column wider so that banks differ."""
    m, n = Dim("m"), Dim("n")
    b = Builder("transpose", block=256, grid=((n + 15) // 16, (m + 15) // 16))
    x, y = b.input("x", F32), b.output("y", F32)
    rows, columns = b.size("m", m), b.size("n", n)
    tile = b.shared("tile", F32, 16 * 17)
    r, c = b.thread // 16, b.thread % 16
    top, left = b.block_index(1) * 16, b.block_index(0) * 16
    inside = (top + r < rows) & (left + c < columns)
    (value,) = x.load((top + r) * columns + left + c, mask=inside)
    tile[r * 17 + c] = value
    if barrier:
        b.barrier()
    inside = (left + r < columns) & (top + c < rows)
    y.store((left + r) * rows + top + c, tile.load(c * 17 + r), mask=inside)
    return b.program()


def gemm(k: int, n: int, *, second_barrier: bool = True) -> Program:
    """y [m, n] = x [m, k] w [k, n] with tiles of 8 x 8 in shared memory; m is a dim."""
    m = Dim("m")
    b = Builder("gemm", block=64, grid=((m + 7) // 8, -(-n // 8)))
    x, w, y, rows = b.input("x", F32), b.input("w", F32), b.output("y", F32), b.size("m", m)
    left, right = b.shared("left", F32, 64), b.shared("right", F32, 64)
    r, c = b.thread // 8, b.thread % 8
    row, column = b.block_index(0) * 8 + r, b.block_index(1) * 8 + c
    total = b.variable(0.0, F32)
    with b.loop(0, k, 8, carry=[total]) as at:
        left[b.thread] = x.load(row * k + at + c, mask=(row < rows) & (at + c < k))[0]
        right[b.thread] = w.load((at + r) * n + column, mask=(at + r < k) & (column < n))[0]
        b.barrier()
        for i in range(8):
            total += left[r * 8 + i] * right[8 * i + c]
        if second_barrier:
            b.barrier()
    with b.when((row < rows) & (column < n)):
        y[row * n + column] = total
    return b.program()


def tile_gemm(k: int, *, wait: bool = True, barrier: bool = True, pending: int = 1) -> Program:
    """y [32, 16] += x [32, k] w [16, k]ᵀ a block, in matrix tiles: four warps, each 16 x 8, and
    two stages of asynchronous copies of 16 columns of k."""
    b = Builder("tile_gemm", block=128, grid=(1,))
    x, w, y = b.input("x", BF16), b.constant("w", BF16), b.output("y", F32)
    left = b.shared("left", BF16, 2 * 32 * 16, is_swizzled=True)
    right = b.shared("right", BF16, 2 * 16 * 16, is_swizzled=True)
    a, bt, acc = TileType("a", 16, 16, BF16), TileType("b", 16, 8, BF16), TileType("c", 16, 8, F32)

    def fill(stage: Any, at: Any) -> None:
        """8 elements a thread: 64 threads for x, 32 for w."""
        t = b.thread
        with b.when(t < 64):
            b.async_copy(left, stage * 512 + t * 8, x, t // 2 * k + at + t % 2 * 8, 8)
        with b.when((t >= 64) & (t < 96)):
            u = t - 64
            b.async_copy(right, stage * 256 + u * 8, w, u // 2 * k + at + u % 2 * 8, 8)
        b.async_commit()

    fill(b.const(0, I32), b.const(0, I32))
    total = b.variable(b.tile_fill(acc))
    row, column = b.warp % 2 * 16, b.warp // 2 * 8
    with b.loop(0, k // 16, carry=[total]) as i:
        stage = i % 2
        with b.when(i + 1 < k // 16):
            fill(1 - stage, (i + 1) * 16)
        with b.otherwise():
            b.async_commit()
        if wait:
            b.async_wait(pending)
        if barrier:
            b.barrier()
        tiles = (
            b.tile_load(a, left, stage * 512 + row * 16, 16),
            b.tile_load(bt, right, stage * 256 + column * 16, 16, is_transposed=True),
        )
        total.set(b.tile_mul(*tiles, total))
        b.barrier()
    b.async_wait(0)
    for value, (r, c) in zip(b.tile_elements(total), b.tile_place(acc)):
        y[(row + r) * 16 + column + c] = value
    return b.program()


def cluster_sum(*, wait: bool = True, sync: bool = True) -> Program:
    """A cluster of 4 blocks sums a row: each block pushes its sum into block 0."""
    m, n = Dim("m"), Dim("n")
    b = Builder("cluster_sum", block=32, grid=(4 * m,), cluster=4)
    x, y, count = b.input("x", F32), b.output("y", F32), b.size("n", n)
    parts, bar = b.shared("parts", F32, 4), b.mbarrier("bar")
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(bar, 1)
        b.mbarrier_arrive(bar, expected_bytes=16)
    if sync:
        b.barrier("cluster")
    row = b.block_index() // 4
    total = b.variable(0.0, F32)
    with b.loop(b.rank * 32 + b.thread, count, 128, carry=[total]) as i:
        total += x[row * count + i]
    mine = b.block_reduce("add", total)
    with b.when(b.thread.eq(0)):
        b.push(parts, b.rank, [mine], 0, bar)
    with b.when(b.rank.eq(0) & b.thread.eq(0)):
        if wait:
            b.mbarrier_wait(bar, 0)
        low, high = parts[0] + parts[1], parts[2] + parts[3]
        y[row] = low + high
    b.barrier("cluster")
    return b.program()


def scan(block: int = 64) -> Program:
    """Inclusive sums of a row of any length: a block a row, the carry from chunk to chunk."""
    m, n = Dim("m"), Dim("n")
    b = Builder("scan", block=block, grid=(m,))
    x, y, count = b.input("x", I32), b.output("y", I32), b.size("n", n)
    base = b.block_index() * count
    carry = b.variable(0, I32)
    with b.loop(0, count, block, carry=[carry]) as at:
        i = at + b.thread
        (value,) = x.load(base + i, mask=i < count)
        sums = b.block_scan("add", value) + carry
        y.store(base + i, [sums], mask=i < count)
        carry += b.block_reduce("add", value)
    return b.program()


def pipeline(k: int, *, release: bool = True, expect: bool = True) -> Program:
    """The copy engine fills two stages of 8 x 16; one warp produces, another sums the columns.
    y [16] = sums of x [k, 16]."""
    steps = -(-k // 8)
    b = Builder("pipeline", block=64, grid=(1,))
    x, y = b.input("x", F32), b.output("y", F32)
    box = b.tensor_map("box", x, (k, 16), (8, 16))
    data = b.shared("data", F32, 2 * 128, align=128)
    full, empty = b.mbarrier("full", 2), b.mbarrier("empty", 2)
    with b.when(b.thread.eq(0)):
        for i in range(2):
            b.mbarrier_init(full, 1, i)
            b.mbarrier_init(empty, 16, i)
    b.barrier()
    with b.when(b.thread.eq(0)), b.loop(0, steps) as i:
        stage = i % 2
        b.mbarrier_wait(empty, 1 - i // 2 % 2, stage)
        b.mbarrier_arrive(full, stage, 512 if expect else 256)
        b.bulk_copy(data, stage * 128, box, i * 8, 0, full, stage)
    with b.otherwise(), b.when((b.thread >= 32) & (b.thread < 48)):
        total = b.variable(0.0, F32)
        with b.loop(0, steps, carry=[total]) as i:
            stage = i % 2
            b.mbarrier_wait(full, i // 2 % 2, stage)
            for r in range(8):
                total += data[stage * 128 + r * 16 + b.thread - 32]
            if release:
                b.mbarrier_arrive(empty, stage)
        y[b.thread - 32] = total
    return b.program()


def pipelined_gemm(k: int, *, release_early: bool = False, fence: bool = True) -> Program:
    """y [64, 64] = x [64, k] w [k, 64]: a warp copies x by its threads and has w copied in two
    stages of 64; four more multiply, a product under way beside the next. w is not transposed."""
    steps = -(-k // 64)
    b = Builder("pipelined_gemm", block=256)
    x, w, y = b.input("x", BF16), b.input("w", BF16), b.output("y", F32)
    box = b.tensor_map("mw", w, (k, 64), (64, 64))
    left, right = (b.shared(n, BF16, 2 * 4096, is_swizzled=True) for n in ("left", "right"))
    full, empty = b.mbarrier("full", 2), b.mbarrier("empty", 2)
    with b.when(b.thread.eq(0)):
        for i in range(2):
            b.mbarrier_init(full, 2, i)
            b.mbarrier_init(empty, 1, i)
    b.barrier()
    with b.when(b.warp < 4):
        b.register_limit(40, is_more=False)
        with b.when(b.warp < 1), b.loop(0, steps) as i:
            b.mbarrier_wait(empty, (i // 2 + 1) % 2, i % 2)
            with b.when(b.lane.eq(0)):
                b.mbarrier_arrive(full, i % 2, 8192)
                b.bulk_copy(right, i % 2 * 4096, box, i * 64, 0, full, i % 2)
            for unit in range(16):
                row, chunk = unit * 4 + b.lane // 8, b.lane % 8 * 8
                at = i % 2 * 4096 + row * 64 + chunk
                b.async_copy(left, at, x, row * k + i * 64 + chunk, 8, i * 64 + chunk < k)
            b.async_commit()
            b.async_wait()
            if fence:
                b.proxy_fence()
            b.barrier("warp")
            with b.when(b.lane.eq(0)):
                b.mbarrier_arrive(full, i % 2)
    with b.otherwise():
        b.register_limit(232, is_more=True)
        tile = TileType("c", 16, 64, F32)
        total = b.variable(b.tile_fill(tile))
        first = (b.thread % 128).eq(0)
        with b.loop(0, steps, carry=[total]) as i:
            at = i % 2 * 4096
            b.mbarrier_wait(full, i // 2 % 2, i % 2)
            made = b.warpgroup_mul(total, left, at, right, at, 64, panels=(0, 4096), is_async=True)
            total.set(made)
            if not release_early:
                b.warpgroup_wait(1)
            with b.when(first & (i > 0)):
                b.mbarrier_arrive(empty, (i + 1) % 2)
            if release_early:
                b.warpgroup_wait(1)
        b.warpgroup_wait()
        with b.when(first):
            b.mbarrier_arrive(empty, (steps - 1) % 2)
        for value, (r, c) in zip(b.tile_elements(total), b.tile_place(tile)):
            y[((b.warp - 4) * 16 + r) * 64 + c] = value
    return b.program()


def warpgroup_gemm(k: int, n: int = 16) -> Program:
    """y [64, n] = x [64, k] w [n, k]ᵀ by four warps, out of shared memory that the copy engine
    fills, 64 columns at a time."""
    b = Builder("warpgroup_gemm", block=128)
    x, w, y = b.input("x", BF16), b.input("w", BF16), b.output("y", F32)
    maps = b.tensor_map("mx", x, (64, k), (64, 64)), b.tensor_map("mw", w, (n, k), (n, 64))
    left = b.shared("left", BF16, 64 * 64, is_swizzled=True)
    right = b.shared("right", BF16, n * 64, is_swizzled=True)
    full = b.mbarrier("full")
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(full, 1)
    b.barrier()
    tile = TileType("c", 16, n, F32)
    total = b.variable(b.tile_fill(tile))
    with b.loop(0, -(-k // 64), carry=[total]) as i:
        with b.when(b.thread.eq(0)):
            b.mbarrier_arrive(full, expected_bytes=(64 + n) * 128)
            b.bulk_copy(left, 0, maps[0], 0, i * 64, full)
            b.bulk_copy(right, 0, maps[1], 0, i * 64, full)
        b.mbarrier_wait(full, i % 2)
        total.set(b.warpgroup_mul(total, left, 0, right, 0, 64))
        b.barrier()
    for value, (r, c) in zip(b.tile_elements(total), b.tile_place(tile)):
        y[(b.warp * 16 + r) * n + c] = value
    return b.program()


def warpgroup_values(batch: int, k: int, n: int, *, is_async: bool = False) -> Program:
    """y [batch, 64, n] = x [64, k] w [batch, k, n], a block for each of the batch: x in registers,
    w as the copy engine reads it, 64 columns at a time; what is behind k is 0."""
    depth, panels = -(-k // 16) * 16, -(-n // 64)
    b = Builder("warpgroup_values", block=128, grid=(batch,))
    x, w, y = b.input("x", BF16), b.input("w", BF16), b.output("y", F32)
    outer = [OuterDim(batch, k * n)]
    boxes = b.tensor_map("mw", w, (k, n), (depth, 64), outer=outer)
    right = b.shared("right", BF16, panels * depth * 64, is_swizzled=True)
    full = b.mbarrier("full")
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(full, 1)
        b.mbarrier_arrive(full, expected_bytes=panels * depth * 128)
        for i in range(panels):
            b.bulk_copy(right, i * depth * 64, boxes, 0, i * 64, full, 0, [b.block_index()])
    b.barrier()
    b.mbarrier_wait(full, 0)
    left, a = list[Var](), TileType("a", 16, 16, BF16)
    for first in range(0, depth, 16):
        places = [(b.warp * 16 + r, c + first) for r, c in b.tile_place(a)]
        left.append(b.tile_pack(a, [x.load(r * k + c, mask=c < k)[0] for r, c in places]))
    tile = TileType("c", 16, n, F32)
    zeros, panel = b.tile_fill(tile), depth * 64
    total = b.warpgroup_mul_tiles(zeros, left, right, 0, panel=panel, is_async=is_async)
    if is_async:
        b.warpgroup_wait()
    for value, (r, c) in zip(b.tile_elements(total), b.tile_place(tile)):
        y[(b.block_index() * 64 + b.warp * 16 + r) * n + c] = value
    return b.program()
