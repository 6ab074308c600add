"""Matches of fusion patterns, and the rewrite of the graph by the accepted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlx.core.errors import InternalError
from rlx.ir.mir import Graph, Node, Origin
from rlx.passes.fusion.graph_facts import Facts


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found: which nodes would go, and what would come in their place."""

    what: str
    """The pattern's name, such as `fuse_swiglu`."""
    roots: tuple[Node, ...]
    """The nodes whose values are still needed."""
    removed: tuple[Node, ...]
    """Every node that is no longer computed, the roots among them, inputs before users."""
    externals: tuple[Node, ...]
    """What `make` is given: nodes that stay."""
    make: Callable[..., Sequence[Node]]
    """Nodes that stand for `externals` → nodes that stand for `roots`."""
    is_free: bool = False
    """Does it only reorder views, at no cost?"""

    @property
    def label(self) -> str:
        return self.roots[0].label


@dataclass(frozen=True, slots=True)
class Miss:
    """A pattern that was there but for one condition."""

    what: str
    node: Node
    reason: str


Found = Match | Miss | None


def sketch(match: Match, facts: Facts) -> Graph:
    """The replacement alone, as a graph: what stays is a leaf, per call or once as it was."""
    graph = Graph(match.what)
    graph.traces_lines = False
    leaves = [
        (graph.input if node in facts.per_call else graph.param)(f"v{i}", node.shape)
        for i, node in enumerate(match.externals)
    ]
    graph.set_outputs(list(match.make(*leaves)))
    return graph


def apply(facts: Facts, matches: Iterable[Match]) -> Graph:
    """The graph with every match replaced. Origins of what goes pass to what comes."""
    owner = {node: match for match in matches for node in match.removed}
    if not owner:
        return facts.graph
    new = facts.graph.successor()
    mapped: dict[Node, Node] = {leaf: _copy(new, leaf, {}) for leaf in facts.graph.leaves}
    stack = list(reversed(facts.graph.results))
    opened: set[object] = set()
    while stack:
        node = stack[-1]
        if node in mapped:
            stack.pop()
            continue
        match = owner.get(node)
        needs = (*node.inputs, *node.awaits) if match is None else _needs(match)
        if waiting := [n for n in needs if n not in mapped]:
            _open(opened, match, node)
            stack += reversed(waiting)
        elif match is None:
            mapped[node] = _copy(new, node, mapped)
        else:
            _replace(new, match, node, mapped)
    new.set_results([mapped[o] for o in facts.graph.results], facts.graph)
    return new


def _needs(match: Match) -> tuple[Node, ...]:
    """What must be there before a match is replaced."""
    awaited = dict.fromkeys(a for n in match.removed for a in n.awaits if a not in match.removed)
    return (*match.externals, *awaited)


def _open(opened: set[object], match: Match | None, node: Node) -> None:
    """A node that is visited again before it is rewritten is on a cycle."""
    unit = node if match is None else id(match)
    if unit in opened:
        raise InternalError(f"{node.label}: a fusion around it forms a cycle")
    opened.add(unit)


def _copy(new: Graph, node: Node, mapped: Mapping[Node, Node]) -> Node:
    made = new.copy(node, tuple(mapped[i] for i in node.inputs))
    new.add_origins(made, node.origins)
    return made


def _replace(new: Graph, match: Match, node: Node, mapped: dict[Node, Node]) -> None:
    if node not in match.roots:
        raise InternalError(f"{node.label}: {match.what} drops a value that is read")
    passed = dict.fromkeys(o for n in match.removed for o in n.origins)
    with new.scope(*passed, Origin("pass", match.what)):
        made = match.make(*(mapped[e] for e in match.externals))
    mapped.update(zip(match.roots, made, strict=True))
