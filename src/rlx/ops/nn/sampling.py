"""Token sampling from logits: temperature, top-k, top-p and min-p filters, multinomial.

Each op is defined by its decomposition, and its noise comes from a counter, so that a seed gives
the same tokens wherever it runs. What is left out becomes -inf; of equally likely tokens at the
edge all stay. Half floats are computed in f32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.ops.compose import composed, dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Kind

ROWS = "f[*b n] -> f[*b n]"
LAST = Axis(-1)


def _wide(x: Any) -> Any:
    return ops.cast(x, to=dtype_of(x).compute)


def _last(x: Any) -> int:
    return len(dims_of(x)) - 1


def _without(x: Any, is_out: Any) -> Any:
    return ops.where(is_out, -np.inf, x)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise GraphError(f"attribute {name}: {value} is not between {low} and {high}")


# -- what is left out -----------------------------------------------------------------------------


@composed(ROWS, kind=Kind.SPECIAL, jumps=True, draw="plain")
def top_k_filter(logits: Any, *, k: int) -> Any:
    """All but the `k` greatest logits of a row left out, and none where it has no more than k."""
    _check("k", k, 1, math.inf)
    n = dims_of(logits)[-1]
    if not isinstance(n, Dim) and n <= k:
        return logits
    best, _ = ops.top_k(logits, k=k, axis=-1)
    least = ops.narrow(best, axis=_last(logits), start=k - 1, length=1)
    return _without(logits, ops.less(logits, least))


@composed(ROWS, kind=Kind.SPECIAL, jumps=True, draw="plain")
def top_p_filter(logits: Any, *, p: float) -> Any:
    """All left out but the likeliest tokens that together have a probability of `p`; the
    likeliest always stays."""
    _check("p", p, 0.0, 1.0)
    if p == 1.0:
        return logits
    axis = _last(logits)
    ranked = ops.sort(_wide(logits), axis=axis, descending=True)
    before = ops.cumsum(ops.softmax(ranked, axis=axis), axis=axis, exclusive=True)
    place = nullary(logits, "iota", dims=dims_of(logits), axis=axis)
    stays = ops.logical_or(ops.less(before, p), ops.equal(place, 0))
    least = ops.min(ops.where(stays, ranked, np.inf), axes=(axis,), keepdims=True, empty_ok=True)
    return _without(logits, ops.less(_wide(logits), least))


@composed(ROWS, kind=Kind.SPECIAL, jumps=True, draw="plain")
def min_p_filter(logits: Any, *, p: float) -> Any:
    """All left out that are less likely than `p` times the likeliest."""
    _check("p", p, 0.0, 1.0)
    if p == 0.0:
        return logits
    wide = _wide(logits)
    best = ops.max(wide, axes=(_last(logits),), keepdims=True, empty_ok=True)
    return _without(logits, ops.less(wide, ops.add(best, math.log(p))))


@composed("f[*b n], i[*b t] -> f[*b n]", kind=Kind.SPECIAL, draw="plain")
def repetition_penalty(logits: Any, ids: Any, *, penalty: float) -> Any:
    """The logits of tokens among `ids` made smaller: those above 0 divided by `penalty`, those
    below multiplied by it. An id out of range, such as -1, is none."""
    _check("penalty", penalty, 1e-6, 1e6)
    axis = _last(logits)
    n = dims_of(logits)[-1]
    if isinstance(n, Dim):
        raise GraphError(f"the number of tokens is {n}, but must be known. Bind it")
    hits = ops.one_hot(ids, depth=n, to=DType.BOOL)
    seen = ops.any(hits, axes=(axis,))
    wide = _wide(logits)
    factor = ops.where(ops.less(wide, 0.0), ops.mul(wide, penalty), ops.div(wide, penalty))
    return ops.where(seen, ops.cast(factor, to=dtype_of(logits)), logits)


# -- which is taken -------------------------------------------------------------------------------


def _gumbel(counter: Any, dims: tuple[DimLike, ...], seed: int, stream: int, dtype: DType) -> Any:
    """-log(-log(1 - w)) with w a word over 2^64: as a float it is fine where it is small, which
    is where the greatest noise comes from. Neither end is reached, so all of it is finite."""
    bits = ops.random_bits(counter, dims=dims, seed=seed, stream=stream)
    most = 1.0 - (2.0**-53 if dtype is DType.F64 else 2.0**-24)
    w = ops.clamp(ops.mul(ops.cast(bits, to=dtype), 2.0**-64), min=2.0**-65, max=most)
    return ops.neg(ops.log(ops.neg(ops.log1p(ops.neg(w)))))


@composed("f[*b n], i[] -> i64[*b]", kind=Kind.SPECIAL, is_epilogue=True, draw="plain")
def sample(
    logits: Any,
    counter: Any,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stream: int = 0,
) -> Any:
    """A token per row: logits are divided by `temperature`, filtered by `top_k` (0: not),
    `top_p` and `min_p`, in this order, and one of the rest is drawn by its probability, as the
    greatest sum of logit and Gumbel noise from a word per logit. Temperature 0 takes the
    greatest logit, the first of equals."""
    _check("temperature", temperature, 0.0, math.inf)
    _check("top_k", top_k, 0, math.inf)
    x = _wide(logits)
    if temperature == 0.0:
        return ops.argmax(x, axis=-1)
    x = ops.div(x, temperature)
    x = x if top_k == 0 else ops.top_k_filter(x, k=top_k)
    x = ops.min_p_filter(ops.top_p_filter(x, p=top_p), p=min_p)
    noise = _gumbel(counter, dims_of(x), seed, stream, dtype_of(x))
    return ops.argmax(ops.add(x, noise), axis=-1)


@composed("f[*b n], i[] -> i64[*b count]", kind=Kind.SPECIAL, is_epilogue=True, draw="plain")
def multinomial(logits: Any, counter: Any, *, count: int, seed: int = 0, stream: int = 0) -> Any:
    """`count` tokens per row, each drawn by its probability, whether drawn before or not; ONNX's
    Multinomial of log-probabilities, which need not add up to 1."""
    _check("count", count, 0, math.inf)
    axis, dims = _last(logits), dims_of(logits)
    rows = ops.expand_dims(_wide(logits), axes=(axis,))
    noise = _gumbel(counter, (*dims[:-1], count, dims[-1]), seed, stream, dtype_of(rows))
    return ops.argmax(ops.add(rows, noise), axis=-1)


@composed("f[*s n] -> f[*s n]", kind=Kind.ROW, jumps=True)
def hard_max(x: Any, *, axis: Axis = LAST) -> Any:
    """1 at the greatest element along `axis`, the first of equals, else 0."""
    place = nullary(x, "iota", dims=dims_of(x), axis=axis)
    return ops.cast(ops.equal(place, ops.argmax(x, axis=axis, keepdims=True)), to=dtype_of(x))


# -- drawing --------------------------------------------------------------------------------------


def _draw_rows(draw: Draw, least: int = 0) -> Spec:
    return Spec((*draw.dims(0, 3), draw.size(least)), draw.dtype("f"), "plain")


def _draw_p(draw: Draw) -> float:
    return draw.choice((0.0, 0.05, 0.5, 0.9, 1.0))


def _draw_noise(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    counter = Spec((), draw.dtype("i"))
    return [_draw_rows(draw, 1), counter], {
        "seed": draw.integer(0, 99),
        "stream": draw.integer(0, 9),
    }


top_k_filter.sample(lambda draw: ([_draw_rows(draw)], {"k": draw.integer(1, 5)}))
top_p_filter.sample(lambda draw: ([_draw_rows(draw)], {"p": _draw_p(draw)}))
min_p_filter.sample(lambda draw: ([_draw_rows(draw)], {"p": _draw_p(draw)}))


@repetition_penalty.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    logits = _draw_rows(draw, 1)
    dims = (*logits.dims[:-1], draw.size())
    ids = Spec(dims, draw.dtype("i"), f"index:{logits.dims[-1] + 1}")
    return [logits, ids], {"penalty": draw.choice((1.0, 1.3, 0.5))}


@sample.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    specs, attrs = _draw_noise(draw)
    attrs |= {"temperature": draw.choice((0.0, 0.5, 1.0, 2.0)), "top_k": draw.integer(0, 5)}
    return specs, attrs | {"top_p": _draw_p(draw), "min_p": draw.choice((0.0, 0.1))}


@multinomial.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    specs, attrs = _draw_noise(draw)
    return specs, {**attrs, "count": draw.integer(0, 4)}


@hard_max.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(1, 4, smallest=1)
    return [Spec(dims, draw.dtype("f"))], {"axis": draw.integer(-len(dims), len(dims) - 1)}
