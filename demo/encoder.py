"""Texts as vectors: the tokenizer that the model was trained with, and rlx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import rlx

MOST_TOKENS = 256
"""What the model was trained on; the rest of a longer text is left out."""
A_QUESTION = {"batch": 1, "length": 16}
"""The sizes that decisions are weighed at: what is asked is short, and one at a time."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A compiled model and its tokenizer."""

    exe: Any
    tokenizer: Any

    @classmethod
    def of(cls, folder: Path) -> Encoder:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(MOST_TOKENS)
        tokenizer.enable_padding()
        options = rlx.FusionOptions(sizes=A_QUESTION)
        return cls(rlx.compile(rlx.load(folder), "cpu", options=options), tokenizer)

    def tokens(self, texts: Sequence[str]) -> tuple[Array, Array, Array]:
        """Token numbers, which of them are no padding, and of which kind they are."""
        found = self.tokenizer.encode_batch(list(texts))
        columns = ([getattr(e, k) for e in found] for k in ("ids", "attention_mask", "type_ids"))
        ids, mask, kinds = (np.array(c, np.int64) for c in columns)
        return ids, mask, kinds

    def vectors(self, texts: Sequence[str]) -> Array:
        """A vector of length 1 for each text; near ones mean something alike."""
        return self.exe(*self.tokens(texts))
