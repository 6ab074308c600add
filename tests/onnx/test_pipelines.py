"""Pipelines of scikit-learn as skl2onnx writes them: strings in, labels and maps of scores out.

The models were trained once; labels and probabilities are what scikit-learn itself predicted. A
probability may differ by some roundings of f32 sums of fewer than 30 terms, of size 1: 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.frontends.onnx.model import from_proto

ML, ATOL = "ai.onnx.ml", 1e-6
STRING, FLOAT = TensorProto.STRING, TensorProto.FLOAT


def ml(op: str, given: str, made: str, **attrs: Any) -> Any:
    return helper.make_node(op, given.split(), made.split(), domain=ML, **attrs)


def classified(labels: list[str], coefficients: list[float], intercepts: list[float]) -> list[Any]:
    """A linear classifier of `features`, its label, and a map of scores for each row."""
    return [
        ml("LinearClassifier", "features", "label scores", classlabels_strings=labels,
           coefficients=coefficients, intercepts=intercepts, multi_class=1,
           post_transform="SOFTMAX"),
        helper.make_node("Identity", ["label"], ["output_label"]),
        ml("Normalizer", "scores", "probabilities", norm="L1"),
        ml("ZipMap", "probabilities", "output_probability", classlabels_strings=labels),
    ]  # fmt: skip


def compiled(inputs: list[Any], nodes: list[Any], weights: dict[str, Any]) -> Any:
    value = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("output_label", STRING, [None]),
        helper.make_value_info("output_probability", helper.make_sequence_type_proto(value)),
    ]
    held = [numpy_helper.from_array(np.array(w), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "pipeline", inputs, outputs, held)
    domains = {"": 16, ML: 1, "com.microsoft": 1}
    opsets = [helper.make_opsetid(name, version) for name, version in domains.items()]
    return rlx.compile(from_proto(helper.make_model(graph, opset_imports=opsets)))


@pytest.fixture(scope="module")
def columns() -> Any:
    """OneHotEncoder of a column of strings, StandardScaler of one of numbers."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["color", "first"], ["color01"], axis=1),
        ml("Scaler", "a", "scaled", offset=[0.22535889], scale=[0.9873599]),
        ml("OneHotEncoder", "color01", "hot", cats_strings=["blue", "green", "red"], zeros=1),
        helper.make_node("Reshape", ["hot", "rows"], ["flat"]),
        helper.make_node("Concat", ["flat", "scaled"], ["features"], axis=1),
        *classified(
            ["maybe", "no", "yes"],
            [0.43050992, 0.32711366, -0.7508294, 0.091513425, 0.3184328, 0.12879182, -0.44853723,
             -2.2244575, -0.74894273, -0.45590547, 1.1993667, 2.132944],
            [0.10630106, -1.4212389, 1.3149378],
        ),
    ]  # fmt: skip
    inputs = [info("color", STRING, [None, 1]), info("a", FLOAT, [None, 1])]
    return compiled(inputs, nodes, {"first": [0], "rows": [-1, 3]})


def test_columns_of_strings_and_numbers(columns: Any) -> None:
    """One program for any number of rows, though the file does not say that both have the same."""
    color = np.array([["red"], ["purple"], ["blue"]], object)
    a = np.array([[-1], [0.25], [2]], np.float32)
    wanted = [
        [0.12769783937987636, 0.6179718400280484, 0.25433032059207517],
        [0.21165706044552068, 0.04342696577285761, 0.7449159737816217],
        [0.026434660366155577, 8.86546552155457e-05, 0.9734766849786289],
    ]
    for n in (3, 1):
        made = columns.run({"color": color[:n], "a": a[:n]})
        assert made["output_label"].tolist() == ["no", "yes", "yes"][:n]
        scores = made["output_probability"]
        assert [list(row) for row in scores] == [["maybe", "no", "yes"]] * n
        np.testing.assert_allclose([[*row.values()] for row in scores], wanted[:n], atol=ATOL)
    assert len(columns.programs) == 1


