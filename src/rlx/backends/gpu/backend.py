"""Backends of GPUs: kernels are selected, scheduled and emitted alike; a device runs them.

A target's own part is its device, how code is printed for it, and its prices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.backends.base import KernelBackend, Serializer, Steps
from rlx.backends.gpu.device import VECTOR_BYTES, Code, Device
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error
from rlx.core.sections import Bytes, Sections
from rlx.core.tune import Tune
from rlx.cost.calibrate import Numbers, Progress, cached_calibration, note_name
from rlx.cost.target import Target
from rlx.ir.lir import LirModule

if TYPE_CHECKING:
    from rlx.backends.gpu.code import Assembled
    from rlx.backends.gpu.kernels import GpuKernels
    from rlx.backends.gpu.runtime.calibration import Effort
    from rlx.backends.gpu.runtime.program import GpuProgram
    from rlx.backends.gpu.runtime.routine import Artefact
    from rlx.backends.gpu.runtime.timed import TimedProgram
    from rlx.backends.gpu.search import Search
    from rlx.kernel.program.program import KernelCall, KernelProgram, Step
    from rlx.kernel.program.schedule import Schedule
    from rlx.kernel.program.select import Candidate
    from rlx.kernel.refusal import Refusal
    from rlx.program.program import Program


ROW_LOADS = 128
"""Of a row, by a thread that others spare the rest of it."""


class GpuBackend(KernelBackend["tuple[Program, ...]", "Artefact"]):
    """Kernels as SIMT programs, on one device."""

    has_devices: ClassVar[bool] = True
    times_kernels: ClassVar[bool] = True
    binds_spans: ClassVar[bool] = False
    """Must its device know which bytes a launch may touch?"""
    variant: str = ""
    """The number of a device, or an architecture that code is printed for without one."""
    cache: Cache | None = None
    """Of what was measured."""
    tune: Tune = "bitwise"
    """How schedules are searched."""

    @property
    @abstractmethod
    def machine(self) -> GpuMachine:
        """The numbers and capabilities that schedules depend on."""

    @abstractmethod
    def device(self) -> Device:
        """What runs them; an error says why there is none."""

    @property
    def _number(self) -> int:
        """Of the device; an error where there is an architecture instead of one."""
        number = device_number(self.variant)
        if number is None:
            raise Error(
                f"target '{self.name}:{self.variant}' is an architecture: code is printed for it, "
                f"and nothing is loaded. For a program that runs or is saved, use "
                f"target='{self.name}', or '{self.name}:0' for the first device, on a machine that "
                "has one."
            )
        return number

    def _check_threads(self, threads: int | None) -> None:
        """A device has its own."""
        if threads is not None:
            raise Error(
                f"threads is {threads}; target '{self.name}' runs on the device. Leave it out."
            )

    @property
    def has_device(self) -> bool:
        """Is there one? Nothing waits for what using it takes, as `missing` does."""
        try:
            self.device()
        except Error:
            return False
        return True

    @abstractmethod
    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        """Verified programs as code, in order, perhaps while others are written."""

    @property
    def identity(self) -> str:
        """The driver's assembler makes the code, and schedules are chosen by the processors and the
        shared memory that there are: parts of a device have fewer under the same name."""
        machine, driver = self.machine, self.device().driver if self.has_device else ""
        parts = self.name, self.hardware, driver, machine.processors, machine.shared_bytes
        return f"{' '.join(map(str, parts))} tune={self.tune}"

    def runs_code_for(self, architecture: str) -> bool:
        """Does code that was made for an architecture run here?"""
        return architecture == self.architecture

    # -- kernels ---------------------------------------------------------------------------------

    @property
    def kernels(self) -> GpuKernels:
        from rlx.backends.gpu.kernels import GpuKernels

        return GpuKernels(self.machine)

    def target(self) -> Target:
        """The documented one, whose claims follow from the kernels there are, with the prices that
        were measured on the device, if they were."""
        documented, numbers = self._documented, self.calibrated(1)
        if numbers is None:
            return documented
        return replace(documented, machine=numbers.applied(documented.machine))

    @property
    def _documented(self) -> Target:
        """Where barriers do not pay, no kernel has a row of few for all of its threads."""
        made = Target.of(self.name)
        if self.machine.pays_barrier(ROW_LOADS):
            return made
        return replace(made, regions=made.regions - {"few_rows"})

    @property
    def alignment(self) -> int:
        """Vectors are accessed at multiples of their size."""
        return VECTOR_BYTES

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
        from rlx.backends.gpu.kernels import GpuKernels
        from rlx.backends.gpu.schedule.buckets import alternatives_of_each, named_products
        from rlx.pipeline import select_kernels

        most = alternatives_of_each(named_products(lir.mir.graph))
        return select_kernels(lir, GpuKernels(self.machine, most))

    def build(self, program: KernelProgram) -> Artefact:
        return self._laid_out(program, self._assembled(program))

    def _assembled(self, program: KernelProgram) -> Assembled:
        from rlx.backends.gpu.code import assembled

        return assembled(program, self.assemble, self.search)

    @property
    def search(self) -> Search | None:
        """What finds the fastest schedules on the device; none where there is no device, or nothing
        is to be searched."""
        from rlx.backends.gpu.search import Search

        if self.tune == "off" or not self.has_device:
            return None
        return Search(self.device(), self.cache, self.tune)

    def _laid_out(self, program: KernelProgram, made: Assembled) -> Artefact:
        from rlx.backends.gpu.runtime.lay_out import lay_out

        artefact = lay_out(program, made.numbers, made.codes, self.architecture)
        return replace(artefact, codegen_spans=made.spans)

    def load(self, artefact: Artefact) -> GpuProgram:
        from rlx.backends.gpu.runtime.program import GpuProgram

        return GpuProgram(artefact, self.device())

    def serializer(self) -> Serializer[GpuProgram]:
        return _Files(self)

    # -- measuring -------------------------------------------------------------------------------

    @property
    def hardware(self) -> str:
        return f"{self.device().name} {self.architecture}" if self.has_device else self.architecture

    def timed(self, lir: LirModule) -> TimedProgram:
        from rlx.backends.gpu.runtime.lay_out import owners_of
        from rlx.backends.gpu.runtime.timed import TimedProgram

        program = self.program(lir)
        made = self._assembled(program)
        artefact = self._laid_out(program, made)
        nodes = [s.node for s in program.main.calls]
        owners = owners_of(program, made.numbers, made.codes)
        return TimedProgram(artefact, self.device(), nodes, owners)

    def measure(self, progress: Progress) -> tuple[Numbers, ...]:
        from rlx.backends.gpu.runtime.calibration import measure

        return measure(self.device(), progress, self.effort)

    @property
    def effort(self) -> Effort | None:
        """How much is measured, where it is not the usual."""
        return None

    def calibrated(self, threads: int) -> Numbers | None:
        """Of the device, whatever the number of the host's threads."""
        if self.cache is None or self.cache.note(note_name(self.name)) is None:
            return None
        found = cached_calibration(self.name, self.hardware, self.cache)
        return found and found.for_threads(1)

    def description(self, lir: LirModule) -> Steps:
        from rlx.backends.gpu.description import describe

        return describe(self.program(lir), self.has_special, self.search)


def device_number(variant: str) -> int | None:
    """Of the device that a variant of a target names, the first if none; nothing where it names an
    architecture."""
    if not variant:
        return 0
    return int(variant) if variant.isascii() and variant.isdigit() else None


@dataclass(frozen=True, slots=True)
class _Files(Serializer["GpuProgram"]):
    """Programs in files: code for one architecture, which nothing has to compile again."""

    backend: GpuBackend

    def stored(self, program: GpuProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        from rlx.backends.gpu.runtime.serialize import packed

        return packed(program.artefact, has_spans=self.backend.binds_spans)

    def opened(self, head: dict[str, Any], file: Sections) -> GpuProgram:
        from rlx.backends.gpu.runtime.serialize import opened

        artefact, _ = opened(head, file), self.backend.device()
        here = self.backend.architecture
        if not self.backend.runs_code_for(artefact.architecture):
            raise Error(
                f"{file.name} holds code for {artefact.architecture}, and the device is {here}. "
                "Compile the model on this machine."
            )
        return self.backend.load(artefact)
