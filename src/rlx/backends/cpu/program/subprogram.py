"""Plans as routines: every step's way to run, kernels that are equal made once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from rlx.backends.cpu.llvm.function import Function
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.call_context import CAPACITY_EXCEEDED
from rlx.backends.cpu.program.dim_formulas import rounded
from rlx.backends.cpu.program.kernel_sequence import NoKernel, copy_task, select_kernels
from rlx.backends.cpu.program.steps import (
    Branch,
    Host,
    Loop,
    Lowering,
    Nested,
    ProgramStep,
    Scan,
    Subprogram,
    Value,
)
from rlx.backends.cpu.program.task import KernelSequence, Step, Task
from rlx.core.dim import DimLike
from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError
from rlx.core.extent import measured_in
from rlx.core.memory_limits import require_memory
from rlx.cost.target import Target
from rlx.ir.inline import with_extents_named
from rlx.ir.lir import BufferPlan, Phase
from rlx.ir.mir import Graph, Node
from rlx.ir.plan_nodes import with_all_items
from rlx.kernel.lower.loop import body_of
from rlx.ops.op import Kind
from rlx.passes.context import Context
from rlx.passes.legalise import legalise
from rlx.passes.options import FusionOptions
from rlx.plan.check.checker import require_sound_plan
from rlx.plan.planner import plan_buffers

NOTHING: Mapping[int, Value] = {}
MAX_DEPTH = 40
"""How deep steps may be made of smaller ones."""


@dataclass(slots=True)
class SubprogramBuilder:
    """Makes routines, and keeps what they share."""

    machine: CpuMachine
    target: Target
    written: Callable[[Function], None] | None = None
    """Is shown each kernel."""
    sequences: dict[object, KernelSequence] = field(default_factory=dict[object, KernelSequence])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    refused: dict[object, NoKernel] = field(default_factory=dict[object, NoKernel])
    made: dict[str, Subprogram] = field(default_factory=dict[str, Subprogram])
    """All of them by name, those that others call first."""
    bodies: dict[object, Subprogram] = field(default_factory=dict[object, Subprogram])
    failures: list[tuple[str, tuple[str, ...]]] = field(
        default_factory=list[tuple[str, tuple[str, ...]]]
    )
    """Task by task: the node it belongs to, and what its codes mean."""
    packed: dict[object, DimLike] = field(default_factory=dict[object, DimLike])
    hosts: dict[int, Node] = field(default_factory=dict[int, Node])
    """The steps that the host does, by number."""
    weights_end: DimLike = 0
    depth: int = 0
    forced: Mapping[Node, bool] = field(default_factory=dict[Node, bool])
    """Steps whose work is to be shared out, or not, whatever it takes."""

    def subprogram(
        self, graph: Graph, plan: BufferPlan, name: str, bound: tuple[int, ...] = ()
    ) -> Subprogram:
        """The routine of a planned graph."""
        weights_at = self.weights_end
        self.weights_end = rounded(self.weights_end + plan.weight_formula)
        items = _items_of(graph)
        steps = [(n, self._work(n, plan, items)) for n in plan.schedule]
        prologue = tuple(w for n, w in steps if plan.phases[n] is Phase.PROLOGUE)
        calls = tuple(w for n, w in steps if plan.phases[n] > Phase.PROLOGUE)
        calls, packing = self._packed(calls)
        self.made[name] = Subprogram(name, graph, plan, weights_at, prologue, calls, packing, bound)
        return self.made[name]

    # -- steps ----------------------------------------------------------------------------------

    def _work(self, node: Node, plan: BufferPlan, items: Mapping[Node, list[Node]]) -> ProgramStep:
        operands = tuple(Value(plan.root(i), plan.layout(i)) for i in node.inputs)
        made = items[node] if node.has_items else [node]
        results = tuple(Value(plan.root(r), plan.layout(r)) for r in made)
        fixed: set[int] = set()
        if plan.phases[node] > Phase.PROLOGUE:
            fixed = {i for i, n in enumerate(node.inputs) if plan.phases[n] is Phase.PROLOGUE}
            fixed -= {i for i, n in enumerate(node.inputs) if n.op == "input"}
        step = Step(
            node,
            tuple(v.within for v in operands),
            tuple(v.within for v in results),
            self.machine,
            frozenset(fixed),
            prologue_only=plan.phases[node] is Phase.PROLOGUE,
        )
        way = self._way(step, operands)
        if isinstance(way, KernelSequence) and way.packed and plan.phases[node] is Phase.PROLOGUE:
            way = way.packed_every_run()
        if isinstance(way, KernelSequence) and node in self.forced:
            way = way.split(self.forced[node])
        number = len(self.failures)
        if isinstance(way, Host):
            self.hosts[number] = node
        is_whole = isinstance(way, KernelSequence)
        copies = () if is_whole else tuple(self._copy(step, i) for i in range(len(operands)))
        self._number(node, way, copies)
        sizes = tuple(s.name for s in measured_in(d for s in node.shapes for d in s.dims))
        return ProgramStep(node, way, operands, results, number, copies, (), sizes)

    def _number(self, node: Node, way: Lowering, copies: tuple[Task | None, ...]) -> None:
        """Give every task a row in the table of failures."""
        tasks = [t for t in copies if t is not None]
        if isinstance(way, KernelSequence):
            tasks += [*(p.task for p in way.packed), *way.tasks]
        self.failures += [(node.label, t.failures) for t in tasks] or [(node.label, ())]
        if isinstance(way, Branch | Loop):
            self.failures.append((node.label, (CAPACITY_EXCEEDED,)))

    def _way(self, step: Step, operands: tuple[Value, ...]) -> Lowering:
        node = step.node
        fixed = {i: operands[i] for i in sorted(step.constants) if step.operands[i].is_contiguous}
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
                return Loop(condition, body, limit, count, rows)
            case "scan":
                given = (node.attrs[k] for k in ("length", "num_carries", "num_bcasts", "reverse"))
                length, carries, bcasts, is_reversed = given
                fixed = {i: v for i, v in fixed.items() if carries <= i < carries + bcasts}
                body = self._body(node.attrs["body"], fixed)
                return Scan(body, length, carries, bcasts, is_reversed)
            case "custom":
                return Host()
            case _:
                return self._kernel(step)

    def _kernel(self, step: Step) -> Lowering:
        """A kernel sequence, the same for equal steps; or the step as smaller ones."""
        node = step.node
        what = (node.op, node.attr_key, tuple(i.shape for i in node.inputs))
        key = (what, step.operands, step.results, step.constants, step.prologue_only)
        if key not in self.sequences and key not in self.refused:
            self._select(key, step)
        if key in self.refused:
            return self._nested(node, self.refused[key])
        return self.sequences[key]

    def _select(self, key: object, step: Step) -> None:
        try:
            made = select_kernels(step, f"k{len(self.sequences)}")
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{step.node.label}: {error}") from None
        if isinstance(made, NoKernel):
            self.refused[key] = made
            return
        self._add(key, made)
        _check_room(step.node, made)

    def _nested(self, node: Node, why: NoKernel) -> Nested:
        body = self._body(_smaller(node, body_of(node), self.target, why.reason))
        return Nested(body, why.refused)

    def _add(self, key: object, made: KernelSequence) -> None:
        self.sequences[key] = made.mapped(self._function)

    def _function(self, function: Function) -> Function:
        """The first that is the same but for its name."""
        text = function.text.partition("(")[2]
        if text not in self.functions:
            self.functions[text] = function
            if self.written is not None:
                self.written(function)
        return self.functions[text]

    def _copy(self, step: Step, number: int) -> Task | None:
        layout, node = step.operands[number], step.node.inputs[number]
        if layout.is_contiguous:
            return None
        key = ("copy", layout, node.shape)
        if key not in self.sequences:
            name = f"k{len(self.sequences)}"
            self._add(key, KernelSequence((copy_task(node.shape, layout, step, name),)))
        return self.sequences[key].tasks[0]

    def _body(self, graph: Graph, fixed: Mapping[int, Value] = NOTHING) -> Subprogram:
        """The routine of a graph inside a step. Equal graphs share one, if the same weights are
        given to them: what follows from those is prepared with all else that does."""
        key = graph.digest(), tuple(fixed.items())
        if key not in self.bodies:
            if self.depth == MAX_DEPTH:
                raise Error(f"{graph.name}: steps inside steps, more than {MAX_DEPTH} deep")
            self.depth += 1
            name = f"r{len(self.bodies)}.{self.depth}"
            given = _with_params(with_extents_named(graph, name), fixed)
            self.bodies[key] = self.subprogram(*_planned(given, self.target), name, tuple(fixed))
            self.depth -= 1
        return self.bodies[key]

    # -- panels ---------------------------------------------------------------------------------

    def _packed(
        self, calls: tuple[ProgramStep, ...]
    ) -> tuple[tuple[ProgramStep, ...], tuple[ProgramStep, ...]]:
        """The steps with places for their panels, and those that have panels to make."""
        placed: list[ProgramStep] = []
        packing: list[ProgramStep] = []
        for step in calls:
            if not isinstance(step.lowering, KernelSequence) or not step.lowering.packed:
                placed.append(step)
                continue
            size = len(self.packed)
            done = replace(
                step, packed_offsets=tuple(self._place(step, i) for i in _range(step.lowering))
            )
            placed.append(done)
            packing += [done] if len(self.packed) > size else []
        return tuple(placed), tuple(packing)

    def _place(self, step: ProgramStep, number: int) -> DimLike:
        assert isinstance(step.lowering, KernelSequence)
        made = step.lowering.packed[number]
        read = [b.index for b in made.task.buffers if b.kind == "operand"]
        task, operands = made.task, tuple(step.operands[i] for i in read)
        key = (task.code.key, task.units, made.size, operands)
        if key not in self.packed:
            self.packed[key] = self.weights_end
            self.weights_end = rounded(self.weights_end + made.size)
        return self.packed[key]


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


def _range(recipe: KernelSequence) -> range:
    return range(len(recipe.packed))


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
        raise UnsupportedError(f"{node.label}: target cpu cannot run it: {reason}")
    without = replace(target, native=target.native - {node.op})
    return legalise(body, Context.of(without, FusionOptions()))


def _check_room(node: Node, recipe: KernelSequence) -> None:
    """What is known of the memory that a kernel takes; the rest is known when it is called."""
    temps = sum(size for size in recipe.temps if isinstance(size, int))
    scratch = [t.scratch for t in recipe.all_tasks if isinstance(t.scratch, int)]
    require_memory(temps + max(scratch, default=0), f"{node.label}: its kernel, beside operands,")
