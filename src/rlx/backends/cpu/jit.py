"""Text to native code: parse, a short list of passes, object code, an address."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import llvmlite.binding as llvm

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.native.blob import Blob
from rlx.backends.cpu.native.code import Loaded
from rlx.backends.cpu.native.link import linked, undefined
from rlx.backends.cpu.native.memory import MEMORY_FUNCTIONS, memory_text
from rlx.errors import Error


@dataclass(frozen=True, slots=True)
class _Compiler:
    """What LLVM needs for an instruction set. Made once: LLVM does not give all of it back."""

    machine: llvm.TargetMachine
    builder: llvm.PassBuilder
    passes: llvm.FunctionPassManager

    def simplify(self, module: llvm.ModuleRef) -> None:
        for function in module.functions:
            if not function.is_declaration:
                self.passes.run(function, self.builder)
                _hide(function)


@functools.cache
def _compiler(isa: Isa) -> _Compiler:
    """With the passes that vector code written out needs: stack slots to registers, and small
    clean-ups. LLVM's vectorisers have nothing to do."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(isa.triple).create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="default", jit=True
    )
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    return _Compiler(machine, llvm.create_pass_builder(machine, options), passes)


def _machine(isa: Isa) -> llvm.TargetMachine:
    return _compiler(isa).machine


@contextmanager
def _optimised(text: str, isa: Isa) -> Generator[llvm.ModuleRef]:
    """The module, simplified, while it is looked at. It has a context of its own, for what a
    shared one learns it keeps for ever."""
    with llvm.create_context() as context, _parsed(text, isa, context) as module:
        _compiler(isa).simplify(module)
        yield module


def _parsed(text: str, isa: Isa, context: llvm.ContextRef) -> llvm.ModuleRef:
    module = None
    try:
        module = llvm.parse_assembly(text, context)
        module.triple, module.data_layout = isa.triple, str(_machine(isa).target_data)
        module.verify()
    except RuntimeError as error:
        if module:
            module.close()  # before its context goes
        raise Error(
            f"the CPU backend wrote LLVM text that is wrong; report this. {error}"
        ) from None
    return module


def _hide(function: llvm.ValueRef) -> None:
    """Nobody replaces the function by another, so its address is a distance."""
    if function.linkage == llvm.Linkage.external:
        function.visibility = llvm.Visibility.hidden


def assembled(text: str, isa: Isa) -> str:
    """Assembly, for any instruction set LLVM knows, this machine's or not."""
    with _optimised(text, isa) as module:
        return _machine(isa).emit_assembly(module)


def compiled(text: str, isa: Isa) -> Blob:
    """The functions of a module as code that runs wherever it is put."""
    made = _object(text, isa)
    needs_memory = not MEMORY_FUNCTIONS.isdisjoint(undefined(made))
    return linked([made, _memory_object(isa)] if needs_memory else [made])


def _object(text: str, isa: Isa) -> bytes:
    with _optimised(text, isa) as module:
        return _machine(isa).emit_object(module)


@functools.cache
def _memory_object(isa: Isa) -> bytes:
    return _object(memory_text(), isa)


class Native:
    """A compiled module; it owns its code, so keep it as long as its functions."""

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
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, address, address, word, word, address)
        buffers = (address * max(1, len(pointers)))(*pointers)
        values = (word * max(1, len(sizes)))(*sizes)
        given = ctypes.addressof(buffers), ctypes.addressof(values), start, stop, scratch
        return kind(self.address(name))(*given)
