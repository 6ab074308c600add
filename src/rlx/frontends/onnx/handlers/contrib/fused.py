"""onnxruntime's fused operators: activations and norms with their prologues, and matmuls with
low-precision weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.activation import activated, scalar
from rlx.frontends.onnx.handlers.nn.attention import rotary_embedding
from rlx.frontends.onnx.handlers.tensor.matmul import gemm
from rlx.frontends.onnx.handlers.tensor.shape_ops import wrapped
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Weight
from rlx.ir.mir import Node

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# -- activations ----------------------------------------------------------------------------------


@handles("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(call: Call) -> Node:
    x = ops.add(call.node(0), call.node(1)) if call.has(1) else call.node(0)
    return ops.gelu_tanh(x) if call.op == "FastGelu" else ops.gelu(x)


@handles("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call) -> Node:
    x = call.node(0)
    return ops.mul(x, ops.sigmoid(ops.mul(x, scalar(call, call.attr("alpha", 1.702), x))))


@handles("BiasSplitGelu", domain=MICROSOFT)
def split_gelu(call: Call) -> Node:
    """The left half of the sums times the gelu of the right half."""
    x = ops.add(call.node(0), call.node(1))
    half, last = x.shape.dims[-1] // 2, x.shape.rank - 1
    left, right = (ops.narrow(x, axis=last, start=s, length=half) for s in (0, half))
    return ops.mul(left, ops.gelu(right))


@handles("BiasAdd", domain=MICROSOFT)
def bias_add(call: Call) -> Node:
    return ops.add(ops.add(call.node(0), call.node(1)), call.node(2))


@handles("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: Call) -> Node:
    given = [call.attr(f"activation_{name}") for name in ("alpha", "beta")]
    return activated(call, gemm(call), [v for v in given if v is not None])


# -- norms ----------------------------------------------------------------------------------------


@handles("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(call: Call) -> tuple[Node, ...]:
    """The norm of what is added up, and the sum itself as the fourth result."""
    total = _summed(call, 4)
    affine = [call.node(i) for i in (2, 3) if call.has(i)]
    made = ops.layer_norm(total, *affine, axis=-1, eps=call.attr("epsilon", 1e-12))
    return _with_sum(call, made, total)


@handles("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(call: Call) -> tuple[Node, ...]:
    total = _summed(call, 3)
    made = ops.rms_norm(total, call.node(2), axis=-1, eps=call.attr("epsilon", 1e-12))
    return _with_sum(call, made, total)


def _summed(call: Call, bias: int) -> Node:
    total = ops.add(call.node(0), call.node(1))
    return ops.add(total, call.node(bias)) if call.has(bias) else total


def _with_sum(call: Call, made: Node, total: Node) -> tuple[Node, ...]:
    """Of what only training wants, nothing is made."""
    if call.wants(1) or call.wants(2):
        raise call.unsupported("it gives the mean or the deviation, which only training needs")
    return (made, made, made, total) if call.wants(3) else (made,)


@handles("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(call: Call) -> tuple[Node, ...]:
    """Words, positions and segments, added up and normalised; how many words the mask counts; and
    the sum."""
    ids = call.node(0)
    words = _rows(call, 2, ids)
    places = _rows(call, 3, call.node(8)) if call.has(8) else _first(call, ids.shape.dims[1])
    total = ops.add(words, places)
    if call.has(4) and call.has(1):
        total = ops.add(total, _rows(call, 4, call.node(1)))
    eps = call.attr("epsilon", 1e-12)
    made = ops.layer_norm(total, call.node(5), call.node(6), axis=-1, eps=eps)
    return made, _counted(call, ids), total


def _rows(call: Call, table: int, ids: Node) -> Node:
    return ops.gather(call.node(table), ids, axis=0)


def _first(call: Call, length: DimLike) -> Node:
    table = call.node(3)
    return ops.expand_dims(ops.narrow(table, axis=0, start=0, length=length), axes=(0,))


def _counted(call: Call, ids: Node) -> Node:
    if call.has(7):
        return ops.sum(ops.cast(call.node(7), to=DType.I32), axes=(1,))
    zero = call.graph.constant(np.zeros((), np.int32))
    return ops.expand(zero, dims=(ids.shape.dims[0],))


# -- positions ------------------------------------------------------------------------------------


@handles("RotaryEmbedding", domain=MICROSOFT)
def rotary(call: Call) -> Node:
    """By the positions that are given, or by all from the first that is given."""
    if call.attr("is_packed_batching", 0) or call.attr("scale", 1.0) != 1.0:
        raise call.unsupported("its rows are packed, or its positions scaled")
    x, ids = call.node(0), call.node(1)
    length = x.shape.dims[-2]
    if ids.shape.rank == 1:
        line = {"dims": (1, length), "axis": 1, "dtype": ids.shape.dtype}
        ids = ops.add(call.graph.node("iota", (), line), ids)
    cos, sin = (ops.gather(call.node(i), ids, axis=0) for i in (2, 3))
    return rotary_embedding(call, x, cos, sin, call.attr("num_heads", 0) or _heads(call, x))


def _heads(call: Call, x: Node) -> int:
    """As many as have the depth of the tables, where all of a head is rotated."""
    depth, width = 2 * call.shape(2).dims[1], x.shape.dims[-1]
    if isinstance(depth, Dim) or isinstance(width, Dim) or depth == 0:
        raise call.needs_shape("the size of a head is not known")
    return width // depth


# -- weights of few bits --------------------------------------------------------------------------


@handles("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(call: Call) -> Node:
    """x · Wᵀ, where W is numbers of few bits, less the zero point of their block, times its
    scale."""
    if call.has(4) or call.attr("weight_prepacked", 0):
        raise call.unsupported("its weights are in another order (g_idx, or packed before)")
    n, k, block = (call.required(name) for name in ("N", "K", "block_size"))
    blocks = -(-k // block)
    x = call.node(0)
    if blocks * block != k:
        x = _filled(x, blocks * block - k)
    weights, packing = packed(call, 1, (n, -1))
    scales = ops.reshape(call.node(2), dims=(n, blocks))
    if call.has(3) and call.shape(3).dtype.is_float:
        made = _matmul_with_real_zeros(call, x, weights, scales, packing)
    else:
        zeros = _zero_points(call, 3, (n, blocks))
        made = ops.dequant_matmul(x, weights, scales, zeros, packing=packing, block=block)
    return ops.add(made, call.node(5)) if call.has(5) else made


def _filled(x: Node, missing: int) -> Node:
    """Zeros for the rest of the last block."""
    rank = x.shape.rank
    return ops.pad(x, low=(0,) * rank, high=(*(0,) * (rank - 1), missing), value=0.0)


def packed(call: Call, number: int, dims: tuple[int, ...]) -> tuple[Node, Any]:
    """Bytes of packed numbers, and the packing; two bits are written out, one number a byte."""
    bits = call.attr("bits", 4)
    if bits in (4, 8):
        return ops.reshape(call.node(number), dims=dims), f"uint{bits}"
    if bits != 2:
        raise call.unsupported(f"weights of {bits} bits")
    numbers = unpacked(call.array(number), bits)
    return _written_out(call, number, numbers.reshape(dims)), "uint8"


def _written_out(call: Call, number: int, array: Bytes) -> Node:
    """Numbers of an operand, one a byte, as a weight of their own."""
    value = call.value(number)
    name = value.name if isinstance(value, Weight) else f"{call.outputs[0]}.{number}"
    return call.as_node(Weight(f"{name} of {call.attr('bits', 4)} bits", array))


def unpacked(array: Bytes, bits: int) -> Bytes:
    """The numbers in bytes along the last axis, those of the lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (array[..., None] >> shifts) & np.uint8(2**bits - 1)
    return numbers.reshape(*array.shape[:-1], -1)


