"""Householder reflections H = 1 - tau · v · vᴴ: QR in factored form. See `linalg` for conventions.

The k-th v is 0 before its k-th entry, which is 1 and not stored. The factor tau of the k-th is such
that Hᴴ makes the entries below the diagonal 0, and that on the diagonal real.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import dim_min, provably_le
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.linalg.dense import Turn
from rlx.ops.linalg.factorization import FACTORS, Drawn, adjoint, draw_rectangle, guarded, swapped
from rlx.ops.op import Array, Kind, op


def _geqrf_shape(a: Shape) -> tuple[Shape, Shape]:
    *stack, m, n = a.dims
    return a, a.with_dims((*stack, dim_min(m, n)))


@op(
    "x[*b m n] -> x[*b m n], x[...]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_geqrf_shape,
    flops="2*b*m*n*min(m, n)",
    why_no_lowering=FACTORS,
)
def geqrf(a: Array) -> tuple[Array, Array]:
    """r, whose diagonal has either sign, and below it the reflections whose product is q; then
    their factors tau. LAPACK's signs: a diagonal entry of r is opposed to what it replaces, unless
    there is nothing to reflect."""
    return guarded(_raw_qr, a)  # pyright: ignore[reportReturnType]


def _raw_qr(a: Array) -> tuple[Array, Array]:
    if 0 in a.shape:
        return a, np.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
    h, tau = np.linalg.qr(a, "raw")
    return np.swapaxes(h, -2, -1), tau


def _check_reflections(a: Shape, _: Shape) -> Shape:
    m, n = a.dims[-2:]
    if provably_le(m, n) and m != n:
        raise GraphError(f"operand 0 is {a}: it has more columns than rows")
    return a


@op(
    "x[*b m n], x[*b k] -> x[*b m n]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_check_reflections,
    flops="4*b*m*n*k",
    why_no_lowering=FACTORS,
)
def householder_product(a: Array, tau: Array) -> Array:
    """The first columns of the product of reflections, in the order of their factors tau; as many
    as a has, which holds them as geqrf gives them."""
    k = tau.shape[-1]

    def product(v: Array, t: Array) -> tuple[Array]:
        q = np.zeros_like(v) + np.eye(*v.shape[-2:], dtype=v.dtype)
        for i in reversed(range(k)):
            _reflect(q, v[..., i:, i], t[..., 0, i], i)
        return (q,)

    return guarded(product, a, tau[..., None, :])[0]


def _reflect(q: Array, column: Array, tau: Array, i: int) -> None:
    v = np.array(column)
    v[..., 0] = 1
    row = np.matmul(np.conjugate(v)[..., None, :], q[..., i:, :])
    q[..., i:, :] -= (tau[..., None] * v)[..., :, None] * row


@composed("x[*b m n], x[*b k], x[*b r c] -> x[*b r c]", kind=Kind.SPECIAL)
def ormqr(a: Any, tau: Any, other: Any, *, left: bool = True, transpose: Turn = "none") -> Any:
    """q · other, or other · q where not `left`; q is the whole product of reflections, m by m, of
    real matrices transposed and of any the adjoint, where asked for."""
    *stack, m, n = dims_of(a)
    none = (0,) * (len(stack) + 1)
    wide = a if n == m else ops.pad(a, low=(*none, 0), high=(*none, m - n))
    q = ops.householder_product(wide, tau)
    turned = {"none": lambda x: x, "transpose": swapped, "adjoint": adjoint}[transpose](q)
    return ops.matmul(turned, other) if left else ops.matmul(other, turned)


# -- drawing --------------------------------------------------------------------------------------


geqrf.sample(lambda draw: ([draw_rectangle(draw)], {}))


def _draw_reflections(draw: Draw) -> list[Spec]:
    n = draw.size()
    m, stack, dtype = n + draw.integer(0, 3), draw.dims(0, 2), draw.dtype("x")
    k = draw.integer(0, n)
    return [Spec((*stack, m, n), dtype, "plain"), Spec((*stack, k), dtype, "plain")]


householder_product.sample(lambda draw: (_draw_reflections(draw), {}))


@ormqr.sample
def _(draw: Draw) -> Drawn:
    a, tau = _draw_reflections(draw)
    left, m = draw.coin(), a.dims[-2]
    core = (m, draw.size()) if left else (draw.size(), m)
    turn = draw.choice(("none", "transpose", "adjoint"))
    other = Spec((*a.dims[:-2], *core), a.dtype, "plain")
    return [a, tau, other], {"left": left, "transpose": turn}
