"""A small sample of the differential generator, against ONNX's own evaluator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.onnx.differential.campaign import Job, work
from tests.onnx.differential.drawing import ML, Node, Operand, drawn, opsets, pages
from tests.onnx.differential.judging import judge
from tests.onnx.differential.running import Ran, Refused, by_onnxruntime

FAMILIES = sorted(set(pages().family.values()))
NO_PEER = Refused("absent", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_draws_of_every_operator(family: str) -> None:
    """Draws of the newest and of another version on the reference target."""
    for key in sorted(k for k, f in pages().family.items() if f == family):
        job = Job(key, 0, 2, seed=1, targets=("reference",), has_peer=False)
        found = [j for j in work(job) if j.verdict.is_finding and j.verdict.word != "undecided"]
        assert not found, found


def test_a_seed_gives_the_same_draw() -> None:
    one, other = (drawn(("", "Slice"), 20, 3) for _ in range(2))
    assert [o and o.array.tolist() for o in one.operands] == [
        o and o.array.tolist() for o in other.operands
    ]


def test_all_versions_of_an_operator_are_drawn() -> None:
    assert opsets("", "Slice") == [6, 10, 11, 13, 26, 9, 12, 28]


def of(value: float) -> Ran:
    return Ran((np.array([value], np.float32),))


NODE = Node("Abs", "", 13, (Operand(np.ones(1, np.float32)),), {})


@pytest.mark.parametrize(
    ("ours", "reference", "peer", "word"),
    [
        (of(1.0), of(1.0), of(1.0), "same"),
        (of(1.0 + 2e-7), of(1.0), NO_PEER, "same"),
        (of(1.1), of(1.0), of(1.0), "wrong"),
        (of(np.nan), of(1.0), NO_PEER, "wrong"),
        (of(np.inf), of(1.0), NO_PEER, "wrong"),
        (of(1.0), of(1.0), of(2.0), "undecided"),
        (Refused("refused", ""), of(1.0), of(1.0), "refused"),
        (Refused("refused", ""), of(1.0), Refused("rejects", ""), "invalid"),
        (Refused("crashed", ""), of(1.0), Refused("rejects", ""), "crashed"),
    ],
)
def test_rlx_must_give_what_the_evaluators_agree_on(
    ours: Ran | Refused, reference: Ran, peer: Ran | Refused, word: str
) -> None:
    assert judge(NODE, ours, reference, peer).word == word


def test_a_row_decides_between_the_evaluators() -> None:
    """A row of this node says that onnx.reference is right."""
    node = Node("Normalizer", ML, 1, NODE.operands, {"norm": "MAX"})
    assert judge(node, of(1.0), of(1.0), of(3.0)).word == "explained"
    assert judge(node, of(3.0), of(1.0), of(3.0)).word == "wrong"
    assert judge(node, of(1.0), of(1.0), of(1.0)).word == "same"
    assert judge(node, of(1.0), NO_PEER, of(3.0)).word == "unchecked"


def test_the_formula_of_a_row_decides_against_both() -> None:
    x = np.array([[[np.nan, 1.0]]], np.float32)
    node = Node("MaxPool", "", 12, (Operand(x),), {"kernel_shape": [2]})
    nan, one = (Ran((np.full((1, 1, 1), v, np.float32),)) for v in (np.nan, 1.0))
    assert judge(node, nan, one, one).word == "explained"
    assert judge(node, nan, nan, nan).word == "same"
    assert judge(node, one, one, one).word == "wrong"


def test_a_formula_speaks_where_the_evaluator_of_a_row_is_silent() -> None:
    arrays = np.ones((2, 1, 1), np.float32), *[np.ones((1, 1, 1), np.float32)] * 2
    node = Node("RNN", "", 22, tuple(map(Operand, arrays)), {"hidden_size": 1})
    first = np.tanh(1.0)
    steps = np.array([first, np.tanh(1 + first)], np.float32).reshape(2, 1, 1, 1)
    assert judge(node, Ran((steps,)), NO_PEER, NO_PEER).word == "explained"
    assert judge(node, Ran((steps + 1,)), NO_PEER, NO_PEER).word == "wrong"


def test_operators_of_opsets_that_onnxruntime_lacks_run_there_in_an_older_one() -> None:
    pytest.importorskip("onnxruntime", reason="it is the evaluator that is asked")
    assert by_onnxruntime(replace(NODE, opset=28)) == of(1.0)
