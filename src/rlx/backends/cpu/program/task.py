"""What a step of a plan becomes: native functions, and what each is called with.

A step is given with where its operands and results lie. Its recipe is a list of tasks, done one
after the other, each in parts: a task is a function over units of work that may be done in any
order, by any worker. Between its tasks a recipe may keep values in temporaries, and what follows
from weights alone it packs once, into panels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Code, Function, Source
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.dim import DimLike, dim_max
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.lower.loop import body_of

POLL_NS = 100_000
"""Between two polls of a loop inside of a unit, roughly: much more than a poll takes, and much less
than anybody notices."""
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


@dataclass(frozen=True, slots=True)
class Buffer:
    """An address that a task is called with: the start of the slot that a layout counts from."""

    kind: Literal["operand", "result", "temp", "packed", "size"]
    """`size` is where the value of a measured size is written, an i64: the index is that of the
    symbol among `measured_in` of all dims of the node's results."""
    index: int


class KernelForm(Enum):
    """The forms of kernel that a step can be lowered to."""

    DEDICATED = "dedicated kernel"
    STRIDED_COPIES = "strided copies"
    CONVOLUTION = "convolution"
    LOOP = "loop nest"
    GEMM = "gemm"
    GEMM_AND_LOOP = "gemm and loop nest"
    DEDICATED_AND_LOOP = "dedicated kernel and loop nest"


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that was considered for a step before the one it has, and why it does not fit."""

    form: KernelForm
    reason: str


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

    code: Code
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

    @classmethod
    def written(
        cls,
        function: Function,
        buffers: tuple[Buffer, ...],
        sizes: tuple[DimLike, ...] = (),
        *rest: Any,
        **more: Any,
    ) -> Task:
        """The task of code that is written already."""
        source, key = Source(function, sizes), (function.text.partition("(")[2], sizes)
        return cls(Code(function.name, lambda _: source, key), buffers, *rest, **more)

    def with_function(self, function: Function) -> Task:
        """The same task of another function that does the same."""
        source = Source(function, self.sizes)
        return replace(self, code=Code(function.name, lambda _: source, self.code.key))

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


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Bytes that follow from weights: made once by a task whose `result` 0 they are."""

    task: Task
    size: DimLike


@dataclass(frozen=True, slots=True)
class KernelSequence:
    """How a step runs."""

    tasks: tuple[Task, ...]
    temps: tuple[DimLike, ...] = ()
    """The bytes of each temporary, aligned to 64."""
    packed: tuple[PackedWeights, ...] = field(default_factory=tuple)
    form: KernelForm = KernelForm.DEDICATED
    refused: tuple[RefusedForm, ...] = ()
    """The forms that come before it in the order of candidates."""

    def split(self, is_split: bool) -> KernelSequence:
        """The same with every task's work shared out, at least between two, or with none."""
        tasks = [replace(t, grain=(t.units + 1) // 2 if is_split else t.units) for t in self.tasks]
        return replace(self, tasks=tuple(tasks))

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """Those that make panels, then those of every run."""
        return (*(p.task for p in self.packed), *self.tasks)

    def mapped(self, change: Callable[[Function], Function]) -> KernelSequence:
        """The same with other functions that do the same."""
        tasks = tuple(t.with_function(change(t.function)) for t in self.tasks)
        packing = (p.task.with_function(change(p.task.function)) for p in self.packed)
        packed = tuple(replace(p, task=t) for p, t in zip(self.packed, packing))
        return replace(self, tasks=tasks, packed=packed)

    def packed_every_run(self) -> KernelSequence:
        """The same with panels made anew in temporaries: for a step that itself runs once."""
        kept = len(self.temps)

        def moved(task: Task, kind: str, by: int) -> Task:
            places = (Buffer("temp", by + b.index) if b.kind == kind else b for b in task.buffers)
            return replace(task, buffers=tuple(places))

        packing = [moved(p.task, "result", kept + i) for i, p in enumerate(self.packed)]
        tasks = (*packing, *(moved(t, "packed", kept) for t in self.tasks))
        temps = (*self.temps, *(p.size for p in self.packed))
        return replace(self, tasks=tasks, temps=temps, packed=())


def iterations_per_poll(ns: DimLike) -> DimLike:
    """After how many turns a loop polls, where one takes `ns`."""
    return dim_max(1, POLL_NS // dim_max(1, ns))


def buffers(operands: int, results: int) -> tuple[Buffer, ...]:
    """All operands, then all results: the usual order."""
    given = [Buffer("operand", i) for i in range(operands)]
    return (*given, *(Buffer("result", i) for i in range(results)))
