"""The compiler, top to bottom: HIR → MIR → LIR.

Every pass is a pure function of a graph and the compile's context. It reads no environment, and
whatever it decides goes to the context's log as a value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rlx.core.dim import Dim
from rlx.core.errors import Error, InternalError
from rlx.core.files import path_of
from rlx.core.intervals import whole
from rlx.core.public_calls import public_class
from rlx.core.shape import DimBinding, Shape
from rlx.cost.decision import Decision
from rlx.cost.profile import PlanCost, cost_of_plan
from rlx.cost.target import FusionTarget, Target
from rlx.ir.hir import HirModule
from rlx.ir.lir import BufferPlan, LirModule
from rlx.ir.mir import Graph, MirModule
from rlx.ir.module import GraphModule
from rlx.ir.outline import Row, outline
from rlx.ir.verify import verify
from rlx.passes.branches import select_branches
from rlx.passes.context import Context
from rlx.passes.dedup import dedup_kernels
from rlx.passes.doubles import narrow_doubles
from rlx.passes.fuse import fuse_patterns, fuse_regions
from rlx.passes.fusion.report import FusionReport
from rlx.passes.layout import choose_layouts
from rlx.passes.legalise import DispatchReport, legalise, lower_control_flow, require_legal
from rlx.passes.options import FusionOptions
from rlx.passes.outputs import one_of_each
from rlx.passes.precision import reduce_precision
from rlx.passes.simplify import simplify, tidy
from rlx.plan.alternatives import names_plan
from rlx.plan.check.checker import require_sound
from rlx.plan.dump import Dump
from rlx.plan.manual import with_plan
from rlx.plan.phases import mark_phases, mark_planned
from rlx.plan.planner import plan_choices, plan_module
from rlx.rules.engine import Event

if TYPE_CHECKING:
    from rlx.kernel.program.program import KernelProgram
    from rlx.kernel.program.select import KernelLibrary

T = TypeVar("T")
Pass = Callable[[Graph, Context], Graph]


def weigh_outputs(graph: Graph, ctx: Context) -> Graph:
    """Which of two outputs is read back: both plans are made, and put to the gate."""
    return one_of_each(graph, ctx, partial(_cost_alone, ctx=ctx))


PASSES: tuple[Pass, ...] = (
    weigh_outputs,  # which of two outputs is read back: put to the gate, carried out if allowed
    mark_phases,  # Prologue, SteadyState, Epilogue: an origin of every node
    narrow_doubles,  # f64 inside of imported operators in f32, where the target has no f64
    simplify,  # rules, constant folding, CSE, DCE, block recognition
    legalise,  # lower what the target has no kernel for
    tidy,  # simplification of what the lowerings left
    select_branches,  # if-conversion where a branch syncs with the host: put to the gate
    fuse_patterns,  # named fused ops: each one put to the gate
    reduce_precision,  # products in bf16 or int8, where the options ask for it
    fuse_regions,  # regions around what is left: each one put to the gate
    require_legal,  # every node is one the target runs, or an error that names it
    choose_layouts,  # NCHW or NHWC, image by image: put to the gate
    dedup_kernels,  # regions that differ in scalar constants alone become equal
)
"""All of them, in order. The plan and its checker follow, then `select_kernels`."""


def select_kernels(lir: LirModule, library: KernelLibrary) -> KernelProgram:
    """The last pass: for each step of a plan the kernel forms in the order of the target, each
    taken or refused with a reason. Backends schedule, emit and run what it gives."""
    from rlx.kernel.program import select  # what is only planned needs no kernels

    return select.select_kernels(lir, library)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a pass ran, by the monotonic clock, and the nodes that it left."""

    name: str
    start_ns: int
    stop_ns: int
    nodes: int


