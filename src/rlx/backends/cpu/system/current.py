"""The system that this process runs on."""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock

from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.base import CodeMemory, System
from rlx.backends.cpu.system.darwin import Darwin
from rlx.backends.cpu.system.linux import Linux
from rlx.backends.cpu.system.windows import Windows
from rlx.core.errors import UnsupportedError

SYSTEMS: Mapping[str, type[System]] = {"linux": Linux, "darwin": Darwin, "win32": Windows}
"""By what `sys.platform` says."""


@dataclass(frozen=True)
class Unknown(System):
    """Any other: nothing is native."""

    name: str = ""

    def why_not(self) -> str | None:
        return f"native code runs under Linux, macOS and Windows, and this is {self.name}"

    def features(self) -> frozenset[str]:
        return frozenset()

    def map_code(self, code: bytes) -> CodeMemory:
        raise UnsupportedError(f"{self.why_not()}. Use target='reference'.")

    def functions(self) -> Mapping[Place, int]:
        return {}


@functools.cache
def this_system() -> System:
    return system_of(sys.platform, platform.machine())


def system_of(name: str, machine: str) -> System:
    """A system by what `sys.platform` and `platform.machine` say."""
    kind = SYSTEMS.get(name)
    return Unknown(machine, name) if kind is None else kind(machine)


def hold_over_fork(lock: RLock) -> None:
    """A forked child finds the lock free, and what it guards whole. Windows does not fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def after_fork(function: Callable[[], None]) -> None:
    """Have it called in every forked child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
