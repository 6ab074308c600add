"""Attention over a cache of keys and values, of which each row of a batch reads its own part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ, may_exceed
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.cost import OpClass, Work
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.gather import checked_indices
from rlx.ops.indexing.state_updates import checked_positions
from rlx.ops.nn.attention import attention
from rlx.ops.op import Array, Kind, op

BLOCK = 32
"""Elements of a head that share a scale, where a cache is quantised."""


def _cached_shape(
    q: Shape, keys: Shape, values: Shape, at: Shape, slots: Shape | None = None,
    key_scales: Shape | None = None, value_scales: Shape | None = None, *, num_heads: int,
    kv_heads: int | None, window: int | None, scale: float | None, softcap: float | None,
) -> Shape:  # fmt: skip
    if q.rank != 3 or keys.rank != 3 or values.rank != 3:
        raise GraphError(
            f"operands are {q}, {keys} and {values}, expected [batch, queries, heads·depth] and "
            "[slots, capacity, heads·depth]"
        )
    batch, queries, _ = q.dims
    _check_dtypes(keys, values, key_scales, value_scales)
    for codes, scales in ((keys, key_scales), (values, value_scales)):
        if scales is not None:
            _check_scales(codes, scales, kv_heads or num_heads)
    for what, shape in (("positions", at), ("slots", slots)):
        if shape is not None and shape.dims != (batch,):
            raise dims_differ(f"{what} are {shape}, but q is {q}", shape.dims, (batch,))
    if slots is None and keys.dims[0] != batch:
        raise GraphError(f"keys are {keys}, but q is {q}: an entry for each row, or slots as well")
    if not provably_le(queries, keys.dims[1]):
        what = f"{queries} queries may be more than the {keys.dims[1]} keys of a slot"
        raise may_exceed(what, queries, keys.dims[1])
    if (window or 0) < 0:
        raise GraphError(f"window={window} must be 0 or more")
    of_batch = [s.with_dim(0, batch).with_dtype(q.dtype) for s in (keys, values)]
    how: dict[str, Any] = {"num_heads": num_heads, "kv_heads": kv_heads, "softcap": softcap}
    how |= {"scale": scale, "mask_kind": "causal", "window": None, "masked_rows": "zeros"}
    return attention.infer([q, *of_batch], how)[0]


def _check_dtypes(keys: Shape, values: Shape, *scales: Shape | None) -> None:
    is_quantised = any(s is not None for s in scales)
    if is_quantised and None in scales:
        raise GraphError("there are scales of keys and none of values: give both")
    is_held = keys.dtype is DType.I8 if is_quantised else keys.dtype.is_float
    if keys.dtype is not values.dtype or not is_held:
        wanted = "i8, as there are scales" if is_quantised else "one float dtype"
        raise GraphError(f"keys are {keys} and values {values}, expected {wanted}")


def _check_scales(codes: Shape, scales: Shape, kv_heads: int) -> None:
    """A scale for each block of a head."""
    *held, width = codes.dims
    if not isinstance(width, int) or width % (kv_heads * BLOCK):
        raise GraphError(f"heads of {codes} are not whole blocks of {BLOCK} elements")
    if scales.dims != (*held, width // BLOCK) or not scales.dtype.is_float:
        raise GraphError(
            f"scales are {scales}, expected floats [{held[0]}, {held[1]}, {width // BLOCK}] for "
            f"blocks of {BLOCK}"
        )


def _scores(shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> DimLike:
    (batch, queries, _), (_, capacity, _) = shapes[0].dims, shapes[1].dims
    return batch * attrs["num_heads"] * queries * capacity


def _flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> DimLike:
    """Of full caches: two products, and about five operations per score between them."""
    kv = attrs["kv_heads"] or attrs["num_heads"]
    depth, value_depth = (s.dims[2] // kv for s in shapes[1:3])
    return _scores(shapes, attrs) * (2 * depth + 2 * value_depth + 5)


def _work(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
    products = _flops(shapes, results, attrs)
    return {OpClass.MULTIPLY_ADD: products, OpClass.EXPONENTIAL: _scores(shapes, attrs)}


@op(
    "f[...], _[...], _[...], i[...], i[...]?, _[...]?, _[...]? -> f[...]",
    kind=Kind.SPECIAL,
    shape=_cached_shape,
    flops=_flops,
    cost=_work,
)
def cached_attention(
    q: Array,
    keys: Array,
    values: Array,
    at: Array,
    slots: Array | None = None,
    key_scales: Array | None = None,
    value_scales: Array | None = None,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Array:
    """Causal attention of new queries [batch, queries, heads·depth] over cached keys and values
    [slots, capacity, heads·depth]. Row b reads entry slots[b], or entry b, and its queries stand at
    the positions from at[b] on, where `append` has written their own keys. What is behind them is
    not read, nor, with a `window`, what is further before a query. Caches may have another float
    dtype than queries, or be i8 with a scale for each 32 elements of a head,
    [slots, capacity, heads·depth / 32], by which they are multiplied. The rest is as in
    `attention`."""
    queries = q.shape[1]
    checked_positions(at, queries, keys.shape[1], 1)
    chosen = np.arange(len(q)) if slots is None else checked_indices(slots, 0, len(keys))
    how = {"num_heads": num_heads, "kv_heads": kv_heads, "scale": scale, "softcap": softcap}
    kind = "causal" if window is None else "sliding_window"
    scaled = (keys, key_scales), (values, value_scales)
    made = [
        attention.reference(
            row[None],
            *(_rows(x, s, int(entry), int(start) + queries, q.dtype)[None] for x, s in scaled),
            **how, mask_kind=kind, window=window,
        )[0]
        for row, entry, start in zip(q, chosen, at)
    ]  # fmt: skip
    kv = num_heads if kv_heads is None else kv_heads
    width = values.shape[2] // kv * num_heads
    return np.stack(made) if made else np.zeros((0, q.shape[1], width), q.dtype)


def _rows(x: Array, scales: Array | None, entry: int, count: int, dtype: Any) -> Array:
    """The first rows of an entry, dequantised where there are scales."""
    if scales is None:
        return x[entry, :count].astype(dtype)
    wide = DType.of(dtype).compute.numpy
    by_block = np.repeat(scales[entry, :count].astype(wide), BLOCK, axis=-1)
    return (x[entry, :count].astype(wide) * by_block).astype(dtype)


@cached_attention.lowering
def _(
    q: Any, keys: Any, values: Any, at: Any, slots: Any = None, key_scales: Any = None,
    value_scales: Any = None, *, num_heads: int, kv_heads: int | None, window: int | None,
    scale: float | None, softcap: float | None,
) -> Any:  # fmt: skip
    """Attention over all of an entry, with a mask. A position that cannot be makes the entry -1,
    which is an error."""
    batch, queries, _ = dims_of(q)
    capacity = dims_of(keys)[1]
    start = ops.cast(at, to=DType.I64)
    entry = nullary(start, "iota", dims=(batch,), axis=0, dtype=DType.I64)
    entry = entry if slots is None else ops.cast(slots, to=DType.I64)
    length = ops.add(start, nullary(start, "extent", dim=queries))
    room = ops.less_equal(length, nullary(start, "extent", dim=capacity))
    fits = ops.logical_and(ops.greater_equal(start, filled(start, 0, ())), room)
    entry = ops.where(fits, entry, filled(entry, -1, ()))
    pairs = (keys, key_scales), (values, value_scales)
    k, v = (_entries(x, scales, entry, dtype_of(q)) for x, scales in pairs)
    key = nullary(length, "iota", dims=(1, 1, 1, capacity), axis=3, dtype=DType.I64)
    is_held = ops.less(ops.reshape(key, dims=(1, capacity, 1)), _column(length, 3))
    v = ops.where(is_held, v, filled(v, 0, ()))
    query = nullary(length, "iota", dims=(1, 1, queries, 1), axis=2, dtype=DType.I64)
    place = ops.add(_column(start, 4), query)
    shown = ops.less_equal(key, place)
    if window is not None:
        shown = ops.logical_and(shown, ops.greater_equal(ops.add(key, window), place))
    how: dict[str, Any] = {"num_heads": num_heads, "kv_heads": kv_heads, "scale": scale}
    return ops.attention(q, k, v, shown, mask_kind="custom", softcap=softcap, **how)


def _entries(x: Any, scales: Any, entry: Any, dtype: DType) -> Any:
    """The entries that rows of a batch read, dequantised where there are scales."""
    if scales is None:
        return ops.cast(ops.gather(x, entry, axis=0), to=dtype)
    batch, capacity, width = (dims_of(entry)[0], *dims_of(x)[1:])
    blocks = (batch, capacity, width // BLOCK)
    codes, by = (
        ops.cast(ops.reshape(ops.gather(n, entry, axis=0), dims=(*blocks, size)), to=dtype.compute)
        for n, size in ((x, BLOCK), (scales, 1))
    )
    return ops.cast(ops.reshape(ops.mul(codes, by), dims=(batch, capacity, width)), to=dtype)


def _column(x: Any, rank: int) -> Any:
    """A value for each row of the batch, to be broadcast."""
    return ops.reshape(x, dims=(dims_of(x)[0], *(1,) * (rank - 1)))


@cached_attention.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    has_slots = draw.coin()
    is_quantised = has_slots and draw.coin(0.4)
    dtype, kv, depth = draw.dtype("f"), draw.integer(1, 2), draw.size(1)
    depth = BLOCK * draw.integer(1, 2) if is_quantised else depth
    heads, value_depth = kv * draw.integer(1, 3), depth if draw.coin(0.7) else draw.size(1)
    value_depth = BLOCK * draw.integer(1, 2) if is_quantised else value_depth
    cached = dtype if draw.coin(0.6) else draw.dtype("f")
    batch, capacity = draw.integer(1, 3), draw.size(2)
    queries, integer = draw.integer(1, 2), draw.choice((DType.I32, DType.I64))
    entries = draw.integer(1, 3) if has_slots else batch
    held = DType.I8 if is_quantised else cached
    specs = [Spec((batch, queries, heads * depth), dtype, "plain")]
    specs += [Spec((entries, capacity, kv * d), held, "plain") for d in (depth, value_depth)]
    specs.append(Spec((batch,), integer, f"index:{capacity - queries + 1}"))
    if has_slots:
        specs.append(Spec((batch,), integer, f"index:{entries}"))
    if is_quantised:
        by_block = [(entries, capacity, kv * d // BLOCK) for d in (depth, value_depth)]
        specs += [Spec(dims, draw.choice((DType.F16, DType.F32)), "unit") for dims in by_block]
    window = draw.integer(0, 3) if draw.coin(0.3) else None
    attrs = {"num_heads": heads, "kv_heads": None if kv == heads and draw.coin() else kv}
    softcap, scale = draw.choice((None, 5.0)), draw.choice((None, 0.3))
    return specs, attrs | {"window": window, "softcap": softcap, "scale": scale}
