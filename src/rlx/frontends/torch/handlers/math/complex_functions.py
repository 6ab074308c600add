"""Elementary functions of complex numbers, by those of their parts.

Values at infinities, NaN and signed zeros, and the sides of branch cuts, are those of C99's Annex
G, as torch's are. Inverse functions are by W. Kahan's formulas ("Branch cuts for complex
elementary functions"), whose sums do not cancel, and by log 2|z| where 1 is lost beside z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers.math.signs import sign_bit, with_sign
from rlx.ir.mir import Node

Parts = tuple[Node, Node]
LARGE_EXPONENT = {DType.F32: 80.0, DType.F64: 700.0}
"""Up to here eˣ is finite."""


def parts(z: Node) -> Parts:
    return ops.real(z), ops.imag(z)


def number(like: Node, value: complex) -> Node:
    return ops.cast(like.graph.constant(complex(value)), to=like.shape.dtype)


def _is_infinite_beside(x: Node, y: Node) -> Node:
    """Is x infinite, and y without a direction?"""
    return ops.logical_and(ops.is_inf(x), ops.logical_not(ops.is_finite(y)))


def _unless_zero(x: Node, made: Node) -> Node:
    """A product with x; x itself where it is 0, whatever the other factor."""
    return ops.where(ops.equal(x, 0.0), x, made)


def _split_exponent(x: Node) -> Parts:
    """(x limited, e to the power of the rest): products with both overflow only where the result
    does."""
    limit = LARGE_EXPONENT[x.shape.dtype]
    low = ops.maximum(ops.minimum(x, limit), -limit)
    return low, ops.exp(ops.sub(ops.abs(x), ops.abs(low)))


# -- exponentials ------------------------------------------------------------------------------


def exp(z: Node) -> Node:
    """eˣ (cos y + i sin y)."""
    x, y = parts(z)
    limit = LARGE_EXPONENT[x.shape.dtype]
    low, rest = ops.minimum(x, limit), ops.exp(ops.maximum(ops.sub(x, limit), 0.0))
    unknown = _is_infinite_beside(x, y)
    is_zero = ops.logical_and(unknown, ops.less(x, 0.0))
    size = ops.exp(low)
    re = ops.mul(ops.mul(size, ops.cos(ops.where(unknown, 0.0, y))), rest)
    im = ops.mul(ops.mul(size, ops.sin(ops.where(is_zero, 0.0, y))), rest)
    return ops.make_complex(re, _unless_zero(y, im))


def _hyperbolic(z: Node, even: Callable[[Node], Node], odd: Callable[[Node], Node]) -> Parts:
    """even(x) cos y and odd(x) sin y of sinh and cosh, whichever is which."""
    x, y = parts(z)
    low, rest = _split_exponent(x)
    unknown = _is_infinite_beside(x, y)
    re = ops.mul(ops.mul(even(low), ops.cos(ops.where(unknown, 0.0, y))), rest)
    im = ops.mul(ops.mul(odd(low), ops.sin(y)), rest)
    return ops.where(unknown, ops.abs(x), re), im


def sinh(z: Node) -> Node:
    x, y = parts(z)
    re, im = _hyperbolic(z, ops.sinh, ops.cosh)
    return ops.make_complex(_unless_zero(x, re), _unless_zero(y, im))


def cosh(z: Node) -> Node:
    x, y = parts(z)
    re, im = _hyperbolic(z, ops.cosh, ops.sinh)
    is_zero = ops.logical_or(ops.equal(x, 0.0), ops.equal(y, 0.0))
    zero = ops.mul(with_sign(_constant(x, 0.0), x), with_sign(_constant(y, 1.0), y))
    return ops.make_complex(re, ops.where(is_zero, zero, im))


def _constant(like: Node, value: float) -> Node:
    return ops.cast(like.graph.constant(value), to=like.shape.dtype)


def tanh(z: Node) -> Node:
    """(tanh x (1 + t²) + i t (1 - tanh² x)) / (1 + tanh² x t²) with t = tan y."""
    x, y = parts(z)
    th, t = ops.tanh(x), ops.tan(ops.where(_is_infinite_beside(x, y), 0.0, y))
    th2, t2 = ops.mul(th, th), ops.mul(t, t)
    sech2 = ops.reciprocal(ops.mul(ops.cosh(x), ops.cosh(x)))
    below = ops.add(1.0, ops.mul(th2, t2))
    re = ops.div(ops.mul(th, ops.add(1.0, t2)), below)
    im = ops.div(ops.mul(t, sech2), below)
    return ops.make_complex(_unless_zero(x, re), _unless_zero(y, im))


def expm1(z: Node) -> Node:
    """eˣ cos y - 1 as (eˣ - 1) cos y - 2 sin²(y/2), which does not cancel near 0."""
    x, y = parts(z)
    half = ops.sin(ops.mul(y, 0.5))
    re = ops.sub(ops.mul(ops.expm1(x), ops.cos(y)), ops.mul(2.0, ops.mul(half, half)))
    return ops.make_complex(re, ops.mul(ops.exp(x), ops.sin(y)))


def sigmoid(z: Node) -> Node:
    return ops.reciprocal(ops.add(number(z, 1), exp(ops.neg(z))))


def _rotated(function: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """i f(-iz): sin of sinh, tan of tanh, asinh of asin, atan of atanh, which are odd."""

    def made(z: Node) -> Node:
        x, y = parts(z)
        w = function(ops.make_complex(y, ops.neg(x)))
        return ops.make_complex(ops.neg(ops.imag(w)), ops.real(w))

    return made


def cos(z: Node) -> Node:
    x, y = parts(z)
    return cosh(ops.make_complex(ops.neg(y), x))


def sinc(z: Node) -> Node:
    """sin πz / πz, and 1 at 0."""
    angle = _scaled(z, math.pi)
    is_zero = ops.equal(z, number(z, 0))
    safe = ops.where(is_zero, number(z, 1), angle)
    return ops.where(is_zero, number(z, 1), ops.div(_rotated(sinh)(safe), safe))


# -- logarithms and roots ----------------------------------------------------------------------


def log(z: Node) -> Node:
    """log |z| + i arg z, with |z| by hypot, which does not overflow."""
    x, y = parts(z)
    return ops.make_complex(_log_size(x, y), ops.angle(z))


def _log_size(x: Node, y: Node) -> Node:
    """log |z|; near 1 by log1p of |z|² - 1, which does not cancel."""
    high, low = ops.maximum(ops.abs(x), ops.abs(y)), ops.minimum(ops.abs(x), ops.abs(y))
    excess = ops.add(ops.mul(ops.sub(high, 1.0), ops.add(high, 1.0)), ops.mul(low, low))
    near = ops.mul(ops.log1p(excess), 0.5)
    is_near = ops.logical_and(ops.greater(high, 0.5), ops.less(high, 2.0))
    return ops.where(is_near, near, ops.log(ops.hypot(x, y)))


def _scaled(z: Node, factor: float) -> Node:
    """z times a real number: an infinite part leaves the other."""
    x, y = parts(z)
    return ops.make_complex(ops.mul(x, factor), ops.mul(y, factor))


def log1p(z: Node) -> Node:
    """log |1 + z| by log1p of |1 + z|² - 1 = x (x + 2) + y² where z is small."""
    x, y = parts(z)
    excess = ops.add(ops.mul(x, ops.add(x, 2.0)), ops.mul(y, y))
    near = ops.where(ops.equal(excess, 0.0), x, ops.mul(ops.log1p(excess), 0.5))
    far = ops.log(ops.hypot(ops.add(x, 1.0), y))
    size = ops.where(ops.less(ops.hypot(x, y), 0.5), near, far)
    return ops.make_complex(size, ops.atan2(y, ops.add(x, 1.0)))


def sqrt(z: Node) -> Node:
    return ops.make_complex(*_root(*parts(z)))


def _root(x: Node, y: Node) -> Parts:
    """√((|z| + |x|) / 2) is one part, and y over twice it the other; of z / 16 where |z| may
    overflow."""
    limit = float(np.finfo(x.shape.dtype.numpy).max) / 4
    is_large = ops.greater(ops.maximum(ops.abs(x), ops.abs(y)), limit)
    scale = ops.where(is_large, 0.0625, 1.0)
    a, b = ops.mul(ops.abs(x), scale), ops.mul(ops.abs(y), scale)
    size = ops.sqrt(ops.add(ops.mul(ops.hypot(a, b), 0.5), ops.mul(a, 0.5)))
    is_zero = ops.equal(size, 0.0)
    other = ops.where(is_zero, 0.0, ops.div(b, ops.mul(ops.where(is_zero, 1.0, size), 2.0)))
    back = ops.where(is_large, 4.0, 1.0)
    size, other = ops.mul(size, back), ops.mul(other, back)
    size, other = (ops.where(ops.is_inf(y), ops.abs(y), part) for part in (size, other))
    is_left = ops.less(x, 0.0)
    return ops.where(is_left, other, size), with_sign(ops.where(is_left, size, other), y)


# -- inverse functions -------------------------------------------------------------------------


def _log_twice(x: Node, y: Node) -> Node:
    """log 2|z|."""
    return ops.add(ops.log(ops.hypot(ops.mul(x, 0.25), ops.mul(y, 0.25))), math.log(8))


def _is_large(x: Node, y: Node) -> Node:
    """Is 1 lost beside z?"""
    limit = 1 / _epsilon(x)
    is_far = ops.greater(ops.maximum(ops.abs(x), ops.abs(y)), limit)
    return ops.logical_or(is_far, ops.logical_or(ops.is_inf(x), ops.is_inf(y)))


def _cross(a: Parts, b: Parts) -> Node:
    """The imaginary part of the conjugate of a times b."""
    return ops.sub(ops.mul(a[0], b[1]), ops.mul(a[1], b[0]))


def asin(z: Node) -> Node:
    x, y = parts(z)
    minus, plus = _root(ops.sub(1.0, x), ops.neg(y)), _root(ops.add(1.0, x), y)
    product = ops.sub(ops.mul(minus[0], plus[0]), ops.mul(minus[1], plus[1]))
    is_large = _is_large(x, y)
    re = ops.atan2(x, ops.where(is_large, ops.abs(y), product))
    im = ops.where(is_large, with_sign(_log_twice(x, y), y), ops.asinh(_cross(minus, plus)))
    return ops.make_complex(_unless_zero(x, re), im)


def acos(z: Node) -> Node:
    x, y = parts(z)
    minus, plus = _root(ops.sub(1.0, x), ops.neg(y)), _root(ops.add(1.0, x), y)
    is_large = _is_large(x, y)
    near = ops.mul(ops.atan2(minus[0], plus[0]), 2.0)
    re = ops.where(is_large, ops.atan2(ops.abs(y), x), near)
    im = ops.where(
        is_large, with_sign(_log_twice(x, y), ops.neg(y)), ops.asinh(_cross(plus, minus))
    )
    return ops.make_complex(ops.where(ops.equal(x, 0.0), math.pi / 2, re), im)


def acosh(z: Node) -> Node:
    """±i acos z, of which the real part is not negative."""
    x, y = parts(acos(z))
    above = ops.where(sign_bit(ops.imag(z)), ops.neg(x), x)
    return ops.make_complex(ops.abs(y), above)


def atanh(z: Node) -> Node:
    """log1p(4x / |1 - z|²) / 4 and half the angle of (1 + z) / (1 - z); 1/z and π/2 far out."""
    x, y = parts(z)
    size, gap = ops.hypot(x, y), ops.hypot(ops.sub(1.0, ops.abs(x)), y)
    near = ops.mul(ops.log1p(ops.div(ops.div(ops.mul(ops.abs(x), 4.0), gap), gap)), 0.25)
    at_pole = ops.mul(ops.log(ops.div(2.0, gap)), 0.5)
    re = ops.where(ops.less(gap, _epsilon(x)), at_pole, near)
    far = ops.where(ops.is_inf(size), 0.0, ops.div(ops.div(ops.abs(x), size), size))
    across = ops.sub(ops.mul(ops.sub(1.0, x), ops.add(1.0, x)), ops.mul(y, y))
    is_large = _is_large(x, y)
    im = ops.mul(ops.atan2(ops.mul(y, 2.0), across), 0.5)
    quarter = with_sign(_constant(y, math.pi / 2), y)
    return ops.make_complex(
        _unless_zero(x, with_sign(ops.where(is_large, far, re), x)),
        ops.where(ops.logical_and(is_large, ops.equal(y, y)), quarter, im),
    )


def _epsilon(like: Node) -> float:
    return float(np.finfo(like.shape.dtype.numpy).eps)


# -- powers ------------------------------------------------------------------------------------


NAMED_POWERS: dict[float, Callable[[Node], Node]] = {
    1: lambda z: z,
    2: lambda z: ops.mul(z, z),
    3: lambda z: ops.mul(ops.mul(z, z), z),
    0.5: sqrt,
    -0.5: lambda z: ops.reciprocal(sqrt(z)),
    -1: ops.reciprocal,
    -2: lambda z: ops.reciprocal(ops.mul(z, z)),
}
"""Powers by a number, which torch has by products, roots and quotients."""


def complex_pow(x: Node, y: Node, exponent: Any) -> Node:
    """exp(y log x), a power of 0 too: what is not 0 then has no direction."""
    if isinstance(exponent, int | float):
        if exponent in NAMED_POWERS:
            return NAMED_POWERS[exponent](x)
        if exponent == 0:
            return ops.expand(number(x, 1), dims=x.shape.dims)
    return exp(_product(y, log(x)))


def _product(z: Node, w: Node) -> Node:
    """z w, infinite in a direction where a factor is: one whose infinite parts count as 1, and its
    others as 0."""
    (a, b), (c, d) = parts(z), parts(w)
    lost = ops.logical_and(*(ops.is_nan(p) for p in _multiplied(a, b, c, d)))
    is_infinite = ops.logical_and(lost, ops.logical_or(ops.is_inf(z), ops.is_inf(w)))
    boxed = (*_direction(a, b), *_direction(c, d))
    re, im = (ops.mul(p, float("inf")) for p in _multiplied(*boxed))
    return ops.where(is_infinite, ops.make_complex(re, im), ops.mul(z, w))


def _multiplied(a: Node, b: Node, c: Node, d: Node) -> Parts:
    return ops.sub(ops.mul(a, c), ops.mul(b, d)), ops.add(ops.mul(a, d), ops.mul(b, c))


def _direction(x: Node, y: Node) -> Parts:
    """Parts of 1 and 0 for those that are infinite and not, where one is; 0 for NaN."""
    either = ops.logical_or(ops.is_inf(x), ops.is_inf(y))
    units = (ops.where(ops.is_inf(p), _constant(p, 1.0), 0.0) for p in (x, y))
    known = (ops.where(ops.is_nan(p), 0.0, p) for p in (x, y))
    made = (
        with_sign(ops.where(either, u, k), p) for u, k, p in zip(units, known, (x, y), strict=True)
    )
    return next(made), next(made)


FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "exp": exp,
    "exp2": lambda z: exp(_scaled(z, math.log(2))),
    "expm1": expm1,
    "log": log,
    "log2": lambda z: _scaled(log(z), 1 / math.log(2)),
    "log10": lambda z: _scaled(log(z), 1 / math.log(10)),
    "log1p": log1p,
    "sqrt": sqrt,
    "rsqrt": lambda z: ops.reciprocal(sqrt(z)),
    "sin": _rotated(sinh),
    "cos": cos,
    "tan": _rotated(tanh),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asin": asin,
    "acos": acos,
    "atan": _rotated(atanh),
    "asinh": _rotated(asin),
    "acosh": acosh,
    "atanh": atanh,
    "sigmoid": sigmoid,
    "silu": lambda z: ops.mul(z, sigmoid(z)),
    "sinc": sinc,
}
"""Name in the op table → the function of complex numbers."""
