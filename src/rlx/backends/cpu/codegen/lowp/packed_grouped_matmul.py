"""Grouped GEMM with quantised expert weights: rows of x sorted by expert, in runs that are
multiplied by one expert's weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.lowp.expert_rows import EXPERTS, ExpertRuns
from rlx.backends.cpu.codegen.lowp.packed_matmul import (
    ROWS,
    Product,
    Run,
    gguf_weights,
    number_weights,
)
from rlx.backends.cpu.library.strided_copy import BufferView, copy_task, load_integer, step
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.schedule import Buffer, Schedule

I64 = DType.I64
ORDER, COPIES = 1, 3
"""Temporaries after x in row-major form: the permutation of rows and the runs, then compacted
weights."""


@dataclass(frozen=True, slots=True)
class Grouped(Product):
    """Each row of x · W[e]ᵀ, where e is its expert. The rows of W are those of all experts, one
    after the other."""

    groups: ExpertRuns

    @property
    def runs(self) -> DimLike:
        return self.groups.runs

    @property
    def known_rows(self) -> int | None:
        return 1 if self.m == 1 else None

    @property
    def more(self) -> tuple[Buffer, ...]:
        return self.groups.buffers

    def run(self, w: Writer, number: Bound) -> Run:
        expert, first, count = self.groups.load_run(w, self.first_of_more + 1, number)
        return Run(first, count, step(w, expert, self.n))

    @property
    def first_of_more(self) -> int:
        return 2 + len(self.weights.buffers)

    def place(self, w: Writer, row: Bound, order: int) -> Bound:
        return load_integer(w, order, row, I64)

    def grouped(self, name: str, copies: list[tuple[Task, DimLike]]) -> Schedule[Task]:
        made = self.kernel_sequence(name)
        tasks = (self.groups.task(f"{name}.rows"), *(t for t, _ in copies), *made.tasks)
        return Schedule(tasks, (*made.temps, *self.groups.temps, *(size for _, size in copies)))


# -- weights --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Flat:
    """Operands of experts as those of one product: their first two axes merged."""

    given: Step
    name: str
    copies: list[tuple[Task, DimLike]]

    def operand(self, number: int, needs_unit_stride: bool) -> tuple[Node, Layout, Buffer]:
        """In place, where the axes merge; else copied, as also if its rows must be contiguous and
        are not."""
        node, layout = self.given.node.inputs[number], self.given.operands[number]
        buffer, (e, n, size) = Buffer("operand", number), layout.dims
        follows = layout.strides[0] == layout.strides[1] * n
        if not follows or (needs_unit_stride and layout.strides[2] != 1):
            compact, buffer = (
                Layout.contiguous(layout.dims),
                Buffer("temp", COPIES + len(self.copies)),
            )
            dtype = node.shape.dtype
            places = (
                BufferView(Buffer("operand", number), layout, dtype),
                BufferView(buffer, compact, dtype),
            )
            task = copy_task(*places, self.given.machine, f"{self.name}.copy{number}")
            self.copies.append((task, product(layout.dims) * dtype.itemsize))
            layout = compact
        flat = Layout((e * n, size), layout.strides[1:], layout.offset)
        return node, flat, buffer


def _flat_step(given: Step, op: str, found: list[tuple[Node, Layout, Buffer]]) -> Step:
    """The product with all experts' weights, whose result is as wide as one expert's."""
    graph, x = Graph(op), given.node.inputs[0]
    graph.traces_lines = False
    shapes = [x.shape, *(n.shape.with_dims(v.dims) for n, v, _ in found)]
    inputs = tuple(graph.input(f"v{i}", s) for i, s in enumerate(shapes))
    node = graph.node(op, inputs, given.node.attrs)
    operands = (given.operands[0], *(layout for _, layout, _ in found))
    return replace(given, node=node, operands=operands, constants=frozenset())


def make_gguf_grouped_matmul(given: Step, name: str) -> Schedule[Task]:
    flat = _Flat(given, name, [])
    found = [flat.operand(1, needs_unit_stride=True)]
    own = _flat_step(given, "gguf_matmul", found)
    weights = gguf_weights(own, own.operands[1], found[0][2])
    return Grouped(own, weights, ExpertRuns(given, ROWS, ORDER)).grouped(name, flat.copies)


def make_dequant_grouped_matmul(given: Step, name: str) -> Schedule[Task]:
    flat = _Flat(given, name, [])
    numbers = (1, *range(EXPERTS + 1, len(given.operands)))
    found = [flat.operand(i, needs_unit_stride=False) for i in numbers]
    own = _flat_step(given, "dequant_matmul", found)
    weights = number_weights(own, tuple(b for _, _, b in found))
    return Grouped(own, weights, ExpertRuns(given, ROWS, ORDER)).grouped(name, flat.copies)
