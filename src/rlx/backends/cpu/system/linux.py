"""Linux on x86-64 and aarch64."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.base import CodeMemory, System, address_of
from rlx.backends.cpu.system.posix import c_library, sealed_code

_NAMES = {
    Place.WAIT: "syscall", Place.WAKE: "syscall", Place.YIELD: "sched_yield",
    Place.CLOCK: "clock_gettime", Place.GETCPU: "sched_getcpu", Place.PIN: "sched_setaffinity",
}  # fmt: skip


@dataclass(frozen=True)
class Linux(System):
    """Futexes, a coarse clock, affinity masks."""

    title: ClassVar[str] = "Linux"
    was_run: ClassVar[bool] = True
    pins_threads: ClassVar[bool] = True

    libc: Any = field(default=None, compare=False)

    @property
    def _library(self) -> Any:
        return self.libc or c_library()

    def features(self) -> frozenset[str]:
        return _features()

    def map_code(self, code: bytes) -> CodeMemory:
        return sealed_code(code, self._library)

    def functions(self) -> Mapping[Place, int]:
        library = self._library
        return {place: address_of(getattr(library, name)) for place, name in _NAMES.items()}


@functools.cache
def _features() -> frozenset[str]:
    """What Linux says of the first processor; x86 has `flags`, aarch64 `Features`."""
    found: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="latin-1") as lines:
        for line in itertools.takewhile(str.strip, lines):
            name, _, values = line.partition(":")
            found += values.split() if name.strip() in ("flags", "Features") else []
    return frozenset(found)
