"""Products against sums written out in Python, ONNX's reference, and NumPy's tensordot and dot."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from rlx import ops
from tests.sources.onnx_reference import run_onnx
from tests.sources.scalars import wrapped

SOURCES = {
    "matmul": "onnx.reference MatMul; sums written out in Python",
    "einsum": "sums over all labels written out in Python; onnx.reference Einsum",
    "dot_general": "numpy.tensordot for each index of the batch",
}
RNG = np.random.default_rng(37)
SUMS = {"rtol": 1e-13, "atol": 1e-13}
"""f64: sums of up to 60 products of numbers of about 1, in whichever order."""
DIMS = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((4,), (2, 4, 3)),
    ((3, 0), (0, 2)),
]


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims)


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A row of Python sums for each matrix of the broadcast stack."""
    rows = x if x.ndim > 1 else x[None]
    columns = y if y.ndim > 1 else y[:, None]
    stack = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    rows = np.broadcast_to(rows, (*stack, *rows.shape[-2:]))
    columns = np.broadcast_to(columns, (*stack, *columns.shape[-2:]))
    made = np.empty((*stack, rows.shape[-2], columns.shape[-1]), object)
    for at in np.ndindex(made.shape):
        row, column = rows[at[:-1]].tolist(), columns[at[:-2]][:, at[-1]].tolist()
        made[at] = sum((a * b for a, b in zip(row, column)), type(row[0])(0) if row else 0)
    made = made if x.ndim > 1 else made[..., 0, :]
    return made if y.ndim > 1 else made[..., 0]


@pytest.mark.parametrize("dims", DIMS)
def test_matmul(dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (normal(*d) for d in dims)
    got, want = ops.matmul(x, y), np.asarray(product(x, y), np.float64)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **SUMS)
    np.testing.assert_allclose(got, run_onnx("MatMul", [x, y])[0], **SUMS)
    z = x + 1j * normal(*dims[0])
    np.testing.assert_allclose(ops.matmul(z, y + 0j), np.asarray(product(z, y), complex), **SUMS)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_products_of_integers_wrap(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x, y = (RNG.integers(info.min, info.max, d, dtype, endpoint=True) for d in ((3, 20), (20, 4)))
    want = [[wrapped(v, dtype) for v in row] for row in product(x, y).tolist()]
    assert ops.matmul(x, y).tolist() == want
    assert ops.einsum(x, y, equation="ij,jk->ik").tolist() == want
    assert ops.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,)).tolist() == want


EQUATIONS = [
    "ij,jk->ik", "ij,jk", "bhqd,bhkd->bhqk", "ij->ji", "ba", "ij->", "ii->i", "ii", "iij,j->ij",
    "i,j->ij", "i,i", "ab,bc,cd->ad", "a,b,ab->b", ",i->i",
]  # fmt: skip
SIZES = {c: n for n, c in enumerate("abcdhijkq", 2)}
"""A size of its own for each label, so that axes cannot be mixed up unseen."""


def summed(equation: str, operands: list[np.ndarray]) -> np.ndarray:
    """For all values of all labels, the product of what they pick is added where it belongs."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    letters = sorted(set(left) - {","})
    if not arrow:
        right = "".join(c for c in letters if left.count(c) == 1)
    made = np.zeros([SIZES[c] for c in right])
    for values in itertools.product(*(range(SIZES[c]) for c in letters)):
        at = dict(zip(letters, values))
        picked = (x[tuple(at[c] for c in term)] for x, term in zip(operands, terms))
        made[tuple(at[c] for c in right)] += math.prod(picked)
    return made


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    operands = [normal(*(SIZES[c] for c in term)) for term in terms]
    got, want = ops.einsum(*operands, equation=equation), summed(equation, operands)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **SUMS)


@pytest.mark.parametrize(
    ("equation", "dims", "alike"),
    [
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 3)), "matmul"),
        ("...i,...i->...", ((2, 3, 4), (3, 4)), None),
        ("i...->...", ((2, 3, 4),), None),
        (" ij , j ", ((3, 4), (4,)), "matmul"),
    ],
)
def test_einsum_is_onnxs(equation: str, dims: Any, alike: str | None) -> None:
    operands = [normal(*d) for d in dims]
    got = ops.einsum(*operands, equation=equation)
    (want,) = run_onnx("Einsum", operands, {"equation": equation})
    np.testing.assert_allclose(got, want, **SUMS)
    if alike:
        np.testing.assert_allclose(got, np.asarray(product(*operands), float), **SUMS)


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        (((1,), ()), ((0,), ())),
        (((1, 2), ()), ((2, 0), ())),
        (((2,), (0,)), ((1,), (2,))),
        (((), (1,)), ((), (0,))),
        (((0,), (2, 1)), ((2,), (0, 1))),
        (((), ()), ((), ())),
    ],
)
def test_dot_general(lhs: Any, rhs: Any) -> None:
    """Axes that meet are given equal sizes; all others have their own."""
    left, right = [3, 4, 2], [5, 6, 7]
    for a, b in zip((*lhs[0], *lhs[1]), (*rhs[0], *rhs[1])):
        right[b] = left[a]
    x, y = normal(*left), normal(*right)
    got = ops.dot_general(
        x, y, lhs_contract=lhs[0], rhs_contract=rhs[0], lhs_batch=lhs[1], rhs_batch=rhs[1]
    )
    count = len(lhs[1])
    xs, ys = np.moveaxis(x, lhs[1], range(count)), np.moveaxis(y, rhs[1], range(count))
    axes = tuple(
        [sum(b not in batch for b in range(a)) for a in contract] for contract, batch in (lhs, rhs)
    )
    stack = xs.shape[:count]
    want = np.array([np.tensordot(xs[i], ys[i], axes) for i in np.ndindex(stack)])
    np.testing.assert_allclose(got, want.reshape(*stack, *want.shape[1:]), **SUMS)
