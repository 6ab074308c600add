"""Kernel selection: for every step the forms it can be lowered to, in order, each taken or refused.

The first form that lowers, and whose kernels the target can schedule, is taken; the refusals before
it are kept with their reasons. A step that no form takes runs as a subprogram of smaller steps: a
region's nodes, or an op's lowering. Equal steps have their kernels made once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlx.core.dim import DimLike, exact_div, is_static, round_up
from rlx.core.errors import Error, InternalError, OutOfMemoryError, UnsupportedError
from rlx.core.extent import CAPACITY_EXCEEDED, measured_in
from rlx.core.memory_limits import require_memory
from rlx.cost.target import KernelLimit, Target
from rlx.ir.inline import with_extents_named
from rlx.ir.lir import BufferPlan, LirModule, Phase
from rlx.ir.mir import Graph, Node
from rlx.ir.plan_nodes import with_all_items
from rlx.kernel.lower.attention import has_attention
from rlx.kernel.lower.conv import has_conv
from rlx.kernel.lower.loop import body_of
from rlx.kernel.program.lower_step import (
    concat_copies,
    concat_groups,
    contiguous_copy,
    contract_and_loop_kernels,
    contract_kernels,
    loop_kernels,
    plain_conv_kernels,
    special_and_loop_kernels,
    special_in,
    special_kernels,
    without_transpose,
)
from rlx.kernel.program.program import (
    Branch,
    HostCall,
    KernelCall,
    KernelForm,
    KernelProgram,
    KernelSequence,
    Lowering,
    Nested,
    ProgramStep,
    RefusedForm,
    ScanLoop,
    Step,
    Subprogram,
    Value,
    WhileLoop,
)
from rlx.kernel.program.schedule import PackedWeights, Schedule, joined
from rlx.kernel.refusal import Refusal, attempt
from rlx.ops.op import Kind
from rlx.passes.context import Context
from rlx.passes.legalise import legalise
from rlx.passes.options import FusionOptions
from rlx.plan.check.checker import opened, require_sound_plan
from rlx.plan.planner import plan_buffers

MAIN = "main"
NOTHING: Mapping[int, Value] = {}
MAX_DEPTH = 40
"""How deep bodies of control flow, and steps made of smaller ones, may nest."""
MAX_CONCAT_OPERANDS, MAX_UNSIZED_CONCAT_OPERANDS = 64, 16
"""Operands that one loop nest concatenates, and those of unknown sizes."""


class KernelLibrary(Protocol):
    """What selection asks of a target: its named algorithms, its order of forms, its schedules."""

    @property
    def alignment(self) -> int:
        """What its kernels count on of the addresses of values, in bytes: operands of branches,
        loops and nested steps that are elsewhere are copied."""
        ...

    def has_special(self, op: str) -> bool:
        """Does it bring an algorithm for this op?"""
        ...

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        """The kernel forms to try for a step, the preferred one first."""
        ...

    def schedule(self, call: KernelCall) -> Schedule[Any] | Refusal:
        """How it runs a kernel, or why it does not."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel form, and what makes the kernels of a step in it."""

    form: KernelForm
    lower: Callable[[Step], KernelSequence | Refusal]


@dataclass(frozen=True, slots=True)
class NoKernel:
    """No form takes the step as a whole."""

    refused: tuple[RefusedForm, ...]

    @property
    def reason(self) -> str:
        """That of the preferred form."""
        return self.refused[0].reason if self.refused else "it tries no kernel form for it"


def select_kernels(lir: LirModule, library: KernelLibrary) -> KernelProgram:
    """The kernels of every step of a plan, as a target runs them. No code is written."""
    builder = ProgramBuilder(library, lir.target, forced=lir.split)
    plan = opened(lir)
    _require_alignment(lir.name, plan, library)
    main = builder.subprogram(lir.mir.graph, plan, MAIN)
    return KernelProgram(
        lir,
        main,
        builder.made,
        tuple(builder.sequences.values()),
        tuple(builder.failures),
        builder.hosts,
        builder.weights_end,
    )


def _require_alignment(name: str, plan: BufferPlan, library: KernelLibrary) -> None:
    if plan.alignment % library.alignment:
        raise Error(
            f"{name}: its plan aligns slots to {plan.alignment} bytes, and the target's kernels "
            f"count on {library.alignment}. Plan it with alignment=64."
        )


def select_step(step: Step, library: KernelLibrary, name: str) -> KernelSequence | NoKernel:
    """The first candidate that takes a step; what is made for it is called `name`."""
    step = without_transpose(step, library.has_special)
    refused: list[RefusedForm] = []
    for candidate in library.candidates(step):
        # a schedule may meet a limit deep inside a kernel: a refusal, too
        made = attempt(lambda c=candidate: scheduled(c.lower(step), library, name))
        if not isinstance(made, Refusal):
            return replace(made, form=candidate.form, refused=tuple(refused))
        refused.append(RefusedForm(candidate.form, made.reason))
    return NoKernel(tuple(refused))


