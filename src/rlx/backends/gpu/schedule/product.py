"""Contractions as products of two matrices: which axes are its rows, columns, inner and batch axes,
and how tiles of both operands are read.

    c[b, m, n] = Σ_k left[b, m, k] · right[b, k, n]

Each of m, n and k is the flat position of several axes, the last the fastest: batch axes that only
one operand varies with are more rows or more columns, so that a convolution's windows are the rows
of one matrix. Rows and columns are exchanged where results are contiguous along the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.lower.elementwise import is_native
from rlx.backends.gpu.schedule.loop import is_aligned
from rlx.core.dim import DimLike, exact_div, is_static, product
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract, through
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import (
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Exprs,
    Inside,
    Kernel,
    Load,
    Store,
    postorder,
)
from rlx.kernel.refusal import Refusal
from rlx.kernel.rewrite import Rewriter, substitution

HALVES = (DType.F16, DType.BF16)
MIN_RUN = 8
"""Contiguous elements that threads share out between them."""
UNITS = (8, 4, 2)
"""Half floats that are accessed at once: 16, 8 or 4 bytes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of rows or columns by inner positions, and how tiles of it are read."""

    value: Expr
    outer: tuple[Axis, ...]
    """Its rows or columns."""
    inner: tuple[Axis, ...]
    """The product's inner axes; one instead, where a step of their flat position is always the same
    in memory."""
    is_along_inner: bool
    """Are units of it contiguous along the last inner axis, or along the last of the others?"""
    unit: int
    """Neighbours that are read at once."""
    source: Load | None = None
    """What is copied as it is in memory, where nothing is computed of it."""
    guards: tuple[Inside, ...] = ()
    """Where that is read; elsewhere it is 0."""
    is_scattered: bool = False
    """Is hardly anything contiguous? Neighbouring threads then read neighbouring rows."""

    def is_constant(self, constants: frozenset[int]) -> bool:
        """Does it depend on nothing that a kernel of a run writes?"""
        loads = [n for n in postorder([self.value]) if isinstance(n, Load)]
        return all(n.operand in constants for n in loads)


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction in ops that GPUs have, and its axes in groups."""

    contract: Contract
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    single: tuple[Axis, ...]
    """Axes of one step, which are in none of the groups."""
    left: Operand
    right: Operand
    is_swapped: bool = False
    """Are its rows the columns of the contraction, and its columns the rows?"""

    @property
    def dtype(self) -> DType:
        return self.left.value.dtype

    @property
    def sizes(self) -> tuple[DimLike, DimLike, DimLike, DimLike]:
        """Of batch, rows, columns, inner positions."""
        groups = (self.batch, self.rows, self.columns, self.inner)
        batch, rows, columns, inner = (product(a.extent for a in g) for g in groups)
        return batch, rows, columns, inner

    def resized(self, resize: Callable[[DimLike], DimLike]) -> Product:
        """The same over axes of other extents, to be priced: expressions stay as they are."""
        groups = (self.batch, self.rows, self.columns, self.inner)
        made = (tuple(replace(a, extent=resize(a.extent)) for a in g) for g in groups)
        batch, rows, columns, inner = made
        return replace(self, batch=batch, rows=rows, columns=columns, inner=inner)

    def kernel(self) -> Kernel:
        """Its expressions as those of a loop nest: both operands, then what is stored."""
        contract = self.contract
        axes = (*contract.outer, *contract.inner)
        everywhere = Affine(tuple((a, 1) for a in axes))
        operands = [Store(-1, everywhere, x) for x in (contract.left, contract.right)]
        stores = (*operands, *contract.stores)
        return Kernel(contract.name, axes, stores, contract.operands, contract.results)

    @property
    def store_width(self) -> int:
        """Neighbours of a row of the result that are stored at once."""
        last = self.columns[-1:]
        stores = self.contract.stores
        return max((w for w in UNITS if any(_is_unit(s.at, last, w) for s in stores)), default=1)


@functools.lru_cache(maxsize=8)  # forms ask it of the same contraction one after the other
def product_of(contract: Contract) -> Product | Refusal:
    """The product of a contraction of half floats, or why it is none."""
    contract = in_halves(contract)
    left, right = contract.left, contract.right
    if left.dtype is not right.dtype or left.dtype not in HALVES:
        return Refusal(f"{contract.name}: its operands are not of one half-precision dtype")
    if contract.columns in left.free or contract.rows in right.free:
        return Refusal(f"{contract.name}: it is depthwise")
    outer = _long(contract.outer)
    if any(_long(s.at.axes) != outer for s in contract.stores):
        return Refusal(f"{contract.name}: a result has other axes than the product")
    legal = through(contract, lambda kernel: decomposed(kernel, is_native))
    is_swapped = _is_by_rows(legal)
    made = _grouped(legal.swapped() if is_swapped else legal)
    if not made.rows and not made.columns:
        return Refusal(f"{contract.name}: it has neither rows nor columns")
    return replace(made, is_swapped=is_swapped)


def _long(axes: Iterable[Axis]) -> frozenset[Axis]:
    """Those of more than one step."""
    return frozenset(a for a in axes if a.extent != 1)


def in_halves(contract: Contract) -> Contract:
    """Operands of f32 that hold half floats as those: the products of either are exact in f32."""
    exprs = Exprs()
    for half in HALVES if contract.sums is DType.F32 else ():
        left, right = (narrowed(exprs, x, half) for x in (contract.left, contract.right))
        if left is not None and right is not None:
            return replace(contract, left=left, right=right)
    return contract


