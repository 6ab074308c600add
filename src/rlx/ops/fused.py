"""Fused ops: several ops that run as one kernel.

The named ones are defined by the ops that they fuse: the decomposition is their meaning, their
shape rule and their lowering, so that fused and unfused agree to the bit. A region holds any
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx import ops
from rlx.core.attrs import Axis, Body
from rlx.core.dim import DimLike, exact_div
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops import op as table
from rlx.ops.compose import check_broadcasts, composed, dims_of, graph_flops
from rlx.ops.cost import Work, graph_work
from rlx.ops.draw import Draw, Spec
from rlx.ops.graphs import NodeBase, empty_graph
from rlx.ops.math.reduction import LAST
from rlx.ops.nn.attention import MASK_OPERANDS, MaskedRows, MaskKind
from rlx.ops.nn.window_geometry import with_default_strides
from rlx.ops.op import Array, Kind, op

_ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "abs")


def activated(x: Any, activation: str | None) -> Any:
    """x through the elementwise op called `activation`, if one is."""
    if activation is None:
        return x
    found = table.find(activation)
    if found is None or found.kind is not Kind.ELEMENTWISE or found.signature.min_arity != 1:
        raise GraphError(
            f"attribute activation: {activation!r} is no elementwise op of one operand"
        )
    return found(x)


# -- products -------------------------------------------------------------------------------------


@composed("t[...], t[...], t[...] -> t[...]", kind=Kind.CONTRACTION, is_fused=True)
def fused_matmul_bias_act(x: Any, w: Any, bias: Any, *, activation: str | None = None) -> Any:
    """activation(x · w + bias). The bias is anything that broadcasts to the product: a row, or a
    whole residual."""
    product = ops.matmul(x, w)
    check_broadcasts(
        f"operand 2 has dims {list(map(str, dims_of(bias)))}, which do not broadcast to the "
        f"product's {list(map(str, dims_of(product)))}",
        dims_of(bias), dims_of(product),
    )  # fmt: skip
    return activated(ops.add(product, bias), activation)


@composed("n[n c *s], n[o i *k], n[o] -> n[...]", kind=Kind.CONVOLUTION, is_fused=True)
def fused_conv_bias_act(
    x: Any,
    w: Any,
    bias: Any,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
    activation: str | None = None,
) -> Any:
    """activation(conv(x, w, bias))."""
    made = ops.conv(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return activated(made, activation)


fused_conv_bias_act.normal(with_default_strides)


@composed("f[*s n] -> f[...]", kind=Kind.ROW, is_fused=True)
def fused_swiglu(cat: Any, *, gate_first: bool = False) -> Any:
    """silu(gate) · up, where the last axis of `cat` holds up and then gate; with `gate_first`,
    gate and then up."""
    axis = len(dims_of(cat)) - 1
    half = exact_div(dims_of(cat)[axis], 2)
    if half is None:
        raise GraphError(f"operand 0: its last dim {dims_of(cat)[axis]} does not halve")
    low, high = (ops.narrow(cat, axis=axis, start=s, length=half) for s in (0, half))
    gate, up = (low, high) if gate_first else (high, low)
    return ops.mul(ops.silu(gate), up)


# -- norms of a sum -------------------------------------------------------------------------------

_SUM_OF_ROWS = "f[*s n], f[*s n], f[...]?, f[...]? -> f[...]"


@composed(_SUM_OF_ROWS, kind=Kind.ROW, is_fused=True, reduces_trailing=True)
def fused_residual_ln(
    x: Any,
    residual: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    axis: Axis = LAST,
    eps: float = 1e-5,
) -> Any:
    """layer_norm(x + residual, scale, bias)."""
    return ops.layer_norm(ops.add(x, residual), scale, bias, axis=axis, eps=eps)


@composed(_SUM_OF_ROWS, kind=Kind.ROW, is_fused=True, reduces_trailing=True)
def fused_residual_rms_norm(
    x: Any,
    residual: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    axis: Axis = LAST,
    eps: float = 1e-6,
) -> Any:
    """rms_norm(x + residual, scale, bias)."""
    return ops.rms_norm(ops.add(x, residual), scale, bias, axis=axis, eps=eps)


# -- attention with its projections ---------------------------------------------------------------


@composed(
    "f[b s e], f[e p], f[m o], _[...]?, _[...]?, _[...]?, _[...]?, _[...]? -> f[...]",
    kind=Kind.ATTENTION,
    is_fused=True,
)
def fused_attention_block(
    hidden: Any,
    qkv_w: Any,
    out_w: Any,
    *more: Any,
    num_heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    has_bias: bool = False,
    has_rope: bool = False,
    mask_kind: MaskKind = "none",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: MaskedRows = "zeros",
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Any:
    """Attention of [batch, length, width] with its projections: queries, keys and values from one
    product with `qkv_w` (their columns in this order), rotary positions, attention, and the
    product with `out_w`. After the weights come qkv_b and out_b if `has_bias`, cos and sin if
    `has_rope`, and the mask if its kind takes one."""
    kv = num_heads if kv_heads is None else kv_heads
    (qkv_b, out_b), (cos, sin), mask = _rest(more, has_bias, has_rope, mask_kind)
    q, k, v = _projections(hidden, qkv_w, qkv_b, (num_heads * head_dim, kv * head_dim))
    if has_rope:
        turn = {"head_dim": head_dim, "n_rot": n_rot, "interleaved": interleaved}
        q, k = ops.rope(q, cos, sin, **turn), ops.rope(k, cos, sin, **turn)
    mixed = ops.attention(
        q, k, v, mask, num_heads=num_heads, kv_heads=kv_heads, mask_kind=mask_kind,
        window=window, scale=scale, softcap=softcap, masked_rows=masked_rows,
    )  # fmt: skip
    made = ops.matmul(mixed, out_w)
    return made if out_b is None else ops.add(made, out_b)


Pair = tuple[Any, Any]


def _rest(more: Sequence[Any], has_bias: bool, has_rope: bool, kind: str) -> tuple[Pair, Pair, Any]:
    """The operands after the weights: biases, angles and mask; None for what is not there."""
    has_mask = kind in MASK_OPERANDS
    wanted = 2 * has_bias + 2 * has_rope + has_mask
    if len(more) != wanted:
        raise GraphError(
            f"takes {3 + wanted} operands with has_bias={has_bias}, has_rope={has_rope} and "
            f"mask_kind {kind!r}, got {3 + len(more)}"
        )
    rest = iter(more)
    biases = (next(rest), next(rest)) if has_bias else (None, None)
    angles = (next(rest), next(rest)) if has_rope else (None, None)
    return biases, angles, next(rest, None)


def _projections(x: Any, w: Any, bias: Any, widths: tuple[int, int]) -> list[Any]:
    """Queries, keys and values: runs of columns of one product."""
    queries, keys = widths
    if dims_of(w)[1] != queries + 2 * keys:
        raise GraphError(
            f"operand 1 has {dims_of(w)[1]} columns, expected {queries} for queries and twice "
            f"{keys} for keys and values"
        )
    made = ops.matmul(x, w)
    made = made if bias is None else ops.add(made, bias)
    cuts = ((0, queries), (queries, keys), (queries + keys, keys))
    return [ops.narrow(made, axis=2, start=start, length=length) for start, length in cuts]


# -- regions --------------------------------------------------------------------------------------


def _region_shape(*externals: Shape, body: Any) -> Shape | tuple[Shape, ...]:
    """The outputs of the body; one alone is the region's result itself."""
    if body.params or body.states:
        raise GraphError("attribute body: a region's body has inputs, no params and no states")
    if not body.outputs:
        raise GraphError("attribute body: the body has no outputs")
    if len(body.inputs) != len(externals):
        raise GraphError(f"takes {len(body.inputs)} operands, got {len(externals)}")
    for i, (leaf, shape) in enumerate(zip(body.inputs, externals)):
        if leaf.shape != shape:
            raise GraphError(f"operand {i} is {shape}, but the body's input is {leaf.shape}")
    shapes = tuple(o.shape for o in body.outputs)
    return shapes if len(shapes) != 1 else shapes[0]


