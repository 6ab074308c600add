"""Assembly of LLVM IR for AMD GPUs, by the LLVM that llvmlite brings."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm

from rlx.backends.gpu.device import Code
from rlx.backends.llvm_compiler import Compiler, Compilers
from rlx.backends.rocm.amdgcn.printer import llvm_ir
from rlx.backends.rocm.architecture import TRIPLE, Architecture
from rlx.backends.rocm.code_object import code_object
from rlx.program.program import Program

THREADS = 8


def _compiler(target: Architecture) -> Compiler:
    """With small clean-ups: programs are unrolled and vectorised as they are meant to run, and the
    code generator itself removes common subexpressions and moves invariants out of loops."""
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu=target.name, features=target.features, opt=2, reloc="pic", codemodel="default"
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    return Compiler(machine, llvm.create_pass_builder(machine, options), passes)


@functools.cache
def _compilers(target: Architecture) -> Compilers:
    return Compilers(functools.partial(_compiler, target))


def assembly(program: Program, target: Architecture) -> str:
    """The instructions of a program, for reading."""
    return _compilers(target).assembly_of(llvm_ir(program, target))


def relocatable(program: Program, target: Architecture) -> bytes:
    """The object file of a program."""
    return _compilers(target).object_of(llvm_ir(program, target))


def assembled(program: Program, target: Architecture) -> bytes:
    """The code object of a verified program. Thread-safe."""
    return code_object(relocatable(program, target))


def assemble(programs: Iterable[Program], target: Architecture) -> list[Code]:
    """Verified programs as code, in order, several at a time and while others are written: LLVM
    runs without Python's lock. Shared memory is part of the code, so that launches ask for none."""

    def code_of(program: Program) -> Code:
        return Code.of(program, assembled(program, target), 0)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "rlx-assemble") as pool:
        return list(pool.map(code_of, programs))
