"""The backend of WebGPU: SIMT programs as WGSL, run by the package wgpu on any adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.base import Missing
from rlx.backends.gpu.backend import GpuBackend, device_number
from rlx.backends.gpu.device import Code, Devices
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.wgpu.adapters import NO_ADAPTER, NO_PACKAGE, adapters
from rlx.backends.wgpu.machine import DEFAULT, Architecture, named_architecture
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error
from rlx.core.tune import Tune
from rlx.cost.machine import SOFTWARE_GPU

if TYPE_CHECKING:
    from rlx.backends.gpu.runtime.calibration import Effort
    from rlx.backends.wgpu.device import WgpuDevice
    from rlx.cost.target import Target
    from rlx.program.program import Program


@dataclass(frozen=True, slots=True)
class WgpuBackend(GpuBackend):
    """One adapter, or an architecture that code is printed for without one."""

    name: ClassVar[str] = "wgpu"
    binds_spans: ClassVar[bool] = True
    summary: ClassVar[str] = "any GPU, by WebGPU on Vulkan, Metal, Direct3D 12 or OpenGL"

    variant: str = ""
    """The number of an adapter; or an architecture, such as "web" for what every browser has."""
    cache: Cache | None = None
    tune: Tune = "bitwise"

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> WgpuBackend:
        self._check_threads(threads)
        if device_number(variant) is None:
            named_architecture(variant)
        return replace(self, variant=variant, cache=cache)

    def tuned(self, tune: Tune) -> WgpuBackend:
        return replace(self, tune=tune)

    def missing(self) -> Missing | None:
        if find_spec("wgpu") is None:
            return NO_PACKAGE
        try:
            self.device()
        except Error as error:
            is_none = str(error).startswith(NO_ADAPTER.reason)
            return NO_ADAPTER if is_none else Missing(str(error))
        return None

    def devices(self) -> tuple[str, ...]:
        """Those that wgpu shows, whether they can be used or not."""
        try:
            return tuple(map(str, adapters()))
        except Error:
            return ()

    def device(self) -> WgpuDevice:
        return _DEVICES[self._number]

    @property
    def _compiled_for(self) -> Architecture | None:
        """The architecture, where it is not a device's."""
        if device_number(self.variant) is None:
            return named_architecture(self.variant)
        return None if self.has_device else DEFAULT

    @property
    def target_architecture(self) -> Architecture:
        """What code is printed for."""
        return self._compiled_for or self.device().target

    @property
    def architecture(self) -> str:
        return self.target_architecture.name

    def runs_code_for(self, architecture: str) -> bool:
        """Code that asks for no more than what is here runs, too."""
        return self.target_architecture.runs(named_architecture(architecture))

    @property
    def machine(self) -> GpuMachine:
        return self.target_architecture.machine

    @property
    def _documented(self) -> Target:
        made = super(WgpuBackend, self)._documented
        if not self.target_architecture.is_software:
            return made
        return replace(made, machine=SOFTWARE_GPU)

    @property
    def effort(self) -> Effort:
        """What fits a binding; less where the host does all of it."""
        from rlx.backends.gpu.runtime.calibration import Effort

        most = self.device().limits.max_bytes
        if self.target_architecture.is_software:
            return Effort(5, 4, 20, min(most, 1 << 25), 4 << 20, 128, 2)
        return Effort(memory_bytes=min(most, Effort().memory_bytes))

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        from rlx.backends.wgpu.assemble import assemble

        return assemble(programs, self.target_architecture)


def _opened(number: int) -> WgpuDevice:
    from rlx.backends.wgpu.device import WgpuDevice

    return WgpuDevice(number)


_DEVICES = Devices(_opened)
backend = WgpuBackend()
