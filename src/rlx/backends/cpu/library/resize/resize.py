"""Images of another size: taps from tables, lanes along channels or along a row.

Where channels lie side by side, a new pixel is a sum over old ones, lane by lane. Where rows do,
the rows that a row of results is made of are first summed into one row of scratch memory, and its
elements are then picked and weighed, a vector at a time: where a vector of results is made of no
more than a vector of old elements, from one register. Sums over both at once are taken where that
is less work, as where an image shrinks by much.
"""

from __future__ import annotations

from rlx.backends.cpu.library.resize.nchw import along
from rlx.backends.cpu.library.resize.nhwc import across
from rlx.backends.cpu.library.resize.resize_plan import Form
from rlx.backends.cpu.library.strided_copy import Place, copy_task
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    KernelSequence,
    Step,
    Task,
    buffers,
    estimated_ns,
    grain_of,
)
from rlx.ops.nn.resize import lines_of, parts_of

STEPS = 4
"""Instructions of a tap."""


def make_resize(given: Step, name: str) -> KernelSequence:
    where, rule = parts_of(given.node.attrs)
    lines = lines_of(given.node.inputs[0].shape.dims, *where)
    if not lines or 0 in given.node.shape.dims:
        return _copied(given, name)
    made = Form.of(given, rule, lines)
    w = _written(made)
    node, units = given.node, made.units.count
    taps = sum(made.taps)
    traffic = node.inputs[0].shape.size_bytes + node.shape.size_bytes
    ns = estimated_ns(node.shape.num_elements * taps * STEPS, traffic)
    task = Task(
        w.function(name), buffers(1, 1), w.sizes, units, grain_of(units, ns), made.scratch,
        summary=_how(made),
    )  # fmt: skip
    return KernelSequence((task,))


def _written(made: Form) -> Writer:
    w = Writer(made.step.isa, made.lanes)
    with made.units.each(w) as (position, block, _):
        unit = made.unit(w, position, block)
        if made.columns is not None:
            along(made, w, unit, made.columns)
        else:
            across(made, w, unit)
    return w


def _copied(given: Step, name: str) -> KernelSequence:
    """Where no axis changes, or there are no results."""
    dtype, to = given.node.shape.dtype, given.results[0]
    x = given.operands[0] if 0 not in given.node.shape.dims else to
    first, last = (Place(b, v, dtype) for b, v in zip(buffers(1, 1), (x, to)))
    return KernelSequence((copy_task(first, last, given.isa, name),))


def _how(made: Form) -> str:
    down, along_it = made.taps
    lanes = "channels" if made.lane is not None else "a row"
    order = "at once" if made.is_once else "down, then across"
    return f"taps of a table, {down} down and {along_it} across, {order}; lanes along {lanes}"
