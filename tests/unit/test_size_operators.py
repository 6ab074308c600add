"""Arithmetic of sizes: whole numbers and sizes; what else stands beside one is an error."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import evaluate
from rlx.core.errors import CallError

N, M = rlx.Dim("n"), rlx.Dim("m", 1)
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "//": lambda x, y: x // y, "%": lambda x, y: x % y,
}  # fmt: skip
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "/": lambda x, y: x / y, "**": lambda x, y: x**y, "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
    "&": lambda x, y: x & y, "<<": lambda x, y: x << y, "@": lambda x, y: x @ y,
    "divmod": divmod,
}  # fmt: skip
NO_SIZES = (0.5, 1.5, 2.0, True, None, "3", "a", 1j, [0], Fraction(1, 2), np.float32(0.5),
            np.bool_(True), np.ones(3), np.int64([1, 2]))  # fmt: skip


@pytest.mark.parametrize("other", NO_SIZES, ids=repr)
@pytest.mark.parametrize("sign", [*ARITHMETIC, *OTHERS])
def test_no_operator_takes_what_is_no_whole_number(sign: str, other: Any) -> None:
    function = (ARITHMETIC | OTHERS)[sign]
    reflected = [] if isinstance(other, str) and sign == "%" else [lambda: function(other, N)]
    for call in (lambda: function(N, other), *reflected):  # '3' % N formats text
        with pytest.raises(CallError, match=r"graph\.extent\(n, dtype='f32'\)"):
            call()


@pytest.mark.parametrize("sign", OTHERS)
@pytest.mark.parametrize("other", [3, M, np.int64(3)], ids=repr)
def test_operators_that_sizes_do_not_have_are_one_error(sign: str, other: Any) -> None:
    for call in (lambda: OTHERS[sign](N, other), lambda: OTHERS[sign](other, N)):
        with pytest.raises(CallError, match="a size takes"):
            call()


@pytest.mark.parametrize("sign", ARITHMETIC)
def test_whole_numbers_of_numpy_are_whole_numbers(sign: str) -> None:
    apply = ARITHMETIC[sign]
    for three in (np.int64(3), np.uint8(3), np.array(3)):
        assert apply(N, three) == apply(N, 3)
        assert apply(three, N) == apply(3, N)
        for size in (0, 1, 7):
            want = 0 if size == 0 and sign in ("//", "%") else apply(3, size)
            assert evaluate(apply(three, N), {"n": size}) == want


@pytest.mark.parametrize("call", [lambda: N // 0, lambda: N % 0, lambda: (N + 1) // np.int64(0)])
def test_a_constant_divisor_of_zero_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(rlx.GraphError, match="division by 0"):
        call()


@pytest.mark.parametrize("call", [lambda: np.sqrt(N), lambda: np.maximum(N, 3), lambda: max(N, 3)])
def test_functions_of_sizes_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(CallError, match=r"As data it is node\.graph\.extent"):
        call()


A = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
DATA: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda x, n: x.sum(0) / n,
    "before": lambda x, n: n * x - (n + 1) / x,
    "half": lambda x, n: x * (x.graph.extent(n, dtype="f32") * 0.5) if hasattr(x, "graph") else
        x * (n * 0.5),
    "compared": lambda x, n: (x > n) | (n == x),
    "numpy": lambda x, n: np.maximum(n, x) + np.multiply(x, n),
    "op": lambda x, n: np.where(x > 1, n, x),
    "spread": lambda x, n: x.var(0, ddof=1) + x.std(0),
    "whole": lambda x, n: x.argmax(0) * n,
}  # fmt: skip


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", DATA)
def test_a_size_beside_a_node_is_data(name: str, target: str) -> None:
    def traced(x: rlx.Node) -> rlx.Node:
        return DATA[name](x, x.shape.dims[0])

    graph = rlx.trace(traced, rlx.Shape(["n", 3]))
    got, want = rlx.compile(graph, target=target)(A), DATA[name](A, 4)
    assert graph.outputs[0].shape.dtype is rlx.DType.of(want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-6)  # at most four roundings of f32


def test_a_size_is_no_constant() -> None:
    g = rlx.Graph("g")
    for call in (lambda: g.constant(N), lambda: ops.add(A, N), lambda: ops.extent(N)):
        with pytest.raises(rlx.GraphError, match=r"size n is not known yet\. As data"):
            call()
