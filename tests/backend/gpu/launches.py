"""Schedules of launches, run by the interpreter on arrays in any layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.gpu.kernels import GpuKernels
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import FAILURES, GpuTask, Launch
from rlx.core.dim import evaluate
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.forms import Special
from rlx.kernel.program.program import KernelCall
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.ops.op import lookup
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.verify import verify

Array = np.ndarray[Any, Any]
POISON = 0xFF


class Host(Exception):
    """The schedule leaves the work to the host."""


def node_of(name: str, *shapes: Shape, **attrs: Any) -> Node:
    """An op applied to inputs of these shapes."""
    graph = Graph("library")
    operands = [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
    return graph.node(name, operands, graph.extents.named(lookup(name), operands, attrs))


def special_of(
    node: Node, sources: Sequence[Layout] = (), targets: Sequence[Layout] = ()
) -> Special:
    """The named algorithm of a node, contiguous where nothing else is said."""
    given = tuple(sources) or tuple(Layout.contiguous(i.shape.dims) for i in node.inputs)
    made = tuple(targets) or tuple(Layout.contiguous(s.dims) for s in node.shapes)
    return Special(node, given, made)


def schedule_of(
    special: Special, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> Schedule[GpuTask]:
    """Its launches; an error where it has none."""
    every = buffers(len(special.operands), len(special.results))
    count = len(special.operands)
    call = KernelCall(special, every[:count], every[count:], constants, name="law")
    made = GpuKernels(machine).schedule(call)
    if isinstance(made, Refusal):
        raise Host(made.reason)
    if not all(isinstance(t, Launch) for t in made.tasks):
        raise Host(str([t.text({}) for t in made.tasks]))
    return made


@dataclass
class Memory:
    """The buffers of a run, as bytes."""

    sizes: Mapping[str, int]
    arrays: dict[Buffer, Array] = field(default_factory=dict[Buffer, Array])
    programs: list[Program] = field(default_factory=list[Program])

    def run(self, schedule: Schedule[GpuTask]) -> None:
        """All launches in order; what a program notes as wrong is an error."""
        for i, size in enumerate(schedule.temps):
            self.arrays[Buffer("temp", i)] = self.room(size)
        for i, packed in enumerate(schedule.packed):
            assert isinstance(packed.task, Launch)
            self.arrays[Buffer("result", 0)], kept = (
                self.room(packed.size),
                self.arrays.get(Buffer("result", 0)),
            )
            self.launch(packed.task)
            self.arrays[Buffer("packed", i)] = self.arrays.pop(Buffer("result", 0))
            if kept is not None:
                self.arrays[Buffer("result", 0)] = kept
        for task in schedule.tasks:
            assert isinstance(task, Launch)
            self.launch(task)

    def room(self, size: Any) -> Array:
        count = evaluate(size, self.sizes) if not isinstance(size, int) else size
        return np.full(max(count, 0), POISON, np.uint8)

    def launch(self, task: Launch) -> None:
        program = verify(task.program())
        self.programs.append(program)
        assert program.failures == task.failures or not program.failures
        named = dict(zip(task.names, task.buffers, strict=True))
        given: dict[str, Array] = {}
        for buffer in program.buffers:
            if buffer.name != FAILURES:
                raw = self.arrays[named[buffer.name]]
                size = buffer.dtype.itemsize
                given[buffer.name] = raw[: len(raw) // size * size].view(buffer.dtype.numpy)
        failed = np.zeros(1, np.int32)
        if any(b.name == FAILURES for b in program.buffers):
            given[FAILURES] = failed
        launch(program, given, dict(self.sizes))
        if failed[0]:
            raise Error(task.failures[int(failed[0]) - 1])


def run_special(
    special: Special,
    schedule: Schedule[GpuTask],
    operands: Sequence[Array],
    results: Sequence[tuple[Sequence[int], Any]],
    sizes: Mapping[str, int] | None = None,
    measures: int = 0,
) -> tuple[list[Array], list[int]]:
    """The results (dims and dtype of each) of operands that are laid out as the special says, and
    the sizes that were measured."""
    memory = Memory(sizes or {})
    for i, (array, layout) in enumerate(zip(operands, special.sources)):
        memory.arrays[Buffer("operand", i)] = placed(array, layout, memory.sizes)
    for i, (dims, dtype) in enumerate(results):
        layout = special.targets[i]
        count = span(layout, dims, memory.sizes)
        memory.arrays[Buffer("result", i)] = np.full(
            count * np.dtype(dtype).itemsize + 64, POISON, np.uint8
        )
    for i in range(measures):
        memory.arrays[Buffer("size", i)] = np.full(8, POISON, np.uint8)
    memory.run(schedule)
    found = [int(memory.arrays[Buffer("size", i)].view(np.int64)[0]) for i in range(measures)]
    made = [
        read(memory.arrays[Buffer("result", i)], special.targets[i], dims, dtype, memory.sizes)
        for i, (dims, dtype) in enumerate(results)
    ]
    return made, found


def span(layout: Layout, dims: Sequence[int], sizes: Mapping[str, int]) -> int:
    """Elements from the start of the buffer to behind the last one."""
    if 0 in dims:
        return 0
    strides = _numbers(layout.strides, dims, layout, sizes)
    return _int(layout.offset, sizes) + 1 + sum(s * (d - 1) for s, d in zip(strides, dims) if s > 0)


def placed(array: Array, layout: Layout, sizes: Mapping[str, int]) -> Array:
    """Bytes with the array in them as the layout says, and a pattern between."""
    dtype = array.dtype
    flat = np.full(span(layout, array.shape, sizes) * dtype.itemsize, POISON, np.uint8).view(dtype)
    if array.size:
        _view(flat, layout, array.shape, sizes)[...] = array
    return flat.view(np.uint8)


def read(
    raw: Array, layout: Layout, dims: Sequence[int], dtype: Any, sizes: Mapping[str, int]
) -> Array:
    size = np.dtype(dtype).itemsize
    flat = raw[: len(raw) // size * size].view(dtype)
    if 0 in dims:
        return np.empty(dims, dtype)
    return _view(flat, layout, dims, sizes).copy()


def _view(flat: Array, layout: Layout, dims: Sequence[int], sizes: Mapping[str, int]) -> Array:
    strides = [s * flat.itemsize for s in _numbers(layout.strides, dims, layout, sizes)]
    offset = _int(layout.offset, sizes) * flat.itemsize
    return np.ndarray(tuple(dims), flat.dtype, flat, offset, tuple(strides))


def _numbers(
    strides: Sequence[Any], dims: Sequence[int], layout: Layout, sizes: Mapping[str, int]
) -> list[int]:
    """Strides over sizes that were measured are those of a contiguous result."""
    if layout.is_contiguous:
        return [int(s) for s in Layout.contiguous(tuple(dims)).strides]
    return [_int(s, sizes) for s in strides]


def _int(dim: Any, sizes: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else evaluate(dim, sizes)
