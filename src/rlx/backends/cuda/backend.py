"""The backend of NVIDIA's GPUs: PTX of our own, assembled by the driver alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.base import Missing
from rlx.backends.cuda.context import check, found_devices
from rlx.backends.cuda.library import open_library
from rlx.backends.cuda.machine import GENERATIONS, HOPPER, architecture_of, machine_of
from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.gpu.backend import GpuBackend, device_number
from rlx.backends.gpu.device import Code, Devices
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error
from rlx.core.tune import Tune

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice
    from rlx.program.program import Program


@dataclass(frozen=True, slots=True)
class CudaBackend(GpuBackend):
    """One device, or an architecture that code is printed for without one."""

    name: ClassVar[str] = "cuda"
    summary: ClassVar[str] = "NVIDIA GPUs, by the driver alone"

    variant: str = ""
    """The number of a device; or an architecture such as sm_80, to compile for another machine."""
    cache: Cache | None = None
    tune: Tune = "bitwise"

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> CudaBackend:
        self._check_threads(threads)
        number = device_number(variant)
        if number is None:
            architecture_of(variant)
        else:
            with suppress(RuntimeError):  # no thread can be started: whoever needs it opens it
                threading.Thread(target=_open, args=(number,), name="rlx-open").start()
        return replace(self, variant=variant, cache=cache)

    def tuned(self, tune: Tune) -> CudaBackend:
        return replace(self, tune=tune)

    def missing(self) -> Missing | None:
        try:
            self.device().open()
        except Error as error:
            return Missing(str(error))
        return None

    def devices(self) -> tuple[str, ...]:
        """Those that the driver shows, whether they can be used or not."""
        try:
            library = open_library()
            return tuple(f"{d}, driver {library.version}" for d in found_devices(library))
        except Error:
            return ()

    def device(self) -> CudaDevice:
        return _DEVICES[self._number]

    @property
    def _compiled_for(self) -> Architecture | None:
        """The architecture, where it is not a device's."""
        if device_number(self.variant) is None:
            return architecture_of(self.variant)
        return None if self.has_device else GENERATIONS[HOPPER].architecture

    @property
    def architecture(self) -> str:
        found = self._compiled_for
        return self.device().architecture if found is None else found.name

    @property
    def machine(self) -> GpuMachine:
        found = self._compiled_for
        return self.device().machine if found is None else machine_of(found.capability)

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        found = self._compiled_for
        if found is None:
            return self.device().assemble(programs)
        from rlx.backends.cuda.assemble import print_code

        return [print_code(p, found) for p in programs]


def _open(number: int) -> None:
    """Open a device that is about to be used. The driver takes 0.2 to 0.3 s, in which it holds no
    lock of the interpreter: modules are imported, and programs read or compiled, meanwhile. An
    error is whoever's who needs the device."""
    with suppress(Error):
        check(open_library(), "cuInit", 0)
        _DEVICES[number].open()


def _device(number: int) -> CudaDevice:
    from rlx.backends.cuda.device import CudaDevice

    return CudaDevice(number)


_DEVICES = Devices(_device)
backend = CudaBackend()
