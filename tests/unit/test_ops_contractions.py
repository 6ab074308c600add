"""Matrix products, einsum and dot_general, by examples worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.unit.op_examples import CLOSE, Check, f32, randoms

SEQ, PAST = Dim("seq"), Dim("past")


def test_matmul_takes_vectors_integers_and_complex_numbers() -> None:
    x, v = np.array([[1, 2], [3, 4]]), np.array([1, 10])
    assert ops.matmul(x, v).tolist() == [21, 43]
    assert ops.matmul(v, x).tolist() == [31, 42]
    assert ops.matmul(v, v) == 101
    assert ops.mm(x * 1j, x)[0, 0] == 7j
    assert ops.matmul(np.full((1, 2), 100, np.int8), np.ones((2, 1), np.int8)) == 200 - 256


def test_matmul_names_what_does_not_fit() -> None:
    with pytest.raises(GraphError, match=r"operand 1 is f32\[3, 2\].*3 rows.*4 columns"):
        ops.matmul(randoms(2, 4), randoms(3, 2))
    with pytest.raises(GraphError, match="Use mul"):
        ops.matmul(randoms(2, 4), f32(1)[0])
    graph = Graph()
    x = graph.input("x", Shape([SEQ, 4]))
    with pytest.raises(GraphError, match="columns"):
        graph.matmul(graph.input("y", Shape([2, PAST])), x)
    assert graph.matmul(x, graph.input("w", Shape([4, 8]))).shape == Shape([SEQ, 8])


@pytest.mark.parametrize(
    ("equation", "dims"),
    [
        ("bqhd,bkhd->bhqk", [(2, SEQ, 3, 4), (2, PAST, 3, 4)]),
        ("ij,jk,kl->il", [(SEQ, 3), (3, PAST), (PAST, 2)]),
        ("iij->j", [(SEQ, SEQ, 2)]),
        ("...i,i", [(2, SEQ, 3), (3,)]),
        ("ba,cb", [(SEQ, 3), (4, SEQ)]),
        ("a,b->", [(SEQ,), (PAST,)]),
    ],
)
def test_einsum_lowers_over_named_dims(
    equation: str, dims: list[tuple[Any, ...]], assert_lowers: Check
) -> None:
    sizes = {SEQ: 5, PAST: 4}
    arrays = [randoms(*(sizes.get(d, d) for d in ds), seed=i) for i, ds in enumerate(dims)]
    np.testing.assert_allclose(
        ops.einsum(*arrays, equation=equation), np.einsum(equation, *arrays), **CLOSE
    )
    assert_lowers("einsum", arrays, dims, equation=equation)


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("ij,jk->iz", "'z' is in the result but no operand"),
        ("ij,jk->ii", "'i' is twice in the result"),
        ("ij->i", "1 terms for 2 operands"),
        ("ijk,jk", "operand 0 has rank 2"),
        ("i.j,jk", "is not letters"),
        ("ij,ik", "'i' is 3, but 2 before"),
        ("...i,ij->j", "leaves out the axes"),
        ("ij,jk->i->k", "is not letters"),
    ],
)
def test_einsum_names_what_is_wrong(equation: str, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        ops.einsum(randoms(2, 3), randoms(3, 4), equation=equation)


def test_dot_general_puts_batch_first_then_left_then_right(assert_lowers: Check) -> None:
    x, y = randoms(5, 2, 3), randoms(3, 4, 2)
    attrs = {"lhs_contract": (2,), "rhs_contract": (0,), "lhs_batch": (1,), "rhs_batch": (2,)}
    expected = np.einsum("abc,cdb->bad", x, y)
    np.testing.assert_allclose(ops.dot_general(x, y, **attrs), expected, **CLOSE)
    assert_lowers("dot_general", [x, y], [(SEQ, 2, 3), (3, 4, 2)], **attrs)
    with pytest.raises(GraphError, match="axis 1 is named twice"):
        ops.dot_general(x, y, **{**attrs, "lhs_contract": (1,)})
    with pytest.raises(GraphError, match="axis -1 is not below"):
        ops.dot_general(x, y, **{**attrs, "lhs_contract": (-1,)})
