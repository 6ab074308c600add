"""Factorisations of the CPU backend by what their factors must multiply to, for all sizes of named
dims with one program, and against LAPACK where a result is unique.

Tolerances: each factorisation is backward stable, so that a residual is a few roundings, times the
size of the matrix and the size of its entries. `STABLE` is what Householder's and Gauss's methods
stay below with random matrices, with a margin of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.runtime.session import Session

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
SIZES = ((0, 0), (0, 3), (3, 0), (1, 1), (1, 4), (5, 3), (3, 5), (33, 17), (17, 40), (70, 70))
STABLE = 4.0
DENOMINATOR = 17.0
"""The inverse of the denominator of the rational approximant of an exponential has at most this
norm (Higham 2005), so errors of what it divides may grow by as much."""
RNG = np.random.default_rng(18)
START = RNG.bit_generator.state
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test draws the same, whichever ran before it in its process."""
    RNG.bit_generator.state = START


def normal(dtype: Any, *dims: int) -> Array:
    made = RNG.normal(size=dims)
    if np.dtype(dtype).kind == "c":
        made = made + 1j * RNG.normal(size=dims)
    return made.astype(dtype)


def program(name: str, *shapes: Shape, threads: int | None = None, **attrs: Any) -> Any:
    g = Graph(name)
    made = getattr(ops, name)(*(g.input(f"x{i}", s) for i, s in enumerate(shapes)), **attrs)
    g.set_outputs(list(made) if isinstance(made, tuple) else [made])
    return Session("cpu", threads=threads).compile(g) if threads else Session("cpu").compile(g)


def of_any_size(name: str, dtype: Any, dims: str = "bmn", **attrs: Any) -> Any:
    """A program for stacks of matrices of named dims."""
    return program(name, Shape([Dim(d, 0, 128) for d in dims], DType.of(np.dtype(dtype))), **attrs)


def run(name: str, *arrays: Array, **attrs: Any) -> Any:
    shapes = [Shape(a.shape, DType.of(a.dtype)) for a in arrays]
    return program(name, *shapes, **attrs)(*arrays)


def adjoint(x: Array) -> Array:
    return x.conj().swapaxes(-2, -1)


def assert_small(residual: Array, size: float, dim: int) -> None:
    """At most STABLE roundings of `dim` numbers of that size."""
    limit = STABLE * np.finfo(residual.dtype).eps * max(1, dim) * max(size, 1e-300)
    assert np.abs(residual).max(initial=0.0) <= limit


def assert_orthonormal(columns: Array) -> None:
    eye = np.eye(columns.shape[-1], dtype=columns.dtype)
    assert_small(adjoint(columns) @ columns - eye, 1.0, columns.shape[-2])


def size_of(a: Array) -> float:
    return float(np.abs(a).max(initial=0.0))


