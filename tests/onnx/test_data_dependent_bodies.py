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
    "resized by a scale and back": """
        t = Unsqueeze(w, axes) f = Cast <to = 1> (e) half = Constant <value_float = 0.4> ()
        by = Mul(f, half) ones = Constant <value_floats = [1.0, 1.0]> ()
        s = Concat <axis = 0> (ones, by) u = Resize <mode = "linear"> (t, , s) v = Squeeze(u, axes)
        m = Shape(v) most = Constant <value_ints = [32]> () k = Sub(most, m)
        pads = Concat <axis = 0> (zero, k) r = Pad(v, pads)
    """,
    "one element against many": """
        past = Add(e, one) back = Sub(e, one) last = Slice(w, back, e, zero)
        many = Slice(w, zero, e, zero) p = Mul(many, last) r = ReduceSum(p, zero)
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


FLAGS = """
    agraph (float[N] x, float[K] w) => (float[M] y, bool f) {
        ONES
        many = Constant <value = int64 {9223372036854775807}> ()
        off = Constant <value = bool {0}> () nothing = Constant <value = float {0.0}> ()
        top = Constant <value_floats = [9.0]> ()
        v, flag, y = Loop (many, go, x, off, nothing) <body = step (int64 i, bool on, float[N] v,
            bool done, float[T] t) => (bool stay, float[N] v2, bool[D] done2, float[U] u) {
            v2 = Add(v, w) s = ReduceSum <keepdims = 0> (v2) limit = Squeeze(top)
            c = Greater(s, limit)
            u = Concat <axis = 0> (v2, x)
            d = If (c) <then_branch = yes () => (bool a) { a = Constant <value = bool {1}> () },
                else_branch = no () => (bool[1] b) {
                    k = Cast <to = 7> (done) z = Constant <value_ints = [0]> () q = Add(k, z)
                    b = Cast <to = 9> (q) }>
            e = Cast <to = 7> (d) g = Add(e, zero) done2 = Cast <to = 9> (g) stay = Not(d)
        }>
        f = Squeeze(flag)
    }
"""


@pytest.mark.parametrize("target", TARGETS)
def test_values_get_their_rank_in_the_first_step(target: str) -> None:
    """As Paddle exports variables without a value, and flags that are [] or [1]: SLANet-plus."""
    _, model = read(FLAGS.replace("ONES", ONES))
    assert not model.is_static
    run = rlx.compile(model, target)
    for first, by in ((1.0, 2.0), (20.0, 1.0), (0.0, 0.5)):
        x, w = np.full(3, first, np.float32), np.full(3, by, np.float32)
        last = x + w
        while last.sum() <= 9:
            last = last + w
        same(run(x, w), [np.concatenate([last, x]), np.array(True)])


def test_a_rank_that_data_decides_and_a_result_shows_is_known_for_values_of_inputs() -> None:
    _, model = read(FLAGS.replace("ONES", ONES).replace("g = Add(e, zero)", "g = Identity(e)"))
    assert model.is_static
    x = np.ones(3, np.float32)
    same(rlx.compile(model, "reference")(x, x), [np.float32([4, 4, 4, 1, 1, 1]), np.array(True)])


@pytest.mark.parametrize("target", TARGETS)
def test_pads_that_are_computed_may_take_off(target: str) -> None:
    """ONNX's evaluator has no such pads."""
    text = """
    agraph (float[B, N] x, int64[B] lens) => (float[B, M] y) {
        ONES
        y = Scan <num_scan_inputs = 2, body = row (float[N] w, int64 len) => (float[P] r) {
            e = Reshape(len, one) n = Shape(w) low = Sub(one, e)
            both = Concat <axis = 0> (low, e) p = Pad <mode = "edge"> (w, both)
            k = Sub(n, one) r = Slice(p, zero, k, zero)
        }> (x, lens)
    }
    """
    _, model = read(text.replace("ONES", ONES))
    assert not model.is_static
    lens = np.array([3, 8, 1])
    rows = [np.concatenate([w[e - 1 :], np.repeat(w[-1], e)])[:7] for w, e in zip(MATRIX, lens)]
    np.testing.assert_array_equal(rlx.compile(model, target)(MATRIX, lens), rows)


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


def test_what_is_refused_names_the_node_that_must_be_known() -> None:
    """Not one before it, whose size is measured."""
    text = """
    agraph (float[B, N] x, int64[B] lens) => (float[B, M] y) {
        ONES
        y = Scan <num_scan_inputs = 2, body = row (float[N] w, int64 len) => (float[P] r) {
            e = Reshape(len, one) p = Slice(w, zero, e, zero) a = Sub(e, e)
            sum = ReduceSum <keepdims = 1> (p, a) r = Identity(sum)
        }> (x, lens)
    }
    """
    _, model = read(text.replace("ONES", ONES))
    with pytest.raises(Error, match=r"ReduceSum 'sum': operand 1 decides a shape.* constant"):
        rlx.compile(model, "reference")(MATRIX, np.array([3, 8, 1]))


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_few_random_bodies(group: int) -> None:
    """The evaluator judges what it evaluates as the standard says; all of it is onnxruntime's
    (`python -m tests.onnx.data_bounded_bodies`)."""
    for seed in range(tries(14, 380))[group::GROUPS]:
        _, findings = judged(drawn(seed), "reference")
        assert not findings, findings[0]
