"""State-space and linear-attention recurrences: selective scan, Mamba-2, gated delta rule.

Each takes the state before the first step (zeros, if it is not given) and gives that after the
last: a sequence may be cut anywhere, down to single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, exact_div
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.nn.recurrent import looped, scanned
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]
Rule = Literal["linear", "gated", "delta", "gated_delta"]
RULES: tuple[Rule, ...] = ("linear", "gated", "delta", "gated_delta")

# -- shared ---------------------------------------------------------------------------------------


def _check(index: int, given: Shape, *wanted: Sequence[DimLike]) -> None:
    if given.dims not in [tuple(w) for w in wanted]:
        shown = " or ".join(f"[{', '.join(map(str, w))}]" for w in wanted)
        raise GraphError(f"operand {index} is {given}, expected {shown}")


def _zeros(x: Any, dims: Sequence[DimLike]) -> Any:
    one = nullary(x, "constant", value=np.zeros((1,) * len(dims), dtype_of(x).numpy))
    return ops.expand(one, dims=tuple(dims))


def _swapped(x: Any) -> Any:
    """[batch, length, …] as [length, batch, …], and back."""
    return ops.transpose(x, perm=(1, 0, *range(2, len(dims_of(x)))))


def _run(
    loop: Callable[..., Any], step: Callable[..., Any], state: Any, xs: Sequence[Any],
    whole: Sequence[Any], row: Sequence[DimLike],
) -> tuple[Any, Any]:  # fmt: skip
    """Outputs [batch, length, …] and the last state of `state, y = step(state, slices, *whole)`,
    with the steps run by `loop`."""

    def body(carry: Any, slices: Any, *fixed: Any) -> Any:
        new, y = step(carry[0], slices, *fixed)
        return (new,), y

    (last,), ys = loop(body, (state,), tuple(map(_swapped, xs)), tuple(whole), row=row)
    return _swapped(ys), last


def _at(x: Any, *axes: int) -> Any:
    """x with axes of size 1 at these places of the result."""
    return ops.expand_dims(x, axes=axes)


def _summed(x: Any, axis: int) -> Any:
    return ops.sum(x, axes=(axis,))


# -- selective scan -------------------------------------------------------------------------------


def _selective_shape(
    x: Shape, delta: Shape, a: Shape, b: Shape, c: Shape, *state: Shape
) -> tuple[Shape, Shape]:
    wanted = (x.dims[0], *a.dims)
    for given in state:
        _check(5, given, wanted)
    return x, x.with_dims(wanted)


def _selective(loop: Any, x: Any, delta: Any, a: Any, b: Any, c: Any, state: Any) -> Any:
    batch, _, width = dims_of(x)
    first = _zeros(x, (batch, *dims_of(a))) if state is None else state

    def step(h: Any, slices: Any, rates: Any) -> tuple[Any, Any]:
        now, time, into, out = slices
        decay = ops.exp(ops.mul(_at(time, 2), rates))
        new = ops.add(ops.mul(h, decay), ops.mul(_at(ops.mul(time, now), 2), _at(into, 1)))
        return new, _summed(ops.mul(new, _at(out, 1)), 2)

    return _run(loop, step, first, (x, delta, b, c), (a,), (batch, width))


@op(
    "f[b s h], f[b s h], f[h n], f[b s n], f[b s n], f[...]? -> f[b s h], f[b h n]",
    kind=Kind.SPECIAL,
    shape=_selective_shape,
    flops="7*b*s*h*n",
)
def selective_scan(
    x: Array, delta: Array, a: Array, b: Array, c: Array, state: Array | None = None
) -> tuple[Array, Array]:
    """Mamba's recurrence: h ← exp(Δ·A)·h + Δ·x·B and y = h·C at each step, for x and Δ [batch,
    length, width], A [width, n], B and C [batch, length, n]. Gives y and the last h [batch, width,
    n]."""
    return _selective(looped, x, delta, a, b, c, state)


@selective_scan.lowering
def _(x: Any, delta: Any, a: Any, b: Any, c: Any, state: Any = None) -> tuple[Any, Any]:
    return _selective(scanned, x, delta, a, b, c, state)


@selective_scan.sample
def _(draw: Draw) -> Drawn:
    b, s, h, n, dtype = draw.size(), draw.size(), draw.size(), draw.size(), draw.dtype("f")
    specs = [Spec((b, s, h), dtype, "plain"), Spec((b, s, h), dtype, "unit"),
             Spec((h, n), dtype, "unit"), *[Spec((b, s, n), dtype, "plain")] * 2]  # fmt: skip
    return [*specs, *[Spec((b, h, n), dtype, "plain")] * draw.coin()], {}


# -- state space duality --------------------------------------------------------------------------


def _mamba2_shape(
    x: Shape, dt: Shape, a: Shape, b: Shape, c: Shape, *state: Shape
) -> tuple[Shape, Shape]:
    batch, _, heads, width = x.dims
    groups, n = b.dims[2:]
    if isinstance(groups, Dim) or groups < 1 or exact_div(heads, groups) is None:
        raise GraphError(f"operand 3 is {b}: {heads} heads do not divide into {groups} groups")
    wanted = (batch, heads, width, n)
    for given in state:
        _check(5, given, wanted)
    return x, x.with_dims(wanted)


def _mamba2(loop: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any) -> Any:
    batch, _, heads, width = dims_of(x)
    groups, n = dims_of(b)[2:]
    first = _zeros(x, (batch, heads, width, n)) if state is None else state

    def by_head(v: Any) -> Any:
        """[batch, heads, 1, n] of what the heads of a group share."""
        each = (batch, groups, heads // groups, n)
        return ops.reshape(ops.expand(_at(v, 2), dims=each), dims=(batch, heads, 1, n))

    def step(h: Any, slices: Any, rates: Any) -> tuple[Any, Any]:
        now, time, into, out = slices
        decay = _at(ops.exp(ops.mul(time, rates)), 2, 3)
        added = ops.mul(_at(ops.mul(_at(time, 2), now), 3), by_head(into))
        new = ops.add(ops.mul(h, decay), added)
        return new, _summed(ops.mul(new, by_head(out)), 3)

    return _run(loop, step, first, (x, dt, b, c), (a,), (batch, heads, width))


@op(
    "f[b s h p], f[b s h], f[h], f[b s g n], f[b s g n], f[...]? -> f[b s h p], f[b h p n]",
    kind=Kind.SPECIAL,
    shape=_mamba2_shape,
    flops="6*b*s*h*p*n",
)
def mamba2(
    x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array | None = None
) -> tuple[Array, Array]:
    """Mamba-2's recurrence: S ← exp(dt·A)·S + dt·x⊗B and y = S·C at each step and head, for x
    [batch, length, heads, width], dt [batch, length, heads], one A per head, and B and C [batch,
    length, groups, n], which the heads of a group share. Gives y and the last S [batch, heads,
    width, n]."""
    return _mamba2(looped, x, dt, a, b, c, state)


@mamba2.lowering
def _(x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any = None) -> tuple[Any, Any]:
    return _mamba2(scanned, x, dt, a, b, c, state)


@mamba2.sample
def _(draw: Draw) -> Drawn:
    b, s, p, n, g = draw.size(), draw.size(), draw.size(), draw.size(), draw.integer(1, 2)
    h, dtype = g * draw.integer(0, 2), draw.dtype("f")
    specs = [Spec((b, s, h, p), dtype, "plain"), Spec((b, s, h), dtype, "unit"),
             Spec((h,), dtype, "unit"), *[Spec((b, s, g, n), dtype, "plain")] * 2]  # fmt: skip
    return [*specs, *[Spec((b, h, p, n), dtype, "plain")] * draw.coin()], {}


# -- the gated delta rule -------------------------------------------------------------------------


def _delta_shape(
    q: Shape, k: Shape, v: Shape, g: Shape, beta: Shape, *state: Shape, scale: float | None
) -> tuple[Shape, Shape]:
    batch, _, heads, n = q.dims
    m, lead = v.dims[3], q.dims[:3]
    if scale is None and (isinstance(n, Dim) or n < 1):
        raise GraphError(f"operand 0 is {q}: without a scale, its last dim must be known and not 0")
    _check(3, g, lead, (*lead, n))
    _check(4, beta, lead, (*lead, m))
    for given in state:
        _check(5, given, (batch, heads, n, m))
    return v, v.with_dims((batch, heads, n, m))


def _delta(
    loop: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: float | None
) -> Any:
    """Runs of query heads share the head of a key; without `g` nothing fades, and without `beta`
    values are added as they are."""
    (batch, _, heads, n), m = dims_of(k), dims_of(v)[3]
    queries = dims_of(q)[2]
    first = _zeros(q, (batch, heads, n, m)) if state is None else state
    factor = n**-0.5 if scale is None else scale  # pyright: ignore[reportOperatorIssue]
    given = [x for x in (g, beta) if x is not None]
    wide = [_at(x, 3) if len(dims_of(x)) == 3 else x for x in given]

    def step(s: Any, slices: Any) -> tuple[Any, Any]:
        query, key, value, *rest = slices
        kept = s if g is None else ops.mul(s, _at(ops.exp(rest[0]), 3))
        change = value
        if beta is not None:
            known = _summed(ops.mul(kept, _at(key, 3)), 2)
            change = ops.mul(ops.sub(value, known), rest[-1])
        new = ops.add(kept, ops.mul(_at(key, 3), _at(change, 2)))
        return new, ops.mul(read(new, query), factor)

    def read(s: Any, query: Any) -> Any:
        if queries == heads:
            return _summed(ops.mul(s, _at(query, 3)), 2)
        runs = ops.reshape(query, dims=(batch, heads, queries // heads, n))
        return ops.reshape(ops.matmul(runs, s), dims=(batch, queries, m))

    return _run(loop, step, first, (q, k, v, *wide), (), (batch, queries, m))


@op(
    "f[b s h n], f[b s h n], f[b s h m], f[...], f[...], f[...]? -> f[b s h m], f[b h n m]",
    kind=Kind.SPECIAL,
    shape=_delta_shape,
    flops="8*b*s*h*n*m",
)
def gated_delta_net(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array | None = None,
    *,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """The gated delta rule at each step and head: S ← exp(g)·S, d = (v - Sᵀk)·β, S ← S + k⊗d and
    o = Sᵀq·scale, with 1/√n if no scale is given. q and k are [batch, length, heads, n], v is
    [batch, length, heads, m]; g and β have one number per head, or g one per entry of k and β one
    per entry of v. Gives o and the last S [batch, heads, n, m]."""
    return _delta(looped, q, k, v, g, beta, state, scale)


@gated_delta_net.lowering
def _(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None, *, scale: float | None
) -> tuple[Any, Any]:
    return _delta(scanned, q, k, v, g, beta, state, scale)


@gated_delta_net.sample
def _(draw: Draw) -> Drawn:
    lead, dtype = (draw.size(), draw.size(), draw.size()), draw.dtype("f")
    n, m = draw.integer(1, 4), draw.size()
    gate, strength = ((*lead, d) if draw.coin(0.3) else lead for d in (n, m))
    dims = ((*lead, n), (*lead, n), (*lead, m), gate, strength, (lead[0], lead[2], n, m))
    domains = ("unit", "unit", "plain", "unit", "unit", "plain")
    specs = [Spec(d, dtype, domain) for d, domain in zip(dims, domains)]
    return specs[: draw.integer(5, 6)], {"scale": draw.choice((None, 0.5))}


# -- attention that keeps a sum of its past -------------------------------------------------------


def _linear_extras(rule: Rule, extras: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The decay, the strength and the first state; None for what there is not."""
    rest = list(extras)
    wants = (rule.startswith("gated"), rule.endswith("delta"))
    if not sum(wants) <= len(rest) <= sum(wants) + 1:
        said = " and ".join(n for n, w in zip(("decay", "beta"), wants) if w) or "neither"
        raise GraphError(
            f"rule {rule!r} takes {said} of decay and beta, and perhaps a state, after q, k and v, "
            f"but there are {len(rest)} operands"
        )
    decay, beta = (rest.pop(0) if w else None for w in wants)
    return decay, beta, rest[0] if rest else None


