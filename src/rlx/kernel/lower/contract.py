"""Forming contractions: a matrix product, and what a region does before and after it.

The body is cut at its product into three loop kernels, one for each operand and one that reads the
product as if it were in memory. Where a reshape has cut an axis of one of them, the others' are
cut alike, so that their index maps are over the same axes.

Products of few rows may be more (`few_rows`): the left operand may reduce its rows, as a norm does,
and what follows may read several slices of the columns at once, as a gate does. Each of these is a
sum of its own, with the columns of the slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.core.dim import Dim, DimLike, exact_div, product
from rlx.core.layout import Layout
from rlx.ir.mir import Graph, Node, topological
from rlx.kernel.contract import Contract, collapsed
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Load, Reduce, Store
from rlx.kernel.lower.loop import body_of, in_primitives, loop_kernel
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.kernel.rewrite import Rewriter, substitution

ANCHOR = "matmul"


def lower_contract(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Contract | Refusal:
    """The contraction of a step, or why it is not one product with elementwise work around it."""
    return attempt(lambda: contraction(node, operands, results))


def lower_few_rows(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Contract | Refusal:
    """The contraction of a step with norms of its rows before it, or gates behind it."""
    return attempt(lambda: contraction(node, operands, results, few_rows=True))


def contraction(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
    *,
    few_rows: bool = False,
) -> Contract:
    """The contraction of one plan step: a product by itself, or a region with one.

    Layouts give the strides of operands and results in their buffers; without them, contiguous.
    """
    body = in_primitives(body_of(node), (ANCHOR,))
    given = operands or [Layout.contiguous(i.shape.dims) for i in body.inputs]
    made = results or [Layout.contiguous(o.shape.dims) for o in body.outputs]
    return collapsed(_Parts.of(body, given, made, few_rows).contract(node.op))


def lower_contract_and_loop(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> tuple[Contract, Kernel] | Refusal:
    """The product of a step by itself, and the loop kernel of its epilogue: for an epilogue that
    is not elementwise, such as a norm. That kernel reads the product, contiguous, as one more
    operand, behind the others."""
    return attempt(lambda: _contraction_and_loop(node, operands, results))


def _contraction_and_loop(
    node: Node, operands: Sequence[Layout] | None, results: Sequence[Layout] | None
) -> tuple[Contract, Kernel]:
    body = in_primitives(body_of(node), (ANCHOR,))
    anchor = _anchor_of(body)
    given = operands or [Layout.contiguous(i.shape.dims) for i in body.inputs]
    between = Layout.contiguous(anchor.shape.dims)
    after = loop_kernel(region_of(body, body.outputs, anchor), [*given, between], results)
    return contraction(region_of(body, [anchor]), given), after


def _anchor_of(body: Graph) -> Node:
    anchors = [n for n in body.order() if n.op == ANCHOR]
    if len(anchors) != 1:
        raise NotLowered(f"{body.name}: it has {len(anchors)} products, not one")
    return anchors[0]


Label = tuple[str, int]
"""A batch axis by its place in the product, the rows, the columns, or the inner axis."""
ROWS, COLUMNS, INNER = ("m", 0), ("n", 0), ("k", 0)


@dataclass(frozen=True, slots=True)
class Digit:
    """An axis that counts turns of `weight`."""

    axis: Axis
    weight: DimLike


Digits = dict[Label, tuple[Digit, ...]]
"""What one kernel has of each axis of the contraction."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The body, cut at its product."""

    body: Graph
    anchor: Node
    left: Kernel
    right: Kernel
    after: Kernel
    loads: tuple[Load, ...]
    """The product, as the kernel after it reads it: whole, or slices of its columns."""

    @classmethod
    def of(
        cls, body: Graph, given: Sequence[Layout], made: Sequence[Layout], few_rows: bool
    ) -> _Parts:
        anchor = _anchor_of(body)
        left, right = (operand_of(body, x, given) for x in anchor.inputs)
        dims = anchor.shape.dims
        unknown = Layout(dims, tuple(stride_of(i) for i in range(len(dims))))
        after = loop_kernel(region_of(body, body.outputs, anchor), [*given, unknown], made)
        for kernel in (right, after) if few_rows else (left, right, after):
            refuse_folds(kernel, anchor)
        loads = loads_of(after, anchor) if few_rows else (load_of(after, anchor),)
        return cls(body, anchor, left, right, after, loads)

    def contract(self, name: str) -> Contract:
        left, right = self._side(0, self.left), self._side(1, self.right)
        after = self._after()
        labels = self._labels()
        self._require_whole_rows(left, right)
        parts = {x: [p[x] for p in (left, right, after) if x in p] for x in labels}
        axes = {x: Refined.of(x, labels[x], parts[x], self.anchor) for x in labels}
        moves = {d.axis: axes[x].position(d) for x in labels for p in parts[x] for d in p}
        moves |= {a: Affine() for k in (self.left, self.right) for a in k.axes if a not in moves}
        moves |= self._dropped(moves)
        return self._made(name, {x: r.axes for x, r in axes.items()}, moves)

    def _made(
        self, name: str, axes: dict[Label, tuple[Axis, ...]], moves: dict[Axis, Affine]
    ) -> Contract:
        """All digits of batch axes, and all but the last of rows and columns, are batch loops."""
        *rows, row = axes[ROWS]
        *columns, column = axes[COLUMNS]
        batch = [a for x, run in axes.items() if x[0] == "b" for a in run]
        outer = (*batch, *rows, *columns)
        dtype = self.anchor.shape.dtype
        free = frozenset((*outer, row, column))
        sums: dict[Expr, Expr] = {
            load: Accumulator(dtype, free=free, part=i) for i, load in enumerate(self.loads)
        }
        rewriter = Rewriter(Exprs(), substitution(moves), sums)
        right, *more = (self._right(start, moves) for start in self._starts)
        return Contract(
            name,
            outer,
            row,
            column,
            axes[INNER],
            self._left(axes[INNER], moves),
            right,
            dtype.compute,
            tuple(map(rewriter.store, self.after.stores)),
            self.left.operands,
            self.after.results,
            tuple(more),
        )

    def _left(self, inner: tuple[Axis, ...], moves: dict[Axis, Affine]) -> Expr:
        """The left operand; reductions of its rows go along all pieces of the inner axis."""

        def folded(node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
            if not isinstance(node, Reduce):
                return None
            body = args[0]
            for axis in reversed(inner):
                body = exprs.reduce(node.fold, axis, body)
            return body

        rewriter = Rewriter(Exprs(), substitution(moves), rule=folded)
        return rewriter(self.left.stores[0].value)

    def _right(self, start: DimLike, moves: dict[Axis, Affine]) -> Expr:
        """The right operand at the columns of a slice."""
        if start != 0:
            (column,) = self._side(1, self.right)[COLUMNS]
            moves = moves | {column.axis: moves[column.axis] + start}
        return Rewriter(Exprs(), substitution(moves))(self.right.stores[0].value)

    @property
    def _is_sliced(self) -> bool:
        return len(self.loads) > 1

    @property
    def _starts(self) -> tuple[DimLike, ...]:
        """Of the slices of columns, in the order of the loads."""
        if not self._is_sliced:
            return (0,)
        last = stride_of(len(self.anchor.shape.dims) - 1)
        found = [0 if n.at.offset == 0 else exact_div(n.at.offset, last) for n in self.loads]
        starts = tuple(s for s in found if s is not None)
        if len(starts) < len(found):
            raise NotLowered(f"{self.anchor.label}: more than its columns are read in slices")
        return starts

    def _require_whole_rows(self, left: Digits, right: Digits) -> None:
        """Reductions go along whole rows, and slices are of one axis of columns."""
        folds = [n for n in self.left.nodes if isinstance(n, Reduce)]
        inner = [d.axis for d in left.get(INNER, ())]
        if folds and (len(inner) != 1 or any(n.axis is not inner[0] for n in folds)):
            raise NotLowered(
                f"{self.anchor.label}: what precedes it folds other axes than its rows"
            )
        if self._is_sliced and len(right.get(COLUMNS, ())) != 1:
            raise NotLowered(f"{self.anchor.label}: its columns are cut, and read in slices")

    def _labels(self) -> dict[Label, DimLike]:
        """The axes of the contraction and their extents, batch axes first."""
        x, y = (i.shape for i in self.anchor.inputs)
        rows = x.dims[-2] if x.rank > 1 else 1
        columns = self._columns if y.rank > 1 else 1
        batch: dict[Label, DimLike] = {
            ("b", i): d for i, d in enumerate(self.anchor.shape.dims[: self._num_batch()])
        }
        return {**batch, ROWS: rows, COLUMNS: columns, INNER: x.dims[-1]}

    @property
    def _columns(self) -> DimLike:
        """All of them, or those of a slice: the axes that count along the last dim."""
        dims = self.anchor.shape.dims
        if not self._is_sliced:
            return dims[-1]
        last = stride_of(len(dims) - 1)
        return product(
            a.extent for a, c in self.loads[0].at.terms if exact_div(c, last) is not None
        )

    def _num_batch(self) -> int:
        return max(max(i.shape.rank - 2, 0) for i in self.anchor.inputs)

    def _side(self, number: int, kernel: Kernel) -> Digits:
        """The axes of an operand: rank 1 has the inner axis alone; dims of 1 do not move."""
        shape = self.anchor.inputs[number].shape
        last = ((ROWS, INNER), (INNER, COLUMNS))[number] if shape.rank > 1 else (INNER,)
        skipped = self._num_batch() - (shape.rank - len(last))
        batch = [("b", skipped + i) for i in range(shape.rank - len(last))]
        found: Digits = {}
        for i, (label, dim) in enumerate(zip((*batch, *last), shape.dims)):
            if dim != 1:
                axes = [a for a in kernel.axes if a.name.split(".")[0] == f"d{i}"]
                found[label] = _weighed(axes)
        return found

    def _after(self) -> Digits:
        """The axes under which the product is read."""
        x, y = (i.shape for i in self.anchor.inputs)
        labels: list[Label] = [("b", i) for i in range(self._num_batch())]
        labels += [ROWS] if x.rank > 1 else []
        labels += [COLUMNS] if y.rank > 1 else []
        dims = list(self.anchor.shape.dims)
        dims[-1:] = [self._columns] if self._is_sliced else dims[-1:]
        read = self.loads[0].at
        at = Affine(read.terms, 0 if self._is_sliced else read.offset)
        return {
            x: digits_of(at, stride_of(i), d, self.anchor)
            for i, (x, d) in enumerate(zip(labels, dims))
            if d != 1
        }

    def _dropped(self, moves: dict[Axis, Affine]) -> dict[Axis, Affine]:
        """Axes of one step, which the product need not have."""
        more = [a for a in self.after.axes if a not in moves]
        if any(a.extent != 1 for a in more):
            raise NotLowered(f"{self.anchor.label}: what follows repeats the product")
        points = product(a.extent for a in self.after.axes)
        if any(product(s.dims) != points for s in self.after.results):
            raise NotLowered(f"{self.anchor.label}: a result is smaller than the product")
        return {a: Affine() for a in more}


def stride_of(i: int) -> Dim:
    return Dim(f"product.{i}")


def region_of(body: Graph, outputs: Sequence[Node], cut: Node | None = None) -> Node:
    """A step that gives `outputs` of the body; the value of `cut` is one more operand."""
    part = Graph(body.name)
    part.traces_lines = False
    mapped = {n: part.input(f"v{i}", n.shape) for i, n in enumerate(body.inputs)}
    if cut is not None:
        mapped[cut] = part.input(f"v{len(mapped)}", cut.shape)
    for node in topological(outputs, mapped):
        if node not in mapped:
            mapped[node] = part.copy(node, tuple(mapped[i] for i in node.inputs))
    part.set_outputs([mapped[o] for o in outputs])
    whole = Graph(body.name)
    whole.traces_lines = False
    inputs = [whole.input(n.attrs["name"], n.shape) for n in part.inputs]
    return whole.node("region", inputs, {"body": part})


def operand_of(body: Graph, x: Node, given: Sequence[Layout]) -> Kernel:
    """The loop kernel of an operand. One without elements is zero wherever nobody looks."""
    if x.shape.num_elements != 0:
        return loop_kernel(region_of(body, [x]), given)
    axes = tuple(Axis(f"d{i}", d) for i, d in enumerate(x.shape.dims))
    dtype = x.shape.dtype
    store = Store(0, Affine(), Exprs().const(np.zeros((), dtype.numpy), dtype))
    return Kernel(body.name, axes, (store,), tuple(n.shape for n in body.inputs), (x.shape,))


def refuse_folds(kernel: Kernel, anchor: Node) -> None:
    if any(isinstance(n, Reduce) for n in kernel.nodes):
        raise NotLowered(f"{anchor.label}: what surrounds the product folds an axis")


def load_of(after: Kernel, anchor: Node) -> Load:
    """The product as it is read: at one index only."""
    number = len(after.operands) - 1
    loads = [n for n in after.nodes if isinstance(n, Load) and n.operand == number]
    if len(loads) != 1 or loads[0].args:
        raise NotLowered(f"{anchor.label}: the product is read at {len(loads)} indices")
    return loads[0]


def loads_of(after: Kernel, anchor: Node) -> tuple[Load, ...]:
    """The product as it is read: at indices that differ by where they begin."""
    number = len(after.operands) - 1
    loads = [n for n in after.nodes if isinstance(n, Load) and n.operand == number]
    if not loads or any(n.args for n in loads) or len({n.at.terms for n in loads}) > 1:
        raise NotLowered(f"{anchor.label}: the product is read at unlike indices")
    return tuple(loads)


def _weighed(axes: Sequence[Axis]) -> tuple[Digit, ...]:
    extents = [a.extent for a in axes]
    return tuple(Digit(a, product(extents[i + 1 :])) for i, a in enumerate(axes))


def digits_of(at: Affine, stride: Dim, dim: DimLike, anchor: Node) -> tuple[Digit, ...]:
    """The axes that count the positions along one dim of the product, all of them in order."""
    quotients = [(exact_div(c, stride), a) for a, c in at.terms]
    by_weight = {w: a for w, a in quotients if w is not None and a.extent != 1}
    found: list[Digit] = []
    weight: DimLike = 1
    while weight in by_weight:
        axis = by_weight.pop(weight)
        found.append(Digit(axis, weight))
        weight = weight * axis.extent
    if at.offset != 0 or weight != dim or by_weight:
        raise NotLowered(f"{anchor.label}: the product is not read whole and in its order")
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Refined:
    """An axis of the contraction in pieces that every part's digits are made of."""

    axes: tuple[Axis, ...]
    weights: tuple[DimLike, ...]
    """Of the axes, least first."""

    @classmethod
    def of(
        cls, label: Label, extent: DimLike, parts: Iterable[tuple[Digit, ...]], anchor: Node
    ) -> Refined:
        weights: list[DimLike] = [1]
        for digit in (d for p in parts for d in p):
            _insert(weights, digit.weight, anchor)
        ends = (*weights[1:], extent)
        extents = [exact_div(e, w) for w, e in zip(weights, ends)]
        name = label[0] + (str(label[1]) if label[0] == "b" else "")
        axes = [
            Axis(name if len(weights) == 1 else f"{name}.{i}", _known(e, anchor))
            for i, e in enumerate(reversed(extents))
        ]
        return cls(tuple(axes), tuple(weights))

    def position(self, digit: Digit) -> Affine:
        """A part's digit, in the pieces."""
        total, end = Affine(), digit.weight * digit.axis.extent
        started = self.weights.index(digit.weight)
        for axis, weight in list(zip(reversed(self.axes), self.weights))[started:]:
            if weight == end:
                break
            step = exact_div(weight, digit.weight)
            assert step is not None
            total = total + Affine.of(axis) * step
        return total


def _known(extent: DimLike | None, anchor: Node) -> DimLike:
    if extent is None:
        raise NotLowered(f"{anchor.label}: its reshapes cut an axis at unlike places")
    return extent


def _insert(weights: list[DimLike], weight: DimLike, anchor: Node) -> None:
    """Keep every weight a multiple of the one before it."""
    if weight in weights:
        return
    at = next((i for i, w in enumerate(weights) if exact_div(w, weight) is not None), len(weights))
    if exact_div(weight, weights[at - 1]) is None:
        raise NotLowered(f"{anchor.label}: its reshapes cut an axis at unlike places")
    weights.insert(at, weight)
