"""From the kernels of a plan to routines: every buffer gets its place, every launch its code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlx.backends.gpu.device import Code
from rlx.backends.gpu.runtime.routine import (
    AnyStep,
    Artefact,
    BranchStep,
    CallStep,
    ChoiceStep,
    Constant,
    CopyStep,
    Found,
    HostStep,
    LaunchStep,
    Operand,
    Place,
    Routine,
    ScanStep,
    SizesStep,
    Span,
    WhileStep,
)
from rlx.backends.gpu.task import FAILURES, Choice, GpuTask, HostTask, Launch, launches_in
from rlx.core.dim import Dim, DimLike, round_up
from rlx.core.errors import UnsupportedError
from rlx.core.extent import ceiling, is_capacity
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.extents import measured_by
from rlx.ir.interface import Interface
from rlx.ir.lir import Phase, Space
from rlx.ir.mir import Node
from rlx.kernel.program.forms import Special
from rlx.kernel.program.program import (
    Branch,
    HostCall,
    KernelProgram,
    KernelSequence,
    Nested,
    ProgramStep,
    ScanLoop,
    Subprogram,
    Value,
    WhileLoop,
)
from rlx.kernel.program.schedule import Buffer, Schedule

ALIGN = 256
"""Of temporaries, as of what a device allocates."""


def launches_of(program: KernelProgram) -> list[Launch]:
    """All launches, those of equal keys once."""
    lowerings = [s.lowering for s in _steps(program)]
    sequences = [s for s in lowerings if isinstance(s, KernelSequence)]
    schedules = [s.schedule for s in (*program.sequences, *sequences)]
    found: dict[object, Launch] = {}
    for schedule in schedules:
        for launch in launches_in(schedule.all_tasks):
            found.setdefault(launch.key, launch)
    return list(found.values())


def _steps(program: KernelProgram) -> Iterable[ProgramStep]:
    for sub in program.subprograms.values():
        yield from (*sub.prologue, *sub.calls)


def lay_out(
    program: KernelProgram, codes: Mapping[object, int], assembled: Sequence[Code], target: str
) -> Artefact:
    """The artefact of a program whose launches have this code."""
    maker = _Maker(program, codes, assembled)
    routines = {name: maker.routine(sub) for name, sub in program.subprograms.items()}
    symbols = {s.name for sub in program.subprograms.values() for s in sub.plan.dynamic_symbols}
    return Artefact(
        target,
        tuple(assembled),
        routines,
        program.main.name,
        tuple(maker.symbols),
        tuple(sorted(n for n in symbols if is_capacity(n))),
        tuple(maker.constants),
        program.weight_bytes,
        tuple(maker.failures),
        Interface.planned(program.lir),
    )


def owners_of(
    program: KernelProgram, codes: Mapping[object, int], assembled: Sequence[Code]
) -> tuple[int, ...]:
    """The step of the plan that each step of the main routine belongs to, but for outputs that are
    copied behind the last."""
    maker = _RoutineMaker(_Maker(program, codes, assembled), program.main)
    calls = program.main.calls
    return tuple(i for i, step in enumerate(calls) for _ in maker.step(step))


@dataclass(slots=True)
class _Maker:
    """Makes routines, and keeps what they share."""

    program: KernelProgram
    codes: Mapping[object, int]
    assembled: Sequence[Code]
    symbols: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[tuple[str, tuple[str, ...]]] = field(
        default_factory=list[tuple[str, tuple[str, ...]]]
    )
    constants: list[Constant] = field(default_factory=list[Constant])

    def routine(self, sub: Subprogram) -> Routine:
        return _RoutineMaker(self, sub).made()

    def symbol(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def failure(self, label: str, texts: tuple[str, ...]) -> int:
        self.failures.append((label, texts))
        return len(self.failures) - 1


class _RoutineMaker:
    """One routine."""

    def __init__(self, shared: _Maker, sub: Subprogram) -> None:
        self.shared, self.sub, self.plan = shared, sub, sub.plan
        leaves = [*sub.graph.given, *sub.graph.params]
        self.outside = {n: i for i, n in enumerate(leaves)}
        self.num_leaves = len(leaves)
        self.written = sub.output_indices
        for root, number in self.written.items():
            self.outside.setdefault(root, len(leaves) + number)
        self._begin(round_up(ceiling(self.plan.arena_formula), ALIGN))

    def _begin(self, start: DimLike) -> None:
        """Temporaries from here on: behind the arena; the prologue has none."""
        self.start = start
        self.frame: list[DimLike] = [start]

    def made(self) -> Routine:
        sub, graph = self.sub, self.sub.graph
        self._constants()
        start = self.start
        self._begin(0)
        packing = [s for step in sub.packing for s in self._packing(step)]
        prologue = [s for step in sub.prologue for s in self.step(step)]
        prologue_frame = tuple(self.frame)
        self._begin(start)
        phases = [self.plan.phases[step.node] for step in sub.calls]
        steady = [
            s
            for step, p in zip(sub.calls, phases)
            if p is not Phase.EPILOGUE
            for s in self.step(step)
        ]
        late = [
            s for step, p in zip(sub.calls, phases) if p is Phase.EPILOGUE for s in self.step(step)
        ]
        steps = (*steady, *late)
        outputs = tuple(ceiling(o.shape.size_bytes) for o in graph.outputs)
        return Routine(
            sub.name,
            len(graph.given),
            len(graph.params),
            sub.bound,
            tuple(self.frame),
            prologue_frame,
            (*prologue, *packing),
            (*steps, *self._copied_out()),
            outputs,
            len(steady),
            len(steps),
        )

    def _constants(self) -> None:
        for node in self.sub.graph.nodes:
            if node.op == "constant" and node in self.plan.assignments:
                place = self.slot(node)
                assert place.space == "weights"
                self.shared.constants.append(Constant(place.offset, node.attrs["value"].array))

    def _copied_out(self) -> Iterable[CopyStep]:
        """Outputs that no step writes in place."""
        for number, output in enumerate(self.sub.graph.outputs):
            root = self.plan.root(output)
            if self.written.get(root) != number:
                layout = self.plan.layout(output)
                assert layout.is_contiguous
                source = self.value(Value(root, layout))
                to = Place("external", 0, self.num_leaves + number)
                yield CopyStep(to, source, output.shape.size_bytes)

    # -- places ----------------------------------------------------------------------------------

    def slot(self, root: Node) -> Place:
        """Where a value's slot begins."""
        if root in self.outside:
            return Place("external", 0, self.outside[root])
        slot = self.plan.assignments[root]
        if slot.space is Space.WEIGHTS:
            return Place("weights", self.sub.weights_at + slot.offset)
        return Place("frame", slot.offset)

    def base(self, value: Value) -> Place:
        """The address that a kernel is called with for a value."""
        return _moved(self.slot(value.node), value.base_bytes)

    def value(self, value: Value) -> Place:
        """Where a contiguous value begins."""
        return _moved(self.slot(value.node), value.layout.offset * value.node.shape.dtype.itemsize)

    def room(self, sizes: Iterable[DimLike]) -> list[Place]:
        """Places in the frame for temporaries, one behind the other."""
        places: list[Place] = []
        start = self.start
        for size in sizes:
            places.append(Place("frame", start))
            start = round_up(start + ceiling(size), ALIGN)
        self.frame.append(start)
        return places

    # -- steps -----------------------------------------------------------------------------------

    def step(self, step: ProgramStep) -> Iterable[AnyStep]:
        if isinstance(step.lowering, KernelSequence):
            schedule = step.lowering.schedule
            temps = self.room(schedule.temps)
            yield from self._tasks(step, schedule.tasks, temps)
            if step.sizes and _is_measured_here(schedule):
                yield SizesStep(step.sizes)
        else:
            yield from self._control(step)

    def _packing(self, step: ProgramStep) -> Iterable[AnyStep]:
        """Packed weights; the result of a task that packs is their place. Of the temporaries, those
        of calls may have sizes that only a call knows."""
        assert isinstance(step.lowering, KernelSequence)
        schedule: Schedule[GpuTask] = step.lowering.schedule
        packing = [p.task for p in schedule.packed]
        used = {b.index for t in packing for b in t.buffers if b.kind == "temp"}
        temps = self.room(t if i in used else 0 for i, t in enumerate(schedule.temps))
        for number, task in enumerate(packing):
            yield self._task(step, task, temps, Buffer("packed", number))

    def _tasks(
        self, step: ProgramStep, tasks: Iterable[GpuTask], temps: Sequence[Place]
    ) -> Iterable[AnyStep]:
        for task in tasks:
            yield self._task(step, task, temps)

    def _task(
        self, step: ProgramStep, task: GpuTask, temps: Sequence[Place], packs: Buffer | None = None
    ) -> AnyStep:
        match task:
            case Choice(buckets=buckets, alternatives=alternatives):
                made = (
                    tuple(self._launch(step, t, temps, packs) for t in alternative)
                    for alternative in alternatives
                )
                return ChoiceStep(buckets, tuple(made))
            case Launch():
                return self._launch(step, task, temps, packs)
            case HostTask():
                places = [self._place(step, b, temps) for b in _own(task, packs)]
                return _host_step(task, places, step)

    def _launch(
        self, step: ProgramStep, task: Launch, temps: Sequence[Place], packs: Buffer | None
    ) -> LaunchStep:
        every = _own(task, packs)
        given = dict(zip(task.names, [self._place(step, b, temps) for b in every], strict=True))
        spans = dict(zip(task.names, (span_of(step, b) for b in every)))
        number = self.shared.codes[task.key]
        names = self.shared.assembled[number].buffers
        if FAILURES in names:
            row = self.shared.failure(step.node.label, task.failures)
            given[FAILURES], spans[FAILURES] = Place("failure", 0, row), Span.of_bytes(4)
        both = tuple(given[n] for n in names), tuple(spans[n] for n in names)
        return LaunchStep(step.node.label, number, *both)

    def _place(self, step: ProgramStep, buffer: Buffer, temps: Sequence[Place]) -> Place:
        match buffer.kind:
            case "operand":
                return self.base(step.operands[buffer.index])
            case "result":
                return self.base(step.results[buffer.index])
            case "temp":
                return temps[buffer.index]
            case "packed":
                return Place("weights", step.packed_offsets[buffer.index])
            case "size":
                return Place("size", 0, self.shared.symbol(step.sizes[buffer.index]))

    # -- control flow ----------------------------------------------------------------------------

    def _control(self, step: ProgramStep) -> Iterable[AnyStep]:
        """Operands that are strided are made contiguous first."""
        sizes = [v.size if c is not None else 0 for v, c in zip(step.operands, step.copies)]
        rooms = self.room(sizes)
        operands: list[Place] = []
        for value, copy, room in zip(step.operands, step.copies, rooms):
            operands.append(self.value(value) if copy is None else room)
            if copy is not None:
                yield from self._copy(step, value, copy.schedule, room)
        results = tuple(map(self.value, step.results))
        yield self._flow(step, tuple(operands), results)

    def _copy(
        self, step: ProgramStep, value: Value, schedule: Schedule[GpuTask], room: Place
    ) -> Iterable[AnyStep]:
        for task in schedule.tasks:
            if isinstance(task, Choice):
                made = (
                    tuple(self._copying(step, value, t, room) for t in w) for w in task.alternatives
                )
                yield ChoiceStep(task.buckets, tuple(made))
            else:
                assert isinstance(task, Launch)
                yield self._copying(step, value, task, room)

    def _copying(self, step: ProgramStep, value: Value, task: Launch, room: Place) -> LaunchStep:
        own = [b.kind == "operand" for b in task.buffers]
        places = tuple(self.base(value) if is_own else room for is_own in own)
        made = Span.of_bytes(ceiling(value.size))
        spans = tuple(_value_span(value) if is_own else made for is_own in own)
        return LaunchStep(step.node.label, self.shared.codes[task.key], places, spans)

    def _flow(
        self, step: ProgramStep, operands: tuple[Place, ...], results: tuple[Place, ...]
    ) -> AnyStep:
        node = step.node
        match step.lowering:
            case Nested(body):
                return CallStep(body.name, operands, results)
            case Branch(then, other):
                found = tuple(_found(node, node.shapes, _made(b)) for b in (then, other))
                names = then.name, other.name
                return BranchStep(operands[0], names, operands[1:], results, (found[0], found[1]))
            case WhileLoop():
                return _while(node, step.lowering, operands, results)
            case ScanLoop():
                return _scan(node, step.lowering, operands, results)
            case HostCall():
                return _custom(node, operands, results)
            case _:
                raise AssertionError(step.lowering)


