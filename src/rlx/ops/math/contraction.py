"""Tensor contractions: matmul, einsum, dot_general.

The sums may be taken in any order, and a factor that a sum does not touch may be taken out of it:
with finite values that is rounding, with integers it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, Shape, broadcast
from rlx.ops.compose import composed, dims_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Label = Hashable
Labels = tuple[Label, ...]
_WIDER = (
    ((DType.BF16, DType.F16), DType.F32),
    ((DType.U8, DType.I8), DType.F32),
    ((DType.U8, DType.I8), DType.I32),
)
_EQUATION = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def _per_term(dtype: DType) -> int:
    """Operations of one multiplication and addition."""
    return 8 if dtype.is_complex else 2


# -- matmul ---------------------------------------------------------------------------------------


def _product_shape(x: Shape, y: Shape) -> Shape:
    for i, s in enumerate((x, y)):
        if s.rank == 0:
            raise GraphError(f"operand {i} is {s}, expected at least 1 dims. Use mul for scalars")
    rows = x.dims if x.rank > 1 else (1, *x.dims)
    columns = y.dims if y.rank > 1 else (*y.dims, 1)
    if rows[-1] != columns[-2]:
        raise DimsDiffer(
            f"operand 1 is {y}: it has {columns[-2]} rows, but operand 0 is {x} with "
            f"{rows[-1]} columns. They must be equal",
            rows[-1], columns[-2],
        )  # fmt: skip
    batch = broadcast(rows[:-2], columns[:-2])
    return Shape((*batch, *rows[-2:-1][: x.rank - 1], *columns[-1:][: y.rank - 1]), x.dtype)


def _product_flops(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> DimLike:
    return _per_term(shapes[0].dtype) * results[0].num_elements * shapes[0].dims[-1]


@op(
    "t[...], t[...] -> t[...]",
    kind=Kind.CONTRACTION,
    shape=_product_shape,
    flops=_product_flops,
    aliases=("mm",),
    why_no_lowering="the contraction that the others lower to",
)
def matmul(x: Array, y: Array) -> Array:
    """The matrix product over the last two axes; the axes before them broadcast. An operand of
    rank 1 is a row on the left, a column on the right, and leaves no axis behind."""
    return np.matmul(x, y)


@matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    m, k, n, dtype = draw.size(), draw.size(), draw.size(), draw.dtype("t")
    batch = draw.dims(0, 3)
    left = (k,) if draw.coin(0.15) else (*_some(draw, batch), m, k)
    right = (k,) if draw.coin(0.15) else (*_some(draw, batch), k, n)
    return [Spec(left, dtype, "plain"), Spec(right, dtype, "plain")], {}


def _some(draw: Draw, run: tuple[int, ...]) -> tuple[int, ...]:
    """What broadcasts to `run`: fewer axes, some of them 1."""
    kept = run if draw.coin(0.7) else run[draw.integer(0, len(run)) :]
    return tuple(1 if draw.coin(0.2) else d for d in kept)


@composed("_[...], _[...] -> _[...]", kind=Kind.CONTRACTION)
def wide_matmul(x: Any, y: Any, *, to: DType) -> Any:
    """`matmul` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
    return ops.matmul(ops.cast(x, to=to), ops.cast(y, to=to))


@wide_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    narrow, to = draw.choice(_WIDER)
    m, k, n, batch = draw.size(), draw.size(), draw.size(), draw.dims(0, 2)
    dtypes = draw.choice(narrow), draw.choice(narrow)
    dims = (*_some(draw, batch), m, k), (*_some(draw, batch), k, n)
    return [Spec(d, t, "plain") for d, t in zip(dims, dtypes)], {"to": to}


# -- labelled axes --------------------------------------------------------------------------------


def _contracted(
    x: Any, xs: Labels, y: Any, ys: Labels, kept: Collection[Label]
) -> tuple[Any, Labels]:
    """The product of two labelled arrays, summed over all labels that are not `kept`.

    One matmul: labels of both that stay are its batch, of both that go its inner axis.
    """
    x, xs = _summed(x, xs, [a for a in xs if a not in ys and a not in kept])
    y, ys = _summed(y, ys, [a for a in ys if a not in xs and a not in kept])
    batch = [a for a in xs if a in ys and a in kept]
    inner = [a for a in xs if a in ys and a not in kept]
    rows = [a for a in xs if a not in ys]
    columns = [a for a in ys if a not in xs]
    left = _grouped(_ordered(x, xs, [*batch, *rows, *inner]), len(batch), len(rows))
    right = _grouped(_ordered(y, ys, [*batch, *inner, *columns]), len(batch), len(inner))
    made = ops.matmul(left, right)
    dims = (*dims_of(made)[: len(batch)], *_picked(x, xs, rows), *_picked(y, ys, columns))
    return _shaped(made, dims), (*batch, *rows, *columns)