@public_class
@dataclass(frozen=True, slots=True)
class CompileResult:
    """What a compile gives: the plan, what was fused, and every decision."""

    lir: LirModule
    fusion: FusionReport
    decisions: tuple[Decision, ...]
    rewrites: tuple[Event, ...] = ()
    """Every rule that fired, or nearly did."""
    options: FusionOptions = field(default_factory=FusionOptions)
    timings: tuple[Timing, ...] = field(default=(), compare=False, repr=False)
    """The time of each pass; nothing where the program came from the cache."""
    source: Graph | tuple[Row, ...] = field(default=(), compare=False, repr=False)
    """What was compiled, before any pass: the graph, or its outline."""

    @property
    def source_rows(self) -> tuple[Row, ...]:
        """The nodes that were given, before any pass."""
        return outline(self.source) if isinstance(self.source, Graph) else self.source

    @property
    def has_dynamic_dims(self) -> bool:
        """Has it named dims?"""
        return bool(self.dynamic_symbols)

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        """The named dims, by name."""
        return self.lir.plan.dynamic_symbols

    def specialize(self, binding: DimBinding | Mapping[str, int]) -> CompileResult:
        """The tight plan for these sizes: a static one if every named dim has one, else a plan for
        all sizes of the others. Bindings of other names are ignored."""
        given = DimBinding.of(binding)
        sizes = given.checked(
            d for d in self.lir.mir.graph.dynamic_symbols if d.name in given.sizes
        )
        mark_planned(self.lir.mir.graph, self.lir.plan.phases)
        graph = self.lir.mir.graph.bind(sizes)
        lir = _planned(graph, self.lir.target, self.options, self.lir.plan.alignment)
        return replace(self, lir=lir)


