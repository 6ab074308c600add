"""Contractions: kernels whose core is a sum of products over an axis that the result has not.

    acc[b, m, n] = Σ_k left[b, m, k] · right[b, k, n]
    store y[b, m, n] = relu(acc + bias[n])

Several right factors make as many sums, which the stores may use together, such as both parts of a
gate. The left factor may have reductions over the inner axis, such as the norm of a row.

What is read from memory, and how its index moves with each axis, is in the expressions: a
transposed operand, a broadcast batch and interleaved heads are strides, not copies. All loops
besides rows, columns and inner ones are batch loops. What follows the sum is an expression on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.expr import (
    Accumulator,
    Affine,
    Apply,
    Axis,
    Expr,
    Exprs,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Store,
    postorder,
)
from rlx.kernel.rewrite import Rewriter, substitution
from rlx.ops.op import lookup


@dataclass(frozen=True, slots=True)
class Contract:
    """For every point of batch, rows and columns: sum left · right over the inner axes, then do
    the stores."""

    name: str
    batch: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    inner: tuple[Axis, ...]
    left: Expr
    """Varies with batch, rows and inner axes only."""
    right: Expr
    """Varies with batch, inner axes and columns only."""
    sums: DType
    """The dtype of the accumulators."""
    stores: tuple[Store, ...]
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    more: tuple[Expr, ...] = ()
    """Further right factors: the sum with the first of them is part 1."""

    @property
    def rights(self) -> tuple[Expr, ...]:
        """The right factors, by the parts of the sum."""
        return (self.right, *self.more)

    @property
    def is_plain(self) -> bool:
        """Is it one sum of elementwise factors?"""
        return not self.more and not self.has_folds

    @property
    def has_folds(self) -> bool:
        """Does the left factor reduce rows?"""
        return any(isinstance(n, Reduce) for n in postorder([self.left]))

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The axes of the results."""
        return (*self.batch, self.rows, self.columns)

    @property
    def epilogue(self) -> tuple[Expr, ...]:
        """What is done with the sum: every expression once, arguments first."""
        return tuple(postorder(s.value for s in self.stores))

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The sums, as the epilogue reads them."""
        return tuple(n for n in self.epilogue if isinstance(n, Accumulator))

    @property
    def maps(self) -> tuple[Affine, ...]:
        """Every index map."""
        nodes = postorder((self.left, *self.rights, *(s.value for s in self.stores)))
        read = [n.at for n in nodes if isinstance(n, Load | Index | Inside)]
        return (*read, *(s.at for s in self.stores))

    def swapped(self) -> Contract:
        """The same sums with rows and columns exchanged: products commute."""
        assert self.is_plain
        return replace(self, rows=self.columns, columns=self.rows, left=self.right, right=self.left)

    def kernel(self) -> Kernel:
        """The same work as a plain loop nest, which is also what it means."""
        exprs = Exprs()
        copy = Rewriter(exprs)
        left, *rights = (exprs.cast(copy(x), self.sums) for x in (self.left, *self.rights))
        totals: list[Expr] = []
        for right in rights:
            total = exprs.apply(lookup("mul"), [left, right], {}, self.sums)
            for axis in reversed(self.inner):
                total = exprs.reduce("sum", axis, total)
            totals.append(total)
        sums: dict[Expr, Expr] = {a: exprs.cast(totals[a.part], a.dtype) for a in self.accumulators}
        stores = tuple(map(Rewriter(exprs, replaced=sums).store, self.stores))
        return Kernel(self.name, self.outer, stores, self.operands, self.results)

    def __str__(self) -> str:
        inner = ", ".join(map(repr, self.inner))
        return (
            f"{self.kernel()}\n  contracts rows {self.rows}, columns {self.columns}, inner {inner}"
        )


# -- expressions over other axes ------------------------------------------------------------------


def over_axes(contract: Contract, axes: Mapping[Axis, Affine]) -> Contract:
    """The contract with axes replaced in every index map; the axes themselves are the caller's."""
    rewriter = Rewriter(Exprs(), substitution(axes))
    stores = tuple(map(rewriter.store, contract.stores))
    left, right, *more = (rewriter(x) for x in (contract.left, *contract.rights))
    return replace(contract, left=left, right=right, more=tuple(more), stores=stores)


def through(contract: Contract, change: Callable[[Kernel], Kernel]) -> Contract:
    """The contract with its expressions changed as a kernel's are; a sum is a load there."""
    sums = {-1 - n.part: n for n in contract.accumulators}
    assert len(sums) == len(contract.accumulators)
    reads: dict[Expr, Expr] = {n: Load(n.dtype, operand=i) for i, n in sums.items()}
    rewriter = Rewriter(Exprs(), replaced=reads)
    operands = [Store(-1, Affine(), x) for x in (contract.left, *contract.rights)]
    stores = tuple(map(rewriter.store, (*operands, *contract.stores)))
    shapes = contract.operands, contract.results
    made = change(Kernel(contract.name, contract.outer, stores, *shapes))
    loads = [n for n in made.nodes if isinstance(n, Load) and n.operand < 0]
    back = Rewriter(Exprs(), replaced={n: sums[n.operand] for n in loads})
    stored = tuple(map(back.store, made.stores))
    left, right, *more = (s.value for s in stored[: len(operands)])
    after = stored[len(operands) :]
    return replace(contract, left=left, right=right, more=tuple(more), stores=after)


