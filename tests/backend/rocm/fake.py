"""HIP on host memory, for tests without a GPU: CUDA's stand-in under HIP's names.

Device memory is host memory, and a launch runs what was printed of the program whose code object
was loaded (`emulate.py`), so that whole models run as they would on a device.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlx.backends.cuda.library import SIGNATURES, TYPES
from rlx.backends.gpu.device import Code
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.rocm.architecture import ARCHITECTURES
from rlx.backends.rocm.backend import RocmBackend
from rlx.backends.rocm.context import ARCHITECTURE_AT, LDS_AT, PROCESSORS_AT
from rlx.backends.rocm.device import HipDevice
from rlx.backends.rocm.library import NAMES, OWN, HipLibrary
from rlx.backends.rocm.metadata import facts
from rlx.program.program import Program
from tests.backend.cuda.fake import FakeCuda, put
from tests.backend.rocm import emulate
from tests.backend.rocm.programs import small

CUDA_NAMES: Mapping[str, str] = {hip: cuda for cuda, hip in NAMES.items()}
ERRORS = {2: (b"hipErrorOutOfMemory", b"out of memory"), 719: (b"hipErrorLaunchFailure", b"failed")}


@dataclass
class FakeHip(FakeCuda):
    """Devices of an architecture."""

    architecture: str = "gfx1100"
    programs: dict[bytes, Program] = field(default_factory=dict[bytes, Program])
    """By code object."""
    loaded: dict[int, bytes] = field(default_factory=dict[int, bytes])
    functions: dict[int, Program] = field(default_factory=dict[int, Program])
    device: int = 0
    devices_of_calls: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Each call with the device that was current."""

    def library(self) -> HipLibrary:
        return HipLibrary(_Handle(self))

    # -- HIP's own functions ---------------------------------------------------------------------

    def GetDevice(self, to: int) -> None:
        put(to, self.device, ctypes.c_int)

    def SetDevice(self, number: int) -> None:
        self.device = number

    def GetDevicePropertiesR0600(self, to: int, number: int) -> None:
        struct.pack_into("<i", _bytes(to), PROCESSORS_AT, 5)
        struct.pack_into("<Q", _bytes(to), LDS_AT, 64 << 10)
        name = self.architecture.encode() + b":sramecc+:xnack-\0"
        ctypes.memmove(to + ARCHITECTURE_AT, name, len(name))

    def DriverGetVersion(self, to: int) -> None:
        put(to, 60_443_484, ctypes.c_int)

    def ModuleLoadData(self, to: int, image: int) -> None:
        (start,) = struct.unpack_from("<Q", ctypes.string_at(image, 64), 0x28)
        (count,) = struct.unpack_from("<H", ctypes.string_at(image, 64), 0x3C)
        number = self.handle()
        self.loaded[number] = ctypes.string_at(image, start + 64 * count)
        put(to, number)

    def ModuleGetFunction(self, to: int, module: int, name: bytes) -> None:
        binary = self.loaded[module]
        assert facts(binary).name == name.decode()
        number = self.handle()
        self.functions[number] = self.programs[binary]
        put(to, number)

    def ModuleLaunchKernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
        stream: int, parameters: int, extra: int,
    ) -> None:  # fmt: skip
        program = self.functions[function]
        assert (bx, by, bz, shared) == (program.block, 1, 1, 0)
        pointers = (ctypes.c_void_p * 64).from_address(parameters)
        kinds = [8] * len(program.buffers) + [s.value.dtype.itemsize for s in program.scalars]
        given = [_number(pointers[i], size) for i, size in enumerate(kinds)]
        target = ARCHITECTURES[self.architecture]
        self.do(lambda: emulate.launch_at(program, target, (gx, gy, gz), given), stream)


def _bytes(address: int) -> Any:
    return (ctypes.c_char * 1472).from_address(address)


def _number(address: int | None, size: int) -> int:
    assert address is not None
    return int.from_bytes(ctypes.string_at(address, size), "little", signed=True)


class _Text:
    """A function that returns a text of an error."""

    def __init__(self, part: int) -> None:
        self.part = part

    def __call__(self, code: int) -> bytes:
        return ERRORS.get(code, (b"hipError%d" % code, b"?"))[self.part]


class _Handle:
    """What ctypes.CDLL gives."""

    def __init__(self, hip: FakeHip) -> None:
        self._hip = hip

    def __getattr__(self, name: str) -> Any:
        hip = self._hip
        if name in hip.absent:
            raise AttributeError(name)
        if name.startswith("hipGetError"):
            return _Text(int(name.endswith("String")))
        cuda = CUDA_NAMES.get(name, "")
        method = getattr(hip, (cuda or name).removeprefix("cu").removeprefix("hip"), None)
        kinds = OWN[name] if name in OWN else SIGNATURES[cuda]

        def called(*args: Any) -> int:
            hip.calls.append(name)
            hip.devices_of_calls.append((name, hip.device))
            if name in hip.fail:
                return hip.fail[name]
            return (method(*args) or 0) if method is not None else 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[t] for t in kinds))(called)
        setattr(self, name, made)
        return made


class EmulatedDevice(HipDevice):
    """A device whose launches run on the host."""

    def __init__(self, hip: FakeHip, number: int = 0) -> None:
        self.hip = hip
        super().__init__(number, hip.library())

    def assemble(self, programs: Any) -> list[Code]:
        programs = list(programs)
        made = super().assemble(programs)
        self.hip.programs.update((c.binary, p) for c, p in zip(made, programs))
        return made


class EmulatedBackend(RocmBackend):
    """The backend on a device whose launches run on the host, with small blocks."""

    def __init__(self, hip: FakeHip) -> None:
        super().__init__(tune="off")  # what an emulated launch takes says nothing
        object.__setattr__(self, "_made", EmulatedDevice(hip))

    def missing(self) -> None:
        return None

    def device(self) -> EmulatedDevice:
        return object.__getattribute__(self, "_made")

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        return self.device().assemble(programs)

    @property
    def machine(self) -> GpuMachine:
        return small(self.device().target)
