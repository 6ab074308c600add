"""Windows on x86-64. Its calling convention is its own: code for it is another."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.base import CodeMemory, System, address_of, refused

_COMMIT_AND_RESERVE, _RELEASE = 0x3000, 0x8000
_READ_WRITE, _READ_EXECUTE = 0x04, 0x20
_AVX2 = 40
"""PF_AVX2_INSTRUCTIONS_AVAILABLE. Windows names no parts of AVX-512, which is not used there."""
_LEVELS = {
    _AVX2: (
        "pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm", "avx", "avx2", "bmi1",
        "bmi2", "f16c", "fma", "abm", "movbe", "xsave",
    ),
}  # fmt: skip
"""What processors have that Windows reports a feature of: AVX2 came with or after all of these."""
_KERNEL = {Place.YIELD: "SwitchToThread", Place.CLOCK: "GetTickCount64"}
_WAITING = {Place.WAIT: "WaitOnAddress", Place.WAKE: "WakeByAddressAll"}


@dataclass(frozen=True)
class Windows(System):
    """VirtualAlloc, WaitOnAddress; threads are not bound to processors."""

    title: ClassVar[str] = "Windows"
    architectures: ClassVar[tuple[str, ...]] = ("x86_64",)

    kernel32: Any = field(default=None, compare=False)
    waiting: Any = field(default=None, compare=False)
    """The library of WaitOnAddress."""

    @property
    def abi(self) -> str:
        """Arguments, saved registers and the probing of the stack differ from System V."""
        return f"{self.machine}-windows"

    @property
    def _kernel(self) -> Any:
        return self.kernel32 or _library("kernel32")

    @property
    def _waiting(self) -> Any:
        return self.waiting or _library("api-ms-win-core-synch-l1-2-0")

    def features(self) -> frozenset[str]:
        kernel = self._kernel
        known = (names for n, names in _LEVELS.items() if kernel.IsProcessorFeaturePresent(n))
        return frozenset(name for names in known for name in names)

    def map_code(self, code: bytes) -> CodeMemory:
        kernel, size = self._kernel, ctypes.c_size_t(len(code))
        allocate = kernel.VirtualAlloc
        allocate.restype = ctypes.c_void_p
        base = allocate(None, size, _COMMIT_AND_RESERVE, _READ_WRITE)
        if not base:
            raise refused("VirtualAlloc", kernel.GetLastError())
        place = ctypes.c_void_p(base)
        made = CodeMemory(base, _Allocation(kernel.VirtualFree, place))
        ctypes.memmove(base, code, len(code))
        before = ctypes.c_uint32()
        if not kernel.VirtualProtect(place, size, _READ_EXECUTE, ctypes.byref(before)):
            raise refused("VirtualProtect", kernel.GetLastError())
        this_process = ctypes.c_void_p(-1)
        kernel.FlushInstructionCache(this_process, place, size)
        return made

    def functions(self) -> Mapping[Place, int]:
        kernel, waiting = self._kernel, self._waiting
        found = {p: address_of(getattr(kernel, n)) for p, n in _KERNEL.items()}
        return {**found, **{p: address_of(getattr(waiting, n)) for p, n in _WAITING.items()}}


class _Allocation:
    """What VirtualAlloc gave, freed when this goes."""

    def __init__(self, free: Any, place: ctypes.c_void_p) -> None:
        self._free, self._place = free, place

    def __del__(self) -> None:
        self._free(self._place, ctypes.c_size_t(0), _RELEASE)


@functools.cache
def _library(name: str) -> Any:
    if sys.platform != "win32":
        raise OSError(f"{name} is a library of Windows")
    return ctypes.WinDLL(name)
