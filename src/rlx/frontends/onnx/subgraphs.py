"""Subgraphs of ONNX nodes as bodies of branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlx.core.dim import DimLike
from rlx.core.errors import UnsupportedError
from rlx.core.shape import Shape
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.values import Coded, Value, is_plain
from rlx.ir.inline import inline
from rlx.ir.mir import Graph, Node

Steps = Callable[[Graph, list[Node]], Sequence[Node]]


def closed(scope: Scope, results: Sequence[Value]) -> list[Node]:
    """The results of a graph that was read, as its outputs."""
    for value in results:
        if not is_plain(value) and not isinstance(value, Coded):
            raise UnsupportedError(f"{scope.graph.name}: it gives a sequence, not a tensor")
    nodes = [scope.as_node(value) for value in results]
    scope.graph.set_outputs(nodes)
    return nodes


def captures_of(*scopes: Scope) -> list[Node]:
    """The values from outside that any of them uses, each once."""
    return list(dict.fromkeys(outside for s in scopes for outside in s.captured))


def graph_of(call: Call, name: str, shapes: Sequence[Shape], made: Steps) -> Graph:
    """A body whose inputs have these shapes, in order."""
    graph = Graph(f"{call.op}.{name}")
    graph.traces_lines = False
    graph.extents.prefix = call.importer.next_prefix()
    graph.set_outputs(list(made(graph, [graph.input(f"x{i}", s) for i, s in enumerate(shapes)])))
    return graph


def applied(
    graph: Graph,
    scope: Scope,
    own: Sequence[Node],
    captures: Sequence[Node],
    given: Sequence[Node],
    sizes: Mapping[str, DimLike] | None = None,
) -> list[Node]:
    """What was read, on nodes of another graph: its own inputs, and `given` for `captures`. `sizes`
    are what sizes of its inputs that a loop names are there."""
    stands = dict(zip(captures, given))
    inside = {i: stands[outside] for outside, i in scope.captured.items()}
    rest = iter(own)
    operands = [inside[i] if i in inside else next(rest) for i in scope.graph.inputs]
    return inline(graph, scope.graph, operands, sizes)
