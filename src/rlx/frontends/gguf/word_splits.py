"""How byte-level BPE cuts text into words before it merges, by the names that GGUF files have."""

from __future__ import annotations

from collections.abc import Mapping

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MODERN = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{first}%(end)s"
    for first in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
)
_CASED = _CASED_WORDS + r"|%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"

_FAMILIES: Mapping[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v2-es "
    "jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4",
    (r"\p{N}", _GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (_MODERN % r"\p{N}{1,3}",): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
    "jina-v5-nano dbrx smaug-bpe chatglm-bpe glm4 glm5",
    (_MODERN % r"\p{N}",): "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez "
    "solar-open grok-2",
    (_CASED % {"end": "", "digits": r"\p{N}"},): "tekken",
    (_CASED % {"end": _CONTRACTIONS + "?", "digits": r"\p{N}{1,3}"},): "gpt-4o llama4 kanana2 "
    "minimax-m2",
    (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _PUNCTUATED): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"): "deepseek-coder",
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"): "falcon",
    (_SENTENCES,): "bloom poro-chat gpt3-finnish",
    (_SENTENCES, r"\p{N}"): "viking",
    (r"\p{N}{1,3}", _MODERN % r"\p{N}+"): "minicpm5",
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
}
SPLITS: Mapping[str, tuple[str, ...]] = {
    name: patterns for patterns, names in _FAMILIES.items() for name in names.split()
}
"""By `tokenizer.ggml.pre`: patterns that cut text into words, one after the other."""


def split_named(patterns: tuple[str, ...]) -> str | None:
    """The first name of a list of patterns."""
    return next((name for name, found in SPLITS.items() if found == patterns), None)


GPT2_PATTERN = _GPT2