def scheduled(
    made: KernelSequence | Refusal, library: KernelLibrary, name: str
) -> KernelSequence | Refusal:
    """The kernels with how they run; the last one has the name, those before it parts of it."""
    if isinstance(made, Refusal):
        return made
    last = len(made.calls) - 1
    calls = [
        replace(c, name=name if i == last else f"{name}.{i}") for i, c in enumerate(made.calls)
    ]
    schedules: list[Schedule[Any]] = []
    for call in calls:
        schedule = library.schedule(call)
        if isinstance(schedule, Refusal):
            return schedule
        schedules.append(schedule)
    parts = [(s, c.place) for s, c in zip(schedules, calls)]
    return replace(made, calls=tuple(calls), schedule=joined(made.temps, parts))


def default_candidates(
    step: Step,
    library: KernelLibrary,
    conv: Callable[[Step], KernelSequence | Refusal] = plain_conv_kernels,
) -> tuple[Candidate, ...]:
    """Named algorithms first, then the forms that read and write least."""
    if library.has_special(step.node.op):
        return (Candidate(KernelForm.DEDICATED, special_kernels),)
    if step.node.op == "concat":
        is_sized = all(map(_has_static_dims, step.node.inputs))
        if not is_sized and len(step.node.inputs) > MAX_UNSIZED_CONCAT_OPERANDS:
            return (Candidate(KernelForm.STRIDED_COPIES, concat_copies),)
        if len(step.node.inputs) > MAX_CONCAT_OPERANDS:
            group = lambda s: concat_groups(s, MAX_CONCAT_OPERANDS)
            return (Candidate(KernelForm.LOOP, group),)
    loop = Candidate(KernelForm.LOOP, loop_kernels)
    if has_conv(step.node):
        return Candidate(KernelForm.CONVOLUTION, conv), loop
    anchor = special_in(step.node, library.has_special)
    return (
        loop,
        Candidate(KernelForm.GEMM, contract_kernels),
        Candidate(KernelForm.GEMM_AND_LOOP, contract_and_loop_kernels),
        Candidate(KernelForm.DEDICATED_AND_LOOP, lambda s: special_and_loop_kernels(s, anchor)),
    )


def _has_static_dims(node: Node) -> bool:
    return all(map(is_static, node.shape.dims))


