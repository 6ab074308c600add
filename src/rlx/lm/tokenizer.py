"""Tokenizers of GGUF files: byte-level BPE and WordPiece by the package tokenizers, SentencePiece
by its scores.

Text is first cut at special tokens, where they are to be recognised; what is between them is
tokenized. Tokens decode to bytes: a character may take several of them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.pages import return_freed_memory
from rlx.frontends.gguf.fields import Fields
from rlx.frontends.gguf.neutral_keys import deny_unread_tokenizer_keys
from rlx.frontends.gguf.reader import GgufFile, Texts
from rlx.frontends.gguf.word_splits import SPLITS
from rlx.lm.sentence_pieces import SentencePieces
from rlx.ops.op import Array

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens in files."""
END_NAMES = (
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>",
)  # fmt: skip
"""Control tokens that end an answer, whatever the file's metadata says."""
WHOLE_WORDS = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "tekken",
)  # fmt: skip
"""Values of `tokenizer.ggml.pre` whose vocabularies have words that no merges give."""
BERT = {"unknown": 100, "begin": 101, "separator": 102}
"""Tokens of BERT's vocabulary, where a file does not say others."""
_INSIDE, _UNKNOWN = "\0", "\0\0"
"""What tokens inside of a word begin with, and the unknown one: no text has it once it is cleaned
of control characters."""
_SURROGATE = re.compile("[\\ud800-\\udfff]")


