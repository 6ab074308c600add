"""Grouped products for mixtures of experts, and low-rank adapters (LoRA).

Rows choose their weights by index, so that only the chosen ones are multiplied with.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import product
from rlx.core.errors import Error, GraphError
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.fused import activated
from rlx.ops.op import Array, Kind, op

Scoring = Literal["softmax", "sigmoid"]


@op("t[m k], t[e k n], i[m] -> t[m n]", kind=Kind.CONTRACTION, flops="2*m*k*n")
def grouped_matmul(x: Array, w: Array, experts: Array) -> Array:
    """Row i of x times the matrix of its expert, w[experts[i]]. An expert that does not exist is
    an error."""
    made = np.zeros((x.shape[0], w.shape[2]), x.dtype)
    for expert in np.unique(experts):
        if not 0 <= expert < w.shape[0]:
            raise Error(f"grouped_matmul: there is no expert {expert} among {w.shape[0]}")
        rows = experts == expert
        made[rows] = np.matmul(x[rows], w[int(expert)])
    return made


@grouped_matmul.lowering
def _(x: Any, w: Any, experts: Any) -> Any:
    """One product per row: right, though it copies a matrix for every row."""
    rows = ops.matmul(ops.expand_dims(x, axes=(1,)), ops.gather(w, experts, axis=0))
    return ops.squeeze(rows, axes=(1,))


@composed("t[...], t[k n], t[k r], t[r n] -> t[...]", kind=Kind.CONTRACTION)
def lora_matmul(x: Any, w: Any, a: Any, b: Any, *, scale: float = 1.0) -> Any:
    """x · w + scale · (x · a) · b: a weight with a low-rank addition that is not merged into it.
    Integers take a whole scale."""
    if dims_of(a)[1:] != dims_of(b)[:1]:
        raise GraphError("operands 2 and 3 have different ranks")
    addition = ops.matmul(ops.matmul(x, a), b)
    return ops.add(ops.matmul(x, w), ops.mul(addition, _number(scale, addition)))


def _number(value: float, beside: Any) -> Any:
    """`value` in the dtype of what it multiplies."""
    dtype = dtype_of(beside)
    if dtype.is_integer and value % 1 != 0:
        raise GraphError(f"attribute scale: {value} is no {dtype}")
    return np.asarray(value).astype(dtype.numpy)


# -- mixtures -------------------------------------------------------------------------------------


@composed("f[*s e] -> f[...], i64[...]", kind=Kind.SPECIAL)
def moe_route(
    logits: Any,
    *,
    top_k: int,
    scoring: Scoring = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
) -> tuple[Any, Any]:
    """The `top_k` experts of each row and their weights, the greatest first, equals by index.
    Scores are the softmax over all experts, or each expert's sigmoid; `normalise` divides the
    chosen ones by their sum, and `scale` multiplies them."""
    score = ops.softmax(logits, axis=-1) if scoring == "softmax" else ops.sigmoid(logits)
    weights, experts = ops.top_k(score, k=top_k, axis=-1)
    if normalise:
        last = len(dims_of(weights)) - 1
        weights = ops.div(weights, ops.sum(weights, axes=(last,), keepdims=True))
    return (weights if scale == 1.0 else ops.mul(weights, scale)), experts


@composed(
    "f[*s d], f[d e], f[e d h], f[e d h], f[e h d] -> f[...]", kind=Kind.CONTRACTION, jumps=True
)
def moe_ffn(
    x: Any,
    router: Any,
    gate: Any,
    up: Any,
    down: Any,
    *,
    top_k: int,
    scoring: Scoring = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    activation: str = "silu",
) -> Any:
    """A feed-forward layer of experts: each row goes to the `top_k` that the router chooses, each
    gives (activation(row · gate) · (row · up)) · down, and their weighted sum is the result."""
    *lead, width = dims_of(x)
    rows = product(lead)
    weights, experts = ops.moe_route(
        ops.matmul(x, router), top_k=top_k, scoring=scoring, normalise=normalise, scale=scale
    )
    many = ops.expand(ops.reshape(x, dims=(rows, 1, width)), dims=(rows, top_k, width))
    given = ops.reshape(many, dims=(rows * top_k, width))
    chosen = ops.reshape(experts, dims=(rows * top_k,))
    hidden = ops.mul(
        activated(ops.grouped_matmul(given, gate, chosen), activation),
        ops.grouped_matmul(given, up, chosen),
    )
    made = ops.reshape(ops.grouped_matmul(hidden, down, chosen), dims=(rows, top_k, width))
    parts = ops.mul(made, ops.reshape(weights, dims=(rows, top_k, 1)))
    return ops.reshape(ops.sum(parts, axes=(1,)), dims=(*lead, width))


# -- drawing --------------------------------------------------------------------------------------


@grouped_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    m, k, n, experts, dtype = draw.size(), draw.size(), draw.size(), draw.size(1), draw.dtype("t")
    return [
        Spec((m, k), dtype, "plain"),
        Spec((experts, k, n), dtype, "plain"),
        Spec((m,), draw.dtype("i"), f"index:{experts}"),
    ], {}


@lora_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    k, n, r, dtype = draw.size(), draw.size(), draw.integer(0, 3), draw.dtype("t")
    dims = ((*draw.dims(0, 2), k), (k, n), (k, r), (r, n))
    scale = float(draw.integer(-2, 3)) if dtype.is_integer else draw.integer(-8, 8) / 4
    unsigned = dtype.is_integer and not dtype.is_signed
    return [Spec(d, dtype, "plain") for d in dims], {"scale": abs(scale) if unsigned else scale}


def _routing(draw: Draw, experts: int) -> dict[str, Any]:
    return {
        "top_k": draw.integer(1, experts),
        "scoring": draw.choice(("softmax", "sigmoid")),
        "normalise": draw.coin(),
        "scale": draw.choice((1.0, 2.5)),
    }


@moe_route.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    experts = draw.size(1)
    return [Spec((*draw.dims(0, 2), experts), draw.dtype("f"))], _routing(draw, experts)


@moe_ffn.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    d, h, e, dtype = draw.size(), draw.size(), draw.integer(1, 4), draw.dtype("f")
    dims = ((*draw.dims(0, 2), d), (d, e), (e, d, h), (e, d, h), (e, h, d))
    attrs = {**_routing(draw, e), "activation": draw.choice(("silu", "gelu", "relu"))}
    return [Spec(s, dtype, "plain") for s in dims], attrs
