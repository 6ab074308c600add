"""Fractional max pooling: windows at places that a random number for each channel decides."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.nn.convolution import batched
from rlx.frontends.torch.node_call import Call, pair
from rlx.ir.mir import Node


def _starts(call: Call, sample: Node, size: int, count: int, width: int) -> Node:
    """[n, c, count]: where windows begin, ⌊(i + sample) α⌋ - ⌊sample α⌋; the last, at the end."""
    last = call.constant(size - width, DType.I64)
    dims = (*sample.shape.dims[:2], count)
    if count == 1:
        return ops.expand(last, dims=dims)
    alpha = ops.div(call.constant(size - width, sample.shape.dtype), float(count - 1))
    place = call.positions(dims, 2)
    moved = ops.mul(ops.add(call.node(place, sample.shape.dtype), sample), alpha)
    begins = (ops.cast(ops.trunc(v), to=DType.I64) for v in (moved, ops.mul(sample, alpha)))
    return ops.where(ops.equal(place, count - 1), last, ops.sub(*begins))


@handles("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(
    call: Call, x: Node, kernel_size: Any, output_size: Any, random_samples: Node
) -> list[Node]:
    """The greatest element of each window, and its place in the image. Samples of images begin
    with the last axis, those of volumes with the first."""
    rank = 3 if "3d" in call.op else 2
    image, is_single = batched(x, rank)
    batch, sizes = image.shape.dims[:2], call.whole(*image.shape.dims[2:])
    kernel, wanted = pair(kernel_size, rank), pair(output_size, rank)
    place: Any = 0
    for axis, size in enumerate(sizes):
        column = axis if rank == 3 else rank - 1 - axis
        sample = ops.narrow(random_samples, axis=2, start=column, length=1)
        starts = _starts(call, sample, size, wanted[axis], kernel[axis])
        within = call.positions((*batch, wanted[axis], kernel[axis]), 3)
        index = ops.add(ops.expand_dims(starts, axes=(3,)), within)
        place = ops.add(ops.mul(place, size), ops.reshape(index, dims=_spread(index, axis, rank)))
    places = ops.reshape(place, dims=(*batch, *wanted, math.prod(kernel)))
    flat = ops.reshape(image, dims=(*batch, product(sizes)))
    every = ops.reshape(places, dims=(*batch, math.prod(wanted) * math.prod(kernel)))
    seen = ops.reshape(ops.gather_elements(flat, every, axis=2), dims=places.shape.dims)
    first = ops.argmax(seen, axis=-1, keepdims=True)
    made = [ops.max(seen, axes=(-1,)),
            ops.squeeze(ops.gather_elements(places, first, axis=-1), axes=(-1,))]  # fmt: skip
    return [ops.squeeze(m, axes=(0,)) for m in made] if is_single else made


def _spread(index: Node, axis: int, rank: int) -> tuple[DimLike, ...]:
    """[n, c, windows, elements] on one of `rank` axes of each."""
    n, c, windows, elements = index.shape.dims
    outer = (windows if a == axis else 1 for a in range(rank))
    inner = (elements if a == axis else 1 for a in range(rank))
    return (n, c, *outer, *inner)
