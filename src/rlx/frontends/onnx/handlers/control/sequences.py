"""Sequences and optionals: their contents are known at import time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call, NeedsShape
from rlx.frontends.onnx.values import Absent, Items, Sizes, Value
from rlx.ir.mir import Node


def items_of(call: Call, number: int) -> tuple[Value, ...]:
    value = call.value(number)
    if not isinstance(value, Items):
        raise GraphError(f"{call.label}: operand {number} is no sequence")
    return value.values


def _place(call: Call, number: int, count: int) -> int:
    """A position from the front; one past the last is where something can be put."""
    (found,) = call.ints(number)
    if not -count <= found <= count:
        raise GraphError(f"{call.label}: position {found} is not in a sequence of {count}")
    return found + count if found < 0 else found


@handles("SequenceConstruct")
def construct(call: Call) -> Items:
    return Items(tuple(call.value(i) for i in range(call.num_inputs)))


@handles("SequenceEmpty")
def empty(call: Call) -> Items:
    return Items(())


@handles("SequenceLength")
def length(call: Call) -> Sizes:
    return Sizes((len(items_of(call, 0)),), ())


@handles("SequenceAt")
def at(call: Call) -> Value:
    values = items_of(call, 0)
    place = _place(call, 1, len(values))
    if place == len(values):
        raise GraphError(f"{call.label}: position {place} is not in a sequence of {place}")
    return values[place]


@handles("SequenceInsert")
def insert(call: Call) -> Items:
    values = items_of(call, 0)
    place = _place(call, 2, len(values)) if call.has(2) else len(values)
    return Items((*values[:place], call.value(1), *values[place:]))


@handles("SequenceErase")
def erase(call: Call) -> Items:
    values = items_of(call, 0)
    place = _place(call, 1, len(values)) if call.has(1) else len(values) - 1
    if not 0 <= place < len(values):
        raise GraphError(f"{call.label}: position {place} is not in a sequence of {len(values)}")
    return Items((*values[:place], *values[place + 1 :]))


# -- tensors as sequences -------------------------------------------------------------------------


MOST_PARTS = 4096
"""Each tensor of a sequence is a value of the graph: more would take a file of a few bytes minutes
to read."""


@handles("SplitToSequence")
def split(call: Call) -> Items:
    x = call.node(0)
    axis = call.axis(call.attr("axis", 0), x.shape.rank)
    parts = ops.split(x, sizes=tuple(_parts(call, x.shape.dims[axis])), axis=axis)
    if call.has(1) or call.attr("keepdims", 1):
        return Items(tuple(parts))
    return Items(tuple(ops.squeeze(p, axes=(axis,)) for p in parts))


def _parts(call: Call, size: DimLike) -> Sequence[DimLike]:
    """Parts of one, parts of an equal length with what is left over, or as they are given."""
    if call.has(1) and call.rank(1) == 1:
        return call.dims(1)
    if isinstance(size, Dim):
        raise NeedsShape(f"{call.label}: how many parts there are depends on the size {size}")
    each = call.ints(1)[0] if call.has(1) else 1
    if each < 1:
        raise GraphError(f"{call.label}: parts of {each}")
    if (count := -(-size // each)) > MOST_PARTS:
        raise call.unsupported(f"a sequence of {count:,} tensors; rlx takes up to {MOST_PARTS:,}")
    return [min(each, size - start) for start in range(0, size, each)]


@handles("ConcatFromSequence")
def concat(call: Call) -> Node:
    nodes = [call.as_node(v) for v in items_of(call, 0)]
    if not nodes:
        raise GraphError(f"{call.label}: there is nothing to join")
    is_new = bool(call.attr("new_axis", 0))
    axis = call.axis(call.required("axis"), nodes[0].shape.rank + is_new)
    if is_new:
        nodes = [ops.expand_dims(n, axes=(axis,)) for n in nodes]
    return nodes[0] if len(nodes) == 1 else ops.concat(nodes, axis=axis)


@handles("SequenceMap")
def mapped(call: Call) -> tuple[Items, ...]:
    """The body for each item in turn, as sequences are as long as they are known to be."""
    proto = call.required("body")
    count = len(items_of(call, 0))
    rows: list[list[Value]] = []
    for i in range(count):
        given = [_item(call, number, i, count) for number in range(call.num_inputs)]
        rows.append(call.importer.inlined(call, proto, given))
    if not rows:
        return tuple(Items(()) for _ in proto.output)
    return tuple(Items(tuple(column)) for column in zip(*rows))


def _item(call: Call, number: int, i: int, count: int) -> Value:
    """Sequences item by item; tensors whole, every time."""
    value = call.value(number)
    if not isinstance(value, Items):
        return value
    if len(value.values) != count:
        raise GraphError(f"{call.label}: sequences of {count} and {len(value.values)} items")
    return value.values[i]


# -- optionals ------------------------------------------------------------------------------------


@handles("Optional")
def optional(call: Call) -> Value:
    return call.value(0) if call.has(0) else Absent()


@handles("OptionalHasElement")
def has_element(call: Call) -> Any:
    is_there = call.has(0) and not isinstance(call.value(0), Absent)
    return call.graph.constant(np.array(is_there))


@handles("OptionalGetElement")
def get_element(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Absent):
        raise GraphError(f"{call.label}: the optional holds nothing")
    return value
