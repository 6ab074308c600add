"""Backends of whole-graph engines: the compiler plans, the engine compiles one function."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.backends.base import Backend, Serializer, Steps
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.core.sections import Bytes, Sections
from rlx.cost.calibrate import Numbers, Progress, cached_calibration, note_name
from rlx.cost.target import Target
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph

if TYPE_CHECKING:
    from rlx.backends.engine.engine import Engine
    from rlx.backends.engine.module import Module
    from rlx.backends.engine.program import EngineProgram
    from rlx.backends.engine.timed import TimedProgram


class EngineBackend(Backend):
    """A plan's steps as calls on the arrays of an engine."""

    times_kernels: ClassVar[bool] = True
    package: ClassVar[str]
    """What has to be installed."""
    variant: str = ""
    cache: Cache | None = None

    @abstractmethod
    def opened(self) -> Engine:
        """What compiles and runs, where its package is installed."""

    def engine(self) -> Engine:
        """What compiles and runs; an error says why there is none."""
        if missing := self.missing():
            raise UnsupportedError(
                f"target {self.name!r}: {missing.reason}: {missing.command}. Its plan runs on "
                f"NumPy meanwhile: rlx.compile(model, target='reference', like='{self.name}')."
            )
        return self.opened()

    def engine_of(self, graph: Graph) -> Engine:
        """What compiles and runs one planned graph."""
        return self.engine()

    @property
    def documented(self) -> Target:
        """The target with documented prices."""
        return Target.of(self.name)

    def target(self) -> Target:
        """The documented one, whose claims are the engine's calls, with measured prices."""
        documented, numbers = self.documented, self.calibrated(1)
        if numbers is None:
            return documented
        return replace(documented, machine=numbers.applied(documented.machine))

    @property
    def identity(self) -> str:
        """The engine's compiler makes the code."""
        version = "" if self.missing() else self.engine().version
        return f"{self.name} {self.variant} {version} {self.settings}"

    @property
    def settings(self) -> str:
        """What else its functions depend on."""
        return ""

    def _check_threads(self, threads: int | None) -> None:
        """An engine has its own."""
        if threads is not None:
            raise Error(
                f"threads is {threads}; target '{self.name}' runs on threads of {self.package}. "
                "Leave it out."
            )

    def compile(self, lir: LirModule) -> EngineProgram:
        from rlx.backends.engine.module import Module

        return self.load(Module.of(lir))

    def load(self, module: Module) -> EngineProgram:
        """What runs a planned graph, with all functions of fixed sizes compiled."""
        from rlx.backends.engine.program import EngineProgram

        program = EngineProgram(module, self.engine_of(module.graph))
        program.build()
        return program

    def serializer(self) -> Serializer[EngineProgram]:
        return PlanFiles(self)

    def timed(self, lir: LirModule) -> TimedProgram:
        from rlx.backends.engine.module import Module
        from rlx.backends.engine.program import EngineProgram
        from rlx.backends.engine.timed import TimedProgram

        program = EngineProgram(Module.of(lir), self.engine_of(lir.mir.graph))
        return TimedProgram(program, lir.plan.schedule)

    def measure(self, progress: Progress) -> tuple[Numbers, ...]:
        from rlx.backends.engine.calibration import measure

        return measure(self, progress)

    @property
    def architecture(self) -> str:
        return "" if self.missing() else self.engine().version

    def calibrated(self, threads: int) -> Numbers | None:
        if self.cache is None or self.cache.note(note_name(self.name)) is None:
            return None
        found = cached_calibration(self.name, self.hardware, self.cache)
        return found and found.for_threads(1)

    def description(self, lir: LirModule) -> Steps:
        """What runs where depends on the engine: without its package there is nothing to say."""
        from rlx.backends.engine.description import describe

        return {} if self.missing() else describe(lir, self.engine())


@dataclass(frozen=True, slots=True)
class PlanFiles(Serializer["EngineProgram"]):
    """Programs in files: the planned graph, which the engine compiles when it is opened."""

    backend: EngineBackend

    def stored(self, program: EngineProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        return {"engine": self.backend.name}, {"module": program.module.packed()}

    def opened(self, head: dict[str, Any], file: Sections) -> EngineProgram:
        from rlx.backends.engine.module import Module

        return self.backend.load(Module.unpacked(bytes(file.section("module")), file.name))
