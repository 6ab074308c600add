"""Graph outline: each node as a row, without attributes and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.ir.mir import NAMED_LEAVES, Graph, Node, Origin


@dataclass(frozen=True, slots=True)
class Row:
    """A node: its op, its shapes as text, the rows it reads, where it comes from."""

    op: str
    shape: str
    inputs: tuple[int, ...]
    origins: tuple[Origin, ...] = ()
    name: str = ""
    """Of an input or a param."""
    inside: int = 0
    """Ops in its bodies, at any depth."""


NOT_NAMES = ("rule", "pass", "phase", "value")
"""Origins that are no names of the user's."""
MAX_NAMES_SHOWN = 4


def place_of(node: Node) -> str:
    """How decisions name a node: its label, and the other names that the user may know it by."""
    names = [str(o) for o in node.origins if o.kind not in NOT_NAMES]
    return ", ".join([node.label, *names[1:MAX_NAMES_SHOWN]])


def names_in(place: str) -> list[str]:
    """The names that a place was made of."""
    return place.partition(" at ")[2].split(", ")


def outline(graph: Graph) -> tuple[Row, ...]:
    """The rows of all that the outputs need, in the graph's order."""
    return rows_of(graph.order())


def rows_of(nodes: Iterable[Node]) -> tuple[Row, ...]:
    """The rows of `nodes`, which have inputs before users; what is outside is omitted."""
    number: dict[Node, int] = {}
    made: list[Row] = []
    for node in nodes:
        number[node] = len(made)
        shape = ", ".join(map(str, node.shapes))
        inputs = tuple(number[i] for i in node.inputs if i in number)
        name = node.attrs["name"] if node.op in NAMED_LEAVES else ""
        made.append(Row(node.op, shape, inputs, node.origins, name, _inside(node)))
    return tuple(made)


def _inside(node: Node) -> int:
    bodies = [v for v in node.attrs.values() if isinstance(v, Graph)]
    within = [n for body in bodies for n in body.order()]
    return sum(not n.is_leaf for n in within) + sum(map(_inside, within))
