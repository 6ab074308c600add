"""Gathering: elements at indices that are data."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.shape import broadcast
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axis_of, rank
from rlx.ir.mir import Node


def wrapped(call: Call, index: Node, size: DimLike) -> Node:
    """Indices from the front: negative ones count from the back."""
    wide = call.node(index, DType.I64)
    return ops.where(ops.less(wide, 0), ops.add(wide, call.node(size, DType.I64)), wide)


def at_least_1d(x: Node) -> Node:
    return x if rank(x) else ops.reshape(x, dims=(1,))


@handles("embedding")
def embedding(call: Call, x: Node, indices: Node, padding_idx: int = -1) -> Node:
    return ops.gather(x, indices, axis=0)


@handles("embedding_renorm")
def embedding_renorm(call: Call, x: Node, indices: Node, max_norm: float, norm_type: float) -> Node:
    """Rows that are read, with those scaled down whose norm is above the greatest."""
    flat = ops.reshape(indices, dims=(indices.shape.num_elements,))
    none = ops.expand(call.constant(0, x.shape.dtype), dims=(x.shape.dims[0],))
    read = ops.scatter(
        none, flat, ops.expand(call.constant(1, x.shape.dtype), dims=flat.shape.dims)
    )
    size = ops.pow(ops.sum(ops.pow(ops.abs(x), norm_type), axes=(1,)), 1 / norm_type)
    is_scaled = ops.logical_and(ops.greater(read, 0), ops.greater(size, max_norm))
    scale = ops.where(is_scaled, ops.div(max_norm, ops.add(size, 1e-7)), ops.add(none, 1))
    return ops.mul(x, ops.expand_dims(scale, axes=(1,)))


@handles("index_select")
def index_select(call: Call, x: Node, dim: int, index: Node) -> Node:
    if not rank(x):
        return x
    return ops.gather(x, at_least_1d(index), axis=axis_of(x, dim))


@handles("gather")
def gather(call: Call, x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    base, places = at_least_1d(x), at_least_1d(index)
    axis = axis_of(base, dim)
    for a in range(rank(base)):
        if a != axis and base.shape.dims[a] != places.shape.dims[a]:
            base = ops.narrow(base, axis=a, start=0, length=places.shape.dims[a])
    return ops.reshape(ops.take_along_axis(base, places, axis=axis), dims=call.dims)


@handles("take")
def take(call: Call, x: Node, index: Node) -> Node:
    count = x.shape.num_elements
    flat = ops.reshape(x, dims=(count,))
    return ops.gather(flat, wrapped(call, index, count), axis=0)


@handles("take_along_dim")
def take_along_dim(call: Call, x: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return take(call, x, ops.reshape(indices, dims=(indices.shape.num_elements,)))
    axis = axis_of(x, dim)
    shapes = [list(v.shape.dims) for v in (x, indices)]
    lengths = [s[axis] for s in shapes]
    for s in shapes:
        s[axis] = 1
    common = list(broadcast(*map(tuple, shapes)))
    sides = [ops.expand(v, dims=(*common[:axis], n, *common[axis + 1 :]))
             for v, n in zip((x, indices), lengths)]  # fmt: skip
    return ops.take_along_axis(sides[0], wrapped(call, sides[1], lengths[0]), axis=axis)


# -- indexing by several tensors ------------------------------------------------------------------


class Placed:
    """Where indices stand among the axes of a tensor: axes that are indexed come to the front."""

    def __init__(self, call: Call, x: Node, indices: Any) -> None:
        given = [*indices, *[None] * (rank(x) - len(indices))]
        self.used = [a for a, i in enumerate(given) if i is not None]
        rest = [a for a in range(rank(x)) if a not in self.used]
        self.order = (*self.used, *rest)
        found: list[Any] = given
        places = [wrapped(call, found[a], x.shape.dims[a]) for a in self.used]
        self.dims = broadcast(*[p.shape.dims for p in places])
        self.places = [ops.expand(p, dims=self.dims) for p in places]
        self.base = ops.transpose(x, perm=self.order) if rank(x) > 1 else x

    @property
    def is_together(self) -> bool:
        """Are the indexed axes adjacent? Then the new axes stand where they stood."""
        return self.used == list(range(self.used[0], self.used[-1] + 1))

    @property
    def axis(self) -> int:
        """The place of the new axes."""
        return self.used[0] if self.is_together else 0

    @property
    def rows(self) -> Node:
        return ops.stack(self.places, axis=len(self.dims))

    def result_order(self, count: int) -> tuple[int, ...]:
        """From the new axes at the front to their place."""
        n = len(self.dims)
        return (*range(n, n + self.axis), *range(n), *range(n + self.axis, count))


def by_tensors(call: Call, x: Node, indices: Any) -> list[Any]:
    """Indices as integers: a mask of a known number of true elements is not one."""
    found = [i for i in indices if i is not None]
    if any(i.shape.dtype in (DType.BOOL, DType.U8) for i in found):
        return masked_indices(call, x, indices)
    return list(indices)


def masked_indices(call: Call, x: Node, indices: Any) -> list[Any]:
    """Masks as the coordinates of what is true in them."""
    made: list[Any] = []
    for i in indices:
        if i is None or i.shape.dtype not in (DType.BOOL, DType.U8):
            made.append(i)
            continue
        places = ops.nonzero(call.node(i, DType.BOOL))
        for axis in range(rank(i)):
            row = ops.narrow(places, axis=0, start=axis, length=1)
            made.append(ops.reshape(row, dims=(places.shape.dims[1],)))
    return made


@handles("index", "_unsafe_index")
def index(call: Call, x: Node, indices: Any) -> Node:
    given = by_tensors(call, x, indices)
    if all(i is None for i in given):
        return x
    if not rank(x):
        call.refuse("indexing a scalar")
    placed = Placed(call, x, given)
    if len(placed.used) == 1:
        made = ops.gather(placed.base, placed.places[0], axis=0)
    else:
        made = ops.gather_nd(placed.base, placed.rows)
    return ops.transpose(made, perm=placed.result_order(rank(made))) if rank(made) > 1 else made


@handles("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(call: Call, x: Node, indices: Any, values: Node, accumulate: bool = False,
              unsafe: bool = False) -> Node:  # fmt: skip
    if not rank(x):
        call.refuse("indexing a scalar")
    found = [i for i in indices if i is not None]
    if len(found) == 1 and found[0].shape.dtype is DType.BOOL and rank(values) == 0:
        return _where_masked(call, x, indices, values, accumulate)
    placed = Placed(call, x, by_tensors(call, x, indices))
    updates = _updates(call, placed, values)
    how: dict[str, Any] = {"reduction": "add" if accumulate else "none"}
    if len(placed.used) == 1:
        made = ops.scatter(placed.base, placed.places[0], updates, axis=0, **how)
    else:
        made = ops.scatter_nd(placed.base, placed.rows, updates, **how)
    if rank(x) < 2:
        return made
    return ops.transpose(made, perm=tuple(int(i) for i in np.argsort(placed.order)))


def _where_masked(call: Call, x: Node, indices: Any, values: Node, accumulate: bool) -> Node:
    """One value where a mask holds needs no indices."""
    lead = next(a for a, i in enumerate(indices) if i is not None)
    mask = indices[lead]
    tail = rank(x) - lead - rank(mask)
    wide = ops.reshape(mask, dims=(*[1] * lead, *mask.shape.dims, *[1] * tail))
    value = call.node(values, call.dtype)
    return ops.where(wide, ops.add(x, value) if accumulate else value, x)


def _updates(call: Call, placed: Placed, values: Node) -> Node:
    """What is stored, with the indexed axes at the front as the base has them."""
    rest = placed.base.shape.dims[len(placed.used) :]
    at, n = placed.axis, len(placed.dims)
    dims = (*rest[:at], *placed.dims, *rest[at:])
    wide = ops.expand(call.node(values, call.dtype), dims=dims)
    if at == 0:
        return wide
    return ops.transpose(wide, perm=(*range(at, at + n), *range(at), *range(at + n, len(dims))))
