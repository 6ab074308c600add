"""Sizes that are found at run time and meet in one node: proved equal, or compared when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.core.errors import Error
from tests.onnx.test_control import read, same

TARGETS = ("reference", "cpu")

# -- compared -------------------------------------------------------------------------------------

MEETINGS = {
    "Add": "y = Add(a, b)",
    "Add of a vector": "c = ReduceSum <keepdims = 0> (b, one) ac = Transpose(a) y = Add(ac, c)",
    "Where": "c = Greater(a, b) y = Where(c, a, b)",
    "Sum": "y = Sum(a, b, a)",
    "Max": "y = Max(b, a)",
    "Concat": "y = Concat <axis = 1> (a, b)",
    "MatMul": "t = Transpose(a) y = MatMul(t, b)",
    "a stack of MatMul": "c = Unsqueeze(a, one) d = Unsqueeze(b, two) y = MatMul(c, d)",
    "Gemm": "y = Gemm <transA = 1> (a, b)",
    "Einsum": 'y = Einsum <equation = "ij,ik->jk"> (a, b)',
    "ScatterElements": """
        c = Mul(a, zeros) d = Cast <to = 7> (c) y = ScatterElements <axis = 1> (x, d, b)
    """,
    "GatherND": """
        c = Mul(a, zeros) d = Cast <to = 7> (c) e = Slice(d, zero, one, one)
        y = GatherND <batch_dims = 1> (b, e)
    """,
    "Scan": """
        s, y = Scan <num_scan_inputs = 2, body = step (float r, float[2] p, float[2] q)
            => (float t, float[2] z) {
            z = Mul(p, q) k = ReduceSum <keepdims = 0> (z) t = Add(r, k)
        }
        > (unit, a, b)
    """,
}


def meeting(what: str, width: str = "N") -> str:
    """Rows of one tensor that two masks choose."""
    return f"""
    agraph (float[{width}, 2] x, bool[{width}] p, bool[{width}] q) => (float y) {{
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        unit = Constant <value = float {{1.0}}> ()
        zeros = Constant <value = float[1] {{0.0}}> ()
        a = Compress <axis = 0> (x, p)
        b = Compress <axis = 0> (x, q)
        {MEETINGS[what]}
    }}
    """


def rows(*chosen: int) -> np.ndarray[Any, Any]:
    return np.isin(np.arange(6), chosen)


@pytest.mark.parametrize("what", MEETINGS)
@pytest.mark.parametrize("width", ["6", "N"])
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_meet_are_compared(what: str, width: str, target: str) -> None:
    """Equal ones give what ONNX says; others are an error, and so is 1 against n: a size that is
    found at run time is not repeated."""
    proto, model = read(meeting(what, width))
    assert not model.is_static, model.why_static
    run, evaluator = rlx.compile(model, target), ReferenceEvaluator(proto)
    x = np.arange(12, dtype=np.float32).reshape(6, 2) - 5
    for p, q in ((rows(0, 3, 4), rows(1, 2, 5)), (rows(2), rows(4)), (rows(1, 5), rows(1, 5))):
        expected = evaluator.run(None, {"x": x, "p": p, "q": q})
        same(run(x, p, q), list(expected))
    for p, q in ((rows(0, 1), rows(2, 3, 4)), (rows(0), rows(1, 2)), (rows(1, 2), rows())):
        with pytest.raises(Error, match=r"sizes .*are to be equal"):
            run(x, p, q)


# -- proved ---------------------------------------------------------------------------------------

CONDITIONS = {
    "a counter below a size": ("first = Less(none, n)", "more = Less(next, bound)"),
    "a size above a counter": ("first = Greater(n, none)", "more = Greater(bound, next)"),
    "as floats": (
        "wide = Cast <to = 1> (n) low = Cast <to = 1> (none) first = Less(low, wide)",
        "end = Cast <to = 1> (bound) at_ = Cast <to = 1> (next) more = Less(at_, end)",
    ),
    "a counter up to a size": ("first = LessOrEqual(none, n)", "more = LessOrEqual(next, bound)"),
    "a first step unasked": ("first = Constant <value = bool {1}> ()", "more = Less(next, bound)"),
    "two bounds": (
        "first = Less(none, n)",
        "l = Less(next, bound) f = Constant <value = int64 {4}> () m = Less(step, f) "
        "more = And(l, m)",
    ),
    "the number of the step": (
        "first = Constant <value = bool {1}> ()", "more = Less(step, bound)"
    ),
}  # fmt: skip


def both_ways(condition: str, by: int) -> str:
    """Rows that two loops stack, one forwards and one backwards, as of a bidirectional layer: each
    carries its counter and its bound, and has no trip count."""
    first, more = CONDITIONS[condition]

    def loop(name: str, data: str) -> str:
        return f"""
        {name}i, {name}n, {name}s, {name} = Loop (, first, none, n, start) <
            body = {name}b (int64 step, bool on, int64 i, int64 bound, float[2] s)
                => (bool more, int64 next, int64 same, float[2] t, float[2] row) {{
            next = Add(i, by) same = Identity(bound) {more}
            at = Mod(i, bound) part = Gather({data}, at)
            t = Add(s, part) row = Tanh(t)
        }}>
        """

    return f"""
    agraph (float[N, 2] x) => (float[M, 2] y, float[M, 4] z) {{
        none = Constant <value = int64 {{0}}> ()
        by = Constant <value = int64 {{{by}}}> ()
        start = Constant <value = float[2] {{0.0, 0.0}}> ()
        at0 = Constant <value_ints = [0]> ()
        shape = Shape(x) whole = Gather(shape, at0) n = Squeeze(whole, at0)
        back = Constant <value_ints = [-1]> ()
        far = Constant <value_ints = [-9223372036854775807]> ()
        turned = Slice(x, back, far, at0, back)
        {first}
        {loop("f", "x")} {loop("b", "turned")}
        y = Add(f, b) z = Concat <axis = 1> (f, b)
    }}
    """


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("by", [1, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_loops_that_count_up_to_a_size_are_scans(condition: str, by: int, target: str) -> None:
    proto, model = read(both_ways(condition, by))
    assert not model.is_static, model.why_static
    kinds = [n.op for n in model.graph.order() if n.op in ("scan", "while")]
    assert kinds == (["while"] if by > 1 and condition == "as floats" else ["scan"]) * 2
    run, evaluator = rlx.compile(model, target), ReferenceEvaluator(proto)
    for size in (1, 2, 7):
        x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
        expected = evaluator.run(None, {"x": x})
        for got, wanted in zip(run(x), expected, strict=True):
            # tanh in f32, and sums of at most 7 numbers of size 1 or so
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_loops_that_count_up_to_data_are_compared(target: str) -> None:
    """Two bounds that a call gives: where the loops make as many steps, their rows are added."""
    loop = """
        {0}i, {0} = Loop (, go, none) <body = {0}b (int64 step, bool on, int64 i)
            => (bool more, int64 next, float row) {{
            unit = Constant <value = int64 {{1}}> ()
            next = Add(i, unit) m = Squeeze({1}) more = Less(next, m) row = Cast <to = 1> (next)
        }}>
    """
    text = f"""
    agraph (float[N] k, float[N] l) => (float[M] y) {{
        none = Constant <value = int64 {{0}}> () go = Constant <value = bool {{1}}> ()
        ks = ReduceSum <keepdims = 1> (k) kn = Cast <to = 7> (ks)
        ls = ReduceSum <keepdims = 1> (l) ln = Cast <to = 7> (ls)
        {loop.format("f", "kn")} {loop.format("b", "ln")}
        y = Add(f, b)
    }}
    """
    _, model = read(text)
    assert not model.is_static, model.why_static
    run = rlx.compile(model, target)
    for count in (0, 1, 5, 300):
        one, other = np.array([count, 0], np.float32), np.array([count - 2, 2], np.float32)
        np.testing.assert_array_equal(run(one, other), 2 * np.arange(1, max(1, count) + 1))
    for count in (1, 6):
        with pytest.raises(Error, match=r"sizes .*are to be equal"):
            run(np.array([5, 0], np.float32), np.array([count, 0], np.float32))


def test_products_of_sizes_are_sizes() -> None:
    """What TensorFlow's tensordot asks: the product of some sizes, and the others as they are."""
    text = """
    agraph (float[N, M, 6] x, float[6, 5] w) => (float[A, B, C] y) {
        at0 = Constant <value_ints = [0]> ()
        rows = Constant <value_ints = [0, 1]> ()
        cols = Constant <value_ints = [2]> ()
        five = Constant <value_ints = [5]> ()
        s = Shape(x) a = Gather(s, rows) b = Gather(s, cols)
        i = ReduceProd <keepdims = 0> (a) j = ReduceProd <keepdims = 0> (b)
        k = Unsqueeze(i, at0) l = Unsqueeze(j, at0) flat = Concat <axis = 0> (k, l)
        z = Reshape(x, flat) m = MatMul(z, w)
        dims = Concat <axis = 0> (a, five) y = Reshape(m, dims)
    }
    """
    proto, model = read(text)
    assert not model.is_static, model.why_static
    run, evaluator = rlx.compile(model), ReferenceEvaluator(proto)
    for dims in ((2, 3, 6), (1, 1, 6), (3, 4, 6)):
        x, w = np.arange(np.prod(dims)).reshape(dims) % 7, np.eye(6, 5)
        given = [v.astype(np.float32) for v in (x, w)]
        same(run(*given), list(evaluator.run(None, dict(zip("xw", given)))))


def test_numbers_that_are_added_to_themselves_are_looked_at_once() -> None:
    """Not 2⁵⁰ times: a number that becomes a size is traced back through what it is made of."""
    adds = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(50))
    text = f"""
    agraph (float[N] x) => (float[M] y) {{
        s = ReduceMax <keepdims = 1> (x) v0 = Cast <to = 7> (s) {adds}
        z = Constant <value_ints = [0]> () none = Mul(v50, z) y = ConstantOfShape(none)
    }}
    """
    _, model = read(text)
    assert rlx.compile(model, "reference")(np.ones(3, np.float32)).shape == (0,)
