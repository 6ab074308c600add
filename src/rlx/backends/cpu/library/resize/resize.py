"""Image resize by tables of resampling coefficients, vectorised over channels or over a row.

NHWC: a result is a weighted sum of source pixels, lane by lane. NCHW: the rows that a row of
results needs are first summed into one row of scratch memory (vertical pass), whose elements are
then permuted and weighted, a vector at a time (horizontal pass): from one register where a vector
of results needs no more than a vector of source elements. Both passes are one sum where that is
fewer operations, as in strong downsampling. Axes of named sizes, which are repeated, need no table.
"""

from __future__ import annotations

from functools import partial

from rlx.backends.cpu.library.resize.nchw import repeat_rows, resize_rows
from rlx.backends.cpu.library.resize.nhwc import resize_channels
from rlx.backends.cpu.library.resize.resize_plan import ResizePlan
from rlx.backends.cpu.library.strided_copy import BufferView, copy_task
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import NotLowered
from rlx.ops.nn.resize import Repeat, lines_of, parts_of

OPS_PER_TAP = 4
"""Instructions per tap."""
MAX_FACTOR = 64
"""Of an axis of a named size: a row's results are stored by so many instructions per vector."""


def make_resize(given: Step, name: str) -> Schedule[Task]:
    where, rule = parts_of(given.node.attrs)
    lines = lines_of(given.node.inputs[0].shape.dims, where, rule)
    if not lines or 0 in given.node.shape.dims:
        return _plain_copy(given, name)
    if any(isinstance(line, Repeat) and line.factor > MAX_FACTOR for line in lines):
        raise NotLowered(f"named axes are repeated up to {MAX_FACTOR} times: vectors are unrolled")
    made = ResizePlan.of(given, rule, lines)
    node, units = given.node, made.units.count
    taps = sum(made.taps)
    traffic = node.inputs[0].shape.size_bytes + node.shape.size_bytes
    ns = given.machine.worker_ns(node.shape.num_elements * taps * OPS_PER_TAP, traffic)
    task = Task(
        TaskCode(name, partial(_source, made)), buffers(1, 1), units,
        given.machine.units_per_task(units, ns), made.scratch, summary=_strategy(made),
    )  # fmt: skip
    return Schedule((task,))


def _source(made: ResizePlan, name: str) -> Source:
    w = Writer(made.step.isa, made.lanes)
    with made.units.each(w) as (position, block, _):
        unit = made.unit(w, position, block)
        if made.row_taps is not None:
            resize_rows(made, w, unit, made.row_taps)
        elif made.repeated_row is not None:
            repeat_rows(made, w, unit, made.repeated_row)
        else:
            resize_channels(made, w, unit)
    return w.source(name)


def _plain_copy(given: Step, name: str) -> Schedule[Task]:
    """Where no axis is resized, or there are no results."""
    dtype, to = given.node.shape.dtype, given.results[0]
    x = given.operands[0] if 0 not in given.node.shape.dims else to
    first, last = (BufferView(b, v, dtype) for b, v in zip(buffers(1, 1), (x, to)))
    return Schedule((copy_task(first, last, given.machine, name),))


def _strategy(made: ResizePlan) -> str:
    down, across = made.taps
    lanes = "channels" if made.vector_axis is not None else "the row"
    order = "in one pass" if made.is_single_pass else "vertical, then horizontal pass"
    return f"{down} vertical and {across} horizontal taps, {order}; vectorised over {lanes}"
