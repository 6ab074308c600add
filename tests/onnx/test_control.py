"""Branches, loops, functions and sequences, against ONNX's own evaluator or what is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.core.errors import Error, GraphError
from rlx.frontends.onnx.model import Model, from_proto

HEAD = '<ir_version: 10, opset_import: ["" : {opset}, "own" : 1]>\n'
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


TRUE = "go = Constant <value = bool {1}> ()"
"""ONNX's evaluator does not begin a loop whose condition is left out."""


def read(text: str, opset: int = 21) -> tuple[Any, Model]:
    head = HEAD.replace("{opset}", str(opset))
    proto = parser.parse_model(head + text.replace("TRUE", TRUE))
    return proto, from_proto(proto)


def agree(text: str, *calls: tuple[Any, ...], opset: int = 21) -> Model:
    """What rlx gives for each call is what ONNX's evaluator gives; one program serves them all."""
    proto, model = read(text, opset)
    run, evaluator = rlx.compile(model), ReferenceEvaluator(proto)
    names = [i.name for i in proto.graph.input]
    for inputs in calls:
        expected = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        same(run(*inputs), expected)
    return model


def same(found: Any, expected: list[Any]) -> None:
    for a, b in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        if isinstance(b, list):
            same(tuple(a), b)
            continue
        assert a.shape == np.shape(b)
        assert a.dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)  # a few roundings of f32


# -- If -------------------------------------------------------------------------------------------

BRANCH = """
agraph (float[N] x, bool c) => (float[M] y) {
    y = If (c) <
        then_branch = yes () => (float[N] a) { a = Mul(x, x) },
        else_branch = no () => (float[P] b) { %s }
    >
}
"""


def test_a_branch_runs_one_side() -> None:
    model = agree(BRANCH % "b = Neg(x)", (X[0], np.array(True)), (X[1], np.array(False)))
    assert not model.is_static
    assert any(n.op == "if" for n in model.graph.order())


def test_a_branch_whose_sides_differ_in_size_is_cut_to_what_ran() -> None:
    longer = "b = Concat <axis = 0> (x, x)"
    model = agree(BRANCH % longer, (X[0], np.array(True)), (X[0], np.array(False)))
    assert not model.is_static


def test_a_condition_that_is_known_reads_one_side() -> None:
    text = """
    agraph (float[2, 3] x) => (float[3] y) {
        s = Shape(x)
        two = Constant <value = int64[1] {2}> ()
        zero = Constant <value = int64[1] {0}> ()
        d = Gather(s, zero)
        c = Equal(d, two)
        y = If (c) <
            then_branch = yes () => (float[3] a) { a = ReduceSum <keepdims = 0> (x, zero) },
            else_branch = no () => (float[3] b) { b = NoSuchOperator(x) }
        >
    }
    """
    _, model = read(text)
    assert not any(n.op == "if" for n in model.graph.order())
    np.testing.assert_array_equal(rlx.compile(model)(X), X.sum(0))


def test_sides_of_other_ranks_make_the_condition_static() -> None:
    other = "z = Constant <value_ints = [0]> () b = Unsqueeze(x, z)"
    model = agree(BRANCH % other, (X[0], np.array(True)), (X[0], np.array(False)))
    assert model.static == ("c",)
    assert "ranks" in model.decisions[0].reason


def test_a_side_that_does_not_fit_fails_only_where_it_is_taken() -> None:
    wrong = "w = Constant <value_floats = [1.0, 2.0]> () b = Add(x, w)"
    text = (BRANCH % wrong).replace("float[N] x", "float[3] x")
    _, model = read(text)
    run = rlx.compile(model)
    np.testing.assert_array_equal(run(X[0], np.array(True)), X[0] * X[0])
    with pytest.raises(Error, match="else_branch does not fit"):
        run(X[0], np.array(False))


