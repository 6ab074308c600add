"""Code for Windows, run on another system: small functions between the two calling conventions.

Code that was compiled for Windows calls and is called by its own convention, whatever runs it. So
what Python calls goes through a function of this system that calls by the convention of Windows,
and what native code calls goes through one that has that convention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from rlx.backends.cpu.isa import SSE2
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.runtime import thread_pool
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.thread_pool import Pool
from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.base import CodeMemory, System, address_of
from rlx.backends.cpu.system.windows import Windows

_WORDS = ", ".join(f"i64 %a{i}" for i in range(6))


def into_windows(address: int) -> Native:
    """`f` of this system's convention, which calls what has that of Windows."""
    call = f"call win64cc i64 inttoptr (i64 {address} to ptr)({_WORDS})"
    return Native(f"define i64 @f({_WORDS}) {{\n  %r = {call}\n  ret i64 %r\n}}", SSE2)


def out_of_windows(address: int) -> Native:
    """`f` of the convention of Windows, which calls what has this system's."""
    call = f"call i64 inttoptr (i64 {address} to ptr)({_WORDS})"
    return Native(f"define win64cc i64 @f({_WORDS}) {{\n  %r = {call}\n  ret i64 %r\n}}", SSE2)


class Bridged:
    """As `Loaded`, of a blob for Windows: addresses are those that Python can call."""

    def __init__(self, blob: Blob, system: System) -> None:
        self._code = Loaded(blob, system)
        self._bridges = {n: into_windows(self._code.address(n)) for n in self._code.exports}

    def address(self, name: str) -> int:
        return self._bridges[name].address("f")

    def native(self, name: str) -> int:
        """What native code can call."""
        return self._code.address(name)


class BridgedPool(Pool):
    """Threads that run code for Windows."""

    def __init__(self, code: Bridged, system: System) -> None:
        super().__init__(code, system)  # pyright: ignore[reportArgumentType]
        self._native_runs: dict[int, int] = {}
        names = thread_pool._OF_PYTHON  # pyright: ignore[reportPrivateUsage]
        self._held = [out_of_windows(self._memory[place]) for place in names]
        for place, bridge in zip(names, self._held):
            self._memory[place] = bridge.address("f")

    def add(self, code: Bridged) -> None:
        """Models are handed to native code, by the address that it can call."""
        self._native_runs[code.address("run")] = code.native("run")

    def call(self, context: int, run: int) -> int:
        return super().call(context, self._native_runs.get(run, run))


class WindowsHere(Windows):
    """Windows whose functions are Python's, by way of a bridge; memory is this system's."""

    def __init__(self, here: System, functions: Mapping[Place, object]) -> None:
        super().__init__("AMD64")
        bridges = {p: out_of_windows(address_of(f)) for p, f in functions.items()}
        object.__setattr__(self, "_held", (here, functions, bridges))

    def map_code(self, code: bytes) -> CodeMemory:
        return self._held[0].map_code(code)

    def functions(self) -> Mapping[Place, int]:
        return {p: b.address("f") for p, b in self._held[2].items()}


def callback(result: type, *given: type) -> type:
    """Functions of Python that native code calls, in threads that Python knows."""
    return ctypes.CFUNCTYPE(result, *given)
