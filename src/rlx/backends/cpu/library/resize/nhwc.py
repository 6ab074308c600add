"""Resized images whose channels lie side by side: lanes are channels."""

from __future__ import annotations

from rlx.backends.cpu.library.resize.coefficients import Fold, Spot
from rlx.backends.cpu.library.resize.resize_plan import PIXELS, TOGETHER, Form, Unit
from rlx.backends.cpu.library.strided_copy import at, runs, step
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dtype import DType


def across(form: Form, w: Writer, unit: Unit) -> None:
    code, many = w.code, w.size(form.y.dims[form.lane or 0])
    low = code.i64("mul", unit.block, PIXELS)
    high = code.least(at(w, low, PIXELS), form.column.new)
    if form.is_once:
        with code.count(low, high, 1) as j:
            spot = Spot(form.column, j, form.x.strides[form.column.axis])
            fold = form.folded(w, [*unit.rows, spot], unit.given)
            pixel(form, w, unit, j, fold, (0, many), 0, is_kept=False)
        return
    piece = TOGETHER * form.lanes
    with code.count(0, many, piece) as first:
        end = code.least(at(w, first, piece), many)
        base = summed_pixels(form, w, unit, (first, end))
        with code.count(low, high, 1) as j:
            fold = form.folded(w, [Spot(form.column, j, piece)], base)
            pixel(form, w, unit, j, fold, (first, end), first, is_kept=True)


def summed_pixels(form: Form, w: Writer, unit: Unit, channels: tuple[Bound, Bound]) -> Bound:
    """The pixels that some results see, each summed over its column, into scratch memory;
    where the first of the row would be."""
    code, stride, piece = w.code, form.x.strides[form.column.axis], TOGETHER * form.lanes
    low, high = form.edges(w, unit)
    fold = form.folded(w, unit.rows, unit.given)
    base = code.i64("mul", low, -piece)
    with code.count(low, high, 1) as i:
        pixel = step(w, i, stride)
        to = at(w, base, code.i64("mul", i, piece), code.i64("sub", 0, channels[0]))

        def body(c: Bound, count: int, mask: Vec | None) -> None:
            made = fold(count, lambda p: from_memory(form, w, at(w, p, pixel, c), count, mask))
            for n, value in enumerate(made):
                form.keep(w, value, at(w, to, c, n * form.lanes))

        runs(w, *channels, TOGETHER, body)
    return base


def pixel(
    form: Form, w: Writer, unit: Unit, j: Bound, fold: Fold, channels: tuple[Bound, Bound],
    first: Bound, is_kept: bool,
) -> None:  # fmt: skip
    """Some channels of a result."""
    code, column = w.code, form.column
    to = at(w, unit.made, step(w, j, form.y.strides[column.axis]))
    hidden = form.hidden(w, [Spot(column, j, 0)]) if form.has_outside else None
    flags = [f for f in (hidden, unit.hidden) if f is not None]

    def body(c: Bound, count: int, mask: Vec | None) -> None:
        def loaded(place: Bound) -> list[Vec]:
            if not is_kept:
                return from_memory(form, w, at(w, place, c), count, mask)
            start = at(w, place, code.i64("sub", c, first))
            return [form.kept(w, at(w, start, n * form.lanes)) for n in range(count)]

        for n, value in enumerate(fold(count, loaded)):
            made = value
            for flag in flags:
                made = form.nothing(w).where(code.splat(flag, DType.BOOL), made)
            w.store(made, 1, at(w, to, c, n * form.lanes), form.dtype, 1, mask)

    runs(w, *channels, TOGETHER, body)


def from_memory(form: Form, w: Writer, place: Bound, count: int, mask: Vec | None) -> list[Vec]:
    return [w.load(0, at(w, place, n * form.lanes), form.dtype, 1, mask) for n in range(count)]
