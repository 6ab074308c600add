"""Subprograms as LLVM text: a function for each, which calls the steps' tasks one after the other.

    i32 subprogram(ptr context, ptr arena, ptr externals)

Behind a plan's arena lies the memory of the step that runs: its temporaries, a part of scratch for
every worker, or the arena of the subprograms inside it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm import builder
from rlx.backends.cpu.llvm.function import Function, TaskCode
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.call_context import Word
from rlx.backends.cpu.program.dim_formulas import Formulas
from rlx.backends.cpu.program.step_tables import (
    ALWAYS,
    TABLED_STEPS,
    Row,
    called_rows,
    prepared_rows,
)
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import DimLike, round_up
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.ir.lir import Phase, Space
from rlx.ir.mir import Node
from rlx.kernel.program.program import KernelSequence, ProgramStep, Subprogram, Value
from rlx.kernel.program.schedule import Buffer
from rlx.kernel.program.select import MAIN
from rlx.program.types import POINTER

MIN_COPIED_WORDS = 4
"""Words that are copied rather than stored one by one."""
ARGS = "ptr %context, ptr %arena, ptr %externals"
PART_ARGS = f"{ARGS}, ptr %behind"
"""A part of a subprogram is given the end of the arena, which may be a long formula."""
DISPATCH = f"""
define internal i32 @dispatch(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
    i64 %grain, ptr %scratch, i64 %bytes, i64 %number) noinline {{
entry:
  %small = icmp sle i64 %units, %grain
  br i1 %small, label %single, label %many
single:
  %poll = getelementptr i64, ptr %context, i64 {Word.POLL.value}
  %a = call i32 %function(ptr %buffers, ptr %sizes, i64 0, i64 %units, ptr %scratch, ptr %poll)
  br label %done
many:
  %region.at = getelementptr i64, ptr %context, i64 {Word.REGION.value}
  %region = load ptr, ptr %region.at
  %b = call i32 %region(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
      i64 %grain, ptr %scratch, i64 %bytes)
  br label %done
done:
  %code = phi i32 [ %a, %single ], [ %b, %many ]
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %fine
failed:
  %failed.at = getelementptr i64, ptr %context, i64 {Word.FAILED.value}
  %wide = zext i32 %code to i64
  %high = shl i64 %number, 32
  %both = or i64 %high, %wide
  store i64 %both, ptr %failed.at
  br label %fine
fine:
  ret i32 %code
}}
"""


@dataclass(frozen=True, slots=True)
class Names:
    """What functions of a program refer to."""

    sizes: dict[str, int]
    """Named dim → its place in the table of sizes."""
    functions: Mapping[TaskCode, str]
    """The native function of each code that was written; equal ones are one."""

    def of(self, task: Task) -> str:
        """The function that a task calls."""
        return self.functions[task.code]


class FunctionWriter:
    """A function of a subprogram being written."""

    def __init__(self, subprogram: Subprogram, isa: Isa, names: Names) -> None:
        self.subprogram, self.plan, self.graph = subprogram, subprogram.plan, subprogram.graph
        self.code = builder.Code(1, isa)
        self.names = names
        self.symbols = self.word(Word.SYMBOLS)
        self.value = Formulas(self.code, names.sizes, self.symbols)
        self._weights = ""

    def word(self, word: Word, kind: str = "ptr") -> str:
        return self.code.let(f"load {kind}, ptr {self.word_at(word)}")

    def word_at(self, word: Word) -> str:
        return self.code.advanced("%context", word.value, DType.I64)

    def offset(self, pointer: str, count: Bound) -> str:
        """The pointer, some bytes on."""
        return advanced(self.code, pointer, count, DType.U8)

    def weights(self, at: DimLike) -> str:
        if not self._weights:
            self._weights = self.code.name("weights")
            place = f"{self._weights}.at"
            self.code.enter(
                f"  {place} = getelementptr i64, ptr %context, i64 {Word.WEIGHTS.value}",
                f"  {self._weights} = load ptr, ptr {place}",
            )
        return self.offset(self._weights, self.value(at))

    def align(self, count: Bound) -> Bound:
        if isinstance(count, int):
            return round_up(count)  # pyright: ignore[reportReturnType]
        return self.code.integer("and", self.code.i64("add", count, 63), -64)

    def check(self, result: str) -> None:
        """Leave with a code that is not 0."""
        code, bad, on = self.code, self.code.label("bad"), self.code.label("on")
        code.do(f"br i1 {code.let(f'icmp ne i32 {result}, 0')}, label %{bad}, label %{on}")
        code.place(bad)
        code.do(f"ret i32 {result}")
        code.place(on)

    def function(self, name: str, head: str) -> Function:
        return Function(name, self.code.function(head), tuple(self.code.shared.items()))

    @contextmanager
    def apart(self) -> Generator[None]:
        """TaskCode that may not run: what is computed in it is not known behind it."""
        known = self.value
        self.value = known.copy()
        yield
        self.value = known


class MemoryNeeds(FunctionWriter):
    """How many bytes a subprogram takes: its arena, and the most that one of its steps takes. Sizes
    that are measured count as the most they can be."""

    def whole(self, steps: Sequence[ProgramStep], parts: Sequence[str]) -> Function:
        """What all take; of some steps a part has the most."""
        most = self.most(steps)
        for part in parts:
            most = self.code.most(most, self.code.let(f"call i64 @{part}(ptr %context)"))
        arena = self.align(self.value(self.plan.arena_formula))
        return self.returning(f"{self.subprogram.name}.need", self.code.i64("add", arena, most))

    def most(self, steps: Sequence[ProgramStep]) -> Bound:
        """What one of these steps takes at most."""
        threads = self.word(Word.THREADS, "i64")
        most: Bound = 0
        for step in steps:
            most = self.code.most(most, self.of_step(step, threads))
        return most

    def returning(self, name: str, size: Bound) -> Function:
        self.code.do(f"ret i64 {size}")
        return self.function(name, f"define internal i64 @{name}(ptr %context)")

    def of_step(self, step: ProgramStep, threads: str) -> Bound:
        lowering = step.lowering
        if isinstance(lowering, KernelSequence):
            scratch = self.scratch(lowering.schedule.all_tasks, threads)
            return self.code.i64("add", self.sum(lowering.schedule.temps), scratch)
        from rlx.backends.cpu.program.control_flow import need_of

        tasks = [t for c in step.copies if c is not None for t in c.schedule.tasks]
        copied = [v.size for v, t in zip(step.operands, step.copies) if t is not None]
        own = self.code.most(need_of(self, step), self.scratch(tasks, threads))
        return self.code.i64("add", self.sum(copied), own)

    def sum(self, sizes: Iterable[DimLike]) -> Bound:
        total: Bound = 0
        for size in sizes:
            total = self.code.i64("add", total, self.align(self.value(ceiling(size))))
        return total

    def scratch(self, tasks: Iterable[Task], threads: str) -> Bound:
        most: Bound = 0
        for task in tasks:
            most = self.code.most(most, self.align(self.value(ceiling(task.scratch_stride))))
        return self.code.i64("mul", threads, most)

    def nested(self, subprogram: Subprogram) -> str:
        return self.code.let(f"call i64 @{subprogram.name}.need(ptr %context)")


class StepWriter(FunctionWriter):
    """Steps run one after the other; the function leaves with the code of the first that fails."""

    def __init__(self, subprogram: Subprogram, isa: Isa, names: Names) -> None:
        super().__init__(subprogram, isa, names)
        self.outside = subprogram.external_indices
        self.first_output = len(subprogram.graph.given) + len(subprogram.graph.params)
        self.outputs = subprogram.output_indices
        self.behind = "%behind"
        self.buffers, self.sizes = "%buffers", "%sizes"
        self.most = [1, 1]
        self.table: list[int] = []
        """The words of the table of this function."""

    def end_of_arena(self) -> str:
        return self.offset("%arena", self.align(self.value(self.plan.arena_formula)))

    def finish(self, name: str, args: str = PART_ARGS) -> Function:
        self.code.do("ret i32 0")
        if self.table:
            table, words = f"{name}.rows", ", ".join(f"i64 {w}" for w in self.table)
            kind = f"[{len(self.table)} x i64]"
            self.code.shared[table] = f"@{table} = internal constant {kind} [{words}], align 64"
            self.code.enter(f"  %rows = getelementptr i8, ptr @{table}, i64 0")
        self.code.enter(
            f"  {self.buffers} = alloca [{self.most[0]} x ptr], align 64",
            f"  {self.sizes} = alloca [{self.most[1]} x i64], align 64",
        )
        return self.function(name, f"define internal i32 @{name}({args}) noinline")

    # -- addresses ------------------------------------------------------------------------------

    def external(self, number: int) -> str:
        at = self.code.advanced("%externals", number, POINTER)
        return self.code.load_uniform(at, POINTER)

    def number_outside(self, root: Node) -> int | None:
        """Which of the caller's arrays a value is, if it is one."""
        return self.outside.get(root)

    def slot(self, root: Node) -> str:
        """Where the bytes of a value begin that has a slot."""
        number = self.number_outside(root)
        if number is not None:
            return self.external(number)
        slot = self.plan.assignments[root]
        if slot.space is Space.WEIGHTS:
            return self.weights(self.subprogram.weights_at + slot.offset)
        return self.offset("%arena", self.value(slot.offset))

    def base(self, value: Value) -> str:
        """The address from which a kernel's layout of a value counts."""
        return self.offset(self.slot(value.node), value.base_bytes)

    def start(self, value: Value) -> str:
        """The address of the first element of a contiguous value."""
        size = value.node.shape.dtype.itemsize
        return self.offset(self.slot(value.node), self.value(value.layout.offset * size))

    # -- tasks ----------------------------------------------------------------------------------

    def step(self, step: ProgramStep, tasks: range) -> None:
        """Some of the step's tasks."""
        if not isinstance(step.lowering, KernelSequence):
            from rlx.backends.cpu.program.control_flow import write

            write(self, step)
            return
        is_long = max(len(self.subprogram.calls), tasks.stop) >= TABLED_STEPS
        rows = called_rows(self, step, tasks) if is_long else None
        if rows is not None:
            self._by_rows("perform", rows)
            return
        schedule = step.lowering.schedule
        temps, scratch = self.temps(schedule.temps, self.behind)
        first = step.number + len(schedule.packed)
        for i in tasks:
            task = schedule.tasks[i]
            self.task(
                task, [self.address(step, b, temps) for b in task.buffers], scratch, first + i
            )

    def temps(self, sizes: Iterable[DimLike], at: str) -> tuple[list[str], str]:
        """Addresses of temporaries from an address on, and where they end."""
        found: list[str] = []
        for size in sizes:
            found.append(at)
            at = self.offset(at, self.align(self.value(size)))
        return found, at

    def address(self, step: ProgramStep, buffer: Buffer, temps: Sequence[str]) -> str:
        match buffer.kind:
            case "operand":
                return self.base(step.operands[buffer.index])
            case "result":
                return self.base(step.results[buffer.index])
            case "temp":
                return temps[buffer.index]
            case "packed":
                return self.weights(step.packed_offsets[buffer.index])
            case "size":
                return self.value.address(step.sizes[buffer.index])

    def task(self, task: Task, addresses: Sequence[str], scratch: str, number: int) -> None:
        code = self.code
        for i, address in enumerate(addresses):
            self._put("ptr", self.buffers, i, address)
        sizes = self._sizes([self.value(size) for size in task.sizes])
        self.most[0] = max(self.most[0], len(addresses))
        units, grain = (code.most(self.value(d), 1) for d in (task.units, task.grain))
        given = f"ptr @{self.names.of(task)}, ptr {self.buffers}, ptr {sizes}"
        bytes_ = self.align(self.value(task.scratch_stride))
        much = f"i64 {units}, i64 {grain}, ptr {scratch}, i64 {bytes_}, i64 {number}"
        self.check(code.let(f"call i32 @dispatch(ptr %context, {given}, {much})"))

    def _sizes(self, sizes: Sequence[Bound]) -> str:
        """Where a task finds its sizes. What is known now is a row of a table: read there, or
        copied at once, where the rest is filled in."""
        known = [s if isinstance(s, int) else 0 for s in sizes]
        open_ = {i: s for i, s in enumerate(sizes) if not isinstance(s, int)}
        if sizes and not open_:
            return self._row(known)
        if len(sizes) - len(open_) >= MIN_COPIED_WORDS:
            self.copy(self.sizes, self._row(known), 8 * len(sizes))
        else:
            open_ = dict(enumerate(sizes))
        for i, size in open_.items():
            self._put("i64", self.sizes, i, size)
        self.most[1] = max(self.most[1], len(sizes))
        return self.sizes

    def _row(self, words: Sequence[int]) -> str:
        """The address of words in the table of this function."""
        at = 8 * len(self.table)
        self.table += words
        return self.offset("%rows", at)

    def _put(self, kind: str, base: str, number: int, value: Bound) -> None:
        at = self.code.let(f"getelementptr {kind}, ptr {base}, i64 {number}")
        self.code.do(f"store {kind} {value}, ptr {at}")

    def prepare(self, step: ProgramStep, number: int, tasks: range) -> None:
        """A step of the prologue, or the panels of another, if what it reads has changed; which
        of them have is known for the main subprogram alone."""
        is_main = self.subprogram.name == MAIN
        rows = prepared_rows(self, step, tasks, number if is_main else ALWAYS)
        if rows is not None:
            self._by_rows("prepare", rows)
            return
        if not is_main:
            self._prepared(step, tasks)
            return
        code, known = self.code, self.value
        changed = self.word(Word.CHANGED)
        test, yes, done = (code.label() for _ in range(3))
        code.do(f"br i1 {code.let(f'icmp eq ptr {changed}, null')}, label %{yes}, label %{test}")
        code.place(test)
        byte = code.load_scalar(self.offset(changed, number), DType.U8)
        code.do(f"br i1 {code.let(f'icmp eq i8 {byte}, 0')}, label %{done}, label %{yes}")
        code.place(yes)
        self.value = Formulas(code, self.names.sizes, self.symbols)
        self._prepared(step, tasks)
        self.value = known
        code.do(f"br label %{done}")
        code.place(done)

    def _prepared(self, step: ProgramStep, tasks: range) -> None:
        if step.packed_offsets:
            self.pack(step)
        else:
            self.step(step, tasks)

    def prepare_bodies(self, bodies: Iterable[tuple[Subprogram, Sequence[Value]]]) -> None:
        """The prologues of the subprograms whose weights come from here, one after the other."""
        for subprogram, values in bodies:
            count = len(subprogram.graph.inputs)
            given = self.code.slot(f"[{count + len(subprogram.bound)} x ptr]")
            for i, number in enumerate(subprogram.bound, count):
                self._put("ptr", given, i, self.start(values[number]))
            args = f"ptr %context, ptr %arena, ptr {given}"
            self.check(self.code.let(f"call i32 @{subprogram.name}.prologue({args})"))

    def _by_rows(self, function: str, rows: Iterable[Row]) -> None:
        """Tasks by their rows in the table of this function."""
        for row in rows:
            given = f"ptr {self.behind}, ptr @{row.function}, ptr {self._row(row.words)}"
            self.check(self.code.let(f"call i32 @{function}({ARGS}, {given})"))

    def pack(self, step: ProgramStep) -> None:
        """Make the panels of a step."""
        assert isinstance(step.lowering, KernelSequence)
        for i, packed in enumerate(step.lowering.schedule.packed):
            places = [
                self.weights(step.packed_offsets[i])
                if b.kind == "result"
                else self.address(step, b, ())
                for b in packed.task.buffers
            ]
            self.task(packed.task, places, self.behind, step.number + i)

    def call(self, parts: Iterable[str], behind: str) -> None:
        """Parts, one after the other, and the arena's end for each."""
        for part in parts:
            self.check(self.code.let(f"call i32 @{part}({ARGS}, ptr {behind})"))

    # -- outputs --------------------------------------------------------------------------------

    def copied_outputs(self, *phases: Phase) -> list[int]:
        """The outputs of these phases that no step writes: inputs, weights, and values returned
        twice."""
        return [
            number
            for number, output in enumerate(self.graph.outputs)
            if self.plan.phases[output] in phases
            and self.outputs.get(self.plan.root(output)) != number
        ]

    def deliver(self, outputs: Iterable[int]) -> None:
        """Copy outputs to where the caller has them."""
        for number in outputs:
            output = self.graph.outputs[number]
            value = Value(self.plan.root(output), self.plan.layout(output))
            size = self.value(output.shape.size_bytes)
            self.copy(self.external(self.first_output + number), self.start(value), size)

    def copy(self, to: str, source: str, size: Bound) -> None:
        self.code.intrinsic(
            "memcpy.p0.p0.i64", "void", f"ptr {to}", f"ptr {source}", f"i64 {size}", "i1 false"
        )
