"""Bodies of Loop, Scan and If in which data decides a size: as right as outside of bodies, in one
program where sizes can be measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.errors import Error
from tests.effort import sample, tries
from tests.onnx.data_bounded_bodies import drawn, judged
from tests.onnx.test_control import read, same
from tests.onnx.test_sizes import ONES, agree

TARGETS = ("reference", "cpu")
GROUPS = 4
FOUND = (11, 41, 50, 80, 162, 187, 208)
"""Seeds that found something: rows that a step measures, computed steps, splits and counts, parts
of a concat whose sizes cancel out, a slice of what is known to be empty."""
MATRIX = np.arange(24, dtype=np.float32).reshape(3, 8)
SYMMETRIC_PAD = """
    agraph (float[B, N] waveforms, int64[B] lens) => (float[B, M] y) {
        padded = Scan <num_scan_inputs = 2, body = pad (float[K] waveform, int64 len)
            => (float[P] row) {
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            back = Constant <value_ints = [-1]> ()
            front = Constant <value_ints = [-9223372036854775807]> ()
            far = Constant <value_ints = [9223372036854775807]> ()
            before = Constant <value_ints = [1]> ()
            right = Constant <value_ints = [3]> ()
            n = Reshape(len, one)
            left = Slice(waveform, before, front, zero, back)
            own = Slice(waveform, zero, n, zero)
            last = Sub(n, one)
            stop = Sub(last, right)
            mirror = Slice(waveform, last, stop, zero, back)
            rest = Slice(waveform, n, far, zero)
            row = Concat <axis = 0> (left, own, mirror, rest)
        }> (waveforms, lens)
        y = Cast <to = 1> (padded)
    }
"""
"""onnx-asr's Kaldi preprocessor of April 2025, with a window of 6 and a hop of 2."""


def symmetric_pad(waveforms: Any, lens: Any) -> Any:
    rows = [
        np.concatenate([w[1::-1], w[:n], w[n - 1 : n - 4 : -1] if n > 3 else w[n - 1 :: -1], w[n:]])
        for w, n in zip(waveforms, lens)
    ]
    return np.stack(rows)


@pytest.mark.parametrize("target", TARGETS)
def test_symmetric_pad_of_onnx_asr(target: str) -> None:
    _, model = read(SYMMETRIC_PAD)
    assert not model.is_static
    run = rlx.compile(model, target)
    for lens in ([4, 8, 5], [8, 8, 8], [5, 6, 7]):
        found = run(MATRIX, np.array(lens))
        np.testing.assert_array_equal(found, symmetric_pad(MATRIX, lens))
    with pytest.raises(Error, match=r"padded.*sizes .*are to be equal"):  # a mirror of 2 elements
        run(MATRIX, np.array([4, 8, 2]))
    assert run(MATRIX[:0], np.zeros(0, np.int64)).shape[0] == 0


ROWS = {
    "a prefix, padded": """
        p = Slice(w, zero, e, zero) k = Sub(n, e)
        pads = Concat <axis = 0> (zero, k) r = Pad(p, pads)
    """,
    "a suffix, padded": """
        b = Neg(e) far = Constant <value_ints = [99]> () p = Slice(w, b, far, zero)
        k = Sub(n, e) pads = Concat <axis = 0> (k, zero) r = Pad(p, pads)
    """,
    "a range, padded": """
        last = Squeeze(e, zero) q = Range(none, last, unit) f = CastLike(q, w)
        k = Sub(n, e) pads = Concat <axis = 0> (zero, k) r = Pad(f, pads)
    """,
    "tiled, cut": "t = Tile(w, e) r = Slice(t, zero, n, zero)",
    "ones and zeros": """
        o = ConstantOfShape <value = float[1] {1.5}> (e) k = Sub(n, e)
        z = ConstantOfShape(k) r = Concat <axis = 0> (o, z)
    """,
    "the largest, padded": """
        p, i = TopK(w, e) k = Sub(n, e) pads = Concat <axis = 0> (zero, k) r = Pad(p, pads)
    """,
    "parts exchanged": """
        k = Sub(n, e) sizes = Concat <axis = 0> (e, k)
        p, q = Split <axis = 0> (w, sizes) r = Concat <axis = 0> (q, p)
    """,
    "every so many": """
        far = Constant <value_ints = [99]> () p = Slice(w, zero, far, zero, e)
        r = ReduceSum(p, zero)
    """,
    "backwards by so many": """
        far = Constant <value_ints = [-99]> () end = Constant <value_ints = [-1]> ()
        by = Neg(e) p = Slice(w, end, far, zero, by) r = ReduceSum(p, zero)
    """,
    "resized and back": """
        t = Unsqueeze(w, axes) s = Concat <axis = 0> (one, one, e)
        u = Resize <mode = "nearest"> (t, , , s) v = Squeeze(u, axes)
        k = Sub(n, e) pads = Concat <axis = 0> (zero, k) r = Pad(v, pads)
    """,
    "a side of a branch": """
        many = Constant <value = int64 {4}> () c = Greater(len, many)
        p = If (c) <then_branch = yes () => (float[A] a) { a = Slice(w, zero, e, zero) },
            else_branch = no () => (float[B] b) { b = Slice(w, zero, one, zero) }>
        s = Shape(p) k = Sub(n, s) pads = Concat <axis = 0> (zero, k) r = Pad(p, pads)
    """,
}


