"""onnxruntime's own attention operators.

A key that a mask hides gets a large negative number added to its score, so a query of which all
keys are masked attends to all of them equally; one after a query is not seen at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.attention import (
    Heads,
    Positions,
    as_number,
    attended,
    before_end,
    by_head,
    counted,
    joined,
    masked,
    rotary_embedding,
    scored,
)
from rlx.frontends.onnx.handlers.nn.quantized import integer_product
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

# -- projected ------------------------------------------------------------------------------------


@handles("Attention", domain=MICROSOFT)
def attention(call: Call) -> tuple[Node, ...]:
    """Queries, keys and values from one matmul, then attention."""
    made = ops.matmul(call.node(0), call.node(1))
    made = ops.add(made, call.node(2)) if call.has(2) else made
    return _self_attention(call, made, mask=3, past=4, bias=5)


@handles("QAttention", domain=MICROSOFT)
def quantised_attention(call: Call) -> tuple[Node, ...]:
    """The same with an integer matmul."""
    sums = ops.cast(integer_product(call, 0, 1, 6, 7), to=DType.F32)
    made = ops.add(ops.mul(sums, ops.mul(call.node(3), call.node(4))), call.node(2))
    return _self_attention(call, made, mask=5, past=8, bias=9)


def _self_attention(call: Call, qkv: Node, mask: int, past: int, bias: int) -> tuple[Node, ...]:
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0):
        raise call.unsupported("it applies rotary embeddings, or shares the buffer of its past")
    num, width = call.required("num_heads"), qkv.shape.dims[2]
    sizes = tuple(call.attr("qkv_hidden_sizes") or (width // 3,) * 3)
    q, k, v = ops.split(qkv, sizes=sizes, axis=2)
    if not call.has(past) and not call.wants(1):
        heads = Heads(q, k, v, num, num, call.attr("scale"))
        return (_attended(call, heads, mask, bias, 0),)
    length = call.shape(past).dims[3] if call.has(past) else 0
    olds = _halves(call.node(past)) if call.has(past) else (None, None)
    k, v = (_after(old, by_head(x, num)) for old, x in zip(olds, (k, v)))
    heads = Heads(by_head(q, num), k, v, num, num, call.attr("scale"))
    present = ops.concat([ops.expand_dims(x, axes=(0,)) for x in (k, v)], axis=0)
    return joined(_attended(call, heads, mask, bias, length)), present


def _halves(past: Node) -> tuple[Node, Node]:
    k, v = (ops.squeeze(ops.narrow(past, axis=0, start=i, length=1), axes=(0,)) for i in (0, 1))
    return k, v


def _after(old: Node | None, new: Node) -> Node:
    return new if old is None else ops.concat([old, new], axis=2)


def _attended(call: Call, heads: Heads, mask: int, bias: int, past: DimLike) -> Node:
    added = _added(call, heads, mask, bias)
    right = 0 if call.attr("unidirectional", 0) else None
    return attended(heads, masked(call, heads, Positions(past, right=right), None, added))


def _added(call: Call, heads: Heads, mask: int, bias: int) -> Node | None:
    """What is added to scores: the filter value where keys are hidden, and a bias."""
    total = call.optional(bias)
    if not call.has(mask):
        return total
    dtype = heads.q.shape.dtype.numpy
    nothing = call.graph.constant(np.zeros((), dtype))
    value = call.graph.constant(np.array(call.attr("mask_filter_value", -10000.0), dtype))
    hidden = ops.where(_shown(call, heads, mask), nothing, value)
    return hidden if total is None else ops.add(hidden, total)


def _shown(call: Call, heads: Heads, number: int) -> Node:
    """Which keys a mask shows: 0 or 1 for each, or where rows end, or where they end and begin."""
    mask, batch = call.node(number), heads.q.shape.dims[0]
    dims = mask.shape.dims
    if len(dims) == 1 and dims[0] == batch:
        return before_end(call, mask, heads.keys)
    if len(dims) == 1 and dims[0] == 2 * batch:
        ends, starts = (ops.narrow(mask, axis=0, start=i * batch, length=batch) for i in range(2))
        is_late = ops.logical_not(before_end(call, starts, heads.keys))
        return ops.logical_and(before_end(call, ends, heads.keys), is_late)
    if len(dims) not in (2, 3):
        raise call.unsupported(f"a mask of {mask.shape} is none that rlx reads")
    shown = ops.greater(mask, call.graph.constant(np.zeros((), mask.shape.dtype.numpy)))
    return ops.expand_dims(shown, axes=(1, 2) if len(dims) == 2 else (1,))


# -- several heads --------------------------------------------------------------------------------


@handles("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> tuple[Node, ...]:
    if call.has(8) or call.has(9):
        raise call.unsupported("it shares the buffer of its past")
    num = call.required("num_heads")
    q, k, v = _operands(call, num)
    length: DimLike = 0
    if call.has(6):
        length = call.shape(6).dims[2]
    k, v = (_after(call.optional(6 + i), by_head(x, num)) for i, x in enumerate((k, v)))
    heads = Heads(by_head(q, num), k, v, num, num, call.attr("scale"))
    if not call.wants(3):
        return joined(_attended(call, heads, 4, 5, length)), k, v
    right = 0 if call.attr("unidirectional", 0) else None
    added = _added(call, heads, 4, 5)
    mask = masked(call, heads, Positions(length, right=right), None, added, as_node=True)
    found = scored(heads, mask)
    return joined(found.made), k, v, found.biased


def _operands(call: Call, num: int) -> tuple[Node, Node, Node]:
    """Queries, keys and values, each with its part of the bias, in any packing."""
    q = call.node(0)
    if q.shape.rank == 5:
        q, k, v = _unpacked(q, 3)
    elif call.shape(1).rank == 5:
        k, v = _unpacked(call.node(1), 2)
    else:
        k, v = call.node(1), call.node(2)
    if not call.has(3):
        return q, k, v
    if k.shape.rank == 4:  # keys of a past that has its bias already
        width = q.shape.dims[-1]
        return ops.add(q, ops.narrow(call.node(3), axis=0, start=0, length=width)), k, v
    sizes = tuple(x.shape.dims[-1] for x in (q, k, v))
    parts = ops.split(call.node(3), sizes=sizes, axis=0)
    q, k, v = (ops.add(x, part) for x, part in zip((q, k, v), parts))
    return q, k, v


def _unpacked(x: Node, count: int) -> tuple[Node, ...]:
    """[batch, length, heads, count, depth] as so many of [batch, length, heads·depth]."""
    batch, length, heads, _, depth = x.shape.dims
    cut = (ops.narrow(x, axis=3, start=i, length=1) for i in range(count))
    return tuple(ops.reshape(p, dims=(batch, length, heads * depth)) for p in cut)


# -- groups of heads ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cache:
    """Where new keys go: `starts` [batch] of a cache of `size`."""

    starts: Node | None
    size: DimLike

    def grown(self, call: Call, number: int, new: Node) -> Node:
        """The past with new keys or values written after what each row has of it."""
        if self.starts is None:
            return new
        past = call.node(number)
        missing = self.size - past.shape.dims[2]
        if missing != 0:
            past = ops.pad(past, low=(0,) * 4, high=(0, 0, missing, 0), value=0.0)
        return ops.tensor_scatter(past, new, self.starts, axis=2)


@handles("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> tuple[Node, ...]:
    """Keys and values go into a cache, rows of which may be of different lengths."""
    _check_plain(call)
    num, kv = call.required("num_heads"), call.required("kv_num_heads")
    q, k, v = _grouped(call, num, kv)
    cache = _cache(call, q.shape.dims[2])
    q, k = _normalised(call, q, 14), _normalised(call, k, 15)
    if call.attr("do_rotary", 0):
        q, k = (_rotated(call, x, cache) for x in (q, k))
    k, v = cache.grown(call, 3, k), cache.grown(call, 4, v)
    softcap = call.attr("softcap", 0.0) or None
    heads = Heads(q, k, v, num, kv, call.attr("scale", 0.0) or None, softcap)
    left = call.attr("local_window_size", -1)
    right = 0 if call.attr("causal", 1) else None
    window = None if left < 0 else max(left - 1, 0)
    positions = Positions(_offset(cache), window, right)
    visible = None if right == 0 else before_end(call, _lengths(call), heads.keys)
    return joined(attended(heads, masked(call, heads, positions, visible, call.optional(10)))), k, v


def _check_plain(call: Call) -> None:
    odd = ("smooth_softmax", "qk_output", "sliding_window_cache")
    if any(call.attr(name, 0) > 0 for name in odd) or call.has(11):
        raise call.unsupported("its softmax, its result or its cache is of a special kind")
    if call.has(12) or call.has(13):
        raise call.unsupported("its cache is quantised")


def _grouped(call: Call, num: int, kv: int) -> tuple[Node, Node, Node]:
    q = call.node(0)
    if call.has(1):
        return by_head(q, num), by_head(call.node(1), kv), by_head(call.node(2), kv)
    depth = q.shape.dims[2] // (num + 2 * kv)
    sizes = (num * depth, kv * depth, kv * depth)
    q, k, v = ops.split(q, sizes=sizes, axis=2)
    return by_head(q, num), by_head(k, kv), by_head(v, kv)


def _normalised(call: Call, x: Node, number: int) -> Node:
    if not call.has(number):
        return x
    return ops.rms_norm(x, call.node(number), eps=call.attr("qk_norm_epsilon", 1e-6))


def _lengths(call: Call) -> Node:
    """Of each row, with what is new."""
    given = ops.cast(ops.reshape(call.node(5), dims=(-1,)), to=DType.I64)
    return ops.add(given, as_number(call, 1))


def _cache(call: Call, new: DimLike) -> Cache:
    """The prompt starts at 0 in all rows; later tokens where their rows ended."""
    total = call.dims(6)[0]
    if not call.has(3) or call.shape(3).dims[2] == 0:
        return Cache(None, new)
    size = dim_max(dim_max(call.shape(3).dims[2], total), new)  # total is new, and more
    starts = ops.sub(_lengths(call), as_number(call, new))
    is_first = ops.equal(as_number(call, total), as_number(call, new))
    if not isinstance(total - new, Dim):
        return Cache(starts if total != new else ops.mul(starts, as_number(call, 0)), size)
    return Cache(ops.where(is_first, as_number(call, 0), starts), size)


def _offset(cache: Cache) -> DimLike | Node:
    return 0 if cache.starts is None else ops.reshape(cache.starts, dims=(-1, 1, 1, 1))


def _rotated(call: Call, x: Node, cache: Cache) -> Node:
    """By the positions given, or those after what each row has."""
    if call.has(9):
        ids = call.node(9)
    else:
        line = ops.reshape(counted(call, x.shape.dims[2], 3), dims=(1, -1))
        ids = line if cache.starts is None else _moved(line, cache.starts)
    cos, sin = (ops.gather(call.node(i), ids, axis=0) for i in (7, 8))
    return rotary_embedding(call, x, cos, sin, 0, "rotary_interleaved")


def _moved(line: Node, starts: Node) -> Node:
    return ops.add(line, ops.reshape(starts, dims=(-1, 1)))
