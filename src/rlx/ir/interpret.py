"""The reference interpreter: evaluates a graph with NumPy alone. No passes, no plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlx.core.arrays import is_numeric
from rlx.core.attrs import bind
from rlx.core.dim import Dim, Symbol, substitute
from rlx.core.dim import evaluate as evaluate_dim
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.extent import measure
from rlx.core.shape import DimBinding, OutOfRange, Shape
from rlx.ir.mir import Graph, Node
from rlx.ir.states import state_of


class Leaf(Protocol):
    """An input or param: its node, or what is known of it without one."""

    @property
    def op(self) -> str: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def shape(self) -> Any: ...


def infer_binding(leaves: Sequence[Leaf], values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the named dims, read off the arrays given for `leaves`."""
    sizes: dict[str, int] = {}
    open_: list[tuple[Dim, int]] = []
    for leaf in leaves:
        open_ += _match_leaf(leaf, np.asarray(values[leaf.attrs["name"]]), sizes)
    while any(_solve(dim, size, sizes) for dim, size in open_):
        pass
    symbols = {d.name: d for leaf in leaves for d in leaf.shape.dynamic_symbols}
    for dim, size in open_:
        if substitute(dim, sizes) != size:
            raise OutOfRange(f"no sizes of named dims make {dim} equal to {size}, as given.")
    return DimBinding(sizes).checked(symbols.values())  # pyright: ignore[reportArgumentType]


def _match_leaf(
    leaf: Leaf, array: np.ndarray[Any, Any], sizes: dict[str, int]
) -> list[tuple[Dim, int]]:
    """Reads off dims that stand alone; expressions of dims are returned with their sizes."""
    name, shape = leaf.attrs["name"], leaf.shape
    if array.ndim != shape.rank:
        raise mismatch(leaf, array)
    open_: list[tuple[Dim, int]] = []
    for declared, size in zip(shape.dims, array.shape):
        if not isinstance(declared, Dim):
            if declared != size:
                raise mismatch(leaf, array)
            continue
        symbol = declared.bound_symbol
        if symbol is None:
            open_.append((declared, size))
            continue
        if sizes.setdefault(symbol.name, size) != size:
            raise OutOfRange(
                f"{leaf.op} {name!r} is {shape}: {declared} is {size} here, "
                f"but {sizes[symbol.name]} elsewhere."
            )
        if evaluate_dim(declared, sizes) != size:
            raise OutOfRange(f"{leaf.op} {name!r} is {shape}: no {symbol} makes it {size}.")
    return open_


def _solve(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    """Where `dim` is `a*symbol + b` but for what is known, the symbol follows from the size."""
    left = substitute(dim, sizes)
    parts = dict(left.terms) if isinstance(left, Dim) else {}
    rest = size - parts.pop((), 0)
    match list(parts.items()):
        case [((Symbol() as only,), factor)] if rest % factor == 0:
            sizes[only.name] = rest // factor
            return True
        case _:
            return False


def mismatch(leaf: Leaf, array: np.ndarray[Any, Any]) -> GraphError:
    """The error of an array that is not what the leaf declares: `OutOfRange` where only sizes
    differ, which may be those of another program of the same model."""
    try:
        got = str(Shape(array.shape, DType.of(array.dtype)))
    except GraphError:
        got = f"{array.dtype}{list(array.shape)}"
    name, dtype = leaf.attrs["name"], leaf.shape.dtype
    if not is_numeric(array.dtype):
        hint = f"Give numbers, of {dtype}: rlx has no dtype {array.dtype}."
    elif got.partition("[")[0] != dtype.value:
        hint = f"Cast it: {name}.astype({dtype.numpy.name!r})."
    else:
        hint = "Reshape it first."
    kind = (
        OutOfRange if array.dtype == dtype.numpy and array.ndim == leaf.shape.rank else GraphError
    )
    return kind(f"{leaf.op} {name!r} is {leaf.shape}, got {got}. {hint}")


def checked_array(leaf: Leaf, value: Any, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """`value` as an array of exactly the declared dtype and bound dims."""
    array = np.asarray(value)
    shape: Shape = leaf.shape.bind(sizes)
    if array.dtype != shape.dtype.numpy or array.shape != shape.dims:
        raise mismatch(leaf, array)
    return array


def evaluate(graph: Graph, values: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs for `values`, which has an array for every input, param and state by name."""
    return evaluate_results(graph, values)[: len(graph.outputs)]


def evaluate_call(
    graph: Graph, values: Mapping[str, Any]
) -> tuple[list[np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """The outputs of a call, and the states that it leaves, by name; nothing is written."""
    made, count = evaluate_results(graph, values), len(graph.outputs)
    states = {n.attrs["name"]: np.asarray(values[n.attrs["name"]]) for n in graph.states}
    for update, value in zip(graph.updates, made[count:]):
        state = state_of(update)
        assert state is not None
        states[state.attrs["name"]] = value
    return made[:count], states


def evaluate_results(graph: Graph, values: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs, then the last versions of states."""
    missing = [n.attrs["name"] for n in graph.leaves if n.attrs["name"] not in values]
    if missing:
        raise Error(f"{graph.name}: no value for {', '.join(missing)}")
    sizes = infer_binding(graph.leaves, values)
    for each in graph.required:
        each.check(sizes)
    done: dict[Node, Any] = {
        leaf: checked_array(leaf, values[leaf.attrs["name"]], sizes) for leaf in graph.leaves
    }
    reads = Counter(i for node in graph.order() for i in node.inputs)
    reads.update(graph.results)
    for node in graph.order():
        if node not in done:
            done[node] = evaluate_node(node, [done[i] for i in node.inputs], sizes)
        reads.subtract(node.inputs)
        for read in node.inputs:
            if reads[read] == 0:
                done.pop(read, None)
    return [done[o] for o in graph.results]


def evaluate_node(node: Node, operands: Sequence[Any], sizes: dict[str, int]) -> Any:
    """One node by its reference; a tuple of arrays where it has several results.

    What it measures is added to `sizes`.
    """
    if node.op == "item":
        return operands[0][node.attrs["index"]]
    attrs: Mapping[str, Any] = node.attrs
    shapes: Sequence[Shape] = node.shapes
    if sizes:
        attrs = {k: bind(v, sizes) for k, v in attrs.items()}
        shapes = [s.bind(sizes) for s in shapes]
    made = _named(node, operands, attrs, shapes)
    for shape, array in zip(shapes, made if node.has_items else (made,)):
        if shape.is_measured:
            sizes.update(measure(shape.dims, array.shape))
    return made


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