NATIVE = [(what, "cpu") for what in sample(list(ROWS), 4)]


@pytest.mark.parametrize(("what", "target"), [*((w, "reference") for w in ROWS), *NATIVE])
def test_rows_whose_sizes_a_step_measures(what: str, target: str) -> None:
    text = f"""
    agraph (float[B, N] x, int64[B] lens) => (float[B, M] y) {{
        ONES
        axes = Constant <value_ints = [0, 1]> ()
        y = Scan <num_scan_inputs = 2, body = row (float[N] w, int64 len) => (float[P] r) {{
            e = Reshape(len, one) n = Shape(w) {ROWS[what]}
        }}> (x, lens)
    }}
    """
    agree(text, target, (MATRIX, np.array([3, 8, 5])), (MATRIX[:2, 2:], np.array([6, 1])))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_loop_have_the_size_of_the_first(target: str) -> None:
    """x[i : i + k] in each step: of k elements as far as there are so many."""
    text = """
    agraph (float[N] x, int64[T] tries) => (float[R, M] y) {
        ONES
        steps = Size(tries) k = ReduceMax <keepdims = 1> (tries)
        y = Loop (steps, go) <body = step (int64 i, bool on) => (bool stay, float[P] row) {
            a = Reshape(i, one) b = Add(a, k) row = Slice(x, a, b, zero) stay = Identity(on)
        }>
    }
    """
    x, three, two = (np.arange(n, dtype=np.float32) for n in (9, 3, 2))
    rows = agree(text, target, (x, np.array([2, 4, 1])), (x, np.array([5])), (three, np.array([3])))
    run = rlx.compile(rows, target)
    assert run(two, np.zeros(0, np.int64)).shape[0] == 0 if target == "reference" else True
    with pytest.raises(Error, match=r"sizes .*are to be equal"):
        run(two, np.array([2, 2]))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_carried_value_are_as_large_as_in_the_first_step(target: str) -> None:
    """A table that each step replaces a part of, as decoders of tables do."""
    text = """
    agraph (float[N] x, float limit) => (float[M] last, float[R, K] rows) {
        ONES
        many = Constant <value = int64 {9223372036854775807}> ()
        last, rows = Loop (many, go, x) <body = step (int64 i, bool on, float[T] t)
            => (bool stay, float[U] u, float[V] row) {
            far = Constant <value_ints = [99]> ()
            a = Reshape(i, one) b = Add(a, one)
            before = Slice(t, zero, a, zero) after = Slice(t, b, far, zero)
            middle = Slice(t, a, b, zero) other = Neg(middle)
            u = Concat <axis = 0> (before, other, after) row = Identity(u)
            s = ReduceSum <keepdims = 0> (u) stay = Greater(s, limit)
        }>
    }
    """
    x = np.arange(1, 7, dtype=np.float32)
    agree(text, target, *((x, np.float32(v)) for v in (30.0, 0.0, -9.0)))


def test_parts_that_are_not_the_whole_are_an_error() -> None:
    text = """
    agraph (float[N] x, int64[K] sizes) => (float[A] a, float[B] b) {
        ONES twice = Mul(sizes, one) a, b = Split <axis = 0> (x, twice)
    }
    """.replace("int64[K]", "int32[2]").replace(
        "twice = Mul(sizes, one)", "twice = Cast <to = 7> (sizes)"
    )
    _, model = read(text.replace("ONES", ONES))
    run = rlx.compile(model, "reference")
    x = np.arange(5, dtype=np.float32)
    same(run(x, np.array([2, 3], np.int32)), [x[:2], x[2:]])
    with pytest.raises(Error):
        run(x, np.array([2, 2], np.int32))


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_few_random_bodies(group: int) -> None:
    """The evaluator judges what it evaluates as the standard says; all of it is onnxruntime's
    (`python -m tests.onnx.data_bounded_bodies`)."""
    for seed in (*FOUND, *range(100, 100 + tries(8, 400)))[group::GROUPS]:
        _, findings = judged(drawn(seed), "reference")
        assert not findings, findings[0]
