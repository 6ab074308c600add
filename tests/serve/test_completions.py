"""/v1/completions: prompts in front of answers, offsets and log-probabilities of tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.serving import MODEL, Running, serving, tiny_model
from tests.serve.test_wrong_clients import opened, until

openai: Any = pytest.importorskip("openai", reason="the package openai is not installed")
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def check_offsets(text: str, chances: Any) -> None:
    """Tokens that are whole characters are what the text has at their offsets."""
    assert chances.text_offset == sorted(chances.text_offset)
    for token, offset in zip(chances.tokens, chances.text_offset, strict=True):
        is_control = token.startswith("<") and token.endswith(">")
        if "\N{REPLACEMENT CHARACTER}" not in token and not is_control:
            assert text[offset:].startswith((token, token.lstrip()))


def test_offsets_begin_behind_the_prompt(server: Running, client: Any) -> None:
    prompts = ["hello zebra", "he"]
    how: dict[str, Any] = {**GREEDY, "prompt": prompts, "logprobs": 1, "n": 2, "echo": True}
    whole = client.completions.create(**how)
    assert len(whole.choices) == 4
    for choice, prompt in zip(whole.choices, (prompts[0], prompts[0], prompts[1], prompts[1])):
        assert choice.text.startswith(prompt)
        check_offsets(choice.text, choice.logprobs)
        count = len(server.lm.tokens_of(prompt))
        assert choice.logprobs.text_offset[count] == len(prompt)
        assert len(choice.logprobs.tokens) == count + 12
    found: dict[int, Any] = {i: ("", [], []) for i in range(4)}
    for event in client.completions.create(**how, stream=True):
        for choice in event.choices:
            text, offsets, values = found[choice.index]
            offsets += choice.logprobs.text_offset
            values += choice.logprobs.token_logprobs
            found[choice.index] = (text + choice.text, offsets, values)
    for choice in whole.choices:
        text, offsets, values = found[choice.index]
        assert text == choice.text
        assert offsets == choice.logprobs.text_offset
        assert values == choice.logprobs.token_logprobs


def test_prompts_are_scored(server: Running, client: Any) -> None:
    """As evaluation harnesses do: no token is made, or one that is cut off."""
    lm = server.lm
    prompts = [lm.tokens_of("hello zebra hello"), lm.tokens_of("he")]
    for most in (0, 1):
        how: dict[str, Any] = {**GREEDY, "max_tokens": most, "echo": True, "logprobs": 2}
        made = client.completions.create(prompt=prompts, **how)
        assert made.usage.completion_tokens == 2 * most
        assert made.usage.prompt_tokens == sum(map(len, prompts))
        for choice, prompt in zip(made.choices, prompts, strict=True):
            chances = choice.logprobs
            assert choice.finish_reason == "length"
            assert len(chances.tokens) == len(prompt) + most
            assert chances.token_logprobs[0] is None
            assert chances.top_logprobs[0] is None
            assert np.array_equal(chances.token_logprobs[1 : len(prompt)], lm.score(prompt))
            for own, token, top in zip(
                chances.token_logprobs[1:], chances.tokens[1:], chances.top_logprobs[1:]
            ):
                assert top[token] >= own
                assert len(top) <= 3
    event = next(client.completions.create(prompt="he", stream=True, **{**how, "max_tokens": 0}))
    assert (event.choices[0].text, event.choices[0].finish_reason) == ("he", "length")


def test_a_text_is_echoed_as_it_was_given(client: Any) -> None:
    for prompt in ("hello", " hello", "  he\n", "\N{SNOWMAN}"):
        made = client.completions.create(**{**GREEDY, "max_tokens": 0}, prompt=prompt, echo=True)
        assert made.choices[0].text == prompt
        assert made.choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(**{**GREEDY, "max_tokens": 0}, prompt="hello")


def test_a_request_waits_for_the_slot_of_a_prompt_that_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one whose client is gone: no other request makes the engine look for it."""
    from rlx.serve import prompts

    lm, begun = tiny_model(tmp_path, slots=1), threading.Event()
    log_probabilities = prompts.log_probabilities

    def slowly(row: Any) -> Any:
        begun.set()
        until(lambda: lm.engine.load.waiting == 1)
        time.sleep(0.2)  # the engine's thread finds no slot meanwhile
        return log_probabilities(row)

    monkeypatch.setattr(prompts, "log_probabilities", slowly)
    scoring = {**GREEDY, "max_tokens": 0, "echo": True, "logprobs": 1, "prompt": [20, 21]}
    how: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 30}
    with serving(lm) as single, openai.OpenAI(base_url=f"{single.address}/v1", **how) as client:
        leaving = opened(single, scoring)
        assert begun.wait(60)
        leaving.close()
        made = client.completions.create(prompt="hello", **GREEDY)
        assert made.usage.completion_tokens == 12
