"""Views: the same values under other dims, in another order, or some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, dim_max, dim_min, provably_le
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axes_of, axis_of, rank
from rlx.ir.mir import Node

END = 1 << 62
"""Bounds above it are torch's way to say the end."""


@handles("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias", "squeeze",
         "unsqueeze", "view_as", "reshape_as", "ravel", "expand_dims", "atleast_1d", "atleast_2d",
         "atleast_3d", "collapse", "collapse_view", "split_dim")  # fmt: skip
def reshaped(call: Call, x: Any, *_: Any) -> Any:
    if isinstance(x, list | tuple):
        parts = zip(x, call.value)
        return [ops.reshape(p, dims=call.dims_of(v)) for p, v in parts]
    if call.overload == "dtype":
        return _bits(call, x)
    return ops.reshape(x, dims=call.dims)


def _bits(call: Call, x: Node) -> Node:
    """The same memory read as another dtype of the same width."""
    before, after = x.shape.dtype, call.dtype
    if before is after:
        return x
    if before.is_complex and after is before.real:
        made = ops.view_as_real(x)
        return ops.reshape(made, dims=call.dims)
    call.require(before.itemsize == after.itemsize, "a view of the bits as another width")
    call.require(not before.is_complex and not after.is_complex, "a view of complex bits")
    if DType.BOOL in (before, after):
        return ops.cast(x, to=after)
    return ops.bitcast(x, to=after)


@handles("permute")
def permute(call: Call, x: Node, dims: Any) -> Node:
    return ops.transpose(x, perm=tuple(axis_of(x, d) for d in dims)) if rank(x) else x


@handles("transpose", "swapaxes", "swapdims")
def transpose(call: Call, x: Node, *axes: int) -> Node:
    return _swapped(x, *axes)


@handles("t", "numpy_T")
def t(call: Call, x: Node) -> Node:
    return ops.transpose(x) if rank(x) > 1 else x


@handles("mT", "adjoint", "mH")
def mT(call: Call, x: Node) -> Node:
    made = _swapped(x, -2, -1)
    return ops.conj(made) if call.op != "mT" and x.shape.dtype.is_complex else made


def _swapped(x: Node, one: int, other: int) -> Node:
    if rank(x) < 2:
        return x
    perm = list(range(rank(x)))
    a, b = axis_of(x, one), axis_of(x, other)
    perm[a], perm[b] = perm[b], perm[a]
    return ops.transpose(x, perm=tuple(perm))


@handles("movedim", "moveaxis")
def movedim(call: Call, x: Node, source: Any, destination: Any) -> Node:
    froms = [axis_of(x, d) for d in (source if isinstance(source, list | tuple) else [source])]
    given = destination if isinstance(destination, list | tuple) else [destination]
    tos = [axis_of(x, d) for d in given]
    rest = iter(a for a in range(rank(x)) if a not in froms)
    place = dict(zip(tos, froms))
    return ops.transpose(
        x, perm=tuple(place[i] if i in place else next(rest) for i in range(rank(x)))
    )


@handles("expand", "broadcast_to", "expand_as", "broadcast_in_dim")
def expand(call: Call, x: Node, *_: Any) -> Node:
    call.require(call.op != "broadcast_in_dim", "axes that are placed")
    return ops.expand(x, dims=call.dims)


def bounds_of(size: DimLike, start: Any, end: Any) -> tuple[DimLike, DimLike]:
    """A slice's first place and length, cut to the axis as Python does."""
    low = _clipped(0 if start is None else start, size)
    high = size if end is None or (isinstance(end, int) and end >= END) else _clipped(end, size)
    return low, high


def _clipped(bound: DimLike, size: DimLike) -> DimLike:
    if isinstance(bound, int) and bound < 0:
        bound = bound + size
    if isinstance(bound, int) and isinstance(size, int):
        return min(max(bound, 0), size)
    if not provably_le(0, bound):
        bound = dim_max(bound, 0)
    return bound if provably_le(bound, size) else dim_min(bound, size)


