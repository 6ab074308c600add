"""Graph analyses that fusion shares: order, users, outputs, and what runs per call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.ir.lir import Phase
from rlx.ir.mir import Graph, Node, users_of
from rlx.plan.phases import derive_phases


@dataclass(frozen=True, slots=True)
class Facts:
    """A graph read once, by every pattern."""

    graph: Graph
    order: Sequence[Node]
    """Inputs before users, and what depends on weights alone before all that runs per call."""
    users: Mapping[Node, Sequence[Node]]
    outputs: frozenset[Node]
    per_call: frozenset[Node]
    """What has a path from an input, or depends on a named dim. The others run once, when
    parameters are set."""
    late: frozenset[Node]
    """What runs in the Epilogue: kernels are of one phase."""

    @classmethod
    def of(cls, graph: Graph) -> Facts:
        order = graph.order()
        per_call = per_call_of(order)
        once = [n for n in order if n not in per_call]
        ordered = [*once, *(n for n in order if n in per_call)]
        users = users_of(order)
        return cls(graph, ordered, users, frozenset(graph.results), per_call, _late(order))

    def is_weight(self, node: Node) -> bool:
        """Does the node depend on params and constants alone?"""
        return node not in self.per_call

    def is_output(self, node: Node) -> bool:
        return node in self.outputs

    def sole_user(self, node: Node) -> Node | None:
        """The one node that reads `node`; None if there are others or the user sees it."""
        users = self.users[node]
        return users[0] if len(users) == 1 and node not in self.outputs else None

    def is_inner(self, node: Node, inside: Iterable[Node]) -> bool:
        """Do only nodes of `inside` read `node`, and not the caller?"""
        held = set(inside)
        return node not in self.outputs and all(u in held for u in self.users[node])


def _late(order: Sequence[Node]) -> frozenset[Node]:
    """A body, whose nodes are not marked, runs as a whole."""
    if not any(node.is_late for node in order):
        return frozenset()
    phases = derive_phases(order)
    return frozenset(node for node in order if phases[node] is Phase.EPILOGUE)


def per_call_of(order: Iterable[Node]) -> frozenset[Node]:
    """The nodes that an input or a size known only to the call has a part in."""
    found: set[Node] = set()
    for node in order:
        if node.is_given or any(i in found for i in node.inputs) or _names_dims(node):
            found.add(node)
    return frozenset(found)


def _names_dims(node: Node) -> bool:
    """Is a named dim involved? A param's own dims come with the param."""
    if node.is_leaf:
        return False
    return not all(s.is_static for s in node.shapes) or any(map(_is_named, node.attrs.values()))


def _is_named(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_named, value))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, Shape):
        return not value.is_static
    return isinstance(value, Dim) or (isinstance(value, Graph) and value.names_dims)
