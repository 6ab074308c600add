"""The backend of GPUs on a device that is simulated: whole programs without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from rlx.backends.gpu.backend import GpuBackend
from rlx.backends.gpu.device import Code, Device
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.runtime.program import GpuProgram
from rlx.backends.gpu.simulated import SIMULATED, SimulatedDevice
from rlx.core.disk_cache import Cache
from rlx.core.dtype import DType
from rlx.core.tune import Tune
from rlx.cost.target import Target
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from rlx.program.program import Program

Array = np.ndarray[Any, Any]
NO_F64 = dict.fromkeys((DType.F64, DType.C128), "the simulated device has no 64-bit floats")


class SimulatedBackend(GpuBackend):
    """CUDA's target on a simulated device."""

    name: ClassVar[str] = "cuda"

    def __init__(
        self, machine: GpuMachine = SIMULATED, cache: Cache | None = None, tune: Tune = "off"
    ) -> None:
        self._device, self.cache, self.tune = SimulatedDevice(machine), cache, tune

    @property
    def machine(self) -> GpuMachine:
        return self._device.machine

    def target(self) -> Target:
        """Without the dtypes that the machine does not have."""
        made = super().target()
        return made if self.machine.has_f64 else replace(made, missing_dtypes=NO_F64)

    def device(self) -> Device:
        return self._device

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        return self._device.assemble(programs)

    def configured(self, variant: str, threads: int | None, cache: Any = None) -> SimulatedBackend:
        return self

    @property
    def architecture(self) -> str:
        return self._device.architecture


def program_of(graph: Graph, backend: GpuBackend) -> GpuProgram:
    return backend.load(
        backend.build(backend.program(CompilePipeline(backend.target()).compile(graph).lir))
    )


def outputs(
    graph: Graph, values: Mapping[str, Array], backend: GpuBackend, calls: int = 1
) -> list[Array]:
    """What the last of some calls gives: from the third on, recorded graphs are replayed."""
    program = program_of(graph, backend)
    weights = program.prepare(
        {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}, None
    )
    inputs = [np.asarray(values[n.attrs["name"]]) for n in graph.inputs]
    made: list[Array] = []
    for _ in range(calls):
        made = program.run(weights, inputs, [None] * len(graph.outputs))
    return made


def differences(graph: Graph, values: Mapping[str, Array], got: Sequence[Array]) -> list[str]:
    return [m.message for m in compare("gpu", Expected(graph, values), got)]
