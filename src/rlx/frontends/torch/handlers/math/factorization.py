"""Factorisations and the systems that are solved by them, with LAPACK's conventions."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.math.linalg import transposed
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node

EPS = {DType.F32: 2.0**-23, DType.F64: 2.0**-52, DType.C64: 2.0**-23, DType.C128: 2.0**-52}


def stacked(x: Node, lead: tuple[DimLike, ...]) -> Node:
    """A stack of matrices, repeated to these leading dims."""
    return ops.expand(x, dims=(*lead, *x.shape.dims[-2:]))


# -- LU ------------------------------------------------------------------------------------------


def _factored(call: Call, a: Node) -> tuple[Node, Node, Node]:
    """LU, LAPACK's pivots, and where the first zero of U's diagonal is, from 1 on; 0 if nowhere."""
    lu, swaps = ops.lu_factor(a)
    rows, columns = lu.shape.dims[-2:]
    count = dim_min(rows, columns)
    if count == 0:
        return lu, swaps, ops.expand(call.constant(0, DType.I64), dims=lu.shape.dims[:-2])
    steps = ops.mul(call.positions((count,), 0), call.node(columns + 1, DType.I64))
    flat = ops.reshape(lu, dims=(*lu.shape.dims[:-2], rows * columns))
    is_zero = ops.equal(ops.gather(flat, steps, axis=rank(lu) - 2), 0)
    first = ops.add(ops.argmax(ops.cast(is_zero, to=DType.U8), axis=-1), 1)
    info = ops.where(ops.any(is_zero, axes=(-1,)), first, call.constant(0, DType.I64))
    return lu, ops.add(swaps, 1), info


@handles("linalg_lu_factor_ex")
def lu_factor(call: Call, A: Node, pivot: bool = True) -> list[Node]:
    call.require(pivot, "a factorisation without pivots")
    return list(_factored(call, A))


def _order(call: Call, pivots: Node, rows: DimLike) -> Node:
    return ops.pivots_to_permutation(ops.sub(call.node(pivots, DType.I64), 1), size=rows)


def _permutation(call: Call, order: Node, dtype: DType) -> Node:
    """P with P[order[i], i] = 1."""
    rows = order.shape.dims[-1]
    places = ops.reshape(call.positions((rows,), 0), dims=(rows, 1))
    same = ops.equal(places, ops.expand_dims(order, axes=(rank(order) - 1,)))
    return ops.cast(same, to=dtype)


def _triangles(call: Call, lu: Node) -> tuple[Node, Node]:
    rows, columns = lu.shape.dims[-2:]
    count = dim_min(rows, columns)
    left = ops.narrow(lu, axis=rank(lu) - 1, start=0, length=count)
    unit = ops.equal(call.positions((rows, count), 0), call.positions((rows, count), 1))
    lower = ops.add(ops.trilu(left, k=-1, upper=False), ops.cast(unit, to=lu.shape.dtype))
    top = ops.narrow(lu, axis=rank(lu) - 2, start=0, length=count)
    return lower, ops.trilu(top, k=0, upper=True)


@handles("linalg_lu")
def lu(call: Call, A: Node, pivot: bool = True) -> list[Node]:
    call.require(pivot, "a factorisation without pivots")
    made, pivots, _ = _factored(call, A)
    order = _order(call, pivots, A.shape.dims[-2])
    return [_permutation(call, order, A.shape.dtype), *_triangles(call, made)]


@handles("lu_unpack")
def lu_unpack(call: Call, x: Node, LU_pivots: Node, unpack_data: bool = True,
              unpack_pivots: bool = True) -> list[Node]:  # fmt: skip
    empty = [call.filled(0, v) for v in call.value]
    order = _order(call, LU_pivots, x.shape.dims[-2])
    p = _permutation(call, order, x.shape.dtype) if unpack_pivots else empty[0]
    return [p, *(_triangles(call, x) if unpack_data else empty[1:])]


@handles("linalg_lu_solve")
def lu_solve(call: Call, x: Node, pivots: Node, B: Node, left: bool = True,
             adjoint: bool = False) -> Node:  # fmt: skip
    """X A = B is Aᵀ Xᵀ = Bᵀ."""
    lead = call.dims[:-2]
    swaps = ops.sub(call.node(pivots, DType.I64), 1)
    wide = ops.expand(swaps, dims=(*lead, pivots.shape.dims[-1]))
    factors, b = stacked(x, lead), stacked(B, lead)
    if left:
        return ops.lu_solve(factors, wide, b, transpose="adjoint" if adjoint else "none")
    if adjoint and x.shape.dtype.is_complex:
        return transposed(ops.lu_solve(ops.conj(factors), wide, transposed(b), transpose="none"))
    how = "none" if adjoint else "transpose"
    return transposed(ops.lu_solve(factors, wide, transposed(b), transpose=how))


@handles("_linalg_solve_ex")
def solve_ex(call: Call, A: Node, B: Node, left: bool = True) -> list[Node]:
    """The result, its factors and where they are singular."""
    is_vector = rank(B) == 1 or (rank(A) - 1 == rank(B) and A.shape.dims[:-1] == B.shape.dims)
    if left or is_vector:
        made = ops.solve(A, B, vectors=bool(is_vector))
    else:
        made = transposed(ops.solve(transposed(A), transposed(B), vectors=False))
    return [made, *_factored(call, A)]


@handles("_linalg_det")
def det(call: Call, A: Node) -> list[Node]:
    return [ops.det(A), *_factored(call, A)[:2]]


@handles("_linalg_slogdet")
def slogdet(call: Call, A: Node) -> list[Node]:
    return [*ops.slogdet(A), *_factored(call, A)[:2]]


# -- triangular systems --------------------------------------------------------------------------


@handles("cholesky_solve")
def cholesky_solve(call: Call, x: Node, input2: Node, upper: bool = False) -> Node:
    lead = call.dims[:-2]
    return ops.cholesky_solve(stacked(input2, lead), stacked(x, lead), upper=bool(upper))


@handles("cholesky_inverse")
def cholesky_inverse(call: Call, x: Node, upper: bool = False) -> Node:
    return ops.cholesky_inverse(x, upper=bool(upper))


@handles("triangular_solve")
def triangular_solve(
    call: Call, x: Node, A: Node, upper: bool = True, transpose: bool = False,
    unitriangular: bool = False,
) -> list[Node]:  # fmt: skip
    how = {"upper": bool(upper), "unit_diagonal": bool(unitriangular)}
    turn = "transpose" if transpose else "none"
    b = stacked(x, call.dims[:-2])
    a = stacked(A, call.dims[:-2])
    return [ops.triangular_solve(a, b, transpose=turn, **how), a]


# -- QR ------------------------------------------------------------------------------------------


def _widened(x: Node, columns: DimLike) -> Node:
    """Columns of zeros added, or columns left out."""
    size = x.shape.dims[-1]
    if columns == size:
        return x
    if isinstance(columns, int) and isinstance(size, int) and columns < size:
        return ops.narrow(x, axis=rank(x) - 1, start=0, length=columns)
    high = (*[0] * (rank(x) - 1), columns - size)
    return ops.pad(x, low=(0,) * rank(x), high=high, value=0)


@handles("linalg_qr")
def qr(call: Call, A: Node, mode: str = "reduced") -> list[Node]:
    packed, tau = ops.geqrf(A)
    rows, columns = A.shape.dims[-2:]
    count = rows if mode == "complete" else dim_min(rows, columns)
    top = packed
    if count != rows:
        top = ops.narrow(packed, axis=rank(A) - 2, start=0, length=count)
    r = ops.trilu(top, k=0, upper=True)
    if mode == "r":
        return [call.filled(0, call.value[0]), r]
    return [ops.householder_product(_widened(packed, count), tau), r]


@handles("geqrf")
def geqrf(call: Call, x: Node) -> list[Node]:
    return list(ops.geqrf(x))


@handles("linalg_householder_product")
def householder_product(call: Call, x: Node, tau: Node) -> Node:
    return ops.householder_product(x, tau)


@handles("ormqr")
def ormqr(call: Call, x: Node, input2: Node, input3: Node, left: bool = True,
          transpose: bool = False) -> Node:  # fmt: skip
    how = "adjoint" if transpose else "none"
    return ops.ormqr(x, input2, input3, left=bool(left), transpose=how)


# -- eigenvalues and singular values ---------------------------------------------------------------


@handles("_linalg_eigh")
def eigh(call: Call, A: Node, UPLO: str = "L", compute_v: bool = True) -> list[Node]:
    values, vectors = ops.eigh(A, upper=UPLO.upper() == "U")
    return [values, vectors if compute_v else call.filled(0, call.value[1])]


@handles("linalg_eig")
def eig(call: Call, x: Node) -> list[Node]:
    return list(ops.eig(x))


@handles("linalg_eigvals", "_linalg_eigvals")
def eigvals(call: Call, x: Node) -> Node:
    return ops.eigvals(x)


@handles("_linalg_svd")
def svd(call: Call, A: Node, full_matrices: bool = False, compute_uv: bool = True) -> list[Node]:
    if compute_uv:
        return list(ops.svd(A, full_matrices=bool(full_matrices)))
    return [call.filled(0, call.value[0]), ops.svdvals(A), call.filled(0, call.value[2])]


@handles("linalg_matrix_exp")
def matrix_exp(call: Call, x: Node) -> Node:
    call.require_wide(x, "half floats, whose powers overflow in torch")
    return ops.matrix_exp(x)


@handles("linalg_pinv")
def pinv(call: Call, x: Node, rcond: Any = None, hermitian: bool = False, rtol: Any = None,
         atol: Any = None) -> Node:  # fmt: skip
    """Singular values, or eigenvalues, at most max(atol, rtol · the greatest) count as 0."""
    if 0 in x.shape.dims:
        return call.filled(0)
    if hermitian:
        values, right = ops.eigh(x)
        left, sizes = _adjoint(right), ops.abs(values)
    else:
        u, values, vh = ops.svd(x, full_matrices=False)
        left, right, sizes = _adjoint(u), _adjoint(vh), values
    greatest = ops.max(sizes, axes=(-1,), keepdims=True)
    limit = _limit(call, x, greatest, rcond if rcond is not None else rtol, atol)
    is_small = ops.less_equal(sizes, limit)
    one, zero = call.nodes(1, 0, dtype=sizes.shape.dtype)
    inverse = ops.where(is_small, zero, ops.div(one, ops.where(is_small, one, values)))
    scaled = ops.mul(right, ops.cast(ops.expand_dims(inverse, axes=(rank(inverse) - 1,)),
                                     to=right.shape.dtype))  # fmt: skip
    return ops.matmul(scaled, left)


def _limit(call: Call, x: Node, greatest: Node, rtol: Any, atol: Any) -> Node:
    dtype = greatest.shape.dtype
    absolute = call.node(0.0 if atol is None else atol, dtype)
    if rtol is None:
        longest = max(call.whole(*x.shape.dims[-2:], what="the size of a matrix"))
        usual = call.constant(longest * EPS[dtype], dtype)
        zero = call.constant(0.0, dtype)
        relative = usual if atol is None else ops.where(ops.greater(absolute, zero), zero, usual)
    else:
        relative = call.node(rtol, dtype)
    sides = (ops.expand_dims(v, axes=(rank(v),)) if rank(v) else v for v in (absolute, relative))
    one, other = sides
    return ops.maximum(one, ops.mul(other, greatest))


def _adjoint(x: Node) -> Node:
    return ops.conj(transposed(x)) if x.shape.dtype.is_complex else transposed(x)