@dataclass(slots=True)
class ProgramBuilder:
    """Makes subprograms, and keeps what they share."""

    library: KernelLibrary
    target: Target
    sequences: dict[object, KernelSequence] = field(default_factory=dict[object, KernelSequence])
    refused: dict[object, NoKernel] = field(default_factory=dict[object, NoKernel])
    made: dict[str, Subprogram] = field(default_factory=dict[str, Subprogram])
    bodies: dict[object, Subprogram] = field(default_factory=dict[object, Subprogram])
    failures: list[tuple[str, tuple[str, ...]]] = field(
        default_factory=list[tuple[str, tuple[str, ...]]]
    )
    packed: dict[object, DimLike] = field(default_factory=dict[object, DimLike])
    hosts: dict[int, Node] = field(default_factory=dict[int, Node])
    weights_end: DimLike = 0
    depth: int = 0
    forced: Mapping[Node, bool] = field(default_factory=dict[Node, bool])
    """Steps whose work is to be divided, or not, whatever it takes."""

    def subprogram(
        self, graph: Graph, plan: BufferPlan, name: str, bound: tuple[int, ...] = ()
    ) -> Subprogram:
        """The subprogram of a planned graph."""
        weights_at = self.weights_end
        self.weights_end = round_up(self.weights_end + plan.weight_formula)
        items = _items_of(graph)
        steps = [(n, self._step(n, plan, items)) for n in plan.schedule]
        prologue = tuple(s for n, s in steps if plan.phases[n] is Phase.PROLOGUE)
        calls = tuple(s for n, s in steps if plan.phases[n] > Phase.PROLOGUE)
        calls, packing = self._packed(calls)
        self.made[name] = Subprogram(name, graph, plan, weights_at, prologue, calls, packing, bound)
        return self.made[name]

    # -- steps ----------------------------------------------------------------------------------

    def _step(self, node: Node, plan: BufferPlan, items: Mapping[Node, list[Node]]) -> ProgramStep:
        operands = tuple(Value(plan.root(i), plan.layout(i)) for i in node.inputs)
        made = items[node] if node.has_items else [node]
        results = tuple(Value(plan.root(r), plan.layout(r)) for r in made)
        is_once = plan.phases[node] is Phase.PROLOGUE
        step = Step(
            node,
            tuple(v.within for v in operands),
            tuple(v.within for v in results),
            frozenset() if is_once else _constants(node, plan),
            is_once,
            self._inputs(node, plan),
            plan.written.get(node),
        )
        lowering = self._lowering(step, operands)
        is_whole = isinstance(lowering, KernelSequence)
        if isinstance(lowering, KernelSequence):
            lowering = self._adjusted(lowering, step)
        number = len(self.failures)
        if isinstance(lowering, HostCall):
            self.hosts[number] = node
        copies = () if is_whole else tuple(self._copy(step, i) for i in range(len(operands)))
        self._number(node, lowering, copies)
        sizes = tuple(s.name for s in measured_in(d for s in node.shapes for d in s.dims))
        return ProgramStep(node, lowering, operands, results, number, copies, (), sizes)

    def _inputs(self, node: Node, plan: BufferPlan) -> frozenset[int]:
        """The operands of attention that the caller gave: a kernel that begins before others have
        ended reads past keys at once. They are part of the key by which equal steps share code."""
        is_known = self.depth == 0 and "few_rows" in self.target.regions and has_attention(node)
        roots = enumerate(plan.root(i) for i in node.inputs) if is_known else ()
        return frozenset(i for i, root in roots if root.op == "input")

    def _adjusted(self, sequence: KernelSequence, step: Step) -> KernelSequence:
        """The kernels as this one of equal steps runs them."""
        schedule = sequence.schedule
        if schedule.packed and step.prologue_only:
            schedule = schedule.packed_every_run()
        if step.node in self.forced:
            schedule = schedule.split(self.forced[step.node])
        same = schedule is sequence.schedule
        return sequence if same else replace(sequence, schedule=schedule)

    def _number(
        self, node: Node, lowering: Lowering, copies: tuple[KernelSequence | None, ...]
    ) -> None:
        """Give every task a row in the table of failures."""
        tasks = [t for copy in copies if copy is not None for t in copy.schedule.tasks]
        if isinstance(lowering, KernelSequence):
            tasks += lowering.schedule.all_tasks
        self.failures += [(node.label, t.failures) for t in tasks] or [(node.label, ())]
        if isinstance(lowering, Branch | WhileLoop):
            self.failures.append((node.label, (CAPACITY_EXCEEDED,)))

    def _lowering(self, step: Step, operands: tuple[Value, ...]) -> Lowering:
        node = step.node
        fixed = {i: operands[i] for i in sorted(step.constants) if self._is_direct(step, i)}
        match node.op:
            case "if":
                fixed = {i - 1: v for i, v in fixed.items() if i > 0}
                return Branch(*(self._body(node.attrs[k], fixed) for k in ("then", "else")))
            case "while":
                limit, bcasts, rows = (
                    node.attrs[k] for k in ("max_iterations", "num_bcasts", "num_rows")
                )
                count = len(node.inputs) - bcasts
                fixed = {i: v for i, v in fixed.items() if i >= count}
                condition, body = (self._body(node.attrs[k], fixed) for k in ("cond", "body"))
                return WhileLoop(condition, body, limit, count, rows)
            case "scan":
                given = (node.attrs[k] for k in ("length", "num_carries", "num_bcasts", "reverse"))
                length, carries, bcasts, is_reversed = given
                fixed = {i: v for i, v in fixed.items() if carries <= i < carries + bcasts}
                body = self._body(node.attrs["body"], fixed)
                return ScanLoop(body, length, carries, bcasts, is_reversed)
            case "custom":
                return HostCall()
            case _:
                return self._kernels(step)

    def _kernels(self, step: Step) -> Lowering:
        """The kernels of a step, the same for equal ones; or the step as smaller ones."""
        key = step.key
        if key not in self.sequences and key not in self.refused:
            self._select(key, step)
        if key in self.refused:
            return self._nested(step.node, self.refused[key])
        return self.sequences[key]

    def _select(self, key: object, step: Step) -> None:
        try:
            made = select_step(step, self.library, f"f{len(self.sequences)}")
        except (InternalError, OutOfMemoryError) as error:
            raise type(error)(f"{step.node.label}: {error}") from error
        if isinstance(made, NoKernel):
            self.refused[key] = made
            return
        self.sequences[key] = made
        _require_temps(step.node, made.schedule)

    def _nested(self, node: Node, why: NoKernel) -> Nested:
        body = self._body(_smaller(node, body_of(node), self.target, why.reason))
        return Nested(body, why.refused)

    def _is_direct(self, step: Step, number: int) -> bool:
        """Can the body of a step read the operand where it is?"""
        layout, node = step.operands[number], step.node.inputs[number]
        start = layout.offset * node.shape.dtype.itemsize
        return layout.is_contiguous and exact_div(start, self.library.alignment) is not None

    def _copy(self, step: Step, number: int) -> KernelSequence | None:
        """What makes a strided operand contiguous, and moves one to an aligned address."""
        layout, node = step.operands[number], step.node.inputs[number]
        if self._is_direct(step, number):
            return None
        key = ("copy", layout, node.shape)
        if key not in self.sequences:
            copy = contiguous_copy(node.shape, layout)
            made = scheduled(copy, self.library, f"f{len(self.sequences)}")
            if isinstance(made, Refusal):
                raise UnsupportedError(f"{node.label}: {self.target.name}: {made.reason}")
            self.sequences[key] = made
        return self.sequences[key]

    def _body(self, graph: Graph, fixed: Mapping[int, Value] = NOTHING) -> Subprogram:
        """The subprogram of a graph inside a step. Equal graphs share one, if the same weights are
        given to them: what follows from those is prepared with all else that does."""
        key = graph.digest(), tuple(fixed.items())
        if key not in self.bodies:
            if self.depth == MAX_DEPTH:
                raise UnsupportedError(
                    f"{graph.name}: branches, loops and the parts of steps nest more than "
                    f"{MAX_DEPTH} deep. Flatten them."
                )
            self.depth += 1
            name = f"r{len(self.bodies)}.{self.depth}"
            given = _with_params(with_extents_named(graph, name), fixed)
            self.bodies[key] = self.subprogram(*_planned(given, self.target), name, tuple(fixed))
            self.depth -= 1
        return self.bodies[key]

    # -- packed weights -------------------------------------------------------------------------

    def _packed(
        self, calls: tuple[ProgramStep, ...]
    ) -> tuple[tuple[ProgramStep, ...], tuple[ProgramStep, ...]]:
        """The steps with places for their packed weights, and those that have some to pack."""
        placed: list[ProgramStep] = []
        packing: list[ProgramStep] = []
        for step in calls:
            if not isinstance(step.lowering, KernelSequence) or not step.lowering.schedule.packed:
                placed.append(step)
                continue
            size = len(self.packed)
            offsets = tuple(self._place(step, p) for p in step.lowering.schedule.packed)
            done = replace(step, packed_offsets=offsets)
            placed.append(done)
            packing += [done] if len(self.packed) > size else []
        return tuple(placed), tuple(packing)

    def _place(self, step: ProgramStep, made: PackedWeights[Any]) -> DimLike:
        read = [b.index for b in made.task.buffers if b.kind == "operand"]
        key = (made.task.key, made.size, tuple(step.operands[i] for i in read))
        if key not in self.packed:
            self.packed[key] = self.weights_end
            self.weights_end = round_up(self.weights_end + made.size)
        return self.packed[key]


