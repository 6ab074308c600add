"""Sizes that a model computes from data, in the model itself and in its branches and loops: one
program for all of them, against ONNX's own evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.core.errors import Error
from rlx.frontends.onnx.model import Model
from tests.onnx.test_control import read, same

TARGETS = ("reference", "cpu")
X = np.array([3, 0, -1, 0, 2, 5, 0, 1], np.float32)
EMPTY = np.zeros(0, np.float32)
ONES = """
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    none = Constant <value = int64 {0}> ()
    unit = Constant <value = int64 {1}> ()
    fzero = Constant <value = float {0.0}> ()
    TRUE
"""


def agree(text: str, target: str, *calls: tuple[Any, ...], opset: int = 21) -> Model:
    """What rlx gives is what ONNX's evaluator gives; nothing is compiled for a call."""
    proto, model = read(text.replace("ONES", ONES), opset)
    assert not model.is_static, model.why_static
    run, evaluator = rlx.compile(model, target), ReferenceEvaluator(proto)
    names = [i.name for i in proto.graph.input]
    for inputs in calls:
        expected = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        same(run(*inputs), list(expected))
    return model


# -- sizes that are computed ----------------------------------------------------------------------

COMPUTED = {
    "a slice up to a computed end": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        y = Slice(x, zero, e, zero)
    """,
    "a slice between computed ends": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        n = Neg(e)
        y = Slice(x, n, e, zero)
    """,
    "a slice backwards from a computed start": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        far = Constant <value_ints = [-9223372036854775807]> ()
        back = Constant <value_ints = [-2]> ()
        y = Slice(x, e, far, zero, back)
    """,
    "a range to a sum": """
        p = Greater(x, fzero) q = Cast <to = 7> (p) s = ReduceSum <keepdims = 0> (q)
        r = Range(none, s, unit) y = Cast <to = 1> (r)
    """,
    "a range as long as what is not 0": """
        p = Greater(x, fzero) q = Cast <to = 7> (p) s = ReduceSum <keepdims = 0> (q)
        r = Range(none, s, unit) f = Cast <to = 1> (r)
        w = NonZero(p) g = Squeeze(w, zero) picked = Gather(x, g)
        y = Mul(picked, f)
    """,
    "a range of floats": """
        m = ReduceMax <keepdims = 0> (x) half = Constant <value = float {0.5}> ()
        y = Range(fzero, m, half)
    """,
    "zeros of a computed shape": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        two = Constant <value_ints = [2]> () d = Concat <axis = 0> (e, two)
        y = ConstantOfShape <value = float[1] {1.5}> (d)
    """,
    "expanded to a computed shape": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        n = Shape(x) d = Concat <axis = 0> (e, n)
        y = Expand(x, d)
    """,
    "tiled a computed number of times": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        y = Tile(x, e)
    """,
    "a computed reshape": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        t = Tile(x, e) n = Shape(x) d = Concat <axis = 0> (e, n)
        y = Reshape(t, d)
    """,
    "a computed reshape with a rest": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        rest = Constant <value_ints = [-1]> ()
        t = Tile(x, e) d = Concat <axis = 0> (rest, e)
        y = Reshape(t, d)
    """,
}


@pytest.mark.parametrize("what", COMPUTED)
@pytest.mark.parametrize("dims", ["8", "N"])
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_are_computed(what: str, dims: str, target: str) -> None:
    text = f"agraph (float[{dims}] x) => (float[M] y) {{ ONES {COMPUTED[what]} }}"
    calls = [X, X + 1, np.full(8, 600, np.float32)]
    if dims == "N":
        calls = [X, X[:1], X[4:6], np.arange(1, 40, dtype=np.float32)]
    agree(text, target, *((c,) for c in calls))


def test_a_size_that_is_negative_is_an_error() -> None:
    text = f"agraph (float[N] x) => (float[M] y) {{ ONES {COMPUTED['zeros of a computed shape']} }}"
    _, model = read(text.replace("ONES", ONES))
    for target in TARGETS:
        with pytest.raises(Error, match="negative"):
            rlx.compile(model, target)(np.array([-3.0], np.float32))


