"""LIR: schedule and buffer plan of the final MIR. Backends read it and never re-optimise.

One kernel per node that is not a leaf, a view or an item; a schedule; every value at an offset of
the arena or of the weights; views as aliases; phases; and the manifest of inputs and outputs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlx.core.arguments import instance
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.errors import Error
from rlx.core.extent import is_capacity
from rlx.core.frozen import FrozenDict
from rlx.core.layout import Layout
from rlx.core.public_calls import public_class
from rlx.ir import plan_fields as fields
from rlx.ir.mir import Graph, MirModule, Node

if TYPE_CHECKING:
    from rlx.core.shape import DimBinding
    from rlx.cost.target import Target
    from rlx.ir.plan_binding import BoundPlan


class Phase(enum.IntEnum):
    """When a node runs. Phases never decrease along an edge."""

    PROLOGUE = 0  # when parameters are set
    STEADY_STATE = 1  # on every call
    EPILOGUE = 2  # on every call, after all else: sampling, top-k, peaks


class Space(enum.Enum):
    """The memory space of a slot."""

    ARENA = "arena"  # one per running call: activations, inputs, outputs
    WEIGHTS = "weights"  # one per set of parameters: params, constants, Prologue results
    STATE = "state"  # one per session: what is kept from call to call


@public_class
@dataclass(frozen=True, slots=True)
class Slot:
    """Bytes `offset` to `offset + size` of a space; ints, or dim formulas in a dynamic plan."""

    offset: DimLike
    size: DimLike
    space: Space = Space.ARENA
    is_external: bool = False
    """An input or output, which a backend may bind to the caller's memory."""

    def __post_init__(self) -> None:
        """Sizes are ints or formulas."""
        fields.assign(self, offset=fields.size("Slot.offset", self.offset))
        fields.assign(self, size=fields.size("Slot.size", self.size))
        fields.instance("Slot.space", self.space, Space)
        fields.instance("Slot.is_external", self.is_external, bool)


@public_class
@dataclass(frozen=True, slots=True)
class View:
    """A value that owns no bytes: it is `root`'s, read through `layout` (in elements).

    A kernel that writes directly into its slice of a concat is a view of the concat's buffer.
    """

    root: Node
    layout: Layout

    def __post_init__(self) -> None:
        """A layout has a stride for each dim."""
        fields.instance("View.root", self.root, Node)
        fields.assign(self, layout=fields.layout("View.layout", self.layout))


