"""Dense linear algebra on batches of matrices, which are the last two axes.

A matrix that has no answer gets NaN, and so does one that holds a NaN or infinity: a singular one
to solve with, one to factorise that is not positive definite. The others of its stack do not
notice. Factors that are unique only up to a sign, or a phase, have it fixed, as each op says.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import DimLike, dim_max
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, Shape, broadcast
from rlx.ops.compose import composed, dims_of, dtype_of, filled, nullary, shape_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.linalg.factorization import (
    FACTORS,
    adjoint,
    draw_rectangle,
    draw_square,
    flat_row,
    guarded,
    rows,
    swapped,
)
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]
Turn = Literal["none", "transpose", "adjoint"]
_LAST = Axis(-1)


# -- solving --------------------------------------------------------------------------------------


def _solution(a: Shape, b: Shape, *, vectors: bool) -> Shape:
    core = b.dims[-1:] if vectors else b.dims[-2:]
    if b.rank < len(core) or len(core) != (1 if vectors else 2):
        raise GraphError(f"operand 1 is {b}, expected matrices. Set vectors for one right side")
    if core[0] != a.dims[-1]:
        what = f"operand 1 is {b}: it has {core[0]} rows, but operand 0 is {a}"
        raise DimsDiffer(what, core[0], a.dims[-1])
    return Shape((*broadcast(a.dims[:-2], b.dims[: -len(core)]), *core), a.dtype)


@op(
    "x[*b n n], x[...] -> x[...]",
    kind=Kind.SPECIAL,
    shape=_solution,
    flops="2*b*n*n*n//3 + 2*out*n",
    why_no_lowering=FACTORS,
)
def solve(a: Array, b: Array, *, vectors: bool = False) -> Array:
    """The x with a · x = b. The stacks broadcast. With `vectors`, which a `b` of rank 1 implies,
    the last axis of b is one right side; else its last two are as many as it has columns."""
    right = b[..., None] if vectors else b
    stack = np.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    wide = [np.broadcast_to(v, (*stack, *v.shape[-2:])) for v in (a, right)]
    (made,) = guarded(lambda m, r: (np.linalg.solve(m, r),), *wide)
    return made[..., 0] if vectors else made


@solve.normal
def _(a: Shape, b: Shape, *, vectors: bool) -> dict[str, Any]:
    return {"vectors": vectors or b.rank == 1}


@op("x[*b n n] -> x[*b n n]", kind=Kind.SPECIAL, flops="2*b*n*n*n", aliases=("inv",))
def inverse(a: Array) -> Array:
    """The matrix whose product with a is the identity."""
    return guarded(lambda m: (np.linalg.inv(m),), a)[0]


@inverse.lowering
def _(a: Any) -> Any:
    *stack, n, _ = dims_of(a)
    return ops.solve(a, ops.expand(_eye(a, n), dims=(*stack, n, n)))


def _eye(x: Any, n: DimLike, offset: int = 0, m: DimLike | None = None) -> Any:
    """Ones on a diagonal, in the dtype of x: of an n by n matrix, or n by m."""
    dims = (n, n if m is None else m)
    row, column = (nullary(x, "iota", dims=dims, axis=a, dtype=DType.I64) for a in (0, 1))
    return ops.cast(ops.equal(ops.add(row, offset), column), to=dtype_of(x))


def _triangular(a: Shape, b: Shape, *, left: bool, **_: Any) -> Shape:
    what = f"operand 1 is {b}, which does not fit operand 0, {a}"
    if b.rank < 2:
        raise GraphError(what)
    if b.dims[-2 if left else -1] != a.dims[-1]:
        raise DimsDiffer(what, b.dims[-2 if left else -1], a.dims[-1])
    return Shape((*broadcast(a.dims[:-2], b.dims[:-2]), *b.dims[-2:]), a.dtype)


@op("x[*b n n], x[...] -> x[...]", kind=Kind.SPECIAL, shape=_triangular, flops="out*n")
def triangular_solve(
    a: Array,
    b: Array,
    *,
    left: bool = True,
    upper: bool = False,
    unit_diagonal: bool = False,
    transpose: Turn = "none",
) -> Array:
    """The x with t · x = b, or x · t = b where not `left`. t is the lower (or upper) triangle of
    a, with ones on its diagonal if `unit_diagonal`, and then transposed, or the adjoint. Zeros on
    the diagonal divide as floats do."""
    t, is_upper = np.triu(a) if upper else np.tril(a), upper
    if transpose != "none":
        t, is_upper = np.swapaxes(t, -2, -1), not is_upper
        t = np.conjugate(t) if transpose == "adjoint" else t
    if not left:
        t, b, is_upper = np.swapaxes(t, -2, -1), np.swapaxes(b, -2, -1), not is_upper
    made = _substituted(t, b, is_upper, unit_diagonal)
    return made if left else np.swapaxes(made, -2, -1)


def _substituted(t: Array, b: Array, is_upper: bool, unit: bool) -> Array:
    stack = np.broadcast_shapes(t.shape[:-2], b.shape[:-2])
    made, n = np.array(np.broadcast_to(b, (*stack, *b.shape[-2:]))), t.shape[-1]
    for i in reversed(range(n)) if is_upper else range(n):
        known = slice(i + 1, n) if is_upper else slice(0, i)
        rest = np.matmul(t[..., i : i + 1, known], made[..., known, :])
        made[..., i : i + 1, :] -= rest
        if not unit:
            made[..., i, :] /= t[..., i, i, None]
    return made


@triangular_solve.lowering
def _(a: Any, b: Any, *, left: bool, upper: bool, unit_diagonal: bool, transpose: Turn) -> Any:
    result = _triangular(shape_of(a), shape_of(b), left=left)
    is_turned = transpose != "none"
    t = swapped(a) if is_turned == left else a
    if transpose == "adjoint" and dtype_of(a).is_complex:
        t = ops.conj(t)
    right = ops.expand(b, dims=result.dims)
    is_upper = upper ^ is_turned ^ (not left)
    made = _scanned(t, right if left else swapped(right), is_upper, unit_diagonal)
    return made if left else swapped(made)


def _scanned(t: Any, b: Any, is_upper: bool, unit: bool) -> Any:
    """Substitution as a recurrence over the rows, each less what the known ones make of it."""
    from rlx.ops.control_flow import scan_loop

    rank, n = len(dims_of(b)), dims_of(t)[-1]
    row, column = (nullary(t, "iota", dims=(n, n), axis=a, dtype=DType.I64) for a in (0, 1))
    known = ops.where(ops.less(row, column) if is_upper else ops.less(column, row), t, 0)
    here = ops.equal(row, column)
    diagonal = ops.sum(ops.where(here, t, 0), axes=(len(dims_of(t)) - 1,), keepdims=True)
    over = filled(t, 1, dims_of(diagonal)) if unit else diagonal

    def step(x: Any, given: Any) -> tuple[Any, Any]:
        weights, right, divisor, is_here = given
        rest = ops.squeeze(ops.matmul(flat_row(weights), x), axes=(rank - 2,))
        y = ops.div(ops.sub(right, rest), divisor)
        return ops.where(is_here, flat_row(y), x), y

    xs = (rows(known, rank), rows(b, rank), rows(over, rank), ops.expand_dims(here, axes=(2,)))
    _, made = scan_loop(step, filled(t, 0, dims_of(b)), xs, reverse=is_upper)
    return ops.transpose(made, perm=(*range(1, rank - 1), 0, rank - 1))


# -- numbers about a matrix -----------------------------------------------------------------------


@op(
    "x[*b n n] -> x[*b], x.real[*b]",
    kind=Kind.SPECIAL,
    flops="2*b*n*n*n//3",
    why_no_lowering=FACTORS,
)
def slogdet(a: Array) -> tuple[Array, Array]:
    """The sign, or phase, of the determinant, and the logarithm of its magnitude: 0 and -inf for a
    singular matrix."""
    return guarded(lambda m: tuple(np.linalg.slogdet(m)), a)  # pyright: ignore[reportReturnType]


@op("x[*b n n] -> x[*b]", kind=Kind.SPECIAL, flops="2*b*n*n*n//3")
def det(a: Array) -> Array:
    """The determinant; of an empty matrix 1."""
    return guarded(lambda m: (np.linalg.det(m),), a)[0]


@det.lowering
def _(a: Any) -> Any:
    sign, size = ops.slogdet(a)
    return ops.mul(sign, ops.cast(ops.exp(size), to=dtype_of(a)))


@op("x[*b m n] -> x[*b n m]", kind=Kind.SPECIAL, flops="24*b*m*n*min(m, n)", jumps=True)
def pinv(a: Array, *, rtol: float | None = None) -> Array:
    """The pseudo-inverse: of each singular value its reciprocal, or 0 where it is at most `rtol`
    times the greatest. Without `rtol`, max(m, n) times the dtype's epsilon."""
    return _pseudo_inverse(a, rtol)


