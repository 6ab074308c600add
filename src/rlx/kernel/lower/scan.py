"""Lowering to scans: cumulative ops here, recurrent and state-space layers in their own files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Store, strided
from rlx.kernel.lower.recurrent import LAYERS, recurrent_scan
from rlx.kernel.lower.state_space import STATE_SPACES, state_space_scan
from rlx.kernel.refusal import Refusal
from rlx.kernel.scan import Direction, Memory, Scan, Value
from rlx.ops.math.reduction import carried


def lower_scan(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Scan | Refusal:
    """The scan of a step, or why it is none. Layouts give the strides of operands and results in
    their buffers; without them, contiguous."""
    given = operands or [Layout.contiguous(i.shape.dims) for i in node.inputs]
    made = results or [Layout.contiguous(s.dims) for s in node.shapes]
    if node.op in COMBINE:
        return _Cumulative.of(node, given[0], made[0]).scan()
    if node.op in LAYERS:
        return recurrent_scan(node, given, made)
    if node.op in STATE_SPACES:
        return state_space_scan(node, given, made)
    return Refusal(f"{node.label}: {node.op} is no scan")


# -- cumulative ops -------------------------------------------------------------------------------

Numbers = tuple[Expr, ...]
"""A number; two are a complex one, or a sum and its lost roundings."""


def _log_add_exp(e: Exprs, x: Expr, y: Expr) -> Expr:
    """log(eˣ + eʸ): the greater, and what the lesser adds to it, log(1 + e^-gap)."""
    small = e.op("exp", e.op("neg", e.op("abs", e.op("sub", x, y))))
    whole = e.op("add", small, 1.0)
    lost = e.op("div", e.op("sub", small, e.op("sub", whole, 1.0)), whole)
    more = e.op("add", e.op("log", whole), lost)
    more = e.op("where", e.op("equal", x, y), math.log(2.0), more)
    return e.op("add", e.op("maximum", x, y), more)


def _product(e: Exprs, x: Numbers, y: Numbers) -> Numbers:
    if len(x) == 1:
        return (e.op("mul", x[0], y[0]),)
    (a, b), (c, d) = x, y
    real = e.op("sub", e.op("mul", a, c), e.op("mul", b, d))
    return real, e.op("add", e.op("mul", a, d), e.op("mul", b, c))


def _compensated(e: Exprs, state: Numbers, x: Numbers) -> Numbers:
    """The sum, and its lost roundings (two-sum); what is not finite loses nothing."""
    (before, lost), y = state, x[0]
    total = e.op("add", before, y)
    part = e.op("sub", total, before)
    error = e.op("add", e.op("sub", before, e.op("sub", total, part)), e.op("sub", y, part))
    return total, e.op("add", lost, e.op("where", e.op("equal", error, error), error, 0.0))


def _one(fold: Callable[[Exprs, Expr, Expr], Expr]) -> Callable[..., Numbers]:
    return lambda e, x, y: (fold(e, x[0], y[0]),)


COMBINE: dict[str, Callable[[Exprs, Numbers, Numbers], Numbers]] = {
    "cumsum": _one(lambda e, x, y: e.op("add", x, y)),
    "cumprod": _product,
    "cummax": _one(lambda e, x, y: e.op("maximum", x, y)),
    "cummin": _one(lambda e, x, y: e.op("minimum", x, y)),
    "cum_log_sum_exp": _one(_log_add_exp),
}
ROUNDED = ("cumsum", "cumprod", "cum_log_sum_exp")
"""Those that round at every step, which carrying f64 hides from f32."""


@dataclass(frozen=True, slots=True)
class _Cumulative:
    """A cumulative op on real numbers: the parts of complex ones are an axis where they are
    independent, and two carries where they are multiplied."""

    node: Node
    x: tuple[Affine, ...]
    y: tuple[Affine, ...]
    """The index of each part."""
    rows: tuple[Axis, ...]
    time: Axis

    @classmethod
    def of(cls, node: Node, x: Layout, y: Layout) -> _Cumulative:
        axis = node.attrs["axis"]
        axes = [Axis(f"d{i}", d) for i, d in enumerate(node.shape.dims)]
        time = axes[axis]
        maps = [strided(v, axes) for v in (x, y)]
        rows = (*axes[:axis], *axes[axis + 1 :])
        if not node.shape.dtype.is_complex:
            return cls(node, (maps[0],), (maps[1],), rows, time)
        if node.op == "cumprod":
            pairs = [(m * 2, m * 2 + 1) for m in maps]
            return cls(node, pairs[0], pairs[1], rows, time)
        part = Axis("part", 2)
        wide = [m * 2 + Affine.of(part) for m in maps]
        return cls(node, (wide[0],), (wide[1],), (*rows, part), time)

    @property
    def dtype(self) -> DType:
        return self.node.shape.dtype.real

    @property
    def wide(self) -> DType:
        """The dtype of the carry."""
        return carried(self.dtype) if self.node.op in ROUNDED else self.dtype.compute

    @property
    def is_compensated(self) -> bool:
        """Sums of f64 have no wider dtype for the carry."""
        return self.node.op == "cumsum" and self.dtype is DType.F64

    @property
    def carries(self) -> tuple[Value, ...]:
        names = ("carry", "lost") if self.is_compensated else ("carry", "imag")[: len(self.x)]
        return tuple(Value(n, self.rows, self.wide) for n in names)

    def scan(self) -> Scan:
        shapes = (self.node.inputs[0].shape,), self.node.shapes
        memory, e = Memory(*shapes, self.carries), Exprs()
        x = tuple(e.cast(e.load(0, at, self.dtype), self.wide) for at in self.x)
        before = tuple(memory.load(e, v.name, *v.axes) for v in self.carries)
        fold = _compensated if self.is_compensated else COMBINE[self.node.op]
        now = fold(e, before, x)
        exclusive = self.node.attrs.get("exclusive", False)
        step = [*self._given(e, before if exclusive else now), *self._kept(memory, now)]
        zero = e.number(0, self.wide)
        first = (*x, zero) if self.is_compensated else x
        identity = e.number(1 if self.node.op == "cumprod" else 0, self.wide)
        shown = (identity, *[zero] * (len(first) - 1)) if exclusive else first
        start = [*self._given(e, shown), *self._kept(memory, first)]
        axes = self.rows
        return Scan(
            self.node.op, self.time, Axis("d", 1), self.carries, (), (),
            (memory.kernel("first", axes, start),), True,
            (Direction(self.node.attrs["reverse"], (memory.kernel("step", axes, step),)),), (),
            *shapes,
        )  # fmt: skip

    def _kept(self, memory: Memory, value: Numbers) -> list[Store]:
        return [memory.store(v.name, x, *v.axes) for v, x in zip(self.carries, value)]

    def _given(self, e: Exprs, value: Numbers) -> list[Store]:
        """Rounded to the compute dtype first, and then to half precision."""
        parts = (e.op("add", *value),) if self.is_compensated else value
        rounded = (e.cast(e.cast(v, self.dtype.compute), self.dtype) for v in parts)
        return [Store(0, at, v) for at, v in zip(self.y, rounded)]
