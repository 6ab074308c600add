"""Kernel programs in NumPy: what a whole program means, in its own planned memory.

Every kernel runs by its own meaning, on the buffers and in the order that the program states; so a
wrong layout, temporary or offset shows in the results, without code of a target. Schedules are not
read: what a target makes of a kernel is the target's to test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.errors import Error
from rlx.core.extent import FIRST_CAPACITY, ceiling, is_capacity, outgrown
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.extents import measured_by
from rlx.ir.interpret import evaluate_node, infer_binding
from rlx.ir.lir import Space
from rlx.ir.mir import Node
from rlx.kernel import interpret, scan
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import AnyKernel, Conv, Copy, Special
from rlx.kernel.program.program import (
    Branch,
    HostCall,
    KernelCall,
    KernelProgram,
    KernelSequence,
    Nested,
    ProgramStep,
    ScanLoop,
    Subprogram,
    Value,
    WhileLoop,
)
from rlx.kernel.program.schedule import Buffer
from rlx.kernel.scan import Scan
from rlx.ops.op import Array

POISON = 0xFF
"""NaN in every float, -1 or the greatest integer: what nobody has written."""


Launch = Callable[[KernelCall, Sequence[Array], Sequence[Array], Mapping[str, int]], bool]
"""Runs a kernel on flat operands and results, at these sizes; False where it does not."""


def run(
    program: KernelProgram, values: Mapping[str, Array], launch: Launch | None = None
) -> list[Array]:
    """The outputs of a program for inputs and params by name. Kernels that `launch` does not run
    have their NumPy meaning."""
    graph = program.main.graph
    arrays = {n: np.ascontiguousarray(values[n.attrs["name"]]) for n in graph.leaves}
    given = dict(infer_binding(graph.leaves, values))
    capacities = {
        d.name: FIRST_CAPACITY
        for s in program.subprograms.values()
        for d in s.plan.dynamic_symbols
        if is_capacity(d.name)
    }
    while True:
        memory = _Memory(program, {**given, **capacities}, launch)
        try:
            made = memory.called(program.main, [arrays[n] for n in (*graph.given, *graph.params)])
        except _Outgrown as error:
            capacities |= error.capacities
            continue
        return [memory.delivered(o.shape, raw) for o, raw in zip(graph.outputs, made)]


class _Outgrown(Exception):
    """More was found than a capacity holds."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        super().__init__(capacities)
        self.capacities = capacities


@dataclass(slots=True)
class _Memory:
    """What the frames of one call share: weights, and the sizes of named dims."""

    program: KernelProgram
    sizes: dict[str, int]
    launch: Launch | None
    weights: Array = field(init=False)

    def __post_init__(self) -> None:
        self.weights = self.room(self.program.weight_bytes)

    def int(self, dim: DimLike) -> int:
        return evaluate(dim, self.sizes) if isinstance(dim, Dim) else dim

    def room(self, size: DimLike) -> Array:
        """Bytes that nobody has written, as many as it can be."""
        return np.full(self.int(ceiling(size)), POISON, np.uint8)

    def called(self, subprogram: Subprogram, given: Sequence[Array]) -> list[Array]:
        """The bytes of a subprogram's outputs, for arrays in the order of its inputs and params."""
        outputs = [self.room(o.shape.size_bytes) for o in subprogram.graph.outputs]
        _Frame(self, subprogram, [*map(_bytes_of, given), *outputs]).run()
        return outputs

    def delivered(self, shape: Shape, raw: Array) -> Array:
        bound = shape.bind(self.sizes)
        flat = raw[: int(bound.size_bytes)].view(bound.dtype.numpy)
        return flat.reshape(bound.static_dims).copy()

    def found(self, sizes: Mapping[str, int]) -> None:
        """Sizes that a step has measured; a capacity may have to grow first."""
        self.sizes.update(sizes)
        if more := outgrown(self.sizes):
            raise _Outgrown(more)