def _zero_points(call: Call, number: int, dims: tuple[int, int]) -> Node:
    """One per block; in the middle unless they are given."""
    bits = call.attr("bits", 4)
    if not call.has(number):
        middle = call.graph.constant(np.array(2 ** (bits - 1), np.uint8))
        return ops.expand(middle, dims=dims)
    if bits == 8:
        return ops.reshape(call.node(number), dims=dims)
    given = np.asarray(call.array(number)).reshape(dims[0], -1)
    return _written_out(call, number, unpacked(given, bits)[:, : dims[1]].copy())


def _matmul_with_real_zeros(call: Call, x: Node, weights: Node, scales: Node, packing: Any) -> Node:
    block = call.required("block_size")
    numbers = ops.block_dequantize(weights, scales, packing=packing, block=block)
    shift = ops.mul(ops.reshape(call.node(3), dims=scales.shape.dims), scales)
    n, blocks = scales.shape.dims
    wide = ops.expand(ops.expand_dims(shift, axes=(2,)), dims=(n, blocks, block))
    rows = ops.sub(numbers, ops.reshape(wide, dims=(n, blocks * block)))
    return ops.matmul(x, ops.transpose(rows, perm=(1, 0)))


@handles("GatherBlockQuantized", domain=MICROSOFT)
def gather_blocks(call: Call) -> Node:
    """Rows of packed numbers as what they stand for."""
    data, rank = call.shape(0), call.rank(0)
    axes = (call.attr("gather_axis", 0), call.attr("quantize_axis", 1))
    if axes[0] % rank != 0 or axes[1] % rank != rank - 1 or data.dtype is not DType.U8:
        raise call.unsupported("only rows of bytes, with blocks along them, are read")
    rows, block = data.dims[0], call.attr("block_size", 128)
    ids = wrapped(call, call.node(1), rows)
    weights, packing = packed(call, 0, (*map(int, data.dims[:-1]), -1))
    scales = call.node(2)
    zeros = _zero_points(call, 3, (int(scales.shape.dims[0]), int(scales.shape.dims[-1])))
    picked = [ops.gather(v, ids, axis=0) for v in (weights, scales, zeros)]
    return ops.block_dequantize(*picked, packing=packing, block=block)
