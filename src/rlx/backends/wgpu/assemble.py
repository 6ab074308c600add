"""Programs as WGSL: modules that the driver compiles when a program is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.backends.gpu.device import Code
from rlx.backends.wgpu.machine import Architecture
from rlx.backends.wgpu.wgsl.printer import module_of
from rlx.program.program import Program


def assemble(programs: Iterable[Program], target: Architecture) -> list[Code]:
    """Verified programs as code, in order."""
    return [_code(p, target) for p in programs]


def _code(program: Program, target: Architecture) -> Code:
    module = module_of(program, target.target)
    return Code.of(program, module.to_bytes(), module.shared_bytes)
