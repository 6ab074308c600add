"""NCHW resize: vectorised over the row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, load_at
from rlx.backends.cpu.codegen.math.permute import permuted
from rlx.backends.cpu.library.resize.coefficients import (
    Accumulator,
    RowTaps,
    TapSum,
    constant_table,
    table_entry,
)
from rlx.backends.cpu.library.resize.resize_plan import ResizePlan, Unit
from rlx.backends.cpu.library.strided_copy import at, masked_lane_stride, step, vector_loop
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType
from rlx.ops.nn.resize import Repeat

I64 = DType.I64
MAX_UNROLLED_ROW_TAPS = 8
"""Taps along a row up to this many are unrolled."""


def resize_rows(plan: ResizePlan, w: Writer, unit: Unit, row_taps: RowTaps) -> None:
    code, stride = w.code, plan.row_strides[1]
    fold = plan.tap_sum(w, unit.rows, unit.given) if plan.is_single_pass else None
    low = vertical_pass(plan, w, unit) if fold is None else 0
    many = row_taps.starts.shape[1]
    with code.count(0, many, 1) as v:
        n = at(w, code.i64("mul", unit.block, many), v)
        made = vector(plan, w, row_taps, n, tap_gather(plan, w, row_taps, n, fold, low))
        if plan.has_outside:
            made = plan.extrapolation(w).where(outside_lanes(plan, w, unit, row_taps, n), made)
        start = table_entry(code, constant_table(code, row_taps.starts.astype(np.int32)), n)
        place = at(w, unit.made, step(w, start, stride))
        w.store(made, 1, place, plan.dtype, w.size(stride))


def repeat_rows(plan: ResizePlan, w: Writer, unit: Unit, row: Repeat) -> None:
    """Rows of named sizes: each vector of source elements is shuffled into `factor` vectors of
    results, lane n of all of them taking element n // factor."""
    code, lanes, (old, new) = w.code, plan.lanes, plan.row_strides
    low = code.i64("mul", unit.block, plan.repeated_block)
    high = code.least(at(w, low, plan.repeated_block), w.size(row.old))
    fold = plan.tap_sum(w, unit.rows, unit.given)

    def body(i: Bound, mask: Vec | None) -> None:
        def loaded(place: Bound) -> list[Vec]:
            where = at(w, place, step(w, i, old))
            return [w.load(0, where, plan.dtype, masked_lane_stride(w, old), mask)]

        (found,) = fold(1, loaded)
        for n in range(row.factor):
            picks = [(n * lanes + lane) // row.factor for lane in range(lanes)]
            result = at(w, code.i64("mul", i, row.factor), n * lanes)
            place = at(w, unit.made, step(w, result, new))
            chosen = mask and mask.shuffled(picks)
            w.store(found.shuffled(picks), 1, place, plan.dtype, w.size(new), chosen)

    vector_loop(w, low, high, body)


def vertical_pass(plan: ResizePlan, w: Writer, unit: Unit) -> Bound:
    """The vertical pass: the columns that a block reads, summed into scratch memory; the first of
    them."""
    code, stride = w.code, plan.row_strides[0]
    low, high = plan.source_edges(w, unit)
    fold = plan.tap_sum(w, unit.rows, at(w, unit.given, step(w, low, stride)))

    def body(i: Bound, mask: Vec | None) -> None:
        def loaded(place: Bound) -> list[Vec]:
            where = at(w, place, step(w, i, stride))
            return [w.load(0, where, plan.dtype, masked_lane_stride(w, stride), mask)]

        plan.to_scratch(w, fold(1, loaded)[0], i)

    vector_loop(w, 0, code.i64("sub", high, low), body)
    return low


def vector(
    plan: ResizePlan, w: Writer, row_taps: RowTaps, n: Bound, gather_tap: Callable[[Bound], Vec]
) -> Vec:
    """A vector of results."""
    if plan.is_nearest:
        return gather_tap(0)
    num_taps, total = plan.taps[1], Accumulator(w.code, plan.sums)
    weights = constant_table(w.code, row_taps.weights.astype(plan.sums.numpy))

    def add(tap: Bound) -> None:
        entry = at(w, w.code.i64("mul", n, num_taps), tap)
        where = advanced(w.code, weights, w.code.i64("mul", entry, plan.lanes), plan.sums)
        total.add(gather_tap(tap), load(w.code, plan.sums, where))

    if num_taps <= MAX_UNROLLED_ROW_TAPS:
        for tap in range(num_taps):
            add(tap)
    else:
        with w.code.count(0, num_taps, 1) as tap:
            add(tap)
    return total.value


def tap_gather(
    plan: ResizePlan, w: Writer, row_taps: RowTaps, n: Bound, fold: TapSum | None, low: Bound
) -> Callable[[Bound], Vec]:
    """What permutes the source elements of a tap to the lanes, from memory or from the vertical
    sums that begin at the column `low`."""
    code, permutation, places = w.code, plan.permutation, row_taps.places
    base: Bound = 0
    if permutation is not None:
        places = places - permutation.bases[..., None, None]
        base = table_entry(code, constant_table(code, permutation.bases.astype(np.int32)), n)
    indices = constant_table(code, places.astype(np.int32))
    registers = 0 if permutation is None else permutation.registers

    def gather_tap(tap: Bound) -> Vec:
        entry = at(w, code.i64("mul", n, places.shape[2]), tap)
        where = advanced(code, indices, code.i64("mul", entry, plan.lanes), DType.I32)
        which = load(code, DType.I32, where)
        if fold is None:
            start = advanced(code, "%scratch", code.i64("sub", base, low), plan.sums)
            return permute_or_gather(start, which, plan.sums, 1, registers)

        def loaded(place: Bound) -> list[Vec]:
            start, stride = w.pointer(0, at(w, place, base), plan.dtype), plan.row_strides[0]
            return [permute_or_gather(start, which, plan.dtype, w.size(stride), registers)]

        return fold(1, loaded)[0]

    return gather_tap


def outside_lanes(plan: ResizePlan, w: Writer, unit: Unit, row_taps: RowTaps, n: Bound) -> Vec:
    flags = constant_table(w.code, row_taps.outside.astype(np.uint8))
    where = advanced(w.code, flags, w.code.i64("mul", n, plan.lanes), DType.U8)
    found = load(w.code, DType.BOOL, where)
    return found if unit.is_outside is None else found | w.code.splat(unit.is_outside, DType.BOOL)


def permute_or_gather(start: str, which: Vec, dtype: DType, stride: Bound, registers: int) -> Vec:
    """A gather from an offset on, element by element or as a permutation of so many registers."""
    code = which.code
    if not registers:
        places = which if stride == 1 else which.to(I64) * code.splat(stride, I64)
        return load_at(code, dtype, start, places)
    places = [n * code.lanes for n in range(registers)]
    found = [load(code, dtype, advanced(code, start, p, dtype)) for p in places]
    first, *more = (v.bits(DType.F32) for v in found)
    return permuted(first, which, *more).bits(found[0].dtype)