def span_of(step: ProgramStep, buffer: Buffer) -> Span:
    """What a kernel may touch of a buffer; results have room for as much as they can become."""
    assert isinstance(step.lowering, KernelSequence)
    schedule: Schedule[GpuTask] = step.lowering.schedule
    match buffer.kind:
        case "operand":
            return _value_span(step.operands[buffer.index])
        case "result":
            return _value_span(step.results[buffer.index], is_made=True)
        case "temp":
            return Span.of_bytes(ceiling(schedule.temps[buffer.index]))
        case "packed":
            return Span.of_bytes(schedule.packed[buffer.index].size)
        case "size":
            return Span.of_bytes(8)


def _value_span(value: Value, *, is_made: bool = False) -> Span:
    layout, size = value.within, value.node.shape.dtype.itemsize
    if not is_made:
        return Span(layout, size)
    dims, strides = (tuple(map(ceiling, d)) for d in (layout.dims, layout.strides))
    return Span(Layout(dims, strides, ceiling(layout.offset)), size)


def _own(task: GpuTask, packs: Buffer | None) -> list[Buffer]:
    """The buffers of a task; the result of one that packs is the packed weights."""
    return [packs if packs and b.kind == "result" else b for b in task.buffers]


def _is_measured_here(schedule: Schedule[GpuTask]) -> bool:
    """Do its launches write sizes? The host knows those that it finds out itself."""
    return any(b.kind == "size" for t in schedule.tasks for b in t.buffers)


