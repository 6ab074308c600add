"""Results whose sizes are data."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.shape import broadcast
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Call, axis_of, rank
from rlx.ir.mir import Node


@handles("nonzero", "argwhere")
def nonzero(call: Call, x: Node) -> Node:
    return ops.transpose(ops.nonzero(x), perm=(1, 0))


@handles("nonzero_numpy")
def nonzero_numpy(call: Call, x: Node) -> list[Node]:
    found = ops.nonzero(x if rank(x) else ops.reshape(x, dims=(1,)))
    count = found.shape.dims[1]
    rows = (ops.narrow(found, axis=0, start=i, length=1) for i in range(len(call.value)))
    return [ops.reshape(r, dims=(count,)) for r in rows]


@handles("masked_select")
def masked_select(call: Call, x: Node, mask: Node) -> Node:
    dims = broadcast(x.shape.dims, mask.shape.dims)
    count = product(dims)
    flat = [ops.reshape(ops.expand(v, dims=dims), dims=(count,)) for v in (x, mask)]
    return ops.compress(*flat, axis=0)


@handles("item", "_local_scalar_dense")
def item(call: Call, x: Node) -> Node:
    """A value; a size, should it be used as one."""
    flat = ops.reshape(x, dims=())

    def size() -> DimLike:
        return ops.as_size(ops.cast(flat, to=DType.I64)).shape.dims[0]

    call.importer.sizes.defer(call.value, size)
    if isinstance(call.value, torch.SymFloat):
        return ops.cast(flat, to=DType.F64)
    return flat


@handles("_unique2", "_unique")
def unique(call: Call, x: Node, sorted: bool = True, return_inverse: bool = False,  # noqa: A002
           return_counts: bool = False) -> list[Node]:  # fmt: skip
    flat = ops.reshape(x, dims=(x.shape.num_elements,))
    values, _, inverse, counts = ops.unique(flat)
    found = [values, ops.reshape(inverse, dims=x.shape.dims), counts]
    return _asked(call, found)


@handles("unique_dim")
def unique_dim(
    call: Call,
    x: Node,
    dim: int,
    sorted: bool = True,  # noqa: A002
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Any]:
    values, _, inverse, counts = ops.unique(x, axis=axis_of(x, dim))
    return _asked(call, [values, inverse, counts])


@handles("unique_consecutive")
def unique_consecutive(
    call: Call,
    x: Node,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> list[Node]:
    """The first of each run of equal elements, or of equal slices along `dim`."""
    flat = ops.reshape(x, dims=(x.shape.num_elements,)) if dim is None else x
    axis = axis_of(flat, dim or 0)
    count = flat.shape.dims[axis]
    if x.shape.num_elements == 0:
        call.refuse("runs in an empty tensor")
    begins = _begins(call, flat, axis)
    runs = ops.sub(ops.cumsum(ops.cast(begins, to=DType.I64), axis=0), 1)
    places = ops.compress(call.positions((count,), 0), begins, axis=0)
    values = ops.gather(flat, places, axis=axis)
    following = ops.concat([places, ops.expand(call.node(count, DType.I64), dims=(1,))], axis=0)
    total = places.shape.dims[0]
    counts = ops.sub(ops.narrow(following, axis=0, start=1, length=total), places)
    inverse = runs if dim is not None else ops.reshape(runs, dims=x.shape.dims)
    return _asked(call, [values, inverse, counts])


def _begins(call: Call, x: Node, axis: int) -> Node:
    """Which slices along an axis differ from the one before; the first does."""
    count = x.shape.dims[axis]
    head = ops.narrow(x, axis=axis, start=0, length=count - 1)
    tail = ops.narrow(x, axis=axis, start=1, length=count - 1)
    others = tuple(a for a in range(rank(x)) if a != axis)
    differs = ops.not_equal(head, tail)
    first = ops.expand(call.constant(True, DType.BOOL), dims=(1,))
    return ops.concat([first, ops.any(differs, axes=others) if others else differs], axis=0)


def _asked(call: Call, found: list[Node]) -> list[Node]:
    """Results that were not asked for are empty in torch."""
    made: list[Node] = []
    for value, fake in zip(found, call.value, strict=True):
        is_empty = call.importer.sizes.dims(fake) == (0,) if _is_known(call, fake) else False
        made.append(call.filled(0, fake) if is_empty else value)
    return made


def _is_known(call: Call, fake: Any) -> bool:
    return not any(call.importer.sizes.is_unknown(d) for d in fake.shape)


@handles("nonzero_static")
def nonzero_static(call: Call, x: Node, size: int, fill_value: int = -1) -> Node:
    """So many rows: the first that are not zero, the rest filled."""
    count = x.shape.num_elements
    mask = ops.reshape(call.node(x, DType.BOOL), dims=(count,))
    rank_of = ops.sub(ops.cumsum(ops.cast(mask, to=DType.I64), axis=0), 1)
    target = ops.where(mask, ops.minimum(rank_of, call.constant(size, DType.I64)),
                       call.constant(size, DType.I64))  # fmt: skip
    filled = ops.expand(call.constant(-1, DType.I64), dims=(size + 1,))
    places = ops.scatter(filled, target, call.positions((count,), 0), axis=0)
    places = ops.narrow(places, axis=0, start=0, length=size)
    columns: list[Node] = []
    rest = count
    for d in x.shape.dims:
        rest = rest // d if d != 0 else 0
        step = call.node(rest, DType.I64)
        columns.append(ops.mod(ops.floor_div(places, step), call.node(d, DType.I64)))
    if not columns:
        return call.filled(0)
    made = ops.stack(columns, axis=1)
    is_there = ops.expand_dims(ops.greater_equal(places, 0), axes=(1,))
    return ops.where(is_there, made, call.constant(fill_value, DType.I64))
