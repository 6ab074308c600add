"""Products of matrices, contractions, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.draw import Spec
from tests.onnx.differential.drawing import MICROSOFT, Draw, Node, draws, explain, sums

LARGEST = 30.0 * 30.0
"""Of products of plain values, which seldom are more than 30."""


@draws("MatMul")
def _mat_mul(d: Draw) -> Node:
    kind = d.kind("T")
    n, k, m = d.size(), d.size(), d.size()
    lead, other = d.broadcastable(2, 2)
    a = (k,) if d.coin(0.15) else (*lead, n, k)
    b = (k,) if d.coin(0.15) else (*other, k, m)
    tolerance = sums(k, LARGEST)
    return d.node(d.tensor(a, kind, "plain"), d.tensor(b, kind, "plain"), tolerance=tolerance)


@draws("Gemm")
def _gemm(d: Draw) -> Node:
    kind = d.kind("T")
    n, k, m = d.size(), d.size(), d.size()
    flags = d.some(0.5, transA=d.integer(0, 1), transB=d.integer(0, 1))
    a = (k, n) if flags.get("transA") else (n, k)
    b = (m, k) if flags.get("transB") else (k, m)
    shapes: list[tuple[int, ...]] = [(n, m), (m,), (1, m), (n, 1), (1, 1), (1,), ()]
    c = d.choice(shapes)
    has_c = d.opset < 11 or d.coin(0.8)
    scales = d.some(alpha=d.choice((1.0, 0.5, -2.0, 0.0)), beta=d.choice((1.0, 0.25, 0.0, -1.0)))
    if d.opset < 7:
        flags |= {"broadcast": 1}
        c = d.choice([(n, m), (m,)])
    if kind.is_integer:  # whole factors
        scales = {name: float(abs(round(v))) for name, v in scales.items()}
    third = d.tensor(c, kind, "plain") if has_c else None
    ab = (d.tensor(a, kind, "plain"), d.tensor(b, kind, "plain"))
    return d.node(*ab, third, tolerance=sums(k + 2, 2 * LARGEST), **flags, **scales)


EQUATIONS = (
    "ij->ji", "ij->", "ij,jk->ik", "ij,jk", "bij,bjk->bik", "i,i->", "i,j->ij", "ii->i", "ii->",
    "...ij,...jk->...ik", "ij...->ji...", "bhqd,bhkd->bhqk", "abc,cd,de->abe", "a,a,a->a",
    "...->...", "iij->j", "ij,ij->i", "...i,...i->...", " i j , j k -> i k", "ij,j",
    "i...j->j...", "...ii->...i",
)  # fmt: skip


@draws("Einsum")
def _einsum(d: Draw) -> Node:
    equation = d.choice(EQUATIONS)
    kind = d.kind("T")
    sizes = {letter: d.integer(1, 4) for letter in equation if letter.isalpha()}
    run = d.dims(0, 2, smallest=1)
    inputs = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [_shape(term, sizes, run) for term in inputs]
    operands = [d.tensor(s, kind, "plain") for s in shapes]
    terms = int(np.prod([*sizes.values(), 1]))
    tolerance = sums(terms, 30.0 ** len(operands))
    return d.node(*operands, equation=equation, tolerance=tolerance)


def _shape(term: str, sizes: dict[str, int], run: tuple[int, ...]) -> tuple[int, ...]:
    dims: list[int] = []
    for part in term.replace("...", "."):
        dims += run if part == "." else [sizes[part]]
    return tuple(dims)


@draws("Det")
def _det(d: Draw) -> Node:
    n = d.integer(1, 5)
    kind = d.kind("T")
    x = d.values(Spec((*d.dims(0, 2), n, n), kind, "regular"))
    if d.coin(0.1):
        x = np.zeros_like(x)
    return d.node(d.given(x), tolerance=sums(n * n, 3.0**n))


explain(
    "MatMul",
    right="reference",
    why="a sum of no terms is 0; onnxruntime may leave memory as it finds it",
    when=lambda n: 0 in n.array(0).shape[-1:],
)
explain(
    "Gemm",
    right="reference",
    why="beta scales the third operand also where the product has no terms; onnxruntime forgets it",
    when=lambda n: n.array(0).size == 0,
)
explain(
    "Det",
    right=lambda n: np.linalg.det(n.array(0).astype(np.float64)).astype(n.array(0).dtype),
    why="the result has the operand's dtype; onnx.reference gives float64",
    when=lambda n: n.array(0).dtype.name in ("float16", "bfloat16"),
)

# -- onnxruntime's --------------------------------------------------------------------------------


@draws("FusedMatMul", domain=MICROSOFT)
def _fused_mat_mul(d: Draw) -> Node:
    n, k, m = (d.integer(1, 5) for _ in range(3))
    lead = d.dims(0, 2, smallest=1)
    flags = d.some(0.5, transA=d.integer(0, 1), transB=d.integer(0, 1))
    a = (k, n) if flags.get("transA") else (n, k)
    b = (m, k) if flags.get("transB") else (k, m)
    attrs: dict[str, Any] = flags | d.some(alpha=d.choice((0.5, 2.0)))
    operands = [d.tensor((*lead, *s), DType.F32, "plain") for s in (a, b)]
    return d.node(*operands, tolerance=sums(k, 2 * LARGEST), **attrs)


@draws("FusedGemm", domain=MICROSOFT)
def _fused_gemm(d: Draw) -> Node:
    node = _gemm(d)
    if node.array(0).size == 0:  # onnxruntime forgets beta, as of Gemm
        return d.node(*node.operands, tolerance=node.tolerance, activation="Relu", beta=1.0)
    activation = d.choice(("Relu", "Tanh", "Sigmoid", "LeakyRelu"))
    attrs = dict(node.attrs) | {"activation": activation}
    if activation == "LeakyRelu":
        attrs["activation_alpha"] = 0.1
    return d.node(*node.operands, tolerance=node.tolerance, **attrs)
