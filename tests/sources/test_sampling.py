"""Choosing from logits: against written-out definitions, and counts against probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

import rlx
from rlx import ops
from rlx.core.errors import GraphError

SOURCES = {
    "top_k_filter": "hand-checked: numpy.sort says which logits are among the k greatest",
    "top_p_filter": "hand-checked: sets of tokens added up one by one, by scipy.special.softmax",
    "min_p_filter": "hand-checked: ratios of scipy.special.softmax",
    "repetition_penalty": "hand-checked: the published formula, token by token",
    "sample": "scipy.special.softmax as frequencies, by a chi-square test",
    "multinomial": "scipy.special.softmax as frequencies, by a chi-square test",
}
RNG = np.random.default_rng(21)
LOGITS = RNG.normal(size=(6, 17)) * 2
OUT = -np.inf


@pytest.mark.parametrize("k", [1, 3, 17, 40])
def test_the_greatest_stay(k: int) -> None:
    got = ops.top_k_filter(LOGITS, k=k)
    for row, left in zip(LOGITS, got):
        greatest = set(np.sort(row)[-k:].tolist())
        assert [v if v in greatest else OUT for v in row.tolist()] == left.tolist()


def test_equals_at_the_edge_stay() -> None:
    x = np.array([1.0, 2.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(ops.top_k_filter(x, k=2), [1, 2, 1, OUT, 1])
    np.testing.assert_array_equal(ops.top_p_filter(x, p=0.6), [1, 2, 1, OUT, 1])


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_the_likeliest_that_make_up_p_stay(p: float) -> None:
    got = ops.top_p_filter(LOGITS, p=p)
    for row, left in zip(LOGITS, got):
        probability = scipy.special.softmax(row)
        stays, total = set(), 0.0
        for token in np.argsort(-row):
            if stays and total >= p:
                break
            stays.add(int(token))
            total += float(probability[token])
        assert [v if i in stays else OUT for i, v in enumerate(row.tolist())] == left.tolist()


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_the_unlikely_go(p: float) -> None:
    probability = scipy.special.softmax(LOGITS, -1)
    stays = probability >= p * probability.max(-1, keepdims=True)
    np.testing.assert_array_equal(ops.min_p_filter(LOGITS, p=p), np.where(stays, LOGITS, OUT))


def test_repetition_penalty() -> None:
    ids = np.array([[1, 1, -1, 99], [0, 4, 2, 2]])
    x = np.array([[1.0, 2.0, -3.0, 0.5, -1.0], [-1.0, 2.0, 3.0, 0.0, -2.0]])
    want = [[1.0, 1.0, -3.0, 0.5, -1.0], [-2.0, 2.0, 1.5, 0.0, -4.0]]
    np.testing.assert_array_equal(ops.repetition_penalty(x, ids, penalty=2.0), want)


def is_drawn_from(ids: np.ndarray, probability: np.ndarray) -> bool:
    """Not one draw in a thousand is as far off; seeds are fixed, so it always passes or never."""
    counts = np.bincount(ids, minlength=len(probability))
    assert (counts[probability == 0] == 0).all()
    some = probability > 0
    return scipy.stats.chisquare(counts[some], probability[some] * len(ids)).pvalue > 1e-3


ROW = np.log(np.array([0.4, 0.25, 0.2, 0.1, 0.05]))


@pytest.mark.parametrize(
    ("attrs", "probability"),
    [
        ({}, [0.4, 0.25, 0.2, 0.1, 0.05]),
        ({"temperature": 0.5}, np.array([0.4, 0.25, 0.2, 0.1, 0.05]) ** 2),
        ({"top_k": 3}, [0.4, 0.25, 0.2, 0, 0]),
        ({"top_p": 0.6}, [0.4, 0.25, 0, 0, 0]),
        ({"min_p": 0.3}, [0.4, 0.25, 0.2, 0, 0]),
        # By rank 4 the first three of four make up 0.83; of five they would make up 0.75.
        ({"top_k": 4, "top_p": 0.8, "temperature": 2.0}, np.sqrt([0.4, 0.25, 0.2, 0, 0])),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_tokens_come_by_their_probability(
    attrs: dict[str, float], probability: np.ndarray, dtype: str
) -> None:
    rows = np.tile(ROW, (20000, 1)).astype(rlx.DType.of(dtype).numpy)
    want = np.asarray(probability, float)
    ids = ops.sample(rows, 5, seed=3, **attrs)
    assert ids.dtype == np.int64
    assert is_drawn_from(ids, want / want.sum())


def test_a_rare_token_is_as_rare_as_it_should_be() -> None:
    """Noise of 24 bits would choose each of 50,000 others once in 2^24 draws too often."""
    n, rows = 50_000, 40
    logits = np.full((rows, n), -30.0, np.float32)
    logits[:, 7] = 0.0
    assert math.exp(-30.0) * n * rows < 1e-5
    assert (ops.sample(logits, 0, seed=1) == 7).all()


def test_no_temperature_is_the_greatest() -> None:
    x = np.array([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    np.testing.assert_array_equal(ops.sample(x, 0, temperature=0.0), [1, 0])


def test_many_draws_of_a_row() -> None:
    ids = ops.multinomial(np.stack([ROW, ROW[::-1]]) - 3.0, 9, count=20000, seed=4)
    assert ids.shape == (2, 20000)
    assert is_drawn_from(ids[0], np.exp(ROW))
    assert is_drawn_from(ids[1], np.exp(ROW[::-1]))


def test_draws_depend_on_key_and_counter_alone() -> None:
    first = ops.sample(LOGITS, 1, seed=2, stream=3)
    np.testing.assert_array_equal(first, ops.sample(LOGITS.copy(order="F"), 1, seed=2, stream=3))
    many = [ops.multinomial(LOGITS, c, count=50, seed=s, stream=t)
            for c, s, t in ((0, 0, 0), (1000, 0, 0), (0, 1, 0), (0, 0, 1))]  # fmt: skip
    assert all(not np.array_equal(many[0], other) for other in many[1:])


def test_targets_choose_the_same_token() -> None:
    g = rlx.Graph("choose")
    x, step = g.input("x", rlx.Shape([6, 17])), g.input("step", rlx.Shape([], "u64"))
    g.set_outputs([g.sample(x, step, top_k=9, top_p=0.9, temperature=0.7, seed=8)])
    values = LOGITS.astype(np.float32), np.uint64(12)
    want = ops.sample(*values, top_k=9, top_p=0.9, temperature=0.7, seed=8)
    for target in rlx.FusionTarget:
        np.testing.assert_array_equal(rlx.compile(g, like=target.value)(*values), want)


@pytest.mark.parametrize(
    "attrs", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 1.5}, {"min_p": -0.1}], ids=str
)
def test_what_makes_no_sense_is_refused(attrs: dict[str, float]) -> None:
    with pytest.raises(GraphError):
        ops.sample(LOGITS, 0, **attrs)
