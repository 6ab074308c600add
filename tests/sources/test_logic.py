"""Comparisons, truth values, bits and leaves against Python's own and ONNX's reference."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx.numpy_helper import from_array

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ops.op import lookup
from tests.sources.onnx_reference import run_onnx
from tests.sources.scalars import one_by_one, same, wrapped

COMPARISONS: dict[str, tuple[Callable[..., bool], str | None]] = {
    "equal": (operator.eq, "Equal"),
    "not_equal": (operator.ne, None),
    "less": (operator.lt, "Less"),
    "less_equal": (operator.le, "LessOrEqual"),
    "greater": (operator.gt, "Greater"),
    "greater_equal": (operator.ge, "GreaterOrEqual"),
}
TRUTHS: dict[str, tuple[Callable[..., bool], str]] = {
    "logical_and": (lambda x, y: x and y, "And"),
    "logical_or": (lambda x, y: x or y, "Or"),
    "logical_xor": (lambda x, y: x != y, "Xor"),
    "logical_not": (lambda x: not x, "Not"),
}
BITS: dict[str, tuple[Callable[..., int], str]] = {
    "bit_and": (operator.and_, "BitwiseAnd"),
    "bit_or": (operator.or_, "BitwiseOr"),
    "bit_xor": (operator.xor, "BitwiseXor"),
    "bit_not": (operator.invert, "BitwiseNot"),
}
"""What Python calls each op, and ONNX, where it has one."""

SOURCES = {
    **{
        name: "Python's operator" + (f"; onnx.reference {theirs}" if theirs else "")
        for name, (_, theirs) in {**COMPARISONS, **TRUTHS, **BITS}.items()
    },
    "shift_left": "Python's unbounded integers; onnx.reference BitShift",
    "shift_right": "Python's unbounded integers; onnx.reference BitShift",
    "where": "Python's conditional; onnx.reference Where",
    "constant": "onnx.reference Constant",
    "input": "hand-checked example: a graph of nothing else gives what it is given",
    "param": "hand-checked example: a graph of nothing else gives what it is given",
    "item": "hand-checked example: the parts of numpy.array_split, each by its place",
}
RNG = np.random.default_rng(19)
INTEGERS = [d for d in DType if d.is_integer]
BOOLS = np.array([False, True])


def spread(dtype: DType) -> np.ndarray:
    """A few values of every kind, with equals among them."""
    if dtype is DType.BOOL:
        return BOOLS
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        near = [v for v in range(-3, 4) if v >= info.min]
        some = RNG.integers(info.min, info.max, 20, info.dtype, endpoint=True)
        return np.array([info.min, info.max, *near, *some.tolist()], info.dtype)
    x = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, *RNG.normal(size=9)])
    if not dtype.is_complex:
        return x.astype(dtype.numpy)
    z = np.empty((len(x), len(x)), np.complex128)
    z.real, z.imag = x[:, None], x
    return z.reshape(-1).astype(dtype.numpy)


def has_order(dtype: DType) -> bool:
    return dtype.is_integer or dtype.is_float


COMPARED = [
    (name, dtype)
    for name in COMPARISONS
    for dtype in DType
    if has_order(dtype) or name in ("equal", "not_equal")
]


@pytest.mark.parametrize(("name", "dtype"), COMPARED)
def test_comparisons(name: str, dtype: DType) -> None:
    python, theirs = COMPARISONS[name]
    x = spread(dtype)
    got = lookup(name)(x[:, None], x)
    same(got, one_by_one(python, x[:, None], x))
    if theirs and dtype in (DType.F32, DType.F64, DType.I64):
        np.testing.assert_array_equal(got, run_onnx(theirs, [x[:, None], x])[0])


@pytest.mark.parametrize("name", TRUTHS)
def test_truth_values(name: str) -> None:
    python, theirs = TRUTHS[name]
    given = [BOOLS[:, None], BOOLS][: 1 if name == "logical_not" else 2]
    got = lookup(name)(*given)
    same(got, one_by_one(python, *given))
    np.testing.assert_array_equal(got, run_onnx(theirs, given)[0])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", BITS)
def test_bits(name: str, dtype: DType) -> None:
    python, theirs = BITS[name]
    x = spread(dtype)
    given = [x] if name == "bit_not" else [x[:, None], x]
    got = lookup(name)(*given)
    same(got, [wrapped(v, x.dtype) for v in one_by_one(python, *given)])
    np.testing.assert_array_equal(got, run_onnx(theirs, given)[0])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: DType) -> None:
    """An amount is read without its sign, so a negative one is past the width."""
    x = spread(dtype)
    width = np.iinfo(x.dtype).bits
    amounts = [0, 1, 2, 5, width - 1, width, width + 1, 100]
    y = np.array([*amounts, -1] if dtype.is_signed else amounts, x.dtype)

    def amount(v: int) -> int:
        return v if 0 <= v < width else width

    left = one_by_one(lambda a, b: wrapped(a << amount(b), x.dtype), x[:, None], y)
    right = one_by_one(lambda a, b: a >> amount(b), x[:, None], y)
    same(ops.shift_left(x[:, None], y), left)
    same(ops.shift_right(x[:, None], y), right)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize(("name", "direction"), [("shift_left", "LEFT"), ("shift_right", "RIGHT")])
def test_shifts_are_onnxs_inside_the_width(name: str, direction: str, dtype: Any) -> None:
    x = RNG.integers(0, 256, (9, 1)).astype(dtype)
    y = np.arange(8).astype(dtype)
    (want,) = run_onnx("BitShift", [x, y], {"direction": direction})
    np.testing.assert_array_equal(lookup(name)(x, y), want)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_where(dtype: DType) -> None:
    x = spread(dtype)
    y, c = RNG.permutation(x), RNG.random((3, len(x))) < 0.5
    same(ops.where(c, x, y), one_by_one(lambda c, a, b: a if c else b, c, x, y))
    if dtype is not DType.BF16:
        np.testing.assert_array_equal(ops.where(c, x, y), run_onnx("Where", [c, x, y])[0])


# -- leaves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_leaves_give_what_they_are_given(dtype: DType) -> None:
    x = spread(dtype)
    g = Graph()
    x_of, w_of = g.input("x", Shape(x.shape, dtype)), g.param("w", Shape(x.shape, dtype))
    g.set_outputs([w_of, g.constant(x), x_of])
    w, c, given = evaluate(g, {"x": x, "w": x[::-1]})
    for got, want in ((given, x), (w, x[::-1]), (c, x)):
        assert got.dtype == x.dtype
        same(got, want.tolist())
    with pytest.raises(Error, match="no value for w"):
        evaluate(g, {"x": x})


def test_constants_are_onnxs() -> None:
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    g = Graph()
    g.set_outputs([g.constant(x)])
    (want,) = run_onnx("Constant", [], {"value": from_array(x)})
    np.testing.assert_array_equal(evaluate(g, {})[0], want)


def test_items_are_results_by_their_place() -> None:
    x = RNG.normal(size=(7, 2))
    g = Graph()
    parts = ops.split(g.input("x", Shape(x.shape, "f64")), sizes=(3, 2, 2), axis=0)
    assert [p.op for p in parts] == ["item"] * 3
    g.set_outputs([parts[2], parts[0], parts[1]])
    got, want = evaluate(g, {"x": x}), np.array_split(x, 3)
    for place, part in zip((2, 0, 1), got, strict=True):
        np.testing.assert_array_equal(part, want[place])
        assert lookup("item").reference(*want, index=place) is want[place]
