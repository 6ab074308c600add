"""A whole program as LLVM text: kernels, subprograms, and the one function that is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Function, TaskCode, module
from rlx.backends.cpu.program.artefact import PrologueReads
from rlx.backends.cpu.program.assemble import DISPATCH, FunctionWriter, Names
from rlx.backends.cpu.program.call_context import Mode, Word
from rlx.backends.cpu.program.functions import chunks, functions_of
from rlx.backends.cpu.program.step_tables import PERFORM, PREPARE
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import Dim, DimLike, Symbol, symbols_of
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.ir.lir import Phase
from rlx.ir.mir import Node
from rlx.ir.size_requirements import size_requirements
from rlx.kernel.program.program import (
    KernelProgram,
    KernelSequence,
    ProgramStep,
    Subprogram,
    Value,
)

CALL_ARGS = "ptr %context, ptr {arena}, ptr {externals}"


@dataclass(frozen=True, slots=True)
class Assembled:
    """The text of a program, and what is said beside it."""

    kernels: tuple[Function, ...]
    subprograms: tuple[Function, ...]
    """What calls the kernels; the last is the one that is called."""
    isa: Isa
    symbols: tuple[Symbol, ...]
    """The named dims, in the order of their sizes in a call's context."""
    constants: tuple[tuple[DimLike, Node], ...]
    """Where in the weights each constant is to lie."""
    prologue: tuple[PrologueReads, ...]
    """What each of its steps reads."""
    call_params: frozenset[int]
    """The params that calls read."""
    names: Names
    program: KernelProgram

    @property
    def main(self) -> Subprogram:
        return self.program.main

    @property
    def text(self) -> str:
        """All of it, as one module."""
        return module([*self.kernels, *self.subprograms], self.isa)


def assembled(
    program: KernelProgram,
    isa: Isa,
    dispatch: str = DISPATCH,
    written: Callable[[Function], None] | None = None,
) -> Assembled:
    """The code of a program. `dispatch` is the function that every task is called through: a timed
    build has another one, and differs in nothing else. Kernels are shown to `written` at once, in
    order, so that they can be compiled while others are written."""
    subprograms = program.subprograms.values()
    symbols = _symbols(subprograms)
    kernels = _Kernels(written)
    for sequence in program.sequences:
        kernels.write(sequence)
    names = Names({s.name: i for i, s in enumerate(symbols)}, kernels.names)
    parts = [f for r in subprograms for f in functions_of(r, isa, names)]
    run = _Main(program, names, symbols, isa)
    return Assembled(
        tuple(kernels.functions.values()),
        (
            Function("dispatch", dispatch, ()),
            Function("perform", PERFORM, ()),
            Function("prepare", PREPARE, ()),
            *parts,
            *run.functions(),
        ),
        isa,
        symbols,
        tuple(c for r in subprograms for c in _constants(r)),
        tuple(_prologue_reads(program)),
        _read_by_calls(program),
        names,
        program,
    )


class _Kernels:
    """The functions of all kernels; those that differ in the name alone are one."""

    def __init__(self, written: Callable[[Function], None] | None) -> None:
        self.functions: dict[str, Function] = {}
        self.names: dict[TaskCode, str] = {}
        self._written = written

    def write(self, sequence: KernelSequence) -> None:
        tasks: tuple[Task, ...] = sequence.schedule.all_tasks
        for code in (t.code for t in tasks):
            if code not in self.names:
                self.names[code] = self._function(code.source.function).name

    def _function(self, function: Function) -> Function:
        """The first that is the same but for its name."""
        text = function.text.partition("(")[2]
        if text not in self.functions:
            self.functions[text] = function
            if self._written is not None:
                self._written(function)
        return self.functions[text]


def _prepares(subprogram: Subprogram) -> bool:
    """Has it bodies whose weights it gives?"""
    return any(body.bound for step in subprogram.calls for body, _ in step.bodies)


def _symbols(subprograms: Iterable[Subprogram]) -> tuple[Symbol, ...]:
    """Every named dim of the program, by name; those of the main graph and those of bodies."""
    dims: list[DimLike] = []
    for subprogram in subprograms:
        for node in subprogram.graph.nodes:
            dims += [d for s in node.shapes for d in s.dims]
            dims += [d for d in node.attrs.values() if isinstance(d, Dim)]
        dims += subprogram.plan.dynamic_symbols
    found = [d.symbol for d in symbols_of([d for d in dims if isinstance(d, Dim)])]
    return tuple(s for s in found if s is not None)