@handles("slice")
def slice_(
    call: Call, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    axis = axis_of(x, dim)
    size = x.shape.dims[axis]
    low, high = bounds_of(size, start, end)
    wanted = call.dims[axis]
    if step == 1:
        call.require_equal(wanted, dim_max(high - low, 0))
        return x if wanted == size else ops.narrow(x, axis=axis, start=low, length=wanted)
    starts: list[DimLike] = [0] * rank(x)
    stops, steps = list(x.shape.dims), [1] * rank(x)
    starts[axis], stops[axis], steps[axis] = low, high, step
    return ops.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@handles("narrow")
def narrow(call: Call, x: Node, dim: int, start: Any, length: Any) -> Node:
    axis = axis_of(x, dim)
    if isinstance(start, Node):
        call.refuse("a start that is data")
    low = start if not isinstance(start, int) or start >= 0 else x.shape.dims[axis] + start
    return ops.narrow(x, axis=axis, start=low, length=length)


@handles("select")
def select(call: Call, x: Node, dim: int, index: Any) -> Node:
    axis = axis_of(x, dim)
    if isinstance(index, Node):
        size = call.node(x.shape.dims[axis], DType.I64)
        place = ops.where(ops.less(index, 0), ops.add(index, size), index)
        return ops.gather(x, place, axis=axis)
    low = index if not isinstance(index, int) or index >= 0 else x.shape.dims[axis] + index
    return ops.squeeze(ops.narrow(x, axis=axis, start=low, length=1), axes=(axis,))


@handles("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "hsplit", "vsplit",
         "dsplit", "unsafe_chunk", "unsafe_split_with_sizes")  # fmt: skip
def split(call: Call, x: Node, *_: Any) -> list[Node]:
    """Parts of the sizes that torch states for its results."""
    names = {"hsplit": 0 if rank(x) == 1 else 1, "vsplit": 0, "dsplit": 2}
    given: Any = names.get(call.op, call.args.get("dim", 0))
    axis = axis_of(x, given)
    made: list[Node] = []
    at: Any = 0
    for part in call.value:
        length = call.importer.sizes.of(part.shape[axis])
        made.append(ops.narrow(x, axis=axis, start=at, length=length))
        at = at + length
    return made


@handles("unbind")
def unbind(call: Call, x: Node, dim: int = 0) -> list[Node]:
    axis = axis_of(x, dim)
    parts = (ops.narrow(x, axis=axis, start=i, length=1) for i in range(len(call.value)))
    return [ops.squeeze(p, axes=(axis,)) for p in parts]


@handles("diagonal", "linalg_diagonal")
def diagonal(call: Call, x: Node, offset: int = 0, dim1: int | None = None,
             dim2: int | None = None) -> Node:  # fmt: skip
    first, second = (0, 1) if call.op.startswith("diagonal") else (-2, -1)
    a = axis_of(x, first if dim1 is None else dim1)
    b = axis_of(x, second if dim2 is None else dim2)
    rest = [i for i in range(rank(x)) if i not in (a, b)]
    moved = ops.transpose(x, perm=(*rest, a, b))
    *lead, rows, columns = moved.shape.dims
    count = call.dims[-1]
    flat = ops.reshape(moved, dims=(*lead, rows * columns))
    first_place = max(0, offset) + max(0, -offset) * columns
    step = ops.mul(call.positions((count,), 0), call.node(columns + 1, DType.I64))
    places = ops.add(step, call.node(first_place, DType.I64))
    return ops.gather(flat, places, axis=len(lead))


@handles("unfold")
def unfold(call: Call, x: Node, dimension: int, size: int, step: int) -> Node:
    if not rank(x):
        return ops.expand(ops.reshape(x, dims=(1,)), dims=call.dims)
    axis = axis_of(x, dimension)
    count = call.dims[axis]
    dims = (count, size)
    places = ops.add(
        ops.mul(call.positions(dims, 0), call.constant(step, DType.I64)), call.positions(dims, 1)
    )
    made = ops.gather(x, places, axis=axis)
    order = [i for i in range(rank(made)) if i != axis + 1]
    return ops.transpose(made, perm=(*order, axis + 1))


@handles("flip", "fliplr", "flipud")
def flip(call: Call, x: Node, dims: Any = None) -> Node:
    named = {"fliplr": [1], "flipud": [0]}
    given = named.get(call.op, dims)
    return ops.flip(x, axes=axes_of(x, given)) if given and rank(x) else x


@handles("roll")
def roll(call: Call, x: Node, shifts: Any, dims: Any = ()) -> Node:
    steps = shifts if isinstance(shifts, list | tuple) else [shifts]
    axes = dims if isinstance(dims, list | tuple) else [dims]
    if not axes:
        flat = ops.reshape(x, dims=(x.shape.num_elements,))
        return ops.reshape(_rolled(call, flat, steps[0], 0), dims=x.shape.dims)
    for step, axis in zip(steps, axes, strict=True):
        x = _rolled(call, x, step, axis_of(x, axis)) if rank(x) else x
    return x


def _rolled(call: Call, x: Node, step: Any, axis: int) -> Node:
    size = x.shape.dims[axis]
    if size == 0:
        return x
    call.require(isinstance(step, int), "a shift that is a size")
    if isinstance(size, int):
        step = step % size
    if step == 0:
        return x
    cut = size - step if step > 0 else -step
    back = ops.narrow(x, axis=axis, start=cut, length=size - cut)
    return ops.concat([back, ops.narrow(x, axis=axis, start=0, length=cut)], axis=axis)


@handles("tril", "triu")
def triangle(call: Call, x: Node, diagonal: int = 0) -> Node:
    return ops.trilu(x, k=diagonal, upper=call.op.startswith("triu"))


@handles("as_strided")
def as_strided(call: Call, x: Node, size: Any, stride: Any, storage_offset: Any = None) -> Node:
    places = strided_places(call, size, stride, storage_offset)
    flat = ops.reshape(x, dims=(x.shape.num_elements,))
    return ops.gather(flat, call.graph.constant(places), axis=0)


@handles("as_strided_scatter")
def as_strided_scatter(
    call: Call, x: Node, src: Node, size: Any, stride: Any, storage_offset: Any = None
) -> Node:
    places = strided_places(call, size, stride, storage_offset)
    flat = ops.reshape(x, dims=(x.shape.num_elements,))
    made = ops.scatter(flat, call.graph.constant(places), call.node(src, call.dtype), axis=0)
    return ops.reshape(made, dims=x.shape.dims)


def strided_places(call: Call, size: Any, stride: Any, offset: Any) -> np.ndarray[Any, Any]:
    """The number of the operand's element that each element of a strided view of its memory is."""
    fake = call.fakes["self"]
    begin = fake.storage_offset() if offset is None else offset
    sizes, strides = call.whole(*size), call.whole(*stride)
    shown = _strided(call.whole(begin)[0], sizes, strides)
    memory = _strided(
        call.whole(fake.storage_offset())[0], call.whole(*fake.shape), call.whole(*fake.stride())
    )
    element = np.full(1 + max(shown.max(initial=-1), memory.max(initial=-1)), -1)
    element[memory] = np.arange(memory.size).reshape(memory.shape)
    places = element[shown]
    call.require(bool((places >= 0).all()), "memory that is none of its operand's")
    return places


def _strided(
    offset: int, sizes: Sequence[int], strides: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each element of a strided tensor is in its memory."""
    places = np.full((), offset, np.int64)
    for count, step in zip(sizes, strides, strict=True):
        places = places[..., None] + np.arange(count) * step
    return places


@handles("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(call: Call, x: Node, *factor: int) -> Node:
    lead = x.shape.dims[:-3]
    image = ops.reshape(x, dims=(-1, *x.shape.dims[-3:])) if len(lead) != 1 else x
    if call.op == "pixel_shuffle":
        made = ops.depth_to_space(image, block=factor[0], order="CRD")
    else:
        made = ops.space_to_depth(image, block=factor[0], order="CRD")
    return ops.reshape(made, dims=call.dims)


@handles("rot90")
def rot90(call: Call, x: Node, k: int = 1, dims: Any = (0, 1)) -> Node:
    a, b = (axis_of(x, d) for d in dims)
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return ops.flip(x, axes=(a, b))
    swapped = _swapped(x, a, b)
    return ops.flip(swapped, axes=(a if turns == 1 else b,))