def test_branches_in_branches_use_values_from_all_around() -> None:
    text = """
    agraph (float[3] x, bool c, bool d) => (float[3] y) {
        k = Constant <value_float = 3.0> ()
        u = Mul(x, k)
        y = If (c) <
            then_branch = yes () => (float[3] a) {
                v = Add(u, x)
                a = If (d) <
                    then_branch = both () => (float[3] p) { p = Sub(v, u) },
                    else_branch = one () => (float[3] q) { q = Mul(v, k) }
                >
            },
            else_branch = no () => (float[3] b) { b = Identity(u) }
        >
    }
    """
    flags = [np.array(f) for f in (True, False)]
    agree(text, *((X[0], c, d) for c in flags for d in flags))


# -- Loop -----------------------------------------------------------------------------------------

LOOP = """
agraph (int64 n, bool go, float[3] x, float limit) => (float[3] last, float[r, 3] rows) {
    last, rows = Loop (%s, go, x) <body = step (int64 i, bool c, float[3] v)
        => (bool on, float[3] w, float[3] row) {
        k = CastLike(i, limit)
        w = Add(v, k)
        total = ReduceSum <keepdims = 0> (w)
        on = %s
        row = Mul(w, x)
    }>
}
"""
CALL = (np.array(4), np.array(True), X[0], np.array(3, np.float32))


def bounded(steps: int, goes_on: str) -> str:
    """The loop with at most so many steps, which the model says."""
    known = f"{{ m = Constant <value_int = {steps}> ()\n last"
    return (LOOP % ("m", goes_on)).replace("{\n    last", known, 1)


def test_a_loop_of_a_known_length_is_a_scan() -> None:
    text = bounded(5, "Identity(c)").replace("bool go, ", "").replace("{ m", f"{{ {TRUE} m")
    model = agree(text, (CALL[0], *CALL[2:]))
    left_out = rlx.compile(read(text.replace("m, go, x", "m, , x"))[1])
    last, rows = left_out(CALL[0], *CALL[2:])
    np.testing.assert_array_equal(last, X[0] + 10)
    assert rows.shape == (5, 3)
    assert any(n.op == "scan" for n in model.graph.order())
    assert not model.is_static


@pytest.mark.parametrize("limit", [-100.0, 3.0, 20.0, 1e9])
def test_a_loop_stops_where_its_data_says(limit: float) -> None:
    model = agree(bounded(7, "Less(total, limit)"), (*CALL[:3], np.array(limit, np.float32)))
    assert any(n.op == "while" for n in model.graph.order())
    assert not model.is_static


def test_a_loop_that_does_not_begin_gives_what_it_was_given() -> None:
    _, model = read(bounded(7, "Less(total, limit)"))
    last, rows = rlx.compile(model)(CALL[0], np.array(False), *CALL[2:])
    np.testing.assert_array_equal(last, X[0])
    assert rows.shape == (0, 3)


def test_a_length_that_is_an_input_is_one_program_also_where_rows_are_stacked() -> None:
    model = agree(LOOP % ("n", "Identity(c)"), CALL, (np.array(2), *CALL[1:]))
    assert not model.is_static


def test_a_length_that_is_data_needs_no_bound_without_rows() -> None:
    text = """
    agraph (int64[k] n, float x) => (float y) {
        TRUE
        most = ReduceMax <keepdims = 0> (n)
        y = Loop (most, go, x) <body = step (int64 i, bool c, float v) => (bool on, float w) {
            on = Identity(c)
            w = Add(v, v)
        }>
    }
    """
    one = np.array(1, np.float32)
    model = agree(text, (np.array([3, 5, 1]), one), (np.array([2]), one), (np.array([0]), one))
    assert not model.is_static


def test_a_loop_as_long_as_an_input_is_one_program() -> None:
    text = """
    agraph (float[N, 3] x) => (float[3] total, float[N, 1] rows) {
        TRUE
        zero = Constant <value_int = 0> ()
        s = Shape(x)
        n = Gather(s, zero)
        z = Constant <value_floats = [0.0, 0.0, 0.0]> ()
        total, rows = Loop (n, go, z) <body = step (int64 i, bool c, float[3] v)
            => (bool on, float[3] w, float[1] r) {
            on = Identity(c)
            row = Gather(x, i)
            w = Add(v, row)
            r = ReduceSum <keepdims = 1> (w)
        }>
    }
    """
    model = agree(text, (X,), (np.ones((5, 3), np.float32),))
    assert not model.is_static