@public_class
class CompilePipeline:
    """Compiles for one target. The same input gives the same bytes, on any machine.

    With `dump`, the graph after each pass and the plan are written to a folder, as text; with a
    backend's `program`, which selects the kernels of a plan, those, too."""

    def __init__(
        self,
        target: FusionTarget | Target | str = FusionTarget.CPU,
        *,
        options: FusionOptions | None = None,
        alignment: int = 64,
        assert_fusion_clean: bool = False,
        dump: str | os.PathLike[str] | None = None,
        program: Callable[[LirModule], KernelProgram | None] | None = None,
    ) -> None:
        bytes_ = whole(alignment)
        if bytes_ is None or bytes_ < 1 or bytes_ & (bytes_ - 1):
            raise Error(
                f"alignment {alignment!r} is not a power of two. Give 64, or another that is."
            )
        self.target = Target.of(target)
        self.options = _given(FusionOptions() if options is None else options, FusionOptions)
        self.alignment = bytes_
        self.assert_fusion_clean = assert_fusion_clean
        self.dump = None if dump is None else path_of(dump)
        self.program = program

    def compile(self, model: Any) -> CompileResult:
        """Compile whatever stage `model` is at."""
        match model:
            case HirModule():
                return self.compile_hir(model)
            case MirModule():
                return self.compile_mir(model)
            case Graph():
                return self.compile_graph(model)
            case GraphModule() | LirModule():
                return self.compile_module(model)
            case _:
                raise cannot_compile(model)

    def compile_hir(self, module: HirModule) -> CompileResult:
        """Lower blocks to ops, then as `compile_mir`."""
        dump = Dump.of(self.dump, _given(module, HirModule).name)
        dump.hir(module)
        return self._compiled(module.lower(), dump)

    def compile_graph(self, graph: Graph) -> CompileResult:
        """Verify, then as `compile_mir`."""
        return self.compile_mir(MirModule(graph))

    def compile_module(self, module: GraphModule | LirModule) -> CompileResult:
        """Whatever the stage; a LIR module is finished and comes back as it is, checked."""
        held = module if isinstance(module, LirModule) else _given(module, GraphModule).value
        if isinstance(held, LirModule):
            require_sound(held)
            return CompileResult(held, FusionReport.scan(held.mir.graph), ())
        return self.compile(held)

    def with_supported_ops(self, ops: Iterable[str]) -> CompilePipeline:
        """The same pipeline for a backend that has kernels for exactly these ops: all else is
        lowered to them, or refused. An empty claim leaves the target's own."""
        made = copy(self)
        made.target = self.target.with_supported_ops(ops)
        return made

    # -- the stages one by one ---------------------------------------------------------------------

    def preprocess_mir(self, module: MirModule | Graph) -> MirModule:
        """The module without what its outputs do not need, and with branches and loops that the
        target does not run replaced by selects and unrolled. No other pass needs to come first."""
        graph = _module(module).graph
        context = Context.of(self.target, self.options)
        made = lower_control_flow(graph, context)
        return MirModule(made.rebuild() if made is graph else made)

    def optimize(self, module: MirModule | Graph) -> MirModule:
        """The module after all passes: what `plan_lir` takes."""
        return self.optimize_with_report(module)[0]

    def optimize_with_report(self, module: MirModule | Graph) -> tuple[MirModule, FusionReport]:
        """The module after all passes, and what was fused."""
        held = _module(module)
        made = self._optimised(held, Dump.of(self.dump, held.name))
        made.dump.fusion(made.report)
        _require_known(made.name, made.unused)
        return MirModule(made.graph), made.report

    def plan_lir(
        self, module: MirModule | Graph, options: FusionOptions | None = None
    ) -> LirModule:
        """The checked plan of a module that is optimised already. `options` are the pipeline's
        own unless others are given; of them `force` may name choices of the plan."""
        chosen = self.options if options is None else _given(options, FusionOptions)
        graph = require_legal(_module(module).graph, Context.of(self.target, chosen))
        return _planned(graph, self.target, chosen, self.alignment)

    def adopt_plan(self, module: MirModule | Graph, plan: BufferPlan) -> LirModule:
        """A module with a plan that was written by hand, checked. Phases and the manifest follow
        from the graph where the plan has none of its own."""
        return with_plan(module, plan, self.target, self.options)

    def dispatch(self, model: HirModule | MirModule | Graph) -> DispatchReport:
        """Which ops of a model run as the target's own kernels, which as their lowering, and which
        not at all, and why; nothing is compiled."""
        module = model.lower() if isinstance(model, HirModule) else model
        graph = module if isinstance(module, Graph) else _given(module, MirModule).graph
        context = Context.of(self.target, self.options)
        return DispatchReport.of(simplify(narrow_doubles(graph, context), context), context)

    def compile_mir(self, module: MirModule) -> CompileResult:
        """Run the passes, plan the memory, check the plan."""
        return self._compiled(_given(module, MirModule), Dump.of(self.dump, module.name))

    def _compiled(self, module: MirModule, dump: Dump) -> CompileResult:
        made = self._optimised(module, dump)
        lir = _planned(made.graph, self.target, self.options, self.alignment)
        made.clock.lap("plan", len(made.graph.nodes))
        dump.plan(lir)
        dump.fusion(made.report)
        if self.program is not None and dump.folder is not None:
            dump.kernels(self.program(lir))
        if named := made.unused:
            found = [c.decision for c in plan_choices(lir, self.options)]
            reversible = {d.id for d in found if d.is_reversible}
            _require_known(module.name, [k for k in named if k not in reversible])
        context, laps = made.context, tuple(made.clock.laps)
        decisions, events = context.log.decisions, tuple(context.rewrites)
        return CompileResult(lir, made.report, decisions, events, self.options, laps, module.graph)

    def _optimised(self, module: MirModule, dump: Dump) -> _Optimised:
        _require_outputs(module.graph, self.options)
        self.options.require_dims(module.name, module.graph.dynamic_symbols)
        context, clock = Context.of(self.target, self.options), _Clock()
        dump.graph("source", module.graph)
        stages = _stages(module.graph, context, clock, dump)
        unused = context.log.unused_force
        _require_known(module.name, [k for k in unused if not names_plan(k)])
        fused = stages[require_legal.__name__]
        report = FusionReport.analyze(module.graph, fused, context.log.decisions)
        if self.assert_fusion_clean and not report.is_clean:
            raise Error(f"{module.name}: fusion is not clean.\n{report}")
        clock.lap("report", len(fused.nodes))
        plan_force = [k for k in unused if names_plan(k)]
        final = stages[PASSES[-1].__name__]
        return _Optimised(module.name, final, report, context, clock, dump, plan_force)


@dataclass(frozen=True, slots=True)
class _Optimised:
    """What the passes before the plan give."""

    name: str
    graph: Graph
    report: FusionReport
    context: Context
    clock: _Clock
    dump: Dump
    unused: Sequence[str]
    """Ids in `force` that name choices of the plan."""


def optimised(graph: Graph, context: Context) -> Graph:
    """The graph that is planned."""
    return _stages(graph, context)[PASSES[-1].__name__]