def _pseudo_inverse(a: Any, rtol: float | None) -> Any:
    *_, m, n = dims_of(a)
    u, s, vh = ops.svd(a, full_matrices=False)
    limit: Any = rtol
    if rtol is None:
        longest = nullary(a, "extent", dim=dim_max(m, n), dtype=dtype_of(s))
        limit = ops.mul(longest, float(np.finfo(dtype_of(s).numpy).eps))
    greatest = ops.max(s, axes=(len(dims_of(s)) - 1,), keepdims=True, empty_ok=True)
    is_gone = ops.less_equal(s, ops.mul(greatest, limit))
    inverse_ = ops.where(is_gone, 0.0, ops.div(1.0, s))
    columns = ops.mul(adjoint(vh), flat_row(ops.cast(inverse_, to=dtype_of(a))))
    return ops.matmul(columns, adjoint(u))


@pinv.lowering
def _(a: Any, *, rtol: float | None) -> Any:
    return _pseudo_inverse(a, rtol)


@op("t[*b m n] -> t[*b]", kind=Kind.SPECIAL, flops="b*min(m, n)")
def trace(a: Array, *, offset: int = 0) -> Array:
    """The sum of a diagonal: the main one, or `offset` columns to its right."""
    return np.trace(a, offset, -2, -1, dtype=a.dtype)


