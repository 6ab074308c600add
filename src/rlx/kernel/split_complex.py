"""Complex numbers as pairs of real ones, for targets whose loops hold real numbers only.

A complex operand or result is then read and written as real numbers, interleaved in memory: the
real part of element i at 2i, the imaginary part behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Choose, Const, Expr, Exprs, Kernel, Load, Reduce, Size, Store
from rlx.kernel.refusal import NotLowered
from rlx.kernel.rewrite import rebuilt
from rlx.ops.op import lookup

Pair = tuple[Expr, Expr]
Value = Expr | Pair
SPLIT = frozenset(
    "add sub neg mul div abs real imag make_complex equal where cast".split()  # noqa: SIM905
)
"""The ops that are split here; others on complex numbers are decomposed into them first."""


def has_complex(kernel: Kernel) -> bool:
    shapes = (*kernel.operands, *kernel.results)
    return any(s.dtype.is_complex for s in shapes) or any(n.dtype.is_complex for n in kernel.nodes)


def touches_complex(node: Apply) -> bool:
    return node.dtype.is_complex or any(a.dtype.is_complex for a in node.args)


def split(kernel: Kernel) -> Kernel:
    """The kernel on real numbers; its complex ops must be among `SPLIT`."""
    made: dict[Expr, Value] = {}
    splitter = _Splitter(Exprs(), kernel.name)
    for node in kernel.nodes:
        made[node] = splitter.value(node, [made[a] for a in node.args])
    stores: list[Store] = []
    for store in kernel.stores:
        stores += _stores(store, made[store.value])
    return replace(kernel, stores=tuple(stores))


def _stores(store: Store, value: Value) -> list[Store]:
    if isinstance(value, Expr):
        return [Store(store.result, store.at, value)]
    return [Store(store.result, store.at * 2 + i, part) for i, part in enumerate(value)]


class _Splitter:
    """Expressions of one kernel as pairs of real ones."""

    def __init__(self, exprs: Exprs, name: str) -> None:
        self.exprs, self.name = exprs, name

    def value(self, node: Expr, args: Sequence[Any]) -> Value:
        if isinstance(node, Apply) and touches_complex(node):
            return self.applied(node, args)
        if not node.dtype.is_complex:
            return rebuilt(node, list(args), self.exprs)
        kind = node.dtype.real
        match node:
            case Const():
                return self.number(node.value.real, kind), self.number(node.value.imag, kind)
            case Size():
                return self.exprs.size(node.dim, kind), self.number(0, kind)
            case Load():
                return self.loaded(node, args, 0), self.loaded(node, args, 1)
            case Choose():
                sides = [self.exprs.choose(args[0], a, b) for a, b in zip(args[1], args[2])]
                return sides[0], sides[1]
            case Reduce(fold="sum"):
                sums = [self.exprs.reduce("sum", node.axis, part) for part in args[0]]
                return sums[0], sums[1]
            case _:
                what = f"a {node.fold}" if isinstance(node, Reduce) else type(node).__name__
                raise NotLowered(f"{self.name}: {what} of complex numbers is none of their parts'")

    def number(self, value: Any, dtype: DType) -> Expr:
        return self.exprs.const(np.asarray(value, dtype.numpy), dtype)

    def loaded(self, node: Load, args: Sequence[Expr], part: int) -> Expr:
        at, kind = node.at * 2 + part, node.dtype.real
        if not args:
            return self.exprs.load(node.operand, at, kind)
        stride, bound = node.stride * 2, node.bound
        return self.exprs.gather(node.operand, at, kind, args[0], stride, bound)

    def op(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        """A real op; its dtype is that of its last operand, unless `to` states it."""
        dtype = attrs.get("to", args[-1].dtype)
        is_truth = name in ("equal", "less", "less_equal", "greater_equal", "not_equal")
        return self.exprs.apply(lookup(name), args, attrs, DType.BOOL if is_truth else dtype)

    def applied(self, node: Apply, args: Sequence[Any]) -> Value:
        rules: dict[str, Callable[..., Value]] = {
            "add": lambda x, y: self.both("add", x, y),
            "sub": lambda x, y: self.both("sub", x, y),
            "neg": lambda x: self.both("neg", x),
            "mul": self.product,
            "div": self.quotient,
            "abs": lambda x: self.op("hypot", *x),
            "real": lambda x: x[0],
            "imag": lambda x: x[1],
            "make_complex": lambda re, im: (self.as_part(re, node.dtype),
                                            self.as_part(im, node.dtype)),
            "equal": lambda x, y: self.op("logical_and", *self.both("equal", x, y)),
            "where": lambda c, x, y: (self.op("where", c, x[0], y[0]),
                                      self.op("where", c, x[1], y[1])),
            "cast": lambda x: self.cast(x, node.attrs["to"]),
        }  # fmt: skip
        return rules[node.op.name](*args)

    def both(self, name: str, *pairs: Pair) -> Pair:
        return self.op(name, *(p[0] for p in pairs)), self.op(name, *(p[1] for p in pairs))

    def as_part(self, x: Expr, whole: DType) -> Expr:
        return x if x.dtype is whole.real else self.op("cast", x, to=whole.real)

    def product(self, x: Pair, y: Pair) -> Pair:
        mul = lambda a, b: self.op("mul", a, b)
        real = self.op("sub", mul(x[0], y[0]), mul(x[1], y[1]))
        return real, self.op("add", mul(x[0], y[1]), mul(x[1], y[0]))

    def quotient(self, x: Pair, y: Pair) -> Pair:
        """Smith: divide through by the larger part of the divisor, which then cannot overflow."""
        op = self.op
        size = [op("abs", p) for p in y]
        is_real = op("less_equal", size[1], size[0])
        big, small = op("where", is_real, y[0], y[1]), op("where", is_real, y[1], y[0])
        zero = self.number(0.0, big.dtype)
        is_zero = op("logical_and", *(op("equal", s, zero) for s in size))  # not so beside a NaN
        ratio = op("where", is_zero, zero, op("div", small, big))
        below = op("where", is_zero, op("abs", big), op("add", big, op("mul", small, ratio)))
        a, b = op("where", is_real, x[0], x[1]), op("where", is_real, x[1], x[0])
        real = op("div", op("add", a, op("mul", b, ratio)), below)
        cross = op("div", op("sub", b, op("mul", a, ratio)), below)
        return real, op("where", is_real, cross, op("neg", cross))

    def cast(self, x: Value, to: DType) -> Value:
        if isinstance(x, Expr):
            part = self.op("cast", x, to=to.real)
            return part, self.number(0.0, to.real)
        if to is DType.BOOL:
            zero = self.number(0.0, x[0].dtype)
            return self.op("logical_or", *(self.op("not_equal", p, zero) for p in x))
        if to.is_complex:
            return self.op("cast", x[0], to=to.real), self.op("cast", x[1], to=to.real)
        return self.op("cast", x[0], to=to)