def test_a_value_that_grows_is_written_out() -> None:
    text = """
    agraph (float[2] x) => (float[n] y) {
        TRUE
        m = Constant <value_int = 3> ()
        y = Loop (m, go, x) <body = step (int64 i, bool c, float[k] v) => (bool on, float[l] w) {
            on = Identity(c)
            w = Concat <axis = 0> (v, x)
        }>
    }
    """
    model = agree(text, (X[0, :2],))
    assert not any(n.op in ("scan", "while") for n in model.graph.order())


def test_rows_without_a_bound_are_as_many_as_there_are() -> None:
    _, model = read(LOOP % ("", "Less(total, limit)"))
    last, rows = rlx.compile(model)(*CALL)
    expected = [X[0]]
    while len(expected) == 1 or expected[-1].sum() < CALL[3]:
        expected.append(expected[-1] + (len(expected) - 1))
    np.testing.assert_array_equal(last, expected[-1])
    np.testing.assert_array_equal(rows, np.array(expected[1:]) * X[0])


# -- Scan -----------------------------------------------------------------------------------------

SCAN = """
agraph (float[2] s, float[a, b, 2] x) => (float[2] e, float[c, d, 2] y) {
    e, y = Scan <num_scan_inputs = 1, %s, body = step (float[2] v, float[2, 2] u)
        => (float[2] w, float[2, 2] r) {
        part = ReduceSum <axes = [0], keepdims = 0> (u)
        w = Add(v, part)
        r = Add(u, v)
    }> (s, x)
}
"""


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize(
    ("how", "axis"),
    [
        ("scan_input_directions = [0]", 0),
        ("scan_input_directions = [1]", 0),
        ("scan_output_directions = [1]", 0),
        ("scan_input_axes = [1]", 1),
        ("scan_input_axes = [1], scan_output_axes = [1]", 1),
    ],
)
def test_scan_goes_along_any_axis_and_either_way(how: str, axis: int, opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 2) if axis else (4, 2, 2))
    dims = "2, n, 2" if axis else "n, 2, 2"
    text = (SCAN % how).replace("a, b, 2", dims)
    s = np.array([1, -1], np.float32)
    found = rlx.compile(read(text, opset)[1])(s, x.astype(np.float32))
    same(found, scanned(s, x.astype(np.float32), how, axis))


def scanned(s: Any, x: Any, how: str, axis: int) -> list[Any]:
    rows, order = [], np.moveaxis(x, axis, 0)
    for u in order[::-1] if "input_directions = [1]" in how else order:
        rows.append(u + s)
        s = s + u.sum(0)
    made = np.stack(rows[::-1] if "output_directions = [1]" in how else rows)
    return [s, np.moveaxis(made, 0, 1) if "output_axes" in how else made]


def test_scan_of_opset_8_takes_each_of_a_batch() -> None:
    text = """
    agraph (float[B, 2] s, float[B, N, 2] x) => (float[B, 2] e, float[B, N, 2] y) {
        e, y = Scan <num_scan_inputs = 1, directions = [1],
            body = step (float[2] v, float[2] u) => (float[2] w, float[2] r) {
            w = Add(v, u)
            r = Identity(w)
        }> ("", s, x)
    }
    """.replace('"", s', ", s")
    x = np.random.default_rng(1).standard_normal((3, 4, 2)).astype(np.float32)
    s = x[:, 0]
    sums = s[:, None] + np.cumsum(x[:, ::-1], 1)
    same(rlx.compile(read(text, 8)[1])(s, x), [sums[:, -1], sums])


# -- functions ------------------------------------------------------------------------------------

