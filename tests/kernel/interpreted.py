"""A backend of the protocol that needs no hardware: kernels are scheduled, emitted, built and run
as NumPy functions. It takes whatever the compiler selects for it, with none of the CPU's code."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rlx.backends.base import KernelBackend, Program
from rlx.core.dim import DimLike
from rlx.core.errors import Error
from rlx.cost.target import LOOPS, Target
from rlx.ir.interface import Interface
from rlx.kernel import interpret
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel, Reduce
from rlx.kernel.program import interpret as program_interpret
from rlx.kernel.program.forms import AnyKernel, Conv, Special
from rlx.kernel.program.program import KernelCall, KernelProgram
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.ops.op import Array, Kind, lookup

LOOP_KINDS = (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.MOVEMENT, Kind.REGION)
DATA_DEPENDENT = ("take_along_axis",)
"""Movements whose places are data."""
FORMS = frozenset(
    {
        *("softmax", "log_softmax", "layer_norm", "rms_norm", "rope", "embedding", "conv"),
        *("fused_conv_bias_act", "fused_matmul_bias_act", "fused_swiglu", "dot_general"),
        *("einsum", "elementwise_region", "region", "pad", "narrow", "tile", "flip", "attention"),
    }
)
"""Ops that become one kernel although they have a lowering."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as a NumPy function."""

    name: str
    kernel: AnyKernel
    buffers: tuple[Buffer, ...]
    failures: tuple[str, ...] = ()
    scratch: DimLike = 0

    @property
    def key(self) -> Hashable:
        return self.name

    def on(self, buffers: tuple[Buffer, ...]) -> Launch:
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> Launch:
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return f"{self.name}: NumPy"


@dataclass(frozen=True, slots=True)
class Source:
    """What a kernel is emitted as: a loop nest, and its text."""

    nest: Kernel | None
    text: str

    def run(self, given: Sequence[Array], made: Sequence[Array], sizes: Mapping[str, int]) -> bool:
        """False for what is no nest: a named algorithm, or a copy."""
        if self.nest is None:
            return False
        interpret.run_into(self.nest, given, made, sizes)
        return True


@dataclass(frozen=True, slots=True)
class Artefact:
    """The sources of all kernels by name, and the program that calls them."""

    program: KernelProgram
    sources: Mapping[str, Source]


class InterpretedBackend(KernelBackend[Source, Artefact]):
    """Kernels as NumPy functions."""

    name: ClassVar[str] = "interpreted"

    def target(self) -> Target:
        return replace(
            Target.of("cuda"),
            name=self.name,
            native=FORMS,
            native_kinds=frozenset({Kind.ELEMENTWISE, Kind.REDUCTION}),
            kernel_limits={},
            refusals={},
            missing_dtypes={},
            loops=frozenset(LOOPS),
        )

    def configured(
        self, variant: str, threads: int | None, cache: Any = None
    ) -> InterpretedBackend:
        if variant:
            raise Error(f"target 'interpreted' has no variant {variant!r}.")
        return self

    def has_special(self, op: str) -> bool:
        """Primitives that are no loops and no contractions."""
        known = lookup(op)
        is_loop = known.kind in LOOP_KINDS and op not in DATA_DEPENDENT
        is_primitive = known.lower is None and not is_loop and op not in ("matmul", *FORMS)
        return is_primitive or op == "attention"

    def schedule(self, call: KernelCall) -> Schedule[Any] | Refusal:
        kernel = call.kernel
        if isinstance(kernel, Kernel) and len(_folds(kernel)) > 1:
            return Refusal(f"{kernel.name}: folds of two kinds in one kernel")
        every = buffers(len(call.operands), len(call.results))
        return Schedule((Launch(call.name, kernel, every),))

    def emit(self, call: KernelCall, schedule: Schedule[Any]) -> Source:
        kernel = call.kernel
        match kernel:
            case Kernel():
                return Source(kernel, str(kernel))
            case Contract() | Attention():
                return Source(kernel.kernel(), str(kernel))
            case Conv():
                return Source(kernel.contract.kernel(), str(kernel))
            case _:
                return Source(None, str(kernel))

    def build(self, program: KernelProgram) -> Artefact:
        calls = [(c, s.schedule) for s in program.sequences for c in s.calls]
        return Artefact(program, {c.name: self.emit(c, s) for c, s in calls})

    def load(self, artefact: Artefact) -> InterpretedProgram:
        return InterpretedProgram(artefact)


class InterpretedProgram(Program):
    """Runs an artefact."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.interface = Interface.planned(artefact.program.lir)
        self.launched: set[str] = set()
        """The kernels that ran as what was emitted."""

    def prepare(self, params: Mapping[str, Array], old: Any | None) -> Mapping[str, Array]:
        return dict(params)

    def run(
        self, weights: Any, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        names = [n.name for n in self.interface.inputs]
        values = {**weights, **dict(zip(names, inputs))}
        return program_interpret.run(self.artefact.program, values, self._launch)

    def _launch(
        self,
        call: KernelCall,
        given: Sequence[Array],
        made: Sequence[Array],
        sizes: Mapping[str, int],
    ) -> bool:
        assert not isinstance(call.kernel, Special) or self.artefact.sources[call.name].nest is None
        is_run = self.artefact.sources[call.name].run(given, made, sizes)
        self.launched |= {call.name} if is_run else set()
        return is_run


def _folds(kernel: Kernel) -> set[str]:
    """A kernel with several, such as a softmax, is refused: its step runs as smaller ones."""
    return {n.fold for n in kernel.nodes if isinstance(n, Reduce)}
