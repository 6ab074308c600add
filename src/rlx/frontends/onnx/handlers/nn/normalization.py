"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.convolution import by_channel
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

# -- over batches ---------------------------------------------------------------------------------


@handles("BatchNormalization", since=1)
def batch_norm_before_modes(call: Call) -> Node:
    """Before opset 14 a node that asks for statistics is one that trains."""
    if any(call.wants(i) for i in range(1, 5)):
        raise call.unsupported("it trains, as it has more than one result. Export it for inference")
    return _batch_norm(call)


@handles("BatchNormalization", since=14)
def batch_norm(call: Call) -> Node | tuple[Node, ...]:
    return _trained(call) if call.attr("training_mode", 0) else _batch_norm(call)


def _batch_norm(call: Call) -> Node:
    x = call.node(0)
    scale, bias, mean, variance = (_like(call.node(i), x) for i in range(1, 5))
    eps = call.attr("epsilon", 1e-5)
    if call.attr("spatial", 1):
        return ops.batch_norm(x, scale, bias, mean, variance, eps=eps)
    standard = ops.div(ops.sub(x, mean), ops.sqrt(ops.add(variance, eps)))
    return ops.add(ops.mul(standard, scale), bias)


def _trained(call: Call) -> tuple[Node, ...]:
    """By the batch's own statistics; and those before, moved a little towards them."""
    x, momentum = call.node(0), call.attr("momentum", 0.9)
    axes = tuple(i for i in range(x.shape.rank) if i != 1)
    mean = ops.mean(x, axes=axes)
    centred = ops.sub(x, by_channel(mean, x))
    variance = ops.mean(ops.square(centred), axes=axes)
    scale, bias = (_like(call.node(i), x) for i in (1, 2))
    made = ops.batch_norm(x, scale, bias, mean, variance, eps=call.attr("epsilon", 1e-5))
    return made, *(
        ops.add(ops.mul(old, momentum), ops.mul(_like(new, old), 1 - momentum))
        for old, new in ((call.node(3), mean), (call.node(4), variance))
    )


def _like(x: Node, other: Node) -> Node:
    return ops.cast(x, to=other.shape.dtype)


# -- over the last axes ---------------------------------------------------------------------------


@handles("LayerNormalization")
def layer_norm(call: Call) -> Node | tuple[Node, ...]:
    """Of the axes from `axis` on; scale and bias broadcast to x."""
    x, eps = call.node(0), call.attr("epsilon", 1e-5)
    axis = call.axis(call.attr("axis", -1), x.shape.rank)
    affine = [call.node(i) for i in (1, 2) if call.has(i)]
    wide, *affine = (ops.cast(v, to=_stashed(call, x, *affine)) for v in (x, *affine))
    if _fits(affine, x.shape.dims[axis:]):
        made = ops.layer_norm(wide, *affine, axis=axis, eps=eps)
    else:
        made = _scaled(ops.layer_norm(wide, axis=axis, eps=eps), affine)
    made = ops.cast(made, to=x.shape.dtype)
    return (made, *_statistics(call, x, axis, eps)) if call.wants(1) or call.wants(2) else made


def _stashed(call: Call, *operands: Node) -> DType:
    """The dtype that a norm is computed in: the widest of its operands', or wider where the node
    says so; half floats are computed in f32 anyway."""
    stash = call.importer.reader.dtype(call.attr("stash_type", 1), call.label)
    widest = max((x.shape.dtype for x in operands), key=lambda d: d.numpy.itemsize)
    return DType.F64 if stash is DType.F64 else widest


def _fits(affine: Sequence[Node], dims: Sequence[DimLike]) -> bool:
    return all(a.shape.dims == tuple(dims) for a in affine)


def _scaled(x: Node, affine: Sequence[Node]) -> Node:
    """x · scale + bias, as far as they are given."""
    for op, operand in zip((ops.mul, ops.add), affine):
        x = op(x, operand)
    return x


def _statistics(call: Call, x: Node, axis: int, eps: float) -> tuple[Node, Node]:
    """The mean, and one over the deviation, in the dtype that the node stashes them in."""
    stash = call.importer.reader.dtype(call.attr("stash_type", 1), call.label)
    axes = tuple(range(axis, x.shape.rank))
    wide = ops.cast(x, to=stash)
    mean = ops.mean(wide, axes=axes, keepdims=True)
    variance = ops.mean(ops.square(ops.sub(wide, mean)), axes=axes, keepdims=True)
    return mean, ops.reciprocal(ops.sqrt(ops.add(variance, eps)))


