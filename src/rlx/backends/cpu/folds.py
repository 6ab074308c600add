"""What a reduction does with two values, and what changes nothing."""

from __future__ import annotations

from rlx.backends.cpu import arith
from rlx.backends.cpu.ir import Vec
from rlx.dtype import DType
from rlx.kernel.expr import Reduce


def identity_of(r: Reduce) -> int | float:
    """What folding with changes nothing."""
    if r.fold in ("sum", "prod"):
        return {"sum": 0, "prod": 1}[r.fold]
    is_max = r.fold == "max"
    if r.dtype.is_float:
        return float("-inf" if is_max else "inf")
    if r.dtype is DType.BOOL:
        return not is_max
    bits = r.dtype.itemsize * 8 - r.dtype.is_signed
    return (-(2**bits) if r.dtype.is_signed else 0) if is_max else 2**bits - 1


def fold(r: Reduce, a: Vec, b: Vec) -> Vec:
    if a.dtype is DType.BOOL:
        return a | b if r.fold in ("max", "sum") else a & b
    match r.fold:
        case "sum":
            return a + b
        case "prod":
            return a * b
        case "max":
            return arith.maximum(a, b)
        case _:
            return arith.minimum(a, b)