def _picked(x: Any, labels: Labels, wanted: Iterable[Label]) -> list[DimLike]:
    return [dims_of(x)[labels.index(a)] for a in wanted]


def _summed(x: Any, labels: Labels, gone: Collection[Label]) -> tuple[Any, Labels]:
    if not gone:
        return x, labels
    axes = tuple(i for i, a in enumerate(labels) if a in gone)
    return ops.sum(x, axes=axes), tuple(a for a in labels if a not in gone)


def _ordered(x: Any, labels: Labels, wanted: Sequence[Label]) -> Any:
    """The axes in the wanted order."""
    perm = tuple(labels.index(a) for a in wanted)
    return x if perm == tuple(range(len(perm))) else ops.transpose(x, perm=perm)


def _grouped(x: Any, batch: int, first: int) -> Any:
    """The axes after `batch` as two: the `first` of them as one, the rest as one."""
    dims = dims_of(x)
    cut = batch + first
    return _shaped(x, (*dims[:batch], product(dims[batch:cut]), product(dims[cut:])))


def _shaped(x: Any, dims: tuple[DimLike, ...]) -> Any:
    return x if dims_of(x) == dims else ops.reshape(x, dims=dims)


def _diagonal(x: Any, labels: Labels) -> tuple[Any, Labels]:
    """Repeated labels made one: all but the diagonal set to 0, then summed over one of the axes."""
    while len(set(labels)) < len(labels):
        axis = next(i for i, a in enumerate(labels) if a in labels[:i])
        first = labels.index(labels[axis])
        here, there = (nullary(x, "iota", dims=dims_of(x), axis=a) for a in (first, axis))
        x = ops.sum(ops.where(ops.equal(here, there), x, 0), axes=(axis,))
        labels = (*labels[:axis], *labels[axis + 1 :])
    return x, labels


# -- einsum ---------------------------------------------------------------------------------------


