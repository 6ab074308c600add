"""A compiled program as data: native code, and what the host must know to call it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.runtime.blob import Blob
from rlx.core.dim import DimLike, Symbol
from rlx.core.shape import Shape
from rlx.ir.interface import Interface

if TYPE_CHECKING:
    from rlx.backends.cpu.program.module import Assembled
    from rlx.backends.timing import CodegenSpan
    from rlx.kernel.program.program import KernelProgram


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that the weights hold from the start."""

    offset: DimLike
    value: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrologueReads:
    """What a step of the prologue reads."""

    params: frozenset[int]
    """The params, by number."""
    steps: frozenset[int]
    """The earlier steps of the prologue whose results it reads, by number."""

    @classmethod
    def union(cls, all_reads: Iterable[PrologueReads]) -> PrologueReads:
        each = [*all_reads]
        if len(each) == 1:
            return each[0]
        params, steps = (frozenset[int]().union(*sets) for sets in (
            [r.params for r in each], [r.steps for r in each],
        ))  # fmt: skip
        return cls(params, steps)


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that only the host can do: an op that the program registered."""

    name: str
    options: str
    label: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Artefact:
    """All of a program but its weights."""

    blob: Blob
    isa: str
    """The instruction set that the code asks for."""
    symbols: tuple[Symbol, ...]
    """The named dims, in the order of their sizes in a call's context."""
    constants: tuple[Constant, ...]
    failures: tuple[tuple[str, tuple[str, ...]], ...]
    """Task by task: the node it belongs to, and what its codes mean."""
    hosts: dict[int, HostStep]
    prologue: tuple[PrologueReads, ...]
    """What each step of the prologue reads."""
    call_params: frozenset[int]
    """The params that calls read, by number; the others are read by the prologue alone."""
    packed_at: DimLike
    """Where in the weights panels begin, which calls read; before them is what panels are made of,
    mostly."""
    interface: Interface
    """What it takes and gives."""
    codegen_spans: tuple[CodegenSpan, ...] = field(default=(), compare=False, repr=False)
    """What making it took, part by part; nothing where it was kept from before."""


def compiled(program: KernelProgram, isa: Isa) -> Artefact:
    """The native code of a program. To open one that was compiled before takes none of this."""
    from rlx.backends.cpu.program.build import built

    return artefact_of(*built(program, isa))


def artefact_of(made: Assembled, blob: Blob, codegen_spans: tuple[CodegenSpan, ...]) -> Artefact:
    """A program's code with what is said beside it."""
    return Artefact(
        blob,
        made.isa.name,
        made.symbols,
        tuple(Constant(at, n.attrs["value"].array) for at, n in made.constants),
        made.program.failures,
        {k: _host(n) for k, n in made.program.hosts.items()},
        made.prologue,
        made.call_params,
        made.main.plan.weight_formula,
        Interface.planned(made.program.lir),
        codegen_spans,
    )


def _host(node: Any) -> HostStep:
    operands = tuple(i.shape for i in node.inputs)
    attrs = node.attrs
    return HostStep(attrs["name"], attrs["options"], node.label, operands, tuple(node.shapes))
