"""Steps without small arrays: constants as functions of positions, short sums term by term.

Lowerings of quantised formats shift bytes by amounts that depend on a position, put integers
together from bytes, and look levels up. As arithmetic of positions all of it can be part of a loop
nest or of a contraction's factor, where an array would be an operand in memory.

    [0, 4]               4 · iota
    sum of 2 bytes       byte 0 + byte 1
    levels[x]            levels of x's bits, selected one bit after the other
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import body_of, in_primitives
from rlx.kernel.refusal import Refusal, attempt

Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 16
"""Of a constant whose elements are selected one by one, or a table."""
MAX_TERMS = 8
"""Of a sum that is spelled out."""
KEPT = ("matmul", "conv")


def spelled_out(node: Node) -> Node | Refusal:
    """The same step without small arrays, as a region; refused where it has none."""
    graph = attempt(lambda: in_primitives(body_of(node), KEPT))
    if isinstance(graph, Refusal):
        return graph
    if not any(_is_small_array(n) for n in graph.order()):
        return Refusal(f"{node.label}: it has no small arrays")
    new = graph.successor()
    mapped: dict[Node, Node] = {}
    for inner in graph.order():
        mapped[inner] = _spelled(new, inner, [mapped[i] for i in inner.inputs])
    new.set_outputs([mapped[o] for o in graph.outputs])
    whole = Graph(graph.name)
    whole.traces_lines = False
    inputs = [whole.input(n.attrs["name"], n.shape) for n in new.inputs]
    return whole.node("region", inputs, {"body": new})


def _is_small_array(node: Node) -> bool:
    return node.op == "constant" and node.attrs["value"].array.size > 1


def _spelled(new: Graph, node: Node, inputs: list[Node]) -> Node:
    match node.op:
        case "constant" if _is_small_array(node):
            made = _of_positions(new, node.attrs["value"].array, node)
        case "sum" if _is_short_sum(node):
            made = _sum(inputs[0], node)
        case "gather" if _is_table(node):
            made = _selected(node.inputs[0].attrs["value"].array, inputs[1])
        case _:
            made = None
    return new.copy(node, tuple(inputs)) if made is None else made


# -- constants ------------------------------------------------------------------------------------


def _of_positions(new: Graph, array: Array, node: Node) -> Node | None:
    """A constant as arithmetic of positions; None where it is too long for that."""
    if array.dtype.kind in "iu":
        steps = [_step(array, axis) for axis in range(array.ndim)]
        known = [s for s in steps if s is not None]
        if len(known) == len(steps):
            return _affine(new, array, known, node)
    axes = [a for a, size in enumerate(array.shape) if size > 1]
    if len(axes) > 1 or array.size > MAX_ELEMENTS:
        return None
    at = _iota(new, node, axes[0])
    return _chosen([_number(new, v, node) for v in array.reshape(-1)], at)


def _step(array: Array, axis: int) -> int | None:
    """The difference of neighbours along an axis; None where it is not the same everywhere."""
    found = np.unique(np.diff(array.astype(np.int64), axis=axis))
    return None if found.size > 1 else int(found[0]) if found.size else 0


def _affine(new: Graph, array: Array, steps: list[int], node: Node) -> Node:
    total = _number(new, array.reshape(-1)[0], node)
    for axis, step in enumerate(steps):
        if step:
            factor = np.asarray(step).astype(array.dtype)
            total = ops.add(total, ops.mul(_iota(new, node, axis), factor))
    return total


def _iota(new: Graph, node: Node, axis: int) -> Node:
    dims = tuple(d if a == axis else 1 for a, d in enumerate(node.shape.dims))
    return new.node("iota", (), {"dims": dims, "axis": axis, "dtype": _index_dtype(node)})


def _index_dtype(node: Node) -> DType:
    dtype = node.shape.dtype
    return dtype if dtype.is_integer else DType.U8


def _number(new: Graph, value: Any, node: Node) -> Node:
    return new.constant(np.asarray(value, node.shape.dtype.numpy))


def _chosen(values: list[Node], at: Node) -> Node:
    """The value whose number `at` is: halves of the values by each bit, the highest first."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    low, high = _chosen(values[:half], at), _chosen(values[half:], at)
    bit = np.asarray(half, at.shape.dtype.numpy)
    is_high = ops.not_equal(ops.bit_and(at, bit), np.asarray(0, at.shape.dtype.numpy))
    return ops.where(is_high, high, low)


# -- sums and tables ------------------------------------------------------------------------------


def _is_short_sum(node: Node) -> bool:
    dims = [node.inputs[0].shape.dims[a] for a in node.attrs["axes"]]
    is_exact = node.shape.dtype.is_integer
    return is_exact and len(dims) == 1 and is_static(dims[0]) and 0 < dims[0] <= MAX_TERMS


def _sum(x: Node, node: Node) -> Node:
    """Of integers, in any order."""
    (axis,) = node.attrs["axes"]
    terms = [ops.narrow(x, axis=axis, start=i, length=1) for i in range(int(x.shape.dims[axis]))]
    total = terms[0]
    for term in terms[1:]:
        total = ops.add(total, term)
    return ops.reshape(total, dims=node.shape.dims)


def _is_table(node: Node) -> bool:
    """Does a gather read a small table of numbers, at places that are all there?"""
    table, index = node.inputs
    size = table.attrs["value"].array.size if _is_small_array(table) else 0
    bound = _bound(index)
    return table.shape.rank == 1 and size <= MAX_ELEMENTS and bound is not None and bound < size


def _bound(node: Node) -> int | None:
    """What an index is at most, where the ops that made it say so, and it is never negative."""
    bits = 0
    while True:
        match node.op:
            case "shift_right" if _is_number(node.inputs[1]) and not node.shape.dtype.is_signed:
                bits += int(node.inputs[1].attrs["value"].array)
            case "bit_and" if _is_number(node.inputs[1]):
                most = int(node.inputs[1].attrs["value"].array)
                return most >> bits if most >= 0 else None
            case "reshape" | "expand" | "cast" | "narrow" if node.inputs[0].shape.dtype.is_integer:
                pass
            case _:
                dtype = node.shape.dtype
                return None if dtype.is_signed else (1 << 8 * dtype.itemsize) - 1 >> bits
        (node, *_) = node.inputs


def _is_number(node: Node) -> bool:
    return node.op == "constant" and node.attrs["value"].array.size == 1


def _selected(table: Array, index: Node) -> Node:
    return _chosen([index.graph.constant(np.asarray(v)) for v in table], index)
