"""Steps of single ops on data, their values anywhere in memory; many in one module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.kernels import dedicated
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.attrs import bind
from rlx.core.dim import Dim, evaluate
from rlx.core.errors import Error, GraphError
from rlx.core.extent import measured_in
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import body_of
from rlx.kernel.program.schedule import Schedule
from rlx.ops.draw import Case, Draw
from tests.backend.cpu.guarded import guarded

Array = np.ndarray[Any, Any]
POISON = 0xA5


@dataclass(frozen=True)
class Trial:
    """A node, where its values lie, and data."""

    node: Node
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    arrays: Sequence[Array]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    def step(self, isa: Isa) -> Step:
        return Step(self.node, self.operands, self.results, CpuMachine.of(isa))

    def wanted(self) -> tuple[Array, ...]:
        """What the reference makes of it."""
        shapes = [s.bind(self.sizes) for s in self.node.shapes]
        attrs = {k: bind(v, self.sizes) for k, v in self.node.attrs.items()}
        made = self.node.decl.evaluate(self.arrays, attrs, shapes)
        return made if isinstance(made, tuple) else (made,)

    @property
    def extents(self) -> tuple[str, ...]:
        return tuple(s.name for s in measured_in(d for s in self.node.shapes for d in s.dims))

    def __str__(self) -> str:
        shapes = ", ".join(str(i.shape) for i in self.node.inputs)
        return f"{self.node.op}({shapes}) {dict(self.node.attrs)} {self.sizes}"


def node_of(case: Case, shapes: Sequence[Shape]) -> Node:
    g = Graph(case.op.name)
    inputs = [g.input(f"x{i}", s) for i, s in enumerate(shapes)]
    return g.node(case.op, inputs, case.attrs)


def trials(draw: Draw, case: Case) -> Iterator[Trial]:
    """The case with its values side by side, apart, and with a named dim."""
    arrays = [np.ascontiguousarray(a).reshape(a.shape) for a in draw.arrays(case)]
    shapes = [Shape(s.dims, s.dtype) for s in case.specs]
    yield side_by_side(node_of(case, shapes), arrays)
    node = node_of(case, shapes)
    operands = tuple(apart(draw, s.dims) for s in shapes)
    results = [o.shape for o in body_of(node).outputs]
    made = tuple(
        Layout.contiguous(r.dims) if r.is_measured else apart(draw, r.static_dims, is_result=True)
        for r in results
    )
    yield Trial(node, operands, made, arrays)
    for size in sorted({d for s in shapes for d in s.dims if d > 1}):
        n = Dim("n", 0)
        opened = [s.with_dims(n if d == size else d for d in s.dims) for s in shapes]
        try:
            yield side_by_side(node_of(case, opened), arrays, {"n": size})
        except GraphError:
            continue


def side_by_side(node: Node, arrays: Sequence[Array], sizes: Any = None) -> Trial:
    operands = tuple(Layout.contiguous(i.shape.dims) for i in node.inputs)
    results = tuple(Layout.contiguous(o.shape.dims) for o in body_of(node).outputs)
    return Trial(node, operands, results, arrays, sizes or {})


def apart(draw: Draw, dims: tuple[int, ...], is_result: bool = False) -> Layout:
    """Axes in any order, with gaps, backwards, from an offset on; operands may repeat none, as
    the data differs along every axis."""
    order = [int(a) for a in draw.rng.permutation(len(dims))]
    strides, step, offset = [0] * len(dims), draw.choice((1, 1, 2)), draw.choice((0, 3))
    for a in order:
        strides[a] = step
        step *= max(1, dims[a]) + draw.choice((0, 0, 1))
    for a, d in enumerate(dims):
        if d > 1 and not is_result and draw.coin(0.3):
            offset += (d - 1) * strides[a]
            strides[a] = -strides[a]
    return Layout(dims, tuple(strides), offset)


class Steps:
    """Trials compiled together, for this machine if they are to run."""

    def __init__(self, given: Sequence[Trial], isa: Isa, is_run: bool = True) -> None:
        self.trials = given
        self.schedules: list[Schedule[Task]] = [
            dedicated(t.node.op)(t.step(isa), f"step{i}") for i, t in enumerate(given)
        ]
        functions = [t.function for r in self.schedules for t in r.tasks]
        self.text = module(functions, isa)
        self.native = Native(self.text, isa) if is_run else None

    def run(self, number: int, cuts: str = "once") -> list[Array]:
        assert self.native is not None
        return Run(self.trials[number], self.schedules[number], self.native).run(cuts)


class Run:
    """One trial; every buffer ends at a fence, and what is not a result's stays as it was."""

    def __init__(self, trial: Trial, schedule: Schedule[Task], native: Native) -> None:
        self.trial, self.schedule, self.native = trial, schedule, native
        self.sizes = dict(trial.sizes)
        most = {s.name: s.max for n in (trial.node,) for s in _extents_of(n)}
        self.ceilings = self.sizes | {
            k: evaluate(0 if v is None else v, self.sizes) for k, v in most.items()
        }
        self.operands = [self.placed(a, where) for a, where in zip(trial.arrays, trial.operands)]
        outputs = body_of(trial.node).outputs
        self.results = [
            self.memory(self.extent(where, self.ceilings) * o.shape.dtype.itemsize)
            for o, where in zip(outputs, trial.results)
        ]
        self.temps = [self.memory(evaluate(t, self.sizes)) for t in schedule.temps]
        self.found = guarded(np.full(max(1, len(trial.extents)), -1, np.int64))

    def memory(self, size: int) -> Array:
        return guarded(np.full(size, POISON, np.uint8))

    def extent(self, layout: Layout, sizes: Mapping[str, int]) -> int:
        """Elements up to the last one."""
        dims = [evaluate(d, sizes) for d in layout.dims]
        if 0 in dims:
            return 0
        steps = [evaluate(s, sizes) * (d - 1) for s, d in zip(layout.strides, dims)]
        return evaluate(layout.offset, sizes) + sum(s for s in steps if s > 0) + 1

    def view(self, memory: Array, layout: Layout, dtype: Any, sizes: Mapping[str, int]) -> Array:
        dims = tuple(evaluate(d, sizes) for d in layout.dims)
        if 0 in dims:
            return np.empty(dims, dtype)
        steps = tuple(evaluate(s, sizes) * dtype.itemsize for s in layout.strides)
        return np.ndarray(
            dims, dtype, memory, evaluate(layout.offset, sizes) * dtype.itemsize, steps
        )

    def placed(self, array: Array, layout: Layout) -> Array:
        memory = self.memory(self.extent(layout, self.sizes) * array.itemsize)
        self.view(memory, layout, array.dtype, self.sizes)[...] = array
        return memory

    def run(self, cuts: str) -> list[Array]:
        kept = [m.copy() for m in self.operands]
        for task in self.schedule.tasks:
            self.do(task, cuts)
        for before, after in zip(kept, self.operands):
            assert (before == after).all(), f"{self.trial} wrote to an operand"
        for name, value in zip(self.trial.extents, self.found):
            self.sizes.setdefault(name, int(value))
        made: list[Array] = []
        outputs = body_of(self.trial.node).outputs
        for memory, layout, o in zip(self.results, self.trial.results, outputs):
            view = self.view(memory, layout, o.shape.dtype.numpy, self.sizes)
            made.append(view.copy())
            raw = np.dtype(f"V{view.itemsize}")
            self.view(memory, layout, raw, self.sizes)[...] = bytes([POISON]) * view.itemsize
            assert (memory == POISON).all(), f"{self.trial} wrote outside its result"
        return made

    def do(self, task: Task, cuts: str) -> None:
        kinds = {"operand": self.operands, "result": self.results, "temp": self.temps}
        pointers = [
            self.found.ctypes.data + 8 * b.index
            if b.kind == "size"
            else kinds[b.kind][b.index].ctypes.data
            for b in task.buffers
        ]
        given = [evaluate(s, self.sizes) for s in task.sizes]
        for start, stop in runs(evaluate(task.units, self.sizes), cuts):
            scratch = self.memory(evaluate(task.scratch, self.sizes))
            name = task.function.name
            code = self.native.call_part(name, pointers, given, start, stop, scratch.ctypes.data)
            if code:
                raise Error(task.failures[code - 1])


def _extents_of(node: Node) -> Any:
    return measured_in(d for s in node.shapes for d in s.dims)


def runs(units: int, cuts: str) -> Iterator[tuple[int, int]]:
    """All units at once, and one where there is none; or one by one from the last to the first."""
    if cuts == "once":
        yield 0, max(units, 1)
    else:
        yield from ((u, u + 1) for u in reversed(range(max(units, 1))))
