"""JIT compilation: LLVM text to optimised object code and addresses."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence

import llvmlite.binding as llvm

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.linker import linked, undefined
from rlx.backends.cpu.runtime.memcpy import MEMORY_FUNCTIONS, memory_text
from rlx.backends.llvm_compiler import Compiler, Compilers

_PUBLIC = re.compile(r"^define (?!internal |hidden )(?:dso_local )?", re.MULTILINE)
"""Exported functions. They are never interposed, so calls are PC-relative."""


_GO_ON = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _: 0)
"""The poll of kernels that are called alone."""


def _compiler(isa: Isa) -> Compiler:
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
    return Compiler(machine, llvm.create_pass_builder(machine, options), passes)


@functools.cache
def _compilers(isa: Isa) -> Compilers:
    return Compilers(functools.partial(_compiler, isa))


def assembled(text: str, isa: Isa) -> str:
    """Assembly, for any instruction set LLVM has, this machine's or not."""
    return _compilers(isa).assembly_of(_hidden(text))


def _hidden(text: str) -> str:
    return _PUBLIC.sub("define hidden ", text)


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
    return _compilers(isa).object_of(_hidden(text))


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
