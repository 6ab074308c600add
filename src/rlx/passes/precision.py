"""Reduced precision: f32 products in bf16, with int8 weights, or with int8 or int16 activations
where weights are GGUF's blocks, where the caller asks for it.

Only operands of products are rounded. Sums, what follows them, norms, softmax and attention stay
in f32, and so does all that inputs and outputs are made of: a model's interface does not change.
Weights are rounded once, when parameters are set. A product with int8 activations that no other
follows, as the logits of a language model, takes the sum of two roundings, as all do with int16
activations: its errors are those of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.ir.mir import Graph, Node, Origin
from rlx.ops.fused import activated
from rlx.ops.op import Kind
from rlx.ops.quant.gguf_codes import BLOCK, CODES
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.passes.fusion.graph_facts import per_call_of
from rlx.passes.legalise import legalise
from rlx.passes.options import Precision

CONVOLUTIONS = ("conv", "fused_conv_bias_act")
PRODUCTS = ("matmul", "fused_matmul_bias_act", *CONVOLUTIONS)
BLOCK_PRODUCTS = ("gguf_matmul",)
ROUNDINGS = {"int8-activations": 1, "int16-activations": 2}
"""To int8, whose sum an activation is."""
MIN_REDUCTION_LENGTH = 16
"""Shorter reductions are not bound by arithmetic, and are often of positions or counts, which eight
bits do not represent."""
MIN_WEIGHTS = 4096
"""Fewer stay in L1 whatever their dtype."""


def reduce_precision(graph: Graph, ctx: Context) -> Graph:
    """The graph with its products carried out as the options ask, in branches and loops too."""
    if ctx.options.precision is None:
        return graph
    asked = Precision.of(ctx.options.precision)
    made = with_bodies(graph, lambda each: _reduced(each, ctx, asked))
    return graph if made is graph else legalise(made, ctx)


def _reduced(graph: Graph, ctx: Context, asked: Precision) -> Graph:
    order = graph.order()
    per_call = per_call_of(order)
    products = BLOCK_PRODUCTS if asked.dtype in ROUNDINGS else PRODUCTS
    chosen = {n for n in order if n.op in products and n in per_call}
    chosen = {n for n in order if n in chosen and _is_taken(n, n.inputs[1] in per_call, ctx, asked)}
    if not chosen:
        return graph
    last = {n for n in chosen if n not in _multiplied(order)}

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node not in chosen:
            return None
        with new.scope(*node.origins, Origin("pass", f"precision {asked.dtype}")):
            return _reduced_product(node, inputs, asked, is_last=node in last)

    return graph.rebuild(make)


def _multiplied(order: Sequence[Node]) -> set[Node]:
    """The nodes whose values a product or attention takes up, sooner or later."""
    found: set[Node] = set()
    for node in reversed(order):
        if node in found or node.decl.kind is Kind.CONTRACTION:
            found |= set(node.inputs)
    return found


def _is_taken(node: Node, is_made: bool, ctx: Context, asked: Precision) -> bool:
    """The decision on one product; `is_made` says that its right operand is new in each call."""
    what = f"{asked.dtype}_product"
    why_not = _why_not(node, is_made, asked)
    if why_not is not None:
        ctx.log.refuse(what, (node,), why_not, kind="precision")
        return False
    return ctx.log.choose(what, (node,), True, _why(node, asked), kind="precision").verdict


def _why_not(node: Node, is_made: bool, asked: Precision) -> str | None:
    """Why a product stays in its dtype."""
    x, w = (i.shape for i in node.inputs[:2])
    if asked.dtype in ROUNDINGS:
        return _why_no_blocks(node)
    is_conv = node.op in CONVOLUTIONS
    inner = product(w.dims[1:]) if is_conv else x.dims[-1]
    if x.dtype is not DType.F32:
        return f"its operands are {x.dtype}, not f32"
    if is_static(inner) and inner < MIN_REDUCTION_LENGTH:
        return f"its reduction has length {inner}, below {MIN_REDUCTION_LENGTH}"
    if is_conv and w.dims[1] == 1:
        return "it is depthwise: it has no pairs of channels for bf16 dot products"
    if asked.dtype == "bf16":
        return None
    if is_conv:
        return "a convolution reuses its weights for many pixels: int8 weights would save little"
    if is_made:
        return "its right operand is no weight: it is computed in each call"
    if w.rank != 2 or not w.is_static:
        return f"its right operand is {w}, no matrix of known size"
    if w.num_elements < MIN_WEIGHTS:
        return f"it has {w.num_elements} weights, fewer than {MIN_WEIGHTS}"
    if asked.block is not None and inner % asked.block != 0:
        return f"its reduction of length {inner} is no multiple of the block {asked.block}"
    return None


def _why_no_blocks(node: Node) -> str | None:
    """Why activations of a product with GGUF's blocks stay floats."""
    if node.attrs["scheme"] not in CODES:
        return f"its weights are {node.attrs['scheme']}, no integers with scales"
    return None


def _why(node: Node, asked: Precision) -> str:
    if asked.dtype in ROUNDINGS:
        last = "; two roundings where no other product takes up the errors"
        return (
            f"asked for: activations rounded to int8, {BLOCK} to a scale, exact sums of those"
            + (last if ROUNDINGS[asked.dtype] == 1 else "; the sum of two roundings each")
        )
    if asked.dtype == "bf16":
        return "asked for: operands rounded to bf16, sums in f32"
    each = "output" if asked.block is None else f"{asked.block} weights of an output"
    return f"asked for: int8 weights, a scale for each {each}, sums in f32"


def _reduced_product(
    node: Node, inputs: tuple[Node, ...], asked: Precision, *, is_last: bool
) -> Any:
    x, w, *more = inputs
    if asked.dtype in ROUNDINGS:
        terms = 2 if is_last else ROUNDINGS[asked.dtype]
        return ops.gguf_int8_matmul(x, w, **node.attrs, terms=terms)
    made = _in_bf16(node, x, w) if asked.dtype == "bf16" else _with_int8_weights(x, w, asked.block)
    if not more:
        return made
    bias, rank = more[0], made.shape.rank
    if node.op in CONVOLUTIONS:
        bias = ops.expand_dims(bias, axes=tuple(range(1, rank - 1)))
    return activated(ops.add(made, bias), node.attrs.get("activation"))


def _in_bf16(node: Node, x: Node, w: Node) -> Any:
    rounded = (ops.cast(v, to=DType.BF16) for v in (x, w))
    if node.op in CONVOLUTIONS:
        attrs = {k: v for k, v in node.attrs.items() if k != "activation"}
        return ops.wide_conv(*rounded, to=DType.F32, **attrs)
    return ops.wide_matmul(*rounded, to=DType.F32)


def _with_int8_weights(x: Node, w: Node, block: int | None) -> Any:
    size: DimLike = w.shape.dims[0]
    run = int(size) if block is None else block
    packed, scale = ops.block_quantize(ops.transpose(w, perm=(1, 0)), packing="int8", block=run)
    return ops.dequant_matmul(x, packed, scale, packing="int8", block=run)