@trace.lowering
def _(a: Any, *, offset: int) -> Any:
    *stack, m, n = dims_of(a)
    row, column = (nullary(a, "iota", dims=(m, n), axis=x, dtype=DType.I64) for x in (0, 1))
    diagonal = ops.where(ops.equal(ops.add(row, offset), column), a, 0)
    return ops.sum(diagonal, axes=(len(stack), len(stack) + 1))


@composed("t[m], t[n] -> t[m n]", kind=Kind.SPECIAL)
def outer(x: Any, y: Any) -> Any:
    """Every element of x times every element of y."""
    return ops.mul(ops.expand_dims(x, axes=(1,)), y)


@composed("t[*s], t[*s] -> t[*s]", kind=Kind.SPECIAL)
def cross(x: Any, y: Any, *, axis: Axis = _LAST) -> Any:
    """The cross product of vectors, the three entries along `axis`."""
    if dims_of(x)[axis] != 3:
        what = f"operand 0 has {dims_of(x)[axis]} entries on axis {axis}, expected 3"
        raise DimsDiffer(what, dims_of(x)[axis], 3)
    (x1, x2), (y1, y2) = ((_rolled(v, axis, 1), _rolled(v, axis, 2)) for v in (x, y))
    return ops.sub(ops.mul(x1, y2), ops.mul(x2, y1))


def _rolled(x: Any, axis: int, by: int) -> Any:
    parts = [ops.narrow(x, axis=axis, start=s, length=n) for s, n in ((by, 3 - by), (0, by))]
    return ops.concat(parts, axis=axis)


# -- drawing --------------------------------------------------------------------------------------


def _draw_right(draw: Draw, a: Spec) -> tuple[int, ...]:
    """A stack that broadcasts with that of a."""
    stack = a.dims[:-2]
    return tuple(1 if draw.coin(0.2) else d for d in stack[draw.integer(0, len(stack)) :])


@solve.sample
def _(draw: Draw) -> Drawn:
    a, vectors = draw_square(draw, "regular"), draw.coin()
    core = a.dims[-1:] if vectors else (a.dims[-1], draw.size())
    return [a, Spec((*_draw_right(draw, a), *core), a.dtype, "plain")], {"vectors": vectors}


@triangular_solve.sample
def _(draw: Draw) -> Drawn:
    a, left = draw_square(draw, "regular"), draw.coin()
    core = (a.dims[-1], draw.size())
    dims = (*_draw_right(draw, a), *(core if left else core[::-1]))
    attrs = {"left": left, "upper": draw.coin(), "unit_diagonal": draw.coin(0.3)}
    turn = draw.choice(("none", "transpose", "adjoint"))
    return [a, Spec(dims, a.dtype, "plain")], attrs | {"transpose": turn}


inverse.sample(lambda draw: ([draw_square(draw, "regular")], {}))
det.sample(lambda draw: ([draw_square(draw, "regular")], {}))
slogdet.sample(lambda draw: ([draw_square(draw, "any")], {}))
pinv.sample(lambda draw: ([draw_rectangle(draw)], {"rtol": draw.choice((None, 0.1))}))


@cross.sample
def _(draw: Draw) -> Drawn:
    dims = list(draw.dims(1, 4))
    axis = draw.integer(0, len(dims) - 1)
    dims[axis] = 3
    return [Spec(tuple(dims), draw.dtype("t"), "plain")] * 2, {"axis": axis}


@trace.sample
def _(draw: Draw) -> Drawn:
    dims = (*draw.dims(0, 2), draw.size(), draw.size())
    return [Spec(dims, draw.dtype("t"), "plain")], {"offset": draw.integer(-3, 3)}
