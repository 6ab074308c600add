"""JIT compilation: LLVM text to optimised object code and addresses."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import replace

import llvmlite.binding as llvm

from rlx.backends.cpu.isa import WASM, Isa
from rlx.backends.cpu.llvm.multiply_add import RELAXED
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.linker import linked, undefined
from rlx.backends.cpu.runtime.memcpy import MEMORY_FUNCTIONS, memory_text
from rlx.backends.cpu.system.stack_probe import STACK_PROBE, probe_text
from rlx.backends.cpu.wasm.caller_code import WASM_EXPORTS, caller_text
from rlx.backends.cpu.wasm.linker import linked as link_wasm
from rlx.backends.llvm_compiler import Compiler, Compilers

_PUBLIC = re.compile(r"^define (?!internal |hidden )(?:dso_local )?", re.MULTILINE)
"""Exported functions. They are never interposed, so calls are PC-relative."""


_GO_ON = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _: 0)
"""The poll of kernels that are called alone."""


def _compiler(isa: Isa) -> Compiler:
    """With the passes that explicit vector code needs: SROA, and small clean-ups. LLVM's
    vectorisers have nothing to do."""
    machine = llvm.Target.from_triple(isa.triple).create_target_machine(
        cpu=isa.cpu,
        features=isa.features,
        opt=2,
        reloc="static" if isa.is_wasm else "pic",  # WebAssembly has no other code to move past
        codemodel="default",
        jit=True,
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
    """Modules linked into one blob; it exports the functions of the first. That of WebAssembly is
    a module, which exports how a page calls them."""
    if isa.is_wasm:
        return Blob(link_wasm([*objects, _caller_object(isa)], WASM_EXPORTS), {}, isa.arch)
    missing = {name for o in objects for name in undefined(o)}
    needs_memory = not MEMORY_FUNCTIONS.isdisjoint(missing)
    more = [_memory_object(isa)] if needs_memory else []
    more += [_probe_object(isa)] if STACK_PROBE in missing else []
    return replace(linked([*objects, *more]), arch=isa.abi)


def object_of(text: str, isa: Isa) -> bytes:
    """An object file of a module. Thread-safe."""
    return _compilers(_needed(text, isa)).object_of(_hidden(text))


def _needed(text: str, isa: Isa) -> Isa:
    """Without relaxed SIMD where nothing asks for it: see `compile_units.py`."""
    return WASM if isa.has_relaxed_fma and RELAXED not in text else isa


@functools.cache
def _caller_object(isa: Isa) -> bytes:
    return object_of(caller_text(), isa)


@functools.cache
def _memory_object(isa: Isa) -> bytes:
    return object_of(memory_text(), isa)


@functools.cache
def _probe_object(isa: Isa) -> bytes:
    return object_of(probe_text(), isa)


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
