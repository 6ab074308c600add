"""The steps of a tokenizer.json before and behind its model: what they do to texts, as GGUF's
metadata has it. A step, or a field of one, that rlx does not carry out is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlx.core.errors import UnsupportedError
from rlx.frontends.gguf.word_splits import GPT2_PATTERN, split_named
from rlx.frontends.tracked_fields import ANY, Neutral, TrackedFields

USE_TRANSFORMERS = "Tokenize with transformers, and give rlx the tokens."
SPACE = "▁"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
STEP: Neutral = {"*trim_offsets": ANY, "*ids": ANY, "*special_tokens": ANY, "*pair": ANY}
DECODERS = ("ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")
"""Those that undo what the steps here do."""


class TextSteps:
    """Normalizers, pre-tokenizers and post-processors, one after the other."""

    def __init__(self, whole: TrackedFields, *, is_byte_level: bool) -> None:
        self._whole, self._is_byte_level = whole, is_byte_level
        self.metadata: dict[str, Any] = {}
        """GGUF's pairs, and pairs of rlx for what GGUF does not have."""
        self.first: list[str] = []
        """Tokens before a text, and behind it, by name."""
        self.last: list[str] = []
        self._patterns: list[str] = []
        self._prefix = "never"
        for part, read in (
            ("normalizer", self._normalize), ("pre_tokenizer", self._split),
            ("post_processor", self._frame), ("decoder", self._check_decoder),
        ):  # fmt: skip
            for step in self._steps(part):
                read(step)
                step.deny_unread([STEP], USE_TRANSFORMERS)
        self.metadata |= self._words() if is_byte_level else self._spaces()

    def _steps(self, part: str) -> Iterator[TrackedFields]:
        found = self._whole.get(part)
        return _flat(found, self._whole.where, part) if isinstance(found, Mapping) else iter(())

    def _normalize(self, step: TrackedFields) -> None:
        kind = step.get("type")
        if kind in FORMS and "tokenizer.ggml.normalizer.form" not in self.metadata:
            self.metadata["tokenizer.ggml.normalizer.form"] = kind
        elif kind == "Prepend" and step.get("prepend") == SPACE and not self._is_byte_level:
            self._prefix = "always"
        elif (kind, step.get("pattern"), step.get("content")) != (
            "Replace",
            {"String": " "},
            SPACE,
        ):
            raise self._unknown(step, "changes texts by")

    def _split(self, step: TrackedFields) -> None:
        if self._is_byte_level:
            self._split_words(step)
            return
        match step.get("type"):
            case "Metaspace" if not step.get("split", True) and step.get("replacement") == SPACE:
                scheme = step.get("prepend_scheme", "always")
                self._prefix = str(scheme if step.get("add_prefix_space", True) else "never")
                self.metadata["tokenizer.ggml.space_prefix"] = self._prefix
            case "Split" if step.get("pattern") == {"String": " "}:
                step.read("behavior", "invert")  # no space is left in a normalised text
            case _:
                raise self._unknown(step, "cuts words by")

    def _split_words(self, step: TrackedFields) -> None:
        match step.get("type"), step.get("pattern"):
            case "Split", {"Regex": str(pattern)} if step.get(
                "behavior"
            ) == "Isolated" and not step.get("invert", False):
                self._patterns.append(pattern)
            case "Digits", _ if step.get("individual_digits") is True:
                self._patterns.append(r"\p{N}")
            case "ByteLevel", _ if not step.get("add_prefix_space", False):
                self._patterns += [GPT2_PATTERN] if step.get("use_regex", True) else []
            case _:
                raise self._unknown(step, "cuts words by")

    def _frame(self, step: TrackedFields) -> None:
        kind, single = step.get("type"), step.get("single")
        if kind == "ByteLevel":
            step.read("add_prefix_space", "use_regex")  # of offsets
            return
        if kind not in (None, "TemplateProcessing") or not isinstance(single, list):
            raise self._unknown(step, "puts tokens around texts by")
        names = [_framed(piece) for piece in single]
        if names.count(None) != 1:
            raise self._unknown(step, "puts tokens around texts by")
        at = names.index(None)
        self.first += [n for n in names[:at] if n is not None]
        self.last += [n for n in names[at + 1 :] if n is not None]

    def _check_decoder(self, step: TrackedFields) -> None:
        if step.get("type") not in DECODERS:
            raise self._unknown(step, "makes text by")
        step.read(*step)

    def _words(self) -> dict[str, Any]:
        """The name of the patterns that cut text into words."""
        found = split_named(tuple(self._patterns))
        if found is None:
            raise self._unknown(self._patterns, "cuts words by")
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": found}

    def _spaces(self) -> dict[str, Any]:
        """Whether a text gets a space before it: the first one, or each behind a special token."""
        if self._prefix not in ("always", "never", "first"):
            raise self._unknown(self._prefix, "puts spaces before texts")
        return {
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.add_space_prefix": self._prefix != "never",
        }  # fmt: skip

    def _unknown(self, what: object, does: str) -> UnsupportedError:
        shown = what
        if isinstance(what, TrackedFields):
            shown = what.get("type") if len(what) == 1 else dict(what)
        return UnsupportedError(
            f"{self._whole.where} {does} {shown!r:.120}, which rlx does not know. "
            f"{USE_TRANSFORMERS}"
        )


def _flat(step: Mapping[str, Any], where: str, part: str) -> Iterator[TrackedFields]:
    """The steps of a sequence, those of sequences inside among them."""
    inner = next((step[k] for k in LISTS if isinstance(step.get(k), list)), None)
    if inner is None:
        yield TrackedFields(step, where, f"{part}.")
        return
    for each in inner:
        if isinstance(each, Mapping):
            yield from _flat(each, where, part)


LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
"""Fields of sequences."""


def _framed(piece: Any) -> str | None:
    """A special token of a template; None: the text."""
    match piece:
        case {"SpecialToken": {"id": str(name)}}:
            return name
        case _:
            return None
