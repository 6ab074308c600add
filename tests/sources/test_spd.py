"""Functions of positive definite matrices against SciPy's functions of any matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from rlx import ops

SOURCES = {
    "spd_exp": "scipy.linalg.expm",
    "spd_log": "scipy.linalg.logm",
    "spd_sqrt": "scipy.linalg.sqrtm",
    "spd_power": "scipy.linalg.fractional_matrix_power",
}
DTYPES = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "exp": (ops.spd_exp, scipy.linalg.expm),
    "log": (ops.spd_log, scipy.linalg.logm),
    "sqrt": (ops.spd_sqrt, scipy.linalg.sqrtm),
    **{
        f"power {p}": (
            lambda a, p=p: ops.spd_power(a, exponent=p),
            lambda a, p=p: scipy.linalg.fractional_matrix_power(a, p),
        )
        for p in (-1.0, -0.5, 0.0, 0.3, 2.0)
    },
}
RNG = np.random.default_rng(7)


def spread(dtype: type, eigenvalues: list[float]) -> np.ndarray:
    """A matrix with these eigenvalues and random eigenvectors, rounded to `dtype`."""
    n, is_complex = len(eigenvalues), np.dtype(dtype).kind == "c"
    x = RNG.normal(size=(n, n)) + 1j * is_complex * RNG.normal(size=(n, n))
    q = np.linalg.qr(x if is_complex else x.real)[0]
    made = ((q * eigenvalues) @ q.conj().T).astype(dtype)
    lower = np.tril(made, -1)
    return lower + lower.conj().T + np.diag(np.diag(made).real).astype(dtype)


EIGENVALUES = {
    "apart": [0.25, 0.5, 1.0, 1.5, 2.0, 3.0],
    "equal": [0.5, 0.5, 0.5, 2.0, 2.0, 2.0],
}


@pytest.mark.parametrize("eigenvalues", EIGENVALUES.values(), ids=EIGENVALUES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: str, dtype: type, eigenvalues: list[float]) -> None:
    """SciPy computes in double precision what ours computes in the dtype. Eigenvalues are off by
    roundings of the greatest, 3, and the steepest function there is 1/x with slope 16 at 1/4, or
    exp with 20 at 3; the factor 4 is for products of 6 terms. SciPy's exp squares repeatedly, and
    is itself off by 1e-12: its series in extended precision says so."""
    a = spread(dtype, eigenvalues)
    of, source = FUNCTIONS[function]
    want = source(a.astype(np.complex128 if a.dtype.kind == "c" else np.float64))
    got = of(a)
    assert got.dtype == a.dtype
    eps = np.finfo(a.dtype).eps
    own = 2e-12 if function == "exp" else 0.0
    np.testing.assert_allclose(got, want, rtol=0, atol=4 * 3 * 20 * eps + own)


def test_stacks_and_what_has_no_answer() -> None:
    good = spread(np.float64, [0.5, 1.0, 2.0])
    stack = np.stack([good, -good, np.full((3, 3), np.nan), np.diag([0.0, 1.0, 2.0])])
    for name in ("log", "sqrt", "power -0.5"):
        made = FUNCTIONS[name][0](stack)
        np.testing.assert_array_equal(made[0], FUNCTIONS[name][0](good))
        assert np.isnan(made[1:]).all()
    made = ops.spd_exp(stack)
    np.testing.assert_allclose(made[1], scipy.linalg.expm(-good), rtol=0, atol=2e-12)  # SciPy's
    assert np.isnan(made[2]).all()


def test_only_the_lower_triangle_is_read() -> None:
    a = spread(np.complex128, [0.5, 1.0, 2.0])
    half = np.tril(a) + np.triu(np.full((3, 3), 9.0), 1) + 5j * np.eye(3)
    np.testing.assert_array_equal(ops.spd_log(half), ops.spd_log(a))
