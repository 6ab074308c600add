"""Kernel programs: a plan with the kernels of each step, and plans inside plans, as data.

Most steps are kernels one after the other. Branches and loops run subprograms: plans of their
bodies, each with an arena of its own in the memory behind its holder's. So does a step that no
kernel form takes as a whole: it is a subprogram of smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from rlx.core.dim import DimLike, is_static
from rlx.core.layout import Layout
from rlx.ir.lir import BufferPlan, LirModule, Space
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import body_of
from rlx.kernel.program.forms import AnyKernel
from rlx.kernel.program.schedule import Buffer, Schedule

LINE_BYTES = 64
"""Of a cache line."""


class KernelForm(Enum):
    """The forms of kernel that a step can be lowered to."""

    DEDICATED = "dedicated kernel"
    STRIDED_COPIES = "strided copies"
    CONVOLUTION = "convolution"
    LOOP = "loop nest"
    GEMM = "GEMM"
    GEMM_AND_LOOP = "GEMM and loop nest"
    DEDICATED_AND_LOOP = "dedicated kernel and loop nest"


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that was considered for a step before the one it has, and why it does not fit."""

    form: KernelForm
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a plan, and where its operands and results lie in their buffers, in elements."""

    node: Node
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    constants: frozenset[int] = frozenset()
    """The operands that follow from weights alone."""
    prologue_only: bool = False
    """Does it run only when weights are set?"""
    inputs: frozenset[int] = frozenset()
    """The operands that the caller gave, where kernels differ by that: no kernel writes them."""
    written: Layout | None = None
    """Of an update of a state, the elements that it writes in place: the result is the state."""

    @classmethod
    def alone(cls, node: Node, constants: frozenset[int] = frozenset()) -> Step:
        """A step whose values are contiguous."""
        operands = tuple(Layout.contiguous(i.shape.dims) for i in node.inputs)
        results = tuple(Layout.contiguous(o.shape.dims) for o in body_of(node).outputs)
        return cls(node, operands, results, constants)

    @property
    def key(self) -> object:
        """Steps of equal keys have the same kernels."""
        node = self.node
        what = (node.op, node.attr_key, tuple(i.shape for i in node.inputs))
        how = (self.constants, self.prologue_only, self.inputs, self.written)
        return what, self.operands, self.results, *how


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, and the buffers of the step that are its operands and results."""

    kernel: AnyKernel
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    constants: frozenset[int] = frozenset()
    """The kernel's operands that follow from weights alone."""
    inputs: frozenset[int] = frozenset()
    """Those that the caller gave, if that is known."""
    prologue_only: bool = False
    """Does it run only when weights are set, so that code for any sizes will do?"""
    name: str = "kernel"
    """What the functions made for it are called, or begin with."""

    def place(self, buffer: Buffer) -> Buffer:
        """Which buffer of the step an operand or a result of the kernel is."""
        return (self.operands if buffer.kind == "operand" else self.results)[buffer.index]


@dataclass(frozen=True, slots=True)
class KernelSequence:
    """The kernels of a step, run one after the other."""

    calls: tuple[KernelCall, ...]
    temps: tuple[DimLike, ...] = ()
    """The bytes of each value between them."""
    form: KernelForm = KernelForm.LOOP
    refused: tuple[RefusedForm, ...] = ()
    """The forms that come before it in the order of candidates."""
    schedule: Schedule[Any] = field(default_factory=lambda: Schedule[Any](()))
    """How they run on the target they were selected for."""