@public_class
@dataclass(frozen=True, slots=True)
class IoManifest:
    """What goes in and out, in the user's order."""

    inputs: Sequence[tuple[str, Node]] = ()
    params: Sequence[tuple[str, Node]] = ()
    outputs: Sequence[Node] = ()
    states: Sequence[tuple[str, Node]] = ()
    at_end: tuple[str, ...] | None = None
    """The outputs that were asked for at the end; None where their phase says which those are."""

    def __post_init__(self) -> None:
        """Rows of nodes, those of leaves with their names."""
        for name in ("inputs", "params", "states"):
            fields.assign(
                self, **{name: fields.leaves(f"IoManifest.{name}", getattr(self, name), Node)}
            )
        if self.at_end is not None:
            names = fields.row("IoManifest.at_end", self.at_end)
            named = tuple(fields.instance("a name in at_end", name, str) for name in names)
            fields.assign(self, at_end=named)
        outputs = fields.row("IoManifest.outputs", self.outputs)
        fields.assign(self, outputs=tuple(fields.instance("an output", o, Node) for o in outputs))

    @classmethod
    def collect(cls, graph: Graph | MirModule) -> IoManifest:
        """The manifest of a graph."""
        held = graph.graph if isinstance(graph, MirModule) else graph
        if not isinstance(held, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Error(f"IoManifest.collect takes a rlx.Graph, got {type(graph).__name__}.")
        return cls(
            [(n.attrs["name"], n) for n in held.inputs],
            [(n.attrs["name"], n) for n in held.params],
            list(held.outputs),
            [(n.attrs["name"], n) for n in held.states],
        )

    def late(self, names: Sequence[str], phases: Mapping[Node, Phase]) -> list[int]:
        """The outputs that `finish` gives, by number."""
        if self.at_end is not None:
            return [i for i, name in enumerate(names) if name in self.at_end]
        return [i for i, o in enumerate(self.outputs) if phases[o] is Phase.EPILOGUE]


@public_class
@dataclass(frozen=True, slots=True, eq=False)
class BufferPlan:
    """The offset of every value and the step of every kernel.

    A node of several results owns no slot: each of its `item` nodes does, and the final graph has
    an item node for every result. A concat whose operands are all written in place is in no step.
    An output is contiguous at the start of a slot of its own, external unless it is a value of
    the weights; an input or a weight that is returned as it is must be copied out.
    """

    arena_bytes: int
    """At `representative` sizes where the plan is dynamic."""
    weight_bytes: int = 0
    assignments: Mapping[Node, Slot] = field(default_factory=dict[Node, Slot])
    schedule: tuple[Node, ...] = ()
    """The kernels in the order they run, phase by phase."""
    views: Mapping[Node, View] = field(default_factory=dict[Node, View])
    in_place: Mapping[Node, Node] = field(default_factory=dict[Node, Node])
    """Kernel node → the dying operand whose bytes it writes its result into."""
    written: Mapping[Node, Layout] = field(default_factory=dict[Node, Layout])
    """Update of a state → the elements it writes, from its position on; it is a view of the state,
    of which all else stays as it is."""
    phases: Mapping[Node, Phase] = field(default_factory=dict[Node, Phase])
    io: IoManifest = IoManifest()
    alignment: int = 64
    dynamic_symbols: tuple[Dim, ...] = ()
    arena_formula: DimLike = 0
    """`arena_bytes` as a dim formula; the same int in a static plan."""
    representative: Mapping[str, int] = field(default_factory=dict[str, int])
    """The sizes at which a dynamic plan was made tight."""
    memo: dict[str, Any] = field(
        default_factory=dict[str, Any], init=False, compare=False, repr=False
    )
    """What is computed from the plan once and kept with it, such as its compiled formulas."""

    def __post_init__(self) -> None:
        """Frozen, each field of its type. The arena of a static plan is its own formula."""
        fields.assign(self, **dict(_frozen_fields(self)))
        if self.arena_formula == 0:
            fields.assign(self, arena_formula=self.arena_bytes)

    def __eq__(self, other: object) -> bool:
        """Of equal graphs, the same steps, slots and views of the same nodes."""
        from rlx.ir.fingerprint import are_same_plans

        return self is other or (isinstance(other, BufferPlan) and are_same_plans(self, other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return fields.rebuilt(self)

    @property
    def capacities(self) -> tuple[str, ...]:
        """The named dims that the runtime binds, and grows where what is found does not fit."""
        return tuple(d.name for d in self.dynamic_symbols if is_capacity(d.name))

    @property
    def total_unshared_bytes(self) -> int:
        """The arena if no two values shared a byte."""
        return sum(
            evaluate(slot.size, self.representative)
            for slot in self.assignments.values()
            if slot.space is Space.ARENA
        )

    @property
    def weight_formula(self) -> DimLike:
        """`weight_bytes` as a dim formula: weights of named sizes are consecutive."""
        slots = [s for s in self.assignments.values() if s.space is Space.WEIGHTS]
        if not any(isinstance(v, Dim) for s in slots for v in (s.offset, s.size)):
            return self.weight_bytes
        return sum((s.size for s in slots), start=0)

    @property
    def state_formula(self) -> DimLike:
        """The bytes of a session's states: they are consecutive."""
        sizes = [s.size for s in self.assignments.values() if s.space is Space.STATE]
        return sum(sizes, start=0)

    @property
    def bytes_saved(self) -> int:
        """What sharing and in-place reuse save."""
        return max(0, self.total_unshared_bytes - self.arena_bytes)

    def phase_of(self, node: Node) -> Phase:
        """Once for the weights, in each call, or when a call is finished?"""
        if not isinstance(node, Node) or node not in self.phases:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _unplanned(node)
        return self.phases[node]

    def nodes_in_phase(self, phase: Phase) -> tuple[Node, ...]:
        """Leaves, views and kernels of a phase, inputs before users."""
        instance(Phase).check("phase", phase)
        return tuple(node for node, its in self.phases.items() if its is phase)

    def is_view(self, node: Node) -> bool:
        """Does the value alias another's buffer?"""
        self.phase_of(node)
        return node in self.views

    def root(self, node: Node) -> Node:
        """The node whose slot holds the value."""
        if not isinstance(node, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _unplanned(node)
        view = self.views.get(node)
        return view.root if view else node

    def slot(self, node: Node) -> Slot:
        """The slot that holds the value: its own, or that of the view's root."""
        found = self.assignments.get(self.root(node))
        if found is None:
            raise _unplanned(node)
        return found

    def layout(self, node: Node) -> Layout:
        """The layout of the elements in `slot(node)`."""
        view = self.views.get(node)
        return view.layout if view else Layout.contiguous(node.shape.dims)

    def bind(self, sizes: DimBinding | Mapping[str, int]) -> BoundPlan:
        """The plan in plain ints at these sizes of its named dims."""
        from rlx.ir.plan_binding import bind

        return bind(self, sizes)

    def at(self, sizes: Mapping[str, int]) -> BufferPlan:
        """The same plan, with other representative sizes."""
        totals = {
            "arena_bytes": evaluate(self.arena_formula, sizes),
            "weight_bytes": evaluate(self.weight_formula, sizes),
        }
        return replace(self, representative=sizes, **totals)

    def report(self) -> str:
        """The plan as a table: offsets, sizes, lives, and what sharing saves."""
        from rlx.ir.plan_report import report

        return report(self)

    def report_svg(self) -> str:
        """The plan as a picture: bytes upward, steps to the right, a box per buffer."""
        from rlx.ir.plan_report import report_svg

        return report_svg(self)


def _frozen_fields(plan: BufferPlan) -> Iterator[tuple[str, Any]]:
    """The fields of a plan, each of its type and frozen."""
    for name in ("arena_bytes", "weight_bytes", "alignment"):
        yield name, fields.count(f"BufferPlan.{name}", getattr(plan, name))
    if plan.alignment < 1 or plan.alignment & (plan.alignment - 1):
        raise Error(f"BufferPlan.alignment {plan.alignment} is not a power of two. Give 64.")
    yield "arena_formula", fields.size("BufferPlan.arena_formula", plan.arena_formula)
    for name, values in _TABLES.items():
        yield name, fields.table(f"BufferPlan.{name}", getattr(plan, name), Node, values)
    rows = fields.table("BufferPlan.written", plan.written, Node, Layout)
    yield (
        "written",
        FrozenDict({n: fields.layout("BufferPlan.written", r) for n, r in rows.items()}),
    )
    yield "representative", fields.table("BufferPlan.representative", plan.representative, str, int)
    for name, kind in (("schedule", Node), ("dynamic_symbols", Dim)):
        row = fields.row(f"BufferPlan.{name}", getattr(plan, name))
        yield name, tuple(fields.instance(f"an entry of {name}", each, kind) for each in row)
    fields.instance("BufferPlan.io", plan.io, IoManifest)


_TABLES = {"assignments": Slot, "views": View, "in_place": Node, "phases": Phase}
"""Field of a plan → what it holds for nodes."""


def _unplanned(node: Any) -> Error:
    """The error of asking a plan about what it does not hold."""
    if not isinstance(node, Node):
        return Error(f"a plan is asked about its nodes, not about {node!r}.")
    if node.has_items:
        return Error(f"{node.label} has several results: ask the plan about its items.")
    return Error(
        f"{node.label} is no node of this plan. A plan holds the nodes of its own final graph, "
        "lir.mir.graph: nodes do not survive passes, inputs and params are found by name there."
    )


@public_class
@dataclass(frozen=True, slots=True, eq=False)
class LirModule:
    """A compiled module: final MIR, plan, and the target it was made for."""

    mir: MirModule
    plan: BufferPlan
    target: Target
    options: str = ""
    """What the compile was asked for, in one canonical line."""
    split: Mapping[Node, bool] = field(default_factory=dict[Node, bool], repr=False)
    """Kernels whose work the caller wants shared out between workers, or not."""
    memo: dict[str, Any] = field(
        default_factory=dict[str, Any], init=False, compare=False, repr=False
    )
    """What is computed from the module once and kept with it."""

    def __post_init__(self) -> None:
        """The graph of a plan is final: nothing is added to it any more."""
        graph = fields.instance("LirModule.mir", self.mir, MirModule).graph
        graph._seal("a planned module")  # pyright: ignore[reportPrivateUsage]
        fields.instance("LirModule.plan", self.plan, BufferPlan)
        fields.instance("LirModule.options", self.options, str)
        if not callable(getattr(self.target, "digest", None)):
            raise Error(
                f"LirModule.target is {self.target!r}. Give a Target, such as Target.of('cpu')."
            )
        fields.assign(self, split=fields.table("LirModule.split", self.split, Node, bool))

    def __eq__(self, other: object) -> bool:
        """Equal graphs of one name with equal plans, for one target and with the same options."""
        from rlx.ir.fingerprint import are_same_modules

        return self is other or (isinstance(other, LirModule) and are_same_modules(self, other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return fields.rebuilt(self)

    @property
    def fingerprint(self) -> str:
        """A hash of all of the above: a module with another plan has another one."""
        from rlx.ir.fingerprint import fingerprint

        if "fingerprint" not in self.memo:
            self.memo["fingerprint"] = fingerprint(self)
        return self.memo["fingerprint"]

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.mir.name

    @property
    def arena_bytes(self) -> int:
        """Bytes of one running call, inputs and outputs included, weights not."""
        return self.plan.arena_bytes

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        """The named dims, by name."""
        return self.plan.dynamic_symbols

    @property
    def has_dynamic_dims(self) -> bool:
        """Has it named dims?"""
        return bool(self.plan.dynamic_symbols)

    @property
    def is_static(self) -> bool:
        """Is every size known?"""
        return not self.has_dynamic_dims

    def __repr__(self) -> str:
        return f"<LirModule {self.name!r}: {len(self.plan.schedule)} kernels, {self.fingerprint}>"