def _linear_shape(
    q: Shape, k: Shape, v: Shape, *extras: Shape, num_heads: int, kv_heads: int, rule: Rule,
    scale: float | None,
) -> tuple[Shape, Shape]:  # fmt: skip
    decay, beta, state = _linear_extras(rule, extras)
    if num_heads < 1 or kv_heads < 1 or num_heads % kv_heads:
        raise GraphError(f"kv_heads={kv_heads} must divide num_heads={num_heads}")
    batch, length, width = q.dims
    n, m = exact_div(width, num_heads), exact_div(v.dims[2], kv_heads)
    if n is None or m is None:
        raise GraphError(f"{q} and {v} do not divide into {num_heads} and {kv_heads} heads")
    if scale is None and (isinstance(n, Dim) or n < 1):
        raise GraphError(f"operand 0 is {q}: without a scale, its heads' size must be known, not 0")
    lead = (batch, length)
    _check(1, k, (*lead, n * kv_heads))
    if decay is not None:
        _check(3, decay, (*lead, kv_heads), (*lead, n * kv_heads))
    if beta is not None:
        _check(3 + (decay is not None), beta, (*lead, kv_heads), (*lead, 1))
    if state is not None:
        _check(2 + len(extras), state, (batch, kv_heads, n, m))
    return q.with_dims((*lead, m * num_heads)), q.with_dims((batch, kv_heads, n, m))


