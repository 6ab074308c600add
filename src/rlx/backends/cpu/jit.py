"""Text to native code: parse, a short list of passes, object code, an address."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import llvmlite.binding as llvm

from rlx.backends.cpu.isa import Isa
from rlx.errors import Error


@functools.cache
def _initialised() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _machine(isa: Isa) -> llvm.TargetMachine:
    _initialised()
    return _new_machine(isa)


def _new_machine(isa: Isa) -> llvm.TargetMachine:
    target = llvm.Target.from_triple(isa.triple)
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="default", jit=True
    )


def optimised(text: str, isa: Isa, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The parsed module after the passes that vector code written out needs: stack slots to
    registers, and small clean-ups. LLVM's vectorisers have nothing to do."""
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = isa.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise Error(
            f"the CPU backend wrote LLVM text that is wrong; report this. {error}"
        ) from None
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def assembled(text: str, isa: Isa) -> str:
    """Assembly, for any instruction set LLVM knows, this machine's or not."""
    machine = _machine(isa)
    return machine.emit_assembly(optimised(text, isa, machine))


class Native:
    """A compiled module; it owns its code, so keep it as long as its functions."""

    def __init__(self, text: str, isa: Isa) -> None:
        _initialised()
        machine = _new_machine(isa)
        module = optimised(text, isa, machine)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)

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
