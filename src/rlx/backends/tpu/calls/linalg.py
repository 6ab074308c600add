"""Factorisations by `jax.lax.linalg`, with the signs that our ops fix, and NaN for a matrix that
has no answer or holds a number that is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax


def _adjoint(x: Any) -> Any:
    return jnp.conjugate(jnp.swapaxes(x, -2, -1))


def _is_good(*matrices: Any) -> Any:
    """For each of a stack: is every number of it finite?"""
    good = jnp.isfinite(matrices[0]).all((-2, -1))
    for m in matrices[1:]:
        good = good & jnp.isfinite(m).all((-2, -1))
    return good


def _raised(flag: Any, rank: int) -> Any:
    return flag.reshape(flag.shape + (1,) * (rank - flag.ndim))


def _or_one(stack: Any, good: Any) -> Any:
    """Every matrix that is not good replaced by ones on the diagonal."""
    return jnp.where(
        _raised(good, stack.ndim), stack, jnp.eye(*stack.shape[-2:], dtype=stack.dtype)
    )


def _or_nan(made: Any, good: Any) -> Any:
    return jnp.where(_raised(good, made.ndim), made, made.dtype.type(np.nan))


def _hermitian(a: Any, upper: bool) -> Any:
    """The whole Hermitian matrix whose lower, or upper, half is given, with a real diagonal."""
    half = jnp.tril(_adjoint(a) if upper else a, -1)
    diagonal = jnp.where(jnp.eye(a.shape[-1], dtype=bool), jnp.real(a).astype(a.dtype), 0)
    return half + _adjoint(half) + diagonal


def _phases(x: Any) -> Any:
    """x / |x|, and 1 for 0."""
    size = jnp.abs(x)
    return jnp.where(size > 0, x / jnp.where(size > 0, size, 1), 1).astype(x.dtype)


def _leading_phases(columns: Any) -> Any:
    """The phase of each column's greatest entry, the first of equals: [..., 1, columns]."""
    if columns.shape[-2] == 0:
        return jnp.ones((*columns.shape[:-2], 1, columns.shape[-1]), columns.dtype)
    where = jnp.argmax(jnp.abs(columns), axis=-2, keepdims=True)
    return _phases(jnp.take_along_axis(columns, where, axis=-2))


@TABLE.call("cholesky")
def cholesky(a: Any, *, upper: bool) -> Any:
    whole = _hermitian(a, upper)
    good = _is_good(whole)
    made = jnp.tril(lax.linalg.cholesky(_or_one(whole, good), symmetrize_input=False))
    made = _or_nan(made, good & _is_good(made))
    return _adjoint(made) if upper else made


@TABLE.call("qr")
def qr(a: Any, *, complete: bool) -> tuple[Any, Any]:
    good = _is_good(a)
    q, r = jnp.linalg.qr(_or_one(a, good), mode="complete" if complete else "reduced")
    k = min(a.shape[-2:])
    phase = _phases(jnp.diagonal(r, axis1=-2, axis2=-1))
    rest = jnp.ones((*phase.shape[:-1], q.shape[-1] - k), phase.dtype)
    phase = jnp.concatenate([phase, rest], -1)
    made = q * phase[..., None, :], r * jnp.conjugate(phase)[..., :, None]
    return _or_nan(made[0], good), _or_nan(made[1], good)


@TABLE.call("svd")
def svd(a: Any, *, full_matrices: bool) -> tuple[Any, Any, Any]:
    good = _is_good(a)
    u, s, vh = jnp.linalg.svd(_or_one(a, good), full_matrices=full_matrices)
    k = s.shape[-1]
    phases = _leading_phases(u)
    spare = jnp.conjugate(_leading_phases(jnp.swapaxes(vh[..., k:, :], -2, -1)))
    of_rows = jnp.concatenate([phases[..., :k], spare], -1)
    made = u * jnp.conjugate(phases), s, vh * jnp.swapaxes(of_rows, -2, -1)
    return _or_nan(made[0], good), _or_nan(made[1], good), _or_nan(made[2], good)


@TABLE.call("eigh")
def eigh(a: Any, *, upper: bool) -> tuple[Any, Any]:
    whole = _hermitian(a, upper)
    good = _is_good(whole)
    values, vectors = jnp.linalg.eigh(_or_one(whole, good), symmetrize_input=False)
    return _or_nan(values, good), _or_nan(vectors * jnp.conjugate(_leading_phases(vectors)), good)


@TABLE.call("solve")
def solve(a: Any, b: Any, *, vectors: bool) -> Any:
    """By a = p · l · u: a matrix with a zero among the pivots has no answer."""
    right = b[..., None] if vectors else b
    stack = np.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    a, right = (jnp.broadcast_to(v, (*stack, *v.shape[-2:])) for v in (a, right))
    good = _is_good(a, right)
    factors, _, order = lax.linalg.lu(_or_one(a, good))
    good = good & (jnp.diagonal(factors, axis1=-2, axis2=-1) != 0).all(-1)
    permuted = jnp.take_along_axis(_or_one(right, good), order[..., None], axis=-2)
    lower = lax.linalg.triangular_solve(
        factors, permuted, left_side=True, lower=True, unit_diagonal=True
    )
    made = _or_nan(lax.linalg.triangular_solve(factors, lower, left_side=True), good)
    return made[..., 0] if vectors else made


@TABLE.call("slogdet")
def slogdet(a: Any) -> tuple[Any, Any]:
    good = _is_good(a)
    sign, size = jnp.linalg.slogdet(_or_one(a, good))
    return _or_nan(sign, good), _or_nan(size, good)


@TABLE.call("triangular_solve")
def triangular_solve(
    a: Any, b: Any, *, left: bool, upper: bool, unit_diagonal: bool, transpose: str
) -> Any:
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(v, (*stack, *v.shape[-2:])) for v in (a, b))
    if not b.size:
        return b
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        unit_diagonal=unit_diagonal,
        transpose_a=transpose != "none",
        conjugate_a=transpose == "adjoint",
    )
