"""Comparisons, boolean and bitwise ops. Every result is exact.

A shift amount is read as an unsigned number: by the width or more, all bits leave.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.cost import OpClass
from rlx.ops.math.elementwise import PRIMITIVE, elementwise
from rlx.ops.op import Array

exact = functools.partial(elementwise, is_exact=True)
single = functools.partial(exact, cost=OpClass.ARITHMETIC)
"""One instruction of a vector machine, although it could be decomposed."""
primitive = functools.partial(exact, why_no_lowering=PRIMITIVE)
ORDER = "n[~s], n[~s] -> bool[~s]"
EQUALITY = "a[~s], a[~s] -> bool[~s]"
TRUTH = "bool[~s], bool[~s] -> bool[~s]"
BITS = "i[~s], i[~s] -> i[~s]"


# -- comparisons ----------------------------------------------------------------------------------


@primitive(EQUALITY, is_commutative=True)
def equal(x: Array, y: Array) -> Array:
    """x = y. NaN equals nothing; the two zeros are equal."""
    return np.equal(x, y)


@single(EQUALITY, is_commutative=True)
def not_equal(x: Array, y: Array) -> Array:
    """x ≠ y."""
    return np.not_equal(x, y)


@primitive(ORDER)
def less(x: Array, y: Array) -> Array:
    """x < y; false with NaN."""
    return np.less(x, y)


@primitive(ORDER)
def less_equal(x: Array, y: Array) -> Array:
    """x ≤ y; false with NaN."""
    return np.less_equal(x, y)


@single(ORDER)
def greater(x: Array, y: Array) -> Array:
    """x > y; false with NaN."""
    return np.greater(x, y)


@single(ORDER)
def greater_equal(x: Array, y: Array) -> Array:
    """x ≥ y; false with NaN."""
    return np.greater_equal(x, y)


@not_equal.lowering
def _(x: Any, y: Any) -> Any:
    return ops.logical_not(ops.equal(x, y))


@greater.lowering
def _(x: Any, y: Any) -> Any:
    return ops.less(y, x)


@greater_equal.lowering
def _(x: Any, y: Any) -> Any:
    return ops.less_equal(y, x)


# -- truth values ---------------------------------------------------------------------------------


@primitive(TRUTH, is_commutative=True)
def logical_and(x: Array, y: Array) -> Array:
    """Both."""
    return np.logical_and(x, y)


@primitive(TRUTH, is_commutative=True)
def logical_or(x: Array, y: Array) -> Array:
    """One or both."""
    return np.logical_or(x, y)


@single(TRUTH, is_commutative=True)
def logical_xor(x: Array, y: Array) -> Array:
    """One, but not both."""
    return np.logical_xor(x, y)


@primitive("bool[*s] -> bool[*s]")
def logical_not(x: Array) -> Array:
    """Not x."""
    return np.logical_not(x)


@primitive("bool[~s], a[~s], a[~s] -> a[~s]")
def where(cond: Array, x: Array, y: Array) -> Array:
    """x where `cond` holds, else y."""
    return np.where(cond, x, y)


@logical_xor.lowering
def _(x: Any, y: Any) -> Any:
    return ops.not_equal(x, y)


# -- kinds of number ------------------------------------------------------------------------------


@single("x[*s] -> bool[*s]", aliases=("isnan",))
def is_nan(x: Array) -> Array:
    """Is x not a number?"""
    return np.isnan(x)


@exact("x[*s] -> bool[*s]", aliases=("isinf",))
def is_inf(x: Array) -> Array:
    """Is x, or a part of it, infinite?"""
    return np.isinf(x)


@exact("x[*s] -> bool[*s]", aliases=("isfinite",))
def is_finite(x: Array) -> Array:
    """Is x neither infinite nor NaN?"""
    return np.isfinite(x)


@is_nan.lowering
def _(x: Any) -> Any:
    return ops.not_equal(x, x)


@is_inf.lowering
def _(x: Any) -> Any:
    if DType.of(x.dtype).is_complex:
        return ops.logical_or(ops.is_inf(ops.real(x)), ops.is_inf(ops.imag(x)))
    return ops.equal(ops.abs(x), np.inf)


@is_finite.lowering
def _(x: Any) -> Any:
    if DType.of(x.dtype).is_complex:
        return ops.logical_and(ops.is_finite(ops.real(x)), ops.is_finite(ops.imag(x)))
    return ops.less(ops.abs(x), np.inf)


# -- bits -----------------------------------------------------------------------------------------


@primitive(BITS, aliases=("bitwise_and",), is_commutative=True)
def bit_and(x: Array, y: Array) -> Array:
    """The bits set in both."""
    return np.bitwise_and(x, y)


@primitive(BITS, aliases=("bitwise_or",), is_commutative=True)
def bit_or(x: Array, y: Array) -> Array:
    """The bits set in one or both."""
    return np.bitwise_or(x, y)


@primitive(BITS, aliases=("bitwise_xor",), is_commutative=True)
def bit_xor(x: Array, y: Array) -> Array:
    """The bits set in one, but not both."""
    return np.bitwise_xor(x, y)


@single("i[*s] -> i[*s]", aliases=("bitwise_not", "bitwise_invert", "invert"))
def bit_not(x: Array) -> Array:
    """Every bit the other way."""
    return np.bitwise_not(x)


@primitive(BITS, aliases=("left_shift", "bitwise_left_shift"))
def shift_left(x: Array, y: Array) -> Array:
    """x · 2ʸ, wrapping; 0 where y is the width or more, or negative."""
    return np.where(_is_inside(y), np.left_shift(x, _amount(y)), 0).astype(x.dtype)


@primitive(BITS, aliases=("right_shift", "bitwise_right_shift"))
def shift_right(x: Array, y: Array) -> Array:
    """⌊x / 2ʸ⌋; where y is the width or more, or negative: -1 of a negative x, else 0."""
    gone = np.where(x < 0, -1, 0) if DType.of(x.dtype).is_signed else 0
    return np.where(_is_inside(y), np.right_shift(x, _amount(y)), gone).astype(x.dtype)


def _is_inside(y: Array) -> Array:
    """Is the amount one that leaves some bits?"""
    return (y >= 0) & (y < y.dtype.itemsize * 8)


def _amount(y: Array) -> Array:
    return np.where(_is_inside(y), y, 0).astype(y.dtype)


@bit_not.lowering
def _(x: Any) -> Any:
    """-1 - x in two's complement; all ones less x without a sign."""
    dtype = DType.of(x.dtype)
    ones = -1 if dtype.is_signed else int(np.iinfo(dtype.numpy).max)
    return ops.bit_xor(x, ones)


def _same_bits(x: Shape, *, to: DType) -> Shape:
    for dtype in (x.dtype, to):
        if not (dtype.is_float or dtype.is_integer) or dtype.itemsize != to.itemsize:
            raise GraphError(
                f"operand 0 is {x}, whose bits are no {to}: both must be real numbers of one width"
            )
    return x.with_dtype(to)


@primitive("n[*s] -> $to[*s]", shape=_same_bits, flops="0", jumps=True)
def bitcast(x: Array, *, to: DType) -> Array:
    """The same bits read as a number of another dtype of the same width."""
    return x.view(to.numpy)


@bitcast.sample
def _(draw: Any) -> Any:
    from rlx.ops.draw import Spec

    given = draw.dtype("n")
    same_width = [d for d in DType if d.itemsize == given.itemsize and (d.is_float or d.is_integer)]
    return [Spec(draw.dims(), given)], {"to": draw.choice(same_width)}