def test_explain_says_what_grows() -> None:
    text = f"agraph (float[N] x) => (float[M] y) {{ ONES {COMPUTED['a range of floats']} }}"
    _, model = read(text.replace("ONES", ONES))
    exe = rlx.compile(model)
    assert any(d.kind == "capacity" and "Range" not in d.what for d in exe.decisions)
    assert exe.lir.plan.capacities


# -- sizes that are equal -------------------------------------------------------------------------

EQUAL = {
    "of one tensor": "p = Greater(x, fzero) a = NonZero(p) b = NonZero(p)",
    "of its copy": """
        p = Greater(x, fzero) c = Cast <to = 1> (p) d = Identity(c) a = NonZero(p) b = NonZero(d)
    """,
    "of its sign": "a = NonZero(x) n = Neg(x) s = Sign(n) b = NonZero(s)",
    "of what differs from 0": """
        a = NonZero(x) q = Equal(x, fzero) p = Not(q) c = Cast <to = 6> (p) b = NonZero(c)
    """,
    "of its transpose": """
        w = Constant <value_ints = [-1, 1]> () m = Reshape(x, w) t = Transpose(m)
        u = NonZero(m) v = NonZero(t)
        a = Slice(u, zero, one, zero) b = Slice(v, zero, one, zero)
    """,
}


@pytest.mark.parametrize("what", EQUAL)
@pytest.mark.parametrize("dims", ["8", "N"])
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_are_equal_by_construction(what: str, dims: str, target: str) -> None:
    text = f"agraph (float[{dims}] x) => (int64[1, M] y) {{ ONES {EQUAL[what]} y = Add(a, b) }}"
    calls = [X, 0 * X, X * X + 1]
    calls += [X[:4], np.tile(X, 40)] if dims == "N" else []
    agree(text, target, *((c,) for c in calls))


