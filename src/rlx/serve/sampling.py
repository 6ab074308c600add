"""What is asked of a language model, out of the fields of a body."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx.lm.generation import Request
from rlx.lm.model import LanguageModel, with_seeds
from rlx.lm.sampling import Sampling
from rlx.lm.sampling_defaults import SERVED
from rlx.serve.body import Fields
from rlx.serve.errors import Refused
from rlx.serve.settings import Settings

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty",
)  # fmt: skip
SHARED = frozenset(
    (*SAMPLING, "model", "n", "stop", "seed", "stream", "stream_options", "logit_bias",
     "max_tokens", "regex", "grammar", "response_format", "ignore_eos")
)  # fmt: skip
"""Fields of both kinds of completions."""
UNREAD = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
     "prompt_cache_options", "prompt_cache_retention", "prediction")
)  # fmt: skip
"""OpenAI's fields that no answer depends on: accounts, caches, a guess that saves time."""
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "reasoning_effort": ("none", "medium"),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "suffix": ("",),
    "audio": (),
    "moderation": (),
    "web_search_options": (),
}
"""OpenAI's fields for what models here do not do, and the values that ask for nothing: defaults."""
MAX_STOPS, MAX_LOGPROBS, MAX_SEED = 16, 20, (1 << 63) - 1


def check_fields(fields: Fields, known: Collection[str]) -> None:
    """Refuse what is not known, and what is known and not supported."""
    fields.only((*known, *UNREAD, *NEUTRAL))
    for name, values in NEUTRAL.items():
        fields.only_as(name, *values)


def sampling_of(fields: Fields, lm: LanguageModel) -> Sampling:
    """How tokens are chosen: what is not asked for is as the model's file states it, else as
    servers do."""
    default = default_sampling(lm)
    how: dict[str, Any] = {n: fields.number(n, getattr(default, n)) for n in SAMPLING}
    how["top_k"] = max(0, fields.integer("top_k", default.top_k, -1, 1 << 31))
    how["penalty_tokens"] = default.penalty_tokens
    seed = fields.integer("seed", secrets.randbits(62), -MAX_SEED, MAX_SEED)
    biases = _biases(fields, len(lm.tokenizer.texts))
    return Sampling(**how, logit_bias=biases, seed=seed)


def default_sampling(lm: LanguageModel) -> Sampling:
    """Of requests that state nothing."""
    return Sampling(**{**SERVED, **lm.stated_sampling})


def _biases(fields: Fields, vocabulary: int) -> dict[int, float]:
    given = fields.fields("logit_bias")
    return {_token_id(name, vocabulary): given.number(name, 0.0) for name in given.names}


def _token_id(text: str, vocabulary: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= vocabulary:
        wanted = f"numbers by token ids, which are below {vocabulary:,}"
        raise Refused(400, f"'logit_bias' must be {wanted}.", param="logit_bias")
    return int(text)


def requests_of(
    lm: LanguageModel,
    settings: Settings,
    fields: Fields,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    form: Mapping[str, Any] | None = None,
) -> list[Request]:
    """`n` requests for each prompt; `form` is of more weight than what the fields ask for."""
    n = fields.integer("n", 1, 1, settings.max_samples)
    how: dict[str, Any] = {
        "stop": fields.texts("stop", MAX_STOPS),
        "sampling": sampling_of(fields, lm),
        "logprobs": logprobs,
        "context_shift": settings.context_shift,
        "ignore_end": fields.flag("ignore_eos"),
    }
    rooms = [
        _room(lm, prompt, "prompt" if fields.has("prompt") else "messages") for prompt in prompts
    ]
    single = [lm.request(p, max_tokens=max_tokens or r, **how) for p, r in zip(prompts, rooms)]
    shared = lm.request(prompts[0], **(form or _form(fields))).constraint
    return [r for s in single for r in with_seeds(replace(s, constraint=shared), n)]


def _room(lm: LanguageModel, prompt: Sequence[int], name: str) -> int:
    """Tokens that an answer may have."""
    room = lm.context - len(prompt)
    if room < 1:
        raise Refused(
            400,
            f"the prompt has {len(prompt):,} tokens, and this model's context is {lm.context:,}.",
            param=name,
            code="context_length_exceeded",
        )
    return room


def max_tokens_of(fields: Fields, *names: str, least: int = 1) -> int | None:
    for name in names:
        if fields.has(name):
            return fields.integer(name, least, least, 1 << 31)
    return None


def _form(fields: Fields) -> dict[str, Any]:
    """The form of the answer: by `response_format`, or by a regular expression or a grammar."""
    found: dict[str, Any] = {n: fields.text(n) for n in ("regex", "grammar") if fields.has(n)}
    asked = fields.fields("response_format")
    kind = asked.text("type", "text")
    if kind == "json_object":
        found["schema"] = {"type": "object"}
    elif kind == "json_schema":
        schema = asked.fields("json_schema").raw("schema")
        if not isinstance(schema, dict):
            raise Refused(400, "json_schema.schema must be an object.", param="response_format")
        found["schema"] = schema
    elif kind != "text":
        text = f"a response_format of the type {kind[:40]!r} is not known."
        raise Refused(400, text, param="response_format")
    return found


def check_model(fields: Fields, settings: Settings) -> None:
    name = fields.text("model", settings.name)
    if name != settings.name:
        text = f"there is no model {name[:80]!r}: this server has {settings.name!r}."
        raise Refused(404, text, param="model", code="model_not_found")


def check_length(lm: LanguageModel, texts: Sequence[str]) -> None:
    """Refuse what cannot fit before it is tokenized."""
    most = lm.context * lm.longest_token
    longest = max((len(t) for t in texts), default=0)
    if longest > most:
        text = f"a prompt of {longest:,} characters is longer than this model's context."
        raise Refused(400, text, code="context_length_exceeded")
