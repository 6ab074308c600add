"""The backend of jax: TPUs where it has some, else its processor; and TPUs that are not here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.backends.base import Missing, Serializer, Steps
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.tpu import topology
from rlx.backends.tpu.mesh.given import axes_of, jax_mesh
from rlx.backends.tpu.topology import Topology, devices_here
from rlx.core.disk_cache import Cache
from rlx.core.errors import UnsupportedError
from rlx.cost.target import Target
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph

if TYPE_CHECKING:
    from rlx.backends.engine.module import Module
    from rlx.backends.tpu.engine import JaxEngine
    from rlx.backends.tpu.program import TpuProgram

LOG = logging.getLogger("rlx")
NO_TPU = "jax finds no TPU here"
NO_PACKAGE = Missing("the package jax is not installed", "pip install 'rlx[tpu]'")


@dataclass(frozen=True, slots=True)
class TpuBackend(EngineBackend):
    """Functions that XLA compiles."""

    name: ClassVar[str] = "tpu"
    package: ClassVar[str] = "jax"
    summary: ClassVar[str] = "TPUs by jax and XLA, or their processor where there is none"

    variant: str = ""
    """"cpu" for jax's processor where there are TPUs, too; "v5e:2x2" for TPUs that are not here."""
    cache: Cache | None = None
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    """Axes of devices that run one program."""
    given: tuple[Any, ...] = ()
    """The devices of a mesh of jax's, in its order."""
    donated: tuple[str, ...] = ()
    """Inputs that a call may consume."""

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> TpuBackend:
        self._check_threads(threads)
        if variant not in ("", "cpu"):
            Topology.of(variant)
        return replace(self, variant=variant, cache=cache)

    def meshed(self, mesh: Any) -> TpuBackend:
        devices: Any = getattr(mesh, "devices", None)
        return replace(self, mesh=axes_of(mesh), given=() if devices is None else (*devices.flat,))

    def donating(self, inputs: Collection[str]) -> TpuBackend:
        return replace(self, donated=tuple(sorted(set(inputs))))

    def as_was(self, mesh: Any, donated: Any) -> TpuBackend:
        """As it was when a program was written to a file."""
        return replace(self, mesh=axes_of(mesh), donated=tuple(map(str, donated)))

    @property
    def settings(self) -> str:
        return " ".join(self.donated)

    def missing(self) -> Missing | None:
        if find_spec("jax") is None:
            return NO_PACKAGE
        return topology.missing() if self.is_compile_only else None

    @property
    def is_compile_only(self) -> bool:
        return self.variant not in ("", "cpu")

    @property
    def documented(self) -> Target:
        made = replace(Target.of("tpu"), mesh=self.mesh)
        if not self.is_compile_only:
            return made
        return replace(made, machine=Topology.of(self.variant).generation.machine(made.machine))

    def devices(self) -> tuple[str, ...]:
        """TPUs, or that there is none."""
        if self.missing():
            return ()
        device = self.opened().device
        if device.platform == "tpu":
            return (f"tpu: {device.device_kind}",)
        return (f"tpu: {NO_TPU}, and XLA compiles for the processor",)

    def opened(self) -> JaxEngine:
        return _engine(self.variant)

    def engine_of(self, graph: Graph) -> JaxEngine:
        """A mesh has an engine for each graph, as it knows where its values lie; and so has a
        program that consumes inputs."""
        from rlx.backends.tpu.engine import JaxEngine

        engine = self.engine()
        assert isinstance(engine, JaxEngine)
        if prod(self.mesh.values()) == 1:
            return JaxEngine(engine.device) if self.donated or graph.updates else engine
        if graph.states:
            raise UnsupportedError(
                f"{graph.name}: it has states, and those of a session are on one device. Leave "
                "mesh out."
            )
        from rlx.backends.tpu.mesh.engine import MeshEngine

        return MeshEngine(jax_mesh(self.mesh, list(self.given) or self._devices()), graph)

    def _devices(self) -> list[Any]:
        if self.is_compile_only:
            return Topology.of(self.variant, prod(self.mesh.values())).devices()
        return _devices(self.variant)

    def compile(self, lir: LirModule) -> TpuProgram:
        """For the mesh that the plan was made for."""
        from rlx.backends.engine.module import Module

        program = replace(self, mesh=lir.target.mesh).load(Module.of(lir))
        if self.is_compile_only:
            program.code_facts(lir.plan.representative)
        return program

    def load(self, module: Module) -> TpuProgram:
        program = self.unbuilt(module)
        program.build()
        return program

    def serializer(self) -> Serializer[Any]:
        from rlx.backends.tpu.files import Files

        return Files(self)

    def unbuilt(self, module: Module) -> TpuProgram:
        """A program that has no functions yet."""
        from rlx.backends.tpu.program import AheadProgram, TpuProgram, donations

        engine = self.engine_of(module.graph)
        if self.is_compile_only:
            where = Topology.of(self.variant, len(engine.all_devices))
            program = AheadProgram(module, engine, where)
        else:
            program = TpuProgram(module, engine)
        if self.donated or module.graph.updates:
            engine.donated = donations(program, self.donated)
        return program

    def description(self, lir: LirModule) -> Steps:
        from rlx.backends.tpu.mesh.description import with_shardings

        return with_shardings(EngineBackend.description(self, lir), lir)


@functools.cache
def _engine(variant: str) -> JaxEngine:
    from rlx.backends.tpu.engine import JaxEngine

    return JaxEngine(_devices(variant)[0])


def _devices(variant: str) -> list[Any]:
    """TPUs, or as many processors as jax was told to have."""
    if variant not in ("", "cpu"):
        return Topology.of(variant).devices()
    found = [d for d in devices_here() if d.platform == "tpu"] if variant == "" else []
    if not found and variant == "":
        LOG.info("target tpu: %s; the processor runs it", NO_TPU)
    return found or devices_here("cpu")


backend = TpuBackend()
