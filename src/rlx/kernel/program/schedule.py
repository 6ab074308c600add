"""Schedules as the program holds them: the tasks of a kernel, its temporaries and packed weights.

What a task is depends on the target: a function over units of work for a CPU, a grid for a GPU. The
program asks of it what is listed in `AnyTask`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from rlx.core.dim import DimLike


@dataclass(frozen=True, slots=True)
class Buffer:
    """An address that a kernel or a task is given: the start of the slot that a layout counts
    from."""

    kind: Literal["operand", "result", "temp", "packed", "size"]
    """`size` is where the value of a measured size is written, an i64: the index is that of the
    symbol among `measured_in` of all dims of the node's results."""
    index: int

    def __str__(self) -> str:
        return f"{self.kind}{self.index}"


def buffers(operands: int, results: int) -> tuple[Buffer, ...]:
    """All operands, then all results: the usual order."""
    given = [Buffer("operand", i) for i in range(operands)]
    return (*given, *(Buffer("result", i) for i in range(results)))


class AnyTask(Protocol):
    """A task of any target."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What it is called with."""
        ...

    @property
    def failures(self) -> tuple[str, ...]:
        """What its codes mean; 0 is success."""
        ...

    @property
    def key(self) -> Hashable:
        """Tasks of equal keys do the same."""
        ...

    @property
    def scratch(self) -> DimLike:
        """Bytes that each worker has for itself."""
        ...

    def on(self, buffers: tuple[Buffer, ...]) -> Self:
        """The same task on other buffers."""
        ...

    def split(self, is_split: bool) -> Self:
        """The same with its work divided between workers, or not."""
        ...

    def text(self, sizes: Mapping[str, int]) -> str:
        """It in words, for reports, at these sizes of named dims."""
        ...


T = TypeVar("T", bound=AnyTask)
Move = Callable[[Buffer], Buffer]


@dataclass(frozen=True)  # a generic class that is called by a subscripted name has no slots
class PackedWeights(Generic[T]):
    """Bytes that follow from weights: made once, by a task whose `result` 0 they are."""

    task: T
    size: DimLike


@dataclass(frozen=True)
class Schedule(Generic[T]):
    """How a kernel, or a step of several, runs on a target."""

    tasks: tuple[T, ...]
    temps: tuple[DimLike, ...] = ()
    """The bytes of each temporary, aligned to 64."""
    packed: tuple[PackedWeights[T], ...] = field(default_factory=tuple)

    @property
    def all_tasks(self) -> tuple[T, ...]:
        """Those that pack weights, then those of every run."""
        return (*(p.task for p in self.packed), *self.tasks)

    def moved(self, move: Move) -> Schedule[T]:
        """The same with other buffers. The result of a task that packs is the packed weights."""

        def keep(buffer: Buffer) -> Buffer:
            return buffer if buffer.kind == "result" else move(buffer)

        packed = (replace(p, task=_moved(p.task, keep)) for p in self.packed)
        tasks = tuple(_moved(t, move) for t in self.tasks)
        return replace(self, tasks=tasks, packed=tuple(packed))

    def split(self, is_split: bool) -> Schedule[T]:
        """The same with the work of every task divided, or of none."""
        return replace(self, tasks=tuple(t.split(is_split) for t in self.tasks))

    def packed_every_run(self) -> Schedule[T]:
        """The same with weights packed anew in temporaries: for a step that itself runs once."""
        kept = len(self.temps)
        packing = [
            _moved(p.task, lambda b, i=i: Buffer("temp", kept + i) if b.kind == "result" else b)
            for i, p in enumerate(self.packed)
        ]
        tasks = (_moved(t, lambda b: _renamed(b, "packed", "temp", kept)) for t in self.tasks)
        temps = (*self.temps, *(p.size for p in self.packed))
        return replace(self, tasks=(*packing, *tasks), temps=temps, packed=())


def joined(temps: Sequence[DimLike], parts: Sequence[tuple[Schedule[T], Move]]) -> Schedule[T]:
    """The schedules of kernels that run one after the other, as one. The temporaries of the step
    come first; `move` maps what each kernel is given to what the step has."""
    tasks: list[T] = []
    packed: list[PackedWeights[T]] = []
    room = list(temps)
    for schedule, move in parts:
        own = schedule.moved(_own(move, len(room), len(packed)))
        tasks += own.tasks
        packed += own.packed
        room += schedule.temps
    return Schedule(tuple(tasks), tuple(room), tuple(packed))


def _own(move: Move, temps: int, packed: int) -> Move:
    """Operands and results by the kernel's place in the step, the rest behind what is there."""

    def moved(buffer: Buffer) -> Buffer:
        if buffer.kind in ("operand", "result"):
            return move(buffer)
        return _renamed(_renamed(buffer, "temp", "temp", temps), "packed", "packed", packed)

    return moved


def _renamed(buffer: Buffer, kind: str, to: Any, by: int) -> Buffer:
    return Buffer(to, by + buffer.index) if buffer.kind == kind else buffer


def _moved(task: T, move: Move) -> T:
    return task.on(tuple(map(move, task.buffers)))