def _moved(place: Place, offset: DimLike) -> Place:
    return Place(place.space, place.offset + offset, place.index)


def _made(sub: Subprogram) -> list[Shape]:
    return [o.shape for o in sub.graph.outputs]


def _found(node: Node, named: Sequence[Shape], made: Sequence[Shape]) -> Found:
    """The sizes that a node names, as the shapes of its body have them."""
    own = {s.name for s in measured_by(node)}
    found: dict[str, DimLike] = {}
    for a, b in zip(named, made):
        for dim, new in zip(a.dims, b.dims):
            if isinstance(dim, Dim) and dim.name in own:
                found.setdefault(dim.name, new)
    return tuple(found.items())


def _while(
    node: Node, loop: WhileLoop, operands: tuple[Place, ...], results: tuple[Place, ...]
) -> WhileStep:
    taken = [leaf.shape for leaf in node.attrs["body"].inputs]
    outputs = _made(loop.body)
    return WhileStep(
        loop.condition.name,
        loop.body.name,
        loop.limit,
        loop.num_carries,
        operands,
        results,
        tuple(s.size_bytes for s in node.shapes),
        tuple(s.size_bytes for s in outputs[loop.num_carries :]),
        f"{node.attrs['extent']}.rows" if loop.num_rows else "",
        _found(node, taken, [i.shape for i in node.inputs]),
        _found(node, taken, outputs),
    )


