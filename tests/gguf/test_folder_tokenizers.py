"""Tokenizers of folders against the package tokenizers: each field of tokenizer.json that changes
tokens is read, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.frontends.gguf.source import language_model_file
from rlx.lm.tokenizer import tokenizer_of
from tests.gguf import vocabularies
from tests.gguf.test_folder import folder_of

tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
TEXTS = (
    "hello the he", " hello", "hell <|end|> hello", "the<|end|>   he", "a\n\n<|user|>\n b",
    "é e\u0301 ﬁ Å", "123 4567", "", "  ", "<|end|>", "x<|user|> <|end|>y", "hello  hello",
)  # fmt: skip
FRAMES: list[Any] = [
    {"type": "ByteLevel", "trim_offsets": False, "add_prefix_space": True, "use_regex": True},
    {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
    ]},
    {"type": "TemplateProcessing", "single": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
    ]},
    {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|user|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
    ]},
    {"type": "BertProcessing", "sep": ["<|end|>", 3], "cls": ["<|user|>", 2]},
]  # fmt: skip
NORMALIZERS: list[Any] = [
    None, {"type": "NFC"}, {"type": "NFKD"}, {"type": "Lowercase"},
    {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": "l"}, "content": "he"},
]  # fmt: skip
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLITS: list[Any] = [
    {**BYTES, "add_prefix_space": True}, {"type": "Whitespace"},
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, BYTES]},
]  # fmt: skip
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def byte_level() -> dict[str, Any]:
    texts, merges, _ = vocabularies.byte_pairs()
    vocabulary = {t: i for i, t in enumerate([*texts, "hello"])}
    added = [
        {"id": i, "content": t, "special": t != "<|user|>", **dict.fromkeys(FLAGS, False)}
        for i, t in enumerate(vocabularies.SPECIAL)
    ]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocabulary, "merges": [m.split(" ") for m in merges],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": BYTES, "post_processor": None,
        "decoder": {**BYTES}, "model": model,
    }  # fmt: skip


def pieces() -> dict[str, Any]:
    texts, _, kinds = vocabularies.pieces()
    merges = ["▁ he", "h e", "l l", "he ll", "▁ hell", "hell o", "▁hell o"]
    vocabulary = {t: i for i, t in enumerate(texts)}
    merges = [
        m for m in merges if all(p in vocabulary for p in (*m.split(" "), m.replace(" ", "")))
    ]
    added = [
        {"id": i, "content": t, "special": True, **dict.fromkeys(FLAGS, False)}
        for i, t in enumerate(texts)
        if kinds[i] == vocabularies.CONTROL
    ]
    whole = byte_level()
    model = {**whole["model"], "byte_fallback": True, "vocab": vocabulary, "unk_token": "<unk>",
             "fuse_unk": True, "merges": [m.split(" ") for m in merges]}  # fmt: skip
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        **whole, "model": model, "added_tokens": added, "decoder": None, "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, replace,
        ]},
    }  # fmt: skip


def changes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Tokenizers that differ in one field."""
    whole = byte_level()
    yield "bytes", whole
    for part, others in (
        ("normalizer", NORMALIZERS), ("pre_tokenizer", SPLITS), ("post_processor", FRAMES),
    ):  # fmt: skip
        for n, other in enumerate(others):
            if other and other["type"] == "TemplateProcessing":
                ids = {a["content"]: a["id"] for a in whole["added_tokens"]}
                tokens = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()}
                more = {"pair": other["single"], "special_tokens": tokens}
            else:
                more = {}
            yield f"{part} {n}", {**whole, part: other and {**other, **more}}
    for flag in FLAGS:
        for n in range(len(whole["added_tokens"])):
            added = [
                {**a, **({flag: True} if i == n else {})}
                for i, a in enumerate(whole["added_tokens"])
            ]
            yield f"added {n} {flag}", {**whole, "added_tokens": added}
    for field, value in (("ignore_merges", True), ("dropout", 1.0), ("end_of_word_suffix", "</w>")):
        yield field, {**whole, "model": {**whole["model"], field: value}}
    whole = pieces()
    yield "pieces", whole
    replace = whole["normalizer"]["normalizers"][1]
    for scheme in ("always", "never", "first"):
        for split in (False, True):
            spaces = {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": scheme,
                "split": split,
            }
            yield f"spaces {scheme} {split}", {**whole, "normalizer": None, "pre_tokenizer": spaces}
    yield "no prefix", {**whole, "normalizer": replace}


CASES = dict(changes())
REFUSED = (
    "normalizer 3", "normalizer 5", "normalizer 6", "normalizer 7", "pre_tokenizer 0",
    "pre_tokenizer 1", "pre_tokenizer 3", "post_processor 4", "dropout",
    "end_of_word_suffix",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("tokenizers"), "llama")


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_the_package(case: str, folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(CASES[case]))
    try:
        found = tokenizer_of(language_model_file(folder))
    except rlx.UnsupportedError:
        assert case in REFUSED or "True" in case or "single_word" in case
        return
    assert case not in REFUSED
    theirs = tokenizers.Tokenizer.from_file(str(path))
    for text in TEXTS:
        if case == "post_processor 1" and text.startswith("<|end|>"):
            continue  # a text that begins as it is to begin gets no second such token
        assert found.encode(text, special=True) == theirs.encode(text).ids, text
    words = np.random.default_rng(0).choice(
        ["he", "llo", " ", "  ", "<|end|>", "é", "1", "\n"], (20, 9)
    )
    for text in map("a".__add__, map("".join, words)):
        assert found.encode(text, special=True) == theirs.encode(text).ids, text