def _labelled(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand's axes, and of the result's.

    The axes of an ellipsis are labelled by their distance from its end, so that they broadcast.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        if not _EQUATION.fullmatch(term):
            raise GraphError(f"equation {equation!r}: {term!r} is not letters with at most one ...")
    if len(terms) != len(ranks):
        raise GraphError(f"equation {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    inputs = [_labels(t, r, i, equation) for i, (t, r) in enumerate(zip(terms, ranks))]
    widest = max((sum(isinstance(a, int) for a in ls) for ls in inputs), default=0)
    if arrow:
        return inputs, _explicit(right, widest, inputs, equation)
    every = [a for ls in inputs for a in ls if isinstance(a, str)]
    once = sorted(a for a in every if every.count(a) == 1)
    return inputs, (*reversed(range(widest)), *once)


def _labels(term: str, rank: int, i: int, equation: str) -> Labels:
    before, dots, after = term.partition("...")
    spare = rank - len(before) - len(after)
    if spare < 0 or (spare and not dots):
        least = "at least " if dots else ""
        raise GraphError(
            f"operand {i} has rank {rank}, but {term!r} of {equation!r} names "
            f"{least}{len(before) + len(after)} axes"
        )
    return (*before, *reversed(range(spare)), *after)


def _explicit(right: str, widest: int, inputs: Sequence[Labels], equation: str) -> Labels:
    before, dots, after = right.partition("...")
    known = {a for ls in inputs for a in ls}
    for letter in before + after:
        if letter not in known or (before + after).count(letter) > 1:
            reason = "twice in the result" if letter in known else "in the result but no operand"
            raise GraphError(f"equation {equation!r}: {letter!r} is {reason}")
    if widest and not dots:
        raise GraphError(f"equation {equation!r}: the result leaves out the axes of '...'")
    return (*before, *reversed(range(widest)), *after)


def _sizes(inputs: Sequence[Labels], shapes: Sequence[Shape]) -> dict[Label, DimLike]:
    """The dim of every label: equal wherever it occurs; those of an ellipsis broadcast."""
    sizes: dict[Label, DimLike] = {}
    for i, (labels, shape) in enumerate(zip(inputs, shapes)):
        for label, dim in zip(labels, shape.dims):
            known = sizes.setdefault(label, dim)
            if isinstance(label, int):
                sizes[label] = broadcast((known,), (dim,))[0]
            elif known != dim:
                what = f"operand {i} is {shape}: {label!r} is {dim}, but {known} before"
                raise DimsDiffer(what, known, dim)
    return sizes


def _einsum_shape(*shapes: Shape, equation: str) -> Shape:
    inputs, result = _labelled(equation, [s.rank for s in shapes])
    sizes = _sizes(inputs, shapes)
    return Shape((sizes[a] for a in result), shapes[0].dtype)


def _einsum_flops(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> DimLike:
    """Operand after operand, each step over the labels it meets."""
    inputs, result = _labelled(attrs["equation"], [s.rank for s in shapes])
    sizes = _sizes(inputs, shapes)
    total: DimLike = 0 if len(inputs) > 1 else shapes[0].num_elements
    held = dict.fromkeys(inputs[0])
    for i, labels in enumerate(inputs[1:], 2):
        held |= dict.fromkeys(labels)
        total = total + _per_term(shapes[0].dtype) * product(sizes[a] for a in held)
        held = {a: None for a in held if a in _needed(inputs[i:], result)}
    return total


def _needed(later: Iterable[Labels], result: Labels) -> set[Label]:
    return {a for labels in (*later, result) for a in labels}


@op("t[...]+ -> t[...]", kind=Kind.CONTRACTION, shape=_einsum_shape, flops=_einsum_flops)
def einsum(*operands: Array, equation: str) -> Array:
    """Sums of products by NumPy's notation: each operand's axes named by letters, `...` for the
    axes before or between them. What the result does not name is summed; without `->` it names
    what occurs once, by the alphabet. Axes of one name have one size."""
    return np.einsum(equation, *operands)


@einsum.lowering
def _(*operands: Any, equation: str) -> Any:
    inputs, result = _labelled(equation, [len(dims_of(x)) for x in operands])
    made, labels = _diagonal(operands[0], inputs[0])
    for i, (x, xs) in enumerate(zip(operands[1:], inputs[1:]), 2):
        x, xs = _diagonal(x, xs)
        made, labels = _contracted(made, labels, x, xs, _needed(inputs[i:], result))
    made, labels = _summed(made, labels, [a for a in labels if a not in result])
    return _ordered(made, labels, result)


_EQUATIONS = (
    "ij,jk->ik", "ij,jk", "bij,bjk->bik", "bhqd,bhkd->bhqk", "ij->ji", "ij->", "ij", "ii->i", "ii",
    "iij,j->ij", "i,j->ij", "i,i", "ij,kj->ki", "ij,j->", "ab,bc,cd->ad", "abc,cb->a", "a,b,ab->b",
    "...ij,...jk->...ik", "...i,...i->...", "i...->...", "...ij,jk", ",i->i", " ij , j ",
    "ij,ij->ij",
)  # fmt: skip


@einsum.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    equation, dtype = draw.choice(_EQUATIONS), draw.dtype("t")
    sizes = {c: draw.size() for c in equation if c.isalpha()}
    run = draw.dims(0, 2)
    specs: list[Spec] = []
    for term in equation.replace(" ", "").partition("->")[0].split(","):
        before, dots, after = term.partition("...")
        dims = (*(sizes[c] for c in before), *(_some(draw, run) if dots else ()))
        specs.append(Spec((*dims, *(sizes[c] for c in after)), dtype, "plain"))
    return specs, {"equation": equation}


# -- dot_general ----------------------------------------------------------------------------------

AxisRun = tuple[int, ...]


def _checked_axes(shape: Shape, i: int, contract: AxisRun, batch: AxisRun) -> None:
    named = (*batch, *contract)
    for axis in named:
        if not 0 <= axis < shape.rank or named.count(axis) > 1:
            reason = "named twice" if named.count(axis) > 1 else f"not below its rank {shape.rank}"
            raise GraphError(f"operand {i} is {shape}: axis {axis} is {reason}")


def _paired(
    ranks: tuple[int, int], lhs: tuple[AxisRun, AxisRun], rhs: tuple[AxisRun, AxisRun]
) -> tuple[Labels, Labels, Labels]:
    """Labels of both operands and of the result: batch, then what is left of each."""
    names = {axis: ("l", axis) for axis in range(ranks[0])}
    pairs = dict(zip((*rhs[0], *rhs[1]), (*lhs[0], *lhs[1])))
    left = tuple(names.values())
    right = tuple(("l", pairs[a]) if a in pairs else ("r", a) for a in range(ranks[1]))
    batch = tuple(names[a] for a in lhs[1])
    rows = tuple(a for a in left if a not in right)
    return left, right, (*batch, *rows, *(a for a in right if a not in left))


def _general_shape(
    x: Shape, y: Shape, *, lhs_contract: AxisRun, rhs_contract: AxisRun, lhs_batch: AxisRun,
    rhs_batch: AxisRun,
) -> Shape:  # fmt: skip
    _checked_axes(x, 0, lhs_contract, lhs_batch)
    _checked_axes(y, 1, rhs_contract, rhs_batch)
    if len(lhs_contract) != len(rhs_contract) or len(lhs_batch) != len(rhs_batch):
        raise GraphError("both operands must name as many contracted and as many batch axes")
    for a, b in zip((*lhs_contract, *lhs_batch), (*rhs_contract, *rhs_batch)):
        if x.dims[a] != y.dims[b]:
            what = f"operand 1 is {y}: its axis {b} meets axis {a} of operand 0, which is {x}"
            raise DimsDiffer(what, x.dims[a], y.dims[b])
    left, right, result = _paired(
        (x.rank, y.rank), (lhs_contract, lhs_batch), (rhs_contract, rhs_batch)
    )
    sizes = dict(zip(right, y.dims)) | dict(zip(left, x.dims))
    return Shape((sizes[a] for a in result), x.dtype)


def _general_flops(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> DimLike:
    inner = product(shapes[0].dims[a] for a in attrs["lhs_contract"])
    return _per_term(shapes[0].dtype) * results[0].num_elements * inner


@op("t[...], t[...] -> t[...]", kind=Kind.CONTRACTION, shape=_general_shape, flops=_general_flops)
def dot_general(
    x: Array,
    y: Array,
    *,
    lhs_contract: tuple[int, ...],
    rhs_contract: tuple[int, ...],
    lhs_batch: tuple[int, ...] = (),
    rhs_batch: tuple[int, ...] = (),
) -> Array:
    """Products summed over the contracted axes, pair by pair, for each index of the batch axes.
    The result has the batch axes, then what is left of x, then what is left of y."""
    labels = _paired((x.ndim, y.ndim), (lhs_contract, lhs_batch), (rhs_contract, rhs_batch))
    number = {a: i for i, a in enumerate(dict.fromkeys([*labels[0], *labels[1]]))}
    left, right, result = ([number[a] for a in ls] for ls in labels)
    return np.einsum(x, left, y, right, result)


@dot_general.lowering
def _(
    x: Any,
    y: Any,
    *,
    lhs_contract: AxisRun,
    rhs_contract: AxisRun,
    lhs_batch: AxisRun,
    rhs_batch: AxisRun,
) -> Any:
    ranks = len(dims_of(x)), len(dims_of(y))
    left, right, result = _paired(ranks, (lhs_contract, lhs_batch), (rhs_contract, rhs_batch))
    made, labels = _contracted(x, left, y, right, result)
    return _ordered(made, labels, result)


@dot_general.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, shared = draw.dtype("t"), draw.dims(0, 3)
    lhs = [*shared, *draw.dims(0, 2)]
    rhs = [*shared, *draw.dims(0, 2)]
    left, right = (list(map(int, draw.rng.permutation(len(ds)))) for ds in (lhs, rhs))
    pairs = [(left.index(i), right.index(i)) for i in range(len(shared))]
    cut = draw.integer(0, len(pairs))
    attrs = {
        "lhs_batch": tuple(a for a, _ in pairs[:cut]),
        "rhs_batch": tuple(b for _, b in pairs[:cut]),
        "lhs_contract": tuple(a for a, _ in pairs[cut:]),
        "rhs_contract": tuple(b for _, b in pairs[cut:]),
    }
    specs = [
        Spec(tuple(lhs[i] for i in left), dtype, "plain"),
        Spec(tuple(rhs[i] for i in right), dtype, "plain"),
    ]
    return specs, attrs
