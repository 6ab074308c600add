"""Answers of a given form: a JSON schema, a regular expression or a grammar, by llguidance.

At each place the library says which tokens the form allows; others are never chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlx.core.errors import InputError, UnsupportedError
from rlx.lm.tokenizer import Tokenizer
from rlx.ops.op import Array


class Constraint:
    """A form, compiled for a vocabulary."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def begin(self) -> Matched:
        """The form at its beginning."""
        return Matched(self._matcher.deep_copy())


class Matched:
    """How far an answer has come in its form."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, size: int) -> Array:
        """Which of `size` tokens may follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        found = np.unpackbits(bits, count=min(size, 8 * len(bits)), bitorder="little")
        if not found.any():
            raise InputError("the answer's form cannot be followed: it allows none of the tokens.")
        return np.pad(found.astype(bool), (0, size - len(found)))

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    @property
    def is_complete(self) -> bool:
        """Can nothing follow?"""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"the answer's form cannot be followed: {_first_line(self._matcher)}")


class Constraints:
    """Compiles forms for the vocabulary of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._library, self._count = _package(), len(tokenizer.texts)
        ends = sorted(tokenizer.ends) or [0]
        wrapped = self._library.TokenizerWrapper(_Vocabulary(tokenizer, ends[0]))
        self._tokenizer = self._library.LLTokenizer(wrapped, eos_token=ends)

    def schema(self, schema: Mapping[str, Any]) -> Constraint:
        """JSON that fits a JSON schema."""
        read = self._library.LLMatcher.grammar_from_json_schema
        return self._compiled(lambda: read(json.dumps(schema)), "JSON schema")

    def regex(self, pattern: str) -> Constraint:
        """Text that a regular expression matches as a whole."""
        read = self._library.LLMatcher.grammar_from_regex
        return self._compiled(lambda: read(pattern), "regular expression")

    def grammar(self, text: str) -> Constraint:
        """Text of a context-free grammar in Lark's notation, with a rule `start`."""
        read = self._library.LLMatcher.grammar_from_lark
        return self._compiled(lambda: read(text), "grammar")

    def _compiled(self, grammar: Callable[[], str], kind: str) -> Constraint:
        """Some forms are found too large only where tokens are asked for: one is tried."""
        try:
            matcher = self._library.LLMatcher(self._tokenizer, grammar(), log_level=0)
        except (TypeError, ValueError, RecursionError) as error:  # surrogates are a ValueError
            raise InputError(f"the {kind} cannot be read: {error}") from None
        if matcher.is_error():
            raise InputError(f"the {kind} cannot be used: {_first_line(matcher)}")
        made = Constraint(matcher)
        tried = made.begin()
        tried.accept(int(tried.allowed(self._count).argmax()))
        if not tried.is_complete:
            tried.allowed(self._count)
        return made


class _Vocabulary:
    """A tokenizer as the library wants it: bytes of all tokens, and a function to tokenize."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = end, tokenizer.begin
        count = len(tokenizer.texts)
        self.tokens = [tokenizer.piece(t, special=True) for t in range(count)]
        self.special_token_ids = sorted(tokenizer.control)

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.exact(plain)


def _first_line(matcher: Any) -> str:
    return str(matcher.get_error()).strip().split("\n")[0][:300]


def _package() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UnsupportedError(
            "answers of a given form need the package llguidance: pip install 'rlx[lm]'"
        ) from None
    return llguidance
