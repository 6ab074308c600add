"""Launches as the program of kernels holds them: a SIMT program, and the buffers that it is given.

A program is written when it is needed, never to learn how a kernel runs. A kernel with named dims
may have several alternatives, of which a call takes the one of its sizes. Steps that no kernel of
the device does are the host's: their operands are copied there, and the results back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rlx.backends.gpu.buckets import Buckets
from rlx.core.dim import DimLike, evaluate, symbols_of
from rlx.kernel.program.forms import AnyKernel
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.program.program import Program

Resize: TypeAlias = Callable[[DimLike], DimLike]
Price: TypeAlias = Callable[[Resize], float]
"""What a program is predicted to take at other sizes."""
FAILURES = "failures"
"""The buffer of a program that holds the greatest code of what went wrong: an i32 of its own."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One program that a launch may be, with the same buffers as the others."""

    write: Callable[[str], Program] = field(compare=False)
    """The program, under the name given."""
    note: str
    """How it runs, in a few words."""
    predicted_ns: float
    order: Hashable = None
    """In which sums are added up: programs of equal orders give the same bits."""
    price: Price | None = field(default=None, compare=False, repr=False)

    def ns_at(self, resize: Resize) -> float:
        """What it is predicted to take at the sizes of a call, rather than those it was chosen
        for."""
        return self.predicted_ns if self.price is None else self.price(resize)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel on the device."""

    name: str
    write: Callable[[str], Program] = field(compare=False)
    """The program, under the name given. It depends on nothing but `key`."""
    key: Hashable
    """Of all that the program depends on: launches of equal keys share one."""
    names: tuple[str, ...]
    """Of the program's buffers, but for `failures`, in the order of `buffers`."""
    buffers: tuple[Buffer, ...]
    """What they are."""
    failures: tuple[str, ...] = ()
    """What the codes mean that the program notes: 1 is the first."""
    note: str = ""
    """How it runs, in a few words."""
    scratch: DimLike = 0
    predicted_ns: float = 0.0
    """What it should take at usual sizes; 0 where nothing is predicted."""
    order: Hashable = None
    """Of its sums, as in a variant."""
    others: tuple[Variant, ...] = field(default=(), compare=False, repr=False)
    """What it might be instead, predicted to take longer."""
    approximations: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    """What it computes otherwise than the graph states, in a few words; none where nothing."""
    price: Price | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        key: Hashable,
        names: tuple[str, ...],
        buffers: tuple[Buffer, ...],
        failures: tuple[str, ...],
        first: Variant,
        others: Iterable[Variant] = (),
    ) -> Launch:
        """A launch of the first of some programs. What was measured is kept by their notes: of
        programs with equal ones the first counts."""
        distinct: dict[str, Variant] = {first.note: first}
        for variant in others:
            distinct.setdefault(variant.note, variant)
        _, *rest = distinct.values()
        known = name, first.write, key, names, buffers, failures, first.note, 0
        order, others = first.order, tuple(rest)
        return cls(*known, first.predicted_ns, order, others, price=first.price)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All programs that it may be; the one that it is first."""
        own = Variant(self.write, self.note, self.predicted_ns, self.order, self.price)
        return own, *self.others

    def taking(self, variant: Variant) -> Launch:
        """The same launch of another of its programs."""
        how = replace(self, write=variant.write, note=variant.note, order=variant.order)
        return replace(how, predicted_ns=variant.predicted_ns, price=variant.price)

    def rewritten(self, rewrite: Callable[[Program], Program]) -> Launch:
        """The same launch of rewritten programs."""
        others = tuple(replace(v, write=_then(v.write, rewrite)) for v in self.others)
        return replace(self, write=_then(self.write, rewrite), others=others)

    def program(self) -> Program:
        """What is launched, under a name that every assembler takes."""
        return self.write(self.name.replace(".", "_"))

    def on(self, buffers: tuple[Buffer, ...]) -> Launch:
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> Launch:
        """A grid is always divided."""
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return f"{self.name}: {self.note}" if self.note else self.name


Write = Callable[[str], Program]


def _then(write: Write, rewrite: Callable[[Program], Program]) -> Write:
    return lambda name: rewrite(write(name))


@dataclass(frozen=True, slots=True)
class HostTask:
    """A kernel that the host runs by its NumPy meaning, as the device has no code for it."""

    name: str
    kernel: AnyKernel
    buffers: tuple[Buffer, ...]
    reason: str
    failures: tuple[str, ...] = ()
    scratch: DimLike = 0

    @property
    def key(self) -> Hashable:
        return self.name

    def on(self, buffers: tuple[Buffer, ...]) -> HostTask:
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> HostTask:
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return f"{self.name}: {self.kernel.name} on the host ({self.reason})"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several alternatives of a kernel, by the sizes of a call."""

    name: str
    buckets: Buckets
    alternatives: tuple[tuple[Launch, ...], ...]
    scratch: DimLike = 0

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those of all alternatives."""
        return tuple(launch for alternative in self.alternatives for launch in alternative)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What any of them uses."""
        return tuple(dict.fromkeys(b for launch in self.launches for b in launch.buffers))

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f for launch in self.launches for f in launch.failures))

    @property
    def key(self) -> Hashable:
        return self.buckets, tuple(
            tuple(t.key for t in alternative) for alternative in self.alternatives
        )

    def on(self, buffers: tuple[Buffer, ...]) -> Choice:
        moved = dict(zip(self.buffers, buffers, strict=True))
        alternatives = tuple(
            tuple(t.on(tuple(moved[b] for b in t.buffers)) for t in alternative)
            for alternative in self.alternatives
        )
        return replace(self, alternatives=alternatives)

    def split(self, is_split: bool) -> Choice:
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return "; ".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """Each alternative, and the sizes that it is for."""
        return tuple(
            f"{self.buckets.text(i)}: {', then '.join(t.text({}) for t in alternative)}"
            for i, alternative in enumerate(self.alternatives)
        )


