"""Inlining of a body at the node that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.core import attrs as attributes
from rlx.core.dim import DimLike, substitute, symbols_of
from rlx.core.extent import CAPACITY, capacity_of, measured
from rlx.ir.extents import measured_by
from rlx.ir.mir import Graph, Node


def inline(
    graph: Graph,
    body: Graph,
    operands: Sequence[Node],
    bound: Mapping[str, DimLike] | None = None,
) -> list[Node]:
    """The outputs of `body` with its inputs bound to `operands` by position, as nodes of `graph`.

    Each node keeps the origins that it had in the body. What the body measures gets a name of its
    own here: a body may be put into a graph more than once. `bound` are sizes that the operands
    have where the body's inputs name them.
    """
    mapped = dict(zip(body.inputs, operands, strict=True))
    sizes: dict[str, DimLike] = dict(bound or {})
    for node in body.order():
        if node not in mapped:
            inputs = tuple(mapped[i] for i in node.inputs)
            is_plain = not sizes and not node.attrs.get("extent")
            made = graph.copy(node, inputs) if is_plain else _renamed(graph, node, inputs, sizes)
            graph.add_origins(made, node.origins)
            mapped[node] = made
    return [mapped[o] for o in body.outputs]


def with_extents_named(graph: Graph, prefix: str) -> Graph:
    """The graph with `prefix.name` for every size that it measures, so that graphs which share one
    table of sizes measure different ones."""
    names: dict[str, DimLike] = {}
    for name, symbol in graph.extents.measured.items():
        names[f"{name}{CAPACITY}"] = capacity_of(f"{prefix}.{name}")
        most = None if symbol.max is None else substitute(symbol.max, names)
        names[name] = measured(f"{prefix}.{name}", most)

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
        attrs = {k: attributes.bind(v, names) for k, v in node.attrs.items()}
        if attrs.get("extent"):
            attrs["extent"] = f"{prefix}.{attrs['extent']}"
        return new.node(node.decl, inputs, attrs)

    return graph.rebuild(make) if names else graph


def _renamed(graph: Graph, node: Node, inputs: tuple[Node, ...], sizes: dict[str, DimLike]) -> Node:
    """`node` with other names for measured sizes; the name of one that it measures is added."""
    if node.attrs.get("extent") and not node.decl.measures:
        return _renamed_control(graph, node, inputs, sizes)
    attrs: Mapping[str, object] = {k: attributes.bind(v, sizes) for k, v in node.attrs.items()}
    if not node.decl.measures:
        return graph.node(node.decl, inputs, attrs)
    made = graph.node(
        node.decl, inputs, graph.extents.named(node.decl, inputs, {**attrs, "extent": ""})
    )
    found = symbols_of(d for s in made.shapes for d in s.dims)
    sizes[node.attrs["extent"]] = next(d for d in found if d.name == made.attrs["extent"])
    return made


def _renamed_control(
    graph: Graph, node: Node, inputs: tuple[Node, ...], sizes: dict[str, DimLike]
) -> Node:
    """A loop or branch, with other names for what it measures, also inside."""
    old, new = node.attrs["extent"], graph.extents.fresh(node.op)
    for symbol in measured_by(node):
        name = f"{new}{symbol.name.removeprefix(old)}"
        sizes[f"{symbol.name}{CAPACITY}"] = capacity_of(name)
        most = None if symbol.max is None else substitute(symbol.max, sizes)
        sizes[symbol.name] = measured(name, most)
    attrs = {k: attributes.bind(v, sizes) for k, v in node.attrs.items()}
    return graph.node(node.decl, inputs, {**attrs, "extent": new})
