"""The backend: what the target claims, and how a plan becomes a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.backends.base import KernelBackend, Missing, Runner, Serializer, Steps
from rlx.backends.cpu.isa import Isa, isa, why_not
from rlx.backends.cpu.machine import CpuMachine, machine_of
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.code_cache import cached_blob
from rlx.backends.cpu.runtime.cpython_layout import SLOW_CALLS, why_not_bound
from rlx.backends.cpu.runtime.program import CpuProgram
from rlx.backends.cpu.runtime.support_code import (
    Support,
    compiled_support,
    support,
    support_key,
    support_under_way,
)
from rlx.backends.cpu.runtime.thread_count import default_threads
from rlx.backends.cpu.system.current import this_system
from rlx.backends.cpu.system.trial import why_no_native_code
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.core.sections import Bytes, Sections
from rlx.cost.calibrate import Numbers, Progress, cached_calibration
from rlx.cost.target import Target
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node

if TYPE_CHECKING:
    from rlx.backends.cpu.llvm.function import Source
    from rlx.backends.cpu.program.artefact import Artefact
    from rlx.backends.cpu.program.timed_build import TimedProgram
    from rlx.backends.cpu.schedule.kernels import CpuKernels
    from rlx.cost.machine import Machine
    from rlx.kernel.program.program import KernelCall, KernelProgram, Step
    from rlx.kernel.program.schedule import Schedule
    from rlx.kernel.program.select import Candidate
    from rlx.kernel.refusal import Refusal


@dataclass(frozen=True, slots=True)
class CpuBackend(KernelBackend["tuple[Source, ...]", "Artefact"]):
    """Native code for one instruction set, run by some threads."""

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "native code for this machine"
    compiler_modules: ClassVar[tuple[str, ...]] = (
        "rlx.pipeline",
        "rlx.backends.cpu.program.build",
        "rlx.backends.cpu.schedule.kernels",
    )
    is_default: ClassVar[bool] = True
    times_kernels: ClassVar[bool] = True
    updates_host_arrays: ClassVar[bool] = True

    variant: str = "host"
    threads: int | None = None
    """As many as there are cores, where it is None."""
    cache: Cache | None = None
    """Of the code that all programs share."""

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> CpuBackend:
        """This backend for another instruction set (`host` is this machine's), or other threads."""
        if threads is not None and threads < 1:
            raise Error(f"threads is {threads}. Give a positive number, or None for all cores.")
        return CpuBackend(variant or "host", threads, cache)

    def target(self) -> Target:
        """The documented one on this machine: the vectors of the instruction set, and the prices
        that were measured here, if they were."""
        documented = Target.of("cpu")
        gate = documented.gate
        # Results are written where the caller reads them.
        gate = replace(gate, unified_readback_gb_s=gate.memory_gb_s)
        machine = replace(machine_of(isa(self.variant), documented.machine), gate=gate)
        numbers = self.calibrated(self.num_threads)
        return replace(documented, machine=numbers.applied(machine) if numbers else machine)

    # -- prices --------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        return isa(self.variant).name

    def measure(self, progress: Progress) -> tuple[Numbers, ...]:
        """For one thread, and for all."""
        from rlx.backends.cpu import calibration

        _require_llvm("measuring what kernels cost")
        return calibration.measure(isa(self.variant), (1, self.num_threads), progress)

    def calibrated(self, threads: int) -> Numbers | None:
        if self.cache is None:
            return None
        found = cached_calibration(self.name, self.architecture, self.cache)
        return found and found.for_threads(threads)

    # -- programs ------------------------------------------------------------------------------

    def has_special(self, op: str) -> bool:
        return self._kernels.has_special(op)

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        return self._kernels.candidates(step)

    def schedule(self, call: KernelCall) -> Schedule[Any] | Refusal:
        return self._kernels.schedule(call)

    def emit(self, call: KernelCall, schedule: Schedule[Any]) -> tuple[Source, ...]:
        return self._kernels.emit(schedule)

    @property
    def _kernels(self) -> CpuKernels:
        return self._kernels_on(self.target().machine)

    def _kernels_on(self, machine: Machine) -> CpuKernels:
        from rlx.backends.cpu.schedule.kernels import CpuKernels

        return CpuKernels(CpuMachine.of(isa(self.variant), machine))

    def program(self, lir: LirModule) -> KernelProgram:
        from rlx.pipeline import select_kernels

        return select_kernels(lir, self._kernels_on(lir.target.machine))

    def compile(self, lir: LirModule) -> CpuProgram:
        """The code that all programs share is made meanwhile, where it must be."""
        _require_llvm("target 'cpu'", "Without it the plan runs on NumPy: target='reference'.")
        _require_runs(isa(self.variant), f"target 'cpu:{self.variant}'")
        with support_under_way(self._support):
            artefact = self.build(self.program(lir))
        return self.load(artefact)

    def build(self, program: KernelProgram) -> Artefact:
        from rlx.backends.cpu.program.artefact import compiled

        _require_llvm("target 'cpu'", "Without it the plan runs on NumPy: target='reference'.")
        return compiled(program, isa(self.variant))

    def load(self, artefact: Artefact) -> CpuProgram:
        _require_runs(isa(artefact.isa), artefact.interface.name)
        return CpuProgram(artefact, self.num_threads, self.support_code())

    def timed(self, lir: LirModule) -> TimedProgram:
        from rlx.backends.cpu.program.timed_build import TimedProgram

        _require_llvm("timing kernels")
        program = self.program(lir)
        return TimedProgram(program, isa(self.variant), self.num_threads, self.support_code())

    def description(self, lir: LirModule) -> Steps:
        from rlx.backends.cpu.description import describe

        return describe(self.program(lir), self.num_threads)

    def splits(self, lir: LirModule, sizes: Mapping[str, int]) -> dict[Node, bool]:
        from rlx.backends.cpu.schedule.parallel import splits

        return splits(self.program(lir), sizes)

    def _support(self) -> Blob:
        return cached_blob(support_key(), compiled_support, self.cache, "native calls")

    def serializer(self) -> Serializer[CpuProgram]:
        return _Files(self)

    def support_code(self) -> Support:
        """What all programs share, loaded."""
        return support(self._support)

    @property
    def identity(self) -> str:
        return f"{self.name} {isa(self.variant).name}"

    def call_path(self) -> str:
        why = why_not_bound()
        return "calls are bound by native code" if why is None else f"{SLOW_CALLS}: {why}"

    def runner(self) -> Runner:
        slow = "" if why_not_bound() is None else self.call_path()
        return Runner("native code", self.num_threads, slow)

    @property
    def asked_threads(self) -> int | None:
        return self.threads

    @property
    def num_threads(self) -> int:
        return self.threads or default_threads()

    def missing(self) -> Missing | None:
        if find_spec("llvmlite") is None:
            return Missing("llvmlite is not installed", "pip install 'rlx[cpu]'")
        why = self.why_never_here()
        return None if why is None else Missing(why)

    def why_never_here(self) -> str | None:
        """An instruction set that is named must be there; any other machine has its own."""
        if self.variant != "host":
            return None
        return why_no_native_code(this_system(), self.cache)


@dataclass(frozen=True, slots=True)
class _Files(Serializer[CpuProgram]):
    """Programs in files: the code of the plan, and the code that all programs share."""

    backend: CpuBackend

    def stored(self, program: CpuProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        from rlx.backends.cpu.runtime.serialize import packed

        head, sections = packed(program.artefact)
        head["support"] = support_key()
        return head, {**sections, "support": self.backend.support_code().blob.to_bytes()}

    def opened(self, head: dict[str, Any], file: Sections) -> CpuProgram:
        from rlx.backends.cpu.runtime.serialize import opened

        artefact = opened(head, file)
        _require_runs(isa(artefact.isa), file.name)
        held = Blob.from_bytes(bytes(file.section("support")))
        is_same = head.get("support") == support_key()
        shared = support(lambda: held) if is_same else self.backend.support_code()
        return CpuProgram(artefact, self.backend.num_threads, shared)


def _require_llvm(what: str, instead: str = "") -> None:
    if find_spec("llvmlite") is None:
        said = f"{what} makes native code, for which llvmlite is needed: pip install 'rlx[cpu]'."
        raise UnsupportedError(f"{said} {instead}".rstrip())


def _require_runs(wanted: Isa, what: str) -> None:
    why = why_not(wanted)
    if why:
        raise UnsupportedError(f"{what} cannot run here: {why}. Compile for this machine.")


backend = CpuBackend()
