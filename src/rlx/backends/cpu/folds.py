"""What a reduction does with two values."""

from __future__ import annotations

from rlx.backends.cpu import arith
from rlx.backends.cpu.ir import Vec
from rlx.dtype import DType
from rlx.kernel.expr import Reduce


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
