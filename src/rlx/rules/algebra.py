"""Arithmetic identities. Each holds for every value of the dtypes it admits, NaN and -0 included.

Not here because they are not true of floats: x + 0 (it turns -0 into 0), x · 0, x - x, x / x,
sqrt(x²), exp(log x), -(x - y) = y - x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.ir.mir import Node
from rlx.rules.common import filled, fit, is_float, is_integer, is_real, scalar
from rlx.rules.engine import rule
from rlx.rules.match import scalar_of

# -- neutral elements -----------------------------------------------------------------------------


@rule(lambda x: ops.add(x, 0), lambda x: ops.bit_or(x, 0), lambda x: ops.bit_xor(x, 0))
def add_zero(x: Node, node: Node) -> Any:
    """x + 0 = x for integers; so do x | 0 and x ^ 0."""
    return fit(x, node) if is_integer(x) else None


@rule(lambda x: ops.add(x, -0.0))
def add_negative_zero(x: Node, node: Node) -> Any:
    """x + (-0) = x for floats; with +0 it would turn -0 into 0."""
    return fit(x, node) if is_float(x) else None


@rule(lambda x: ops.sub(x, 0))
def subtract_zero(x: Node, node: Node) -> Any:
    """x - 0 = x."""
    return fit(x, node) if is_real(x) else None


@rule(
    lambda x: ops.mul(x, 1),
    lambda x: ops.div(x, 1),
    lambda x: ops.pow(x, 1),
    lambda x: ops.floor_div(x, 1),
)
def multiply_by_one(x: Node, node: Node) -> Any:
    """x · 1 = x / 1 = x¹ = x; x // 1 = x for integers."""
    if not is_real(x) or (node.op == "floor_div" and not is_integer(x)):
        return None
    return fit(x, node)


@rule(lambda x: ops.shift_left(x, 0), lambda x: ops.shift_right(x, 0))
def shift_by_zero(x: Node, node: Node) -> Any:
    """x << 0 = x >> 0 = x."""
    return fit(x, node)


# -- absorbing elements ---------------------------------------------------------------------------


@rule(
    lambda x: ops.mul(x, 0),
    lambda x: ops.bit_and(x, 0),
    lambda x: ops.mod(x, 1),
    lambda x: ops.rem(x, 1),
)
def multiply_by_zero(x: Node, node: Node) -> Any:
    """x · 0 = x & 0 = x mod 1 = 0 for integers; a float may be infinite or NaN."""
    return filled(0, node) if is_integer(x) else None


@rule(lambda x: ops.sub(x, x), lambda x: ops.bit_xor(x, x))
def subtract_itself(x: Node, node: Node) -> Any:
    """x - x = x ^ x = 0 for integers; an infinite float gives NaN."""
    return filled(0, node) if is_integer(x) else None


# -- idempotent -----------------------------------------------------------------------------------


@rule(
    lambda x: ops.maximum(x, x),
    lambda x: ops.minimum(x, x),
    lambda x: ops.bit_and(x, x),
    lambda x: ops.bit_or(x, x),
    lambda x: ops.logical_and(x, x),
    lambda x: ops.logical_or(x, x),
)
def idempotent_binary(x: Node) -> Any:
    """max(x, x) = x, and the same for min, and, or."""
    return x


@rule(
    lambda x: ops.abs(ops.abs(x)),
    lambda x: ops.relu(ops.relu(x)),
    lambda x: ops.floor(ops.floor(x)),
    lambda x: ops.ceil(ops.ceil(x)),
    lambda x: ops.round(ops.round(x)),
    lambda x: ops.trunc(ops.trunc(x)),
    lambda x: ops.sign(ops.sign(x)),
)
def idempotent_unary(node: Node) -> Any:
    """f(f(x)) = f(x) for |·|, relu, floor, ceil, round, trunc and sign."""
    return node.inputs[0]


@rule(
    lambda x: ops.relu(ops.exp(x)),
    lambda x: ops.relu(ops.sigmoid(x)),
    lambda x: ops.relu(ops.softplus(x)),
    lambda x: ops.relu(ops.square(x)),
    lambda x: ops.relu(ops.abs(x)),
    lambda x: ops.abs(ops.exp(x)),
    lambda x: ops.abs(ops.square(x)),
    lambda x: ops.abs(ops.sigmoid(x)),
    lambda x: ops.abs(ops.relu(x)),
)
def relu_of_nonnegative(x: Node, node: Node) -> Any:
    """relu(y) = |y| = y where y is an exponential, a square, a sigmoid or an absolute value."""
    return node.inputs[0] if is_float(x) else None


# -- signs ----------------------------------------------------------------------------------------


@rule(
    lambda x: ops.neg(ops.neg(x)),
    lambda x: ops.bit_not(ops.bit_not(x)),
    lambda x: ops.logical_not(ops.logical_not(x)),
    lambda x: ops.conj(ops.conj(x)),
)
def involution(x: Node) -> Any:
    """-(-x) = x, and the same for not and the complex conjugate."""
    return x


@rule(lambda x, y: ops.add(x, ops.neg(y)))
def add_negative(x: Node, y: Node) -> Any:
    """x + (-y) = x - y."""
    return ops.sub(x, y)


@rule(lambda x, y: ops.sub(x, ops.neg(y)))
def subtract_negative(x: Node, y: Node) -> Any:
    """x - (-y) = x + y."""
    return ops.add(x, y)


@rule(lambda x: ops.sub(0, x), lambda x: ops.sub(-0.0, x))
def subtract_from_zero(x: Node, node: Node) -> Any:
    """0 - x = -x for integers, -0 - x = -x for floats."""
    if is_integer(x) or (is_float(x) and np.signbit(float(scalar_of(node.inputs[0])))):
        return ops.neg(fit(x, node))
    return None


