"""Routines: the steps of a plan as a device runs them, as data without graphs or kernels.

A routine is a planned graph. Its frame, which holds the arena and the temporaries of steps, is
allocated when it is called; its externals are the addresses of inputs, states, params and outputs.
Branches and loops call other routines by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.device import Code
from rlx.backends.timing import CodegenSpan
from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interface import Interface
from rlx.ops.op import Array

Space = Literal["frame", "weights", "external", "size", "failure"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer begins: so many bytes into the frame, the weights or an external; or a row
    of the tables of measured sizes and of failures."""

    space: Space
    offset: DimLike = 0
    index: int = 0


NOT_SAVED = "not saved"
"""In the metadata of a field that only files for devices that bind spans have."""


@dataclass(frozen=True, slots=True)
class Span:
    """Elements that a kernel may touch, as they lie from the place of their buffer on."""

    layout: Layout
    itemsize: int = 1

    @classmethod
    def of_bytes(cls, size: DimLike) -> Span:
        return cls(Layout.contiguous((size,)))


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """A kernel on buffers."""

    label: str
    """The node it belongs to."""
    code: int
    places: tuple[Place, ...]
    spans: tuple[Span, ...] = field(default=(), compare=False, metadata={NOT_SAVED: True})
    """Of each place, for devices that check bounds or bind parts of buffers."""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Bytes from one place to another."""

    to: Place
    source: Place
    size: DimLike


@dataclass(frozen=True, slots=True)
class SizesStep:
    """The host reads what a kernel has measured."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that the host reads or writes: from its place on, elements of a layout."""

    place: Place
    shape: Shape
    layout: Layout


@dataclass(frozen=True, slots=True)
class HostStep:
    """An op that the host computes by its NumPy meaning."""

    label: str
    op: str
    attrs: Mapping[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    measured: tuple[str, ...] = ()
    """The sizes that it finds out."""


Found = tuple[tuple[str, DimLike], ...]
"""Sizes that control flow names, and what they are in its body's."""


@dataclass(frozen=True, slots=True)
class CallStep:
    """A routine of smaller steps."""

    body: str
    operands: tuple[Place, ...]
    results: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class BranchStep:
    """One of two routines, by a truth value that the host reads."""

    condition: Place
    bodies: tuple[str, str]
    """If it holds, and if not."""
    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    found: tuple[Found, Found]


@dataclass(frozen=True, slots=True)
class WhileStep:
    """A routine for as long as another says so."""

    condition: str
    body: str
    limit: int | None
    num_carries: int
    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    sizes: tuple[DimLike, ...]
    """Bytes of each result."""
    row_sizes: tuple[DimLike, ...]
    """Bytes that an iteration adds to each stacked result; they come behind the carries."""
    rows: str
    """The name of the number of iterations, where results are stacked."""
    first: Found
    """From the operands' sizes to the body's."""
    next: Found
    """From what the body gives to what it takes."""


@dataclass(frozen=True, slots=True)
class ScanStep:
    """A routine once for every slice of the last operands."""

    body: str
    length: DimLike
    num_carries: int
    num_bcasts: int
    is_reversed: bool
    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    sizes: tuple[DimLike, ...]
    """Bytes of each result."""
    slice_sizes: tuple[DimLike, ...]
    """Bytes of a slice of each of the last operands."""
    row_sizes: tuple[DimLike, ...]
    """Bytes that a turn adds to each stacked result."""


@dataclass(frozen=True, slots=True)
class ChoiceStep:
    """The launches of one of several alternatives, by sizes."""

    buckets: Buckets
    alternatives: tuple[tuple[LaunchStep, ...], ...]


Enqueued = LaunchStep | CopyStep | ChoiceStep
"""What the device does by itself, and what can be recorded."""
AnyStep = Enqueued | SizesStep | HostStep | CallStep | BranchStep | WhileStep | ScanStep


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that the weights hold from the start."""

    offset: DimLike
    value: Array


@dataclass(frozen=True, slots=True)
class Routine:
    """The steps of a planned graph."""

    name: str
    num_inputs: int
    """Externals are so many inputs and states, then params, then outputs."""
    num_params: int
    bound: tuple[int, ...]
    """Which operands of its caller are its params; all others are its inputs."""
    frame: tuple[DimLike, ...]
    """The frame has the greatest of these sizes."""
    prologue_frame: tuple[DimLike, ...]
    """The same of the prologue, which has temporaries only."""
    prologue: tuple[AnyStep, ...]
    steps: tuple[AnyStep, ...]
    outputs: tuple[DimLike, ...]
    """The most bytes of each output."""
    late: int = 0
    """The first step of the Epilogue."""
    copied: int = 0
    """The first of the steps that copy outputs which no other writes, one for each."""

    def phase(self, outputs: Collection[int], *, is_late: bool) -> tuple[AnyStep, ...]:
        """The steps up to the Epilogue, or those of it; and the copies of these outputs."""
        first = self.num_inputs + self.num_params
        copies = [
            s
            for s in self.steps[self.copied :]
            if isinstance(s, CopyStep) and s.to.index - first in outputs
        ]
        run = self.steps[self.late : self.copied] if is_late else self.steps[: self.late]
        return (*run, *copies)

    def externals(self, given: list[int]) -> list[int]:
        """What the caller gives, operands first, in the order in which the routine takes it."""
        count = self.num_inputs + self.num_params
        inputs = [a for i, a in enumerate(given[:count]) if i not in self.bound]
        return [*inputs, *(given[i] for i in self.bound), *given[count:]]


@dataclass(frozen=True, slots=True)
class Artefact:
    """All of a program but its params."""

    architecture: str
    """What its code is for."""
    codes: tuple[Code, ...]
    routines: Mapping[str, Routine]
    main: str
    symbols: tuple[str, ...]
    """The named dims that kernels measure, by their rows in the table of sizes."""
    capacities: tuple[str, ...]
    constants: tuple[Constant, ...]
    weight_bytes: DimLike
    failures: tuple[tuple[str, tuple[str, ...]], ...]
    """Launch by launch, as it is numbered: the node it belongs to, and what its codes mean."""
    interface: Interface
    codegen_spans: tuple[CodegenSpan, ...] = field(default=(), compare=False, repr=False)
    """What its code took to be made; nothing where it was read."""


def launches_in(step: AnyStep) -> tuple[LaunchStep, ...]:
    """All that a step itself may launch."""
    match step:
        case LaunchStep():
            return (step,)
        case ChoiceStep():
            return tuple(launch for alternative in step.alternatives for launch in alternative)
        case _:
            return ()


def as_bytes(array: Array) -> Array:
    """The bytes of an array, contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
