"""Sizes that data decides: arange, as_size, same_size.

A size is written even where it exceeds its bound, so that the runtime knows how much to allocate.
"""

from __future__ import annotations

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dtype import DType
from rlx.core.extent import CAPACITY_EXCEEDED, ceiling
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import Var

I64, U64, F64 = DType.I64, DType.U64, DType.F64
NO_RANGE = "this is no range: take finite numbers and a step that is not 0"
LONG_RANGE = "the range has more numbers than at_most allows"
NEGATIVE = "a size is negative"
LARGE = "a size is larger than at_most allows"
DIFFERENT = (
    "two sizes are to be equal, and differ. A size of 1 that is found at run time is not "
    "repeated either"
)


def _scalar(w: Writer, view: View) -> Var:
    return w.load(view, w.at(view.layout, ()))[0].to(view.dtype.compute)


def _bound_exceeded(made: Launches, text: str) -> str:
    """The failure that more elements were found than the bound allows."""
    return CAPACITY_EXCEEDED if made.node.attrs["at_most"] is None else text


def make_arange(made: Launches) -> Schedule[GpuTask] | Refusal:
    """start + i · delta: every thread computes the count for itself."""
    if made.node.shape.dtype.is_float and not made.machine.has_f64:
        return Refusal(f"{made.node.label}: the count of a range of floats is found in f64")
    operands, y, size = [made.operand(i) for i in range(3)], made.result(), made.measured()
    most, block = ceiling(y.layout.dims[0]), made.machine.block
    exceeded, dtype = _bound_exceeded(made, LONG_RANGE), y.dtype.compute

    def body(w: Writer) -> None:
        b = w.b
        start, limit, delta = (_scalar(w, v) for v in operands)
        count = (_integer_count if dtype.is_integer else _float_count)(w, start, limit, delta)
        is_first, number = w.thread.eq(0), w.thread
        w.ref(size).store(0, [count], is_first)
        w.fail((count > w.number(most).to(I64)) & is_first, exceeded)
        fits = (number.to(I64) < count) & (number < w.dim(most))
        value = number.to(I64).to(dtype) * delta
        with b.when(fits):
            total = (start + value).to(y.dtype)
            w.store(y, w.at(y.layout, (number,)), [total])

    made.program(
        "",
        body,
        grid=(most // block + 1,),
        block=block,
        reads=operands,
        writes=(y, size),
        failures=(NO_RANGE, exceeded),
    )
    return made.schedule()


def _float_count(w: Writer, start: Var, limit: Var, delta: Var) -> Var:
    """⌈(limit - start) / delta⌉, in f64."""
    count = (limit.to(F64) - start.to(F64)) / delta.to(F64)
    is_finite = (count - count).eq(0.0)
    w.fail(~is_finite & w.thread.eq(0), NO_RANGE)
    most = count.ceil().max(0.0).min(float(1 << 62))
    return most.where(is_finite, 0.0).to(I64)


def _integer_count(w: Writer, start: Var, limit: Var, delta: Var) -> Var:
    """The same of integers. Differences of 64-bit integers are right as unsigned ones."""
    b, is_zero = w.b, delta.eq(0)
    w.fail(is_zero & w.thread.eq(0), NO_RANGE)
    is_up = delta > 0
    low, high = start.where(is_up, limit), limit.where(is_up, start)
    wide = [_as_u64(v) for v in (low, high, delta)]
    step = wide[2].where(is_up, b.const(0, U64) - wide[2])
    last = (wide[1] - wide[0] - 1) // step.where(~is_zero, 1)
    some = (last + 1).min((1 << 63) - 1)
    return some.where((low < high) & ~is_zero, 0).bits(I64)


def _as_u64(x: Var) -> Var:
    """The bits of the number, its sign extended."""
    return x.to(I64).bits(U64) if x.dtype.is_signed else x.to(U64)


def make_as_size(made: Launches) -> Schedule[GpuTask]:
    """Only the size is written."""
    value, size = made.operand(0), made.measured()
    most, exceeded = ceiling(made.node.shape.dims[0]), _bound_exceeded(made, LARGE)

    def body(w: Writer) -> None:
        with w.b.when(w.thread.eq(0)):
            given = _scalar(w, value)
            wide = given.min((1 << 63) - 1) if given.dtype is U64 else given
            found = wide.to(I64)
            w.fail(found < 0, NEGATIVE)
            w.ref(size)[0] = found
            w.fail(found > w.number(most).to(I64), exceeded)

    made.program(
        "",
        body,
        grid=(1,),
        block=made.machine.warp,
        reads=(value,),
        writes=(size,),
        failures=(NEGATIVE, exceeded),
    )
    return made.schedule()


def make_same_size(made: Launches) -> Schedule[GpuTask]:
    one, other, y = made.operand(0), made.operand(1), made.result()

    def body(w: Writer) -> None:
        with w.b.when(w.thread.eq(0)):
            pair = [_as_u64(_scalar(w, v)) for v in (one, other)]
            w.fail(pair[0].ne(pair[1]), DIFFERENT)
            w.store(y, w.at(y.layout, ()), [w.b.const(0, I64)])

    made.program(
        "",
        body,
        grid=(1,),
        block=made.machine.warp,
        reads=(one, other),
        writes=(y,),
        failures=(DIFFERENT,),
    )
    return made.schedule()
