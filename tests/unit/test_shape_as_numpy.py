"""Shapes as sequences of sizes, and what a node is not: a container of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.errors import CallError

N = rlx.Dim("n")
X = rlx.Graph("g").input("x", [N, 3, 4])


def test_a_shape_is_a_sequence_of_sizes() -> None:
    assert (X.shape[0], X.shape[-1], X.shape[1:]) == (N, 4, (3, 4))
    assert (len(X.shape), [*X.shape]) == (3, [N, 3, 4])
    rows, *rest = X.shape
    assert (rows, rest) == (N, [3, 4])
    assert 3 in X.shape
    assert 5 not in X.shape
    assert np.zeros(rlx.Shape([2, 3])).shape == (2, 3)
    with pytest.raises(rlx.GraphError, match=r"3 is no axis of f32\[n, 3, 4\]"):
        X.shape[3]


def test_a_shape_stands_where_dims_do() -> None:
    g = rlx.Graph("g")
    x, y = g.input("x", [N, 12]), g.input("y", [N, 3, 4])
    assert x.reshape(y.shape) == np.reshape(x, y.shape) == g.reshape(x, dims=y.shape)
    assert x.reshape(y.shape).shape == y.shape
    assert np.broadcast_to(g.input("z", [3, 1]), y.shape).shape == y.shape
    with pytest.raises(rlx.GraphError, match="Shape takes a list of dims"):
        rlx.Shape(y.shape)  # pyright: ignore[reportArgumentType]: its dtype would be lost


@pytest.mark.parametrize(
    "call", [lambda: list(X), lambda: [*X], lambda: sum(X), lambda: 1 in X, lambda: dict(zip(X, X))]
)
def test_a_node_holds_no_values(call: Callable[[], Any]) -> None:
    with pytest.raises(CallError, match=r"a node f32\[n, 3, 4\] is not"):
        call()


@pytest.mark.parametrize("given", [[2, 3], (2, "n"), [], [N], (np.int64(2),)])
def test_dims_are_no_shape_where_an_array_may_be_meant(given: Any) -> None:
    for call in (rlx.trace, lambda f, s: rlx.jit(f).graph(s), lambda f, s: rlx.jit(f).lower(s)):
        with pytest.raises(rlx.GraphError, match=r"may be dims or an array\. Write rlx\.Shape\(\["):
            call(lambda x: x + 1, given)


def test_structures_and_arrays_are_traced_as_they_are() -> None:
    shape = rlx.Shape([2])
    assert len(rlx.trace(lambda pair: pair[0] + pair[1], [shape, shape]).inputs) == 2
    assert rlx.trace(lambda x: x, np.int64([2, 3])).inputs[0].shape == rlx.Shape([2], "i64")
    assert rlx.jit(lambda x: x * 2)([2, 3]).tolist() == [4, 6]
