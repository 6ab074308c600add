"""Dense linear algebra against SciPy, and against what the factors must multiply to."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from rlx import ops
from rlx.core.errors import GraphError
from rlx.cost.target import Target
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "solve": "scipy.linalg.solve",
    "inverse": "scipy.linalg.inv",
    "triangular_solve": "scipy.linalg.solve_triangular",
    "cholesky": "scipy.linalg.cholesky",
    "qr": "scipy.linalg.qr, up to the sign that qr fixes",
    "svd": "scipy.linalg.svd, up to the sign that svd fixes",
    "svdvals": "scipy.linalg.svdvals",
    "eigh": "scipy.linalg.eigh, up to the sign that eigh fixes",
    "det": "scipy.linalg.det, onnx.reference Det",
    "slogdet": "scipy.linalg.lu: the product of the pivots",
    "pinv": "scipy.linalg.pinv",
    "lu_factor": "scipy.linalg.lu_factor",
    "pivots_to_permutation": "scipy.linalg.lu",
    "lu_solve": "scipy.linalg.lu_solve",
    "ldl_factor": "scipy.linalg.lapack.sytrf, hetrf",
    "ldl_solve": "scipy.linalg.solve",
    "cholesky_solve": "scipy.linalg.cho_solve",
    "cholesky_inverse": "scipy.linalg.cho_solve",
    "geqrf": "scipy.linalg.lapack.geqrf",
    "householder_product": "scipy.linalg.qr",
    "ormqr": "scipy.linalg.qr",
    "eig": "scipy.linalg.eig, in another order",
    "eigvals": "scipy.linalg.eigvals, in another order",
    "matrix_exp": "scipy.linalg.expm",
    "lstsq": "scipy.linalg.lstsq",
    "trace": "numpy.trace",
    "outer": "numpy.outer",
    "cross": "numpy.cross",
}
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
RNG = np.random.default_rng(5)


def normal(dtype: type, *dims: int) -> np.ndarray:
    made = RNG.normal(size=dims)
    if np.dtype(dtype).kind == "c":
        made = made + 1j * RNG.normal(size=dims)
    return made.astype(dtype)


def definite(dtype: type, *dims: int) -> np.ndarray:
    x = normal(np.complex128 if np.dtype(dtype).kind == "c" else np.float64, *dims)
    return (x @ x.conj().swapaxes(-2, -1) + np.eye(dims[-1])).astype(dtype)


def assert_close(got: np.ndarray, want: np.ndarray, condition: float = 1.0) -> None:
    """Both are backward stable: they differ by roundings times the condition of the problem. The
    matrices here are of size 6 at most."""
    assert got.shape == want.shape
    eps = np.finfo(got.dtype).eps
    size = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got, want, atol=64 * eps * size * condition, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solving(dtype: type) -> None:
    a, b = normal(dtype, 6, 6) + 4 * np.eye(6, dtype=dtype), normal(dtype, 6, 3)
    condition = float(np.linalg.cond(a))
    assert_close(ops.solve(a, b), scipy.linalg.solve(a, b), condition)
    assert_close(ops.solve(a, b[:, 0]), scipy.linalg.solve(a, b[:, 0]), condition)
    assert_close(ops.inverse(a), scipy.linalg.inv(a), condition)


def test_stacks_of_right_sides() -> None:
    a, b = definite(np.float64, 2, 3, 4, 4), normal(np.float64, 3, 4)
    want = np.stack([[np.linalg.solve(a[i, j], b[j]) for j in range(3)] for i in range(2)])
    assert_close(ops.solve(a, b, vectors=True), want, float(np.linalg.cond(a).max()))
    with pytest.raises(GraphError, match="it has 3 rows"):
        ops.solve(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize(("transpose", "code"), [("none", 0), ("transpose", 1), ("adjoint", 2)])
def test_triangles(
    dtype: type, upper: bool, unit_diagonal: bool, transpose: str, code: int
) -> None:
    a, b = normal(dtype, 5, 5) / 4 + 2 * np.eye(5, dtype=dtype), normal(dtype, 5, 3)
    attrs = {"upper": upper, "unit_diagonal": unit_diagonal, "transpose": transpose}
    want = scipy.linalg.solve_triangular(a, b, code, lower=not upper, unit_diagonal=unit_diagonal)
    assert_close(ops.triangular_solve(a, b, **attrs), want, 8)
    turned = a if transpose == "none" else a.T if transpose == "transpose" else a.conj().T
    is_lower = (not upper) ^ (transpose != "none")
    right = scipy.linalg.solve_triangular(
        turned, b, 1, lower=is_lower, unit_diagonal=unit_diagonal
    ).T
    assert_close(ops.triangular_solve(a, b.T, left=False, **attrs), right, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_reads_one_triangle(dtype: type) -> None:
    a = definite(dtype, 5, 5)
    for upper in (False, True):
        want = scipy.linalg.cholesky(a, lower=not upper)
        half = (np.triu(a) if upper else np.tril(a)) + (
            np.tril(np.full_like(a, np.nan), -1) if upper else np.triu(np.full_like(a, np.nan), 1)
        )
        assert_close(ops.cholesky(half, upper=upper), want, float(np.linalg.cond(a)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("complete", [False, True])
def test_qr(dtype: type, dims: tuple[int, int], complete: bool) -> None:
    a, k = normal(dtype, *dims), min(dims)
    q, r = ops.qr(a, complete=complete)
    theirs, upper = scipy.linalg.qr(a, mode="full" if complete else "economic")
    turn = np.diag(upper)[:k] / np.abs(np.diag(upper)[:k])
    assert_close(q[:, :k], theirs[:, :k] * turn, float(np.linalg.cond(a)))
    assert_close(q @ r, a)
    assert_close(q.conj().T @ q, np.eye(q.shape[1], dtype=dtype))
    assert np.all(np.diagonal(r)[:k].real > 0)
    np.testing.assert_array_equal(np.tril(r, -1), np.zeros_like(r))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("full_matrices", [False, True])
def test_svd(dtype: type, dims: tuple[int, int], full_matrices: bool) -> None:
    a, k = normal(dtype, *dims), min(dims)
    u, s, vh = ops.svd(a, full_matrices=full_matrices)
    theirs = scipy.linalg.svd(a, full_matrices=full_matrices)
    assert_close(s, theirs[1])
    assert_close(ops.svdvals(a), scipy.linalg.svdvals(a))
    assert [u.shape, vh.shape] == [theirs[0].shape, theirs[2].shape]
    gap = float(s[0] / np.abs(np.diff(s)).min())
    overlap = np.abs(np.sum(u[:, :k].conj() * theirs[0][:, :k], axis=0))
    assert_close(overlap, np.ones(k, overlap.dtype), gap)
    assert_close((u[:, :k] * s) @ vh[:k], a, 2)
    for basis in (u, vh.conj().T):
        assert_close(basis.conj().T @ basis, np.eye(basis.shape[1], dtype=dtype))
    for columns in (u, vh[k:].T):
        assert_leads_positive(columns)


def assert_leads_positive(columns: np.ndarray) -> None:
    """A phase is a quotient by its own size, so that its imaginary part is a rounding of 0."""
    where = np.abs(columns).argmax(0)
    leads = columns[where, np.arange(columns.shape[1])]
    assert np.all(leads.real > 0)
    assert np.all(np.abs(leads.imag) <= 4 * np.finfo(columns.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_eigh(dtype: type, upper: bool) -> None:
    a = normal(dtype, 5, 5)
    values, vectors = ops.eigh(a, upper=upper)
    want, theirs = scipy.linalg.eigh(a, lower=not upper)
    assert_close(values, want)
    gap = float(np.abs(want).max() / np.diff(want).min())
    overlap = np.abs(np.sum(vectors.conj() * theirs, axis=0))
    assert_close(overlap, np.ones(5, overlap.dtype), gap)
    assert_leads_positive(vectors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants(dtype: type) -> None:
    a = normal(dtype, 2, 5, 5)
    want = np.array([scipy.linalg.det(m) for m in a]).astype(dtype)
    assert_close(ops.det(a), want, 8)
    sign, size = ops.slogdet(a)
    for m, s, l in zip(a, sign, size):
        p, _, u = scipy.linalg.lu(m)
        pivots = np.linalg.det(p) * np.prod(np.diag(u) / np.abs(np.diag(u)))
        assert_close(np.asarray(s), np.asarray(pivots, dtype), 8)
        assert_close(np.asarray(l), np.log(np.abs(np.diag(u))).sum().astype(l.dtype), 8)
    if np.dtype(dtype).kind == "f":
        assert_close(ops.det(a), run_onnx("Det", [a])[0], 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(5, 3), (3, 5), (4, 4)])
def test_lu_factors(dtype: type, dims: tuple[int, int]) -> None:
    a = normal(dtype, *dims)
    lu, pivots = ops.lu_factor(a)
    theirs, swaps = scipy.linalg.lu_factor(a)
    assert_close(lu, theirs, 8)
    np.testing.assert_array_equal(pivots, swaps)
    order = ops.pivots_to_permutation(pivots, size=dims[0])
    p, _, _ = scipy.linalg.lu(a)
    np.testing.assert_array_equal(np.eye(dims[0])[:, order], p)
    if dims[0] == dims[1]:
        b, condition = normal(dtype, 4, 2), 8 * float(np.linalg.cond(a))
        for code, turn in enumerate(("none", "transpose", "adjoint")):
            want = scipy.linalg.lu_solve((theirs, swaps), b, code)
            assert_close(ops.lu_solve(lu, pivots, b, transpose=turn), want, condition)


def test_lu_factors_of_what_is_singular_or_not_finite() -> None:
    stack = np.stack([np.ones((3, 3)), np.zeros((3, 3)), np.full((3, 3), np.nan)])
    lu, pivots = ops.lu_factor(stack)
    np.testing.assert_array_equal(lu[0], [[1, 1, 1], [1, 0, 0], [1, 0, 0]])
    assert np.isnan(lu[2]).all()
    np.testing.assert_array_equal(pivots, [[0, 1, 2]] * 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
def test_factors_of_indefinite_matrices(dtype: type, hermitian: bool) -> None:
    x = normal(dtype, 6, 6)
    a = x + (x.conj().T if hermitian else x.T)
    np.fill_diagonal(a[:4, :4], 0)
    is_conjugate = hermitian and np.dtype(dtype).kind == "c"
    factorise = scipy.linalg.lapack.get_lapack_funcs("hetrf" if is_conjugate else "sytrf", (a,))
    theirs, swaps, _ = factorise(a, lower=1)
    ld, pivots = ops.ldl_factor(a, hermitian=hermitian)
    assert_close(ld, np.tril(theirs), 8)
    np.testing.assert_array_equal(pivots, swaps)
    b, condition = normal(dtype, 6, 2), 8 * float(np.linalg.cond(a))
    got = ops.ldl_solve(ld, pivots, b, hermitian=hermitian)
    assert_close(got, scipy.linalg.solve(a, b), condition)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(5, 3), (4, 4)])
def test_householder_factors(dtype: type, dims: tuple[int, int]) -> None:
    a, n = normal(dtype, *dims), dims[1]
    packed, tau = ops.geqrf(a)
    theirs, factors, _, _ = scipy.linalg.lapack.get_lapack_funcs("geqrf", (a,))(a)
    assert_close(packed, theirs, 8)
    assert_close(tau, factors, 8)
    q, _ = scipy.linalg.qr(a)
    assert_close(ops.householder_product(packed, tau), q[:, :n], 8)
    other = normal(dtype, dims[0], dims[0])
    assert_close(ops.ormqr(packed, tau, other), q @ other, 8)
    assert_close(ops.ormqr(packed, tau, other, left=False), other @ q, 8)
    assert_close(ops.ormqr(packed, tau, other, transpose="adjoint"), q.conj().T @ other, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solving_with_the_factor_of_cholesky(dtype: type) -> None:
    a, b = definite(dtype, 5, 5), normal(dtype, 5, 2)
    condition = 8 * float(np.linalg.cond(a))
    for upper in (False, True):
        factor = scipy.linalg.cholesky(a, lower=not upper)
        want = scipy.linalg.cho_solve((factor, not upper), b)
        assert_close(ops.cholesky_solve(factor, b, upper=upper), want, condition)
        inverse = scipy.linalg.cho_solve((factor, not upper), np.eye(5, dtype=dtype))
        assert_close(ops.cholesky_inverse(factor, upper=upper), inverse, condition)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_any_matrix(dtype: type) -> None:
    a = normal(dtype, 5, 5)
    values, vectors = ops.eig(a)
    want = scipy.linalg.eigvals(a)
    want = want[np.lexsort((want.imag, want.real))].astype(values.dtype)
    assert_close(values, want, 8)
    assert_close(ops.eigvals(a), want, 8)
    assert_close(a @ vectors, vectors * values, 2)
    assert_close(np.linalg.norm(vectors, axis=0), np.ones(5, values.real.dtype))
    assert_leads_positive(vectors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials(dtype: type) -> None:
    for factor in (0.01, 1, 10):
        a = normal(dtype, 5, 5) * dtype(factor)
        norm = float(np.abs(a).sum(0).max())  # its condition is at least that
        assert_close(ops.matrix_exp(a), scipy.linalg.expm(a), max(1.0, norm))


@pytest.mark.parametrize("dims", [(5, 3), (3, 5)])
def test_least_squares(dims: tuple[int, int]) -> None:
    a, b = normal(np.float64, *dims), normal(np.float64, dims[0], 2)
    condition = float(np.linalg.cond(a))
    assert_close(ops.lstsq(a, b), scipy.linalg.lstsq(a, b)[0], condition)


@pytest.mark.parametrize("dims", [(5, 3), (3, 5)])
def test_pseudo_inverse(dims: tuple[int, int]) -> None:
    a = normal(np.float64, *dims)
    assert_close(ops.pinv(a), scipy.linalg.pinv(a), float(np.linalg.cond(a)))
    flat = np.outer(a[:, 0], a[0])
    assert_close(ops.pinv(flat), scipy.linalg.pinv(flat), 8)


def test_products_and_traces() -> None:
    a, x, y = normal(np.float64, 2, 4, 5), normal(np.float64, 4, 3), normal(np.float64, 4, 3)
    np.testing.assert_array_equal(ops.outer(x[0], y[:, 0]), np.outer(x[0], y[:, 0]))
    np.testing.assert_array_equal(ops.cross(x, y), np.cross(x, y))
    np.testing.assert_array_equal(ops.cross(x.T, y.T, axis=0), np.cross(x, y).T)
    for offset in (-2, 0, 3, 9):
        want = np.trace(a, offset, 1, 2)
        # At most five additions, in another order.
        np.testing.assert_allclose(ops.trace(a, offset=offset), want, atol=5e-15)


# -- what has no answer ---------------------------------------------------------------------------


def test_only_the_matrix_without_an_answer_is_nan() -> None:
    good = definite(np.float64, 3, 3)
    stack = np.stack([good, np.zeros((3, 3)), -good, good])
    stack[3, 1, 1] = np.inf
    right = normal(np.float64, 4, 3, 2)
    for made, bad in (
        (ops.solve(stack, right), [1, 3]),
        (ops.inverse(stack), [1, 3]),
        (ops.cholesky(stack), [1, 2, 3]),
        (ops.svd(stack)[0], [3]),
        (ops.eigh(stack)[1], [3]),
        (ops.qr(stack)[1], [3]),
        (ops.pinv(stack), [3]),
    ):
        for i in range(4):
            assert np.isnan(made[i]).all() == (i in bad), (made, bad)
            assert np.isfinite(made[i]).all() == (i not in bad)
    sign, size = ops.slogdet(stack)
    assert (sign[1], size[1]) == (0.0, -np.inf)
    assert np.isnan(sign[3])


@pytest.mark.parametrize("name", ["cpu", "cuda", "metal", "wgpu"])
def test_targets_have_factorisations(name: str) -> None:
    """A GPU's host has what the GPU has not."""
    assert Target.of(name).has_kernel("svd")
    assert "svd" not in Target.of(name).refusals
