"""Eigenvalues of any matrix, its exponential, least squares. See `linalg` for conventions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.ops.compose import composed, dims_of, dtype_of, filled, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.linalg.factorization import FACTORS, Drawn, draw_square, guarded, leading_phases
from rlx.ops.op import Array, Kind, op


@op(
    "x[*b n n] -> x.complex[*b n], x.complex[*b n n]",
    kind=Kind.SPECIAL,
    jumps=True,
    flops="100*b*n*n*n",
    why_no_lowering=FACTORS,
)
def eig(a: Array) -> tuple[Array, Array]:
    """Eigenvalues, by their real parts and then imaginary parts, rising, and as columns their
    eigenvectors, of length 1. In each the greatest entry, the first of equals, is real and
    positive."""
    return guarded(_sorted_eig, a)  # pyright: ignore[reportReturnType]


def _sorted_eig(a: Array) -> tuple[Array, Array]:
    kind = np.result_type(a, np.complex64)
    values, vectors = (v.astype(kind) for v in np.linalg.eig(a))
    order = np.lexsort((np.imag(values), np.real(values)), axis=-1)
    vectors = np.take_along_axis(vectors, order[..., None, :], -1)
    return np.take_along_axis(values, order, -1), vectors * np.conjugate(leading_phases(vectors))


@op("x[*b n n] -> x.complex[*b n]", kind=Kind.SPECIAL, jumps=True, flops="100*b*n*n*n")
def eigvals(a: Array) -> Array:
    """The eigenvalues of a, in the order of eig."""
    return guarded(lambda m: (_sorted_eig(m)[0],), a)[0]


@eigvals.lowering
def _(a: Any) -> Any:
    return ops.eig(a)[0]


# -- the exponential ------------------------------------------------------------------------------

PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
"""Of the [13/13] Padé approximant of eˣ: (26 - k)! / (k! · (13 - k)!), over that of k = 13."""
PADE_NORM = 5.371920351148152
"""Up to this 1-norm the approximant is exact to f64."""
MAX_SQUARINGS = 1100
"""More than any norm of f64 takes."""


def _matrix_exp(a: Any) -> Any:
    """Scaled to a norm that the approximant is exact for, then squared as often."""
    from rlx.ops.control_flow import while_loop

    rank = len(dims_of(a))
    norms = ops.sum(ops.abs(a), axes=(rank - 2,), keepdims=True)
    norm = ops.max(norms, axes=(rank - 1,), keepdims=True, empty_ok=True)
    steps = ops.ceil(ops.log2(ops.div(ops.maximum(norm, PADE_NORM), PADE_NORM)))
    steps = ops.where(ops.is_finite(steps), steps, 0.0)
    halves = ops.exp2(ops.neg(ops.mul(steps, 0.5)))  # twice, as the whole power may underflow
    scale = ops.cast(halves, to=dtype_of(a))
    made = _pade(ops.mul(ops.mul(a, scale), scale))
    most = ops.max(steps, empty_ok=True)

    def more(i: Any, _: Any, __: Any, most: Any) -> Any:
        return ops.less(i, most)

    def square(i: Any, x: Any, steps: Any, most: Any) -> Any:
        return ops.add(i, 1.0), ops.where(ops.less(i, steps), ops.matmul(x, x), x), steps, most

    start = filled(steps, 0, ())
    return while_loop(more, square, start, made, steps, most, max_iterations=MAX_SQUARINGS)[1]


def _pade(a: Any) -> Any:
    """The [13/13] approximant of eˣ: (v - u)⁻¹ · (v + u), u odd and v even in a."""
    c = [float(x) / PADE[0] for x in PADE]
    n = dims_of(a)[-1]
    row, column = (nullary(a, "iota", dims=(n, n), axis=x, dtype=DType.I64) for x in (0, 1))
    a2 = ops.matmul(a, a)
    a4 = ops.matmul(a2, a2)
    a6 = ops.matmul(a2, a4)
    eye = ops.expand(ops.cast(ops.equal(row, column), to=dtype_of(a)), dims=dims_of(a))

    def sums(*terms: tuple[float, Any]) -> Any:
        made = ops.mul(terms[0][1], terms[0][0])
        for factor, matrix in terms[1:]:
            made = ops.add(made, ops.mul(matrix, factor))
        return made

    high = ops.matmul(a6, sums((c[13], a6), (c[11], a4), (c[9], a2)))
    low = sums((c[7], a6), (c[5], a4), (c[3], a2), (c[1], eye))
    u = ops.matmul(a, ops.add(high, low))
    high = ops.matmul(a6, sums((c[12], a6), (c[10], a4), (c[8], a2)))
    v = ops.add(high, sums((c[6], a6), (c[4], a4), (c[2], a2), (c[0], eye)))
    return ops.solve(ops.sub(v, u), ops.add(v, u))


@op("x[*b n n] -> x[*b n n]", kind=Kind.SPECIAL, flops="30*b*n*n*n")
def matrix_exp(a: Array) -> Array:
    """e to the power of a matrix: 1 + a + a·a/2 + …. NaN where a is not finite."""
    return _matrix_exp(a)


matrix_exp.lowering(_matrix_exp)


# -- least squares --------------------------------------------------------------------------------


@composed("x[*b m n], x[*b m k] -> x[*b n k]", kind=Kind.SPECIAL, jumps=True)
def lstsq(a: Any, b: Any, *, rtol: float | None = None) -> Any:
    """The x of least length that minimises the length of a · x - b, column by column. Singular
    values up to `rtol` times the greatest are taken for 0, as by pinv."""
    return ops.matmul(ops.pinv(a, rtol=rtol), b)


# -- drawing --------------------------------------------------------------------------------------


eig.sample(lambda draw: ([draw_square(draw, "any")], {}))
eigvals.sample(lambda draw: ([draw_square(draw, "any")], {}))
matrix_exp.sample(lambda draw: ([draw_square(draw, "plain")], {}))


@lstsq.sample
def _(draw: Draw) -> Drawn:
    stack, m, dtype = draw.dims(0, 2), draw.size(), draw.dtype("x")
    given = [Spec((*stack, m, draw.size()), dtype, "plain") for _ in range(2)]
    return given, {"rtol": draw.choice((None, 0.1))}
