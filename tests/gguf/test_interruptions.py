"""Steps of the engine that fail or are interrupted, line by line: answers keep their bits."""

from __future__ import annotations

import _thread
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.errors import OutOfMemoryError
from rlx.lm import LanguageModel, Piece, decoder, drafting, prefix_cache
from rlx.lm import engine as engines
from rlx.lm import generation as generations
from rlx.lm.generation import Generation
from rlx.lm.sampling import Sampler
from tests.gguf import files, vocabularies

HOW: dict[str, Any] = {
    "max_tokens": 6, "temperature": 1.3, "seed": 5, "logprobs": 1, "ignore_end": True,
}  # fmt: skip
PROMPTS = ["hello hello hell on earth", "a", "the quick brown fox"]
TRACED = {str(m.__file__) for m in (decoder, drafting, engines, generations, prefix_cache)}


class Fault(BaseException):
    """What no code of rlx expects."""


@pytest.fixture(scope="module")
def lm(path: Path) -> LanguageModel:
    return rlx.lm.load(path, slots=2)


@pytest.fixture(scope="module")
def drafted(path: Path) -> LanguageModel:
    return rlx.lm.load(path, slots=2, draft=path)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A model whose caches of sliding windows are shifted while a prompt is computed."""
    words = len(vocabularies.pieces()[0])
    path = files.write(
        tmp_path_factory.mktemp("windows") / "tiny.gguf", "gemma3", context=2048, words=words,
        vocabulary=vocabularies.add_pieces, **{"attention.sliding_window": 600},
    )  # fmt: skip
    return rlx.lm.load(path, slots=2)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, as in a terminal: jobs that a shell runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def forgotten(lm: LanguageModel) -> None:
    for slot in range(lm.engine.load.slots):
        lm.engine._cache.truncate(slot, 0)  # pyright: ignore[reportPrivateUsage]


def begun(lm: LanguageModel, prompt: Any) -> Generation:
    return lm.engine.submit(lm.request(prompt, **HOW))


def ended(lm: LanguageModel, generation: Generation) -> list[Piece]:
    for _ in range(100):
        if generation.is_done:
            return generation.pieces
        lm.engine.step()
    raise AssertionError("steps make no progress")


def is_raised_at(place: int, error: type[BaseException], call: Callable[[], Any]) -> bool:
    """Call with an exception before the n-th line of the engine: are there so many?"""
    left = place

    def traced(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            raise error
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        with suppress(error, rlx.Error):
            call()
    finally:
        sys.settrace(before)
    return left <= 0


def check_interruptions(lm: LanguageModel, prompts: Sequence[Any], first: int = 1) -> None:
    """Of three requests for two slots one is interrupted: the others get what they get alone."""
    forgotten(lm)
    wanted = [ended(lm, begun(lm, p)) for p in prompts]
    place = first
    while True:
        forgotten(lm)
        others = [begun(lm, p) for p in prompts[:2]]
        if not is_raised_at(place, Fault, lambda: lm.complete(prompts[2], **HOW)):
            break
        assert [ended(lm, g) for g in others] == wanted[:2], place
        assert ended(lm, begun(lm, prompts[2])) == wanted[2], place
        place += 1 + place // 12  # all of the first lines, some of the many steps that are alike
    for other in others:
        ended(lm, other)
    assert place > first + 200


@pytest.mark.parametrize("first", range(1, 10))
def test_a_step_may_be_interrupted_at_any_line(lm: LanguageModel, first: int) -> None:
    check_interruptions(lm, PROMPTS, first)


def test_a_draft_model_may_be_interrupted_at_any_line(drafted: LanguageModel) -> None:
    check_interruptions(drafted, PROMPTS)


def test_a_shift_of_windows_may_be_interrupted(
    windowed: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between states, some of which have then been shifted."""
    held = windowed.decoder
    assert isinstance(held, decoder.SessionDecoder)
    prompts = [np.random.default_rng(n).integers(20, 250, 1800).tolist() for n in range(3)]
    wanted = [ended(windowed, begun(windowed, p)) for p in prompts]
    memory: Any = type(held.session._memory)  # pyright: ignore[reportPrivateUsage]
    shift, count = memory.shift_rows, 0

    def shifting(*given: Any) -> None:
        nonlocal count
        count += 1
        if count in (1, 2, 5, 20):
            raise Fault
        shift(*given)

    monkeypatch.setattr(memory, "shift_rows", shifting)
    forgotten(windowed)
    made = [begun(windowed, p) for p in prompts]
    faults = 0
    while not all(g.is_done for g in made):
        try:
            windowed.engine.step()
        except Fault:
            faults += 1
    assert faults == 4
    assert [g.pieces for g in made] == wanted


