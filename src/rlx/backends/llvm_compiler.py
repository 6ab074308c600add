"""LLVM by llvmlite: text of a module to optimised object code or assembly, for any target.

Compilers of one target are pooled and reused, for LLVM leaks some of their memory. A module has a
context of its own, as a shared one grows without bound. Threads compile beside each other: LLVM
requires only that they share no context, machine or pass manager.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from rlx.core.errors import InternalError


@dataclass(frozen=True, slots=True)
class Compiler:
    """LLVM's target machine and passes, for one thread at a time."""

    machine: llvm.TargetMachine
    builder: llvm.PassBuilder
    passes: llvm.ModulePassManager

    def simplify(self, module: llvm.ModuleRef) -> None:
        """All functions in one call: after each, a thread waits for the GIL."""
        _unlocked("LLVMPY_RunNewModulePassManager")(self.passes, module, self.builder)

    def object_of(self, module: llvm.ModuleRef) -> bytes:
        """The same bytes as `machine.emit_object`, which holds llvmlite's lock."""
        with ffi.OutputString() as error:
            made = _unlocked("LLVMPY_TargetMachineEmitToMemory")(self.machine, module, 1, error)
            if not made:
                raise InternalError(f"LLVM makes no code of what rlx wrote for it: {error}")
        try:
            start, size = ffi.lib.LLVMPY_GetBufferStart(made), ffi.lib.LLVMPY_GetBufferSize(made)
            return ctypes.string_at(start, size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(made)


def _unlocked(name: str) -> Any:
    """A function of LLVM without llvmlite's lock."""
    locked = getattr(ffi.lib, name)
    return getattr(locked, "_cfn", locked)


@dataclass(slots=True)
class Compilers:
    """A pool of compilers of one target."""

    make: Callable[[], Compiler]
    free: list[Compiler] = field(default_factory=list[Compiler])
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()

    @contextmanager
    def one(self) -> Generator[Compiler]:
        with self.lock:
            found = self.free.pop() if self.free else self.make()
        try:
            yield found
        finally:
            with self.lock:
                self.free.append(found)

    @contextmanager
    def optimised(self, text: str) -> Generator[tuple[Compiler, llvm.ModuleRef]]:
        """A module, verified and optimised, while it is in use."""
        with (
            self.one() as compiler,
            llvm.create_context() as context,
            _parsed(text, compiler.machine, context) as module,
        ):
            compiler.simplify(module)
            yield compiler, module

    def object_of(self, text: str) -> bytes:
        """The object file of a module. Thread-safe."""
        with self.optimised(text) as (compiler, module):
            return compiler.object_of(module)

    def assembly_of(self, text: str) -> str:
        with self.optimised(text) as (compiler, module):
            return compiler.machine.emit_assembly(module)


def _parsed(text: str, machine: llvm.TargetMachine, context: llvm.ContextRef) -> llvm.ModuleRef:
    module = None
    try:
        module = llvm.parse_assembly(text, context)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        if module:
            module.close()  # before its context is freed
        raise InternalError(f"rlx wrote LLVM text that is wrong: {error}") from None
    return module
