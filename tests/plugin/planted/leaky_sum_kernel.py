"""The leaky sum's kernel on the CPU: rows in parallel, each from its first element to its last."""

from __future__ import annotations

from rlx.backends.cpu.library.strided_copy import Blocks, at, merged, step
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import product
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Schedule, buffers

POLLED_STEPS = 4096


def make_leaky_sum(given: Step, name: str) -> Schedule[Task]:
    """The text is written when the code is first read: to choose a kernel writes none."""
    units, shape = _units(_rows(given)).count, given.node.shape
    grain = given.machine.units_per_task(units, shape.num_elements)
    code = TaskCode(name, lambda own: _source(given, own))
    return Schedule((Task(code, buffers(1, 1), units, grain),))


def _rows(given: Step) -> list[Layout]:
    """The first elements of the rows of the operand and of the result."""
    axis = given.node.attrs["axis"]
    return merged([_without(v, axis) for v in (given.operands[0], given.results[0])])


def _units(rows: list[Layout]) -> Blocks:
    return Blocks((product(rows[0].dims),), 1)


def _source(given: Step, name: str) -> Source:
    axis, shape, rows = given.node.attrs["axis"], given.node.shape, _rows(given)
    strides = [v.strides[axis] for v in (given.operands[0], given.results[0])]
    w = Writer(given.isa)
    with _units(rows).unit_range(w) as row:
        positions = w.split(row, rows[0].dims)
        starts = [w.place(v, positions) for v in rows]
        zero = w.code.const(0, shape.dtype.compute)
        slot = w.code.slot(zero.type)
        w.code.do(f"store {zero.type} {zero.text}, ptr {slot}")
        with w.code.count(0, w.size(shape.dims[axis]), 1, POLLED_STEPS) as t:
            x, y = (at(w, start, step(w, t, stride)) for start, stride in zip(starts, strides))
            before = zero.made(f"load {zero.type}, ptr {slot}")
            now = before * given.node.attrs["decay"] + w.load(0, x, shape.dtype)
            w.code.do(f"store {now.type} {now.text}, ptr {slot}")
            w.store(now, 1, y, shape.dtype)
    return w.source(name)


def _without(layout: Layout, axis: int) -> Layout:
    dims, strides = list(layout.dims), list(layout.strides)
    del dims[axis], strides[axis]
    return Layout(tuple(dims), tuple(strides), layout.offset)
