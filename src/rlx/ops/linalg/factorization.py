"""Matrix factorizations: Cholesky, QR, SVD, eigendecomposition. See `linalg` for conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import dim_min
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]
FACTORS = "a factorisation with data-dependent pivots or shifts: it needs a dedicated kernel"


def guarded(function: Callable[..., tuple[Array, ...]], *stacks: Array) -> tuple[Array, ...]:
    """`function` of matrices in stacks of equal dims; NaN where it fails, or is not asked."""
    good = np.logical_and.reduce([np.isfinite(s).all((-2, -1)) for s in stacks])
    safe = [_or_one(s, good) for s in stacks]
    try:
        made = function(*safe)
    except np.linalg.LinAlgError:
        good = good & _answers(function, safe)
        made = function(*(_or_one(s, good) for s in safe))
    return tuple(np.where(_raised(good, m.ndim), m, np.nan).astype(m.dtype) for m in made)


def _answers(function: Callable[..., Any], stacks: list[Array]) -> Array:
    """For which matrices there is an answer."""
    good = np.ones(stacks[0].shape[:-2], bool)
    for index in np.ndindex(good.shape):
        try:
            function(*(s[index] for s in stacks))
        except np.linalg.LinAlgError:
            good[index] = False
    return good


def _or_one(stack: Array, good: Array) -> Array:
    """Every matrix that is not good replaced by one that is: ones on the diagonal."""
    return np.where(_raised(good, stack.ndim), stack, np.eye(*stack.shape[-2:], dtype=stack.dtype))


def _raised(x: Array, rank: int) -> Array:
    return np.reshape(x, x.shape + (1,) * (rank - x.ndim))


def _adjoint(x: Array) -> Array:
    return np.conjugate(np.swapaxes(x, -2, -1))


def _lower_half(x: Array, upper: bool) -> Array:
    """The lower half of the Hermitian matrix whose upper, or lower, half is given. Its diagonal is
    real by definition, so what it says otherwise is not read."""
    made = np.tril(_adjoint(x) if upper else x)
    return np.where(np.eye(x.shape[-1], dtype=bool), np.real(made), made)


# -- in table ops ----------------------------------------------------------------------------------


def swapped(x: Any) -> Any:
    rank = len(dims_of(x))
    return ops.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def flat_row(row: Any) -> Any:
    return ops.expand_dims(row, axes=(len(dims_of(row)) - 1,))


def rows(x: Any, rank: int) -> Any:
    """The rows of matrices first: [*stack, n, k] as [n, *stack, k], with stack axes for `rank`."""
    given = len(dims_of(x))
    x = x if given == rank else ops.expand_dims(x, axes=tuple(range(rank - given)))
    return ops.transpose(x, perm=(rank - 2, *range(rank - 2), rank - 1))


def _conj(x: Any) -> Any:
    return ops.conj(x) if dtype_of(x).is_complex else x


def adjoint(x: Any) -> Any:
    return _conj(swapped(x))


# -- factors --------------------------------------------------------------------------------------


@op("x[*b n n] -> x[*b n n]", kind=Kind.SPECIAL, flops="b*n*n*n//3")
def cholesky(a: Array, *, upper: bool = False) -> Array:
    """The lower triangle l with positive diagonal and a = l · lᴴ; of `upper`, u with a = uᴴ · u.
    Only that triangle of a is read, and of its diagonal the real part."""
    (made,) = guarded(lambda m: (np.linalg.cholesky(m),), _lower_half(a, upper))
    return _adjoint(made) if upper else made


@cholesky.lowering
def _(a: Any, *, upper: bool) -> Any:
    """Column after column: what is left of a's, divided by the root of its diagonal."""
    from rlx.ops.control_flow import scan_loop

    half = adjoint(a) if upper else a
    rank, n = len(dims_of(a)), dims_of(a)[-1]

    def step(made: Any, given: Any) -> tuple[Any, Any]:
        column, here, below = given
        row = ops.sum(ops.where(_along(here, 0), made, 0), axes=(rank - 2,))
        left = ops.sub(column, _product(made, _conj(row)))
        pivot = _root(ops.sum(ops.where(here, left, 0), axes=(rank - 2,), keepdims=True))
        scaled = ops.where(here, pivot, ops.where(below, ops.div(left, pivot), 0))
        return ops.where(_along(here, 1), ops.expand_dims(scaled, axes=(rank - 1,)), made), scaled

    row, column = (nullary(a, "iota", dims=(n, n), axis=x, dtype=DType.I64) for x in (0, 1))
    xs = (rows(swapped(half), rank), ops.equal(row, column), ops.less_equal(row, column))
    made, _ = scan_loop(step, filled(a, 0, dims_of(a)), xs)
    whole = ops.all(ops.is_finite(made), axes=(rank - 2, rank - 1), keepdims=True)
    answer = ops.where(whole, made, float("nan"))
    return adjoint(answer) if upper else answer


def _along(here: Any, axis: int) -> Any:
    """A flag per index, along the rows (0) or the columns of a matrix."""
    return ops.expand_dims(here, axes=(1 - axis,))


def _product(matrix: Any, vector: Any) -> Any:
    rank = len(dims_of(vector))
    return ops.squeeze(ops.matmul(matrix, ops.expand_dims(vector, axes=(rank,))), axes=(rank,))


def _root(x: Any) -> Any:
    """The root of the real part, in the dtype of x; NaN where that is not positive."""
    part = ops.real(x) if dtype_of(x).is_complex else x
    return ops.cast(ops.sqrt(ops.where(ops.greater(part, 0.0), part, float("nan"))), to=dtype_of(x))