def _constants(node: Node, plan: BufferPlan) -> frozenset[int]:
    """The operands that follow from weights alone."""
    return frozenset(
        i for i, n in enumerate(node.inputs) if plan.phases[n] is Phase.PROLOGUE and not n.is_given
    )


def _with_params(graph: Graph, numbers: Collection[int]) -> Graph:
    """The graph with some of its inputs as weights."""
    chosen = {graph.inputs[i] for i in numbers}
    if not chosen:
        return graph
    return graph.rebuild(
        lambda new, node, _: new.node("param", (), node.attrs) if node in chosen else None
    )


def _planned(graph: Graph, target: Target) -> tuple[Graph, BufferPlan]:
    """A graph inside a step, planned and checked."""
    final = with_all_items(graph)
    plan = plan_buffers(final, target)
    require_sound_plan(final, plan)
    return final, plan


def _items_of(graph: Graph) -> dict[Node, list[Node]]:
    """Node of several results → its items, in order."""
    items: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    return {n: sorted(i, key=lambda x: x.attrs["index"]) for n, i in items.items()}


def _smaller(node: Node, body: Graph, target: Target, reason: str) -> Graph:
    """The work of a step in smaller steps: a region's nodes, or an op's lowering."""
    if node.decl.kind is Kind.REGION:
        return body
    if node.decl.lower is None:
        raise UnsupportedError(f"{node.label}: target {target.name} cannot run it: {reason}")
    # an op is claimed by its name or by its kind: a kernel for no dtype takes either back
    limits = {**target.kernel_limits, node.op: KernelLimit(frozenset())}
    without = replace(target, native=target.native - {node.op}, kernel_limits=limits)
    return legalise(body, Context.of(without, FusionOptions()))


def _require_temps(node: Node, schedule: Schedule[Any]) -> None:
    """What is known of the memory that a kernel takes; the rest is known when it is called."""
    temps: Sequence[int] = [size for size in schedule.temps if isinstance(size, int)]
    scratch = [t.scratch for t in schedule.all_tasks if isinstance(t.scratch, int)]
    require_memory(
        sum(temps) + max(scratch, default=0), f"{node.label}: its kernel, beside operands,"
    )