# -- control flow ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nested:
    """The step as a subprogram of smaller ones, as no kernel form takes it whole."""

    body: Subprogram
    refused: tuple[RefusedForm, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One of two subprograms, by the first operand."""

    then: Subprogram
    other: Subprogram


@dataclass(frozen=True, slots=True)
class WhileLoop:
    """The body for as long as the condition holds, and at most `limit` times."""

    condition: Subprogram
    body: Subprogram
    limit: int | None
    num_carries: int = 0
    """The other operands are what every iteration sees."""
    num_rows: int = 0
    """Results of the body that are stacked, the last ones."""


@dataclass(frozen=True, slots=True)
class ScanLoop:
    """The body once for every slice of the last operands."""

    body: Subprogram
    length: DimLike
    num_carries: int
    num_bcasts: int
    is_reversed: bool


@dataclass(frozen=True, slots=True)
class HostCall:
    """What only the program that registered it can do: the call leaves native code for it."""


Control = Nested | Branch | WhileLoop | ScanLoop | HostCall
Lowering = KernelSequence | Control


# -- steps and programs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """Where an operand or a result lies."""

    node: Node
    """Whose slot it is in."""
    layout: Layout

    @property
    def base_bytes(self) -> int:
        """The whole cache lines of the slot before its first element in memory. They are part of
        the address that a kernel is called with: kernels on slices of one buffer are then the same
        code, what a kernel knows of alignment holds, and no index is negative."""
        first, size = self._first, self.node.shape.dtype.itemsize
        return first * size // LINE_BYTES * LINE_BYTES if is_static(first) else 0

    @property
    def _first(self) -> DimLike:
        """The position of its first element in memory; axes of negative strides end there."""
        layout = self.layout
        back = [(d - 1) * s for d, s in zip(layout.dims, layout.strides) if is_static(s) and s < 0]
        return layout.offset if 0 in layout.dims else sum(back, layout.offset)

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
class ProgramStep:
    """A step with all that is needed to run it."""

    node: Node
    lowering: Lowering
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    number: int
    """Of its first task in the table of failures."""
    copies: tuple[KernelSequence | None, ...] = ()
    """Copies that make strided operands contiguous, for control flow."""
    packed_offsets: tuple[DimLike, ...] = ()
    """Byte offsets of its packed weights in the weight block."""
    sizes: tuple[str, ...] = ()
    """The named dims that it measures."""

    @property
    def bodies(self) -> tuple[tuple[Subprogram, tuple[Value, ...]], ...]:
        """The subprograms that it runs, and the operands that each is given."""
        match self.lowering:
            case Nested(body=body) | ScanLoop(body=body):
                return ((body, self.operands),)
            case Branch(then, other):
                return (then, self.operands[1:]), (other, self.operands[1:])
            case WhileLoop(condition, body):
                return (condition, self.operands), (body, self.operands)
            case _:
                return ()

    def within(self) -> Iterator[ProgramStep]:
        """The step, and all steps inside it."""
        todo = [self]
        while todo:
            top = todo.pop()
            yield top
            todo += [s for body, _ in top.bodies for s in reversed(body.calls)]


@dataclass(frozen=True)
class Subprogram:
    """A planned graph with the kernels of its steps."""

    name: str
    graph: Graph
    plan: BufferPlan
    weights_at: DimLike
    """Where the plan's own part of the weights begins."""
    prologue: tuple[ProgramStep, ...]
    calls: tuple[ProgramStep, ...]
    packing: tuple[ProgramStep, ...] = field(default_factory=tuple)
    """The steps whose weights are packed in the prologue; equal ones are packed once."""
    bound: tuple[int, ...] = ()
    """Which of its holder's operands are its params: weights that are the same for every call. All
    others are its inputs."""

    @cached_property
    def output_indices(self) -> Mapping[Node, int]:
        """Value → the output whose memory its kernel writes; the first, where it is several."""
        found: dict[Node, int] = {}
        for number, output in enumerate(self.graph.outputs):
            root = self.plan.root(output)
            if self.plan.assignments[root].space is Space.ARENA and not root.is_given:
                found.setdefault(root, number)
        return found

    @cached_property
    def external_indices(self) -> Mapping[Node, int]:
        """Value → which of the arrays of `externals` it is."""
        leaves = [*self.graph.given, *self.graph.params]
        found = {root: len(leaves) + number for root, number in self.output_indices.items()}
        return found | {leaf: i for i, leaf in enumerate(leaves)}

    def externals(self, given: Sequence[Any]) -> list[Any]:
        """What the holder gives, operands first, in the order in which the subprogram takes it."""
        count = len(self.graph.given) + len(self.graph.params)
        inputs = [a for i, a in enumerate(given[:count]) if i not in self.bound]
        return [*inputs, *(given[i] for i in self.bound), *given[count:]]


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """The kernels of a whole plan."""

    lir: LirModule
    main: Subprogram
    subprograms: Mapping[str, Subprogram]
    """All of them by name, those that others run first; the main one is the last."""
    sequences: tuple[KernelSequence, ...]
    """The kernels of all steps; those of equal steps once."""
    failures: tuple[tuple[str, tuple[str, ...]], ...]
    """Task by task: the node it belongs to, and what its codes mean."""
    hosts: Mapping[int, Node]
    """The steps that the host does, by number."""
    weight_bytes: DimLike
    """Of weights, of what follows from them, and of packed weights."""

    def __str__(self) -> str:
        from rlx.kernel.program.text import program_text

        return program_text(self)
