"""Tokens of random texts, compared with llama.cpp's: `python -m tests.gguf.tokens_against_llama_cpp
[FILE.gguf ...]`. Needs llama-cpp-python, which `make test` does not.

Small vocabularies of each kind are written and read by both, byte pairs with each way of cutting
words; files that are named take part, too. Left out is what llama.cpp does not treat as the models'
own tokenizers do: of WordPiece Hangul, words beyond 100 letters and the letter ▁; of the patterns
that look at upper and lower case, marks, which belong to words, and capitals beyond ASCII.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gguf import GGUFWriter
from rlx.frontends.gguf.reader import read_gguf
from rlx.frontends.gguf.word_splits import SPLITS
from rlx.lm.tokenizer import WordPieces, tokenizer_of
from tests.gguf import files, vocabularies

WORDS = (
    "hello", "Hell", "the", " the", "unable", "THE", "it's", "don't", "I'LL", "12345", "3.14",
    "x=1", "\n", "\r\n", "\t", "  ", "   \n", "...", "!?", "$+-", "(a)", "[b]", "naïve", "É", "ß",
    "über", "中文", "日本語", "ひらがな", "Привет", "мир", "αβγ", "שלום", "سلام", "नमस्ते", "🙂",
    "👍🏽", "a\u0301", "\u200b", "\ufeff", "\u00a0", "_", "`", "<0x41>", "▁", "Ġ", "<s>", "\\",
    "/*", "{}", "'s", "''",
)  # fmt: skip
CASED = ("bpe-gpt-4o", "bpe-tekken")
LETTERS = "abcdehlt the  AZ09.,!?'\"-\n\t_éç中🙂"


def texts(count: int, seed: int) -> Iterator[str]:
    """Words and letters in any order."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        parts = [str(rng.choice(WORDS)) for _ in range(int(rng.integers(0, 8)))]
        parts += ["".join(rng.choice(list(LETTERS), int(rng.integers(0, 12))))]
        rng.shuffle(parts)
        yield rng.choice(["", " "]).join(parts)


def is_caseless(letter: str) -> bool:
    return unicodedata.category(letter) not in ("Lu", "Lt", "Mn", "Mc", "Me")


def merged() -> tuple[list[str], list[str]]:
    """Tokens and merges of texts that were not cut into words: they are there to be prevented."""
    tokenizers: Any = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, initial_alphabet=letters
    )
    made.train_from_iterator(texts(400, seed=1), trainer)
    model = json.loads(made.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(m) for m in model["merges"]]


def byte_pairs_cut_by(
    name: str, tokens: list[str], merges: list[str]
) -> Callable[[GGUFWriter], None]:
    """Adds a vocabulary of byte pairs, with the name of how words are cut."""

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(tokens)
        writer.add_token_merges(merges)
        writer.add_token_types([vocabularies.NORMAL] * len(tokens))

    return add


def written(folder: Path) -> Iterator[Path]:
    """A file for each kind of vocabulary, and for one name of each way of cutting words."""
    first = {patterns: name for name, patterns in reversed(list(SPLITS.items()))}
    tokens, merges = merged()
    kinds: dict[str, tuple[Callable[[GGUFWriter], None], int]] = {
        f"bpe-{name}": (byte_pairs_cut_by(name, tokens, merges), len(tokens))
        for name in first.values()
    }
    kinds["spm"] = vocabularies.add_pieces, len(vocabularies.pieces()[0])
    kinds["wpm"] = vocabularies.add_word_pieces, len(vocabularies.word_pieces()[0])
    for name, (add, words) in kinds.items():
        yield files.write(folder / f"{name}.gguf", "llama", words=words, vocabulary=add)


def compared(path: Path, count: int, seed: int) -> bool:
    """Are the tokens of all texts equal? The first that are not are printed."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours, wrong = tokenizer_of(read_gguf(path)), list[str]()
    is_bert = isinstance(ours, WordPieces)
    for text in texts(count, seed):
        given = text.replace("▁", "") if is_bert else text
        if path.stem in CASED:
            given = "".join(c for c in given if c.isascii() or is_caseless(c))
        for special in (False, True):
            found = ours.encode(given, special=special, begin=is_bert)
            expected = theirs.tokenize(given.encode(), add_bos=is_bert, special=special)
            if found != expected:
                wrong.append(f"    {given!r}: {found}, llama.cpp {expected}")
    print(f"{path.name}: {2 * count - len(wrong)} of {2 * count} equal", *wrong[:3], sep="\n")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [*written(Path(folder)), *asked.files]
        right = [compared(path, asked.texts, asked.seed) for path in paths]
    print(f"{sum(right)} of {len(right)} vocabularies equal")
    return not all(right)


if __name__ == "__main__":
    sys.exit(main())