GpuTask = Launch | HostTask | Choice


def rewritten_launches(
    schedule: Schedule[GpuTask], rewrite: Callable[[Program], Program]
) -> Schedule[GpuTask]:
    """A schedule whose programs are rewritten before they are launched."""

    def task(given: GpuTask) -> GpuTask:
        if isinstance(given, Launch):
            return given.rewritten(rewrite)
        if isinstance(given, HostTask):
            return given
        changed = tuple(tuple(t.rewritten(rewrite) for t in a) for a in given.alternatives)
        return replace(given, alternatives=changed)

    packed = tuple(replace(p, task=task(p.task)) for p in schedule.packed)
    return replace(schedule, tasks=tuple(map(task, schedule.tasks)), packed=packed)


def launches_in(tasks: Iterable[GpuTask]) -> Iterator[Launch]:
    """All launches that tasks may make."""
    for task in tasks:
        if isinstance(task, Choice):
            yield from task.launches
        elif isinstance(task, Launch):
            yield task


def taken_launches(tasks: Iterable[GpuTask], sizes: Mapping[str, int]) -> Iterator[Launch]:
    """The launches that tasks make at these sizes of named dims; all of them where a size that
    decides is not known."""
    for task in tasks:
        if isinstance(task, Choice):
            names = {s.name for s in symbols_of(task.buckets.sizes)}
            is_known = names <= sizes.keys()
            number = task.buckets.at(lambda d: evaluate(d, sizes)) if is_known else None
            yield from task.launches if number is None else task.alternatives[number]
        elif isinstance(task, Launch):
            yield task


def lines_of(tasks: Iterable[GpuTask]) -> Iterator[str]:
    """How tasks run, a line for each alternative of those that have several."""
    for task in tasks:
        yield from task.lines if isinstance(task, Choice) else (task.text({}),)
