"""Kernels whose times are a device's numbers: copies, transposed copies, arithmetic, products."""

from __future__ import annotations

import numpy as np

from rlx.backends.gpu.device import Array
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.values import Var

F32, I32 = DType.F32, DType.I32
BLOCK = 256
VECTOR, VECTORS = 4, 4
"""Numbers of 32 bits of an access, and accesses of a thread."""
CHUNK = BLOCK * VECTOR * VECTORS
"""Numbers that a block copies."""
TILE = 32
"""Of a transposed copy; 8 rows at a time."""
CHAINS = 16
"""Independent multiply-adds of a thread: more than one takes, times the units that do them."""
PRODUCTS = 8
"""Independent products of a warp."""
WARPGROUP = 128
DEPTH, COLUMNS = 64, 256
"""Of a product of a warpgroup, 64 rows by so many columns."""


def copying(machine: GpuMachine) -> Program:
    """y = x, n chunks of it: a thread has several vectors in flight."""
    n = Dim("n")
    b = Builder("probe_copy", block=BLOCK, grid=(n,))
    x, y = b.input("x", F32), b.output("y", F32)
    _wait(b, machine)
    first = b.block_index() * CHUNK + b.thread * VECTOR
    places = [first + i * BLOCK * VECTOR for i in range(VECTORS)]
    loaded = [x.load(at, VECTOR) for at in places]
    for at, values in zip(places, loaded):
        y.store(at, values)
    return b.program()


def transposing() -> Program:
    """y [c, r] of x [r, c], both multiples of a tile, through shared memory."""
    rows, columns = Dim("r"), Dim("c")
    b = Builder("probe_transpose", block=BLOCK, grid=(columns // TILE, rows // TILE))
    x, y = b.input("x", F32), b.output("y", F32)
    height, width = b.size("r", rows), b.size("c", columns)
    tile = b.shared("tile", F32, TILE * (TILE + 1))
    r, c = b.thread // TILE, b.thread % TILE
    left, top = b.block_index(0) * TILE, b.block_index(1) * TILE
    step = BLOCK // TILE
    for at in range(0, TILE, step):
        tile[(r + at) * (TILE + 1) + c] = x[(top + r + at) * width + left + c]
    b.barrier()
    for at in range(0, TILE, step):
        y[(left + r + at) * height + top + c] = tile[c * (TILE + 1) + r + at]
    return b.program()


def multiply_adding(dtype: DType) -> Program:
    """y = the sum of chains of `steps` multiply-adds, each v ← v / 2 + 1."""
    blocks, steps = Dim("blocks"), Dim("steps")
    b = Builder(f"probe_fma_{dtype}", block=BLOCK, grid=(blocks,))
    y, count = b.output("y", dtype), b.size("steps", steps)
    chains = [b.variable(float(i), dtype) for i in range(CHAINS)]
    with b.loop(0, count, carry=chains):
        for chain in chains:
            chain.set(b.fma(chain, 0.5, 1.0))
    total: Var = chains[0] + 0.0
    for chain in chains[1:]:
        total = total + chain
    y[b.block_index() * BLOCK + b.thread] = total
    return b.program()


def multiplying(dtype: DType) -> Program:
    """Chains of products of a warp's tiles of ones."""
    blocks, steps = Dim("blocks"), Dim("steps")
    b = Builder(f"probe_mma_{dtype}", block=BLOCK, grid=(blocks,))
    y, count = b.output("y", F32), b.size("steps", steps)
    left = b.tile_fill(TileType("a", 16, 16, dtype), 1.0)
    right = b.tile_fill(TileType("b", 16, 8, dtype), 1.0)
    tile = TileType("c", 16, 8, F32)
    chains = [b.variable(b.tile_fill(tile, float(i))) for i in range(PRODUCTS)]
    with b.loop(0, count, carry=chains):
        for chain in chains:
            chain.set(b.tile_mul(left, right, chain))
    total = b.const(0.0, F32)
    for chain in chains:
        total = total + b.tile_elements(chain)[0]
    y[b.block_index() * BLOCK + b.thread] = total
    return b.program()


def warpgroup_multiplying(dtype: DType) -> Program:
    """Chains of products of two warpgroups, out of shared memory: rows of x by rows of x."""
    blocks, steps = Dim("blocks"), Dim("steps")
    b = Builder(f"probe_wgmma_{dtype}", block=2 * WARPGROUP, grid=(blocks,))
    x, y = b.constant("x", dtype, COLUMNS * DEPTH), b.output("y", F32)
    count = b.size("steps", steps)
    rows = (128, COLUMNS)
    maps = [b.tensor_map(f"m{n}", x, (COLUMNS, DEPTH), (n, DEPTH)) for n in rows]
    left, right = (b.shared(f"s{n}", dtype, n * DEPTH, is_swizzled=True) for n in rows)
    full = b.mbarrier("full")
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(full, 1)
    b.barrier()
    with b.when(b.thread.eq(0)):
        b.mbarrier_arrive(full, expected_bytes=sum(rows) * DEPTH * dtype.itemsize)
        for memory, source in zip((left, right), maps):
            b.bulk_copy(memory, 0, source, 0, 0, full)
    b.mbarrier_wait(full, 0)
    total = b.variable(b.tile_fill(TileType("c", 16, COLUMNS, F32)))
    at = b.thread // WARPGROUP * (64 * DEPTH)
    with b.loop(0, count, carry=[total]):
        total.set(b.warpgroup_mul(total, left, at, right, 0, DEPTH))
    y[b.block_index() * (2 * WARPGROUP) + b.thread] = b.tile_elements(total)[0]
    return b.program()


def factors(dtype: DType) -> Array:
    """The x of such products. Numbers vary: how many bits change decides how much power the chip
    takes, hence its clock. They are whole eighths, so that sums are exact."""
    made = np.random.default_rng(0).integers(-8, 9, (COLUMNS, DEPTH)) / 8
    return made.astype(dtype.numpy)


def _wait(b: Builder, machine: GpuMachine) -> None:
    if machine.has_dependent_launch:
        b.release_dependents()
        b.wait_dependencies()
