"""generation_config.json as GGUF's metadata: how its authors draw tokens, and where answers end."""

from __future__ import annotations

from typing import Any

from rlx.core.errors import Error
from rlx.frontends.tracked_fields import ANY, Neutral, TrackedFields

ALL_TOKENS = -1
"""Of `penalty_last_n`: transformers penalises what occurs anywhere before."""
TOP_K = 50
"""Of transformers, where a configuration draws and does not say."""
STATES_DRAWS = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
)  # fmt: skip
NEXT_STEP = "Delete the field, or generate with transformers."
NEUTRAL: Neutral = {
    "_*": ANY, "transformers_version": ANY, "bos_token_id": ANY, "pad_token_id": ANY,
    "eos_token_id": ANY, "trust_remote_code": ANY,
    # lengths, which callers state
    "max_length": ANY, "max_new_tokens": ANY, "min_length": (0,), "max_time": ANY,
    # how transformers computes the same
    "use_cache": ANY, "cache_implementation": ANY, "cache_config": ANY, "low_memory": ANY,
    "return_dict_in_generate": ANY, "output_*": ANY, "compile_config": ANY, "disable_compile": ANY,
    "prompt_lookup_num_tokens": ANY, "assistant_*": ANY, "num_assistant_tokens*": ANY,
    "is_assistant": ANY, "max_matching_ngram_size": ANY, "target_lookbehind": ANY,
    # other ways to choose, and the values that ask for none of them
    "num_beams": (1,), "num_beam_groups": (1,), "num_return_sequences": ANY, "use_mtp": (False,),
    "length_penalty": ANY, "early_stopping": ANY, "diversity_penalty": (0.0,),
    "penalty_alpha": (0.0,), "no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,),
    "guidance_scale": (1.0,), "renormalize_logits": ANY, "remove_invalid_values": ANY,
    "top_h": (1.0,), "suppress_tokens": ([],), "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],), "token_healing": (False,), "dola_layers": (),
}  # fmt: skip


def sampling_metadata(fields: TrackedFields) -> dict[str, Any]:
    """GGUF's pairs of how tokens are drawn; none where the configuration does not say. Without
    `do_sample` the likeliest token is taken, whatever else it states."""
    stated = {key: fields.get(key) for key in STATES_DRAWS}
    if all(value is None for value in stated.values()):
        return {}
    found = {
        "temp": _number(fields, "temperature", 1.0) if stated["do_sample"] else 0.0,
        "top_k": _number(fields, "top_k", TOP_K), "top_p": _number(fields, "top_p", 1.0),
        "min_p": _number(fields, "min_p", 0.0), "typical_p": _number(fields, "typical_p", 1.0),
        "penalty_repeat": _number(fields, "repetition_penalty", 1.0),
        "penalty_last_n": ALL_TOKENS,
    }  # fmt: skip
    return {f"general.sampling.{key}": value for key, value in found.items()}


def _number(fields: TrackedFields, key: str, default: float) -> float:
    found = fields.get(key)
    found = default if found is None else found
    if type(found) not in (int, float):
        raise Error(f"{fields.where}: {key} is {found!r:.60}, not a number.")
    return found
