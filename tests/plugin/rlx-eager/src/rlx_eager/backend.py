"""A backend in one folder: its target as data, and a program that interprets a plan.

The program is a list of instructions over numbered registers. A register holds one NumPy array, and
is cleared by the last instruction that reads it. There is no arena: offsets of the plan are not
used, its order and its phases are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlx.backends.base import Backend, Program
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.cost.gate import IoFusionGate
from rlx.cost.machine import CacheLevel, Machine
from rlx.cost.target import LOOPS, FusionLimits, KernelLimit, Target
from rlx.ir.interface import Interface
from rlx.ir.interpret import evaluate_node, infer_binding
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Node
from rlx.ops.op import Kind

NATIVE = frozenset(("softmax", "layer_norm", "conv", "attention", "cumprod", "squeeze"))
"""Ops that run as one call although they could be decomposed."""
ATTENTION = KernelLimit(frozenset({DType.F32, DType.F64, DType.BOOL}))
NUMPY_CALL_NS = 1_500.0

TARGET = Target(
    name="eager",
    machine=Machine(
        IoFusionGate(NUMPY_CALL_NS, 0, 8, 8, True, 0, 100),
        peak_gflops={DType.F32: 5.0, DType.F64: 2.5},
        caches=(CacheLevel(1 << 20, 20.0),),
    ),
    limits=FusionLimits(),
    native_kinds=frozenset({Kind.ELEMENTWISE, Kind.REDUCTION, Kind.MOVEMENT}),
    native=NATIVE,
    kernel_limits={"attention": ATTENTION},
    refusals={"qr": "eager leaves factorisations to others. Use target='reference'"},
    missing_dtypes={},
    views=frozenset({"transpose", "narrow", "slice", "expand", "flip"}),
    syncs=frozenset(),
    regions=frozenset(),
    loops=frozenset(LOOPS),
)


class EagerBackend(Backend):
    """Values one after the other, as NumPy computes them."""

    name: ClassVar[str] = "eager"
    summary: ClassVar[str] = "NumPy without an arena"

    def target(self) -> Target:
        return TARGET

    def configured(self, variant: str, threads: int | None, cache: Any = None) -> EagerBackend:
        if variant:
            raise Error(f"target 'eager' has no variant {variant!r}.")
        return self

    def compile(self, lir: LirModule) -> EagerProgram:
        return EagerProgram(lir)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One node: the registers that it reads, the one that it writes, and those dead after it."""

    node: Node
    reads: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Params, and the registers that follow from them alone."""

    params: Mapping[str, Any]
    registers: Mapping[int, Any]
    sizes: Mapping[str, int]


class EagerProgram(Program):
    """Two lists of instructions: what params decide alone, and what a call computes."""

    def __init__(self, lir: LirModule) -> None:
        graph, phases = lir.mir.graph, lir.plan.phases
        self.interface = Interface.planned(lir)
        order = _order(lir)
        self.register = {node: i for i, node in enumerate((*graph.inputs, *graph.params, *order))}
        early = [n for n in order if phases[n] is Phase.PROLOGUE]
        late = [n for n in order if phases[n] is not Phase.PROLOGUE]
        self.params, self.inputs = graph.params, graph.inputs
        self.outputs = [self.register[o] for o in graph.outputs]
        self.prologue = [self._instruction(n, ()) for n in early]
        held = {self.register[n] for n in (*graph.params, *early)} | set(self.outputs)
        self.calls = self._with_deaths(late, held)

    def _with_deaths(self, nodes: Sequence[Node], held: set[int]) -> list[Instruction]:
        made: list[Instruction] = []
        read_later = set(held)
        for node in reversed(nodes):
            reads = {self.register[i] for i in node.inputs}
            made.append(self._instruction(node, sorted(reads - read_later)))
            read_later |= reads
        return made[::-1]

    def _instruction(self, node: Node, dead: Iterable[int]) -> Instruction:
        reads = tuple(self.register[i] for i in node.inputs)
        return Instruction(node, reads, self.register[node], tuple(dead))

    def prepare(self, params: Mapping[str, Any], old: Weights | None) -> Weights:
        sizes = infer_binding(self.interface.params, params)
        registers = {self.register[n]: params[n.attrs["name"]] for n in self.params}
        _execute(self.prologue, registers, sizes)
        return Weights(dict(params), registers, sizes)

    def run(
        self, weights: Weights, inputs: Sequence[Any], outputs: Sequence[Any | None]
    ) -> list[Any]:
        sizes = self.interface.bind(weights.params, inputs)
        arrays = self.interface.checked(inputs, sizes)
        self.interface.check_outs(outputs, sizes, is_measured=False)
        self.interface.check_no_overlap(outputs, inputs)
        given = {self.register[n]: a for n, a in zip(self.inputs, arrays)}
        registers = {**weights.registers, **given}
        _execute(self.calls, registers, sizes)
        made = [np.array(registers[r], order="C", copy=True) for r in self.outputs]
        self.interface.check_found(outputs, made)
        return [_delivered(m, o) for m, o in zip(made, outputs)]


def _order(lir: LirModule) -> list[Node]:
    """The plan's kernels in its order, each after the views and constants that it reads."""
    leaves = set(lir.mir.graph.leaves)
    found: dict[Node, None] = {}
    for wanted in (*lir.plan.schedule, *lir.mir.graph.outputs):
        todo = [wanted]
        while todo:
            node = todo[-1]
            missing = [i for i in node.inputs if i not in found and i not in leaves]
            if missing:
                todo += missing
                continue
            todo.pop()
            if node not in leaves:
                found[node] = None
    return list(found)


def _execute(
    instructions: Iterable[Instruction], registers: dict[int, Any], sizes: dict[str, int]
) -> None:
    for step in instructions:
        operands = [registers[r] for r in step.reads]
        registers[step.writes] = evaluate_node(step.node, operands, sizes)
        for register in step.dead:
            del registers[register]


def _delivered(made: Any, out: Any | None) -> Any:
    if out is None:
        return made
    out[...] = made
    return out