def _cost_alone(graph: Graph, ctx: Context) -> PlanCost:
    """What the plan of a graph takes on every call, at the sizes that the compile weighs at."""
    fresh = Context.of(ctx.target, replace(ctx.options, one_of=()))
    final = _stages(graph, fresh, passes=PASSES[1:])[PASSES[-1].__name__]
    lir = plan_module(final, ctx.target, options=fresh.options)
    return cost_of_plan(lir, ctx.terms)


def _stages(
    graph: Graph,
    context: Context,
    clock: _Clock | None = None,
    dump: Dump | None = None,
    passes: Sequence[Pass] | None = None,
) -> dict[str, Graph]:
    """The graph after each pass, by the pass's name; each one's work is verified. The last one may
    be planned, and grows no more: it is another graph than the one that was given."""
    source = given = graph
    stages = dict[str, Graph]()
    for run in passes or PASSES:
        made = run(graph, context)
        if made is not graph:
            verify(made)
            given = made if run is weigh_outputs else given
            _require_same_interface(run, given, made)
        stages[run.__name__] = graph = made
        if clock is not None:
            clock.lap(run.__name__, len(graph.nodes))
        if dump is not None:
            dump.graph(run.__name__, graph)
    if graph is source:
        stages[(passes or PASSES)[-1].__name__] = graph.rebuild()
    return stages


class _Clock:
    """Laps from one pass to the next. Nothing that a compile makes depends on them."""

    def __init__(self) -> None:
        self.laps: list[Timing] = []
        self._since = time.monotonic_ns()

    def lap(self, name: str, nodes: int) -> None:
        now = time.monotonic_ns()
        self.laps.append(Timing(name, self._since, now, nodes))
        self._since = now


def _require_known(name: str, unused: Sequence[str]) -> None:
    if unused:
        listed = ", ".join(unused)
        raise Error(f"{name}: force names no decision that can be reversed: {listed}.")


def _require_outputs(graph: Graph, options: FusionOptions) -> None:
    """Outputs that are asked for at the end are there."""
    for name in options.at_end or ():
        if name not in graph.output_names:
            listed = ", ".join(graph.output_names) or "none"
            raise Error(f"{graph.name}: at_end names no output {name!r}. It has: {listed}.")


def cannot_compile(model: Any) -> Error:
    """The error of a model that is none, and what to do with a function."""
    hint = "Of a Python function rlx.trace(function, *shapes) makes a Graph; rlx.jit compiles it."
    if hasattr(model, "state_dict") and hasattr(model, "forward"):
        hint = "Export it: torch.onnx.export(module, inputs, 'm.onnx'), then rlx.compile('m.onnx')."
    return Error(
        f"cannot compile a {type(model).__name__}. Give a path, a HirModule, MirModule, Graph, "
        f"GraphModule or LirModule. {hint}"
    )


def _module(given: Any) -> MirModule:
    """A module of table ops, verified; a graph of them makes one."""
    return MirModule(given) if isinstance(given, Graph) else _given(given, MirModule)


def _given(value: T, wanted: type[T]) -> T:
    if isinstance(value, wanted):
        return value
    raise Error(f"expected a {wanted.__name__}, got {type(value).__name__}.")


def _require_same_interface(run: Pass, before: Graph, after: Graph) -> None:
    """Inputs, params and outputs are the user's: no pass adds, drops or reorders them, but the one
    that drops outputs where the caller allows it."""
    if _interface(before) != _interface(after):
        raise InternalError(
            f"{before.name}: the pass {run.__name__} changed inputs, params or outputs"
        )


def _interface(graph: Graph) -> list[tuple[str, Shape]]:
    leaves = [(n.attrs["name"], n.shape) for n in graph.leaves]
    outputs = [(name, o.shape) for name, o in zip(graph.output_names, graph.outputs)]
    return leaves + outputs + [("update", u.shape) for u in graph.updates]


def _planned(graph: Graph, target: Target, options: FusionOptions, alignment: int) -> LirModule:
    """The plan of a final graph, checked by code that shares nothing with the planner."""
    lir = plan_module(graph, target, options=options, alignment=alignment)
    require_sound(lir)
    return lir