class _Frame:
    """A subprogram that runs: its arena, and the arrays of its caller."""

    def __init__(self, memory: _Memory, subprogram: Subprogram, externals: list[Array]) -> None:
        self.memory, self.subprogram, self.plan = memory, subprogram, subprogram.plan
        graph = subprogram.graph
        self.externals = externals
        self.outside = subprogram.external_indices
        self.written = subprogram.output_indices
        self.first_output = len(graph.given) + len(graph.params)
        self.arena = memory.room(self.plan.arena_formula)

    def run(self) -> None:
        """The prologue, then all steps, then the outputs that no step writes in place."""
        graph = self.subprogram.graph
        for node in graph.nodes:
            if node.op == "constant" and node in self.plan.assignments:
                raw = _bytes_of(np.ascontiguousarray(node.attrs["value"].array))
                self.slot(node)[: len(raw)] = raw
        for step in (*self.subprogram.prologue, *self.subprogram.calls):
            self.step(step)
        for number, output in enumerate(graph.outputs):
            root = self.plan.root(output)
            if self.written.get(root) != number:
                raw = self.contiguous(Value(root, self.plan.layout(output)), output.shape.dims)
                self.externals[self.first_output + number][: len(raw)] = raw

    # -- memory ---------------------------------------------------------------------------------

    def slot(self, root: Node) -> Array:
        """The bytes from the start of a value's slot on."""
        if root in self.outside:
            return self.externals[self.outside[root]]
        slot = self.plan.assignments[root]
        if slot.space is Space.WEIGHTS:
            start = self.memory.int(self.subprogram.weights_at + slot.offset)
            return self.memory.weights[start:]
        return self.arena[self.memory.int(slot.offset) :]

    def contiguous(self, value: Value, dims: Sequence[DimLike]) -> Array:
        """The bytes of a value, contiguous."""
        layout = Layout(tuple(dims), value.layout.strides, value.layout.offset)
        flat = _typed(self.slot(value.node), value.node.shape)
        return _bytes_of(np.ascontiguousarray(self.strided(flat, layout)))

    def strided(self, flat: Array, layout: Layout) -> Array:
        """A layout over a flat array."""
        dims = [self.memory.int(d) for d in layout.dims]
        if 0 in dims:
            return np.empty(dims, flat.dtype)
        size = flat.itemsize
        strides = [self.memory.int(s) * size for s in layout.strides]
        offset = self.memory.int(layout.offset) * size
        return np.ndarray(dims, flat.dtype, flat, offset, strides)

    # -- steps ----------------------------------------------------------------------------------

    def step(self, step: ProgramStep) -> None:
        match step.lowering:
            case KernelSequence():
                temps = [self.memory.room(t) for t in step.lowering.temps]
                for call in step.lowering.calls:
                    self.kernel(step, call, temps)
            case _:
                self.control(step)

    def kernel(self, step: ProgramStep, call: KernelCall, temps: Sequence[Array]) -> None:
        """One kernel, by its meaning."""
        kernel = call.kernel
        places = {"operand": step.operands, "result": step.results}

        def flat(buffer: Buffer, shape: Shape) -> Array:
            if buffer.kind == "temp":
                return _typed(temps[buffer.index], shape)
            value = places[buffer.kind][buffer.index]
            return _typed(self.slot(value.node)[value.base_bytes :], shape)

        given = [flat(b, s) for b, s in zip(call.operands, kernel.operands)]
        made = [flat(b, s) for b, s in zip(call.results, kernel.results)]
        launch = self.memory.launch
        try:
            if launch is None or not launch(call, given, made, self.memory.sizes):
                self.run_kernel(kernel, given, made)
        except Error as error:
            raise Error(f"{step.node.label}: {error}") from None

    def run_kernel(self, kernel: AnyKernel, given: Sequence[Array], made: Sequence[Array]) -> None:
        match kernel:
            case Kernel():
                interpret.run_into(kernel, given, made, self.memory.sizes)
            case Contract():
                interpret.run_into(kernel.kernel(), given, made, self.memory.sizes)
            case Conv():
                interpret.run_into(kernel.contract.kernel(), given, made, self.memory.sizes)
            case Attention():
                interpret.run_into(kernel.kernel(), given, made, self.memory.sizes)
            case Scan():
                scan.run_into(kernel, given, made, self.memory.sizes)
            case Copy():
                self.strided(made[0], kernel.target)[...] = self.strided(given[0], kernel.source)
            case Special():
                arrays = [self.strided(x, w) for x, w in zip(given, kernel.sources)]
                for y, where, array in zip(made, kernel.targets, self.meaning(kernel.node, arrays)):
                    self.strided(y, where)[...] = array

    def meaning(self, node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        """What the op gives; the sizes that it measures are known from then on."""
        own = {s.name for s in measured_by(node)}
        sizes = self.memory.sizes.items()
        known = {n: s for n, s in sizes if not is_capacity(n) and n not in own}
        made: Any = evaluate_node(node, arrays, known)
        self.memory.found(known)
        return made if node.has_items else (made,)

    # -- control flow ---------------------------------------------------------------------------

    def control(self, step: ProgramStep) -> None:
        given = [self.contiguous(v, v.layout.dims) for v in step.operands]
        match step.lowering:
            case Nested(body):
                made = self.ran(body, given)
            case Branch(then, other):
                side = then if given[0][0] else other
                made = self.ran(side, given[1:])
                self.settle(step.node, step.node.shapes, [o.shape for o in side.graph.outputs])
            case WhileLoop():
                made = self.looped(step, step.lowering, given)
            case ScanLoop():
                made = self.scanned(step, step.lowering, given)
            case HostCall():
                arrays = [
                    self.memory.delivered(i.shape, x) for x, i in zip(given, step.node.inputs)
                ]
                results = self.meaning(step.node, arrays)
                made = [_bytes_of(np.ascontiguousarray(r)) for r in results]
            case _:
                raise AssertionError(step.lowering)
        for value, raw, shape in zip(step.results, made, step.node.shapes):
            size = self.memory.int(shape.size_bytes)
            start = self.memory.int(value.layout.offset) * shape.dtype.itemsize
            self.slot(value.node)[start : start + size] = raw[:size]

    def ran(self, body: Subprogram, given: Sequence[Array]) -> list[Array]:
        """The outputs of a body; what of the operands are its params goes behind its inputs."""
        return self.memory.called(body, body.externals(given))

    def looped(self, step: ProgramStep, loop: WhileLoop, given: list[Array]) -> list[Array]:
        node = step.node
        inputs = [leaf.shape for leaf in node.attrs["body"].inputs]
        carries, seen = given[: loop.num_carries], given[loop.num_carries :]
        self.settle(node, inputs, [i.shape for i in node.inputs])
        rows: list[list[Array]] = [[] for _ in range(loop.num_rows)]
        turn = 0
        while loop.limit is None or turn < loop.limit:
            (flag,) = self.ran(loop.condition, [*carries, *seen])
            if not flag[0]:
                break
            turn += 1
            self.stacked(node, loop, turn)
            made = self.ran(loop.body, [*carries, *seen])
            self.settle(node, inputs, [o.shape for o in loop.body.graph.outputs])
            carries = made[: loop.num_carries]
            shapes = [o.shape for o in loop.body.graph.outputs[loop.num_carries :]]
            for row, new, shape in zip(rows, made[loop.num_carries :], shapes):
                row.append(new[: self.memory.int(shape.size_bytes)])
        self.stacked(node, loop, turn)
        return [*carries, *(np.concatenate([np.empty(0, np.uint8), *r]) for r in rows)]

    def stacked(self, node: Node, loop: WhileLoop, count: int) -> None:
        if loop.num_rows:
            self.memory.found({f"{node.attrs['extent']}.rows": count})

    def scanned(self, step: ProgramStep, scan: ScanLoop, given: list[Array]) -> list[Array]:
        count, end = scan.num_carries, scan.num_carries + scan.num_bcasts
        carries, length = given[:count], self.memory.int(scan.length)
        order = list(range(length))[:: -1 if scan.is_reversed else 1]
        shapes = step.node.shapes[count:]
        stacked = [self.memory.room(s.size_bytes) for s in shapes]
        for at in order:
            slices = [
                _part(x, at, self.memory.int(leaf.shape.size_bytes))
                for x, leaf in zip(given[end:], scan.body.graph.inputs[-len(given[end:]) :])
            ]
            made = self.ran(scan.body, [*carries, *given[count:end], *slices])
            carries = made[:count]
            for whole, row, output in zip(stacked, made[count:], scan.body.graph.outputs[count:]):
                size = self.memory.int(output.shape.size_bytes)
                _part(whole, at, size)[:] = row[:size]
        return [*carries, *stacked]

    def settle(self, node: Node, named: Sequence[Shape], made: Sequence[Shape]) -> None:
        """The sizes that control flow names, as its body has found them."""
        own = {s.name for s in measured_by(node)}
        news = {
            dim.name: new
            for a, b in reversed(list(zip(named, made)))
            for dim, new in reversed(list(zip(a.dims, b.dims)))
            if isinstance(dim, Dim) and dim.name in own
        }
        self.memory.found({name: self.memory.int(new) for name, new in news.items()})


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _part(raw: Array, at: int, size: int) -> Array:
    """The bytes of one slice along the first axis."""
    return raw[at * size : (at + 1) * size]


def _typed(raw: Array, shape: Shape) -> Array:
    """Bytes as whole elements of a dtype."""
    size = shape.dtype.itemsize
    return raw[: len(raw) // size * size].view(shape.dtype.numpy)
