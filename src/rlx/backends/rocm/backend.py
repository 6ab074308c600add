"""The backend of AMD's GPUs: SIMT programs through LLVM, run by HIP.

It has never been run on an AMD GPU: code is verified, assembled and checked, and what is printed
runs on the host in tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.base import Missing
from rlx.backends.gpu.backend import GpuBackend, device_number
from rlx.backends.gpu.device import Code, Devices
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.rocm.architecture import ARCHITECTURES, Architecture, architecture
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.core.tune import Tune
from rlx.program.program import Program

if TYPE_CHECKING:
    from rlx.backends.rocm.device import HipDevice

DEFAULT = ARCHITECTURES["gfx942"]
"""What is compiled for where there is no device."""
UNTRIED = "It has never been run on an AMD GPU."
NO_LLVM = Missing("llvmlite is not installed", "pip install 'rlx[rocm]'")


@dataclass(frozen=True, slots=True)
class RocmBackend(GpuBackend):
    """One device, or an architecture that code is assembled for without one."""

    name: ClassVar[str] = "rocm"
    summary: ClassVar[str] = f"AMD GPUs, by LLVM and HIP. {UNTRIED}"

    variant: str = ""
    """The number of a device; or an architecture such as gfx942, to compile for another machine."""
    cache: Cache | None = None
    tune: Tune = "bitwise"

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> RocmBackend:
        self._check_threads(threads)
        if device_number(variant) is None:
            architecture(variant)
        return replace(self, variant=variant, cache=cache)

    def tuned(self, tune: Tune) -> RocmBackend:
        return replace(self, tune=tune)

    def missing(self) -> Missing | None:
        if find_spec("llvmlite") is None:
            return NO_LLVM
        try:
            self.device()
        except Error as error:
            return Missing(f"{error} {UNTRIED}")
        return None

    def devices(self) -> tuple[str, ...]:
        """Those that HIP shows, whether they can be used or not."""
        from rlx.backends.rocm.context import shown_devices
        from rlx.backends.rocm.library import open_library

        try:
            library = open_library()
            return tuple(f"{d}, HIP {library.version}" for d in shown_devices(library))
        except Error:
            return ()

    def device(self) -> HipDevice:
        return _DEVICES[self._number]

    @property
    def _compiled_for(self) -> Architecture | None:
        """The architecture, where it is not a device's."""
        if device_number(self.variant) is None:
            return architecture(self.variant)
        return DEFAULT if self.missing() else None

    @property
    def target_architecture(self) -> Architecture:
        """What code is generated for."""
        return self._compiled_for or self.device().target

    @property
    def architecture(self) -> str:
        return self.target_architecture.name

    @property
    def machine(self) -> GpuMachine:
        found = self._compiled_for
        return self.device().machine if found is None else found.machine

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        if find_spec("llvmlite") is None:
            raise UnsupportedError(
                f"target 'rocm' generates code with LLVM: {NO_LLVM.reason}; {NO_LLVM.command}."
            )
        from rlx.backends.rocm.amdgcn.assemble import assemble

        return assemble(programs, self.target_architecture)


def _opened(number: int) -> HipDevice:
    from rlx.backends.rocm.device import HipDevice

    return HipDevice(number)


_DEVICES = Devices(_opened)
backend = RocmBackend()