def _phases(x: Array) -> Array:
    """x / |x|, and 1 for 0."""
    size = np.abs(x)
    return np.where(size > 0, x / np.where(size > 0, size, 1), 1).astype(x.dtype)


def leading_phases(columns: Array) -> Array:
    """The phase of each column's greatest entry, the first of equals: [..., 1, columns]."""
    if columns.shape[-2] == 0:
        return np.ones((*columns.shape[:-2], 1, columns.shape[-1]), columns.dtype)
    where = np.argmax(np.abs(columns), axis=-2, keepdims=True)
    return _phases(np.take_along_axis(columns, where, axis=-2))


def _qr_shape(a: Shape, *, complete: bool) -> tuple[Shape, Shape]:
    *stack, m, n = a.dims
    k = m if complete else dim_min(m, n)
    return a.with_dims((*stack, m, k)), a.with_dims((*stack, k, n))


@op(
    "x[*b m n] -> x[...], x[...]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_qr_shape,
    flops="4*b*m*n*min(m, n)",
    why_no_lowering=FACTORS,
)
def qr(a: Array, *, complete: bool = False) -> tuple[Array, Array]:
    """q and r with a = q · r: the columns of q orthonormal, r upper triangular with a diagonal
    that is real and not negative. q has min(m, n) columns, or m if `complete`."""
    return guarded(lambda m: _signed_qr(m, "complete" if complete else "reduced"), a)  # pyright: ignore[reportReturnType]


def _signed_qr(a: Array, mode: Any) -> tuple[Array, Array]:
    q, r = np.linalg.qr(a, mode)
    k = min(a.shape[-2:])
    phase = np.ones((*q.shape[:-2], q.shape[-1]), q.dtype)
    phase[..., :k] = _phases(np.diagonal(r, axis1=-2, axis2=-1))
    return q * phase[..., None, :], r * np.conjugate(phase)[..., :, None]


def _svd_shape(a: Shape, *, full_matrices: bool) -> tuple[Shape, Shape, Shape]:
    *stack, m, n = a.dims
    k = dim_min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    values = Shape((*stack, k), a.dtype.real)
    return a.with_dims((*stack, m, rows)), values, a.with_dims((*stack, columns, n))


@op(
    "x[*b m n] -> x[...], x.real[...], x[...]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_svd_shape,
    flops="20*b*m*n*min(m, n)",
    why_no_lowering=FACTORS,
)
def svd(a: Array, *, full_matrices: bool = True) -> tuple[Array, Array, Array]:
    """u, s and vh with a = u · diag(s) · vh: s falling and not negative, the columns of u and the
    rows of vh orthonormal. In each column of u the greatest entry, the first of equals, is real
    and positive, and so it is in those rows of vh that have no column of u."""
    return guarded(lambda m: _signed_svd(m, full_matrices), a)  # pyright: ignore[reportReturnType]


def _signed_svd(a: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
    u, s, vh = np.linalg.svd(a, full_matrices=full_matrices)
    k = s.shape[-1]
    phases = leading_phases(u)
    spare = np.swapaxes(vh[..., k:, :], -2, -1)
    phases_of_rows = np.concatenate([phases[..., :k], np.conjugate(leading_phases(spare))], axis=-1)
    return u * np.conjugate(phases), s, vh * np.swapaxes(phases_of_rows, -2, -1)


@op("x[*b m n] -> x.real[...]", kind=Kind.SPECIAL, flops="4*b*m*n*min(m, n)",
    shape=lambda a: _svd_shape(a, full_matrices=False)[1])  # fmt: skip
def svdvals(a: Array) -> Array:
    """The singular values of a, falling."""
    return guarded(lambda m: (np.linalg.svd(m, compute_uv=False),), a)[0]


@svdvals.lowering
def _(a: Any) -> Any:
    return ops.svd(a, full_matrices=False)[1]


@op(
    "x[*b n n] -> x.real[*b n], x[*b n n]",
    kind=Kind.SPECIAL,
    jumps=True,
    flops="9*b*n*n*n",
    why_no_lowering=FACTORS,
)
def eigh(a: Array, *, upper: bool = False) -> tuple[Array, Array]:
    """Eigenvalues of a Hermitian matrix, rising, and as columns its eigenvectors, orthonormal. In
    each the greatest entry, the first of equals, is real and positive. Only the lower (or upper)
    triangle of a is read, and of its diagonal the real part."""
    return guarded(_signed_eigh, _lower_half(a, upper))  # pyright: ignore[reportReturnType]


def _signed_eigh(half: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(half, "L")
    return values, vectors * np.conjugate(leading_phases(vectors))


# -- drawing --------------------------------------------------------------------------------------


def draw_square(draw: Draw, domain: str) -> Spec:
    """A stack of square matrices."""
    n = draw.size()
    return Spec((*draw.dims(0, 2), n, n), draw.dtype("x"), domain)


def draw_rectangle(draw: Draw) -> Spec:
    """A stack of matrices of any size."""
    return Spec((*draw.dims(0, 2), draw.size(), draw.size()), draw.dtype("x"), "plain")


def _draw_upper(draw: Draw) -> Drawn:
    return [draw_square(draw, "definite" if draw.coin(0.8) else "any")], {"upper": draw.coin()}


cholesky.sample(_draw_upper)
eigh.sample(_draw_upper)
svdvals.sample(lambda draw: ([draw_rectangle(draw)], {}))
