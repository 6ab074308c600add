"""Applications of ops drawn from the table, many in one graph, against the reference.

Whole numbers and truth values must be the reference's. Floats must lie within the fuzzer's running
error bound of the value in f64: a step may round its result and what it adds up, by a few eps of
their sizes, and no more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.compile import compiled
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.module import assembled
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.core.shape import Shape
from rlx.fuzz.generate import is_bounded
from rlx.fuzz.job import refused_ops
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.draw import Case, Draw
from rlx.ops.op import Array, Op
from rlx.pipeline import CompilePipeline, select_kernels
from rlx.runtime.session import Session

DRAWN = [o for o in table.table().values() if not o.why_no_cases]
REFUSED = refused_ops(["cpu"])
CLAIMED = [o for o in DRAWN if o.name not in REFUSED]


@dataclass(frozen=True, slots=True)
class Batch:
    """A graph of applications, values for its inputs, and the case of each output."""

    graph: Graph
    values: dict[str, Array]
    cases: tuple[Case, ...]


def drawn(op: Op, first: int, count: int) -> Iterator[tuple[Case, list[Array]]]:
    """Applications of `op` that memory can be planned for, the same on every run; every third
    has sizes that fill vectors and tiles."""
    for i in range(first, first + count):
        draw = Draw([zlib.crc32(f"cpu {op.name}".encode()), i], is_large=i % 3 == 2)
        case = draw.case(op)
        while not is_bounded(case):
            case = draw.case(op)
        yield case, draw.arrays(case)


def batch(ops: Sequence[Op], first: int, count: int) -> Batch:
    """`count` applications of each op, side by side in one graph."""
    graph, values = Graph("laws"), dict[str, Array]()
    cases: list[Case] = []
    outputs: list[Node] = []
    for op in ops:
        for case, arrays in drawn(op, first, count):
            made = _apply(graph, case, arrays, values)
            outputs += made
            cases += [case] * len(made)
    graph.set_outputs(outputs)
    return Batch(graph, values, tuple(cases))


def _apply(
    graph: Graph, case: Case, arrays: Sequence[Array], values: dict[str, Array]
) -> list[Node]:
    operands: list[Node] = []
    for spec, array in zip(case.specs, arrays):
        name = f"x{len(values)}"
        values[name] = array
        operands.append(graph.input(name, Shape(spec.dims, spec.dtype)))
    attrs = {k: v for k, v in case.attrs.items() if k != "extent"}
    node = graph.node(case.op, operands, graph.extents.named(case.op, operands, attrs))
    if not node.has_items:
        return [node]
    return [graph.node("item", (node,), {"index": i}) for i in range(len(node.shapes))]


def wrong(made: Batch, target: str) -> list[str]:
    """What `target` computes wrongly, each with its case."""
    graph, values = made.graph, made.values
    exe = Session(target).compile(graph)
    got: Any = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    results = [got] if len(graph.outputs) == 1 else list(got)
    found = compare(target, Expected(graph, values), results)
    numbers = {name: i for i, name in enumerate(graph.output_names)}
    return [f"{m.target}: {m.message} in {made.cases[numbers[m.output]]}" for m in found]


def code_for(made: Batch, isa: Isa) -> Blob:
    """The program of the graph for `isa`: emitted, assembled and linked."""
    lir = CompilePipeline(Session("cpu").target).compile(made.graph).lir
    return compiled(assembled(select_kernels(lir, CpuKernels(CpuMachine.of(isa))), isa).text, isa)


def chunks(ops: Sequence[Op], size: int) -> list[Sequence[Op]]:
    """The ops, some to a graph: a compile costs less for many than one by one."""
    return [ops[i : i + size] for i in range(0, len(ops), size)]
