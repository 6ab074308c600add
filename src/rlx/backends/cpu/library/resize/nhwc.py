"""NHWC resize: vectorised over channels."""

from __future__ import annotations

from rlx.backends.cpu.library.resize.coefficients import AxisPosition, TapSum
from rlx.backends.cpu.library.resize.resize_plan import PIXEL_BLOCK, UNROLL, ResizePlan, Unit
from rlx.backends.cpu.library.strided_copy import at, step, unrolled_vector_loop
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType


def resize_channels(plan: ResizePlan, w: Writer, unit: Unit) -> None:
    code, many = w.code, w.size(plan.y.dims[plan.vector_axis or 0])
    low = code.i64("mul", unit.block, PIXEL_BLOCK)
    high = code.least(at(w, low, PIXEL_BLOCK), w.size(plan.column.new))
    if plan.is_single_pass:
        with code.count(low, high, 1) as j:
            position = AxisPosition(plan.column, j, plan.x.strides[plan.column.axis])
            fold = plan.tap_sum(w, [*unit.rows, position], unit.given)
            pixel(plan, w, unit, j, fold, (0, many), 0, is_staged=False)
        return
    piece = UNROLL * plan.lanes
    with code.count(0, many, piece) as first:
        end = code.least(at(w, first, piece), many)
        base = vertical_pass(plan, w, unit, (first, end))
        with code.count(low, high, 1) as j:
            fold = plan.tap_sum(w, [AxisPosition(plan.column, j, piece)], base)
            pixel(plan, w, unit, j, fold, (first, end), first, is_staged=True)


def vertical_pass(plan: ResizePlan, w: Writer, unit: Unit, channels: tuple[Bound, Bound]) -> Bound:
    """The vertical pass: the pixels that some results read, each summed over its column, into
    scratch memory; the address of the row's first pixel."""
    code, stride, piece = w.code, plan.x.strides[plan.column.axis], UNROLL * plan.lanes
    low, high = plan.source_edges(w, unit)
    fold = plan.tap_sum(w, unit.rows, unit.given)
    base = code.i64("mul", low, -piece)
    with code.count(low, high, 1) as i:
        pixel = step(w, i, stride)
        to = at(w, base, code.i64("mul", i, piece), code.i64("sub", 0, channels[0]))

        def body(c: Bound, count: int, mask: Vec | None) -> None:
            made = fold(count, lambda p: from_memory(plan, w, at(w, p, pixel, c), count, mask))
            for n, value in enumerate(made):
                plan.to_scratch(w, value, at(w, to, c, n * plan.lanes))

        unrolled_vector_loop(w, *channels, UNROLL, body)
    return base


def pixel(
    plan: ResizePlan, w: Writer, unit: Unit, j: Bound, fold: TapSum, channels: tuple[Bound, Bound],
    first: Bound, is_staged: bool,
) -> None:  # fmt: skip
    """Some channels of a result."""
    code, column = w.code, plan.column
    to = at(w, unit.made, step(w, j, plan.y.strides[column.axis]))
    is_outside = plan.is_outside(w, [AxisPosition(column, j, 0)]) if plan.has_outside else None
    flags = [f for f in (is_outside, unit.is_outside) if f is not None]

    def body(c: Bound, count: int, mask: Vec | None) -> None:
        def loaded(place: Bound) -> list[Vec]:
            if not is_staged:
                return from_memory(plan, w, at(w, place, c), count, mask)
            start = at(w, place, code.i64("sub", c, first))
            return [plan.from_scratch(w, at(w, start, n * plan.lanes)) for n in range(count)]

        for n, value in enumerate(fold(count, loaded)):
            made = value
            for flag in flags:
                made = plan.extrapolation(w).where(code.splat(flag, DType.BOOL), made)
            w.store(made, 1, at(w, to, c, n * plan.lanes), plan.dtype, 1, mask)

    unrolled_vector_loop(w, *channels, UNROLL, body)


def from_memory(
    plan: ResizePlan, w: Writer, place: Bound, count: int, mask: Vec | None
) -> list[Vec]:
    return [w.load(0, at(w, place, n * plan.lanes), plan.dtype, 1, mask) for n in range(count)]
