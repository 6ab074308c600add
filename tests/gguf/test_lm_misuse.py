"""Wrong values for every argument of a language model: no error but those of rlx."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.errors import InputError, InternalError
from rlx.lm import LanguageModel, Sampling

WITH_LLGUIDANCE = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="the package llguidance is not installed"
)
WRONG: list[Any] = [
    None, 5, -1, 1.5, float("nan"), float("inf"), 10**400, True, "a", "", "\ud800", b"abc",
    object(), [], [None], ["a"], ["a", 5], [[1, 2]], [1.5], [-1], [10**400], {},
    {"a": 1}, {5: 1}, {5: "x"}, {-1: 1}, {10**9: 1}, {(1, 2): 3},
    np.zeros((2, 2)), np.zeros(2), np.float32("nan"), rlx.Error,
]  # fmt: skip
CHAT = [{"role": "user", "content": "hello"}]
OPTIONS = [
    "max_tokens", "stop", "sampling", "logprobs", "schema", "regex", "grammar", "context_shift",
    "ignore_end", *(f.name for f in dataclasses.fields(Sampling)),
]  # fmt: skip


@pytest.fixture(scope="module")
def lm(path: Path) -> LanguageModel:
    return rlx.lm.load(path)


def given(name: str, value: Any, **first: Any) -> dict[str, Any]:
    return {"max_tokens": 2, **first, name: value}


METHODS: dict[str, Callable[[LanguageModel, Any], Any]] = {
    "generate": lambda lm, v: first(lm.generate(v)),
    "complete": lambda lm, v: lm.complete(v, max_tokens=2),
    "complete_all": lambda lm, v: lm.complete_all(v, max_tokens=2),
    "complete_all n": lambda lm, v: lm.complete_all(["hello"], n=v, max_tokens=2),
    "request": lambda lm, v: lm.request(v),
    "tokens_of": lambda lm, v: lm.tokens_of(v),
    "chat": lambda lm, v: first(lm.chat(v)),
    "chat one": lambda lm, v: first(lm.chat([v])),
    "chat content": lambda lm, v: first(lm.chat([{"role": "user", "content": v}])),
    "chat role": lambda lm, v: first(lm.chat([{"role": v, "content": "hello"}])),
    "chat tools": lambda lm, v: first(lm.chat(CHAT, tools=v)),
    "prompt_of": lambda lm, v: lm.prompt_of(v),
    "score": lambda lm, v: lm.score(v),
    "embed": lambda lm, v: lm.embed(v),
    "explain tokens": lambda lm, v: lm.explain(tokens=v),
    "explain sequences": lambda lm, v: lm.explain(sequences=v),
    "explain depth": lambda lm, v: lm.explain(depth=v),
    "explain measure": lambda lm, v: lm.explain(measure=v) if v is not True else None,
    "explain seconds": lambda lm, v: lm.explain(seconds=v),
    **{
        f"complete {name}": lambda lm, v, n=name: lm.complete("hello", **given(n, v, temperature=1))
        for name in OPTIONS
    },
}


def first(pieces: Iterator[Any]) -> list[Any]:
    return list(itertools.islice(pieces, 2))


@pytest.mark.parametrize("method", METHODS)
def test_any_value_is_taken_or_refused(lm: LanguageModel, method: str) -> None:
    wanted, refused = lm.complete("hello", max_tokens=3), 0
    for value in WRONG:
        try:
            METHODS[method](lm, value)
        except rlx.Error as error:
            if isinstance(error, InternalError):
                pytest.fail(f"{method} of {value!r}: {error}")
            refused += 1
        except Exception as error:
            pytest.fail(f"{method} of {value!r}: {type(error).__name__}: {error}")
    assert refused >= 3
    assert lm.complete("hello", max_tokens=3) == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", dtype(0.5)) for dtype in (np.float16, np.float32, np.float64)),
        ("top_k", np.int32(3)), ("top_k", np.array(3)), ("seed", np.uint64(7)), ("seed", -3),
        ("max_tokens", np.int64(4)), ("logprobs", np.int8(2)), ("logit_bias", {np.int64(5): 1}),
        ("penalty_tokens", np.int16(9)),
    ],
)  # fmt: skip
def test_numbers_of_numpy_are_those_of_python(lm: LanguageModel, name: str, value: Any) -> None:
    how: dict[str, Any] = {"max_tokens": 4, "temperature": 0.5, "seed": 3}
    plain = (
        {int(k): v for k, v in value.items()} if isinstance(value, dict) else np.array(value).item()
    )
    made = [lm.complete("hello", **{**how, name: v}) for v in (value, plain)]
    assert made[0] == made[1]


FORMS: dict[str, dict[str, Any]] = {
    "many repetitions": {"regex": "a{1000000}"},
    "repetitions of repetitions": {"regex": "(a{1000}){1000}"},
    "half a surrogate pair": {"regex": "\ud800"},
    "half a surrogate pair in a grammar": {"grammar": 'start: "\ud800"'},
    "a rule of nothing but itself": {"grammar": "start: start"},
    "a schema of itself": {"schema": {"$ref": "#"}},
}
LARGE: dict[str, dict[str, Any]] = {
    "many alternatives": {"regex": "|".join(f"{n}x{n}" for n in range(20000))},
    "many words": {"grammar": "start: " + "|".join(f'"{n:x}"' for n in range(20000))},
    "many repetitions": {"regex": "(a|bc|def){2000}"},
}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"properties": {"a": made}, "type": "object"}
    return made


@WITH_LLGUIDANCE
@pytest.mark.parametrize("form", FORMS)
def test_forms_that_cannot_be_followed_are_refused_at_once(lm: LanguageModel, form: str) -> None:
    with pytest.raises(InputError):
        lm.request("hello", **FORMS[form])


@WITH_LLGUIDANCE
@pytest.mark.parametrize("form", LARGE)
def test_a_large_form_is_refused_or_followed(lm: LanguageModel, form: str) -> None:
    try:
        request = lm.request("hello", **LARGE[form], max_tokens=20, temperature=1)
    except InputError:
        return
    assert list(lm.engine.pieces(request))


@WITH_LLGUIDANCE
@pytest.mark.parametrize("depth", [300, 3000])
def test_schemas_that_are_nested_too_deep_are_refused(lm: LanguageModel, depth: int) -> None:
    with pytest.raises(InputError, match="the JSON schema cannot be"):
        lm.request("hello", schema=nested(depth))


@WITH_LLGUIDANCE
def test_a_form_is_kept_at_any_temperature(lm: LanguageModel) -> None:
    for temperature in (1e-45, 1e-30, 1e30, 3e38):
        for seed in range(5):
            how: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": 8}
            assert set(lm.complete("hello", regex="[ab]{5}", **how).text) <= set("ab")
    with pytest.raises(InputError, match=r"temperature is 1e\+300"):
        lm.request("hello", temperature=1e300)
