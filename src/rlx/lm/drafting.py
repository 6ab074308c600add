"""Speculative decoding: cheap guesses of the next tokens, which one step of the model verifies.

A guess is taken where it is the token that would have been chosen, so that texts are the same with
and without guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlx.lm.prefix_cache import PrefixCache
from rlx.lm.slots import Part, Slots

CHUNK = 512
"""Tokens of a prompt that one step of a draft model computes."""


class Drafter(Protocol):
    """Guesses tokens."""

    def propose(self, slot: int, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many tokens that may follow a sequence."""
        ...


class PromptLookup:
    """What followed the last tokens where they stood before: answers repeat parts of prompts."""

    def __init__(self, tokens: int = 8) -> None:
        self._count = tokens
        self._seen: dict[int, _Ngrams] = {}

    def propose(self, slot: int, tokens: Sequence[int], most: int) -> list[int]:
        seen = self._seen.setdefault(slot, _Ngrams())
        seen.follow(tokens)
        at = seen.place_behind(tokens)
        return [] if at is None else list(tokens[at : at + min(most, self._count)])


class _Ngrams:
    """Where each two and three tokens of a sequence stand for the last time."""

    SIZES = (3, 2)

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def follow(self, tokens: Sequence[int]) -> None:
        """Add what was appended; another sequence begins anew."""
        if list(tokens[: len(self._tokens)]) != self._tokens:
            self._tokens, self._places = [], {}
        start = len(self._tokens)
        self._tokens = list(tokens[:-1])  # behind the last token there is nothing yet
        for end in range(start + 1, len(self._tokens) + 1):
            for size in self.SIZES:
                self._places[tuple(tokens[max(0, end - size) : end])] = end

    def place_behind(self, tokens: Sequence[int]) -> int | None:
        found = (self._places.get(tuple(tokens[-size:])) for size in self.SIZES)
        return next((at for at in found if at is not None), None)


class DraftModel:
    """The likeliest tokens of a smaller model, which has the same vocabulary. It has as many slots
    as the model that it guesses for."""

    def __init__(self, slots: Slots, context: int, tokens: int = 6) -> None:
        self._cache, self._context, self._count = PrefixCache(slots), context, tokens

    def propose(self, slot: int, tokens: Sequence[int], most: int) -> list[int]:
        most = min(most, self._count, self._context - len(tokens))
        if most < 1:
            return []
        self._cache.truncate(slot, self._cache.shared(slot, tokens))
        made = [self._next(slot, list(tokens[self._cache.length(slot) :]))]
        while len(made) < most:
            made.append(self._next(slot, made[-1:]))
        return made

    def _next(self, slot: int, missing: list[int]) -> int:
        while len(missing) > CHUNK:
            self._cache.step([Part(slot, missing[:CHUNK], [])])
            missing = missing[CHUNK:]
        logits = self._cache.step([Part(slot, missing, [len(missing) - 1])])[0]
        return int(logits[-1].argmax())
