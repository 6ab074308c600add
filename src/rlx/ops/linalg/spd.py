"""Functions of Hermitian matrices by their eigenvalues.

As in `linalg`, matrices are the last two axes, and one that has no answer gets NaN. Only the lower
triangle is read, and of its diagonal the real part. Though eigenvectors jump where eigenvalues
meet, these functions do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.ops.compose import dtype_of
from rlx.ops.draw import Draw
from rlx.ops.linalg.factorization import Drawn, adjoint, draw_square, flat_row
from rlx.ops.op import Kind, Op, op


def _spectral_function(meaning: Callable[..., Any]) -> Op:
    """Declare a function whose meaning is its lowering, so that both compute the same; f16 and bf16
    are rounded once."""
    made = op("x[*b n n] -> x[*b n n]", kind=Kind.SPECIAL, flops="b*n*n*(11*n + 1)")(meaning)
    made.lowering(meaning)
    return made


def _mapped(a: Any, function: Callable[[Any], Any]) -> Any:
    values, vectors = ops.eigh(a)
    scale = ops.cast(flat_row(function(values)), to=dtype_of(a))
    return ops.matmul(ops.mul(vectors, scale), adjoint(vectors))


def _positive(values: Any) -> Any:
    """NaN, which the product spreads over the whole matrix, for what is not above 0."""
    return ops.where(ops.greater(values, 0.0), values, float("nan"))


@_spectral_function
def spd_exp(a: Any) -> Any:
    """exp of a Hermitian matrix, which is positive definite; the inverse of spd_log."""
    return _mapped(a, ops.exp)


@_spectral_function
def spd_log(a: Any) -> Any:
    """The Hermitian logarithm of a positive definite matrix. NaN if it is not one."""
    return _mapped(a, lambda values: ops.log(_positive(values)))


@_spectral_function
def spd_sqrt(a: Any) -> Any:
    """The positive definite root r of a positive definite matrix: a = r · r. NaN if it is none."""
    return _mapped(a, lambda values: ops.sqrt(_positive(values)))


@_spectral_function
def spd_power(a: Any, *, exponent: float) -> Any:
    """A positive definite matrix to any real power. NaN if it is not positive definite."""
    return _mapped(a, lambda values: ops.pow(_positive(values), exponent))


# -- drawing --------------------------------------------------------------------------------------


def _draw(draw: Draw) -> Drawn:
    return [draw_square(draw, "definite" if draw.coin(0.8) else "any")], {}


for _function in (spd_exp, spd_log, spd_sqrt):
    _function.sample(_draw)


@spd_power.sample
def _(draw: Draw) -> Drawn:
    return _draw(draw)[0], {"exponent": draw.choice((-1.0, -0.5, 0.0, 0.3, 2.0))}
