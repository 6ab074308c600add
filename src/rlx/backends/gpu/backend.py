"""Backends of GPUs: kernels are selected, scheduled and emitted alike; a device runs them.

A target's own part is its device, how code is printed for it, and its prices.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from rlx.backends.base import KernelBackend, Serializer, StepFacts, Steps
from rlx.backends.gpu.device import Code, Device
from rlx.backends.gpu.kernels import GpuKernels
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.runtime.lay_out import lay_out, programs_of
from rlx.backends.gpu.runtime.program import GpuProgram
from rlx.backends.gpu.runtime.routine import Artefact
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.verify import verify
from rlx.core.errors import Error
from rlx.core.sections import Bytes, Sections
from rlx.cost.calibrate import Numbers, Progress
from rlx.cost.target import Target
from rlx.ir.lir import LirModule
from rlx.kernel.program.program import KernelCall, KernelProgram, KernelSequence, Step
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.program.select import Candidate
from rlx.kernel.refusal import Refusal


class GpuBackend(KernelBackend[tuple[Program, ...], Artefact]):
    """Kernels as SIMT programs, on one device."""

    @property
    @abstractmethod
    def machine(self) -> GpuMachine:
        """The numbers and capabilities that schedules depend on."""

    @abstractmethod
    def device(self) -> Device:
        """What runs them; an error says why there is none."""

    @abstractmethod
    def assemble(self, programs: list[Program]) -> list[Code]:
        """Verified programs as code, in order."""

    # -- kernels ---------------------------------------------------------------------------------

    @property
    def kernels(self) -> GpuKernels:
        return GpuKernels(self.machine)

    def target(self) -> Target:
        """The documented one, whose claims follow from the kernels there are."""
        return Target.of(self.name)

    def has_special(self, op: str) -> bool:
        return self.kernels.has_special(op)

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        return self.kernels.candidates(step)

    def schedule(self, call: KernelCall) -> Schedule[Any] | Refusal:
        return self.kernels.schedule(call)

    def emit(self, call: KernelCall, schedule: Schedule[Any]) -> tuple[Program, ...]:
        return self.kernels.emit(schedule)

    # -- programs --------------------------------------------------------------------------------

    def program(self, lir: LirModule) -> KernelProgram:
        from rlx.pipeline import select_kernels

        return select_kernels(lir, self.kernels)

    def build(self, program: KernelProgram) -> Artefact:
        programs = programs_of(program)
        assembled = self.assemble([verify(p) for p in programs.values()])
        numbers = {key: i for i, key in enumerate(programs)}
        return lay_out(program, numbers, assembled, self.architecture)

    def load(self, artefact: Artefact) -> GpuProgram:
        return GpuProgram(artefact, self.device())

    def serializer(self) -> Serializer[GpuProgram]:
        return _Files(self)

    def measure(self, progress: Progress) -> tuple[Numbers, ...]:
        from rlx.backends.gpu.runtime.calibration import measure

        return measure(self.device(), progress)

    def description(self, lir: LirModule) -> Steps:
        """Each step's form with the launches that it makes."""
        main = self.program(lir).main
        return {
            s.node: StepFacts(
                s.lowering.form.value, tuple(t.text({}) for t in s.lowering.schedule.tasks)
            )
            for s in (*main.prologue, *main.calls)
            if isinstance(s.lowering, KernelSequence)
        }


@dataclass(frozen=True, slots=True)
class _Files(Serializer[GpuProgram]):
    """Programs in files: code for one architecture, which nothing has to compile again."""

    backend: GpuBackend

    def stored(self, program: GpuProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        from rlx.backends.gpu.runtime.serialize import packed

        return packed(program.artefact)

    def opened(self, head: dict[str, Any], file: Sections) -> GpuProgram:
        from rlx.backends.gpu.runtime.serialize import opened

        artefact = opened(head, file)
        here = self.backend.architecture
        if artefact.architecture != here:
            raise Error(
                f"{file.name} holds code for {artefact.architecture}, and the device is {here}. "
                "Compile the model on this machine."
            )
        return self.backend.load(artefact)
