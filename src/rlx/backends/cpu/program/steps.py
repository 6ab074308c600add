"""How the steps of a plan run, and plans inside plans.

Most steps are recipes of native tasks. Branches and loops run routines: plans of their bodies, each
with an arena of its own in the memory behind its holder's. So does a step that is no kernel as a
whole: it is a routine of smaller ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.backends.cpu.program.task import KernelSequence, RefusedForm, Task
from rlx.core.dim import DimLike, is_static
from rlx.core.layout import Layout
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Graph, Node

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Value:
    """Where an operand or a result lies."""

    node: Node
    """Whose slot it is in."""
    layout: Layout

    @property
    def base_bytes(self) -> int:
        """The whole cache lines of its offset in the slot. They are part of the address that a
        kernel is called with: kernels on slices of one buffer are then the same code, and what a
        kernel knows of alignment holds."""
        offset = self.layout.offset
        size = self.node.shape.dtype.itemsize
        return offset * size // LINE_BYTES * LINE_BYTES if is_static(offset) else 0

    @property
    def within(self) -> Layout:
        """The layout that a kernel sees, from the address that it is called with."""
        base = self.base_bytes
        if not base:
            return self.layout
        offset = self.layout.offset - base // self.node.shape.dtype.itemsize
        return Layout(self.layout.dims, self.layout.strides, offset)

    @property
    def size(self) -> DimLike:
        """Its bytes, if it were contiguous."""
        total: DimLike = self.node.shape.dtype.itemsize
        for dim in self.layout.dims:
            total = total * dim
        return total


@dataclass(frozen=True, slots=True)
class Nested:
    """The step as a subprogram of smaller ones, as no kernel form takes it whole."""

    body: Subprogram
    refused: tuple[RefusedForm, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One of two routines, by the first operand."""

    then: Subprogram
    other: Subprogram


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for as long as the condition holds, and at most `limit` times."""

    condition: Subprogram
    body: Subprogram
    limit: int | None
    num_carries: int = 0
    """The other operands are what every step sees."""
    num_rows: int = 0
    """Results of the body that are stacked, the last ones."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The body once for every slice of the last operands."""

    body: Subprogram
    length: DimLike
    num_carries: int
    num_bcasts: int
    is_reversed: bool


@dataclass(frozen=True, slots=True)
class Host:
    """What only the program that registered it can do: the call leaves native code for it."""


Control = Nested | Branch | Loop | Scan | Host
Lowering = KernelSequence | Control


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """A step with all that is needed to run it."""

    node: Node
    lowering: Lowering
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    number: int
    """Of its first task in the table of failures."""
    copies: tuple[Task | None, ...] = ()
    """Copies that make strided operands contiguous, for lowerings that need it."""
    packed_offsets: tuple[DimLike, ...] = ()
    """Byte offsets of its packed weights in the weight block."""
    sizes: tuple[str, ...] = ()
    """The named dims that it measures."""

    @property
    def bodies(self) -> tuple[tuple[Subprogram, tuple[Value, ...]], ...]:
        """The routines that it runs, and the operands that each is given."""
        match self.lowering:
            case Nested(body=body) | Scan(body=body):
                return ((body, self.operands),)
            case Branch(then, other):
                return (then, self.operands[1:]), (other, self.operands[1:])
            case Loop(condition, body):
                return (condition, self.operands), (body, self.operands)
            case _:
                return ()


@dataclass(frozen=True, slots=True)
class Subprogram:
    """A planned graph."""

    name: str
    graph: Graph
    plan: BufferPlan
    weights_at: DimLike
    """Where the plan's own part of the weights begins."""
    prologue: tuple[ProgramStep, ...]
    calls: tuple[ProgramStep, ...]
    packing: tuple[ProgramStep, ...] = field(default_factory=tuple)
    """The steps whose panels are made in the prologue; equal panels are made once."""
    bound: tuple[int, ...] = ()
    """Which of its holder's operands are its params: weights that are the same for every call. All
    others are its inputs."""

    def externals(self, given: Sequence[str]) -> list[str]:
        """What the holder gives, operands first, in the order in which the routine takes it."""
        count = len(self.graph.inputs) + len(self.graph.params)
        inputs = [a for i, a in enumerate(given[:count]) if i not in self.bound]
        return [*inputs, *(given[i] for i in self.bound), *given[count:]]
