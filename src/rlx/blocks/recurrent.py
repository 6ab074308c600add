"""Recurrent and state-space layers with explicit state: a sequence may be split anywhere."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import exact_div
from rlx.core.errors import GraphError
from rlx.ir.block import block
from rlx.ops.compose import dims_of
from rlx.ops.fused import activated


@block("f[b s c], f[c k], f[c]? -> f[b s c]")
def causal_conv(x: Any, w: Any, bias: Any = None, *, activation: str | None = None) -> Any:
    """activation(Σ w[j] · x[t - (k-1) + j] + bias) for each channel: a step sees itself and the
    k - 1 before it; before the first are zeros."""
    return _convolved(x, w, bias, None, activation)


@block("f[b s c], f[c k], f[b r c], f[c]? -> f[b s c], f[b k-1 c]")
def causal_conv_step(
    x: Any, w: Any, state: Any, bias: Any = None, *, activation: str | None = None
) -> tuple[Any, Any]:
    """`causal_conv` that goes on after the k - 1 steps in `state`, and the state after it."""
    return _convolved(x, w, bias, state, activation), _next_state(x, w, state)


def _convolved(x: Any, w: Any, bias: Any, state: Any, activation: str | None) -> Any:
    made = ops.depthwise_conv1d_causal(x, w, state)
    return activated(made if bias is None else ops.add(made, bias), activation)


def _next_state(x: Any, w: Any, state: Any) -> Any:
    return ops.causal_conv_state(x, state, size=dims_of(w)[1] - 1)


@block(
    "f[b s d], f[d], f[d c], f[d v], f[d num_heads], f[d num_heads], f[c k], f[num_heads], "
    "f[num_heads], f[m], f[v d], f[c]?, f[b r c]?, f[b num_heads key_dim m]? "
    "-> f[b s d], f[b k-1 c], f[b num_heads key_dim m]"
)
def gated_delta_net_layer(
    x: Any,
    norm: Any,
    w_qkv: Any,
    w_gate: Any,
    w_strength: Any,
    w_decay: Any,
    conv: Any,
    a_log: Any,
    dt_bias: Any,
    out_norm: Any,
    wo: Any,
    conv_bias: Any = None,
    conv_state: Any = None,
    state: Any = None,
    *,
    num_heads: int,
    key_heads: int | None = None,
    key_dim: int,
    eps: float = 1e-6,
) -> tuple[Any, Any, Any]:
    """A pre-norm layer of the gated delta rule, as in Qwen 3 Next, added to what went in, with the
    states of its convolution and of its heads after the last step; zeros before the first, where
    they are not given.

    h = rms_norm(x) gives queries, keys and values (columns of w_qkv in this order) through a
    causal convolution and silu; queries and keys have length 1. β = sigmoid(h · w_strength) and
    g = -exp(a_log) · softplus(h · w_decay + dt_bias). What comes out is normalised head by head,
    times silu(h · w_gate), times wo. Heads of values share the `key_heads` in runs."""
    keys = num_heads if key_heads is None else key_heads
    value_dim = _value_dim(w_qkv, w_gate, out_norm, num_heads, keys, key_dim)
    h = ops.rms_norm(x, norm, eps=eps)
    mixed = ops.matmul(h, w_qkv)
    convolved = _convolved(mixed, conv, conv_bias, conv_state, "silu")
    q, k, v = _heads(convolved, num_heads, keys, key_dim, value_dim)
    rate = ops.softplus(ops.add(ops.matmul(h, w_decay), dt_bias))
    decay = ops.neg(ops.mul(ops.exp(a_log), rate))
    strength = ops.sigmoid(ops.matmul(h, w_strength))
    made, last = ops.gated_delta_net(q, k, v, decay, strength, state)
    gate = ops.silu(ops.matmul(h, w_gate))
    normed = ops.reshape(ops.rms_norm(made, out_norm, eps=eps), dims=dims_of(gate))
    gated = ops.mul(normed, gate)
    return ops.add(x, ops.matmul(gated, wo)), _next_state(mixed, conv, conv_state), last


def _value_dim(
    w_qkv: Any, w_gate: Any, out_norm: Any, num_heads: int, key_heads: int, key_dim: int
) -> Any:
    """The size of a head of values, once all widths agree."""
    (size,), width = dims_of(out_norm), dims_of(w_gate)[1]
    if key_heads < 1 or num_heads % key_heads:
        raise GraphError(f"key_heads={key_heads} must divide num_heads={num_heads}")
    if width != num_heads * size:
        raise GraphError(f"w_gate is {width} wide, but {num_heads} heads of {size} are not")
    wanted = 2 * key_heads * key_dim + width
    if dims_of(w_qkv)[1] != wanted:
        raise GraphError(
            f"w_qkv is {dims_of(w_qkv)[1]} wide, but twice {key_heads} heads of {key_dim} and "
            f"{num_heads} of {size} are {wanted}"
        )
    return size


def _heads(x: Any, num_heads: int, key_heads: int, key_dim: int, value_dim: Any) -> list[Any]:
    """Queries and keys, [batch, length, heads, key_dim] and of length 1, and values."""
    width = key_heads * key_dim
    cuts = ((0, width, key_dim), (width, width, key_dim),
            (2 * width, num_heads * value_dim, value_dim))  # fmt: skip
    q, k, v = (_split(x, start, length, size) for start, length, size in cuts)
    return [*(_repeated(_unit(a), num_heads) for a in (q, k)), v]


def _split(x: Any, start: int, length: Any, size: Any) -> Any:
    """These columns as heads of `size`."""
    part = ops.narrow(x, axis=2, start=start, length=length)
    return ops.reshape(part, dims=(*dims_of(x)[:2], exact_div(length, size), size))


def _unit(x: Any) -> Any:
    """x / |x| over the last axis; 0 stays 0."""
    square = ops.sum(ops.mul(x, x), axes=(3,), keepdims=True)
    return ops.mul(x, ops.rsqrt(ops.add(square, 1e-6)))


def _repeated(x: Any, heads: int) -> Any:
    """Each head as often as heads of values share it."""
    batch, length, count, size = dims_of(x)
    if count == heads:
        return x
    wide = ops.expand(
        ops.expand_dims(x, axes=(3,)), dims=(batch, length, count, heads // count, size)
    )
    return ops.reshape(wide, dims=(batch, length, heads, size))