@pytest.mark.parametrize("place", [1, 2, 3, 7])
@pytest.mark.parametrize("is_before", [True, False])
def test_what_fails_alone_is_the_error_of_one_request(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, place: int, is_before: bool
) -> None:
    """A call that fails once, before or after it has written, is made again; one that fails for
    one prompt alone ends that request."""
    held, count = lm.decoder, 0
    assert isinstance(held, decoder.SessionDecoder)
    wanted = [ended(lm, begun(lm, p)) for p in PROMPTS]
    known = {t for prompt, made in zip(PROMPTS, wanted) for p in made
             for t in (*lm.tokens_of(prompt), *p.tokens)}  # fmt: skip
    bad, session = next(t for t in range(20, 250) if t not in known), held.session

    def failing(tokens: Any, *given: Any) -> Any:
        nonlocal count
        count += 1
        is_bad = bad in tokens
        made = None if is_before else session(tokens, *given)
        if is_bad or count == place:
            raise MemoryError if is_bad else ValueError("once")
        return session(tokens, *given) if is_before else made

    monkeypatch.setattr(held, "session", failing)
    forgotten(lm)
    wrong = begun(lm, [20, bad])
    made = [begun(lm, p) for p in PROMPTS]
    while lm.engine.step():
        pass
    assert isinstance(wrong.error, OutOfMemoryError)
    assert sum(g.error is not None for g in made) <= 1  # where the call that failed was one alone
    for generation, expected in zip(made, wanted):
        if generation.error is None:
            assert generation.pieces == expected
        else:
            assert isinstance(generation.error, rlx.Error)


def test_an_answer_that_fails_ends_alone(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ended(lm, begun(lm, PROMPTS[0]))
    take = Sampler.choose

    def choose(self: Sampler, logits: Any, before: Any, allowed: Any = None) -> int:
        if self.how.top_k == 7 and len(before) > 5:
            raise TypeError("no such index")
        return take(self, logits, before, allowed)

    monkeypatch.setattr(Sampler, "choose", choose)
    good = begun(lm, PROMPTS[0])
    with pytest.raises(rlx.Error, match="TypeError: no such index") as caught:
        lm.complete(PROMPTS[2], **HOW, top_k=7)
    assert isinstance(caught.value.__cause__, TypeError)
    assert ended(lm, good) == wanted


def test_a_score_may_be_interrupted(lm: LanguageModel) -> None:
    tokens = list(range(20, 100))
    wanted, answer = lm.score(tokens), lm.complete(tokens, **HOW)
    for place in itertools.count(1):
        forgotten(lm)
        if not is_raised_at(place, Fault, lambda: lm.score(tokens)):
            break
        assert lm.complete(tokens, **HOW) == answer
        assert lm.engine._cache.free == 2, place  # pyright: ignore[reportPrivateUsage]
        assert np.array_equal(lm.score(tokens), wanted)
        assert lm.engine.load.running == 0


def test_scores_of_several_threads_take_turns_on_a_slot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one has the only slot, others wait for it, and so do requests."""
    monkeypatch.setattr(engines, "PROMPT_CHUNK", 16)
    lm, wrong = rlx.lm.load(path, slots=1), list[Any]()
    tokens = np.random.default_rng(0).integers(20, 250, 120).tolist()
    wanted, answer = lm.score(tokens), lm.complete(PROMPTS[0], **HOW)

    def ask(number: int) -> None:
        for _ in range(5):
            if number % 2 and not np.array_equal(lm.score(tokens), wanted):
                wrong.append(number)
            if not number % 2 and lm.complete(PROMPTS[0], **HOW) != answer:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_one_thread_leaves_the_answers_of_others(path: Path) -> None:
    """Ctrl-C reaches the main thread, wherever it is; but not before a lock is released, as faults
    that tracing raises may: the model is one that was not traced."""
    lm = rlx.lm.load(path, slots=2)
    assert threading.current_thread() is threading.main_thread()
    wanted = [lm.complete(p, **HOW) for p in PROMPTS[:2]]
    is_over, wrong = threading.Event(), list[Any]()

    def ask(number: int) -> None:
        try:
            while not is_over.is_set():
                if lm.complete(PROMPTS[number], **HOW) != wanted[number]:
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    endless: dict[str, Any] = {"max_tokens": 1 << 20, "context_shift": True, "ignore_end": True}

    def interrupted(number: int) -> None:
        for count, _ in enumerate(lm.generate(PROMPTS[2], **endless)):
            if count == number:
                threading.Timer(0.002, _thread.interrupt_main).start()

    for number in range(20):
        with pytest.raises(KeyboardInterrupt):
            interrupted(number)
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []
    assert lm.complete(PROMPTS[0], **HOW) == wanted[0]