UPDATES = """
agraph (float[N] x, float[N] z) => (float[N] y) {
    ONES
    p = Greater(x, fzero)
    w = NonZero(p)
    i = Transpose(w)
    u = Compress <axis = 0> (z, p)
    y = ScatterND(x, i, u)
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_updates_of_sizes_that_are_found(target: str) -> None:
    calls = [
        (X, X * 10),
        (0 * X, X),
        (EMPTY, EMPTY),
        (np.tile(X, 9), np.arange(72, dtype=np.float32)),
    ]
    agree(UPDATES, target, *calls)


def test_sizes_that_turn_out_to_differ_are_an_error() -> None:
    text = """
    agraph (float[N] x, float[N] z) => (int64[1, M] y) {
        a = NonZero(x) b = NonZero(z) y = Add(a, b)
    }
    """
    _, model = read(text)
    for target in TARGETS:
        run = rlx.compile(model, target)
        expected = np.array(np.nonzero(X)) + np.nonzero(X[::-1])[0]
        np.testing.assert_array_equal(run(X, X[::-1].copy()), expected)
        for other in (X * 0, X * X + 1):
            with pytest.raises(Error, match=r"sizes .*are to be equal"):
                run(X, other)


# -- branches -------------------------------------------------------------------------------------

SIDES = {
    "a computed slice": """
        m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) e = Reshape(i, one)
        a = Slice(x, zero, e, zero)
    """,
    "what is not 0": "w = NonZero(x) g = Squeeze(w, zero) a = Gather(x, g)",
    "a range": """
        m = ReduceMax <keepdims = 0> (x) step = CastLike(unit, m) a = Range(fzero, m, step)
    """,
    "twice as much": "a = Concat <axis = 0> (x, x)",
}


@pytest.mark.parametrize("what", SIDES)
@pytest.mark.parametrize("dims", ["8", "N"])
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_a_branch_finds(what: str, dims: str, target: str) -> None:
    text = f"""
    agraph (float[{dims}] x, bool c) => (float[M] y, float[M] z) {{
        ONES
        y = If (c) <
            then_branch = yes () => (float[A] a) {{ {SIDES[what]} }},
            else_branch = no () => (float[B] b) {{ b = Neg(x) }}
        >
        z = Mul(y, y)
    }}
    """
    calls = [X, X + 700]
    calls += [X[:1], np.tile(X, 50)] if dims == "N" else []
    agree(text, target, *((x, np.array(c)) for x in calls for c in (True, False)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_in_a_branch_that_finds_sizes(target: str) -> None:
    text = """
    agraph (float[N] x, bool c, bool d) => (float[M] y) {
        ONES
        k = NonZero(x) j = Squeeze(k, zero) outer = Gather(x, j)
        y = If (c) <
            then_branch = yes () => (float[A] a) {
                a = If (d) <
                    then_branch = both () => (float[P] p) { w = NonZero(outer) g = Squeeze(w, zero)
                        q = Gather(outer, g) p = Concat <axis = 0> (q, x) },
                    else_branch = one () => (float[Q] q) { q = Exp(outer) }
                >
            },
            else_branch = no () => (float[B] b) { b = Identity(x) }
        >
    }
    """
    flags = [np.array(f) for f in (True, False)]
    agree(text, target, *((x, c, d) for x in (X, 0 * X, X[:3]) for c in flags for d in flags))


# -- loops ----------------------------------------------------------------------------------------

NO_END = "many = Constant <value = int64 {9223372036854775807}> ()"
LOOPS = {
    "a slice to a computed end in each step": f"""
        {NO_END}
        y, rows = Loop (many, go, fzero) <body = step (int64 i, bool on, float s)
            => (bool stay, float t, float[1] row) {{
            a = Mul(s, s) b = Cast <to = 7> (a) e = Reshape(b, one)
            part = Slice(x, zero, e, zero)
            row = ReduceSum(part)
            f = CastLike(unit, s) t = Add(s, f)
            c = CastLike(i, n) stay = Less(c, n)
        }}>
    """,
    "a decoder that runs until its data ends": f"""
        {NO_END}
        start = Constant <value = int64[1] {{1}}> ()
        tokens, rows = Loop (many, go, start) <body = step (int64 i, bool on, int64[T] t)
            => (bool stay, int64[T] u, int64[1] row) {{
            row = ReduceSum(t)
            length = Shape(x) odd = Add(row, unit) next = Mod(odd, length)
            u = Concat <axis = 0> (t, next)
            c = Less(i, n) far = Size(u) room = Constant <value = int64 {{400}}> ()
            d = Less(far, room) stay = And(c, d)
        }}>
        y = Cast <to = 1> (tokens)
    """,
    "two values that grow together": f"""
        {NO_END}
        y, other, rows = Loop (many, go, x, x) <
            body = step (int64 i, bool on, float[T] t, float[T] m)
                => (bool stay, float[T] u, float[T] v, float[1] row) {{
            sum = Add(t, m) row = ReduceMax(sum)
            u = Concat <axis = 0> (sum, x) v = Concat <axis = 0> (m, x)
            stay = Less(i, n)
        }}>
    """,
    "a value that shrinks": f"""
        {NO_END}
        half = Constant <value = float {{0.5}}> ()
        y, rows = Loop (many, go, x) <body = step (int64 i, bool on, float[T] t)
            => (bool stay, float[T] u, int64[1] row) {{
            w = NonZero(t) g = Squeeze(w, zero) kept = Gather(t, g)
            fl = Floor(kept) hf = Mul(fl, half) u = Floor(hf)
            row = Shape(kept) stay = Less(i, n)
        }}>
    """,
    "a range of what the step before found": f"""
        {NO_END}
        y, rows = Loop (many, go, fzero) <body = step (int64 i, bool on, float s)
            => (bool stay, float t, float[1] row) {{
            f = CastLike(unit, s) r = Range(fzero, s, f) row = ReduceSum(r)
            k = CastLike(i, s) kk = Mul(k, k) t = Add(kk, f)
            stay = Less(i, n)
        }}>
    """,
}


@pytest.mark.parametrize("what", LOOPS)
@pytest.mark.parametrize("dims", ["8", "N"])
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_a_loop_finds(what: str, dims: str, target: str) -> None:
    """No steps, one, a few, and more than there is room for at first."""
    text = f"""
    agraph (float[{dims}] x, int64 n) => (float[M] y, float[R, 1] rows) {{ ONES {LOOPS[what]} }}
    """
    sizes = [X] if dims == "8" else [X[:1], np.arange(1, 20, dtype=np.float32)]
    is_slow = "together" in what or target == "reference"
    steps = (-1, 0, 3, 20) if is_slow else (-1, 0, 3, 300)
    agree(text, target, *((x, np.array(n)) for x in sizes for n in steps))


def growing(x: Any, go: bool, most: int) -> tuple[Any, Any]:
    rows: list[Any] = []
    value = x
    while go and len(rows) < most:
        value = np.concatenate([value, x])
        rows.append([value.sum()] * 2)
        go = value.sum() < 50
    return value, np.array(rows, np.float32).reshape(-1, 2)


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_that_does_not_begin(target: str) -> None:
    """ONNX's evaluator stacks no rows of none; onnxruntime gives [0, 2], as here."""
    text = """
    agraph (float[N] x, bool c, int64 k) => (float[M] y, float[R, 2] rows) {
        ONES
        pair = Constant <value_ints = [2]> ()
        y, rows = Loop (k, c, x) <body = step (int64 i, bool on, float[T] t)
            => (bool stay, float[T] u, float[2] row) {
            u = Concat <axis = 0> (t, x)
            s = ReduceSum <keepdims = 0> (u) row = Expand(s, pair)
            top = Constant <value = float {50.0}> () stay = Less(s, top)
        }>
    }
    """
    _, model = read(text.replace("ONES", ONES))
    assert not model.is_static
    run = rlx.compile(model, target)
    for x in (X, EMPTY):
        for c in (True, False):
            for k in (0, 1, 7) if target == "reference" else (0, 1, 7, 600):
                same(run(x, np.array(c), np.array(k)), list(growing(x, c, k)))


