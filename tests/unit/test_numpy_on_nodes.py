"""Building graphs as a user of NumPy writes: dims as lists, attributes in order, methods, np.…"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops

A = np.float32([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
B = np.float32([1.0, 2.0, -3.0])
SAME: dict[str, Callable[[Any], Any]] = {
    "ufuncs": lambda x: np.exp(x) - np.sin(x) / np.sqrt(np.abs(x)) + np.maximum(x, 0.0),
    "array first": lambda x: B * x + B / x - (B - x),
    "scalars": lambda x: np.float32(2) * x + 1 / x,
    "compared": lambda x: np.where(np.greater(x, 0), x, np.float32(0)),
    "sum": lambda x: np.sum(x, axis=0) + x.sum(axis=0),
    "all axes": lambda x: x.mean() + np.max(x) + x.prod() + np.amin(x),
    "kept": lambda x: x.max(axis=1, keepdims=True) - np.mean(x, -1, keepdims=True),
    "positions": lambda x: np.stack([x.argmax(axis=1), np.argmin(x, axis=1)]),
    "flat position": lambda x: x.argmax(),
    "spread": lambda x: np.std(x, axis=1) + x.var(axis=1, ddof=1),
    "moved": lambda x: np.transpose(x).reshape(2, 3) + x.reshape((3, 2)).T.ravel().reshape(2, 3),
    "axes": lambda x: np.swapaxes(x, 0, 1) @ np.expand_dims(B[:2], 1) + np.moveaxis(x, 0, 1)[:, :1],
    "joined": lambda x: np.concatenate([x, B[None]], axis=0),
    "clipped": lambda x: np.clip(x, -1, 1) + x.clip(min=0),
    "cumulated": lambda x: np.cumsum(x, axis=1) + x.cumsum().reshape(2, 3),
    "taken": lambda x: np.take(x, np.int64([2, 0]), axis=1),
    "einsum": lambda x: np.einsum("ij,j->i", x, B),
    "spectrum": lambda x: np.abs(np.fft.rfft(x)),
    "like": lambda x: np.zeros_like(x) + np.full_like(x, 2) + np.ones_like(x),
    "sorted": lambda x: np.sort(x) - np.flip(x, 1),
    "tests": lambda x: np.isnan(x) | ~(x > 0) | np.logical_and(x > 1, x < 2),
}


@pytest.mark.parametrize("name", SAME)
def test_functions_of_numpy_mean_the_same_on_nodes(name: str) -> None:
    got, want = rlx.jit(SAME[name], target="reference")(A), SAME[name](A)
    assert got.shape == np.shape(want)
    assert (got.dtype == bool) == (np.asarray(want).dtype == bool)
    # A few roundings of f32 of numbers around 1: sums are in another order.
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_a_leaf_takes_dims_and_names() -> None:
    g = rlx.Graph("g")
    assert g.input("x", [2, 3]).shape == rlx.Shape([2, 3])
    assert g.param("w", ("n", 4), "f16").shape == rlx.Shape([rlx.Dim("n"), 4], "f16")
    assert rlx.HirModule().input("x", [2], dtype="i64").shape == rlx.Shape([2], "i64")


def test_attributes_may_follow_operands_in_order() -> None:
    g = rlx.Graph("g")
    x = g.input("x", [2, 3])
    assert g.reshape(x, (3, 2)) == g.reshape(x, dims=(3, 2))
    assert g.softmax(x, 0) == ops.softmax(x, axis=0)
    assert g.concat([x, x], 1) == g.concat(x, x, axis=1)
    assert ops.clamp(x, 0.0, 6.0) == g.clamp(x, min=0.0, max=6.0)
    assert ops.reshape(A, (3, 2)).shape == (3, 2)


X = rlx.Graph("g").input("x", [2, 3])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: np.median(X), r"np\.median has no meaning on nodes.* Use the ops of rlx\.ops$"),
        (lambda: np.nonzero(X), r"np\.nonzero has no meaning.* Use rlx\.ops\.nonzero$"),
        (lambda: np.divide.reduce(X), r"np\.divide\.reduce has no meaning"),
        (lambda: np.sin(X, out=np.empty((2, 3))), r"np\.sin with \['out'\]"),
        (lambda: np.sum(X, where=True), r"np\.sum on nodes.*where.* Use rlx\.ops"),
        (lambda: np.asarray(X), r"as a NumPy array\. Use rlx\.ops"),
        (lambda: float(X), "no values while a graph is built.* as a number"),
        (lambda: X.tolist(), "as a list"),
        (lambda: X.graph.softmax(X, 1, axis=1), "softmax: axis is given by position and by name"),
        (lambda: X.graph.add(X, X, X), "takes 2 operands, got 3"),
        (lambda: X.graph.input("y", "ab"), "Shape takes a list of dims, got 'ab'"),
        (
            lambda: X.graph.input("y", rlx.Shape([2]), "f16"),
            r"f32\[2\] is of f32, and dtype is f16",
        ),
    ],
)
def test_what_has_no_meaning_names_rlx_ops(call: Any, told: str) -> None:
    with pytest.raises(rlx.GraphError, match=told):
        call()
