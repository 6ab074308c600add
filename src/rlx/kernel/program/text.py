"""Kernel programs as text: every subprogram, its steps, their kernels and how they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlx.kernel.program.program import (
    Branch,
    HostCall,
    KernelProgram,
    KernelSequence,
    Lowering,
    Nested,
    ProgramStep,
    ScanLoop,
    Subprogram,
    Value,
    WhileLoop,
)

INDENT = "  "


def program_text(program: KernelProgram) -> str:
    """The program; kernels of equal steps are written out once."""
    numbers = {id(s): i for i, s in enumerate(program.sequences)}
    sizes = program.lir.plan.representative
    parts = [f"program {program.lir.name} for {program.lir.target.name}"]
    parts += ["\n".join(_subprogram(s, numbers)) for s in program.subprograms.values()]
    parts += ["\n".join(_sequence(i, s, sizes)) for i, s in enumerate(program.sequences)]
    return "\n\n".join(parts) + "\n"


def _subprogram(subprogram: Subprogram, numbers: Mapping[int, int]) -> Iterator[str]:
    yield f"subprogram {subprogram.name}: arena {subprogram.plan.arena_formula} bytes"
    phases = {"prologue": subprogram.prologue, "pack": subprogram.packing, "call": subprogram.calls}
    for phase, steps in phases.items():
        for step in steps:
            yield from _indented(_step(phase, step, numbers))


def _step(phase: str, step: ProgramStep, numbers: Mapping[int, int]) -> Iterator[str]:
    if phase == "pack":
        yield f"pack %{step.node.op} weights at {_listed(map(str, step.packed_offsets))}"
        return
    given, made = (_listed(map(_value, v)) for v in (step.operands, step.results))
    yield f"{phase} {made} = {_name(step.lowering, numbers)}({given})  # {step.node.label}"
    for i, copy in enumerate(step.copies):
        if copy is not None:
            yield f"{INDENT}operand {i} made contiguous"


def _name(lowering: Lowering, numbers: Mapping[int, int]) -> str:
    match lowering:
        case KernelSequence():
            number = numbers.get(id(lowering))
            return lowering.calls[-1].name if number is None else f"s{number}"
        case Nested(body):
            return f"run {body.name}"
        case Branch(then, other):
            return f"if {then.name} else {other.name}"
        case WhileLoop(condition, body):
            return f"while {condition.name} do {body.name}"
        case ScanLoop(body, length):
            return f"scan {body.name} over {length}"
        case HostCall():
            return "host"


def _value(value: Value) -> str:
    strides = ",".join(map(str, value.layout.strides))
    place = "" if value.layout.is_contiguous else f"[{value.layout.offset}; {strides}]"
    return f"%{value.node.op}.{value.node.shape}{place}"


def _sequence(number: int, sequence: KernelSequence, sizes: Mapping[str, int]) -> Iterator[str]:
    """The kernels of a step, what was refused before, and the tasks of its schedule."""
    yield f"s{number}: {sequence.form.value}"
    for refused in sequence.refused:
        yield f"{INDENT}not a {refused.form.value}: {refused.reason}"
    for i, size in enumerate(sequence.temps):
        yield f"{INDENT}temp{i}: {size} bytes"
    for call in sequence.calls:
        given, made = (_listed(map(str, b)) for b in (call.operands, call.results))
        yield f"{INDENT}{call.name}: {made} = ({given})"
        yield from _indented(str(call.kernel).splitlines(), 2)
    for packed in sequence.schedule.packed:
        yield f"{INDENT}packs {packed.size} bytes: {packed.task.text(sizes)}"
    for task in sequence.schedule.tasks:
        yield f"{INDENT}task {task.text(sizes)}"


def _listed(parts: Iterator[str]) -> str:
    return ", ".join(parts)


def _indented(lines: Iterator[str] | Sequence[str], depth: int = 1) -> Iterator[str]:
    return (f"{INDENT * depth}{line}" for line in lines)
