"""Attention, rotary embeddings, linear attention, and updates of key-value caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.handlers.nn.activation import swish
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Node
from rlx.ops.nn.attention import MaskKind

# -- heads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries, keys and values [batch, heads, length, depth], or all three [batch, length,
    heads·depth]; and how scores are made of them."""

    q: Node
    k: Node
    v: Node
    heads: int
    kv_heads: int
    scale: float | None = None
    softcap: float | None = None

    @property
    def queries(self) -> DimLike:
        return self.q.shape.dims[-2]

    @property
    def keys(self) -> DimLike:
        return self.k.shape.dims[-2]


def by_head(x: Node, heads: int) -> Node:
    """[batch, heads, length, depth] of either layout."""
    if x.shape.rank == 4:
        return x
    batch, length, width = x.shape.dims
    heads_last = ops.reshape(x, dims=(batch, length, heads, width // heads))
    return ops.transpose(heads_last, perm=(0, 2, 1, 3))


def joined(x: Node) -> Node:
    """[batch, length, heads·depth] of [batch, heads, length, depth]."""
    batch, heads, length, depth = x.shape.dims
    return ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(batch, length, heads * depth))


def repeated(x: Node, times: int) -> Node:
    """Each head repeated."""
    if times == 1:
        return x
    batch, heads, length, depth = x.shape.dims
    many = ops.expand(ops.expand_dims(x, axes=(2,)), dims=(batch, heads, times, length, depth))
    return ops.reshape(many, dims=(batch, heads * times, length, depth))


# -- masks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mask:
    """What attention's attributes and last operand say about the keys that a query sees."""

    kind: MaskKind = "none"
    window: int | None = None
    node: Node | None = None

    @property
    def operands(self) -> list[Node]:
        return [] if self.node is None else [self.node]

    def applied(self, scores: Node) -> Node:
        """Scores, -inf where nothing is seen; positions must be a node of their own."""
        if self.node is None:
            return scores
        if self.kind == "bias":
            return ops.add(scores, self.node)
        return ops.where(self.node, scores, scalar_of(scores, -math.inf))


def scalar_of(like: Node, value: float) -> Node:
    return like.graph.constant(np.array(value, like.shape.dtype.numpy))


@dataclass(frozen=True, slots=True)
class Positions:
    """Query i stands at offset + i, and sees `left` keys before and `right` keys after that; None
    is all of them."""

    offset: DimLike | Node = 0
    left: int | None = None
    right: int | None = None

    @property
    def is_free(self) -> bool:
        return self.left is None and self.right is None


def masked(
    call: Call, heads: Heads, positions: Positions, visible: Node | None, bias: Node | None,
    *, as_node: bool = False,
) -> Mask:  # fmt: skip
    """Positions, keys that are seen and what is added to scores, as one mask."""
    offset = positions.offset
    is_last = not isinstance(offset, Node) and offset == heads.keys - heads.queries
    if visible is None and bias is None and not as_node:
        if positions.is_free:
            return Mask()
        if is_last and positions.right == 0:
            is_causal = positions.left is None
            return Mask("causal" if is_causal else "sliding_window", positions.left)
    if not positions.is_free:
        near = _near(call, heads, positions)
        visible = near if visible is None else ops.logical_and(visible, near)
    if bias is not None:
        kind = heads.q.shape.dtype
        added: Node = bias if bias.shape.dtype is kind else ops.cast(bias, to=kind)
        if visible is not None:
            added = ops.where(visible, added, scalar_of(added, -math.inf))
        return Mask("bias", None, of_rank_4(added))
    return Mask() if visible is None else Mask("custom", None, of_rank_4(visible))


def of_rank_4(x: Node) -> Node:
    missing = 4 - x.shape.rank
    return ops.expand_dims(x, axes=tuple(range(missing))) if missing > 0 else x


def _near(call: Call, heads: Heads, positions: Positions) -> Node:
    """Which keys are in the window of each query."""
    i = counted(call, heads.queries, 2)
    j = counted(call, heads.keys, 3)
    ahead = ops.sub(j, ops.add(i, as_number(call, positions.offset)))
    found: list[Node] = []
    if positions.right is not None:
        found.append(ops.less_equal(ahead, as_number(call, positions.right)))
    if positions.left is not None:
        found.append(ops.greater_equal(ahead, as_number(call, -positions.left)))
    return found[0] if len(found) == 1 else ops.logical_and(*found)


def counted(call: Call, size: DimLike, axis: int) -> Node:
    """0, 1, … along one of four axes."""
    dims = tuple(size if a == axis else 1 for a in range(4))
    return call.graph.node("iota", (), {"dims": dims, "axis": axis, "dtype": DType.I64})


def as_number(call: Call, value: DimLike | Node) -> Node:
    return value if isinstance(value, Node) else Sizes((value,), ()).node(call.graph)


def before_end(call: Call, lengths: Node, keys: DimLike) -> Node:
    """Which keys [batch, 1, 1, keys] are before the ends of their rows."""
    ends = ops.reshape(ops.cast(lengths, to=DType.I64), dims=(-1, 1, 1, 1))
    return ops.less(counted(call, keys, 3), ends)


# -- scores ---------------------------------------------------------------------------------------


def attended(heads: Heads, mask: Mask) -> Node:
    """Attention in the layout of its operands."""
    v = heads.v
    v = v if v.shape.dtype is heads.q.shape.dtype else ops.cast(v, to=heads.q.shape.dtype)
    return ops.attention(
        heads.q,
        heads.k,
        v,
        *mask.operands,
        num_heads=heads.heads,
        kv_heads=heads.kv_heads,
        mask_kind=mask.kind,
        window=mask.window,
        scale=heads.scale,
        softcap=heads.softcap,
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores at each stage: raw, soft-capped, masked, and after softmax."""

    raw: Node
    bounded: Node
    biased: Node
    weights: Node
    made: Node


def scored(heads: Heads, mask: Mask) -> Scores:
    """Attention of [batch, heads, length, depth] with all that is between, in f32 at least."""
    dtype = heads.q.shape.dtype
    q, k, v = (ops.cast(x, to=dtype.compute) for x in (heads.q, heads.k, heads.v))
    k, v = (repeated(x, heads.heads // heads.kv_heads) for x in (k, v))
    scale = _depth(heads) ** -0.5 if heads.scale is None else heads.scale
    raw = ops.mul(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), scalar_of(q, scale))
    cap = heads.softcap
    bounded = raw
    if cap is not None:
        bounded = ops.mul(ops.tanh(ops.div(raw, scalar_of(q, cap))), scalar_of(q, cap))
    biased = mask.applied(bounded)
    if mask.kind == "bias":
        biased = ops.cast(biased, to=dtype.compute)
    nothing = ops.equal(ops.max(biased, axes=(3,), keepdims=True), scalar_of(q, -math.inf))
    weights = ops.where(nothing, scalar_of(q, 0.0), ops.softmax(biased, axis=3))
    steps = (raw, bounded, biased, weights, ops.matmul(weights, v))
    return Scores(*(ops.cast(x, to=dtype) for x in steps))


def _depth(heads: Heads) -> int:
    depth = heads.q.shape.dims[-1]
    if isinstance(depth, Dim):
        raise GraphError(f"the size {depth} of a head is not known")
    return max(depth, 1)


# -- Attention ------------------------------------------------------------------------------------


@handles("Attention", since=23)
def attention(call: Call) -> tuple[Node, ...]:
    q, k, v = (call.node(i) for i in range(3))
    is_packed = q.shape.rank == 3
    num = _head_counts(call, q, k)
    keys, values = (_grown(call, by_head(x, num[1]), i) for x, i in ((k, 4), (v, 5)))
    is_whole = call.has(4) or call.wants(3)
    operands = (by_head(q, num[0]), keys, values) if is_whole else (q, k, v)
    heads = Heads(*operands, *num, call.attr("scale"), call.attr("softcap", 0.0) or None)
    mask = _mask(call, heads, as_node=call.wants(3))
    if not call.wants(3):
        made = attended(heads, mask)
        return (joined(made) if is_packed and is_whole else made), keys, values
    found = scored(heads, mask)
    shown = (found.raw, found.bounded, found.biased, found.weights)
    made = joined(found.made) if is_packed else found.made
    return made, keys, values, shown[call.attr("qk_matmul_output_mode", 0)]


def _head_counts(call: Call, q: Node, k: Node) -> tuple[int, int]:
    if q.shape.rank == 3:
        return call.required("q_num_heads"), call.required("kv_num_heads")
    found = tuple(x.shape.dims[1] for x in (q, k))
    if any(isinstance(n, Dim) for n in found):
        raise call.needs_shape(f"the number of heads, {found[0]} or {found[1]}, is not known")
    return int(found[0]), int(found[1])


def _grown(call: Call, x: Node, past: int) -> Node:
    """The keys or values of the past, and then these."""
    return ops.concat([call.node(past), x], axis=2) if call.has(past) else x


def _mask(call: Call, heads: Heads, *, as_node: bool) -> Mask:
    visible = bias = None
    if call.has(3):
        mask = _fitted(call, call.node(3), heads.keys)
        is_bool = mask.shape.dtype is DType.BOOL
        visible, bias = (mask, None) if is_bool else (None, mask)
    if call.has(6):
        real = before_end(call, call.node(6), heads.keys)
        visible = real if visible is None else ops.logical_and(visible, real)
    return masked(call, heads, _positions(call, heads), visible, bias, as_node=as_node)


def _positions(call: Call, heads: Heads) -> Positions:
    """Queries come after the past, or at the end of the keys that are none of the padding."""
    left, right = (call.attr(f"{side}_window_size", -1) for side in ("left", "right"))
    offset: DimLike | Node = call.shape(4).dims[2] if call.has(4) else 0
    if call.has(6) and not call.has(4):
        ends = ops.reshape(ops.cast(call.node(6), to=DType.I64), dims=(-1, 1, 1, 1))
        offset = ops.sub(ends, as_number(call, heads.queries))
    after = 0 if call.attr("is_causal", 0) else right
    return Positions(offset, None if left < 0 else left, None if after < 0 else after)


def _fitted(call: Call, mask: Node, keys: DimLike) -> Node:
    """From opset 24 on a mask that is too short hides what it does not speak of."""
    missing = keys - mask.shape.dims[-1]
    if call.version < 24 or missing == 0:
        return mask
    if isinstance(missing, Dim):
        raise GraphError(f"a mask of {mask.shape} does not fit {keys} keys")
    rank = mask.shape.rank
    value = 0.0 if mask.shape.dtype is DType.BOOL else -math.inf
    high = (*(0,) * (rank - 1), missing)
    return ops.pad(mask, low=(0,) * rank, high=high, value=value) if missing > 0 else mask


@handles("FlexAttention", domain="ai.onnx.preview")
def flex_attention(call: Call) -> Node:
    """Attention whose scores and weights go through graphs of the node's own."""
    q, k, v = (call.node(i) for i in range(3))
    heads = Heads(q, k, v, *_head_counts(call, q, k), call.attr("scale"))
    if call.attr("score_mod") is None and call.attr("prob_mod") is None:
        return attended(heads, Mask())
    given = call.attr("softmax_precision")
    usual = q.shape.dtype.compute
    dtype = usual if given is None else call.importer.reader.dtype(given, call.label)
    k, v = (repeated(x, heads.heads // heads.kv_heads) for x in (k, v))
    scale = _depth(heads) ** -0.5 if heads.scale is None else heads.scale
    wide = ops.cast(q, to=dtype)
    scores = ops.matmul(wide, ops.transpose(ops.cast(k, to=dtype), perm=(0, 1, 3, 2)))
    scores = _modified(call, "score_mod", ops.mul(scores, scalar_of(scores, scale)))
    weights = _modified(call, "prob_mod", ops.softmax(scores, axis=3))
    return ops.cast(ops.matmul(weights, ops.cast(v, to=dtype)), to=v.shape.dtype)


def _modified(call: Call, name: str, x: Node) -> Node:
    graph = call.attr(name)
    if graph is None:
        return x
    (made,) = call.importer.inlined(call, graph, [x])
    return ops.cast(call.as_node(made), to=x.shape.dtype)


# -- positions ------------------------------------------------------------------------------------


@handles("RotaryEmbedding", since=23)
def rotary(call: Call) -> Node:
    cos, sin = call.node(1), call.node(2)
    if call.has(3):
        cos, sin = (ops.gather(table, call.node(3), axis=0) for table in (cos, sin))
    return rotary_embedding(call, call.node(0), cos, sin, call.attr("num_heads", 0))


def rotary_embedding(
    call: Call, x: Node, cos: Node, sin: Node, num_heads: int, interleaved: str = "interleaved"
) -> Node:
    """x [batch, heads, length, depth] or [batch, length, heads·depth], by angles [batch, length,
    half of the rotated depth]; `interleaved` is the attribute that says so."""
    width = x.shape.dims[-1]
    if x.shape.rank == 4:
        cos, sin = (ops.expand_dims(a, axes=(1,)) for a in (cos, sin))
    elif num_heads == 0:
        raise call.unsupported("its input has no axis of heads, and num_heads is not given")
    head, n_rot = width if x.shape.rank == 4 else width // num_heads, 2 * cos.shape.dims[-1]
    if isinstance(head, Dim) or isinstance(n_rot, Dim):
        raise call.needs_shape(f"the size {head} of a head, or of its rotated part, is not known")
    is_interleaved = bool(call.attr(interleaved, 0))
    return ops.rope(x, cos, sin, head_dim=head, n_rot=n_rot, interleaved=is_interleaved)


# -- states and caches ----------------------------------------------------------------------------


@handles("LinearAttention")
def linear_attention(call: Call) -> tuple[Node, Node]:
    """In f32 at least, as a state adds up what came before."""
    dtype = call.shape(0).dtype
    kept = call.shape(3).dtype if call.has(3) else dtype
    wide = DType.F64 if DType.F64 in (dtype, kept) else DType.F32
    operands = [ops.cast(call.node(i), to=wide) for i in (0, 1, 2, 4, 5, 3) if call.has(i)]
    made, state = ops.linear_attention(
        *operands,
        num_heads=call.required("q_num_heads"),
        kv_heads=call.required("kv_num_heads"),
        rule=call.attr("update_rule", "gated_delta"),
        scale=call.attr("scale", 0.0) or None,
    )
    return ops.cast(made, to=dtype), ops.cast(state, to=kept)


@handles("TensorScatter")
def tensor_scatter(call: Call) -> Node:
    axis = call.axis(call.attr("axis", -2), call.rank(0))
    starts = [ops.cast(call.node(2), to=DType.I64)] if call.has(2) else []
    mode = call.attr("mode", "linear")
    return ops.tensor_scatter(call.node(0), call.node(1), *starts, axis=axis, mode=mode)


@handles("SwiGLU")
def swiglu(call: Call) -> Node:
    return ops.mul(swish(call), call.node(1))
