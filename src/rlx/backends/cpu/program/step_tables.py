"""Steps by tables: those that run once, and those of long programs.

A row of a table has all that a task is called with, in numbers; one function reads it. Where a
number is a formula, the step is written out like any other. A row costs a call some nanoseconds
more than code of its own, and LLVM a thousandth of a second less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.backends.cpu.program.call_context import Word
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import Dim, DimLike, round_up
from rlx.ir.lir import Space
from rlx.kernel.program.program import KernelSequence, ProgramStep, Value
from rlx.kernel.program.schedule import Buffer

if TYPE_CHECKING:
    from rlx.backends.cpu.program.assemble import StepWriter

ALWAYS = -1
TABLED_STEPS = 256
"""A subprogram with as many calls has rows for them."""
_EXTERNAL, _WEIGHTS, _ARENA, _BEHIND = range(4)
_HEAD = 7
"""Words before the buffers, of which each has two: from where, and how many bytes on."""
PREPARE = f"""
define internal i32 @prepare(ptr %context, ptr %arena, ptr %externals, ptr %behind, ptr %function,
    ptr %row) noinline {{
entry:
  %changed.at = getelementptr i64, ptr %context, i64 {Word.CHANGED.value}
  %changed = load ptr, ptr %changed.at
  %all = icmp eq ptr %changed, null
  br i1 %all, label %yes, label %test
test:
  %flag = load i64, ptr %row
  %always = icmp eq i64 %flag, {ALWAYS}
  br i1 %always, label %yes, label %asked
asked:
  %flag.at = getelementptr i8, ptr %changed, i64 %flag
  %byte = load i8, ptr %flag.at
  %same = icmp eq i8 %byte, 0
  br i1 %same, label %skip, label %yes
skip:
  ret i32 0
yes:
  %code = call i32 @perform(ptr %context, ptr %arena, ptr %externals, ptr %behind, ptr %function,
      ptr %row)
  ret i32 %code
}}
"""
PERFORM = f"""
define internal i32 @perform(ptr %context, ptr %arena, ptr %externals, ptr %behind, ptr %function,
    ptr %row) noinline {{
entry:
  %count.at = getelementptr i64, ptr %row, i64 1
  %units.at = getelementptr i64, ptr %row, i64 2
  %grain.at = getelementptr i64, ptr %row, i64 3
  %bytes.at = getelementptr i64, ptr %row, i64 4
  %number.at = getelementptr i64, ptr %row, i64 5
  %scratch.at = getelementptr i64, ptr %row, i64 6
  %first = getelementptr i64, ptr %row, i64 {_HEAD}
  %count = load i64, ptr %count.at
  %buffers = alloca ptr, i64 %count, align 64
  %weights.at = getelementptr i64, ptr %context, i64 {Word.WEIGHTS.value}
  %weights = load ptr, ptr %weights.at
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %put ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %place, label %call
place:
  %twice = shl i64 %i, 1
  %kind.at = getelementptr i64, ptr %first, i64 %twice
  %value.at = getelementptr i64, ptr %kind.at, i64 1
  %kind = load i64, ptr %kind.at
  %value = load i64, ptr %value.at
  %outside = icmp eq i64 %kind, {_EXTERNAL}
  br i1 %outside, label %given, label %own
given:
  %given.at = getelementptr ptr, ptr %externals, i64 %value
  %a = load ptr, ptr %given.at
  br label %put
own:
  %is_weight = icmp eq i64 %kind, {_WEIGHTS}
  %is_arena = icmp eq i64 %kind, {_ARENA}
  %other = select i1 %is_arena, ptr %arena, ptr %behind
  %base = select i1 %is_weight, ptr %weights, ptr %other
  %b = getelementptr i8, ptr %base, i64 %value
  br label %put
put:
  %address = phi ptr [ %a, %given ], [ %b, %own ]
  %buffer.at = getelementptr ptr, ptr %buffers, i64 %i
  store ptr %address, ptr %buffer.at
  %next = add i64 %i, 1
  br label %head
call:
  %words = shl i64 %count, 1
  %sizes = getelementptr i64, ptr %first, i64 %words
  %units = load i64, ptr %units.at
  %grain = load i64, ptr %grain.at
  %bytes = load i64, ptr %bytes.at
  %number = load i64, ptr %number.at
  %offset = load i64, ptr %scratch.at
  %scratch = getelementptr i8, ptr %behind, i64 %offset
  %code = call i32 @dispatch(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
      i64 %grain, ptr %scratch, i64 %bytes, i64 %number)
  ret i32 %code
}}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A task in numbers."""

    function: str
    words: tuple[int, ...]


def prepared_rows(
    writer: StepWriter, step: ProgramStep, tasks: range, flag: int
) -> list[Row] | None:
    """The tasks of a step, or those of its panels; None where it must be written out. `flag` is
    where it is said whether anything that they read has changed, or ALWAYS."""
    if not isinstance(step.lowering, KernelSequence):
        return None
    if not step.packed_offsets:
        return called_rows(writer, step, tasks, flag)
    found: list[Row | None] = []
    for i, packed in enumerate(step.lowering.schedule.packed):
        places = [_place(writer, step, b, (), packing=i) for b in packed.task.buffers]
        found.append(_row(writer, packed.task, places, (0, flag, step.number + i)))
    return _all(found)


def called_rows(
    writer: StepWriter, step: ProgramStep, tasks: range, flag: int = ALWAYS
) -> list[Row] | None:
    """Some tasks of a step; None where it must be written out."""
    if not isinstance(step.lowering, KernelSequence):
        return None
    temps = _offsets(step.lowering.schedule.temps)
    first = step.number + len(step.lowering.schedule.packed)
    found: list[Row | None] = []
    for i in tasks:
        task: Task = step.lowering.schedule.tasks[i]
        places = [_place(writer, step, b, temps) for b in task.buffers]
        found.append(_row(writer, task, places, (temps[-1], flag, first + i)))
    return _all(found)


def _all(found: Sequence[Row | None]) -> list[Row] | None:
    rows = [row for row in found if row is not None]
    return rows if len(rows) == len(found) else None


_Place = tuple[int, DimLike] | None


def _offsets(sizes: Sequence[DimLike]) -> list[DimLike]:
    """Where each temporary begins, and where the last ends."""
    found: list[DimLike] = [0]
    for size in sizes:
        found.append(found[-1] + round_up(size))
    return found


def _place(
    writer: StepWriter,
    step: ProgramStep,
    buffer: Buffer,
    temps: Sequence[DimLike],
    packing: int | None = None,
) -> _Place:
    index = buffer.index
    match buffer.kind:
        case "operand":
            return _slot(writer, step.operands[index])
        case "result" if packing is not None:
            return _WEIGHTS, step.packed_offsets[packing]
        case "result":
            return _slot(writer, step.results[index])
        case "temp":
            return _BEHIND, temps[index]
        case "packed":
            return _WEIGHTS, step.packed_offsets[index]
        case "size":
            return None


def _slot(writer: StepWriter, value: Value) -> _Place:
    """None where a row cannot say it: inside of an external array."""
    root, base = value.node, value.base_bytes
    number = writer.number_outside(root)
    if number is not None:
        return None if base else (_EXTERNAL, number)
    slot = writer.plan.assignments[root]
    if slot.space is Space.WEIGHTS:
        return _WEIGHTS, writer.subprogram.weights_at + slot.offset + base
    return _ARENA, slot.offset + base


def _row(
    writer: StepWriter, task: Task, places: Sequence[_Place], more: tuple[DimLike, int, int]
) -> Row | None:
    scratch, flag, number = more
    words: list[DimLike] = [
        flag, len(places), task.units, task.grain, round_up(task.scratch_stride), number, scratch
    ]  # fmt: skip
    for place in places:
        if place is None:
            return None
        words += place
    words += task.sizes
    if any(isinstance(w, Dim) for w in words):
        return None
    numbers = [int(w) for w in words]
    numbers[2:4] = [max(1, n) for n in numbers[2:4]]
    return Row(writer.names.of(task), tuple(numbers))