class Tokenizer(ABC):
    """Text to token ids, and back to bytes."""

    def __init__(self, file: GgufFile) -> None:
        self._fields = Fields(file, "tokenizer.ggml")
        self.where = file.name
        texts = self._fields.raw("tokens")
        if not isinstance(texts, Texts):
            raise Error(f"{file.name} has no vocabulary (tokenizer.ggml.tokens).")
        self.texts: Sequence[str] = texts
        self._kinds: Array = np.full(len(texts), NORMAL)
        if self._fields.has("token_type"):
            self._kinds = self._fields.numbers("token_type", len(texts), "iu")

    # -- text to ids -------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        begin: bool | None = None,
        end: bool | None = None,
    ) -> list[int]:
        """The tokens of a text. `special` recognises the names of control tokens in it; `begin`
        puts the token of a beginning first and `end` that of an end last, by default where the
        model wants one."""
        if _SURROGATE.search(text):
            raise Error("the text has half of a surrogate pair, which is no character.")
        parts = enumerate(self._parts(text, special))
        ids = [t for n, part in parts for t in self._part(part, is_first=n == 0)]
        wants = self.adds_begin if begin is None else begin
        if wants and self.begin is not None and ids[:1] != [self.begin]:
            ids.insert(0, self.begin)
        wants = (self.adds_end and begin is not False) if end is None else end
        return [*ids, self.end] if wants and self.end is not None else ids

    def _parts(self, text: str, special: bool) -> Iterable[str | int]:
        """Texts, and tokens that stand in it by name: those that users defined always do, control
        tokens where they are to be recognised."""
        pattern = self._pattern(special)
        if pattern is None:
            return [text]
        parts = enumerate(pattern.split(text))
        return [self._number(p) if n % 2 else p for n, p in parts if p]

    def _number(self, name: str) -> int:
        """The number of a name, which may come with the spaces that it takes."""
        return self._named[name if name in self._named else name.strip()]

    def _part(self, part: str | int, *, is_first: bool) -> Iterable[int]:
        if isinstance(part, int):
            return [part]
        form = self._fields.raw("normalizer.form")
        text = part if form is None else unicodedata.normalize(form, part)  # type: ignore[arg-type]
        return self._words(text, is_first=is_first)

    @abstractmethod
    def _words(self, text: str, *, is_first: bool = True) -> Iterable[int]:
        """The tokens of text without control tokens; is it the beginning?"""

    def exact(self, text: str) -> list[int]:
        """Tokens of exactly these bytes, wherever they stand; control tokens are not recognised."""
        return list(self._words(text))

    @cached_property
    def _named(self) -> Mapping[str, int]:
        """Control tokens and those that users defined."""
        return {self.texts[i]: i for kind in (CONTROL, USER_DEFINED) for i in self._of_kind(kind)}

    def _of_kind(self, kind: int) -> Iterable[int]:
        return (int(i) for i in np.flatnonzero(np.equal(self._kinds, kind)))

    @functools.cache  # noqa: B019  (two patterns, which live as long as the tokenizer)
    def _pattern(self, special: bool) -> re.Pattern[str] | None:
        """The longest name that fits is taken."""
        kinds = (CONTROL, USER_DEFINED) if special else (USER_DEFINED,)
        names = {self.texts[i] for kind in kinds for i in self._of_kind(kind)} - {""}
        longest = sorted(names, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(self._spaced, longest))})") if names else None

    def _spaced(self, name: str) -> str:
        """The pattern of a name, with the spaces before it and behind it that it takes."""
        if not self._fields.has("token_strips"):
            return re.escape(name)
        strips = self._fields.numbers("token_strips", len(self.texts), "iu")[self._named[name]]
        before, behind = (r"\s*" if strips & side else "" for side in (1, 2))
        return f"{before}{re.escape(name)}{behind}"

    # -- ids to bytes ------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of tokens; names of control tokens are left out unless `special`."""
        return b"".join(self.piece(i, special=special) for i in ids)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if not 0 <= token < len(self.texts):
            raise Error(f"{self.where} has {len(self.texts):,} tokens, no token {token}.")
        kind = self._kinds[token]
        if kind == CONTROL:
            return self.texts[token].encode() if special else b""
        if kind == USER_DEFINED:
            return self.texts[token].encode()
        return self._bytes(token)

    @abstractmethod
    def _bytes(self, token: int) -> bytes:
        """What a token of text stands for."""

    # -- special tokens ----------------------------------------------------------------------------

    @cached_property
    def begin(self) -> int | None:
        return self._id("bos_token_id")

    @cached_property
    def adds_begin(self) -> bool:
        return bool(self._fields.raw("add_bos_token"))

    @cached_property
    def end(self) -> int | None:
        """The token that ends a text."""
        return self._id("eos_token_id")

    @property
    def adds_end(self) -> bool:
        return bool(self._fields.raw("add_eos_token"))

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        named = {self._named[n] for n in END_NAMES if n in self._named}
        stated = (self._id(k) for k in ("eos_token_id", "eot_token_id", "eom_token_id"))
        return frozenset(named | {t for t in stated if t is not None})

    @cached_property
    def control(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        return frozenset(self._of_kind(CONTROL))

    def text_of(self, key: str) -> str:
        """The name of the token that metadata has under `key`, or nothing."""
        token = self._id(key)
        return "" if token is None else self.texts[token]

    def _id(self, key: str, default: int | None = None) -> int | None:
        found = self._fields.raw(key)
        found = default if found is None else found
        return found if type(found) is int and 0 <= found < len(self.texts) else None


class BytePairs(Tokenizer):
    """Byte-level BPE, as GPT-2 has it, with the word pattern that the file names."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self._pre = self._fields.text("pre", "gpt-2")
        if self._pre not in SPLITS:
            known = ", ".join(SPLITS)
            raise UnsupportedError(
                f"{file.name} cuts words by {self._pre[:40]!r}, which rlx does not know. It knows "
                f"{known}."
            )

    @cached_property
    def _model(self) -> Any:
        made = self._built()
        return_freed_memory()  # a third of what building it takes
        return made

    def _built(self) -> Any:
        tokenizers = _package("tokenizers")
        merges = self._fields.raw("merges")
        if not isinstance(merges, Texts):
            raise Error(f"{self.where} has no merges (tokenizer.ggml.merges).")
        pairs = [tuple(m.split(" ", 1)) for m in merges]
        vocabulary = {text: i for i, text in enumerate(self.texts)}
        try:
            model = tokenizers.models.BPE(vocabulary, pairs, ignore_merges=self._ignores_merges)
        except Exception as error:
            raise Error(f"{self.where}: its merges do not fit its vocabulary: {error}.") from None
        made = tokenizers.Tokenizer(model)
        steps = tokenizers.pre_tokenizers
        cuts = [steps.Split(tokenizers.Regex(p), "isolated") for p in SPLITS[self._pre]]
        last = steps.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = steps.Sequence([*cuts, last])
        return made

    @property
    def _ignores_merges(self) -> bool:
        """Is a word that is a token that token, whatever merges would give?"""
        stated = self._fields.raw("ignore_merges")
        return self._pre in WHOLE_WORDS if stated is None else bool(stated)

    def _words(self, text: str, *, is_first: bool = True) -> Iterable[int]:
        del is_first
        return self._model.encode(text, add_special_tokens=False).ids

    def _bytes(self, token: int) -> bytes:
        return bytes(_BYTES[c] for c in self.texts[token] if c in _BYTES)


class Pieces(Tokenizer):
    """SentencePiece: pairs are merged in the order of their scores; what is left becomes bytes."""

    @cached_property
    def _model(self) -> SentencePieces:
        scores = self._fields.numbers("scores", len(self.texts), "f")
        skipped = (CONTROL, UNKNOWN, UNUSED)
        vocabulary = {t: i for i, t in enumerate(self.texts) if self._kinds[i] not in skipped}
        return SentencePieces(vocabulary, scores.tolist(), self._id("unknown_token_id"))

    def _words(self, text: str, *, is_first: bool = True) -> Iterable[int]:
        return self.exact(f" {text}" if self._gets_space(text, is_first) else text)

    def exact(self, text: str) -> list[int]:
        return list(self._model.encode(text.replace(" ", "▁")))

    def _gets_space(self, text: str, is_first: bool) -> bool:
        """Is there to be a space before a text? Not a second one, and of some folders only before
        the first text."""
        how = self._fields.raw("space_prefix")
        if not text or (how == "first" and not is_first) or (how and text[0] in " ▁"):
            return False
        return self._adds_space

    @cached_property
    def _adds_space(self) -> bool:
        found = self._fields.raw("add_space_prefix")
        return True if found is None else bool(found)

    def _bytes(self, token: int) -> bytes:
        text = self.texts[token]
        if self._kinds[token] == BYTE:
            return self._byte(text)
        return text.replace("▁", " ").encode()

    def _byte(self, text: str) -> bytes:
        """What <0x0A> stands for."""
        if not re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
            raise Error(f"{self.where}: the token {text[:40]!r} is to be a byte, such as <0x0A>.")
        return bytes([int(text[3:5], 16)])


class WordPieces(Tokenizer):
    """WordPiece, as BERT has it: of each word the longest token that fits, again and again; a word
    that tokens do not cover is unknown. Tokens that begin a word are marked in the file by a ▁."""

    @cached_property
    def _model(self) -> Any:
        tokenizers = _package("tokenizers")
        names = {t: i for i, t in enumerate(self.texts) if self._kinds[i] == NORMAL}
        vocabulary = {t[1:] if t[:1] == "▁" else _INSIDE + t: i for t, i in names.items()}
        vocabulary[_UNKNOWN] = self._id("unknown_token_id", BERT["unknown"]) or 0
        model = tokenizers.models.WordPiece(
            vocabulary, unk_token=_UNKNOWN, continuing_subword_prefix=_INSIDE
        )
        made = tokenizers.Tokenizer(model)
        made.normalizer = tokenizers.normalizers.BertNormalizer(
            lowercase=self._is("normalizer.lowercase"),
            strip_accents=self._is("normalizer.strip_accents"),
        )
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return made

    def _words(self, text: str, *, is_first: bool = True) -> Iterable[int]:
        del is_first
        return self._model.encode(text, add_special_tokens=False).ids

    def _bytes(self, token: int) -> bytes:
        return self.texts[token].replace("▁", " ").encode()

    @cached_property
    def begin(self) -> int | None:
        return self._id("bos_token_id", BERT["begin"])

    @cached_property
    def end(self) -> int | None:
        return self._id("seperator_token_id", BERT["separator"])

    @cached_property
    def adds_begin(self) -> bool:
        return self._is("add_bos_token")

    @property
    def adds_end(self) -> bool:
        return self.adds_begin

    def _is(self, key: str) -> bool:
        """What a file does not say is so."""
        found = self._fields.raw(key)
        return True if found is None else bool(found)


KINDS: Mapping[str, tuple[type[Tokenizer], str]] = {
    "gpt2": (BytePairs, "byte-level BPE"),
    "llama": (Pieces, "SentencePiece"),
    "bert": (WordPieces, "WordPiece"),
}
"""By `tokenizer.ggml.model`."""


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """The tokenizer that a file describes."""
    kind = Fields(file, "tokenizer.ggml").text("model")
    if kind in KINDS:
        deny_unread_tokenizer_keys(file, kind)
        return KINDS[kind][0](file)
    known = ", ".join(f"{name} ({what})" for name, (_, what) in KINDS.items())
    raise UnsupportedError(
        f"{file.name} has a tokenizer of the kind {kind[:40]!r}. rlx reads {known}."
    )


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedError(
            f"language models need the package {name}: pip install 'rlx[lm]'"
        ) from None


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones are themselves, others follow from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {chr(b): b for b in plain}
    return letters | {chr(256 + n): b for n, b in enumerate(others)}


_BYTES = _byte_letters()
