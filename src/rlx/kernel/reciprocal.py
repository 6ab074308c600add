"""Rows divided by what was summed along them: one division for the row, and a product for each of
its elements.

A quotient made so is within 1.5 units in the last place instead of ½. That is for sums only, which
are rounded themselves: what a row is divided by in softmax and in norms. Any other division stays
exact, so that x / max x is 1 at the greatest, and 6 / 3 is 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Expr, Exprs, Kernel, Reduce
from rlx.kernel.rewrite import rewritten
from rlx.ops.op import lookup


def by_reciprocals(kernel: Kernel) -> Kernel:
    """The same kernel with quotients of rows by their sums as products."""
    chosen = row_quotients(kernel)
    if not chosen:
        return kernel

    def rule(node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
        return _product(node, args, exprs) if node in chosen else None

    return rewritten(kernel, rule)


def row_quotients(kernel: Kernel) -> frozenset[Expr]:
    """Quotients of rows by their sums."""
    sums = _sums(kernel)
    quotients = [n for n in kernel.nodes if isinstance(n, Apply) and _is_row_quotient(n, sums)]
    return frozenset(quotients)


def _sums(kernel: Kernel) -> dict[Expr, frozenset[Any]]:
    """The axes that each value was summed along; a sum rounded to a half float is a number like
    any other."""
    found: dict[Expr, frozenset[Any]] = {}
    for node in kernel.nodes:
        if node.dtype.compute is not node.dtype:
            found[node] = frozenset()
            continue
        own = {node.axis} if isinstance(node, Reduce) and node.fold == "sum" else set()
        found[node] = frozenset(own).union(*(found[a] for a in node.args))
    return found


def _is_row_quotient(node: Apply, sums: dict[Expr, frozenset[Any]]) -> bool:
    if node.op.name != "div" or node.dtype not in (DType.F32, DType.F64):
        return False
    x, y = node.args
    return not sums[y].isdisjoint(x.free - y.free)


def _product(node: Expr, args: list[Expr], exprs: Exprs) -> Expr:
    """x · s · (1 / (y · s)). The power of two s is 1, unless 1 / y by itself is out of range."""
    x, y = args
    dtype, info = node.dtype, np.finfo(node.dtype.numpy)

    def op(name: str, *given: Expr, to: DType = dtype) -> Expr:
        return exprs.apply(lookup(name), given, {}, to)

    def number(value: float) -> Expr:
        return exprs.const(np.asarray(value, dtype.numpy), dtype)

    tiny = float(info.tiny)
    bits = 2.0 ** (info.nmant + 2)
    size = op("abs", y)
    is_small = op("less", size, number(tiny), to=DType.BOOL)
    is_large = op("greater", size, number(1.0 / tiny), to=DType.BOOL)
    scale = op("where", is_large, number(1.0 / bits), number(1.0))
    scale = op("where", is_small, number(bits), scale)
    factor = op("div", number(1.0), op("mul", y, scale))
    return op("mul", op("mul", x, scale), factor)
