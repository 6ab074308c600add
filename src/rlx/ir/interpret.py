"""The oracle: evaluate a graph with nothing but the references. No passes, no plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.attrs import bind
from rlx.dim import Dim
from rlx.errors import Error, GraphError
from rlx.ir.mir import Graph, Node
from rlx.shape import DimBinding, Shape


def infer_binding(leaves: Sequence[Node], values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the named dims, read off the arrays given for `leaves`."""
    sizes: dict[str, int] = {}
    for leaf in leaves:
        _match_leaf(leaf, np.shape(values[leaf.attrs["name"]]), sizes)
    symbols = {d.name: d for leaf in leaves for d in leaf.shape.dynamic_symbols}
    return DimBinding(sizes).checked(symbols.values())  # pyright: ignore[reportArgumentType]


def _match_leaf(leaf: Node, dims: tuple[int, ...], sizes: dict[str, int]) -> None:
    name, shape = leaf.attrs["name"], leaf.shape
    if len(dims) != shape.rank:
        raise GraphError(f"{leaf.op} {name!r} is {shape}, got an array of rank {len(dims)}")
    for declared, size in zip(shape.dims, dims):
        symbol = declared.symbol if isinstance(declared, Dim) else None
        if symbol is not None and sizes.setdefault(symbol.name, size) != size:
            raise GraphError(
                f"{leaf.op} {name!r} is {shape}: {symbol.name} is {size} here, "
                f"but {sizes[symbol.name]} elsewhere"
            )


def checked_array(leaf: Node, value: Any, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """`value` as an array of exactly the declared dtype and bound dims."""
    array = np.asarray(value)
    shape: Shape = leaf.shape.bind(sizes)
    if array.dtype != shape.dtype.numpy or array.shape != shape.dims:
        raise GraphError(
            f"{leaf.op} {leaf.attrs['name']!r} is {leaf.shape}, got "
            f"{array.dtype.name}{list(array.shape)}. Cast or reshape it first."
        )
    return array


def evaluate(graph: Graph, values: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs for `values`, which has an array for every input and param by name."""
    missing = [n.attrs["name"] for n in graph.leaves if n.attrs["name"] not in values]
    if missing:
        raise Error(f"{graph.name}: no value for {', '.join(missing)}")
    sizes = infer_binding(graph.leaves, values)
    done: dict[Node, Any] = {
        leaf: checked_array(leaf, values[leaf.attrs["name"]], sizes) for leaf in graph.leaves
    }
    for node in graph.order():
        if node not in done:
            done[node] = evaluate_node(node, [done[i] for i in node.inputs], sizes)
    return [done[o] for o in graph.outputs]


def evaluate_node(node: Node, operands: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    """One node by its reference; a tuple of arrays where it has several results."""
    if node.op == "item":
        return operands[0][node.attrs["index"]]
    if not sizes:
        return _named(node, operands, node.attrs, node.shapes)
    attrs = {k: bind(v, sizes) for k, v in node.attrs.items()}
    return _named(node, operands, attrs, [s.bind(sizes) for s in node.shapes])


def _named(
    node: Node, operands: Sequence[Any], attrs: Mapping[str, Any], shapes: Sequence[Shape]
) -> Any:
    """Errors of the data, such as an index out of range, name the node."""
    try:
        return node.decl.evaluate(operands, attrs, shapes)
    except GraphError:
        raise
    except Error as error:
        raise Error(f"{node.label}: {error}") from None
