"""Special functions whose names or arguments are others than the op table's."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node


@handles("polygamma", "special_polygamma")
def polygamma(call: Call, n: Any, **given: Any) -> Node:
    """Torch gives the order before the operand, or after it. From order 2 it is a factor of zeta's,
    whose values at infinities it has."""
    order, operand = (given["n"], n) if "n" in given else (n, given["self"])
    x = call.node(operand, call.dtype)
    made = ops.polygamma(x, n=order)
    if order < 2:
        return made
    left = math.inf if order % 2 else -math.inf
    return ops.where(ops.is_inf(x), ops.where(ops.less(x, 0.0), left, math.nan), made)


@handles("igamma", "igammac", "special_gammainc", "special_gammaincc")
def igamma(call: Call, x: Any, other: Any) -> Node:
    """Torch's ends come before its NaN: P(a, 0) is 0 for any a."""
    is_upper = call.op.rstrip("_") in ("igammac", "special_gammaincc")
    a, point = call.nodes(x, other)
    made = (ops.igammac if is_upper else ops.igamma)(a, point)
    low, high = (1.0, 0.0) if is_upper else (0.0, 1.0)
    is_low = ops.logical_or(ops.equal(point, 0.0), ops.equal(a, math.inf))
    end = ops.where(is_low, low, ops.where(ops.equal(point, math.inf), high, made))
    return ops.where(ops.logical_or(ops.is_nan(a), ops.is_nan(point)), end, made)


@handles("special_zeta", "zeta")
def zeta(call: Call, x: Any, other: Any) -> Node:
    """Poles come before NaN, and terms whose quotient is 0 / 0 give NaN, as in torch's loop."""
    s, q = call.nodes(x, other)
    is_whole = ops.logical_and(ops.less_equal(q, 0.0), ops.equal(ops.floor(q), q))
    at_pole = ops.logical_and(is_whole, ops.logical_not(ops.less(s, 1.0)))
    is_large = ops.logical_and(ops.greater(s, LARGE_ORDER), ops.greater(q, 1.0))
    is_lost = ops.logical_or(is_large, ops.equal(q, math.inf))
    made = ops.where(is_lost, math.nan, ops.zeta(s, q))
    return ops.where(ops.logical_or(at_pole, ops.equal(s, 1.0)), math.inf, made)


LARGE_ORDER = 1e15
"""Of zeta: from here every power of what is above 1 is 0."""


FAMILIES = ("chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
            "chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he",
            "laguerre_polynomial_l", "legendre_polynomial_p")  # fmt: skip
SHIFTED = tuple(f"shifted_{f}" for f in FAMILIES if f.startswith("chebyshev"))


@handles(*(f"special_{f}" for f in (*FAMILIES, *SHIFTED)))
def orthogonal_polynomial(call: Call, x: Any, n: Any) -> Node:
    """The n-th of a family; n is a float whose fraction does not count."""
    name = call.op.removeprefix("special_")
    family: Any = name.removeprefix("shifted_").replace("_polynomial", "")
    point, order = call.nodes(x, n)
    is_shifted = name.startswith("shifted_")
    return ops.orthogonal_polynomial(point, order, family=family, shifted=is_shifted)
