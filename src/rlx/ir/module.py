"""GraphModule: one handle for a module at whichever level it has reached."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.arguments import FUNCTION
from rlx.core.errors import Error, GraphError
from rlx.core.public_calls import public_class
from rlx.ir.hir import FusionPolicy, HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, MirModule, Node


class GraphStage(enum.Enum):
    """The level a module has reached; it only ever goes down."""

    HIR = "hir"  # blocks
    MIR = "mir"  # table ops
    LIR = "lir"  # a plan


_STAGES = {HirModule: GraphStage.HIR, MirModule: GraphStage.MIR, LirModule: GraphStage.LIR}


@public_class
@dataclass(frozen=True, slots=True, repr=False)
class GraphModule:
    """Exactly one of a HirModule, a MirModule and a LirModule."""

    value: HirModule | MirModule | LirModule

    def __post_init__(self) -> None:
        if type(self.value) not in _STAGES:
            raise Error(
                f"GraphModule holds a HirModule, MirModule or LirModule, not "
                f"{type(self.value).__name__}. For a Graph use GraphModule.from_graph."
            )

    @classmethod
    def define(
        cls,
        name: str,
        build: Callable[[HirModule], Node | Sequence[Node]],
        *,
        policy: FusionPolicy = FusionPolicy.DIRECT,
    ) -> GraphModule:
        """A HIR module whose outputs are the node or nodes that `build` returns."""
        module = HirModule(name, policy)
        FUNCTION.check("build", build, GraphError)
        made = build(module)
        if not isinstance(made, Node | Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"{name}: define expects a node or nodes back, got {made!r}")
        module.set_outputs([made] if isinstance(made, Node) else made)
        return cls(module)

    @classmethod
    def from_hir(cls, module: HirModule) -> GraphModule:
        """A module of blocks."""
        return cls(module)

    @classmethod
    def from_mir(cls, module: MirModule) -> GraphModule:
        """A verified graph."""
        return cls(module)

    @classmethod
    def from_graph(cls, graph: Graph) -> GraphModule:
        """A graph of table ops, verified."""
        return cls(MirModule(graph))

    @classmethod
    def from_lir(cls, module: LirModule) -> GraphModule:
        """A planned module."""
        return cls(module)

    @property
    def stage(self) -> GraphStage:
        """The level it is at: HIR, MIR or LIR."""
        return _STAGES[type(self.value)]

    @property
    def name(self) -> str:
        """The name of its graph."""
        return self.graph.name

    @property
    def graph(self) -> Graph:
        """The graph at this stage; at LIR the final one, which the plan is over."""
        held = self.value
        return held.mir.graph if isinstance(held, LirModule) else held.graph

    def lower(self) -> GraphModule:
        """HIR becomes MIR; a later stage stays as it is."""
        held = self.value
        return GraphModule(held.lower()) if isinstance(held, HirModule) else self

    def as_hir(self) -> HirModule:
        """The module of blocks; an error where it was lowered."""
        return self._as(HirModule)

    def as_mir(self) -> MirModule:
        """The verified graph; an error at other stages."""
        return self._as(MirModule)

    def as_lir(self) -> LirModule:
        """The planned module; an error where it was not planned."""
        return self._as(LirModule)

    def _as(self, wanted: Any) -> Any:
        if isinstance(self.value, wanted):
            return self.value
        raise Error(
            f"{self.name} is at {self.stage.name}, not {_STAGES[wanted].name}. {self._hint()}"
        )

    def _hint(self) -> str:
        hints = {
            GraphStage.HIR: "lower() takes it to MIR, CompilePipeline.compile_module to LIR.",
            GraphStage.MIR: "CompilePipeline.compile_module takes it to LIR; nothing goes back up.",
            GraphStage.LIR: "Its graph is .graph; nothing goes back up.",
        }
        return hints[self.stage]

    def inspect(self) -> str:
        """The stage, how many nodes and of which ops, and every node as text."""
        graph = self.graph
        counts = Counter(node.op for node in graph.nodes)
        histogram = ", ".join(f"{op} {n}" for op, n in sorted(counts.items()))
        head = f"{self.name}: {self.stage.name}, {_count(len(graph), 'node')}"
        return f"{head}, {_count(len(graph.outputs), 'output')}\nops: {histogram}\n{self._text()}"

    def _text(self) -> str:
        held = self.value
        return f"{held.mir}\n{held.plan.report()}" if isinstance(held, LirModule) else str(held)

    def __repr__(self) -> str:
        return f"<GraphModule {self.name!r} at {self.stage.name}: {len(self.graph)} nodes>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
