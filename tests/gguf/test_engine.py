"""Generation: batches, prompts in chunks, shared prefixes, cancelling, forms of answers."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.lm import LanguageModel, Piece, drafting
from rlx.lm import engine as engines
from rlx.lm.generation import Delivered, Generation
from rlx.lm.prefix_cache import common_prefix
from rlx.lm.sampling import Sampler
from rlx.lm.slots import Part
from rlx.runtime.state_session import StateSession
from tests.gguf import files

WITH_LLGUIDANCE = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="the package llguidance is not installed"
)


@pytest.fixture(scope="module")
def shared(path: Path) -> LanguageModel:
    return rlx.lm.load(path, slots=3)


@pytest.fixture
def lm(shared: LanguageModel) -> LanguageModel:
    """The model with empty slots."""
    forgotten(shared)
    return shared


def forgotten(lm: LanguageModel) -> None:
    for left in lm.engine._running:  # pyright: ignore[reportPrivateUsage]
        left.cancel()
    assert not lm.engine.step()
    cache = lm.engine._cache  # pyright: ignore[reportPrivateUsage]
    for slot in range(3):
        cache.truncate(slot, 0)


@pytest.fixture
def steps(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[list[Part]]:
    """The parts of each step."""
    found: list[list[Part]] = []
    slots: Any = lm.engine._slots  # pyright: ignore[reportPrivateUsage]
    step = slots.step

    def noted(parts: Sequence[Part]) -> Any:
        found.append(list(parts))
        return step(parts)

    monkeypatch.setattr(slots, "step", noted)
    return found


def sizes(steps: list[list[Part]]) -> list[list[int]]:
    return [[len(p.tokens) for p in parts] for parts in steps]


def submitted(lm: LanguageModel, prompt: str | list[int], **how: Any) -> tuple[Generation, Any]:
    found: list[Delivered] = []
    return lm.engine.submit(lm.request(prompt, **how), found.append), found


PROMPTS = ["hello", "hell on earth", "a", "the quick brown fox", "hello hello", "zebra"]


def test_answers_in_a_batch_are_those_alone(lm: LanguageModel) -> None:
    how: dict[str, Any] = {"max_tokens": 12, "temperature": 1.3, "seed": 5, "logprobs": 2}
    together = lm.complete_all(PROMPTS, **how)
    forgotten(lm)
    for prompt, answer in zip(PROMPTS, together):
        assert lm.complete(prompt, **how) == answer  # the same bits of all log-probabilities
        forgotten(lm)


def test_chunks_of_prompts_are_steps_and_ends_are_for_what_is_sampled(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("step", "__call__"):
        function = getattr(StateSession, name)

        def noted(self: Any, *given: Any, name: str = name, function: Any = function) -> Any:
            calls.append(name)
            return function(self, *given)

        monkeypatch.setattr(StateSession, name, noted)
    monkeypatch.setattr(engines, "PROMPT_CHUNK", 8)
    monkeypatch.setattr(engines, "LONE_CHUNK", 8)
    list(lm.generate("hello hello the hell hello hello hello he", max_tokens=3, temperature=0))
    first = calls.index("__call__")
    assert first >= 1
    assert set(calls[:first]) == {"step"}
    assert set(calls[first:]) == {"__call__"}


def test_prefixes_are_not_computed_again(lm: LanguageModel, steps: list[list[Part]]) -> None:
    first = lm.complete("hello hell", max_tokens=4)
    steps.clear()
    again = lm.complete("hello hell", max_tokens=4)
    assert sizes(steps) == [[1], [1], [1], [1]]  # the last of the prompt, then those of the answer
    assert again.tokens == first.tokens
    steps.clear()
    lm.complete([*lm.tokens_of("hello hell"), *first.tokens, 40, 41], max_tokens=1)
    assert sizes(steps) == [[3]]  # the last token of an answer is not computed


def test_answers_do_not_depend_on_what_is_cached(lm: LanguageModel) -> None:
    prompt = [int(t) for t in np.random.default_rng(3).integers(20, 250, 50)]
    how: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "seed": 1, "logprobs": 1}
    cold = lm.complete(prompt, **how)
    for shared in (1, 2, 20, 46, 47, 48, 49, 50):
        forgotten(lm)
        lm.complete([*prompt[:shared], 7, 8, 9], max_tokens=2)
        assert lm.complete(prompt, **how) == cold  # the same bits of log-probabilities


def test_a_slot_that_shares_little_is_left_alone(
    lm: LanguageModel, steps: list[list[Part]]
) -> None:
    begin = list(range(20, 40))
    first, second = [*begin, *range(100, 140)], [*begin, *range(150, 190)]
    for prompt in (first, second):
        lm.complete(prompt, max_tokens=1)
    steps.clear()
    for prompt in (first, second):
        lm.complete(prompt, max_tokens=1)
    assert sizes(steps) == [[1], [1]]


def test_samples_share_the_prompt(lm: LanguageModel, steps: list[list[Part]]) -> None:
    prompt = list(range(20, 60))
    made = lm.complete_all([prompt], n=3, max_tokens=5, temperature=1.5, seed=3)
    assert len({m.tokens for m in made}) == 3
    assert sum(sum(s) for s in sizes(steps)) <= 40 + 2 + 3 * 5
    for i, answer in enumerate(made):
        assert lm.complete(prompt, max_tokens=5, temperature=1.5, seed=3 + i) == answer


def test_prompts_come_in_chunks_between_steps(
    lm: LanguageModel, steps: list[list[Part]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PROMPT_CHUNK", 16)
    _, short = submitted(lm, [7, 8], max_tokens=30, ignore_end=True)
    lm.engine.step()
    _, long = submitted(lm, list(range(20, 60)), max_tokens=3, ignore_end=True)
    while not long:
        lm.engine.step()
    assert sizes(steps) == [[2], [1, 16], [1, 16], [1, 8]]
    assert len(short) == 4  # one more with every step


def test_prompts_take_turns(
    lm: LanguageModel, steps: list[list[Part]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LONE_CHUNK", 16)
    for start in (20, 100):
        submitted(lm, list(range(start, start + 48)), max_tokens=1)
    while lm.engine.step():
        pass
    slots = [parts[0].slot for parts in steps]
    assert all(a != b for a, b in itertools.pairwise(slots[:6]))


def test_steps_go_on_between_chunks_of_logits(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.random.default_rng(0).integers(10, 90, 98).tolist()
    alone: list[Any] = []
    lm.engine.logits(tokens, alone.append)
    monkeypatch.setattr(engines, "PROMPT_CHUNK", 24)
    expected = lm.complete("hello", max_tokens=6, ignore_end=True).text
    pieces: list[Delivered] = []
    generation = lm.engine.submit(lm.request("hello", max_tokens=6, ignore_end=True), pieces.append)
    found: list[Any] = []

    def take(rows: Any) -> None:
        found.append(rows)
        lm.engine.step()
        lm.engine.step()

    lm.engine.logits(tokens, take)
    assert generation.is_done
    assert "".join(p.text for p in pieces if isinstance(p, Piece)) == expected
    assert len(found) > len(alone) == 1
    assert np.array_equal(np.concatenate(found), alone[0])


def test_a_slot_that_was_lent_is_returned(lm: LanguageModel) -> None:
    def fail(rows: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            lm.engine.logits(lm.tokens_of("hello zebra"), fail)
    assert lm.engine._cache.free == 3  # pyright: ignore[reportPrivateUsage]


def test_requests_wait_for_slots_in_order(lm: LanguageModel) -> None:
    order: list[int] = []
    for number in range(7):
        request = lm.request([20 + number, 21], max_tokens=4, ignore_end=True)
        lm.engine.submit(request, lambda _, n=number: None if n in order else order.append(n))
    assert lm.engine.load.waiting == 7
    lm.engine.step()
    assert lm.engine.load == engines.Load(running=3, waiting=4, slots=3)
    while lm.engine.step():
        pass
    assert [sorted(order[i : i + 3]) for i in (0, 3, 6)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_cancelling_stops_within_a_token(lm: LanguageModel, steps: list[list[Part]]) -> None:
    generation, found = submitted(lm, "hello", max_tokens=50, ignore_end=True)
    other, _ = submitted(lm, "zebra", max_tokens=50, ignore_end=True)
    for _ in range(3):
        lm.engine.step()
    generation.cancel()
    lm.engine.step()
    assert len(found) == 3
    assert generation.is_done
    assert lm.engine.load.running == 1
    other.cancel()
    assert not lm.engine.step()
    stream = lm.generate("hello", max_tokens=50)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not lm.engine.step()


def test_a_failed_step_ends_its_requests_and_no_other(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = lm.complete("zebra", max_tokens=6)
    slots: Any = lm.engine._slots  # pyright: ignore[reportPrivateUsage]

    def failing(parts: Sequence[Part]) -> Any:
        raise rlx.Error("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(slots, "step", failing)
        with pytest.raises(rlx.Error, match="out of memory"):
            lm.complete("hello")
    assert lm.engine.load.running == 0
    assert lm.complete("zebra", max_tokens=6) == expected


def test_the_context_ends_an_answer_or_is_shifted(lm: LanguageModel) -> None:
    prompt = list(range(20, 20 + 100))
    ended = lm.complete(prompt, max_tokens=500, ignore_end=True)
    assert (ended.finish_reason, len(ended.tokens)) == ("length", lm.context - 100)
    shifted = lm.complete(prompt, max_tokens=100, ignore_end=True, context_shift=True)
    assert len(shifted.tokens) == 100
    assert shifted.tokens[:28] == ended.tokens
    # the tokens behind the shift are those of the prompt that is left
    left = [*prompt, *shifted.tokens[:28]]
    left = left[:32] + left[32 + (128 - 32) // 2 :]
    forgotten(lm)
    assert lm.complete(left, max_tokens=20, ignore_end=True).tokens == shifted.tokens[28:48]


def test_log_probabilities_only_where_they_are_asked_for(lm: LanguageModel) -> None:
    assert lm.complete("hello", max_tokens=3).log_probabilities == ()
    made = lm.complete("hello", max_tokens=3, logprobs=4)
    for token, chance, likeliest in zip(made.tokens, made.log_probabilities, made.alternatives):
        assert likeliest[0] == (token, chance)  # greedy
        assert len(likeliest) == 4
        assert sorted(likeliest, key=lambda t: -t[1]) == list(likeliest)


# -- speculative decoding --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_prompt_lookup_gives_the_same_text_in_fewer_steps(
    path: Path, lm: LanguageModel, steps: list[list[Part]], temperature: float
) -> None:
    prompt = [*range(20, 30)] * 3
    how: dict[str, Any] = {
        "max_tokens": 60,
        "temperature": temperature,
        "ignore_end": True,
        "logprobs": 1,
        "top_k": 2,
    }
    plain = lm.complete(prompt, **how)
    count = len(steps)
    engine = lm.engine
    monkeyed = drafting.PromptLookup()
    engine._drafter = monkeyed  # pyright: ignore[reportPrivateUsage]
    try:
        forgotten(lm)
        steps.clear()
        assert lm.complete(prompt, **how) == plain  # the same bits of log-probabilities
    finally:
        engine._drafter = None  # pyright: ignore[reportPrivateUsage]
    if temperature == 0:  # greedy texts of random weights repeat themselves
        assert len(steps) < count


def test_a_draft_model_gives_the_same_text_in_fewer_steps(path: Path, lm: LanguageModel) -> None:
    drafted = rlx.lm.load(path, slots=2, draft=path)  # itself: every guess is right
    how: dict[str, Any] = {"max_tokens": 24, "ignore_end": True}
    assert drafted.complete("hello", **how).tokens == lm.complete("hello", **how).tokens
    found = [len(p.tokens) for p in _pieces_of_steps(drafted, "zebra")]
    assert sum(found) == 24
    assert max(found) > 1


def _pieces_of_steps(lm: LanguageModel, prompt: str) -> list[Piece]:
    """One piece for each step, with all of its tokens."""
    generation, found = submitted(lm, prompt, max_tokens=24, ignore_end=True)
    made: list[Piece] = []
    while not generation.is_done:
        lm.engine.step()
        made.append(Piece("", tuple(t for p in found for t in p.tokens)))
        found.clear()
    return made


def test_a_draft_model_has_the_same_vocabulary(path: Path, tmp_path: Path) -> None:
    other = files.write(tmp_path / "other.gguf", "llama")
    with pytest.raises(rlx.Error, match="another vocabulary"):
        rlx.lm.load(path, draft=other)


def test_ngrams_are_found_where_they_stood_last() -> None:
    lookup = drafting.PromptLookup(tokens=3)
    assert lookup.propose(0, [1, 2, 3, 4, 1, 2], 8) == [3, 4, 1]
    assert lookup.propose(0, [1, 2, 3, 4, 1, 2, 9, 1, 2], 8) == [9, 1, 2]
    assert lookup.propose(0, [1, 2, 3, 4, 1, 2, 9, 1, 2], 1) == [9]
    assert lookup.propose(0, [5, 6, 7], 8) == []
    assert lookup.propose(0, [5], 8) == []


# -- forms of answers ------------------------------------------------------------------------------


@WITH_LLGUIDANCE
def test_answers_fit_their_schema(lm: LanguageModel) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["he", "hello"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for seed in range(5):
        made = lm.complete("hello", schema=schema, temperature=2.0, seed=seed, max_tokens=100)
        found = json.loads(made.text)
        assert made.finish_reason == "stop"
        assert set(found) == {"a", "b"}
        assert found["b"] in ("he", "hello")


@WITH_LLGUIDANCE
def test_answers_match_expressions_and_grammars(lm: LanguageModel) -> None:
    made = lm.complete("hello", regex="[a-c]{4}x", temperature=1.0)
    assert re.fullmatch("[a-c]{4}x", made.text)
    made = lm.complete("hello", grammar='start: "he" ("llo" | "y")', temperature=1.0)
    assert made.text in ("hello", "hey")
    with pytest.raises(rlx.Error, match="regular expression cannot be used"):
        lm.request("hello", regex="(")
    with pytest.raises(rlx.Error, match="JSON schema cannot be used"):
        lm.request("hello", schema={"type": "no such type"})
    with pytest.raises(rlx.Error, match="one of schema, regex"):
        lm.request("hello", schema={}, regex="a")


# -- parts -----------------------------------------------------------------------------------------


def test_common_prefixes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = (rng.integers(0, 2, rng.integers(0, 9)).tolist() for _ in range(2))
        pairs = [x == y for x, y in zip(a, b)]
        assert common_prefix(a, b) == next((i for i, same in enumerate(pairs) if not same),
                                           len(pairs))  # fmt: skip


def test_a_nucleus_of_many_tokens_is_that_of_all_sorted() -> None:
    rng = np.random.default_rng(1)
    for spread in (0.1, 1.0, 5.0):
        scores = rng.normal(size=3000) * spread
        for top_p, min_p in ((0.7, 0.0), (0.9, 0.05), (1.0, 0.3)):
            sampler = Sampler(rlx.lm.Sampling(temperature=1.0, top_p=top_p, min_p=min_p))
            found = set(sampler._kept(scores).tolist())  # pyright: ignore[reportPrivateUsage]
            order = np.argsort(-scores, kind="stable")
            p = np.exp(scores[order] - scores.max())
            p /= p.sum()
            count = 3000 if top_p == 1 else int(np.searchsorted(p.cumsum(), top_p))
            kept = order[: count + 1]
            likely = p[: count + 1] >= min_p * p[0]
            assert found == set(kept[likely].tolist())


def test_typical_tokens_of_many_are_those_of_all_sorted() -> None:
    rng = np.random.default_rng(2)
    for spread in (0.0, 0.1, 1.0, 5.0):
        scores = (rng.normal(size=3000) * spread).round(2)  # many are equal
        scores[rng.integers(0, 3000, 300)] = -np.inf
        p = np.exp(scores - scores.max())
        p /= p.sum()
        surprise = np.log(1 / p[p > 0])
        expected = (p[p > 0] * surprise).sum()
        far = np.full(3000, np.inf)
        far[p > 0] = np.abs(surprise - expected)
        order = np.argsort(far, kind="stable")
        for typical_p in (0.2, 0.9):
            sampler = Sampler(rlx.lm.Sampling(temperature=1.0, typical_p=typical_p))
            found = sampler._kept(scores)  # pyright: ignore[reportPrivateUsage]
            mass = p[order].cumsum()
            # sums of the two differ by rounding, which decides where the mass is reached exactly
            counts = [int(np.searchsorted(mass, typical_p + e)) + 1 for e in (-1e-9, 1e-9)]
            assert len(found) in counts
            assert set(found.tolist()) == set(order[: len(found)].tolist())