FUNCTION = """
agraph (float[3] x) => (float[3] y, float[3] z) {
    y = own.twice <by = 3.0> (x)
    z = own.twice (x)
}
<domain: "own", opset_import: ["" : 21, "own" : 1]>
scaled <by> (a) => (b) {
    k = Constant <value_float: float = @by> ()
    b = Mul(a, k)
}
<domain: "own", opset_import: ["" : 21, "own" : 1]>
twice <by: float = 2.0> (a) => (b) {
    c = own.scaled <by: float = @by> (a)
    b = Add(c, a)
}
"""


def test_functions_take_attributes_and_have_defaults() -> None:
    found = rlx.compile(read(FUNCTION)[1])(X[0])
    same(found, [X[0] * 4, X[0] * 3])


def test_functions_that_call_themselves_are_refused() -> None:
    text = FUNCTION.replace("b = Mul(a, k)", "b = own.twice (a)")
    with pytest.raises(Error):
        read(text)


def test_constants_of_functions_and_sides_keep_apart() -> None:
    """Their names are the same, but each has its own numbers."""
    text = """
    agraph (float[65] x, bool c) => (float[65] y) {
        y = If (c) <
            then_branch = yes () => (float[65] a) { w = Constant <value = W> () a = Add(x, w) },
            else_branch = no () => (float[65] b) { w = Constant <value = W> () b = Add(x, w) }
        >
    }
    """
    ones, twos = (f"float[65] {{{','.join([n] * 65)}}}" for n in ("1", "2"))
    text = text.replace("W", ones, 1).replace("W", twos, 1)
    x = np.zeros(65, np.float32)
    agree(text, (x, np.array(True)), (x, np.array(False)))


# -- sequences ------------------------------------------------------------------------------------


def test_sequences_come_and_go_as_lists() -> None:
    text = """
    agraph (seq(float[N]) s, float[N] x) => (seq(float[N]) t, int64 n) {
        last = Constant <value_int = -1> ()
        u = SequenceInsert(s, x, last)
        t = SequenceErase(u, last)
        n = SequenceLength(t)
    }
    """
    made = rlx.compile(read(text)[1])([X[0], X[1], X[0]], X[1])
    same(made, [[X[0], X[1], X[1]], np.array(3)])


def test_a_loop_collects_a_sequence() -> None:
    text = """
    agraph (float[2, 3] x) => (float[n, 3] y) {
        m = Constant <value_int = 2> ()
        TRUE
        none = SequenceEmpty()
        s = Loop (m, go, none) <body = step (int64 i, bool c, seq(float[3]) t)
            => (bool on, seq(float[3]) u) {
            on = Identity(c)
            row = Gather(x, i)
            twice = Add(row, row)
            u = SequenceInsert(t, twice)
        }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
    }
    """
    agree(text, (X,))


def test_parts_of_a_size_that_calls_say() -> None:
    text = """
    agraph (float[N] x) => (float[M] y) {
        two = Constant <value_int = 2> ()
        s = SplitToSequence <axis = 0> (x, two)
        first = Constant <value_int = -1> ()
        y = SequenceAt(s, first)
    }
    """
    line = np.arange(5, dtype=np.float32)
    model = agree(text, (line,), (line[:4],))
    assert model.needs_shapes
    assert "how many parts" in model.decisions[0].reason


# -- sizes that a model allows --------------------------------------------------------------------


def test_a_named_dim_gets_the_range_that_the_model_allows() -> None:
    text = """
    agraph (float[B, L] x) => (float[B, L] y)
    <float[1, 8] rows = {0, 1, 2, 3, 4, 5, 6, 7}> {
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        s = Shape(x)
        l = Gather(s, one)
        part = Slice(rows, zero, l, one)
        y = Add(x, part)
    }
    """
    model = agree(text, (X,), (np.ones((1, 8), np.float32),), (np.ones((2, 1), np.float32),))
    assert not model.is_static
    # outside of that range the model is read for the sizes of the call, and says what does not fit
    with pytest.raises(GraphError, match="do not broadcast: 9 against 8"):
        rlx.compile(model)(np.ones((2, 9), np.float32))
