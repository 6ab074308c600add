"""The combining operation of a reduction, and its identity."""

from __future__ import annotations

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType
from rlx.kernel.expr import Reduce

CHAIN = 128
"""Float additions per chain; the chain's sum is then added to one in f64. A chain as long as the
axis was seven times as far from f64 on a mean of 6400 positive numbers."""


def is_rounded(r: Reduce) -> bool:
    """Does each step of the reduction round? Of products it is as little as it can be."""
    return r.fold == "sum" and r.dtype.compute in (DType.F32, DType.F64)


def identity(code: Code, r: Reduce) -> Vec:
    return code.const(r.identity, r.dtype.compute)


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


def pairwise(r: Reduce, values: list[Vec]) -> Vec:
    """A tree of combinations."""
    while len(values) > 1:
        pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
        values = [fold(r, *p) if len(p) == 2 else p[0] for p in pairs]
    return values[0]


def across(r: Reduce, value: Vec) -> Vec:
    """Butterfly reduction: after log₂ lanes steps every lane holds the total."""
    lanes = value.code.lanes
    distance = lanes // 2
    while distance:
        value = fold(r, value, value.shuffled([n ^ distance for n in range(lanes)]))
        distance //= 2
    return value
