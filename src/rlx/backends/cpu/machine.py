"""The machine model of a processor: what its instruction set fixes of `rlx.cost.machine`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from rlx.backends.cpu.isa import Isa
from rlx.cost.machine import DOCUMENTED, Machine


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


def machine_of(isa: Isa, machine: Machine) -> Machine:
    """`machine` with the vectors of an instruction set."""
    return replace(
        machine,
        vector_bytes=isa.vector_bytes,
        vector_registers=isa.registers,
        has_fma=isa.has_fma,
    )
