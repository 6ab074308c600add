"""Topological order of a model's nodes.

The ONNX specification asks for sorted nodes, but writers that edit graphs append them where they
like, and other runtimes sort. A node depends on its operands and on what the graphs inside it read
from around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlx.core.errors import GraphError


def ordered(nodes: Sequence[Any], where: str) -> list[Any]:
    """The nodes, each after those whose results it reads; otherwise in the file's order."""
    made_by = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    reads = [[made_by[n] for n in _read(node) if n in made_by] for node in nodes]
    if all(operand < i for i, operands in enumerate(reads) for operand in operands):
        return list(nodes)
    return [nodes[i] for i in _sorted(nodes, reads, where)]


def _sorted(nodes: Sequence[Any], reads: Sequence[Sequence[int]], where: str) -> Iterator[int]:
    """Depth first from each node in turn: `open_` are those whose operands are being visited."""
    done: set[int] = set()
    for root in range(len(nodes)):
        open_: dict[int, Iterator[int]] = {}
        if root not in done:
            open_[root] = iter(reads[root])
        while open_:
            last = next(reversed(open_))
            operand = next((i for i in open_[last] if i not in done), None)
            if operand is None:
                del open_[last]
                done.add(last)
                yield last
            elif operand in open_:
                raise _cycle(nodes, [*open_], operand, where)
            else:
                open_[operand] = iter(reads[operand])


def _cycle(nodes: Sequence[Any], path: list[int], start: int, where: str) -> GraphError:
    """Each node of the path reads the one behind it, the last the one at `start`."""
    names = [_shown(nodes[i]) for i in path[path.index(start) :]]
    shown = [*names[:4], "…", names[-1]] if len(names) > 5 else names
    circle = " reads ".join([*shown, names[0]])
    return GraphError(f"{where}: its nodes form a cycle: {circle}. Break it where it is written.")


def _shown(node: Any) -> str:
    name = node.name or next((o for o in node.output if o), "")
    return f"{str(node.op_type)[:40]} {name[:40]!r}"


def _read(node: Any) -> Iterator[str]:
    """The names that a node reads, also in the graphs inside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if _has_graph(attribute) else ():
            yield from _free(graph)


def _has_graph(attribute: Any) -> bool:
    return attribute.HasField("g") or bool(attribute.graphs)


def _free(graph: Any) -> list[str]:
    """The names that a graph reads and does not give itself, at any depth. Iterative: graphs are
    nested as deep as a file says."""
    found: dict[str, None] = {}
    todo: list[tuple[Any, Mapping[str, None]]] = [(graph, {})]
    while todo:
        inner, around = todo.pop()
        own = {**around, **dict.fromkeys(_given(inner))}
        for node in inner.node:
            found.update((n, None) for n in node.input if n not in own)
            graphs = [g for a in node.attribute if _has_graph(a) for g in (a.g, *a.graphs)]
            todo += [(g, own) for g in graphs]
        found.update((o.name, None) for o in inner.output if o.name not in own)
    return list(found)


def _given(graph: Any) -> Iterator[str]:
    """The names of inputs, initialisers and results."""
    yield from (i.name for i in graph.input)
    yield from (t.name for t in graph.initializer)
    yield from (t.values.name for t in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output)
