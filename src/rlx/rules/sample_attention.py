"""Attention in the spellings of front ends and exporters: what proofs of its rule draw."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw


def sample_attention(draw: Draw) -> Node:
    """softmax(q · kᵀ) · v. f16 and bf16 would drown the comparison in rounding."""
    graph, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    b, kv, each, n, m, d, e = (draw.integer(1, 3) for _ in range(7))
    m, heads = n + m, kv * each
    q, k, v = (
        graph.input(name, Shape(dims, dtype))
        for name, dims in (("q", (b, heads, n, d)), ("k", (b, kv, m, d)), ("v", (b, kv, m, e)))
    )
    is_merged = draw.coin(0.3)
    if kv == 1 and draw.coin(0.3):  # one head of keys and values, which all others share
        flat = ops.transpose(ops.reshape(k, dims=(b, m, d)), perm=(0, 2, 1))
        s = ops.matmul(q, ops.reshape(flat, dims=(b, 1, d, m)))
        return ops.matmul(guarded(draw, masked(draw, s)), v)
    if each > 1 and draw.coin(0.3):  # the heads of a group are an axis of their own
        q = ops.reshape(q, dims=(b, kv, each, n, d))
        k, v = (ops.expand_dims(x, axes=(2,)) for x in (k, v))
    else:
        k, v = (repeated(x, each) for x in (k, v))
        q, k, v = (_merged(x) if is_merged else x for x in (q, k, v))
    s = _product(draw, q, k)
    s = _scaled(draw, s)
    shown = ops.reshape(s, dims=(b, heads, n, m))
    s = ops.reshape(masked(draw, shown), dims=s.shape.dims) if draw.coin(0.8) else s
    return ops.matmul(guarded(draw, s), v)


def _product(draw: Draw, q: Node, k: Node) -> Node:
    scale = draw.choice((0.5, max(int(q.shape.dims[-1]), 1) ** -0.5))
    k_t = transposed(draw, ops.mul(k, scale) if draw.coin(0.2) else k)
    k_t = ops.mul(k_t, scale) if draw.coin() else k_t
    return ops.matmul(ops.mul(q, scale) if draw.coin() else q, k_t)


def transposed(draw: Draw, k: Node) -> Node:
    """kᵀ, perhaps by way of merged batch and heads, as exporters write it."""
    *lead, m, d = k.shape.static_dims
    swapped = (*range(len(lead)), len(lead) + 1, len(lead))
    if draw.coin():
        return ops.transpose(k, perm=swapped)
    flat = ops.reshape(k, dims=(int(np.prod(lead)), m, d))
    return ops.reshape(ops.transpose(flat, perm=(0, 2, 1)), dims=(*lead, d, m))


def repeated(x: Node, each: int) -> Node:
    """Heads, each of them several times in a row."""
    if each == 1:
        return x
    b, h, n, d = x.shape.dims
    wide = ops.expand(ops.reshape(x, dims=(b, h, 1, n, d)), dims=(b, h, each, n, d))
    return ops.reshape(wide, dims=(b, h * each, n, d))


def _merged(x: Node) -> Node:
    b, h, n, d = x.shape.dims
    return ops.reshape(x, dims=(b * h, n, d))


def _scaled(draw: Draw, s: Node) -> Node:
    s = ops.mul(s, 0.5) if draw.coin() else ops.div(s, 1.5)
    if draw.coin(0.2):
        of_row = s.graph.input("row", Shape((*s.shape.dims[:-1], 1), s.dtype))
        return ops.mul(s, of_row)
    return ops.mul(ops.tanh(ops.div(s, 5.0)), 5.0) if draw.coin(0.3) else s


def masked(draw: Draw, s: Node) -> Node:
    """Scores of rank 4 under a mask or two."""
    b, _, n, m = s.shape.static_dims
    past = np.tri(n, m, m - n, dtype=bool)
    least = float(ml_dtypes.finfo(s.dtype.numpy).min)
    fill = draw.choice((-np.inf, least, -1e9))
    see = s.graph.input(draw.choice(("see", "look")), Shape((b, 1, n, m), DType.BOOL))
    penalty = ops.where(see, np.zeros((), s.dtype.numpy), np.asarray(least, s.dtype.numpy))
    forms = (
        lambda: ops.add(s, 0.0),
        lambda: ops.add(s, s.graph.input("mask", Shape((b, 1, n, m), s.dtype))),
        lambda: ops.sub(s, s.graph.input("mask", Shape((m,), s.dtype))),
        lambda: ops.add(s, np.where(past, 0.0, fill).astype(s.dtype.numpy)),
        lambda: ops.where(past, s, fill),
        lambda: ops.where(~past, fill, s),
        lambda: ops.where(np.arange(m) < max(1, m - 1), s, fill),
        lambda: ops.where(see, s, fill),
        lambda: ops.add(s, penalty),
        lambda: masked(draw, ops.add(s, s.graph.input("bias", Shape((1, 1, n, m), s.dtype)))),
        lambda: ops.add(ops.where(see, s, least), penalty),
    )
    return draw.choice(forms)()


def guarded(draw: Draw, s: Node) -> Node:
    """The softmax of scores, perhaps with 0 where a query sees no key."""
    p = ops.softmax(s, axis=-1)
    is_blind = ops.all(ops.equal(s, -np.inf), axes=(-1,), keepdims=True)
    forms = (
        lambda: p,
        lambda: ops.where(ops.is_nan(p), 0.0, p),
        lambda: ops.where(ops.logical_not(ops.is_nan(p)), p, 0.0),
        lambda: ops.where(ops.not_equal(p, p), 0.0, p),
        lambda: ops.where(ops.equal(p, p), p, 0.0),
        lambda: ops.where(is_blind, 0.0, p),
    )
    return draw.choice(forms)()
