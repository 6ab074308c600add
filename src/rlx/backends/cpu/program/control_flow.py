"""Branches and loops as native code, around the subprograms of their bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.call_context import Word
from rlx.core.dim import Dim, DimLike, dim_max
from rlx.core.dtype import DType
from rlx.core.extent import ceiling, of_symbol
from rlx.core.shape import Shape
from rlx.ir.extents import measured_by
from rlx.ir.mir import Node
from rlx.kernel.program.program import (
    Branch,
    HostCall,
    Nested,
    ProgramStep,
    ScanLoop,
    Subprogram,
    WhileLoop,
)
from rlx.program.types import POINTER

if TYPE_CHECKING:
    from rlx.backends.cpu.program.assemble import MemoryNeeds, StepWriter

FLAG = 64
"""Bytes for a condition."""


def need_of(needs: MemoryNeeds, step: ProgramStep) -> Bound:
    """The bytes that a step takes behind the arena it is in, apart from copied operands."""
    code, control = needs.code, step.lowering
    match control:
        case Nested():
            return needs.nested(control.body)
        case Branch():
            inside = code.most(needs.nested(control.then), needs.nested(control.other))
            return code.i64("add", needs.sum(_open_sizes(step, control)), inside)
        case WhileLoop():
            inside = code.most(needs.nested(control.condition), needs.nested(control.body))
            carries = needs.sum(_carry_sizes(step, control))
            return code.i64("add", FLAG, code.i64("add", carries, code.i64("add", carries, inside)))
        case ScanLoop():
            carries = needs.sum(_sizes(step, control.num_carries))
            return code.i64("add", needs.nested(control.body), code.i64("add", carries, carries))
        case _:
            return 0


def _sizes(step: ProgramStep, count: int) -> list[DimLike]:
    return [i.shape.size_bytes for i in step.node.inputs[:count]]


def _carry_sizes(step: ProgramStep, control: WhileLoop) -> list[DimLike]:
    """The most that each carry of a loop takes, before a step, after it, or at the end."""
    made = control.body.graph.outputs
    each = zip(step.node.inputs[: control.num_carries], step.node.shapes, made)
    return [_most([a.shape, b, c.shape]) for a, b, c in each]


def _open_sizes(step: ProgramStep, control: Branch) -> list[DimLike]:
    """The most that each result of a branch takes whose size follows from the side that ran."""
    sides = zip(control.then.graph.outputs, control.other.graph.outputs)
    if not step.node.attrs["extent"]:
        return []
    return [_most([a.shape, b.shape]) for a, b in sides]


def _most(shapes: Sequence[Shape]) -> DimLike:
    found = [ceiling(s.size_bytes) for s in shapes]
    return functools.reduce(dim_max, dict.fromkeys(found))


def write(writer: StepWriter, step: ProgramStep) -> None:
    """The code of a step that runs subprograms."""
    operands, memory = _operands(writer, step)
    results = [writer.start(v) for v in step.results]
    control = _Control(writer, step, operands, results, memory)
    match step.lowering:
        case Nested():
            control.call(step.lowering.body, [*operands, *results], memory)
        case Branch():
            control.branch(step.lowering)
        case WhileLoop():
            control.loop(step.lowering)
        case ScanLoop():
            control.scan(step.lowering)
        case HostCall():
            control.host()
        case _:
            raise AssertionError(step.lowering)


def _operands(writer: StepWriter, step: ProgramStep) -> tuple[list[str], str]:
    """The addresses of the operands, copied to be contiguous where they are strided; and the first
    free byte behind them."""
    copied = [v.size for v, t in zip(step.operands, step.copies) if t is not None]
    temps, memory = writer.temps(copied, writer.behind)
    found: list[str] = []
    number = step.number
    for value, copy in zip(step.operands, step.copies):
        if copy is None:
            found.append(writer.start(value))
            continue
        place = temps.pop(0)
        (task,) = copy.schedule.tasks
        writer.task(task, [writer.base(value), place], memory, number)
        found.append(place)
        number += 1
    return found, memory


class _Control:
    def __init__(
        self,
        writer: StepWriter,
        step: ProgramStep,
        operands: Sequence[str],
        results: Sequence[str],
        memory: str,
    ) -> None:
        self.writer, self.code, self.step = writer, writer.code, step
        self.operands, self.results, self.memory = operands, results, memory

    def call(self, subprogram: Subprogram, externals: Sequence[str], memory: str) -> None:
        """Run a subprogram on these inputs and outputs, in this memory."""
        code = self.code
        given = code.slot(f"[{max(1, len(externals))} x ptr]")
        for i, address in enumerate(subprogram.externals(externals)):
            at = code.advanced(given, i, POINTER)
            code.store_uniform(at, address, POINTER)
        args = f"ptr %context, ptr {memory}, ptr {given}"
        self.writer.check(code.let(f"call i32 @{subprogram.name}({args})"))

    def branch(self, control: Branch) -> None:
        """A side writes where the results are; where its own sizes decide how large they are, it
        writes beside, and what fits is copied."""
        places, memory = self.writer.temps(_open_sizes(self.step, control), self.memory)
        externals = [*self.operands[1:], *(places or self.results)]
        yes = self._flag(self.operands[0])
        no = self.code.negated(yes)
        for taken, side in ((yes, control.then), (no, control.other)):
            with self.code.when(taken), self.writer.apart():
                self.call(side, externals, memory)
                made = [o.shape for o in side.graph.outputs]
                self.settle(self._news(self.step.node.shapes, made))
        for result, place, shape in zip(self.results, places, self.step.node.shapes):
            self.writer.copy(result, place, self.writer.value(shape.size_bytes))

    # -- sizes that a step finds out ------------------------------------------------------------

    def _news(self, named: Sequence[Shape], made: Sequence[Shape]) -> dict[str, DimLike]:
        """The sizes that the step names among dims, and what they are found to be."""
        own = {s.name for s in measured_by(self.step.node)}
        found: dict[str, DimLike] = {}
        for a, b in zip(named, made):
            for dim, new in zip(a.dims, b.dims):
                if isinstance(dim, Dim) and dim.name in own:
                    found.setdefault(dim.name, new)
        return found

    def settle(self, news: Mapping[str, DimLike]) -> None:
        """Write sizes into the table, all at once, for one may follow from another; leave where
        there is no room for them."""
        values = {name: self.writer.value(dim) for name, dim in news.items()}
        for name, value in values.items():
            self.put_size(name, value)

    def put_size(self, name: str, value: Bound) -> None:
        code, writer = self.code, self.writer
        code.store_scalar(writer.value.address(name), value, DType.I64)
        symbol = next(s for s in measured_by(self.step.node) if s.name == name)
        most = writer.value(ceiling(of_symbol(symbol)))
        with code.when(code.compare("gt", value, most)):
            self.leave()

    def leave(self) -> None:
        """The call cannot go on: a size has outgrown its capacity."""
        code = self.code
        number = self.step.number + max(1, sum(t is not None for t in self.step.copies))
        code.store_scalar(self.writer.word_at(Word.FAILED), number << 32 | 1, DType.I64)
        code.do("ret i32 1")
        code.place(code.label("never"))

    def _flag(self, address: str) -> str:
        byte = self.code.load_scalar(address, DType.U8)
        return self.code.compare("ne", byte, 0, DType.I8)

    # -- loops ----------------------------------------------------------------------------------

    def loop(self, control: WhileLoop) -> None:
        """Carries go to and fro between two places, so that a step never writes what it reads.
        Sizes that change are in the table of sizes, where the bodies read them."""
        code, node = self.code, self.step.node
        inputs = [leaf.shape for leaf in node.attrs["body"].inputs]
        memory = self.writer.offset(self.memory, FLAG)
        flag, carries = self.memory, self._carries(_carry_sizes(self.step, control), memory)
        self.settle(self._news(inputs, [i.shape for i in node.inputs]))
        rows = self._rows(node)
        inside = carries.behind
        head, body, done = (code.label() for _ in range(3))
        turn = code.slot("i64")
        code.do(f"store i64 0, ptr {turn}", f"br label %{head}")
        code.place(head)
        now = code.load_scalar(turn, DType.I64)
        if control.limit is not None:
            more, test = code.compare("lt", now, control.limit), code.label()
            code.do(f"br i1 {more}, label %{test}, label %{done}")
            code.place(test)
        before, after = carries.places(now)
        before += self.operands[control.num_carries :]
        self.call(control.condition, [*before, flag], inside)
        code.do(f"br i1 {self._flag(flag)}, label %{body}, label %{done}")
        code.place(body)
        with self.writer.apart():
            next_ = code.i64("add", now, 1)
            if rows:
                self.put_size(f"{node.attrs['extent']}.rows", next_)
            places = [self.writer.offset(p, code.i64("mul", now, size)) for p, size in rows]
            self.call(control.body, [*before, *after, *places], inside)
            self.settle(self._news(inputs, [o.shape for o in control.body.graph.outputs]))
            self._poll()
            code.do(f"store i64 {next_}, ptr {turn}", f"br label %{head}")
        code.place(done)
        turns = code.load_scalar(turn, DType.I64)
        if rows:
            self.put_size(f"{node.attrs['extent']}.rows", turns)
        carries.deliver(turns)

    def _rows(self, node: Node) -> list[tuple[str, Bound]]:
        """Where rows are stacked, and the bytes of each."""
        count = node.attrs["num_rows"]
        found = zip(self.results, node.shapes)
        rows = list(found)[len(node.shapes) - count :] if count else []
        return [(place, self.writer.value(_row(shape))) for place, shape in rows]

    def scan(self, control: ScanLoop) -> None:
        code, writer, node = self.code, self.writer, self.step.node
        count, end = control.num_carries, control.num_carries + control.num_bcasts
        carries = self._carries(_sizes(self.step, count), self.memory)
        whole, length = self.operands[count:end], writer.value(control.length)
        sliced = [(p, _row(i.shape)) for p, i in zip(self.operands[end:], node.inputs[end:])]
        stacked = [(p, _row(s)) for p, s in zip(self.results[count:], node.shapes[count:])]
        sizes = [writer.value(size) for _, size in (*sliced, *stacked)]
        with code.count(0, length, 1) as turn:
            at = code.i64("sub", code.i64("sub", length, 1), turn) if control.is_reversed else turn
            rows = [
                writer.offset(place, code.i64("mul", at, size))
                for (place, _), size in zip((*sliced, *stacked), sizes)
            ]
            before, after = carries.places(turn)
            given = [*before, *whole, *rows[: len(sliced)]]
            self.call(control.body, [*given, *after, *rows[len(sliced) :]], carries.behind)
            self._poll()
        carries.deliver(length)

    def _poll(self) -> None:
        """A loop may have no end: Ctrl-C is looked for on every turn."""
        function = self.writer.word(Word.POLL)
        given = f"ptr {self.writer.word_at(Word.POLL)}"
        self.writer.check(self.code.let(f"call i32 {function}({given})"))

    def _carries(self, sizes: Sequence[DimLike], memory: str) -> _Carries:
        return _Carries(self, sizes, memory)

    # -- the host -------------------------------------------------------------------------------

    def host(self) -> None:
        code, writer = self.code, self.writer
        given = code.slot(f"[{len(self.operands) + len(self.results)} x ptr]")
        for i, address in enumerate((*self.operands, *self.results)):
            at = code.advanced(given, i, POINTER)
            code.store_uniform(at, address, POINTER)
        function = writer.word(Word.HOST)
        args = f"ptr %context, i64 {self.step.number}, ptr {given}"
        writer.check(code.let(f"call i32 {function}({args})"))


class _Carries:
    """Two places for what goes from step to step, of these sizes."""

    def __init__(self, control: _Control, sizes: Sequence[DimLike], memory: str) -> None:
        self.control, self.writer, self.code = control, control.writer, control.code
        self.first, between = self.writer.temps(sizes, memory)
        self.second, self.behind = self.writer.temps(sizes, between)
        node = control.step.node
        each = zip(self.first, control.operands, node.inputs)
        for place, operand, given in each:
            self.writer.copy(place, operand, self.writer.value(given.shape.size_bytes))

    def places(self, turn: Bound) -> tuple[list[str], list[str]]:
        """Where the carries are before a step, and where it puts them."""
        is_odd = self._is_odd(turn)
        return self._chosen(is_odd, self.second, self.first), self._chosen(
            is_odd, self.first, self.second
        )

    def deliver(self, turns: Bound) -> None:
        """The carries after so many iterations, to the results."""
        last = self._chosen(self._is_odd(turns), self.second, self.first)
        shapes = self.control.step.node.shapes
        for result, place, shape in zip(self.control.results, last, shapes):
            self.writer.copy(result, place, self.writer.value(shape.size_bytes))

    def _is_odd(self, turn: Bound) -> str:
        return self.code.converted(turn, DType.I64, DType.BOOL)

    def _chosen(self, yes: str, some: Sequence[str], others: Sequence[str]) -> list[str]:
        return [self.code.let(f"select i1 {yes}, ptr {a}, ptr {b}") for a, b in zip(some, others)]


def _row(shape: Shape) -> DimLike:
    """The bytes of one slice along the first axis."""
    total: DimLike = shape.dtype.itemsize
    for dim in shape.dims[1:]:
        total = total * dim
    return total