def test_rows_that_do_not_match_are_an_error(columns: Any) -> None:
    with pytest.raises(rlx.Error):
        columns.run({"color": np.array([["red"]] * 2, object), "a": np.zeros((3, 1), np.float32)})


def test_a_missing_column_is_an_error(columns: Any) -> None:
    with pytest.raises(rlx.Error, match=r"no value for a\. Inputs: color, a"):
        columns.run({"color": np.array([["red"]], object)})


TFIDF: dict[str, Any] = {
    "pool": [
        "dog", "fox", "jumps", "lazy", "quick", "the", "fox", "jumps", "jumps", "the", "lazy",
        "dog", "quick", "fox", "the", "fox", "the", "lazy", "the", "quick",
    ],
    "indexes": [0, 1, 3, 5, 7, 9, 2, 4, 6, 8, 10, 11, 12],
    "idf": [1.5108256, 1.5108256, 1.9162908, 1.5108256, 1.9162908, 1.5108256, 1.5108256, 1.9162908,
            1.9162908, 1.2231436, 1.9162908, 1.9162908, 1.9162908],
    "for d": [0.95570904, -0.84638363, -0.5731443, -0.037771437, 0.525236, 0.95570904, 0.95570904,
              -0.500386, -0.500386, -0.34996912, -0.5731443, 0.525236, -0.500386],
    "labels": ["f", "d", "f", "f"],
    "probabilities": [
        [0.19018668966584007, 0.8098133103341599], [0.7976559313455839, 0.20234406865441615],
        [0.4529004195992087, 0.5470995804007913], [0.4529004195992087, 0.5470995804007913],
    ],
}  # fmt: skip


def test_weighted_counts_of_words() -> None:
    """TfidfVectorizer of words and pairs of them, and a linear model."""
    nodes = [
        helper.make_node("Reshape", ["text", "row"], ["flat"]),
        helper.make_node("StringNormalizer", ["flat"], ["lower"], case_change_action="LOWER",
                         is_case_sensitive=0),
        helper.make_node("Tokenizer", ["lower"], ["tokens"], domain="com.microsoft", mark=0,
                         mincharnum=1, pad_value="#", tokenexp="[a-zA-Z0-9_]+"),
        helper.make_node("Flatten", ["tokens"], ["rows"]),
        helper.make_node("TfIdfVectorizer", ["rows"], ["counts"], mode="TF", min_gram_length=1,
                         max_gram_length=2, max_skip_count=0, ngram_counts=[0, 6],
                         ngram_indexes=TFIDF["indexes"], pool_strings=TFIDF["pool"],
                         weights=[1.0] * len(TFIDF["indexes"])),
        helper.make_node("Mul", ["counts", "idf"], ["weighted"]),
        ml("Normalizer", "weighted", "features", norm="L2"),
        ml("LinearClassifier", "features", "label scores", classlabels_strings=["d", "f"],
           coefficients=[*TFIDF["for d"], *(-c for c in TFIDF["for d"])],
           intercepts=[-0.18895856, 0.18895856], multi_class=0, post_transform="LOGISTIC"),
        helper.make_node("Identity", ["label"], ["output_label"]),
        ml("ZipMap", "scores", "output_probability", classlabels_strings=["d", "f"]),
    ]  # fmt: skip
    inputs = [helper.make_tensor_value_info("text", STRING, [None])]
    exe = compiled(inputs, nodes, {"row": [-1], "idf": np.float32(TFIDF["idf"])})
    given = ["The quick fox jumps", "lazy, lazy dog", "nothing known", ""]
    made = exe.run({"text": np.array(given, object)})
    assert made["output_label"].tolist() == TFIDF["labels"]
    scores = [[*row.values()] for row in made["output_probability"]]
    np.testing.assert_allclose(scores, TFIDF["probabilities"], atol=ATOL)
    assert [d.where for d in exe.decisions if d.what == "host_step"] == [("lower",), ("tokens",)]
