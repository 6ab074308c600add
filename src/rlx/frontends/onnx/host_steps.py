"""Host steps: operators on strings and image files, run in Python between compiled programs.

An operator that makes strings or looks inside them is no loop over numbers. Its operands leave the
graph and its results are inputs of it: so the graph of a model is split where a value depends on
such a step, and each stage is one native program. Stage n has the nodes behind n host steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core.attrs import dims_in
from rlx.core.dim import Dim, symbols_of
from rlx.core.errors import Error, UnsupportedError
from rlx.cost.decision import Decision
from rlx.frontends.onnx.strings import Strings
from rlx.ir.mir import Graph, Node
from rlx.passes.bodies import bodies_of, nodes_within

Array = np.ndarray[Any, Any]
Run = Callable[[Strings, Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """One operator that the host runs."""

    label: str
    name: str
    op: str
    why: str
    run: Run
    operands: tuple[Node, ...]
    results: tuple[Node, ...]
    """The inputs of the graph that stand for what it gives."""

    def __call__(self, strings: Strings, arrays: Sequence[Array]) -> list[Array]:
        """Its results, as its inputs of the graph take them; what goes wrong names the node."""
        try:
            made = self.run(strings, arrays)
        except Error as error:
            raise Error(f"{self.label}: {error}") from None
        pairs = zip(made, self.results, strict=True)
        return [np.asarray(a, r.shape.dtype.numpy, order="C") for a, r in pairs]

    @property
    def decision(self) -> Decision:
        return Decision(
            f"host {self.name}", "host_step", (self.name,), True, self.why,
            is_reversible=False, kind="cut",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A program, and the host steps that follow it. Nodes are those of the whole graph."""

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    steps: tuple[HostStep, ...]


def staged(graph: Graph, steps: Sequence[HostStep]) -> list[Stage]:
    """The graph in stages, in the order that they run in."""
    levels = _levels(graph, steps)
    wanted = [*graph.outputs, *(n for s in steps for n in s.operands)]
    crossing = _crossing(graph, levels, wanted)
    count = 1 + max(levels.values(), default=0)
    return [_stage(graph, steps, levels, crossing, number) for number in range(count)]


def _levels(graph: Graph, steps: Sequence[HostStep]) -> dict[Node, int]:
    """How many host steps, one after the other, each node waits for."""
    levels: dict[Node, int] = {}
    made = {r: step for step in steps for r in step.results}
    bound = _binders(graph)
    for node in _ordered(graph, steps):
        before = list(node.inputs)
        if node in made:
            levels[node] = 1 + max((levels[n] for n in made[node].operands), default=0)
            continue
        before += [bound[s] for s in _symbols(node) if s in bound and not node.is_leaf]
        levels[node] = max((levels[n] for n in before), default=0)
    return levels


def _ordered(graph: Graph, steps: Sequence[HostStep]) -> list[Node]:
    """Every node that a result needs, after all that it needs itself: nodes have their numbers in
    the order in which they were made, and a step's results after its operands."""
    needed, todo = dict[Node, None](), [*graph.outputs, *(n for s in steps for n in s.operands)]
    todo += graph.inputs
    while todo:
        node = todo.pop()
        if node not in needed:
            needed[node] = None
            todo += [*node.inputs, *node.awaits]
    return sorted(needed, key=lambda n: n.index)


def _symbols(node: Node) -> list[str]:
    """The named sizes in the shapes and attributes of a node, and of the nodes of its bodies."""
    found = dict[str, None]()
    for each in (node, *(n for body in bodies_of(node) for n in nodes_within(body))):
        values = (*each.shapes, *each.attrs.values())
        found |= dict.fromkeys(d.name for v in values for d in symbols_of(dims_in(v)))
    return list(found)


def _binders(graph: Graph) -> dict[str, Node]:
    """Named size → the first input that has it."""
    found: dict[str, Node] = {}
    for node in graph.inputs:
        for dim in node.shape.dims:
            symbol = dim.bound_symbol if isinstance(dim, Dim) else None
            if symbol is not None:
                found.setdefault(symbol.name, node)
    return found


def _crossing(
    graph: Graph, levels: Mapping[Node, int], wanted: Iterable[Node]
) -> dict[int, dict[Node, None]]:
    """Stage → the values of it that someone outside of it reads."""
    found: dict[int, dict[Node, None]] = {}
    readers = [(n, levels[n]) for n in levels]
    pairs = [(i, level) for node, level in readers for i in (*node.inputs, *node.awaits)]
    for value in wanted:
        if value.op not in ("input", "constant"):
            found.setdefault(levels[value], {})[value] = None
    for value, level in pairs:
        if levels[value] != level and not _is_free(value):
            found.setdefault(levels[value], {})[value] = None
    return found


def _is_free(node: Node) -> bool:
    """Is it there for every stage, without being computed?"""
    return node.op in ("input", "param", "constant")


def _stage(
    graph: Graph,
    steps: Sequence[HostStep],
    levels: Mapping[Node, int],
    crossing: Mapping[int, Mapping[Node, None]],
    number: int,
) -> Stage:
    made = Graph(f"{graph.name}.{number}" if number else graph.name)
    made.traces_lines = False
    outputs = tuple(crossing.get(number, ()))
    inside = _inside(outputs, levels, number)
    inputs = _inputs(graph, inside, levels, number)
    mapped: dict[Node, Node] = {}
    for node in inputs:
        mapped[node] = made.input(_name(node), node.shape)
    for node in inside:
        if node not in mapped:
            mapped[node] = made.copy(node, tuple(mapped[i] for i in node.inputs))
            made.add_origins(mapped[node], node.origins)
    made.set_outputs([mapped[n] for n in outputs])
    own = tuple(s for s in steps if levels[s.results[0]] == number + 1)
    return Stage(made, inputs, outputs, own)


def _inside(outputs: Iterable[Node], levels: Mapping[Node, int], number: int) -> list[Node]:
    """What a stage computes, and the leaves that it reads."""
    found, todo = dict[Node, None](), list(outputs)
    while todo:
        node = todo.pop()
        if node in found:
            continue
        found[node] = None
        if levels[node] == number:
            todo += [*node.inputs, *node.awaits]
    return sorted(found, key=lambda n: n.index)


def _inputs(
    graph: Graph, inside: Sequence[Node], levels: Mapping[Node, int], number: int
) -> tuple[Node, ...]:
    """What a stage is given: inputs, what earlier ones computed, and inputs that say how long its
    named sizes are."""
    read = [n for n in inside if n.op == "input" or (levels[n] < number and not _is_free(n))]
    for node in read:
        if any(d.is_measured for d in node.shape.dims if isinstance(d, Dim)) and node.op != "input":
            raise UnsupportedError(
                f"{node.label}: its size is found in data, and what follows waits for a host step"
            )
    symbols = (d.bound_symbol for n in read for d in n.shape.dims if isinstance(d, Dim))
    bound = {s.name for s in symbols if s is not None}
    binders = _binders(graph)
    names = dict.fromkeys(s for n in inside if levels[n] == number for s in _symbols(n))
    missing = dict.fromkeys(binders[s] for s in names if s in binders and s not in bound)
    return (*read, *(n for n in missing if n not in read))


def _name(node: Node) -> str:
    return node.attrs["name"] if node.op == "input" else f"value.{node.index}"