def nested(x: Any, n: int) -> tuple[Any, Any]:
    outer = x[x != 0]
    value, rows, i, go = outer, list[Any](), 0, True
    while go:
        last, sizes = value, list[int]()
        for _ in range(i):
            last = np.concatenate([last, outer])
            sizes.append(len(last))
        rows.append([sum(sizes)])
        value = np.concatenate([last[np.nonzero(value)[0]], outer])
        go, i = i < n, i + 1
    return value, np.array(rows, np.int64).reshape(-1, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_in_a_loop_that_finds_sizes(target: str) -> None:
    text = """
    agraph (float[N] x, int64 n) => (float[M] y, int64[R, 1] rows) {
        ONES
        k = NonZero(x) j = Squeeze(k, zero) outer = Gather(x, j)
        none_ = Constant <value = int64 {9223372036854775807}> ()
        y, rows = Loop (none_, go, outer) <body = step (int64 i, bool on, float[T] t)
            => (bool stay, float[T] u, int64[1] row) {
            last, inner = Loop (i, go, t) <body = in_ (int64 m, bool q, float[S] s)
                => (bool r, float[S] v, int64[1] w) {
                v = Concat <axis = 0> (s, outer)
                w = Shape(v) r = Identity(q)
            }>
            total = ReduceSum <keepdims = 0> (inner) row = Reshape(total, one)
            z = NonZero(t) g = Squeeze(z, zero) kept = Gather(last, g)
            u = Concat <axis = 0> (kept, outer)
            stay = Less(i, n)
        }>
    }
    """
    _, model = read(text.replace("ONES", ONES))
    assert not model.is_static
    run = rlx.compile(model, target)
    for x in (X, 0 * X, EMPTY):
        for n in (-1, 0, 4) if target == "reference" else (-1, 0, 4, 9, 40):
            same(run(x, np.array(n)), list(nested(x, n)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_inside_a_branch_and_a_branch_inside_a_loop(target: str) -> None:
    text = """
    agraph (float[N] x, bool c, int64 n) => (float[M] y) {
        ONES
        y = If (c) <
            then_branch = yes () => (float[A] a) {
                a = Loop (n, go, x) <body = step (int64 i, bool on, float[T] t)
                    => (bool stay, float[T] u) {
                    m = ReduceMax <keepdims = 0> (t) b = Greater(m, fzero)
                    u = If (b) <
                        then_branch = more () => (float[P] p) { f = CastLike(unit, t)
                            d = Sub(t, f) p = Concat <axis = 0> (d, x) },
                        else_branch = less () => (float[Q] q) { q = Slice(t, zero, one, zero) }
                    >
                    stay = Identity(on)
                }>
            },
            else_branch = no () => (float[B] b) { w = NonZero(x) g = Squeeze(w, zero)
                b = Gather(x, g) }
        >
    }
    """
    flags = [np.array(f) for f in (True, False)]
    agree(
        text, target, *((x, c, np.array(n)) for x in (X, X - 9) for c in flags for n in (0, 2, 9))
    )


def test_rows_are_stacked_where_they_are() -> None:
    """One loop, no copy of all rows in every step: its body writes a row of what is returned."""
    loop = LOOPS["a range of what the step before found"]
    text = f"agraph (float[N] x, int64 n) => (float[M] y, float[R, 1] rows) {{ ONES {loop} }}"
    _, model = read(text.replace("ONES", ONES))
    (loop,) = (n for n in model.graph.order() if n.op == "while")
    assert loop.attrs["num_rows"] == 1
    assert not any(n.op.startswith("scatter") for n in loop.attrs["body"].order())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "fill",
    [
        "f{0} = Neg({0}) p{0} = Mod(f{0}, k)",
        "f{0} = Mod({0}, k) g{0} = Sub(k, f{0}) p{0} = Mod(g{0}, k)",
    ],
)
@pytest.mark.parametrize("k", [2, 4, 7])
def test_windows_of_an_image_that_is_filled_up_to_whole_ones(
    k: int, fill: str, target: str
) -> None:
    """As Swin cuts an image into windows, and joins them again."""
    text = f"""
    agraph (float[B, H, W] x) => (float[B, H, W] y) {{
        zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> () three = Constant <value_ints = [3]> ()
        k = Constant <value_ints = [{k}]> ()
        dims = Shape(x) b = Slice(dims, zero, one) h = Slice(dims, one, two)
        w = Slice(dims, two, three)
        {fill.format("h")} {fill.format("w")}
        ends = Concat <axis = 0> (zero, zero, zero, zero, ph, pw)
        whole = Pad(x, ends) hp = Add(h, ph) wp = Add(w, pw)
        rows = Div(hp, k) columns = Div(wp, k)
        cut = Concat <axis = 0> (b, rows, k, columns, k)
        tiles = Reshape(whole, cut)
        windows = Transpose <perm = [0, 1, 3, 2, 4]> (tiles)
        least = ReduceMin <keepdims = 1> (windows, three)
        apart = Sub(windows, least)
        back = Transpose <perm = [0, 1, 3, 2, 4]> (apart)
        joined = Concat <axis = 0> (b, hp, wp)
        image = Reshape(back, joined)
        size = Concat <axis = 0> (h, w)
        start = Concat <axis = 0> (zero, zero) axes = Concat <axis = 0> (one, two)
        y = Slice(image, start, size, axes)
    }}
    """
    rng = np.random.default_rng(k)
    images = [rng.normal(size=(2, h, w)).astype(np.float32) for h, w in ((5, 9), (8, 7), (1, 14))]
    agree(text, target, *((x,) for x in images))