@rule(lambda x: ops.mul(x, -1), lambda x: ops.div(x, -1))
def multiply_by_minus_one(x: Node, node: Node) -> Any:
    """x · (-1) = x / (-1) = -x."""
    return ops.neg(fit(x, node)) if is_real(x) else None


@rule(lambda x, y: ops.mul(ops.neg(x), ops.neg(y)), lambda x, y: ops.div(ops.neg(x), ops.neg(y)))
def product_of_negatives(x: Node, y: Node, node: Node) -> Any:
    """(-x)(-y) = xy and (-x)/(-y) = x/y for reals; integers wrap, so only their product."""
    if not is_real(x) or (node.op == "div" and is_integer(x)):
        return None
    return node.graph.node(node.decl, (x, y))


@rule(
    lambda x: ops.abs(ops.neg(x)),
    lambda x: ops.square(ops.neg(x)),
    lambda x: ops.cos(ops.neg(x)),
    lambda x: ops.square(ops.abs(x)),
)
def even_function(x: Node, node: Node) -> Any:
    """f(-x) = f(x) for |·|, the square and the cosine; |x|² = x². Unsigned -x wraps, so |-x| does
    not count there."""
    if not is_real(x) or (node.op == "abs" and not (is_float(x) or x.dtype.is_signed)):
        return None
    return node.graph.node(node.decl, (x,))


# -- powers ---------------------------------------------------------------------------------------


@rule(lambda x: ops.mul(x, x))
def multiply_as_square(x: Node) -> Any:
    """x · x = x²."""
    return ops.square(x) if is_real(x) else None


@rule(
    lambda x: ops.pow(x, 2),
    slack=1.0,
    valid_in_half_precision=True,
    why="the reference's pow may be one rounding off, the product is not",
)
def pow_two_as_square(x: Node, node: Node) -> Any:
    """x to the power 2 = x²."""
    return fit(ops.square(x), node) if is_real(x) else None


@rule(
    lambda x: ops.pow(x, -1.0),
    slack=1.0,
    valid_in_half_precision=True,
    why="the reference's pow may be one rounding off, the quotient is not",
)
def pow_minus_one_as_reciprocal(x: Node, node: Node) -> Any:
    """x to the power -1 = 1/x."""
    return fit(ops.reciprocal(x), node) if is_float(x) else None


@rule(lambda x: ops.div(1, x))
def divide_as_reciprocal(x: Node, node: Node) -> Any:
    """1 / x = reciprocal of x."""
    return fit(ops.reciprocal(x), node) if is_float(x) else None


@rule(
    lambda x: ops.reciprocal(ops.sqrt(x)),
    slack=2.0,
    why="one rounding where there were two; halves round once more on the way",
)
def reciprocal_of_sqrt_as_rsqrt(x: Node) -> Any:
    """1 / √x = rsqrt(x)."""
    return ops.rsqrt(x)


@rule(lambda x, k: ops.div(x, k))
def divide_by_power_of_two(x: Node, k: Node, node: Node) -> Any:
    """x / 2ᵏ = x · 2⁻ᵏ, exactly, where 2⁻ᵏ is a normal number."""
    value = scalar_of(k)
    if value is None or not is_float(x) or abs(np.frexp(float(value))[0]) != 0.5:
        return None
    if abs(np.frexp(float(value))[1]) > 14:
        return None
    return fit(ops.mul(x, scalar(1.0 / float(value), x)), node)


# -- constants together ---------------------------------------------------------------------------


@rule(
    lambda x, k, m: ops.add(ops.add(x, k), m),
    lambda x, k, m: ops.mul(ops.mul(x, k), m),
    lambda x, k, m: ops.bit_and(ops.bit_and(x, k), m),
    lambda x, k, m: ops.bit_or(ops.bit_or(x, k), m),
    lambda x, k, m: ops.bit_xor(ops.bit_xor(x, k), m),
    lambda x, k, m: ops.maximum(ops.maximum(x, k), m),
    lambda x, k, m: ops.minimum(ops.minimum(x, k), m),
)
def reassociate_constants(x: Node, k: Node, m: Node, node: Node) -> Any:
    """(x ∘ k) ∘ m = x ∘ (k ∘ m) for integers, which wrap and so do not round."""
    if not is_integer(x) or scalar_of(x) is not None:
        return None
    a, b = scalar_of(k), scalar_of(m)
    if a is None or b is None:
        return None
    joined = node.decl.run([np.asarray(a), np.asarray(b)], {})
    return fit(node.graph.node(node.decl, (x, node.graph.constant(joined))), node)


@rule(lambda x, k: ops.mul(ops.neg(x), k), lambda x, k: ops.div(ops.neg(x), k))
def fold_sign_into_constant(x: Node, k: Node, node: Node) -> Any:
    """(-x) · k = x · (-k)."""
    value = scalar_of(k)
    if value is None or not is_float(x):
        return None
    return fit(node.graph.node(node.decl, (x, scalar(-value, x))), node)


# -- bounds ---------------------------------------------------------------------------------------


@rule(lambda x: ops.maximum(x, 0))
def maximum_as_relu(x: Node, node: Node) -> Any:
    """max(x, 0) = relu(x). Which zero max(0, -0) gives goes by the order, so that must be this."""
    return fit(ops.relu(x), node) if node.inputs[0] is x else None


@rule(
    lambda x, y: ops.maximum(ops.maximum(x, y), y),
    lambda x, y: ops.minimum(ops.minimum(x, y), y),
)
def repeated_bound(node: Node, y: Node) -> Any:
    """max(max(x, y), y) = max(x, y), and the same for min, for integers."""
    inner = next(i for i in node.inputs if i is not y)
    return fit(inner, node) if is_integer(y) else None
