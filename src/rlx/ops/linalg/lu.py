"""LU factors with partial pivoting, and what is solved with them. See `linalg` for conventions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.linalg.dense import Turn
from rlx.ops.linalg.factorization import FACTORS, Drawn, draw_rectangle, guarded
from rlx.ops.op import Array, Kind, op


def _lu_shape(a: Shape) -> tuple[Shape, Shape]:
    *stack, m, n = a.dims
    return a, Shape((*stack, dim_min(m, n)), DType.I64)


@op(
    "x[*b m n] -> x[*b m n], i64[...]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_lu_shape,
    flops="2*b*m*n*min(m, n)",
    why_no_lowering=FACTORS,
)
def lu_factor(a: Array) -> tuple[Array, Array]:
    """l and u in one matrix, the ones on the diagonal of l left out, and the row that each row was
    swapped with, one after the other: a pivot is the first of its column of greatest |re| + |im|.
    A singular matrix has zeros on the diagonal of u; one that is not finite swaps nothing."""
    (lu,) = guarded(lambda m: (_eliminated(m)[0],), a)
    is_good = np.isfinite(lu).all((-2, -1), keepdims=True)
    return lu, _eliminated(np.where(is_good, a, 0))[1]


def _eliminated(a: Array) -> tuple[Array, Array]:
    lu, k = np.array(a), min(a.shape[-2:])
    pivots = np.zeros((*a.shape[:-2], k), np.int64)
    for i in range(k):
        column = lu[..., i:, i]
        pivot = i + np.argmax(np.abs(np.real(column)) + np.abs(np.imag(column)), axis=-1)
        pivots[..., i] = pivot
        _swap(lu, i, pivot)
        here = lu[..., i, i, None]
        factors = lu[..., i + 1 :, i] / np.where(here == 0, 1, here)
        lu[..., i + 1 :, i] = factors
        lu[..., i + 1 :, i + 1 :] -= factors[..., None] * lu[..., i, None, i + 1 :]
    return lu, pivots


def _swap(a: Array, i: int, other: Array) -> None:
    index = np.broadcast_to(other[..., None, None], (*a.shape[:-2], 1, a.shape[-1]))
    theirs, mine = np.take_along_axis(a, index, -2), a[..., i : i + 1, :].copy()
    np.put_along_axis(a, index, mine, -2)
    a[..., i : i + 1, :] = theirs


@op("i64[*b k] -> i64[...]", kind=Kind.SPECIAL, flops="b*k",
    shape=lambda pivots, *, size: pivots.with_dims((*pivots.dims[:-1], size)))  # fmt: skip
def pivots_to_permutation(pivots: Array, *, size: DimLike) -> Array:
    """The order that swaps give to `size` rows: row i with row pivots[i], one after the other. The
    rows of a in that order are l · u."""
    made = np.broadcast_to(np.arange(int(size)), (*pivots.shape[:-1], int(size))).copy()[..., None]
    for i in range(pivots.shape[-1]):
        _swap(made, i, pivots[..., i])
    return made[..., 0]


@pivots_to_permutation.lowering
def _(pivots: Any, *, size: DimLike) -> Any:
    from rlx.ops.control_flow import scan_loop

    *stack, k = dims_of(pivots)
    rank = len(stack)
    row = nullary(pivots, "iota", dims=(size,), axis=0, dtype=DType.I64)
    start = ops.expand(row, dims=(*stack, size))

    def step(order: Any, given: Any, row: Any) -> tuple[Any, Any]:
        here, pivot = given
        at, there = ops.equal(row, here), ops.equal(row, ops.expand_dims(pivot, axes=(rank,)))
        mine = ops.sum(ops.where(at, order, 0), axes=(rank,), keepdims=True)
        theirs = ops.sum(ops.where(there, order, 0), axes=(rank,), keepdims=True)
        return ops.where(at, theirs, ops.where(there, mine, order)), mine

    steps = nullary(pivots, "iota", dims=(k,), axis=0, dtype=DType.I64)
    first = ops.transpose(pivots, perm=(rank, *range(rank)))
    made, _ = scan_loop(step, start, (steps, first), (row,))
    return made


@composed("x[*b n n], i64[*b n], x[*b n k] -> x[*b n k]", kind=Kind.SPECIAL)
def lu_solve(lu: Any, pivots: Any, b: Any, *, transpose: Turn = "none") -> Any:
    """The x with a · x = b, or with the transpose or adjoint of a, of the factors that lu_factor
    gives. Zeros on the diagonal of u divide as floats do."""
    n = dims_of(lu)[-1]
    order = ops.pivots_to_permutation(pivots, size=n)
    if transpose == "none":
        lower = ops.triangular_solve(lu, _rows(b, order), unit_diagonal=True)
        return ops.triangular_solve(lu, lower, upper=True)
    upper = ops.triangular_solve(lu, b, upper=True, transpose=transpose)
    made = ops.triangular_solve(lu, upper, unit_diagonal=True, transpose=transpose)
    return _rows(made, ops.argsort(order, axis=-1))


def _rows(x: Any, order: Any) -> Any:
    """The rows of matrices in another order."""
    rank = len(dims_of(x))
    index = ops.expand(ops.expand_dims(order, axes=(rank - 1,)), dims=dims_of(x))
    return ops.take_along_axis(x, index, axis=rank - 2)


# -- with Cholesky's factor -----------------------------------------------------------------------


@composed("x[*b n n], x[*b n k] -> x[*b n k]", kind=Kind.SPECIAL)
def cholesky_solve(factor: Any, b: Any, *, upper: bool = False) -> Any:
    """The x with a · x = b, of the factor that cholesky gives: a = l · lᴴ, or uᴴ · u."""
    first, second = ("adjoint", "none") if upper else ("none", "adjoint")
    half = ops.triangular_solve(factor, b, upper=upper, transpose=first)
    return ops.triangular_solve(factor, half, upper=upper, transpose=second)


@composed("x[*b n n] -> x[*b n n]", kind=Kind.SPECIAL)
def cholesky_inverse(factor: Any, *, upper: bool = False) -> Any:
    """The inverse of the matrix whose factor cholesky gives."""
    *stack, n, _ = dims_of(factor)
    row, column = (nullary(factor, "iota", dims=(n, n), axis=a, dtype=DType.I64) for a in (0, 1))
    eye = ops.cast(ops.equal(row, column), to=dtype_of(factor))
    return ops.cholesky_solve(factor, ops.expand(eye, dims=(*stack, n, n)), upper=upper)


# -- drawing --------------------------------------------------------------------------------------


lu_factor.sample(lambda draw: ([draw_rectangle(draw)], {}))


@pivots_to_permutation.sample
def _(draw: Draw) -> Drawn:
    size = draw.size(1)
    dims = (*draw.dims(0, 2), draw.integer(0, size))
    return [Spec(dims, DType.I64, f"index:{size}")], {"size": size}


@lu_solve.sample
def _(draw: Draw) -> Drawn:
    n, stack, dtype = draw.size(), draw.dims(0, 2), draw.dtype("x")
    turn = draw.choice(("none", "transpose", "adjoint"))
    given = [
        Spec((*stack, n, n), dtype, "regular"),
        Spec((*stack, n), DType.I64, f"index:{n}"),
        Spec((*stack, n, draw.size()), dtype, "plain"),
    ]
    return given, {"transpose": turn}


def _draw_factor(draw: Draw, *, has_right: bool) -> Drawn:
    n, stack, dtype = draw.size(), draw.dims(0, 2), draw.dtype("x")
    right = [Spec((*stack, n, draw.size()), dtype, "plain")] if has_right else []
    return [Spec((*stack, n, n), dtype, "regular"), *right], {"upper": draw.coin()}


cholesky_solve.sample(lambda draw: _draw_factor(draw, has_right=True))
cholesky_inverse.sample(lambda draw: _draw_factor(draw, has_right=False))