def _linear(
    loop: Any, q: Any, k: Any, v: Any, extras: Sequence[Any], num_heads: int, kv_heads: int,
    rule: Rule, scale: float | None,
) -> tuple[Any, Any]:  # fmt: skip
    decay, beta, state = _linear_extras(rule, extras)

    def by_head(x: Any, heads: int) -> Any:
        *lead, width = dims_of(x)
        return ops.reshape(x, dims=(*lead, heads, width // heads))

    heads = (by_head(q, num_heads), by_head(k, kv_heads), by_head(v, kv_heads))
    gate = None if decay is None else by_head(decay, kv_heads)
    made, last = _delta(loop, *heads, gate, beta, state, scale)
    *lead, runs, m = dims_of(made)
    return ops.reshape(made, dims=(*lead, runs * m)), last


@op(
    "f[b s q], f[b s k], f[b s v], f[...]?, f[...]?, f[...]? -> f[...], f[...]",
    kind=Kind.SPECIAL,
    shape=_linear_shape,
    flops="b*s*(6*k + 2*q)*v//kv_heads",
)
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    *extras: Array,
    num_heads: int,
    kv_heads: int,
    rule: Rule = "gated_delta",
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention without a softmax, which keeps a sum S of its past: at each step and head, S ← S +
    k⊗v and o = Sᵀq·scale, with 1/√n if no scale is given. A `gated` rule has an operand decay and
    first makes S exp(decay)·S; a `delta` rule has an operand β and adds k⊗(v - Sᵀk)·β in place of
    k⊗v. After these may come the S before the first step.

    q is [batch, length, num_heads·n], k and v are [batch, length, kv_heads·n] and [batch, length,
    kv_heads·m], and runs of query heads share theirs; decay has one number per head or per entry
    of k, β one per head or one for all. Gives o and the last S [batch, kv_heads, n, m]. ONNX's
    chunk_size changes no result, its scale 0 is none here, and a state that is wider than the
    rest means that all are computed in its dtype: cast them."""
    return _linear(looped, q, k, v, extras, num_heads, kv_heads, rule, scale)


@linear_attention.lowering
def _(q: Any, k: Any, v: Any, *extras: Any, **attrs: Any) -> tuple[Any, Any]:
    return _linear(scanned, q, k, v, extras, **attrs)


@linear_attention.sample
def _(draw: Draw) -> Drawn:
    lead, dtype = (draw.size(), draw.size()), draw.dtype("f")
    kv, n, m = draw.integer(1, 3), draw.integer(1, 4), draw.size()
    heads, rule = kv * draw.integer(1, 3), draw.choice(RULES)
    specs = [Spec((*lead, w), dtype, d) for w, d in
             ((heads * n, "unit"), (kv * n, "unit"), (kv * m, "plain"))]  # fmt: skip
    if rule.startswith("gated"):
        specs.append(Spec((*lead, draw.choice((kv, kv * n))), dtype, "unit"))
    if rule.endswith("delta"):
        specs.append(Spec((*lead, draw.choice((kv, 1))), dtype, "unit"))
    if draw.coin():
        specs.append(Spec((lead[0], kv, n, m), dtype, "plain"))
    attrs = {"num_heads": heads, "kv_heads": kv, "rule": rule, "scale": draw.choice((None, 0.5))}
    return specs, attrs


# -- the state of a causal convolution ------------------------------------------------------------


@composed("a[b s c], a[b r c]? -> a[...]", kind=Kind.MOVEMENT)
def causal_conv_state(x: Any, state: Any = None, *, size: int) -> Any:
    """The last `size` rows of [batch, length, channels] after those of `state`, or after zeros:
    what depthwise_conv1d_causal of `size` + 1 taps takes before the next part of a sequence."""
    if size < 0:
        raise GraphError(f"size is {size}, which is negative. Give 0 or more")
    if state is not None and dims_of(state)[1] != size:
        raise GraphError(f"operand 1 has {dims_of(state)[1]} rows, expected size={size}")
    whole = (
        ops.pad(x, low=(0, size, 0), high=(0, 0, 0)) if state is None
        else ops.concat([state, x], axis=1)
    )  # fmt: skip
    return ops.narrow(whole, axis=1, start=dims_of(x)[1], length=size)


@causal_conv_state.sample
def _(draw: Draw) -> Drawn:
    (b, s, c), size, dtype = (
        (draw.size(), draw.size(), draw.size()),
        draw.integer(0, 4),
        draw.dtype("a"),
    )
    state = [Spec((b, size, c), dtype)] if draw.coin() else []
    return [Spec((b, s, c), dtype), *state], {"size": size}