def half_of(a: Array, upper: bool) -> Array:
    """A triangle with its diagonal; the rest, which is not to be read, is NaN."""
    is_kept = np.tri(a.shape[-1], dtype=bool)
    return np.where(is_kept.T if upper else is_kept, a, a.dtype.type(np.nan))


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(dtype: Any) -> None:
    for complete in (False, True):
        exe = of_any_size("qr", dtype, complete=complete)
        for m, n in SIZES:
            a = normal(dtype, 2, m, n)
            q, r = exe(a)
            assert_orthonormal(q)
            assert_small(q @ r - a, size_of(a), m)
            np.testing.assert_array_equal(np.tril(r, -1), np.zeros_like(r))
            diagonal = np.diagonal(r, axis1=-2, axis2=-1)
            assert np.all(diagonal.real >= 0)
            np.testing.assert_array_equal(diagonal.imag, np.zeros(diagonal.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(dtype: Any) -> None:
    for full in (False, True):
        exe = of_any_size("svd", dtype, full_matrices=full)
        for m, n in SIZES:
            a, k = normal(dtype, 2, m, n), min(m, n)
            u, s, vh = exe(a)
            assert_orthonormal(u)
            assert_orthonormal(adjoint(vh))
            assert_small((u[..., :k] * s[..., None, :]) @ vh[..., :k, :] - a, size_of(s), max(m, n))
            assert_small(s - np.linalg.svd(a, compute_uv=False), size_of(s), max(m, n))
            assert np.all(np.diff(s) <= 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigh(dtype: Any) -> None:
    for upper in (False, True):
        exe = of_any_size("eigh", dtype, "bnn", upper=upper)
        for n in (0, 1, 2, 5, 33, 70):
            a = normal(dtype, 2, n, n)
            half = np.triu(a, 1) if upper else np.tril(a, -1)
            whole = half + adjoint(half) + np.eye(n, dtype=dtype) * a.real
            values, vectors = exe(half_of(a, upper))
            assert_orthonormal(vectors)
            assert_small(whole @ vectors - vectors * values[..., None, :], size_of(values), n)
            assert_small(values - np.linalg.eigvalsh(whole), size_of(values), n)
            assert np.all(np.diff(values) >= 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_and_slogdet(dtype: Any) -> None:
    kind = DType.of(np.dtype(dtype))
    b, n, k = (Dim(d, 0, 128) for d in "bnk")
    solve = program("solve", Shape([b, n, n], kind), Shape([n, k], kind))
    slogdet = of_any_size("slogdet", dtype, "bnn")
    for size in (0, 1, 2, 5, 31, 32, 33, 100):
        a, right = normal(dtype, 2, size, size), normal(dtype, size, 3)
        x = solve(a, right)
        # a pivot's growth is seldom above 10 with random matrices
        assert_small(a @ x - right, 10 * size_of(a) * size_of(x), size)
        sign, log = slogdet(a)
        want = np.linalg.slogdet(a)
        condition = float(np.linalg.cond(a).max()) if size else 1.0
        assert_small(sign - want[0], condition, 1)
        assert_small(log - want[1], max(condition, size_of(log)), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype: Any) -> None:
    for upper in (False, True):
        exe = of_any_size("cholesky", dtype, "bnn", upper=upper)
        for n in (0, 1, 2, 5, 33, 70):
            x = normal(dtype, 2, n, n)
            a = x @ adjoint(x) + np.eye(n, dtype=dtype)
            made = exe(half_of(a, upper))
            product = adjoint(made) @ made if upper else made @ adjoint(made)
            assert_small(product - a, size_of(a), n)
            half = np.tril(made, -1) if upper else np.triu(made, 1)
            np.testing.assert_array_equal(half, np.zeros_like(half))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig(dtype: Any) -> None:
    exe = of_any_size("eig", dtype, "bnn")
    for n in (0, 1, 2, 5, 33, 70):
        a = normal(dtype, 2, n, n)
        values, vectors = exe(a)
        assert_small(a @ vectors - vectors * values[..., None, :], n * size_of(a), n)
        assert_small(np.linalg.norm(vectors, axis=-2) - 1, 1.0, n)
        # random matrices have eigenvalues of condition far below 100
        assert_small(values - ops.eig(a)[0], 100 * size_of(values), n)


@pytest.mark.parametrize("name", ["jordan", "cyclic", "rotations", "triangle", "zeros"])
def test_eigenvectors_of_matrices_that_are_hard_for_shifts(name: str) -> None:
    a = {
        "jordan": np.eye(6, k=1),
        "cyclic": np.eye(4)[[1, 2, 3, 0]],
        "rotations": np.kron(np.eye(3), [[0.0, 1.0], [-1.0, 0.0]]),
        "triangle": np.triu(np.ones((6, 6))),
        "zeros": np.zeros((3, 3)),
    }[name]
    values, vectors = run("eig", a)
    assert_small(a @ vectors - vectors * values, 1.0, len(a))
    assert_small(np.linalg.norm(vectors, axis=0) - 1, 1.0, len(a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_factors(dtype: Any) -> None:
    exe = of_any_size("lu_factor", dtype)
    for m, n in SIZES:
        a, k = normal(dtype, 2, m, n), min(m, n)
        lu, pivots = exe(a)
        np.testing.assert_array_equal(pivots, ops.lu_factor(a)[1])
        order = ops.pivots_to_permutation(pivots, size=m)
        lower = np.tril(lu[..., :, :k], -1) + np.eye(m, k, dtype=dtype)
        rows = np.take_along_axis(a, order[..., None], -2)
        assert_small(lower @ np.triu(lu[..., :k, :]) - rows, 4 * size_of(lu), k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_householder_factors(dtype: Any) -> None:
    for m, n in ((0, 0), (1, 1), (5, 3), (3, 5), (33, 17)):
        a = normal(dtype, 2, m, n)
        packed, tau = run("geqrf", a)
        want = ops.geqrf(a)
        for got, theirs in zip((packed, tau), want):
            assert_small(got - theirs, 10 * max(1.0, size_of(theirs)), m)
        if m >= n:
            q = run("householder_product", packed, tau)
            assert_orthonormal(q)
            assert_small(q @ np.triu(packed[..., :n, :]) - a, size_of(a), m)
            whole = run("ormqr", packed, tau, np.stack([np.eye(m, dtype=dtype)] * 2))
            assert_orthonormal(whole)
            assert_small(whole[..., :n] - q, 1.0, m)


def test_solving_with_factors() -> None:
    a, b = normal(np.complex128, 2, 9, 9), normal(np.complex128, 2, 9, 3)
    lu, pivots = ops.lu_factor(a)
    scale = float(np.linalg.cond(a).max())
    for turn, matrix in (("none", a), ("transpose", a.swapaxes(-2, -1)), ("adjoint", adjoint(a))):
        x = run("lu_solve", lu, pivots, b, transpose=turn)
        assert_small(matrix @ x - b, scale * size_of(x), 9)
    whole = a @ adjoint(a) + np.eye(9)
    for upper in (False, True):
        factor = ops.cholesky(whole, upper=upper)
        x = run("cholesky_solve", factor, b, upper=upper)
        assert_small(whole @ x - b, size_of(whole) * size_of(x), 9)
        made = run("cholesky_inverse", factor, upper=upper)
        assert_small(whole @ made - np.eye(9), size_of(whole) * size_of(made), 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
def test_factors_of_indefinite_matrices(dtype: Any, hermitian: bool) -> None:
    exe = of_any_size("ldl_factor", dtype, "bnn", hermitian=hermitian)
    for n in (0, 1, 2, 5, 20):
        x = normal(dtype, 2, n, n)
        a = x + (adjoint(x) if hermitian else x.swapaxes(-2, -1))
        if n > 1:  # a diagonal of zeros takes blocks of two
            a[0] *= 1 - np.eye(n, dtype=dtype)
        ld, pivots = exe(a)
        np.testing.assert_array_equal(pivots, ops.ldl_factor(a, hermitian=hermitian)[1])
        b = normal(dtype, 2, n, 3)
        made = run("ldl_solve", ld, pivots, b, hermitian=hermitian)
        assert_small(a @ made - b, 10 * size_of(a) * size_of(made), n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_of_a_matrix(dtype: Any) -> None:
    exe = of_any_size("matrix_exp", dtype, "bnn")
    for n, factor in ((0, 1), (1, 3), (4, 0.01), (5, 10), (20, 1)):
        a = normal(dtype, 2, n, n) * dtype(factor)
        want = (
            [scipy.linalg.expm(m.astype(np.result_type(m, np.float64))) for m in a]
            if n
            else np.zeros((2, 0, 0))
        )
        # an exponential's condition is at least the norm of its matrix
        norm = DENOMINATOR * max(1.0, float(np.abs(a).sum(-2).max(initial=0.0)))
        assert_small((exe(a) - want).astype(dtype), norm * size_of(np.asarray(want)), n)


CORNERS = {
    "zeros": np.zeros((5, 4)),
    "ones": np.ones((6, 5)),
    "identity": np.eye(5),
    "nilpotent": np.eye(6, k=1),
    "rank 3": RNG.normal(size=(8, 3)) @ RNG.normal(size=(3, 9)),
    "graded": np.diag([1e-200, 1.0, 1e200]),
    "subnormal": np.full((3, 3), 1e-310),
    "huge": np.full((3, 3), 1e300),
    "repeated": np.kron(np.eye(4), [[0.0, 1.0], [1.0, 0.0]]),
    "Hilbert": 1.0 / (1.0 + np.arange(9)[:, None] + np.arange(9)),
}


@pytest.mark.parametrize("name", CORNERS)
def test_matrices_without_full_rank_or_of_extreme_size(name: str) -> None:
    a = CORNERS[name]
    m, n = a.shape
    u, s, vh = run("svd", a, full_matrices=False)
    assert_orthonormal(u)
    assert_orthonormal(vh.T)
    assert_small((u * s) @ vh - a, size_of(a), m * n)
    assert_small(s - np.linalg.svd(a, compute_uv=False), size_of(s), m * n)
    q, r = run("qr", a)
    assert_orthonormal(q)
    assert_small(q @ r - a, size_of(a), m)
    if m == n:
        values, vectors = run("eigh", a)
        assert_orthonormal(vectors)
        whole = np.tril(a) + np.tril(a, -1).T
        assert_small(whole @ vectors - vectors * values, size_of(a), n * n)


def test_only_the_matrix_without_an_answer_is_nan() -> None:
    x = normal(np.float64, 3, 3)
    good = x @ x.T + np.eye(3)
    stack = np.stack([good, np.zeros((3, 3)), -good, good, good])
    stack[3, 2, 1], stack[4, 1, 1] = np.inf, np.nan
    right = normal(np.float64, 5, 3, 2)
    for made, bad in (
        (run("solve", stack, right), [1, 3, 4]),
        (run("cholesky", stack), [1, 2, 3, 4]),
        (run("svd", stack)[0], [3, 4]),
        (run("eigh", stack)[1], [3, 4]),
        (run("qr", stack)[1], [3, 4]),
        (run("slogdet", stack)[0], [3, 4]),
    ):
        for i in range(5):
            assert np.isnan(made[i]).all() == (i in bad), (made, bad)
            assert np.isfinite(made[i]).all() == (i not in bad)
    sign, size = run("slogdet", stack)
    assert (sign[1], size[1]) == (0.0, -np.inf)


@pytest.mark.parametrize("name", ["qr", "svd", "eigh", "slogdet", "cholesky"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    x = normal(np.float32, 40, 24, 24)
    a = x @ adjoint(x) + np.eye(24, dtype=np.float32)
    shape = Shape(a.shape, DType.F32)
    one, two = (program(name, shape, threads=t)(a) for t in (1, 2))
    pairs = zip(one, two) if isinstance(one, tuple | list) else [(one, two)]
    for first, second in pairs:
        np.testing.assert_array_equal(first, second)


def test_right_sides_of_fewer_axes_broadcast_and_vectors_are_one_side() -> None:
    a, b = normal(np.float64, 2, 3, 4, 4), normal(np.float64, 3, 4)
    made = run("solve", a, b, vectors=True)
    want = np.linalg.solve(a, np.broadcast_to(b, (2, 3, 4))[..., None])[..., 0]
    assert_small(made - want, size_of(want) * float(np.linalg.cond(a).max()), 4)
