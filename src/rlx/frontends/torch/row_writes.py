"""Writes to rows of a tensor, read off the graph that makes its new value.

Torch writes through views and by indices; imported, each write is a value: the old one with rows
scattered into it, or cut and joined again. Where those are rows along one axis, from a position on
or at a position for each entry of the first axis, the value is an `append`, which writes the rows
of a state and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.frontends.torch.scalars import scalar_node
from rlx.ir.interpret import evaluate_node
from rlx.ir.mir import Graph, Node
from rlx.ir.walk import topological
from rlx.ops.op import Array

MAX_KNOWN = 1 << 16
"""Elements of indices that are evaluated to see whether they are consecutive."""
Now = Callable[[Node], Node]


@dataclass(frozen=True, slots=True)
class RowWrite:
    """The value `base` with rows written."""

    base: Node
    append: Callable[[Graph, Now], Node]
    """The new value in another graph, where nodes of this one are what `Now` says."""


def row_write(value: Node) -> RowWrite | None:
    """How a value was made of the one before it by writing rows, if it was."""
    if value.op == "concat":
        return _by_slices(value)
    found = _Scattered.of(value)
    if found is None or found.base.shape != value.shape:
        return None
    return _by_entries(found) if found.node.op == "scatter_nd" else _by_rows(found)


def plain(node: Node) -> Node:
    """The node without reshapes and expands that change nothing."""
    while node.op in ("reshape", "expand") and node.shape == node.inputs[0].shape:
        node = node.inputs[0]
    return node


def _by_slices(value: Node) -> RowWrite | None:
    """Rows between what was before and behind them."""
    if len(value.inputs) != 3:
        return None
    (before, rows, after), axis = map(plain, value.inputs), value.attrs["axis"]
    if before.op != "narrow" or after.op != "narrow":
        return None
    base, low = plain(before.inputs[0]), before.attrs["length"]
    is_apart = before.attrs["start"] == 0 and after.attrs["start"] == low + rows.shape.dims[axis]
    along = {before.attrs["axis"], after.attrs["axis"]} == {axis}
    if plain(after.inputs[0]) is not base or base.shape != value.shape:
        return None
    if not is_apart or not along:
        return None
    return RowWrite(
        base, lambda graph, now: ops.append(
            now(base), now(rows), scalar_node(graph, low), axis=axis)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Scattered:
    """A scatter into a value, perhaps with its axes in another order."""

    node: Node
    base: Node
    order: tuple[int, ...]
    """The axis of the base that each axis of the scatter is."""

    @classmethod
    def of(cls, value: Node) -> _Scattered | None:
        order, node = tuple(range(value.shape.rank)), value
        if value.op == "transpose":
            order, node = _inverse(value.attrs["perm"]), plain(value.inputs[0])
        if node.op not in ("scatter", "scatter_nd") or node.attrs["reduction"] != "none":
            return None
        base = plain(node.inputs[0])
        if order != tuple(range(len(order))):
            if base.op != "transpose" or tuple(base.attrs["perm"]) != order:
                return None
            base = plain(base.inputs[0])
        return cls(node, base, order)

    def in_order(self, rows: Node) -> Node:
        """Rows with the axes of the base."""
        is_moved = self.order != tuple(range(len(self.order)))
        return ops.transpose(rows, perm=_inverse(self.order)) if is_moved else rows


def _by_rows(found: _Scattered) -> RowWrite | None:
    """Rows at indices along an axis."""
    _, places, rows = found.node.inputs
    axis, rank = found.order[found.node.attrs["axis"]], found.base.shape.rank
    if places.shape.rank != 1 or rows.shape.rank != rank:
        return None
    count, start = places.shape.dims[0], consecutive_start(places)

    def append(graph: Graph, now: Now) -> Node:
        base, given, where = now(found.base), found.in_order(now(rows)), now(places)
        if start is not None:
            return ops.append(base, given, scalar_node(graph, start), axis=axis)
        if count == 1:
            return ops.append(base, given, ops.reshape(where, dims=()), axis=axis)
        if axis == 0:
            first = graph.constant(np.zeros((), np.int64))
            return ops.append(base, given, ops.expand(first, dims=(count,)), where, axis=1)
        return _each_entry(graph, base, given, where, axis)

    can = start is not None or count == 1 or rank > 1
    return RowWrite(found.base, append) if can else None


def _each_entry(graph: Graph, base: Node, rows: Node, places: Node, axis: int) -> Node:
    """The same positions along an axis in all entries of the first."""
    entries, count = rows.shape.dims[0], rows.shape.dims[axis]
    rest = [a for a in range(1, rows.shape.rank) if a != axis]
    total, numbers = entries * count, {"dims": (entries, count), "axis": 0, "dtype": DType.I64}
    slots = ops.reshape(graph.node("iota", (), numbers), dims=(total,))
    wide = ops.expand(ops.expand_dims(places, axes=(0,)), dims=(entries, count))
    dims = [1 if a == axis else d for a, d in enumerate(rows.shape.dims)]
    moved = ops.transpose(rows, perm=(0, axis, *rest))
    each = ops.reshape(moved, dims=(total, *dims[1:]))
    return ops.append(base, each, ops.reshape(wide, dims=(total,)), slots, axis=axis)


def _by_entries(found: _Scattered) -> RowWrite | None:
    """One row for each pair of an entry of the first axis and a position along another."""
    indices, rows = plain(found.node.inputs[1]), found.node.inputs[2]
    if indices.op != "stack" or len(indices.inputs) != 2 or indices.attrs["axis"] != 1:
        return None
    (slots, at), order = indices.inputs, found.order
    if len(order) < 2 or order[0] != 0 or list(order[2:]) != sorted(order[2:]):
        return None
    return RowWrite(
        found.base, lambda graph, now: ops.append(
            now(found.base), ops.expand_dims(now(rows), axes=(order[1],)), now(at), now(slots),
            axis=order[1])
    )  # fmt: skip


def consecutive_start(places: Node) -> DimLike | None:
    """The first of indices that are known to be consecutive."""
    values = _known(places)
    if values is None or not values.size or np.any(np.diff(values) != 1) or values[0] < 0:
        return None
    return int(values[0])


def _known(node: Node) -> Array | None:
    """The value of a node that no input has a part in."""
    values: dict[Node, Any] = {}
    for each in topological([node]):
        if each.op in ("input", "param", "state") or not each.shape.is_static:
            return None
        if each.shape.num_elements > MAX_KNOWN or each.decl.syncs_host or each.has_items:  # pyright: ignore[reportOperatorIssue]
            return None
        if each.op == "constant":
            values[each] = each.attrs["value"].array
            continue
        try:
            values[each] = evaluate_node(each, [values[i] for i in each.inputs], {})
        except Error:
            return None
    return np.asarray(values[node])


def _inverse(perm: Any) -> tuple[int, ...]:
    return tuple(np.argsort(perm).tolist())
