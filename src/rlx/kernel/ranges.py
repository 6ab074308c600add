"""Interval analysis of kernel expressions: between which numbers a value is.

Each bound is widened by `SLACK` of its size, which covers the roundings to half precision and the
approximations of functions that a target may use. Beyond the largest number of its dtype a value
may be infinite, and below the least normal one it may be 0. A NaN is in no range: it goes through
whatever is made of a range, as all arithmetic hands it on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Choose, Const, Expr, Kernel, Reduce

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
SLACK = 2.0**-7
LARGEST = {DType.F16: 65504.0, DType.BF16: 255 * 2.0**120, DType.F32: (2 - 2.0**-23) * 2.0**127}
LEAST = {DType.F16: 2.0**-14, DType.BF16: 2.0**-126, DType.F32: 2.0**-126}
"""Finite and normal numbers of dtypes; f64 has those of the analysis itself."""


def ranges(kernel: Kernel, slack: float = SLACK) -> dict[Expr, Range]:
    """Of every expression; without slack, the ends are where values of bounded functions stay."""
    found: dict[Expr, Range] = {}
    for node in kernel.nodes:
        made = _range(node, [found[a] for a in node.args], slack)
        found[node] = _in_dtype(made, node.dtype) if node.dtype in LARGEST else made
    return found


def _in_dtype(x: Range, dtype: DType) -> Range:
    """What numbers of a range are when they are rounded to a dtype."""
    low, high = x
    return -_top(-low, dtype), _top(high, dtype)


def _top(high: float, dtype: DType) -> float:
    """The most that a number of no more than this is rounded to."""
    least = LEAST[dtype]
    if -least < high < least and high != 0.0:
        return least if high > 0.0 else 0.0
    return math.inf if high > LARGEST[dtype] else high


def _range(node: Expr, args: list[Range], slack: float) -> Range:
    if not node.dtype.is_float:
        return (0.0, 1.0) if node.dtype is DType.BOOL else ANY
    match node:
        case Const():
            value = float(node.value)
            return ANY if math.isnan(value) else (value, value)
        case Choose():
            return _hull(*args[1:])
        case Reduce(fold="sum"):
            return (0.0, math.inf) if args[0][0] >= 0.0 else ANY
        case Apply(op=op) if op.name in RULES:
            return _widened(RULES[op.name](*args), slack)
        case Apply(op=op) if op.name in MONOTONE:
            made = MONOTONE[op.name]
            return _widened((made(args[0][0]), made(args[0][1])), slack)
        case Apply(op=op) if op.name == "cast" and node.args[0].dtype.is_float:
            return _widened(args[0], slack)
        case _:
            return ANY


def _widened(x: Range, slack: float) -> Range:
    low, high = (x[0] - abs(x[0]) * slack, x[1] + abs(x[1]) * slack) if slack else x
    return ANY if math.isnan(low) or math.isnan(high) else (low, high)


def _hull(*ranges: Range) -> Range:
    return min(r[0] for r in ranges), max(r[1] for r in ranges)


def _times(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def _product(x: Range, y: Range) -> Range:
    ends = [_times(a, b) for a in x for b in y]
    return min(ends), max(ends)


def _quotient(x: Range, y: Range) -> Range:
    if y[0] <= 0.0 <= y[1]:
        return ANY
    return _product(x, (1.0 / y[1], 1.0 / y[0]))


def _size(x: Range) -> Range:
    low, high = sorted((abs(x[0]), abs(x[1])))
    return (0.0 if x[0] <= 0.0 <= x[1] else low), high


def _squared(x: Range) -> Range:
    low, high = _size(x)
    return low * low, high * high


def _unit(x: Range) -> Range:
    return -1.0, 1.0


RULES: dict[str, Callable[..., Range]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "div": _quotient,
    "maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _size,
    "square": _squared,
    "where": lambda c, x, y: _hull(x, y),
    "sin": _unit,
    "cos": _unit,
}


def _exp(x: float) -> float:
    return math.exp(x) if x < 700.0 else math.inf


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + _exp(-x))


MONOTONE: dict[str, Callable[[float], float]] = {
    "exp": _exp,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "erf": math.erf,
    "sqrt": lambda x: math.sqrt(max(x, 0.0)),
}
"""Functions that grow with their operand."""
