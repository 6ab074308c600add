"""Resized images whose rows lie side by side: lanes go along the row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, load_at
from rlx.backends.cpu.codegen.lowp.block_reader import permuted
from rlx.backends.cpu.library.resize.coefficients import Columns, Fold, Sum, number, table
from rlx.backends.cpu.library.resize.resize_plan import Form, Unit
from rlx.backends.cpu.library.strided_copy import at, lane_stride, step, vectors
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dtype import DType

I64 = DType.I64
TAPS = 8
"""Taps along a row up to this many are written one by one."""


def along(form: Form, w: Writer, unit: Unit, columns: Columns) -> None:
    code, stride = w.code, form.apart[1]
    fold = form.folded(w, unit.rows, unit.given) if form.is_once else None
    low = summed(form, w, unit) if fold is None else 0
    many = columns.starts.shape[1]
    with code.count(0, many, 1) as v:
        n = at(w, code.i64("mul", unit.block, many), v)
        made = vector(form, w, columns, n, picker(form, w, columns, n, fold, low))
        if form.has_outside:
            made = form.nothing(w).where(hidden_lanes(form, w, unit, columns, n), made)
        start = number(code, table(code, columns.starts.astype(np.int32)), n)
        place = at(w, unit.made, step(w, start, stride))
        w.store(made, 1, place, form.dtype, w.size(stride))


def summed(form: Form, w: Writer, unit: Unit) -> Bound:
    """The columns that a block sees, into scratch memory; the first of them."""
    code, stride = w.code, form.apart[0]
    low, high = form.edges(w, unit)
    fold = form.folded(w, unit.rows, at(w, unit.given, step(w, low, stride)))

    def body(i: Bound, mask: Vec | None) -> None:
        def loaded(place: Bound) -> list[Vec]:
            where = at(w, place, step(w, i, stride))
            return [w.load(0, where, form.dtype, lane_stride(w, stride), mask)]

        form.keep(w, fold(1, loaded)[0], i)

    vectors(w, 0, code.i64("sub", high, low), body)
    return low


def vector(form: Form, w: Writer, columns: Columns, n: Bound, pick: Callable[[Bound], Vec]) -> Vec:
    """A vector of results."""
    if form.is_moved:
        return pick(0)
    across, total = form.taps[1], Sum(w.code, form.sums)
    weights = table(w.code, columns.weights.astype(form.sums.numpy))

    def add(tap: Bound) -> None:
        entry = at(w, w.code.i64("mul", n, across), tap)
        where = advanced(w.code, weights, w.code.i64("mul", entry, form.lanes), form.sums)
        total.add(pick(tap), load(w.code, form.sums, where))

    if across <= TAPS:
        for tap in range(across):
            add(tap)
    else:
        with w.code.count(0, across, 1) as tap:
            add(tap)
    return total.value


def picker(
    form: Form, w: Writer, columns: Columns, n: Bound, fold: Fold | None, low: Bound
) -> Callable[[Bound], Vec]:
    """What gives the old elements that are a tap of each lane, from memory or what was summed
    from the column `low` on."""
    code, picks, places = w.code, form.picks, columns.places
    base: Bound = 0
    if picks is not None:
        places = places - picks.bases[..., None, None]
        base = number(code, table(code, picks.bases.astype(np.int32)), n)
    indices = table(code, places.astype(np.int32))
    registers = 0 if picks is None else picks.registers

    def pick(tap: Bound) -> Vec:
        entry = at(w, code.i64("mul", n, places.shape[2]), tap)
        where = advanced(code, indices, code.i64("mul", entry, form.lanes), DType.I32)
        which = load(code, DType.I32, where)
        if fold is None:
            start = advanced(code, "%scratch", code.i64("sub", base, low), form.sums)
            return picked(start, which, form.sums, 1, registers)

        def loaded(place: Bound) -> list[Vec]:
            start, stride = w.pointer(0, at(w, place, base), form.dtype), form.apart[0]
            return [picked(start, which, form.dtype, w.size(stride), registers)]

        return fold(1, loaded)[0]

    return pick


def hidden_lanes(form: Form, w: Writer, unit: Unit, columns: Columns, n: Bound) -> Vec:
    flags = table(w.code, columns.outside.astype(np.uint8))
    where = advanced(w.code, flags, w.code.i64("mul", n, form.lanes), DType.U8)
    found = load(w.code, DType.BOOL, where)
    return found if unit.hidden is None else found | w.code.splat(unit.hidden, DType.BOOL)


def picked(start: str, which: Vec, dtype: DType, stride: Bound, registers: int) -> Vec:
    """Some of the elements from a place on, one by one or from so many registers."""
    code = which.code
    if not registers:
        places = which if stride == 1 else which.to(I64) * code.splat(stride, I64)
        return load_at(code, dtype, start, places)
    places = [n * code.lanes for n in range(registers)]
    found = [load(code, dtype, advanced(code, start, p, dtype)) for p in places]
    first, *more = (v.bits(DType.F32) for v in found)
    return permuted(first, which, *more).bits(found[0].dtype)