def _prologue_reads(program: KernelProgram) -> Iterator[PrologueReads]:
    """What each step of the prologue reads, and packing; in the end, as one step, what the bodies
    of control flow may, which prepare what they are given every time."""
    main = program.main
    reads = _reads_of_values(main)
    for step in main.prologue:
        yield PrologueReads.union(reads[i] for i in step.node.inputs)
    for step in main.packing:
        assert isinstance(step.lowering, KernelSequence)
        packing = (p.task for p in step.lowering.schedule.packed)
        indices = {b.index for t in packing for b in t.buffers if b.kind == "operand"}
        yield PrologueReads.union(reads[step.node.inputs[i]] for i in indices)
    if any(s.bound for s in program.subprograms.values()):
        yield PrologueReads(frozenset(range(len(main.graph.params))), frozenset())


def _reads_of_values(main: Subprogram) -> Mapping[Node, PrologueReads]:
    """Value of the prologue → the params or steps that it is, or is a view of."""
    none = frozenset[int]()
    reads = {n: PrologueReads(frozenset({i}), none) for i, n in enumerate(main.graph.params)}
    steps = {s.node: PrologueReads(none, frozenset({i})) for i, s in enumerate(main.prologue)}
    for node in main.graph.order():
        if node not in reads and main.plan.phases[node] is Phase.PROLOGUE:
            known = steps.get(node)
            reads[node] = known or PrologueReads.union(reads[i] for i in node.inputs)
    return reads


def _read_by_calls(program: KernelProgram) -> frozenset[int]:
    """The params that steps of a call read, or give, by number. What a step has packed it reads no
    more; bodies of control flow may read all that they are given."""
    main = program.main
    number = {n: i for i, n in enumerate(main.graph.params)}
    if len(program.subprograms) > 1:
        return frozenset(number.values())
    read = {main.plan.root(o) for o in main.graph.outputs}
    read |= {value.node for step in main.calls for value in _read_by(step)}
    return frozenset(number[n] for n in read if n in number)


def _read_by(step: ProgramStep) -> Iterable[Value]:
    """The operands that a call of the step reads."""
    if not isinstance(step.lowering, KernelSequence):
        return step.operands
    tasks: tuple[Task, ...] = step.lowering.schedule.tasks
    return [step.operands[b.index] for t in tasks for b in t.buffers if b.kind == "operand"]


def _constants(subprogram: Subprogram) -> list[tuple[DimLike, Node]]:
    slots = subprogram.plan.assignments
    found = [n for n in subprogram.graph.nodes if n.op == "constant" and n in slots]
    return [(subprogram.weights_at + slots[n].offset, n) for n in found]


class _Words(FunctionWriter):
    """Writes numbers that a call states."""

    def put(self, words: Iterable[tuple[int, DimLike]]) -> None:
        """Numbers at their places."""
        for at, value in words:
            place = self.code.advanced(self.needs, at, DType.I64)
            self.code.store_scalar(place, self.value(value), DType.I64)

    @cached_property
    def needs(self) -> str:
        return self.word(Word.NEEDS)

    def out_of_range(self, symbols: Iterable[Symbol], sizes: Iterable[DimLike]) -> str:
        """Is a named dim that the caller gives outside its range, or a size negative?"""
        code, bad = self.code, "false"
        for symbol in symbols:
            size = code.load_scalar(self.value.address(symbol.name), DType.I64)
            ends = [f"icmp slt i64 {size}, {symbol.min}"]
            ends += [] if symbol.max is None else [f"icmp sgt i64 {size}, {symbol.max}"]
            for end in ends:
                bad = code.either(bad, code.let(end))
        for size in sizes:
            is_negative = code.compare("lt", self.value(size), 0)
            bad = code.either(bad, is_negative)
        return bad


