"""tokenizer.json and its neighbours as GGUF's metadata of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import opened
from rlx.frontends.gguf.reader import Texts
from rlx.frontends.gguf.word_splits import GPT2_PATTERN, split_named
from rlx.frontends.safetensors.reader import read_object
from rlx.ops.op import Array

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG, TEMPLATE = "generation_config.json", "chat_template.jinja"
MAX_TOKENIZER_BYTES, MAX_TEMPLATE_BYTES = 1 << 26, 1 << 20
MOST_TOKENS = 1 << 22
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
"""Kinds of tokens in GGUF files."""


def tokenizer_metadata(folder: Path) -> dict[str, Any]:
    """GGUF's pairs of a tokenizer; none where the folder has no tokenizer."""
    path = folder / TOKENIZER
    if not path.is_file():
        return {}
    whole = read_object(path, MAX_TOKENIZER_BYTES)
    said = {n: _optional(folder / n) for n in (TOKENIZER_CONFIG, GENERATION_CONFIG)}
    model = _Model(whole, str(path))
    found = {**model.metadata(), **_special(model, said, str(path))}
    template = _template(folder, said[TOKENIZER_CONFIG])
    if template is not None:
        found["tokenizer.chat_template"] = template
    return found


def _optional(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}


class _Model:
    """Vocabulary, merges and splits of a tokenizer.json, each checked."""

    def __init__(self, whole: Mapping[str, Any], where: str) -> None:
        self._whole, self.where = whole, where
        model = whole.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            kind = model.get("type") if isinstance(model, dict) else model
            raise UnsupportedError(f"{where}: a tokenizer of {kind!r:.60}. rlx reads BPE.")
        self._model: Mapping[str, Any] = model
        self.added = _objects(whole.get("added_tokens"))
        self.texts = self._texts()
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def _texts(self) -> list[str]:
        """Tokens by number; numbers that nobody has are unused."""
        vocabulary = self._model.get("vocab")
        if not isinstance(vocabulary, dict):
            raise Error(f"{self.where} has no vocabulary (model.vocab).")
        stated: list[tuple[Any, Any]] = [
            *vocabulary.items(), *((a.get("content"), a.get("id")) for a in self.added),
        ]  # fmt: skip
        for text, number in stated:
            is_right = isinstance(text, str) and type(number) is int and 0 <= number < MOST_TOKENS
            if not is_right:
                raise Error(f"{self.where}: token {text!r:.60} has the number {number!r:.60}.")
        texts = [f"[PAD{i}]" for i in range(1 + max((n for _, n in stated), default=-1))]
        for text, number in stated:
            texts[number] = text
        return texts

    def _merges(self) -> list[str]:
        found = self._model.get("merges")
        if not isinstance(found, list):
            raise Error(f"{self.where} has no merges (model.merges).")
        made = [_merge(m) for m in found]
        if None in made:
            raise Error(f"{self.where}: its merges are no pairs of texts.")
        return [m for m in made if m is not None]

    def metadata(self) -> dict[str, Any]:
        merges = self._merges()
        has_bytes = self._model.get("byte_fallback") is True
        found: dict[str, Any] = {
            "tokenizer.ggml.tokens": texts_of(self.texts),
            "tokenizer.ggml.token_type": self._kinds(has_bytes=has_bytes),
        }
        if has_bytes:
            return {**found, **self._pieces(merges)}
        split = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": self._split()}
        return {**found, **split, "tokenizer.ggml.merges": texts_of(merges)}

    def _pieces(self, merges: list[str]) -> dict[str, Any]:
        """SentencePiece: a piece's score is the rank of the first pair that makes it."""
        scores = np.zeros(len(self.texts), np.float32)
        for rank, merge in reversed(list(enumerate(merges))):
            left, right = merge.split(" ", 1)
            if left + right in self.ids:
                scores[self.ids[left + right]] = -1.0 - rank
        unknown = self.ids.get(str(self._model.get("unk_token")))
        named = {} if unknown is None else {"tokenizer.ggml.unknown_token_id": unknown}
        return {
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.add_space_prefix": self._adds_space(), **named,
        }  # fmt: skip

    def _kinds(self, *, has_bytes: bool) -> Array:
        kinds = np.full(len(self.texts), NORMAL, np.int32)
        if has_bytes:
            names = (f"<0x{byte:02X}>" for byte in range(256))
            kinds[[self.ids[n] for n in names if n in self.ids]] = BYTE
        for added in self.added:
            kinds[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
        return kinds

    def _steps(self, part: str) -> list[Mapping[str, Any]]:
        """The steps of a normalizer or a pre-tokenizer, one after the other."""
        found = self._whole.get(part)
        if not isinstance(found, dict):
            return []
        return _objects(found.get("normalizers") or found.get("pretokenizers") or [found])

    def _adds_space(self) -> bool:
        prepends = any(s.get("type") == "Prepend" for s in self._steps("normalizer"))
        spaces = [s for s in self._steps("pre_tokenizer") if s.get("type") == "Metaspace"]
        return prepends or any(s.get("prepend_scheme", "always") != "never" for s in spaces)

    def _split(self) -> str:
        """The name of the patterns that cut text into words."""
        patterns: list[str] = []
        for step in self._steps("pre_tokenizer"):
            match step:
                case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
                    patterns.append(pattern)
                case {"type": "Digits", "individual_digits": True}:
                    patterns.append(r"\p{N}")
                case {"type": "ByteLevel"}:
                    patterns += [GPT2_PATTERN] if step.get("use_regex", True) else []
                case _:
                    raise self._unknown_split(step.get("type"))
        found = split_named(tuple(patterns))
        if found is None:
            raise self._unknown_split(patterns)
        return found

    def _unknown_split(self, what: Any) -> UnsupportedError:
        return UnsupportedError(
            f"{self.where} cuts words by {what!r:.120}, which rlx does not know."
        )

    def begins(self) -> bool:
        """Does its template put a token of a beginning first?"""
        found = self._whole.get("post_processor")
        if not isinstance(found, dict):
            return False
        parts = [found, *_objects(found.get("processors"))]
        firsts = (_objects(p.get("single"))[:1] for p in parts)
        return any("SpecialToken" in first for part in firsts for first in part)


def _objects(found: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, if it is one."""
    return [o for o in found if isinstance(o, dict)] if isinstance(found, list) else []


def _merge(pair: Any) -> str | None:
    """A pair of texts as one: configurations have both forms."""
    match pair:
        case [str(left), str(right)]:
            return f"{left} {right}"
        case str() if " " in pair:
            return pair
        case _:
            return None


def _special(model: _Model, said: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Tokens of a beginning and of an end."""
    config, generation = said[TOKENIZER_CONFIG], said[GENERATION_CONFIG]
    found: dict[str, Any] = {}
    for name in ("bos", "eos", "unk", "pad"):
        text = config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        if isinstance(text, str) and text in model.ids:
            found[f"tokenizer.ggml.{key}_token_id"] = model.ids[text]
    ends = generation.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if not all(e is None or (type(e) is int and 0 <= e < len(model.texts)) for e in ends):
        raise Error(f"{where}: eos_token_id of {GENERATION_CONFIG} is {ends!r:.60}, no tokens.")
    known = {found.get("tokenizer.ggml.eos_token_id")}
    rest = [e for e in ends if e is not None and e not in known]
    keys = [k for k in ("eos", "eot", "eom") if f"tokenizer.ggml.{k}_token_id" not in found]
    found |= {f"tokenizer.ggml.{key}_token_id": end for key, end in zip(keys, rest)}
    adds = config.get("add_bos_token")
    found["tokenizer.ggml.add_bos_token"] = model.begins() if adds is None else bool(adds)
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or the default one of the configuration."""
    path = folder / TEMPLATE
    if path.is_file():
        data = opened(path)
        if len(data) > MAX_TEMPLATE_BYTES:
            raise Error(f"{path} has {len(data):,} bytes, more than {MAX_TEMPLATE_BYTES:,}.")
        try:
            return bytes(data[:]).decode()
        except UnicodeDecodeError:
            raise Error(f"{path} is no UTF-8 text.") from None
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {str(t.get("name")): t.get("template") for t in _objects(found)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def texts_of(values: Sequence[str]) -> Texts:
    """An array of texts as files have it."""
    parts, bounds, at = [], np.empty((len(values), 2), np.int64), 0
    for i, text in enumerate(values):
        raw = text.encode("utf-8", "surrogatepass")
        bounds[i] = at + 8, at + 8 + len(raw)
        at += 8 + len(raw)
        parts += [len(raw).to_bytes(8, "little"), raw]
    return Texts(b"".join(parts), bounds, "tokenizer.json", "a token")
