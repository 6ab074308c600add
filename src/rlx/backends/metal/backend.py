"""The backend of Apple's GPUs: SIMT programs as MSL, compiled and run by Metal.

It has never been run on a Mac: what is printed is compiled for the host and run there in tests,
through a stand-in of Metal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.base import Missing
from rlx.backends.gpu.backend import GpuBackend, device_number
from rlx.backends.gpu.device import Code, Devices
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.metal.library import INSTALL, open_metal
from rlx.backends.metal.machine import FAMILIES, Family, family
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error
from rlx.core.tune import Tune
from rlx.program.program import Program

if TYPE_CHECKING:
    from rlx.backends.metal.device import MetalDevice

DEFAULT = FAMILIES["apple8"]
"""What is compiled for where there is no device."""
UNTRIED = "It has never been run on a Mac."


@dataclass(frozen=True, slots=True)
class MetalBackend(GpuBackend):
    """One device, or a family that code is printed for without one."""

    name: ClassVar[str] = "metal"
    summary: ClassVar[str] = f"Apple GPUs, by MSL and Metal. {UNTRIED}"

    variant: str = ""
    """The number of a device; or a family such as apple9, to compile for another machine."""
    cache: Cache | None = None
    tune: Tune = "bitwise"

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> MetalBackend:
        self._check_threads(threads)
        if device_number(variant) is None:
            family(variant)
        return replace(self, variant=variant, cache=cache)

    def tuned(self, tune: Tune) -> MetalBackend:
        return replace(self, tune=tune)

    def missing(self) -> Missing | None:
        try:
            self.device()
        except Error as error:
            return Missing(f"{error} {UNTRIED}", INSTALL if INSTALL in str(error) else "")
        return None

    def devices(self) -> tuple[str, ...]:
        """Those that Metal shows, whether they can be used or not."""
        try:
            metal = open_metal()
            found = enumerate(metal.devices())
            return tuple(f"metal:{i} {d.name()}, macOS {metal.system}" for i, d in found)
        except Error:
            return ()

    def device(self) -> MetalDevice:
        return _DEVICES[self._number]

    @property
    def _compiled_for(self) -> Family | None:
        """The family, where it is not a device's."""
        if device_number(self.variant) is None:
            return family(self.variant)
        return DEFAULT if self.missing() else None

    @property
    def architecture(self) -> str:
        found = self._compiled_for
        return self.device().architecture if found is None else found.name

    @property
    def machine(self) -> GpuMachine:
        found = self._compiled_for
        return self.device().machine if found is None else found.machine

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        from rlx.backends.metal.device import print_code

        found = self._compiled_for
        if found is None:
            return self.device().assemble(programs)
        return [print_code(p, found) for p in programs]


def _opened(number: int) -> MetalDevice:
    from rlx.backends.metal.device import MetalDevice

    return MetalDevice(number)


_DEVICES = Devices(_opened)
backend = MetalBackend()
