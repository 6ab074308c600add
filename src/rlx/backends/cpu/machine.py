"""The machine model of a processor: what its instruction set fixes of `rlx.cost.machine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from rlx.backends.cpu.isa import Isa
from rlx.cost.machine import DOCUMENTED, INSTRUCTIONS, Machine
from rlx.ops.cost import OpClass


@dataclass(frozen=True, slots=True)
class CpuMachine(Machine):
    """A machine, and the instruction set that code for it is generated in."""

    isa: Isa = field(kw_only=True)

    @classmethod
    def of(cls, isa: Isa, machine: Machine = DOCUMENTED["cpu"]) -> CpuMachine:
        """`machine` with an instruction set."""
        own = machine_of(isa, machine)
        return cls(**{f.name: getattr(own, f.name) for f in fields(Machine)}, isa=isa)

    __hash__ = Machine.__hash__


_WITHOUT_SCALING = {
    **INSTRUCTIONS, OpClass.EXPONENTIAL: 33, OpClass.LOGARITHM: 52, OpClass.HYPERBOLIC: 43,
    OpClass.ERROR_FUNCTION: 50, OpClass.TRIGONOMETRIC: 70, OpClass.REMAINDER: 86,
    OpClass.ARCTANGENT: 270, OpClass.ERROR_TAIL: 300, OpClass.POWER: 390,
}  # fmt: skip
"""Powers of two are made of integers, and selects are not masks: counted and timed for AVX2."""
_WITHOUT_FMA = {
    **INSTRUCTIONS, OpClass.EXPONENTIAL: 119, OpClass.LOGARITHM: 176, OpClass.HYPERBOLIC: 170,
    OpClass.ERROR_FUNCTION: 300, OpClass.TRIGONOMETRIC: 540, OpClass.REMAINDER: 120,
    OpClass.ARCTANGENT: 920, OpClass.ERROR_TAIL: 2900, OpClass.POWER: 1840,
}  # fmt: skip
"""Polynomials whose roundings are those of multiply-adds, without them: for SSE2."""

_UNFUSED = {
    **INSTRUCTIONS, OpClass.EXPONENTIAL: 34, OpClass.LOGARITHM: 47, OpClass.HYPERBOLIC: 43,
    OpClass.ERROR_FUNCTION: 51, OpClass.TRIGONOMETRIC: 200, OpClass.REMAINDER: 88,
    OpClass.ARCTANGENT: 298, OpClass.ERROR_TAIL: 302, OpClass.POWER: 858,
}  # fmt: skip
"""Polynomials rounded twice a step, products with exact errors without multiply-adds: counted for
WebAssembly."""


def machine_of(isa: Isa, machine: Machine) -> Machine:
    """`machine` with the vectors of an instruction set."""
    return replace(
        machine,
        vector_bytes=isa.vector_bytes,
        vector_registers=isa.registers,
        has_fma=isa.has_fma,
        has_dot_products=isa.has_byte_dots or isa.has_short_dots,
        instructions=_instructions(isa),
    )


def _instructions(isa: Isa) -> Mapping[OpClass, int]:
    if isa.has_scaling:
        return INSTRUCTIONS
    if isa.maths == "unfused":
        return _UNFUSED
    return _WITHOUT_SCALING if isa.has_fma else _WITHOUT_FMA
