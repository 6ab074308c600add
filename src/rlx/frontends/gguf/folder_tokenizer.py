"""tokenizer.json and its neighbours as GGUF's metadata of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import opened
from rlx.frontends.gguf.folder_text import USE_TRANSFORMERS, TextSteps
from rlx.frontends.gguf.reader import Texts
from rlx.frontends.safetensors.reader import read_object
from rlx.frontends.tracked_fields import ANY, Neutral, TrackedFields
from rlx.ops.op import Array

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
MAX_TOKENIZER_BYTES, MAX_TEMPLATE_BYTES = 1 << 26, 1 << 20
MOST_TOKENS = 1 << 22
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
"""Kinds of tokens in GGUF files."""
TOKENIZER_FIELDS: Neutral = {
    "version": ANY, "truncation": ANY, "padding": ANY, "model.dropout": (0.0,),
    "model.continuing_subword_prefix": ("",), "model.end_of_word_suffix": ("",),
    "model.fuse_unk": ANY, "model.unk_token": ANY, "model.ignore_merges": (False,),
    "added_tokens.normalized": ANY, "added_tokens.single_word": (False,),
}  # fmt: skip
"""Fields of tokenizer.json that change no token: encoded texts are not cut, and all bytes have
tokens."""
CONFIG_FIELDS: Neutral = {
    "_*": ANY, "*_token": ANY, "additional_special_tokens": ANY,
    "split_special_tokens": (False,),
    "extra_special_tokens": ANY, "model_specific_special_tokens": ANY,
    "tokenizer_class": ANY, "processor_class": ANY, "auto_map": ANY, "name_or_path": ANY,
    "tokenizer_file": ANY, "special_tokens_map_file": ANY, "backend": ANY, "is_local": ANY,
    "use_fast": ANY, "model_input_names": ANY, "return_token_type_ids": ANY,
    # lengths, which callers state, and batches
    "model_max_length": ANY, "max_length": ANY, "stride": ANY, "truncation*": ANY,
    "pad*": ANY, "padding_side": ANY,
    # what older classes did, which tokenizer.json has as it is
    "legacy": ANY, "sp_model_kwargs": ANY, "from_slow": ANY, "do_lower_case": (False,),
    "spaces_between_special_tokens": ANY, "use_default_system_prompt": ANY, "errors": ANY,
    "clean_up_tokenization_spaces": ANY, "unk*": ANY,
}  # fmt: skip
"""Fields of tokenizer_config.json that change no token."""


def tokenizer_metadata(folder: Path, ends: Any) -> dict[str, Any]:
    """GGUF's pairs of a tokenizer; none where the folder has no tokenizer. `ends` are the tokens
    that end an answer, one or several, as configurations of the model have them."""
    path = folder / TOKENIZER
    if not path.is_file():
        return {}
    whole = read_object(path, MAX_TOKENIZER_BYTES)
    config = optional_fields(folder / TOKENIZER_CONFIG)
    model = _Model(TrackedFields(whole, str(path)))
    found = {**model.metadata(), **_special(model, config, ends)}
    template = _template(folder, config)
    if template is not None:
        found["tokenizer.chat_template"] = template
    model.deny_unread()
    config.deny_unread([CONFIG_FIELDS], USE_TRANSFORMERS)
    return found


def optional_fields(path: Path) -> TrackedFields:
    """The fields of a file, if there is one."""
    return TrackedFields(read_object(path) if path.is_file() else {}, str(path))


class _Model:
    """Vocabulary, merges and splits of a tokenizer.json, each checked."""

    def __init__(self, whole: TrackedFields) -> None:
        self._whole, self.where = whole, whole.where
        self._model = whole.inner("model")
        if (kind := self._model.get("type", "BPE")) != "BPE":
            raise UnsupportedError(f"{self.where}: a tokenizer of {kind!r:.60}. rlx reads BPE.")
        self.added = [
            TrackedFields(a, self.where, "added_tokens.")
            for a in _objects(whole.get("added_tokens"))
        ]
        self.texts = self._texts()
        self.ids = {text: i for i, text in enumerate(self.texts)}
        self.has_bytes = self._model.get("byte_fallback") is True
        self.steps = TextSteps(whole, is_byte_level=not self.has_bytes)

    def deny_unread(self) -> None:
        for fields in (self._whole, *self.added):
            fields.deny_unread([TOKENIZER_FIELDS], USE_TRANSFORMERS)

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
        found: dict[str, Any] = {
            "tokenizer.ggml.tokens": texts_of(self.texts),
            "tokenizer.ggml.token_type": self._kinds(has_bytes=self.has_bytes),
            **self.steps.metadata, **self._strips(),
        }  # fmt: skip
        if self.has_bytes:
            return {**found, **self._pieces(merges)}
        ignores = {"tokenizer.ggml.ignore_merges": self._model.get("ignore_merges") is True}
        return {**found, **ignores, "tokenizer.ggml.merges": texts_of(merges)}

    def _strips(self) -> dict[str, Any]:
        """Added tokens that take spaces before them (1) and behind them (2) with them."""
        strips = np.zeros(len(self.texts), np.int32)
        for added in self.added:
            strips[added["id"]] = bool(added.get("lstrip")) + 2 * bool(added.get("rstrip"))
        return {"tokenizer.ggml.token_strips": strips} if strips.any() else {}

    def _pieces(self, merges: list[str]) -> dict[str, Any]:
        """SentencePiece: a piece's score is the rank of the first pair that makes it."""
        scores = np.zeros(len(self.texts), np.float32)
        for rank, merge in reversed(list(enumerate(merges))):
            left, right = merge.split(" ", 1)
            if left + right in self.ids:
                scores[self.ids[left + right]] = -1.0 - rank
        unknown = self.ids.get(str(self._model.get("unk_token")))
        named = {} if unknown is None else {"tokenizer.ggml.unknown_token_id": unknown}
        return {"tokenizer.ggml.scores": scores, **named}

    def _kinds(self, *, has_bytes: bool) -> Array:
        kinds = np.full(len(self.texts), NORMAL, np.int32)
        if has_bytes:
            names = (f"<0x{byte:02X}>" for byte in range(256))
            kinds[[self.ids[n] for n in names if n in self.ids]] = BYTE
        for added in self.added:
            kinds[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
        return kinds


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


def _special(model: _Model, config: TrackedFields, ends: Any) -> dict[str, Any]:
    """Tokens of a beginning and of an end, and whether texts get them."""
    found: dict[str, Any] = {}
    for name in ("bos", "eos", "unk", "pad"):
        text = config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        if isinstance(text, str) and text in model.ids:
            found[f"tokenizer.ggml.{key}_token_id"] = model.ids[text]
    listed = ends if isinstance(ends, list) else [ends]
    if not all(e is None or (type(e) is int and 0 <= e < len(model.texts)) for e in listed):
        raise Error(f"{model.where}: eos_token_id of its model is {ends!r:.60}, no tokens.")
    known = {found.get("tokenizer.ggml.eos_token_id")}
    rest = [e for e in listed if e is not None and e not in known]
    keys = [k for k in ("eos", "eot", "eom") if f"tokenizer.ggml.{k}_token_id" not in found]
    if len(rest) > len(keys):
        raise UnsupportedError(
            f"{model.where}: answers of its model end with one of {ends!r:.60}. rlx knows up to "
            f"{len(keys)} such tokens beside eos_token. {USE_TRANSFORMERS}"
        )
    found |= {f"tokenizer.ggml.{key}_token_id": end for key, end in zip(keys, rest)}
    for name, tokens in (("bos", model.steps.first), ("eos", model.steps.last)):
        stated = config.get(f"add_{name}_token")
        found |= _framing(model, found, name, tokens if stated is None else None, bool(stated))
    _check_added(model, config)
    _check_space(model, config)
    return found


def _framing(
    model: _Model, found: dict[str, Any], name: str, tokens: list[str] | None, is_stated: bool
) -> dict[str, Any]:
    """Whether texts get a token of a beginning or an end: as is stated, or by the template, whose
    tokens then are `tokens`."""
    key = f"tokenizer.ggml.add_{name}_token"
    if tokens is None:
        return {key: is_stated}
    if not tokens:
        return {key: False}
    numbers = [model.ids.get(t) for t in tokens]
    own = found.setdefault(f"tokenizer.ggml.{name}_token_id", numbers[0])
    if numbers != [own]:
        raise UnsupportedError(
            f"{model.where} puts {', '.join(map(repr, tokens))[:120]} around texts, which is not "
            f"the {name}_token of {TOKENIZER_CONFIG}. {USE_TRANSFORMERS}"
        )
    return {key: True}


def _check_added(model: _Model, config: TrackedFields) -> None:
    """Tokens of the configuration are those of the tokenizer."""
    listed = config.get("added_tokens_decoder")
    own = {a["id"]: a for a in model.added}
    for number, entry in listed.items() if isinstance(listed, Mapping) else ():
        added = own.get(int(number)) if str(number).isdecimal() else None
        fields = ("content", "special", "lstrip", "rstrip")
        if not isinstance(entry, Mapping) or any(
            entry.get(f) != (None if added is None else added.get(f)) for f in fields if f in entry
        ):
            raise Error(
                f"{config.where}: added_tokens_decoder.{number:.20} is not that token of "
                f"{TOKENIZER}. {USE_TRANSFORMERS}"
            )


def _check_space(model: _Model, config: TrackedFields) -> None:
    stated = config.get("add_prefix_space")
    does = model.steps.metadata.get("tokenizer.ggml.add_space_prefix", False)
    if isinstance(stated, bool) and stated is not does:
        raise UnsupportedError(
            f"{config.where}: add_prefix_space is {stated}, and {TOKENIZER} does otherwise. "
            f"{USE_TRANSFORMERS}"
        )


def _template(folder: Path, config: TrackedFields) -> str | None:
    """The chat template: a file of its own, or the default one of the configuration."""
    path, found = folder / TEMPLATE, config.get("chat_template")
    if path.is_file():
        data = opened(path)
        if len(data) > MAX_TEMPLATE_BYTES:
            raise Error(f"{path} has {len(data):,} bytes, more than {MAX_TEMPLATE_BYTES:,}.")
        try:
            return bytes(data[:]).decode()
        except UnicodeDecodeError:
            raise Error(f"{path} is no UTF-8 text.") from None
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