@handles("RMSNormalization")
def rms_norm(call: Call) -> Node:
    x, eps = call.node(0), call.attr("epsilon", 1e-5)
    axis = call.axis(call.attr("axis", -1), x.shape.rank)
    wide, scale = (ops.cast(v, to=_stashed(call, x, call.node(1))) for v in (x, call.node(1)))
    if _fits([scale], x.shape.dims[axis:]):
        made = ops.rms_norm(wide, scale, axis=axis, eps=eps)
    else:
        made = _scaled(ops.rms_norm(wide, axis=axis, eps=eps), [scale])
    return ops.cast(made, to=call.shape(1).dtype)


@handles("SimplifiedLayerNormalization")
def simplified_layer_norm(call: Call) -> Node | tuple[Node, ...]:
    """What onnxruntime calls a layer norm without a mean; its second result is 1 / the root."""
    made = rms_norm(call)
    if not call.wants(1):
        return made
    x = call.node(0)
    axes = tuple(range(call.axis(call.attr("axis", -1), x.shape.rank), x.shape.rank))
    wide = ops.cast(x, to=call.importer.reader.dtype(call.attr("stash_type", 1), call.label))
    square = ops.mean(ops.square(wide), axes=axes, keepdims=True)
    return made, ops.rsqrt(ops.add(square, call.attr("epsilon", 1e-5)))


# -- over channels --------------------------------------------------------------------------------


@handles("InstanceNormalization")
def instance_norm(call: Call) -> Node:
    return ops.instance_norm(*call.nodes(), eps=call.attr("epsilon", 1e-5))


@handles("GroupNormalization", since=18)
def group_norm_by_group(call: Call) -> Node:
    """Scale and bias are one number per group."""
    channels, groups = call.shape(0).dims[1], call.required("num_groups")
    each = [_repeated(call.node(i), channels // groups) for i in (1, 2)]
    return _group_norm(call, call.node(0), *each)


def _repeated(vector: Node, times: DimLike) -> Node:
    """Each element repeated."""
    (count,) = vector.shape.dims
    wide = ops.expand(ops.expand_dims(vector, axes=(1,)), dims=(count, times))
    return ops.reshape(wide, dims=(count * times,))


@handles("GroupNormalization", since=21)
def group_norm(call: Call) -> Node:
    return _group_norm(call, *call.nodes())


def _group_norm(call: Call, x: Node, scale: Node, bias: Node) -> Node:
    wide = [ops.cast(v, to=_stashed(call, x)) for v in (x, scale, bias)]
    groups, eps = call.required("num_groups"), call.attr("epsilon", 1e-5)
    return _like(ops.group_norm(*wide, groups=groups, eps=eps), x)


@handles("GroupNorm", domain=MICROSOFT)
def group_norm_channels_last(call: Call) -> Node:
    """[batch, *image, channels] unless it says otherwise; scale and bias are f32 beside any x."""
    x, rank = call.node(0), call.rank(0)
    is_last = bool(call.attr("channels_last", 1))
    if is_last:
        x = ops.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    affine = [_like(call.node(i), x) for i in (1, 2)]
    made = ops.group_norm(
        x, *affine, groups=call.required("groups"), eps=call.attr("epsilon", 1e-5)
    )
    if is_last:
        made = ops.transpose(made, perm=(0, *range(2, rank), 1))
    return ops.silu(made) if call.required("activation") else made


@handles("LRN")
def local_response_norm(call: Call) -> Node:
    return ops.local_response_norm(
        call.node(0),
        size=call.required("size"),
        alpha=call.attr("alpha", 1e-4),
        beta=call.attr("beta", 0.75),
        bias=call.attr("bias", 1.0),
    )


# -- over any axes --------------------------------------------------------------------------------


@handles("LpNormalization")
def lp_norm(call: Call) -> Node:
    axis = call.axis(call.attr("axis", -1), call.rank(0))
    return ops.lp_normalization(call.node(0), axis=axis, p=call.attr("p", 2))


@handles("MeanVarianceNormalization")
def mean_variance_norm(call: Call) -> Node:
    rank = call.rank(0)
    axes = tuple(call.axis(a, rank) for a in call.attr("axes", (0, 2, 3)))
    return ops.mean_variance_normalization(call.node(0), axes=axes, eps=1e-9)
