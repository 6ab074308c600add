"""What native code needs of an operating system.

    class System
      machine            the architecture, as LLVM calls it
      abi                the calling convention of code, which is part of the name of a blob
      was_run            has native code run on it, or only on a fake of it in the tests?
      features()         what the processor can do beyond its architecture, by Linux's names
      map_code(code)     memory that holds code and may be executed
      functions()        addresses of what the thread pool calls: see `waiting_code.py`
      pins_threads       can threads be kept off a processor?
      why_not()          why no native code runs; None where it does

Nothing here loads a library before it is asked for, so that every module can be imported on every
system. The libraries are fields: tests put fakes in their place.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.core.errors import Error

_ARCHITECTURES = {
    "x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeMemory:
    """Memory with code in it, given back when this goes and with it what owns the memory."""

    base: int
    owner: Any


@dataclass(frozen=True)
class System(ABC):
    """An operating system on a machine."""

    reported_machine: str
    """As `platform.machine` says it."""

    title: ClassVar[str] = ""
    was_run: ClassVar[bool] = False
    pins_threads: ClassVar[bool] = False
    architectures: ClassVar[tuple[str, ...]] = ("x86_64", "aarch64")

    @property
    def machine(self) -> str:
        return _ARCHITECTURES.get(self.reported_machine.lower(), self.reported_machine)

    @property
    def abi(self) -> str:
        """That of System V for x86-64, and of Arm for aarch64."""
        return self.machine

    def why_not(self) -> str | None:
        if self.machine in self.architectures:
            return None
        known = " and ".join(self.architectures)
        return f"native code is made for {known} under {self.title}, not for {self.machine}"

    @abstractmethod
    def features(self) -> frozenset[str]: ...

    @abstractmethod
    def map_code(self, code: bytes) -> CodeMemory: ...

    @abstractmethod
    def functions(self) -> Mapping[Place, int]: ...


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def refused(call: str, code: int) -> Error:
    return Error(
        f"the system refuses memory for native code ({call}, error {code}). Allow executable "
        "memory, or compile with target='reference'."
    )
