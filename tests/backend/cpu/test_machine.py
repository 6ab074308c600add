"""One machine model: what an instruction set fixes of it, and who reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import AVX2, AVX512, ISAS, NEON, SSE2, Isa
from rlx.backends.cpu.machine import CpuMachine, machine_of
from rlx.backends.cpu.schedule.loop_schedule import choose
from rlx.core.dtype import DType
from rlx.cost.machine import DOCUMENTED, CacheLevel, Machine
from rlx.ir.lir import LirModule
from rlx.kernel.lower.loop import loop_kernel


@pytest.mark.parametrize(
    ("isa", "lanes", "registers"), [(AVX512, 16, 32), (AVX2, 8, 16), (NEON, 4, 32), (SSE2, 4, 16)]
)
def test_an_instruction_set_fixes_lanes_and_registers(isa: Isa, lanes: int, registers: int) -> None:
    machine = CpuBackend(isa.name).target().machine
    assert (machine.lanes(DType.F32), machine.vector_registers) == (lanes, registers)
    assert machine.lanes(DType.F16) == lanes, "half precision is computed in f32"
    assert CpuMachine.of(isa).isa is isa


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda i: i.name)
def test_register_tiles_fit_the_registers(isa: Isa) -> None:
    """Accumulators, the vectors of one operand, a broadcast of the other, and without multiply-adds
    a product."""
    for rows, vectors in machine_of(isa, DOCUMENTED["cpu"]).register_tiles:
        assert rows * vectors + vectors + 1 + (not isa.has_fma) <= isa.registers


def planned(machine: Machine) -> LirModule:
    """A sum of 2²⁰ numbers, 16 of each: some 4 MB."""
    g = rlx.Graph("g")
    x = g.input("x", rlx.Shape([1 << 16, 16]))
    g.set_outputs([ops.sum(ops.exp(x), axes=(1,))])
    target = replace(CpuBackend().target(), machine=machine)
    return rlx.CompilePipeline(target).compile(g).lir


@pytest.mark.parametrize(("fork_join_ns", "is_split"), [(5e3, True), (1e9, False)])
def test_work_is_split_where_it_takes_longer_than_a_fork_join(
    fork_join_ns: float, is_split: bool
) -> None:
    backend = CpuBackend(threads=2)
    lir = planned(replace(backend.target().machine, fork_join_ns=fork_join_ns))
    assert list(backend.splits(lir, {}).values()) == [is_split]
    (facts,) = backend.description(lir).values()
    (split,) = (d for d in facts.decisions if d.what == "split_work")
    assert split.verdict is is_split
    assert is_split or "less than 2.00 s of work" in split.reason


def test_loop_schedules_read_the_caches_of_the_machine() -> None:
    """Rows of exponentials are stored between the passes of a softmax while they stay cached."""
    g = rlx.Graph("g")
    kernel = loop_kernel(ops.softmax(g.input("x", rlx.Shape([8, 4096]))))
    near = CpuMachine.of(AVX512)
    assert choose(kernel, near).staged
    assert not choose(kernel, replace(near, caches=(CacheLevel(1 << 10, 100.0),))).staged
