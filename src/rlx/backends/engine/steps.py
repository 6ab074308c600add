"""A plan as steps of the host: segments that an engine compiles, and what runs between them.

A phase of the plan is cut where the host has to compute something. Nodes are put as early as the
cuts allow, so that there are as few segments as possible; a graph that the engine computes whole
is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from rlx.backends.engine.claims import Placement
from rlx.backends.engine.engine import Engine
from rlx.backends.engine.module import Module
from rlx.core.attrs import HeldGraph, dims_in
from rlx.core.dim import symbols_of
from rlx.cost.target import LOOPS
from rlx.ir.lir import Phase
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind

EMBEDDED = 16
"""Elements of a constant that is part of a function; larger ones are arguments of it."""


ONLY_MOVES = "a Prologue that only moves values is done before it would be compiled"


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Nodes that become one function of the engine."""

    nodes: tuple[Node, ...]
    """Operands first."""
    inputs: tuple[Node, ...]
    """What the function takes."""
    outputs: tuple[Node, ...]
    """What later steps, or the caller, read of it."""
    symbols: frozenset[str]
    """The named dims that the function depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """A node that the host computes by its NumPy meaning."""

    node: Node
    items: tuple[Node, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ControlStep:
    """A branch or loop that the host takes; its bodies are steps."""

    node: Node
    items: tuple[Node, ...]
    bodies: Mapping[str, BodySteps]
    """By attribute."""
    reason: str


Step: TypeAlias = "Segment | HostStep | ControlStep"


@dataclass(frozen=True, slots=True, eq=False)
class BodySteps:
    """A graph inside of a node."""

    graph: Graph
    steps: tuple[Step, ...]


class Steps:
    """The steps of a plan, phase by phase, made when they are asked for."""

    def __init__(self, module: Module, engine: Engine) -> None:
        self.module, self.graph, self.engine = module, module.graph, engine
        self.placement = Placement.of(engine, self.graph.order())
        self._order = [n for n in self.graph.order() if not n.is_leaf]

    @cached_property
    def call(self) -> tuple[Step, ...]:
        """SteadyState and Epilogue together."""
        nodes = [n for n in self._order if self._phase(n) is not Phase.PROLOGUE]
        return self._cut(nodes, self.graph.results)

    @cached_property
    def steady(self) -> tuple[Step, ...]:
        nodes = [n for n in self._order if self._phase(n) is Phase.STEADY_STATE]
        read = [i for n in self._late for i in n.inputs]
        return self._cut(nodes, [*self.graph.results, *read])

    @cached_property
    def epilogue(self) -> tuple[Step, ...]:
        return self._cut(self._late, self.graph.outputs)

    @cached_property
    def _late(self) -> list[Node]:
        return [n for n in self._order if self._phase(n) is Phase.EPILOGUE]

    def _phase(self, node: Node) -> Phase:
        return self.module.phases[node]

    @cached_property
    def prologue_nodes(self) -> tuple[Node, ...]:
        """What follows from params alone, operands first; constants and params are not among it."""
        return tuple(n for n in self._order if self._phase(n) is Phase.PROLOGUE)

    @cached_property
    def weights(self) -> tuple[Node, ...]:
        """What calls read of the Prologue: params, constants, and what follows from them."""
        later = [n for n in self._order if self._phase(n) is not Phase.PROLOGUE]
        read = [i for n in later for i in n.inputs]
        found = dict.fromkeys([*read, *self.graph.outputs])
        return tuple(n for n in found if self._phase(n) is Phase.PROLOGUE and not n.is_given)

    def prologue(self, nodes: Sequence[Node]) -> tuple[Step, ...]:
        """The steps that make these nodes of the Prologue anew."""
        if all(n.decl.kind is Kind.MOVEMENT for n in nodes):
            items, own = _items(nodes), [n for n in nodes if n.op != "item"]
            return tuple(HostStep(n, tuple(items.get(n, ())), ONLY_MOVES) for n in own)
        wanted = [*self.weights, *nodes] if len(nodes) < len(self.prologue_nodes) else self.weights
        return self._cut(nodes, wanted)

    def _cut(self, nodes: Sequence[Node], wanted: Sequence[Node]) -> tuple[Step, ...]:
        return cut(nodes, wanted, self.placement)


def cut(nodes: Sequence[Node], wanted: Iterable[Node], placement: Placement) -> tuple[Step, ...]:
    """These nodes, operands first, as steps; `wanted` of them are read afterwards."""
    reasons = {n: placement.why_host(n) for n in nodes if n.op != "item"}
    levels = _levels(nodes, reasons)
    groups: dict[int, list[Node]] = {}
    for node in nodes:
        groups.setdefault(levels[node], []).append(node)
    items = _items(nodes)
    later = _read_later(levels) | set(wanted)
    steps: list[Step] = []
    for level in sorted(groups):
        if level % 2 == 0:
            steps.append(_segment(groups[level], later))
            continue
        for node in groups[level]:
            if node.op != "item":
                reason = reasons[node] or ""
                steps.append(_host(node, tuple(items.get(node, ())), reason, placement))
    return tuple(steps)


def _levels(nodes: Sequence[Node], reasons: Mapping[Node, str | None]) -> dict[Node, int]:
    """Even levels are the engine's, odd ones the host's; each is as low as its operands, and the
    nodes that measure its sizes, allow."""
    found: dict[Node, int] = {}
    for node in nodes:
        given = [found[i] for i in (*node.inputs, *node.awaits) if i in found]
        if node.op == "item" and given:
            found[node] = given[0]
            continue
        is_host = bool(node.op != "item" and reasons[node])
        least = -1 if is_host else 0
        found[node] = max([least, *(l if l % 2 == is_host % 2 else l + 1 for l in given)])
    return found


def _read_later(levels: Mapping[Node, int]) -> set[Node]:
    """The nodes that another level than their own reads."""
    return {i for n, level in levels.items() for i in n.inputs if levels.get(i) != level}


def _segment(nodes: Sequence[Node], later: Collection[Node]) -> Segment:
    """One function of these nodes, of which others read those that are read later."""
    inside = set(nodes)
    read = dict.fromkeys(i for n in nodes for i in n.inputs if i not in inside)
    inputs = tuple(i for i in read if not is_embedded(i))
    return Segment(tuple(nodes), inputs, tuple(n for n in nodes if n in later), _symbols(nodes))


def is_embedded(node: Node) -> bool:
    """Is it a constant that functions hold themselves?"""
    return node.op == "constant" and node.attrs["value"].array.size <= EMBEDDED


def _symbols(nodes: Iterable[Node]) -> frozenset[str]:
    """The named dims that values of these nodes, or their operands, depend on."""
    todo, found = list(nodes), set[str]()
    while todo:
        node = todo.pop()
        shapes = (*node.shapes, *(s for i in node.inputs for s in i.shapes))
        dims = [d for s in shapes for d in s.dims]
        dims += [d for v in node.attrs.values() for d in dims_in(v)]
        found |= {d.name for d in symbols_of(dims)}
        todo += [n for v in node.attrs.values() if isinstance(v, HeldGraph) for n in v.order()]
    return frozenset(found)


def _host(
    node: Node, items: tuple[Node, ...], reason: str, placement: Placement
) -> HostStep | ControlStep:
    if node.op not in LOOPS:
        return HostStep(node, items, reason)
    held = {k: v for k, v in node.attrs.items() if isinstance(v, HeldGraph)}
    bodies = {k: body_steps(v, placement) for k, v in held.items()}  # pyright: ignore[reportArgumentType]
    return ControlStep(node, items, bodies, reason)


def body_steps(graph: Graph, placement: Placement) -> BodySteps:
    """The steps of a graph inside of a node."""
    leaves = ("input", "param", "constant")
    nodes = [n for n in graph.order() if n.op not in leaves]
    return BodySteps(graph, cut(nodes, graph.outputs, placement))


def _items(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "item":
            found.setdefault(node.inputs[0], []).append(node)
    return found


def each_step(steps: Iterable[Step]) -> Iterable[Step]:
    """Steps, and those of the bodies inside of them."""
    for step in steps:
        yield step
        if isinstance(step, ControlStep):
            for body in step.bodies.values():
                yield from each_step(body.steps)