class _Main(_Words):
    """`run`: by the mode of the context, what a call needs, the prologue, or the call."""

    def __init__(
        self,
        program: KernelProgram,
        names: Names,
        symbols: tuple[Symbol, ...],
        isa: Isa,
    ) -> None:
        super().__init__(program.main, isa, names)
        self.isa, self.program, self.all_symbols = isa, program, symbols
        self.parts: list[Function] = []

    def functions(self) -> list[Function]:
        """It and the parts that it calls, itself the last."""
        code = self.code
        mode = self.word(Word.MODE, "i64")
        self.needs = self.word(Word.NEEDS)
        labels = {m: code.label(m.name.lower()) for m in Mode}
        cases = " ".join(f"i64 {m.value}, label %{labels[m]}" for m in Mode)
        code.do(f"switch i64 {mode}, label %{labels[Mode.NEED]} [ {cases} ]")
        writers = (self._need, self._prologue, self._call, self._step, self._finish)
        for mode_, write in zip(Mode, writers):
            code.place(labels[mode_])
            self._fresh()
            write()
        run = self.function("run", "define dso_local i32 @run(ptr %context)")
        return [*self.parts, run]

    def _fresh(self) -> None:
        """Values computed in one branch are not known in another."""
        self.value = type(self.value)(self.code, self.names.sizes, self.symbols)

    def _words(self) -> _Words:
        """The body of a part."""
        return _Words(self.subprogram, self.isa, self.names)

    def _part(self, name: str, words: _Words, result: str = "false") -> str:
        """What a function of its own gives for a part of a long list."""
        words.code.do(f"ret i1 {result}")
        head = f"define internal i1 @{name}(ptr %context) noinline"
        self.parts.append(words.function(name, head))
        return self.code.let(f"call i1 @{name}(ptr %context)")

    def _put_all(self, name: str, values: Sequence[tuple[int, DimLike]]) -> None:
        """Numbers at their places: as many as one function writes, the rest in parts."""
        first, *rest = [*chunks(values)] or [()]
        self.put(first)
        for i, some in enumerate(rest):
            words = self._words()
            words.put(some)
            self._part(f"run.{name}{i}", words)

    def _need(self) -> None:
        code, graph = self.code, self.graph
        total = code.let(f"call i64 @{self.subprogram.name}.need(ptr %context)")
        code.store_scalar(self.needs, total, DType.I64)
        values: list[DimLike] = [self.program.weight_bytes]
        for output in graph.outputs:
            values += [ceiling(d) for d in (output.shape.size_bytes, *output.shape.dims)]
        values += [d for leaf in graph.given for d in leaf.shape.dims]
        self._put_all("need", list(enumerate(values, 1)))
        place = code.advanced(self.needs, 1 + len(values), DType.I64)
        code.do(f"store i64 {self._outside()}, ptr {place}", "ret i32 0")

    def _outside(self) -> str:
        """1 if a named dim that the caller gives is outside its range, or is not as the graph
        requires it."""
        symbols = [s for s in self.all_symbols if not s.is_measured]
        sizes = [each.size for each in size_requirements(self.graph)]
        checks = [*((s, None) for s in symbols), *((None, s) for s in sizes)]
        first, *rest = [*chunks(checks)] or [()]
        bad = self.out_of_range(*_parted(first))
        for i, some in enumerate(rest):
            words = self._words()
            part = self._part(f"run.range{i}", words, words.out_of_range(*_parted(some)))
            bad = self.code.either(bad, part)
        return self.code.converted(bad, DType.BOOL, DType.I64)

    def _prologue(self) -> None:
        """What bodies without params have is done once, with everything else; those that have
        some are prepared by their holders."""
        code = self.code
        inner = [
            r for r in self.program.subprograms.values() if r is not self.subprogram and not r.bound
        ]
        is_all = code.let(f"icmp eq ptr {self.word(Word.CHANGED)}, null")
        with code.when(is_all):
            for subprogram in (r for r in inner if r.prologue or r.packing or _prepares(r)):
                self._run(f"{subprogram.name}.prologue")
        self._run(f"{self.subprogram.name}.prologue")
        code.do("ret i32 0")

    def _call(self) -> None:
        self._run_phase(self.subprogram.name)

    def _step(self) -> None:
        self._run_phase(f"{self.subprogram.name}.step")

    def _finish(self) -> None:
        self._run_phase(f"{self.subprogram.name}.finish")

    def _run_phase(self, name: str) -> None:
        self._run(name)
        at, values = 2, list[tuple[int, DimLike]]()
        for output in self.graph.outputs:
            values += enumerate(output.shape.dims, at + 1)
            at += 1 + output.shape.rank
        self._put_all(f"{name}.dims", values)
        self.code.do("ret i32 0")

    def _run(self, name: str) -> None:
        code = self.code
        args = CALL_ARGS.format(arena=self.word(Word.ARENA), externals=self.word(Word.EXTERNALS))
        self.check(code.let(f"call i32 @{name}({args})"))


_Check = tuple[Symbol | None, DimLike | None]


def _parted(checks: Sequence[_Check]) -> tuple[list[Symbol], list[DimLike]]:
    """Named dims, and sizes that must not be negative."""
    sizes = [size for _, size in checks if size is not None]
    return [symbol for symbol, _ in checks if symbol is not None], sizes
