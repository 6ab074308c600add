"""Tasks: native functions over units of work that may be done in any order, by any worker.

A kernel's schedule is a list of tasks, done one after the other, each in parts. Between its tasks
it may keep values in temporaries, and what follows from weights alone it packs once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Function, TaskCode
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.dim import DimLike, dim_max, evaluate
from rlx.core.extent import ceiling
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.lower.loop import body_of
from rlx.kernel.program.schedule import Buffer

POLL_NS = 100_000
"""Between two polls of a loop inside of a unit, roughly: much more than a poll takes, and much less
than anybody notices."""
SCRATCH_GAP = 1024
"""Bytes between the scratch of two workers. A prefetcher that runs past the end of one worker's
would take lines from another core: an int8 product on two Zen 5 cores is 7 % faster with it."""
OUT_OF_RANGE = "an index is out of range"


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a plan, and where its operands and results lie in their buffers, in elements."""

    node: Node
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    machine: CpuMachine
    constants: frozenset[int] = frozenset()
    """The operands that follow from weights alone."""
    prologue_only: bool = False
    """Does it run only when weights are set?"""
    written: Layout | None = None
    """Of an update of a state, the elements that it writes in place."""

    @classmethod
    def alone(
        cls, node: Node, machine: CpuMachine, constants: frozenset[int] = frozenset()
    ) -> Step:
        """A step whose values are contiguous."""
        operands = tuple(Layout.contiguous(i.shape.dims) for i in node.inputs)
        results = tuple(Layout.contiguous(o.shape.dims) for o in body_of(node).outputs)
        return cls(node, operands, results, machine, constants)

    @property
    def isa(self) -> Isa:
        return self.machine.isa


class TaskKind(Enum):
    """What a task's function is."""

    DEDICATED = "dedicated"
    LOOP = "loop nest"
    GEMM = "gemm"
    PACKING = "packing"


@dataclass(frozen=True, slots=True)
class Task:
    """`i32 function(buffers, sizes, start, stop, scratch, poll)` for parts of the units.

    At least unit 0 is handed out, even where there are none. The function gives 0, or n for the
    n-th of the failures.
    """

    code: TaskCode
    buffers: tuple[Buffer, ...]
    units: DimLike = 1
    grain: DimLike = 1
    """How many units a worker takes at a time."""
    scratch: DimLike = 0
    """Bytes for each worker alone, aligned to 64; not kept from part to part."""
    failures: tuple[str, ...] = (OUT_OF_RANGE,)
    summary: str = ""
    """The schedule as text, for reports only."""
    kind: TaskKind = TaskKind.DEDICATED

    def on(self, buffers: tuple[Buffer, ...]) -> Task:
        """The same task on other buffers."""
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> Task:
        """The same with its work divided, at least between two, or not."""
        return replace(self, grain=(self.units + 1) // 2 if is_split else self.units)

    def text(self, sizes: Mapping[str, int]) -> str:
        """Its schedule in words, at these sizes; a data-dependent one counts as its bound."""
        units, grain = (evaluate(ceiling(d), sizes) for d in (self.units, self.grain))
        what = self.summary or f"{self.kind.value} code"
        workers = (
            f"{-(-units // max(1, grain)):,} parallel tasks" if grain < units else "one thread"
        )
        return f"{self.name}: {what}; {workers}"

    @property
    def scratch_stride(self) -> DimLike:
        """From a worker's scratch to the next worker's, before alignment."""
        return self.scratch + SCRATCH_GAP if self.scratch != 0 else 0

    @property
    def key(self) -> Hashable:
        """Tasks of equal keys do the same."""
        return self.code.key, self.units

    @property
    def name(self) -> str:
        return self.code.name

    @property
    def function(self) -> Function:
        """Its code, written when it is first asked for."""
        return self.code.source.function

    @property
    def sizes(self) -> tuple[DimLike, ...]:
        """The values of these dims are what `sizes` points to, as i64."""
        return self.code.source.sizes


def iterations_per_poll(ns: DimLike) -> DimLike:
    """After how many turns a loop polls, where one takes `ns`."""
    return dim_max(1, POLL_NS // dim_max(1, ns))
