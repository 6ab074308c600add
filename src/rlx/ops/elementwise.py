"""Arithmetic: one number in, one out, at each index; operands broadcast as in NumPy.

Nothing is undefined: integer division by zero gives 0, the least integer divided by -1 wraps,
and a float becomes an integer by truncation that saturates, with NaN as 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.attrs import Data
from rlx.dtype import DType
from rlx.op import Array, Kind, op

PRIMITIVE = "a primitive: every target has it"


def elementwise(signature: str, **facts: Any) -> Any:
    """Declare an elementwise op."""
    return op(signature, kind=Kind.ELEMENTWISE, **facts)


@elementwise("t[~s], t[~s] -> t[~s]", is_commutative=True, why_no_lowering=PRIMITIVE)
def add(x: Array, y: Array) -> Array:
    """x + y; integers wrap."""
    return np.add(x, y)


@elementwise("t[~s], t[~s] -> t[~s]", aliases=("subtract",), why_no_lowering=PRIMITIVE)
def sub(x: Array, y: Array) -> Array:
    """x - y; integers wrap."""
    return np.subtract(x, y)


@elementwise(
    "t[~s], t[~s] -> t[~s]", aliases=("multiply",), is_commutative=True, why_no_lowering=PRIMITIVE
)
def mul(x: Array, y: Array) -> Array:
    """x · y; integers wrap."""
    return np.multiply(x, y)


@elementwise("n[~s], n[~s], n[~s] -> n[~s]", flops="2*out")
def fma(x: Array, y: Array, z: Array) -> Array:
    """x · y + z, rounded after each step."""
    return x * y + z


@fma.lowering
def _(x: Any, y: Any, z: Any) -> Any:
    return ops.add(ops.mul(x, y), z)


@elementwise("a[*s] -> $to[*s]", is_exact=True, why_no_lowering=PRIMITIVE)
def cast(x: Array, *, to: DType) -> Array:
    """x as another dtype. Floats become integers by truncation that saturates, NaN becomes 0;
    integers wrap; a complex number keeps its real part; bool is "not zero"."""
    given = DType.of(x.dtype)
    if given.is_complex and not to.is_complex and to is not DType.BOOL:
        x, given = x.real, given.real
    if to is DType.BOOL:
        return x != 0
    if given.is_float and to.is_integer:
        return _saturated(x.astype(np.float64), to)
    return x.astype(to.numpy)


def _saturated(x: Array, to: DType) -> Array:
    """Truncate toward zero; past the range the nearest end. 2^63 is exact in f64, 2^63 - 1 not."""
    info = np.iinfo(to.numpy)
    whole = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (whole > float(info.min) - 1.0) & (whole < float(info.max) + 1.0)
    kept = np.where(inside, whole, 0.0).astype(to.numpy)
    high = np.where(whole > 0, info.max, info.min).astype(to.numpy)
    return np.where(inside & (whole < 2.0**info.bits), kept, high)