def materialised(contract: Contract) -> tuple[Kernel, Contract]:
    """A kernel that makes the left operand contiguous, and the contraction that reads it there:
    for targets that read rows from memory. It is one more operand, behind the others."""
    axes = tuple(
        a for a in (*contract.batch, contract.rows, *contract.inner) if _moves(contract, a)
    )
    layout = Layout.contiguous([a.extent for a in axes])
    at = Affine(tuple((a, s) for a, s in zip(axes, layout.strides) if s != 0))
    shape = Shape(layout.dims, contract.left.dtype)
    name = f"{contract.name}.left"
    kernel = Kernel(name, axes, (Store(0, at, contract.left),), contract.operands, (shape,))
    operands = (*contract.operands, shape)
    left = Load(shape.dtype, (), at.axes, len(contract.operands), at)
    return kernel, replace(contract, left=left, operands=operands)


def _moves(contract: Contract, axis: Axis) -> bool:
    return axis in contract.left.free or axis is contract.rows or axis in contract.inner


def row_scale(contract: Contract) -> tuple[Expr, Expr] | None:
    """The left factor as what varies along the inner axes, times what is made of whole rows, such
    as one over their root mean square, in the dtype of the sums: it can be multiplied with the
    finished sums instead. None where reductions of rows are more than a factor."""
    exprs, inner = Exprs(), frozenset(contract.inner)
    copy = Rewriter(exprs)
    parts: tuple[list[Expr], list[Expr]] = ([], [])
    for factor in _factors(contract.left):
        parts[not factor.free & inner].append(exprs.cast(copy(factor), contract.sums))
    along, rows = parts
    folds = [any(isinstance(n, Reduce) for n in postorder(p)) for p in parts]
    if folds != [False, True] or not along or not contract.sums.is_float:
        return None
    return _product(exprs, along), _product(exprs, rows)


def _product(exprs: Exprs, factors: list[Expr]) -> Expr:
    total = factors[0]
    for factor in factors[1:]:
        total = exprs.op("mul", total, factor)
    return total


def _factors(value: Expr) -> Iterator[Expr]:
    """What a value is the product of, but for roundings."""
    stack = [value]
    while stack:
        node = stack.pop()
        is_factor = isinstance(node, Apply) and node.op.name in ("mul", "cast")
        if is_factor and all(n.dtype.is_float for n in (node, *node.args)):
            stack += node.args
        else:
            yield node


# -- fewer loops ----------------------------------------------------------------------------------


def collapsed(contract: Contract) -> Contract:
    """The same work with as few loops as the strides allow.

    A batch loop whose stride is the extent of the rows is more rows: a weight that a batch
    shares is then one product. Loops of one step are dropped.
    """
    contract = _without_single_steps(contract)
    pair = next(_pairs(contract), None)
    while pair is not None:
        contract = _joined(contract, *pair)
        pair = next(_pairs(contract), None)
    return contract


def _without_single_steps(contract: Contract) -> Contract:
    """Batch and inner loops of one step dropped; a single row takes the place of a batch loop
    that the right operand does not see, as a single column of one that the left does not."""
    gone = [a for a in (*contract.batch, *contract.inner[:-1]) if a.extent == 1]
    contract = replace(
        over_axes(contract, {a: Affine() for a in gone}),
        batch=tuple(a for a in contract.batch if a not in gone),
        inner=tuple(a for a in contract.inner if a not in gone),
    )
    contract = _with_rows(contract)
    return _with_rows(contract.swapped()).swapped() if contract.is_plain else contract


def _with_rows(contract: Contract) -> Contract:
    seen = frozenset[Axis]().union(*(x.free for x in contract.rights))
    free = [b for b in contract.batch if b not in seen]
    if contract.rows.extent != 1 or not free:
        return contract
    rest = tuple(b for b in contract.batch if b is not free[-1])
    return replace(over_axes(contract, {contract.rows: Affine()}), rows=free[-1], batch=rest)


def _pairs(contract: Contract) -> Iterator[tuple[Axis, Axis]]:
    """Loops of which the stride of the first is the extent of the second, in every index map."""
    batch, maps = contract.batch, contract.maps
    inner = zip(contract.inner, contract.inner[1:])
    outer = ((a, b) for a in batch for b in (contract.rows, contract.columns, *batch) if a is not b)
    for a, b in (*outer, *inner):
        if all(m.coefficient(a) == m.coefficient(b) * b.extent for m in maps):
            yield a, b


def _joined(contract: Contract, first: Axis, second: Axis) -> Contract:
    """first · extent + second as one axis."""
    one = Axis(second.name, first.extent * second.extent)

    def renamed(axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(one if a is second else a for a in axes if a is not first)

    rows, columns = renamed((contract.rows, contract.columns))
    return replace(
        over_axes(contract, {first: Affine(), second: Affine.of(one)}),
        batch=renamed(contract.batch),
        rows=rows,
        columns=columns,
        inner=renamed(contract.inner),
    )


def extent_of(axes: Iterable[Axis]) -> DimLike:
    """The number of points of the axes together."""
    total: DimLike = 1
    for axis in axes:
        total = total * axis.extent
    return total
