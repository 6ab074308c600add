"""The combining operation of a reduction."""

from __future__ import annotations

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Vec
from rlx.core.dtype import DType
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
