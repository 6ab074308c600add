"""JIT compilation: LLVM text to optimised object code and addresses."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.linker import linked, undefined
from rlx.backends.cpu.runtime.memcpy import MEMORY_FUNCTIONS, memory_text
from rlx.core.errors import Error

_PUBLIC = re.compile(r"^define (?!internal |hidden )(?:dso_local )?", re.MULTILINE)
"""Exported functions. They are never interposed, so calls are PC-relative."""


_GO_ON = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _: 0)
"""The poll of kernels that are called alone."""


@dataclass(frozen=True, slots=True)
class _Compiler:
    """LLVM's target machine and passes of an instruction set, for one thread at a time."""

    machine: llvm.TargetMachine
    builder: llvm.PassBuilder
    passes: llvm.ModulePassManager

    @classmethod
    def of(cls, isa: Isa) -> _Compiler:
        """With the passes that explicit vector code needs: SROA, and small clean-ups. LLVM's
        vectorisers have nothing to do."""
        machine = llvm.Target.from_triple(isa.triple).create_target_machine(
            cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="default", jit=True
        )
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        return cls(machine, llvm.create_pass_builder(machine, options), passes)

    def simplify(self, module: llvm.ModuleRef) -> None:
        """All functions in one call: after each, a thread waits for the GIL."""
        _unlocked("LLVMPY_RunNewModulePassManager")(self.passes, module, self.builder)

    def object_of(self, module: llvm.ModuleRef) -> bytes:
        """The same bytes as `machine.emit_object`, which holds llvmlite's lock."""
        with ffi.OutputString() as error:
            made = _unlocked("LLVMPY_TargetMachineEmitToMemory")(self.machine, module, 1, error)
            if not made:
                raise Error(
                    f"LLVM makes no code of what the CPU backend wrote; report this. {error}"
                )
        try:
            start, size = ffi.lib.LLVMPY_GetBufferStart(made), ffi.lib.LLVMPY_GetBufferSize(made)
            return ctypes.string_at(start, size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(made)


def _unlocked(name: str) -> Any:
    """A function of LLVM without llvmlite's lock. LLVM requires only that threads share no context,
    machine or pass manager, and here none do."""
    locked = getattr(ffi.lib, name)
    return getattr(locked, "_cfn", locked)


@dataclass(slots=True)
class _Compilers:
    """A pool of compilers for an instruction set. They are reused, for LLVM leaks some of their
    memory."""

    isa: Isa
    free: list[_Compiler] = field(default_factory=list[_Compiler])
    lock: Lock = field(default_factory=Lock)

    @contextmanager
    def one(self) -> Generator[_Compiler]:
        with self.lock:
            found = self.free.pop() if self.free else _Compiler.of(self.isa)
        try:
            yield found
        finally:
            with self.lock:
                self.free.append(found)


@functools.cache
def _compilers(isa: Isa) -> _Compilers:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return _Compilers(isa)


@contextmanager
def _optimised(text: str, isa: Isa) -> Generator[tuple[_Compiler, llvm.ModuleRef]]:
    """The module, optimised, while it is in use. It has a context of its own, for a shared one
    grows without bound."""
    with (
        _compilers(isa).one() as compiler,
        llvm.create_context() as context,
        _parsed(text, compiler.machine, context) as module,
    ):
        compiler.simplify(module)
        yield compiler, module


def _parsed(text: str, machine: llvm.TargetMachine, context: llvm.ContextRef) -> llvm.ModuleRef:
    module = None
    try:
        module = llvm.parse_assembly(_PUBLIC.sub("define hidden ", text), context)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        if module:
            module.close()  # before its context is freed
        raise Error(
            f"the CPU backend wrote LLVM text that is wrong; report this. {error}"
        ) from None
    return module


def assembled(text: str, isa: Isa) -> str:
    """Assembly, for any instruction set LLVM has, this machine's or not."""
    with _optimised(text, isa) as (compiler, module):
        return compiler.machine.emit_assembly(module)


def compiled(text: str, isa: Isa) -> Blob:
    """The functions of a module as position-independent code."""
    return joined([object_of(text, isa)], isa)


def joined(objects: Sequence[bytes], isa: Isa) -> Blob:
    """Modules linked into one blob; it exports the functions of the first."""
    missing = {name for o in objects for name in undefined(o)}
    needs_memory = not MEMORY_FUNCTIONS.isdisjoint(missing)
    return linked([*objects, _memory_object(isa)] if needs_memory else objects)


def object_of(text: str, isa: Isa) -> bytes:
    """An object file of a module. Thread-safe."""
    with _optimised(text, isa) as (compiler, module):
        return compiler.object_of(module)


@functools.cache
def _memory_object(isa: Isa) -> bytes:
    return object_of(memory_text(), isa)


class Native:
    """A compiled module; it owns its code, so hold it as long as its functions."""

    def __init__(self, text: str, isa: Isa) -> None:
        self._loaded = Loaded(compiled(text, isa))

    def address(self, name: str) -> int:
        return self._loaded.address(name)

    def call(self, name: str, pointers: Sequence[int], sizes: Sequence[int], extent: int) -> int:
        """Run a kernel over all its units: for tests; a program calls natively."""
        return self.call_part(name, pointers, sizes, 0, max(1, extent))

    def call_part(
        self,
        name: str,
        pointers: Sequence[int],
        sizes: Sequence[int],
        start: int,
        stop: int,
        scratch: int = 0,
    ) -> int:
        word, address = ctypes.c_int64, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, address, address, word, word, address, address)
        buffers = (address * max(1, len(pointers)))(*pointers)
        values = (word * max(1, len(sizes)))(*sizes)
        poll = address(ctypes.cast(_GO_ON, address).value)
        given = ctypes.addressof(buffers), ctypes.addressof(values), start, stop, scratch
        return kind(self.address(name))(*given, ctypes.addressof(poll))
