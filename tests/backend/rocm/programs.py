"""Programs for AMD GPUs: every op of every dtype, collectives, and products of matrix tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.rocm.architecture import Architecture
from rlx.core.dtype import DType
from rlx.ops import op as table
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.values import Var

Array = np.ndarray[Any, Any]
F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL
NUMBERS = [d for d in DType if not d.is_complex]
INTEGERS = [d for d in NUMBERS if d.is_integer]
FLOATS = [d for d in NUMBERS if d.is_float]
DRAWN = [o for o in table.table().values() if not o.why_no_cases and not o.measures]
"""Ops with laws, whose sizes are known when they are compiled."""


def small(target: Architecture) -> GpuMachine:
    """Small blocks, so that small shapes have several of them, loops and tails."""
    return replace(target.machine, block=64, max_block=64, warp_row=64, staged_vectors=2)


def scalars(dtype: DType, count: int = 32) -> Program:
    """Every op on x and y of a dtype: rows of z are results of the dtype, of t truth values."""
    b = Builder(f"scalars_{dtype}", block=count)
    x, y = b.input("x", dtype), b.input("y", dtype)
    z, t = b.output("z", dtype), b.output("t", BOOL)
    p, q = x[b.thread], y[b.thread]
    for i, value in enumerate(_numbers(b, p, q)):
        z[b.thread + i * count] = value
    for i, value in enumerate((p.eq(q), p.ne(q), p < q, p <= q, p > q, p >= q)):
        t[b.thread + i * count] = value
    return b.program()


def _numbers(b: Builder, p: Var, q: Var) -> list[Var]:
    dtype = p.dtype
    if dtype is BOOL:
        return [p & q, p | q, p ^ q, p.min(q), p.max(q), ~p]
    found = [p + q, p - q, p * q, p / q, p.min(q), p.max(q), -p, abs(p), p.where(p < q, q)]
    if dtype.is_float:
        found += [p.floor(), p.ceil(), p.trunc(), p.round()]
        return found + ([b.fma(p, q, p)] if dtype is not DType.BF16 else [])
    width = dtype.itemsize * 8
    amount = q & (width - 1)
    return [*found, p % q, p & q, p | q, p ^ q, ~p, p << amount, p >> amount, p // 7, p % 7]


def conversions(given: DType, count: int = 32) -> Program:
    """x in every dtype."""
    b = Builder(f"from_{given}", block=count)
    x = b.input("x", given)
    outputs = {d: b.output(f"to_{d}", d) for d in NUMBERS}
    for dtype, y in outputs.items():
        y[b.thread] = x[b.thread].to(dtype)
    return b.program()


def collective(warp: int, block: int, dtype: DType) -> Program:
    """Reductions of block, warp and groups, by exchange at every distance, and scans."""
    b = Builder(f"collective_{dtype}", block=block, warp=warp)
    x, y = b.input("x", dtype), b.output("y", dtype)
    value = x[b.thread]
    made = [b.block_reduce("add", value), b.block_reduce("max", value), b.warp_reduce("min", value)]
    made += [b.warp_reduce("add", value, w) for w in (2, 4, 8, 16)]
    made += [b.reduce_scatter("add", [value, value + 1, value + 2, value + 3])]
    made += [b.block_scan("add", value), b.shuffle(value, 5), b.shuffle(value, 7)]
    made += [b.shuffle(value, d) for d in (4, 8, 15, 16, 17, warp // 2, warp - 1)]
    for i, result in enumerate(made):
        y[b.thread + i * block] = result
    return b.program()


COLLECTIVES = 18
"""Rows of its result."""


def positions(warp: int) -> Program:
    """What a thread knows of where it is, a row for each."""
    b = Builder("positions", block=2 * warp, grid=(2, 3, 2), warp=warp)
    y = b.output("y", I32)
    x, r, z = (b.block_index(d) for d in range(3))
    at = ((z * b.block_count(1) + r) * b.block_count(0) + x) * (2 * warp) + b.thread
    found = [b.thread, b.lane, b.warp, x, r, z, *(b.block_count(d) for d in range(3))]
    for i, value in enumerate(found):
        y[at + i * (12 * 2 * warp)] = value
    return b.program()


def accumulator() -> TileType:
    return TileType("c", 16, 16, F32)


def tile_product(
    target: Architecture, dtype: DType, *, is_swizzled: bool, is_transposed: bool, is_packed: bool
) -> Program:
    """y [32, 16] = x [32, 64] w by two waves: w [16, 64]ᵀ if it is transposed, else [64, 16].

    Where it is packed, operand a goes by its elements, and the result by a store of its tile."""
    warp = target.wave
    b = Builder("tile_product", block=2 * warp, warp=warp)
    x, w, y = b.input("x", dtype), b.input("w", dtype), b.output("y", F32)
    left = b.shared("left", dtype, 32 * 64, is_swizzled=is_swizzled)
    right = b.shared("right", dtype, 16 * 64, is_swizzled=is_swizzled)
    out = b.shared("out", F32, 32 * 16)
    a, bt, acc = TileType("a", 16, 16, dtype), TileType("b", 16, 16, dtype), accumulator()
    for source, array, size in ((x, left, 2048), (w, right, 1024)):
        for at in range(0, size, 16 * warp):
            i = b.thread * 8 + at
            b.async_copy(array, i, source, i, 8, None if source is x else i < size)
    b.async_commit()
    b.async_wait(0)
    b.barrier()
    total = b.variable(b.tile_fill(acc, 1.0))
    with b.loop(0, 4, carry=[total]) as step:
        one = b.tile_load(a, left, b.warp * (16 * 64) + step * 16, 64)
        if is_packed:
            one = b.tile_pack(a, b.tile_elements(one))
        at, pitch = (step * 16, 64) if is_transposed else (step * 256, 16)
        two = b.tile_load(bt, right, at, pitch, is_transposed=is_transposed)
        total.set(b.tile_mul(one, two, total))
    if is_packed:
        b.tile_store(total, out, b.warp * 256, 16)
        b.barrier()
        for at in range(0, 512, 2 * warp):
            y[b.thread + at] = out[b.thread + at]
    else:
        for value, (r, c) in zip(b.tile_elements(total), b.tile_place(acc)):
            y[(b.warp * 16 + r) * 16 + c] = value
    return b.program()


def staged(target: Architecture, steps: int = 5) -> Program:
    """y [16, 16] = x [16, 16 steps] w [16, 16 steps]ᵀ by a wave, in two stages: the next one is
    copied while one is multiplied, by some lanes only."""
    warp, size = target.wave, 16 * steps
    b = Builder("staged", block=warp, warp=warp)
    x, w, y = b.input("x", DType.F16), b.input("w", DType.F16), b.output("y", F32)
    arrays = [b.shared(n, DType.F16, 2 * 256) for n in ("left", "right")]
    a, bt = (TileType(r, 16, 16, DType.F16) for r in ("a", "b"))

    def fill(step: Any) -> None:
        with b.when(b.thread < 32):
            row, half = b.thread // 2, b.thread % 2 * 8
            for source, array in zip((x, w), arrays):
                at = step % 2 * 256 + row * 16 + half
                b.async_copy(array, at, source, row * size + step * 16 + half, 8, step < steps)
        b.async_commit()

    fill(b.const(0, I32))
    total = b.variable(b.tile_fill(accumulator()))
    with b.loop(0, steps, carry=[total]) as step:
        b.async_wait(0)
        b.barrier()
        fill(step + 1)
        one = b.tile_load(a, arrays[0], step % 2 * 256, 16)
        two = b.tile_load(bt, arrays[1], step % 2 * 256, 16, is_transposed=True)
        total.set(b.tile_mul(one, two, total))
        b.barrier()
    b.async_wait(0)
    for value, (r, c) in zip(b.tile_elements(total), b.tile_place(accumulator())):
        y[r * 16 + c] = value
    return b.program()


def fast(name: str, count: int) -> Program:
    b = Builder(f"fast_{name}", block=32, grid=(-(-count // 32),))
    x, y = b.input("x", F32), b.output("y", F32)
    at = b.block_index() * 32 + b.thread
    with b.when(at < count):
        y[at] = b.call(name, x[at], fast=True)
    return b.program()