def _elementwise_shape(*externals: Shape, body: Any) -> Shape | tuple[Shape, ...]:
    for node in body.order():
        if node.op not in ("input", "constant") and node.decl.kind is not Kind.ELEMENTWISE:
            raise GraphError(f"attribute body: {node.label} is not elementwise. Use a region")
    return _region_shape(*externals, body=body)


def _region_flops(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> DimLike:
    return graph_flops(attrs["body"])


def _region_work(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> Work:
    return graph_work(attrs["body"])


def _evaluated(externals: Sequence[Array], body: Any) -> Any:
    """The body, node by node, so that it rounds as it would outside of a region."""
    made = body.evaluate({n.attrs["name"]: x for n, x in zip(body.inputs, externals)})
    return tuple(made) if len(made) > 1 else made[0]


def _inlined(*externals: Any, body: Any) -> Any:
    if not isinstance(externals[0], NodeBase):
        return _evaluated(externals, body)
    made = externals[0].graph.inline(body, externals)
    return tuple(made) if len(made) > 1 else made[0]


_TYPED = "its body states the sizes; a body over named dims is the symbolic form"


@op(
    "_[...]+ -> _[...]", kind=Kind.REGION, shape=_elementwise_shape, flops=_region_flops,
    cost=_region_work, why_static=_TYPED,
    is_exact=True,
)  # fmt: skip
def elementwise_region(*externals: Array, body: Body) -> Any:
    """A graph of elementwise ops and constants that runs as one kernel: its inputs are the
    operands, by position, and broadcast as they do op by op."""
    return _evaluated(externals, body)


@op(
    "_[...]+ -> _[...]",
    kind=Kind.REGION,
    shape=_region_shape,
    flops=_region_flops,
    cost=_region_work,
    why_static=_TYPED,
    is_exact=True,
    is_fused=True,
)
def region(*externals: Array, body: Body) -> Any:
    """Any graph that runs as one kernel: its inputs are the operands, by position."""
    return _evaluated(externals, body)


elementwise_region.lowering(_inlined)
region.lowering(_inlined)


# -- drawing --------------------------------------------------------------------------------------

Drawn = tuple[list[Spec], dict[str, Any]]


@fused_matmul_bias_act.sample
def _(draw: Draw) -> Drawn:
    batch, m, k, n = draw.dims(0, 2), draw.size(), draw.size(), draw.size()
    dtype, activation = draw.dtype("f"), draw.choice(_ACTIVATIONS)
    bias = draw.choice(((n,), (1,), (m, n), (*batch, m, n), ()))
    dims = ((*batch, m, k), (k, n), bias)
    return [Spec(d, dtype, "plain") for d in dims], {"activation": activation}


@fused_conv_bias_act.sample
def _(draw: Draw) -> Drawn:
    specs, attrs = table.lookup("conv").cases(draw)  # pyright: ignore[reportOptionalCall]
    x, w = specs[:2]
    bias = Spec(w.dims[:1], w.dtype, "plain")
    known = _ACTIVATIONS if w.dtype.is_float else (None, "relu", "abs")
    return [x, w, bias], {**attrs, "activation": draw.choice(known)}


@fused_swiglu.sample
def _(draw: Draw) -> Drawn:
    dims = (*draw.dims(0, 3), 2 * draw.size())
    return [Spec(dims, draw.dtype("f"))], {"gate_first": draw.coin()}


def _draw_residual(draw: Draw) -> Drawn:
    (x, *affine), attrs = table.lookup("layer_norm").cases(draw)  # pyright: ignore[reportOptionalCall]
    return [x, x, *affine], attrs


fused_residual_ln.sample(_draw_residual)
fused_residual_rms_norm.sample(_draw_residual)


@fused_attention_block.sample
def _(draw: Draw) -> Drawn:
    dtype, kv = draw.dtype("f"), draw.integer(1, 2)
    heads, depth = kv * draw.integer(1, 2), 2 * draw.integer(1, 2)
    b, s, e, o = draw.integer(0, 2), draw.size(), draw.size(), draw.size()
    width = (heads + 2 * kv) * depth
    has_bias, has_rope = draw.coin(), draw.coin()
    kind = draw.choice(("none", "causal", "sliding_window", "custom", "bias"))
    dims: list[tuple[int, ...]] = [(b, s, e), (e, width), (heads * depth, o)]
    dims += [(width,), (o,)] if has_bias else []
    dims += [(s, depth // 2)] * 2 if has_rope else []
    dims += {"custom": [(b, s)], "bias": [(b, heads, s, s)]}.get(kind, [])
    attrs = {"num_heads": heads, "kv_heads": kv, "head_dim": depth, "mask_kind": kind}
    attrs |= {"has_bias": has_bias, "has_rope": has_rope, "interleaved": draw.coin()}
    attrs |= {"window": draw.integer(0, 2) if kind == "sliding_window" else None}
    return [Spec(d, dtype, "plain") for d in dims], attrs


def _draw_region(finish: Callable[[Draw, Any], Any]) -> Callable[[Draw], Drawn]:
    """A body of a few random elementwise steps, and what `finish` makes of the last."""

    def sample(draw: Draw) -> Drawn:
        run, dtype = draw.dims(0, 4), draw.dtype("f")
        cut = [draw.integer(0, len(run)) for _ in range(draw.integer(0, 2))]
        dims = [run, *(tuple(1 if draw.coin(0.3) else d for d in run[c:]) for c in cut)]
        body = empty_graph("region")
        nodes = [body.input(f"x{i}", Shape(d, dtype)) for i, d in enumerate(dims)]
        for _ in range(draw.integer(1, 5)):
            nodes.append(_step(draw, nodes))
        outputs = [finish(draw, nodes[-1]), draw.choice(nodes)]
        body.set_outputs(outputs[: draw.integer(1, 2)])
        return [Spec(d, dtype) for d in dims], {"body": body}

    return sample


def _step(draw: Draw, nodes: Sequence[Any]) -> Any:
    """One more value of some that are there."""
    x, y = draw.choice(nodes), draw.choice(nodes)
    name = draw.choice(("add", "sub", "mul", "maximum", "relu", "abs", "silu", "scale", "where"))
    if name == "where":
        return ops.where(ops.less(x, y), x, ops.add(y, 1.0))
    if name == "scale":
        return ops.mul(x, draw.choice((2.0, 0.5)))
    found = table.lookup(name)
    return found(x, y) if len(found.signature.operands) == 2 else found(x)


def _finish_rows(draw: Draw, x: Any) -> Any:
    """A row op, a reduction or a product at the end, where the rank allows one."""
    if x.rank == 0:
        return ops.cast(x, to=DType.F64)
    if x.rank >= 2 and draw.coin(0.3):
        return ops.matmul(x, ops.transpose(x, perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2)))
    made = ops.softmax(x) if draw.coin() else ops.sum(x, axes=(0,), keepdims=draw.coin())
    return ops.neg(made)


elementwise_region.sample(_draw_region(lambda draw, x: x))
region.sample(_draw_region(_finish_rows))
