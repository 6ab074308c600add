"""macOS on Apple silicon and Intel."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.base import CodeMemory, System, address_of, refused
from rlx.backends.cpu.system.posix import c_library, held, sealed_code

MAP_JIT = 0x800
"""Memory that each thread sees either as writable or as executable."""
_NAMES = {
    Place.WAIT: "__ulock_wait", Place.WAKE: "__ulock_wake", Place.YIELD: "sched_yield",
    Place.CLOCK: "clock_gettime_nsec_np",
}  # fmt: skip
_FEATURES = {
    "sse3": "pni", "supplementalsse3": "ssse3", "sse4_1": "sse4_1", "sse4_2": "sse4_2",
    "avx1_0": "avx", "avx2_0": "avx2", "bmi1": "bmi1", "bmi2": "bmi2", "f16c": "f16c",
    "fma": "fma", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd",
    "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512vnni": "avx512_vnni",
}  # fmt: skip
"""Under `hw.optional` of sysctl, and as Linux calls them."""
_BESIDE = {
    "sse4_2": ("popcnt", "cx16", "lahf_lm"),
    "avx2_0": ("abm", "movbe", "xsave"),
}
"""What sysctl has no name for: every Mac whose processor has the one has the others."""


@dataclass(frozen=True)
class Darwin(System):
    """Waiting by address, as libc++ does; threads are not bound to processors."""

    title: ClassVar[str] = "macOS"

    libc: Any = field(default=None, compare=False)

    @property
    def _library(self) -> Any:
        return self.libc or c_library()

    def features(self) -> frozenset[str]:
        library = self._library
        known = [name for name in _FEATURES if _flag(library, f"hw.optional.{name}")]
        beside = [other for name in known for other in _BESIDE.get(name, ())]
        return frozenset([*(_FEATURES[name] for name in known), *beside])

    def map_code(self, code: bytes) -> CodeMemory:
        library = self._library
        is_apple = self.machine == "aarch64"
        return _jit_code(code, library) if is_apple else sealed_code(code, library)

    def functions(self) -> Mapping[Place, int]:
        library = self._library
        return {place: address_of(getattr(library, name)) for place, name in _NAMES.items()}


def _jit_code(code: bytes, library: Any) -> CodeMemory:
    """Apple silicon has separate instruction caches, and no page is writable and executable for a
    thread at a time."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_JIT
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        made = held(mmap.mmap(-1, len(code), flags=flags, prot=access))
    except OSError as error:
        raise refused("mmap with MAP_JIT", error.errno or 0) from None
    library.pthread_jit_write_protect_np(0)
    try:
        ctypes.memmove(made.base, code, len(code))
    finally:
        library.pthread_jit_write_protect_np(1)
    library.sys_icache_invalidate(ctypes.c_void_p(made.base), ctypes.c_size_t(len(code)))
    return made


def _flag(library: Any, name: str) -> bool:
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    given = ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    return library.sysctlbyname(name.encode(), *given) == 0 and value.value != 0
