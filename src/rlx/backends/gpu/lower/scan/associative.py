"""Cumulative ops as prefix scans: steps that fold one operand into one carry.

    carry ← carry ∘ x[t],  result[t] made of the carry before or behind the step

∘ is a sum, a product, a maximum or a minimum: chunks of the time axis can be reduced independently.
Where there are few channels, the axis is split into chunks, in three launches: the fold of each
chunk, the fold of all chunks before each, and the steps of each chunk from there on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.gpu.lower.scan.steps import ScanKernels
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.expr import Affine, Apply, Axis, Expr, Exprs, Kernel, Load, Reduce, Store
from rlx.kernel.rewrite import Rewriter, substitution
from rlx.kernel.scan import Value
from rlx.program.nodes import ReduceOp

FOLDS: dict[str, tuple[str, ReduceOp]] = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "maximum": ("max", "max"),
    "minimum": ("min", "min"),
}
"""Ops of a step, as the folds of kernels and of programs."""


@dataclass(frozen=True, slots=True)
class Associative:
    """The step of a cumulative op."""

    kernels: ScanKernels
    carry: Value
    before: Load
    """The carry, as a step reads it."""
    now: Apply
    """The carry that a step makes."""
    x: Expr
    """What is folded into it."""

    @property
    def fold(self) -> str:
        return FOLDS[self.now.op.name][0]

    @property
    def op(self) -> ReduceOp:
        return FOLDS[self.now.op.name][1]

    @property
    def identity(self) -> int | float:
        made = Reduce(self.carry.dtype, fold=self.fold, axis=self.kernels.scan.time)
        return made.identity


def associative(kernels: ScanKernels) -> Associative | None:
    """The step, if it is one that parts of the time axis can be folded by."""
    scan = kernels.scan
    if len(scan.memory.values) != 1 or len(kernels.steps) != 1 or kernels.finish:
        return None
    if not scan.has_first or len(kernels.reversals) != 1 or kernels.reduced:
        return None
    (carry,), (step,) = scan.carries, kernels.steps
    made = [s.value for s in step.stores if kernels.stored_value(s) is not None]
    before = [n for n in step.nodes if isinstance(n, Load) and kernels.value_of(n) is not None]
    if len(made) != 1 or len(before) != 1:
        return None
    match made[0]:
        case Apply(op=op, args=(a, b)) as now if op.name in FOLDS and before[0] in (a, b):
            x = b if a is before[0] else a
            is_own = x not in kernels.volatile and before[0].at == carry.at(*carry.axes)
            return Associative(kernels, carry, before[0], now, x) if is_own else None
        case _:
            return None


@dataclass(frozen=True, slots=True)
class TimeChunks:
    """Parts of the time axis, all of one length but the last."""

    axis: Axis
    length: DimLike


def fold_of_chunks(step: Associative, chunks: TimeChunks, points: tuple[Axis, ...]) -> Kernel:
    """[chunk, point] ← the fold of the chunk's x."""
    scan, e = step.kernels.scan, Exprs()
    time = scan.time
    inner = Axis("inner", chunks.length)
    at = Affine.of(chunks.axis) * chunks.length + Affine.of(inner)
    back = at * -1 + (time.extent - 1)
    position = back if step.kernels.reversals[0] else at
    moves = {time: position, scan.direction: Affine((), step.kernels.first)}
    x = Rewriter(e, substitution(moves))(step.x)
    nothing = e.number(step.identity, step.carry.dtype)
    body = e.choose(e.inside(at, 0, time.extent), x, nothing)
    axes = (chunks.axis, *points)
    store = Store(0, _contiguous(axes), e.reduce(step.fold, inner, body))
    shape = Shape(tuple(a.extent for a in axes), step.carry.dtype)
    return Kernel(f"{scan.name}_folds", axes, (store,), scan.operands, (shape,))


def folds_before(step: Associative, chunks: TimeChunks, points: tuple[Axis, ...]) -> Kernel:
    """[chunk, point] ← the fold of all chunks before, in order."""
    e, other = Exprs(), Axis("other", chunks.axis.extent)
    axes, dtype = (chunks.axis, *points), step.carry.dtype
    whole = e.load(0, _contiguous((other, *points)), dtype)
    is_before = e.op("less", e.index(Affine.of(other)), e.index(Affine.of(chunks.axis)))
    body = e.op("where", is_before, whole, _number(e, step.identity, dtype))
    store = Store(0, _contiguous(axes), e.reduce(step.fold, other, body))
    shape = Shape(tuple(a.extent for a in axes), dtype)
    return Kernel(f"{step.kernels.scan.name}_before", axes, (store,), (shape,), (shape,))


def _number(e: Exprs, value: float, dtype: DType) -> Expr:
    made: Any = np.asarray(value, dtype.numpy)
    return e.const(made, dtype)


def _contiguous(axes: tuple[Axis, ...]) -> Affine:
    at, weight = Affine(), 1
    for axis in reversed(axes):
        at, weight = at + Affine.of(axis) * weight, weight * axis.extent
    return at