def _scan(
    node: Node, scan: ScanLoop, operands: tuple[Place, ...], results: tuple[Place, ...]
) -> ScanStep:
    inputs = [leaf.shape for leaf in scan.body.graph.inputs]
    slices = len(operands) - scan.num_carries - scan.num_bcasts
    return ScanStep(
        scan.body.name,
        scan.length,
        scan.num_carries,
        scan.num_bcasts,
        scan.is_reversed,
        operands,
        results,
        tuple(s.size_bytes for s in node.shapes),
        tuple(s.size_bytes for s in inputs[len(inputs) - slices :]),
        tuple(s.size_bytes for s in _made(scan.body)[scan.num_carries :]),
    )


# -- the host's steps -----------------------------------------------------------------------------


def _host_step(task: HostTask, places: Sequence[Place], step: ProgramStep) -> HostStep:
    special = task.kernel
    if not isinstance(special, Special):
        raise UnsupportedError(f"{step.node.label}: the host runs named algorithms only.")
    node = special.node
    given = list(map(Operand, places, special.operands, special.sources))
    made = list(map(Operand, places[len(given) :], special.results, special.targets))
    measured = tuple(s.name for s in measured_by(node))
    return HostStep(node.label, node.op, node.attrs, tuple(given), tuple(made), measured)


def _custom(node: Node, operands: Sequence[Place], results: Sequence[Place]) -> HostStep:
    shapes = [i.shape for i in node.inputs]
    given = [Operand(p, s, Layout.contiguous(s.dims)) for p, s in zip(operands, shapes)]
    made = [Operand(p, s, Layout.contiguous(s.dims)) for p, s in zip(results, node.shapes)]
    return HostStep(node.label, node.op, node.attrs, tuple(given), tuple(made))
