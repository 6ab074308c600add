"""String tensors, maps, and what the host does between programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import rlx
from rlx.frontends.onnx.model import from_proto
from tests.onnx.nodes import one_node

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3, "com.microsoft" : 1]>\n'
Array = np.ndarray[Any, Any]


def compiled(text: str, **options: Any) -> Any:
    return rlx.compile(from_proto(parser.parse_model(HEAD + text)), **options)


def texts(*values: str) -> Array:
    return np.array(values, object)


def host_steps(exe: Any) -> list[str]:
    return [d.where[0] for d in exe.decisions if d.what == "host_step"]


# -- what moves strings ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_what_moves_strings_is_one_native_program(target: str) -> None:
    exe = compiled(
        """g (string[n] a, string[m] b, bool[n] k) => (string[p] y, string[q] z, bool[n] e) {
            s = Concat <axis = 0> (a, b)
            i = Constant <value_ints = [0, 3]> ()
            y = Gather (s, i)
            z = Compress <axis = 0> (a, k)
            x = Constant <value_strings = ["x"]> ()
            e = Equal (a, x)
        }""",
        target=target,
    )
    assert host_steps(exe) == []
    assert len(exe.programs) == 1
    for a in (["x", "y"], ["y", "x", "ü"]):
        keep = np.array([t == "y" for t in a])
        y, z, e = exe(texts(*a), texts("1", "ü2", "3"), keep)
        assert y.dtype == object
        assert y.tolist() == [a[0], [*a, "1", "ü2", "3"][3]]
        assert z.tolist() == ["y"]
        assert e.tolist() == [t == "x" for t in a]


def test_padding_is_with_empty_strings_and_fill_with_any() -> None:
    exe = compiled(
        """g (string[n] a, int64[1] d) => (string[m] y, string[k] f) {
            p = Constant <value_ints = [1, 2]> ()
            y = Pad (a, p)
            f = ConstantOfShape <value = string[1] {"z"}> (d)
        }"""
    )
    y, f = exe(texts("a"), np.array([2]))
    assert y.tolist() == ["", "a", "", ""]
    assert f.tolist() == ["z", "z"]


def test_strings_of_any_kind_of_array_are_taken() -> None:
    exe = compiled("g (string[n] a) => (string[n] y) { y = Identity (a) }")
    for given in (np.array(["a", "bc"]), np.array([b"a", b"bc"]), texts("a", "bc"), ["a", "bc"]):
        assert exe(given).tolist() == ["a", "bc"]
    assert exe(np.array([], object)).shape == (0,)


@pytest.mark.parametrize("given", [np.array([1.0]), np.array([None], object), texts("a", "b")[0]])
def test_a_number_where_strings_are_expected_is_an_error(given: Any) -> None:
    exe = compiled("g (string[n] a) => (string[n] y) { y = Identity (a) }")
    with pytest.raises(rlx.Error, match=r"input 'a'|\[n\]"):
        exe(given)


def test_numbers_and_strings_do_not_mix() -> None:
    for body in ("y = Where (c, a, b)", "y = StringConcat (a, b)", "y = Add (a, a)"):
        with pytest.raises(rlx.Error, match=f"ONNX {body[4:].split()[0]} 'y'"):
            compiled(f"g (string[n] a, float[n] b, bool[n] c) => (string[n] y) {{ {body} }}")


# -- what looks inside ----------------------------------------------------------------------------


def test_host_steps_between_programs() -> None:
    exe = compiled(
        """g (string[n] a) => (float[n] f, string[n] s, string[n, k] parts, int64[n] count) {
            x = Cast <to = 1> (a)
            f = Mul (x, x)
            s = Cast <to = 8> (f)
            parts, count = StringSplit <delimiter = "."> (s)
        }"""
    )
    assert host_steps(exe) == ["x", "s", "parts"]
    f, s, parts, count = exe(texts("1.5", "2", "1e3"))
    assert f.tolist() == [2.25, 4.0, 1e6]
    assert s.tolist() == ["2.25", "4", "1000000"]
    assert parts.tolist() == [["2", "25"], ["4", ""], ["1000000", ""]]
    assert count.tolist() == [2, 1, 1]
    with pytest.raises(rlx.Error, match="ONNX Cast 'x': 'abc' is no f32"):
        exe(texts("abc"))
    assert "host_step" in str(exe.explain(texts_inputs()))


def texts_inputs() -> list[Array]:
    return [texts("1", "2")]


def test_what_is_known_is_done_while_compiling() -> None:
    exe = compiled(
        """g (string[n] a) => (string[n] y, float[2] f) {
            u = Constant <value_strings = ["a", "b"]> ()
            v = Constant <value_string = "-"> ()
            w = StringConcat (u, v)
            i = Constant <value_int = 1> ()
            t = Gather (w, i)
            y = Expand (t, s)
            s = Shape (a)
            d = Constant <value_strings = ["1", "2.5"]> ()
            f = Cast <to = 1> (d)
        }"""
    )
    assert host_steps(exe) == []
    y, f = exe(texts("p", "q", "r"))
    assert y.tolist() == ["b-"] * 3
    assert f.tolist() == [1.0, 2.5]


def test_branches_and_loops_make_strings() -> None:
    exe = compiled(
        """g (string[n] a, string[n] b, bool c) => (string[n] y) {
            y = If (c) <
                then_branch = t () => (string[n] p) { p = StringConcat (a, b) },
                else_branch = e () => (string[n] q) { q = Identity (b) }
            >
        }"""
    )
    for n in (1, 3):
        a, b = texts(*"xyz"[:n]), texts(*"123"[:n])
        assert exe(a, b, np.array(True)).tolist() == ["x1", "y2", "z3"][:n]
        assert exe(a, b, np.array(False)).tolist() == ["1", "2", "3"][:n]
    exe = compiled(
        """g (string[n] a, string[n] b) => (string[n] y, string[m, n] rows) {
            k = Constant <value_int = 3> ()
            t = Constant <value = bool {1}> ()
            y, rows = Loop (k, t, a) <
                body = l (int64 i, bool c, string[n] s) => (bool d, string[n] z, string[n] w) {
                    d = Identity (c)
                    z = StringConcat (s, b)
                    w = Identity (z)
                }
            >
        }"""
    )
    y, rows = exe(texts("x", "y"), texts("1", "2"))
    assert y.tolist() == ["x111", "y222"]
    assert rows.tolist() == [["x1", "y2"], ["x11", "y22"], ["x111", "y222"]]


def test_sequences_of_strings() -> None:
    exe = compiled(
        """g (string[n] a) => (seq(string) parts, string[m] joined, int64 count) {
            parts = SplitToSequence <axis = 0> (a)
            joined = ConcatFromSequence <axis = 0> (parts)
            count = SequenceLength (parts)
        }"""
    )
    parts, joined, count = exe(texts("a", "b", "c"))
    assert [p.tolist() for p in parts] == [["a"], ["b"], ["c"]]
    assert joined.tolist() == ["a", "b", "c"]
    assert count == 3


def test_strings_in_order() -> None:
    """By code point, as onnxruntime; or as they come."""
    given = texts("b", "a", "b", "ü", "Z")
    for is_sorted, values, first in ((1, "Zabü", [4, 1, 0, 3]), (0, "baüZ", [0, 1, 3, 4])):
        model = one_node("Unique", [np.zeros(5)], opset=11, outputs=4, sorted=is_sorted)
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
        made, places, inverse, counts = rlx.compile(from_proto(model))(given)
        assert made.tolist() == list(values)
        assert places.tolist() == first
        assert made[inverse].tolist() == given.tolist()
        assert counts.tolist() == [given.tolist().count(t) for t in values]


@pytest.mark.parametrize(
    ("attrs", "wanted"),
    [
        ('separators = [" "], mark = 0', [["Hi,", "you"], ["a", "b"], ["#", "#"]]),
        ('separators = [" ", ","], mark = 1',
         [["\x02", "Hi", "you", "\x03"], ["\x02", "a", "b", "\x03"], ["\x02", "\x03", "#", "#"]]),
        ('tokenexp = "[a-zA-Z]+", mark = 0', [["Hi", "you"], ["a", "b"], ["#", "#"]]),
        ('tokenexp = "[a-zA-Z]+", mark = 0, mincharnum = 2',
         [["Hi", "you"], ["#", "#"], ["#", "#"]]),
    ],
)  # fmt: skip
def test_tokens_as_onnxruntime_has_them(attrs: str, wanted: list[list[str]]) -> None:
    least = "" if "mincharnum" in attrs else ", mincharnum = 1"
    exe = compiled(
        f"""g (string[n] a) => (string[n, k] y) {{
            y = com.microsoft.Tokenizer <{attrs}{least}, pad_value = "#"> (a)
        }}"""
    )
    assert exe(texts("Hi, you", "a  b", "")).tolist() == wanted


def test_stop_words_leave_at_least_an_empty_string() -> None:
    exe = compiled(
        """g (string[n] a) => (string[m] y) {
            y = StringNormalizer <case_change_action = "UPPER", stopwords = ["Monday"]> (a)
        }"""
    )
    assert exe(texts("monday", "tuesday")).tolist() == ["TUESDAY"]
    assert exe(texts("MONDAY")).tolist() == [""]


def test_n_grams_of_strings_of_any_number() -> None:
    """Two of "a b", two apart; rows shorter than an n-gram have none."""
    exe = compiled(
        """g (string[r, n] a) => (float[r, 3] y) {
            y = TfIdfVectorizer <
                mode = "TF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 1,
                ngram_counts = [0, 1], ngram_indexes = [2, 0, 1],
                pool_strings = ["a", "a", "b", "b", "c"]
            > (a)
        }"""
    )
    rows = np.array([["a", "x", "b", "a", "b", "c"], ["c", "b", "a", "z", "z", "a"]], object)
    assert exe(rows).tolist() == [[2.0, 1.0, 2.0], [0.0, 0.0, 2.0]]
    assert exe(rows[:, :1]).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


# -- maps -----------------------------------------------------------------------------------------


def of_maps(op: str, kind: Any, result: int, **attrs: Any) -> Any:
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    value = helper.make_tensor_type_proto(kind[1], [])
    given = helper.make_value_info("x", helper.make_map_type_proto(kind[0], value))
    made = helper.make_tensor_value_info("y", result, [1, None])
    graph = helper.make_graph([node], "g", [given], [made])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return rlx.compile(from_proto(helper.make_model(graph, opset_imports=opsets)))


STRING, FLOAT, INT = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64


def test_dicts_as_rows() -> None:
    """What onnxruntime gives: keys of no word are left out."""
    exe = of_maps("DictVectorizer", (STRING, FLOAT), FLOAT, string_vocabulary=["a", "b", "c"])
    assert exe({"b": 2.5, "z": 9.0, "a": 1.0}).tolist() == [[1.0, 2.5, 0.0]]
    assert exe({}).tolist() == [[0.0, 0.0, 0.0]]
    exe = of_maps("DictVectorizer", (INT, STRING), STRING, int64_vocabulary=[10, 5, 7])
    assert exe({7: "u", 5: "v"}).tolist() == [["", "v", "u"]]
    exe = of_maps("CastMap", (INT, FLOAT), INT, cast_to="TO_INT64")
    assert exe({7: 2.5, 5: -1.0}).tolist() == [[-1, 2]]
    exe = of_maps("CastMap", (INT, STRING), FLOAT, cast_to="TO_FLOAT")
    assert exe({7: "2.5", 5: "-1"}).tolist() == [[-1.0, 2.5]]
    exe = of_maps("CastMap", (INT, FLOAT), FLOAT, map_form="SPARSE", max_map=6)
    assert exe({3: 2.5, 5: -1.0, 9: 4.0}).tolist() == [[0.0, 0.0, 0.0, 2.5, 0.0, -1.0]]


@pytest.mark.parametrize("given", [[1.0], {"a": "b"}, {3: 1.0}, {"a": [1.0, 2.0]}])
def test_what_is_no_such_map_is_an_error(given: Any) -> None:
    exe = of_maps("DictVectorizer", (STRING, FLOAT), FLOAT, string_vocabulary=["a"])
    with pytest.raises(rlx.Error, match="input 'x'"):
        exe(given)


def test_categories_both_ways() -> None:
    """What is no category has the default."""
    pairs = 'cats_int64s = [4, 9], cats_strings = ["d", "ü"]'
    exe = compiled(
        f"""g (string[n] a, int64[n] b) => (int64[n] y, string[n] z) {{
            y = ai.onnx.ml.CategoryMapper <{pairs}> (a)
            z = ai.onnx.ml.CategoryMapper <{pairs}, default_string = "?"> (b)
        }}"""
    )
    y, z = exe(texts("ü", "d", "z"), np.array([9, 1, 4]))
    assert y.tolist() == [9, 4, -1]
    assert z.tolist() == ["ü", "?", "d"]


def test_labels_by_large_tables() -> None:
    """Keys that are close are one load, others are found by halving: both are dicts."""
    rng = np.random.default_rng(0)
    for keys in (rng.permutation(3000), rng.choice(1 << 40, 3000, replace=False)):
        pairs = {int(k): f"w{i % 700}" for i, k in enumerate(keys)}
        node = helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=list(pairs),
            values_strings=list(pairs.values()), default_string="none",
        )  # fmt: skip
        info = helper.make_tensor_value_info
        graph = helper.make_graph([node], "g", [info("x", INT, ["n"])], [info("y", STRING, ["n"])])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 2)]
        exe = rlx.compile(from_proto(helper.make_model(graph, opset_imports=opsets)))
        given = np.concatenate([keys[:50], keys[:50] + 1, [-5, 2**62]]).astype(np.int64)
        assert exe(given).tolist() == [pairs.get(int(k), "none") for k in given]
