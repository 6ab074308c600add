"""How a model's authors draw tokens: what a file states, for requests that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.core.errors import InputError, UnsupportedError
from rlx.frontends.gguf.reader import GgufFile
from rlx.lm.sampling import Sampling

PREFIX = "general.sampling."
FIELDS = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "typical_p": "typical_p", "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_tokens",
}  # fmt: skip
"""Keys of GGUF files behind `general.sampling.`, and the field of `Sampling` that each is."""
NEUTRAL = {"mirostat": 0, "xtc_probability": 0.0}
"""Ways to draw that rlx does not have, and the values that ask for none of them."""
BESIDE = ("mirostat_tau", "mirostat_eta", "xtc_threshold")
"""Parameters of those."""
ALL_TOKENS = 1 << 24
"""A negative `penalty_last_n`."""
FILTERED: Mapping[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""For draws where a file states nothing: tokens that are unlikely are left out, as llama.cpp does;
a small model's own probabilities, unfiltered, are gibberish."""
SERVED: Mapping[str, Any] = {"temperature": 0.8, **FILTERED}
"""The same of requests to a server."""


def stated_sampling(file: GgufFile) -> dict[str, Any]:
    """The fields of `Sampling` that a file states."""
    found: dict[str, Any] = {}
    for name in (n for n in file.metadata if n.startswith(PREFIX)):
        key, value = name.removeprefix(PREFIX), file.metadata[name]
        if key in BESIDE or (key in NEUTRAL and value == NEUTRAL[key]):
            continue
        if key not in FIELDS:
            raise UnsupportedError(
                f"{file.name}: {name} is {value!r:.60}, and rlx draws by {', '.join(FIELDS)}. "
                "State other defaults: rlx.lm.load(…, sampling=rlx.lm.Sampling(…))."
            )
        found[FIELDS[key]] = _plain(value)
    if found.get("penalty_tokens", 0) < 0:
        found["penalty_tokens"] = ALL_TOKENS
    _check(file, found)
    return found


def sampling_text(fields: Mapping[str, Any]) -> str:
    """Fields in a line, without those that do nothing."""
    plain = Sampling()
    named = {k: v for k, v in fields.items() if k in Sampling.__dataclass_fields__}
    shown = [f"{k} {v:g}" for k, v in named.items() if k == "temperature" or v != getattr(plain, k)]
    return ", ".join(s for s in shown if not s.startswith(("penalty_tokens", "seed")))


def _plain(value: Any) -> Any:
    """The number that was meant by one that a file has in f32."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _check(file: GgufFile, found: Mapping[str, Any]) -> None:
    try:
        Sampling(**found)
    except InputError as error:
        raise InputError(f"{file.name}: {PREFIX}*: {error}") from None