def narrowed(exprs: Exprs, x: Expr, half: DType) -> Expr | None:
    """What holds half floats as those, inside of bounds and outside."""
    if x.dtype is half:
        return x
    if not isinstance(x, Choose):
        return exprs.narrowed(x, half)
    guard, yes, no = x.args[0], *(narrowed(exprs, side, half) for side in x.args[1:])
    return None if yes is None or no is None else exprs.choose(guard, yes, no)


def _is_by_rows(contract: Contract) -> bool:
    """Are more results contiguous along the rows than along the columns?"""
    counts = [
        sum(s.at.coefficient(axis) == 1 for s in contract.stores)
        for axis in (contract.rows, contract.columns)
    ]
    return counts[0] > counts[1]


def _grouped(contract: Contract) -> Product:
    left, right = contract.left, contract.right
    single = tuple(a for a in (*contract.outer, *contract.inner) if a.extent == 1)
    batch, rows, columns = list[Axis](), list[Axis](), list[Axis]()
    for axis in contract.batch:
        is_shared = axis in left.free and axis in right.free
        (batch if is_shared else columns if axis in right.free else rows).append(axis)
    groups = (batch, [*rows, contract.rows], [*columns, contract.columns], contract.inner)
    of_batch, of_rows, of_columns, inner = (tuple(a for a in g if a.extent != 1) for g in groups)
    return Product(
        contract,
        of_batch,
        of_rows,
        of_columns,
        inner,
        single,
        _operand(left, of_rows, inner),
        _operand(right, of_columns, inner),
    )


def _operand(value: Expr, outer: tuple[Axis, ...], inner: tuple[Axis, ...]) -> Operand:
    """Units go along the axis that allows the longer ones; if both do, along the inner one."""
    value, inner = _with_one_inner_axis(value, inner)
    candidates = [(_unit(value, axes[-1:]), axes is inner) for axes in (inner, outer)]
    unit, is_along_inner = max(candidates, key=lambda candidate: candidate[0])
    if unit == 1 and not _has_runs(value, inner[-1:]) and not _has_runs(value, outer[-1:]):
        return Operand(value, outer, inner, True, 1, is_scattered=True)
    if unit == 1:
        is_along_inner = _contiguous(value, inner[-1:]) >= _contiguous(value, outer[-1:])
    source, guards = copied(value)
    made = Operand(value, outer, inner, is_along_inner, unit)
    along = (inner if is_along_inner else outer)[-1:]
    if source is None or unit == 1 or any(g.free & set(along) for g in guards):
        return made
    is_copied = _is_unit(source.at, along, unit)
    return replace(made, source=source, guards=guards) if is_copied else made


def _loads(value: Expr) -> Iterable[Load]:
    return (n for n in postorder([value]) if isinstance(n, Load))


def _contiguous(value: Expr, last: Sequence[Axis]) -> int:
    return sum(n.at.coefficient(a) == 1 for n in _loads(value) for a in last)


def _has_runs(value: Expr, last: Sequence[Axis]) -> bool:
    """Is something contiguous along an axis of more than a few steps?"""
    is_long = any(not is_static(a.extent) or a.extent >= MIN_RUN for a in last)
    return is_long and _contiguous(value, last) > 0


def _unit(value: Expr, last: Sequence[Axis]) -> int:
    """The longest unit of which one load is aligned to whole ones."""
    loads = [n for n in _loads(value) if not any(set(last) & a.free for a in n.args)]
    fits = (u for u in UNITS if any(_is_unit(n.at, last, u, n.stride) for n in loads))
    return max(fits, default=1)


def _is_unit(at: Affine, last: Sequence[Axis], unit: int, stride: DimLike = 0) -> bool:
    """Do units divide the axis, and are they contiguous and aligned?"""
    return any(
        exact_div(a.extent, unit) is not None and is_aligned(at, a, unit, stride) for a in last
    )


def _with_one_inner_axis(value: Expr, inner: tuple[Axis, ...]) -> tuple[Expr, tuple[Axis, ...]]:
    """A plain load over one inner axis, where its index is linear in their flat position."""
    if not isinstance(value, Load) or value.args or stride_of(value.at, inner) is None:
        return value, inner
    flat = Axis("k", product(a.extent for a in inner))
    moves = {a: Affine() for a in inner} | {inner[-1]: Affine.of(flat)}
    return Rewriter(Exprs(), substitution(moves))(value), (flat,)


def stride_of(at: Affine, axes: Sequence[Axis]) -> DimLike | None:
    """By which a step of the flat position of axes moves; none where that differs."""
    if not axes:
        return None
    step = at.coefficient(axes[-1])
    expected = step
    for axis, before in zip(reversed(axes), reversed(axes[:-1])):
        expected = expected * axis.extent
        if at.coefficient(before) != expected:
            return None
    return step


def copied(value: Expr) -> tuple[Load | None, tuple[Inside, ...]]:
    """The load that an operand is, inside of bounds outside of which it is 0; none where something
    is computed of it."""
    guards: list[Inside] = []
    while isinstance(value, Choose):
        guard, value, other = value.args
        if not isinstance(guard, Inside) or not _is_zero(other):
            return None, ()
        guards.append(guard)
    if not isinstance(value, Load) or value.args:
        return None, ()
    return value, tuple(guards)


def _is_zero(value: Expr) -> bool:
    while isinstance(value, Apply) and value.op.name == "cast":
        (value,) = value.args
    return isinstance(value, Const) and not value.value.any()
