"""The generation engine: continuous batching of requests over the slots of a decoder.

Each step appends one token, or one and drafted ones, to every sequence that is being decoded, and
computes a part of the prompts that are not there yet: new requests start while others go on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.core.errors import Error
from rlx.lm.drafting import Drafter
from rlx.lm.generation import Delivered, Generation, Piece, Request
from rlx.lm.prefix_cache import MIN_SHARED, PrefixCache, common_prefix, whole_chunk
from rlx.lm.slots import Part, Slots
from rlx.lm.tokenizer import Tokenizer
from rlx.ops.op import Array

PROMPT_CHUNK, LONE_CHUNK = 192, 512
"""Tokens of prompts that one step computes: while others are decoded, and while none is."""
MIN_CHUNK = 8
"""Tokens of a prompt below which the rest of a step is left to the next one."""
MAX_VERIFIED = 16
"""Rows of a step above which nothing is drafted: they cost more than they save."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do."""

    running: int
    waiting: int
    slots: int


class Engine:
    """Admits requests to slots in the order they came, and computes their steps. Whoever waits for
    a piece, or a thread of its own, calls `step`; one call at a time."""

    def __init__(
        self, slots: Slots, tokenizer: Tokenizer, context: int, drafter: Drafter | None = None
    ) -> None:
        self.context = context
        self._tokenizer, self._drafter = tokenizer, drafter
        self._slots = slots
        self._cache = PrefixCache(slots)
        self._lock = threading.RLock()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._turn = 0

    @property
    def load(self) -> Load:
        return Load(len(self._running), len(self._waiting), self._slots.count)

    def submit(self, request: Request, deliver: Callable[[Delivered], None]) -> Generation:
        """Put a request behind those that wait. Any thread may, also while a step is computed."""
        made = Generation(request, self._tokenizer, self.context, deliver)
        self._waiting.append(made)
        return made

    def pieces(self, request: Request) -> Iterator[Piece]:
        """The pieces of one request, computed as they are asked for. Closing it cancels."""
        found: deque[Delivered] = deque()
        generation = self.submit(request, found.append)
        try:
            while found or not generation.is_done:
                if not found:
                    self.step()
                    continue
                piece = found.popleft()
                if isinstance(piece, Error):
                    raise piece
                yield piece
        finally:
            generation.cancel()

    def step(self) -> bool:
        """One step of all sequences; False where there is none."""
        with self._lock:
            self._drop_cancelled()
            self._admit()
            if not self._running:
                return False
            parts = self._parts()
            try:
                made = self._cache.step([part for _, part in parts])
            except Error as error:
                self._fail(error)
                return True
            for (generation, part), logits in zip(parts, made):
                self._advance(generation, part, logits)
            return True

    def abort(self, error: Error) -> None:
        """End all requests that have a slot with an error."""
        with self._lock:
            self._fail(error)

    def logits(self, tokens: Sequence[int], take: Callable[[Array], None]) -> None:
        """Give the logits behind each of some tokens to `take`, chunk by chunk."""
        with self._lock:
            while not self._cache.free:
                self.step()
            slot = self._cache.acquire(tokens[:1])
            try:
                for start in range(0, len(tokens), LONE_CHUNK):
                    part = tokens[start : start + LONE_CHUNK]
                    take(self._cache.step([Part(slot, part, range(len(part)))])[0])
            finally:
                self._cache.release(slot)

    # -- who takes part ----------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for generation in [g for g in self._running if g.is_cancelled]:
            self._end(generation)

    def _admit(self) -> None:
        while self._waiting and self._cache.free:
            generation = self._waiting.popleft()
            if generation.is_cancelled:
                generation.is_done = True
                continue
            generation.slot = self._cache.acquire(generation.tokens)
            generation.reused = self._cache.length(generation.slot)
            self._running.append(generation)

    def _end(self, generation: Generation) -> None:
        generation.is_done = True
        self._running.remove(generation)
        self._cache.release(generation.slot)

    def _fail(self, error: Error) -> None:
        """What a failed step left in slots is not known."""
        for generation in list(self._running):
            self._cache.truncate(generation.slot, 0)
            self._end(generation)
            generation.fail(error)

    # -- what a step computes ----------------------------------------------------------------------

    def _parts(self) -> list[tuple[Generation, Part]]:
        decoded = [g for g in self._running if self._missing(g) == 1]
        filled = [g for g in self._running if self._missing(g) > 1]
        room = MAX_VERIFIED // len(decoded) - 1 if decoded else 0
        parts = [(g, self._decoded(g, room)) for g in decoded]
        return [*parts, *self._filled(filled, PROMPT_CHUNK if decoded else LONE_CHUNK)]

    def _missing(self, generation: Generation) -> int:
        """How many of its tokens are not computed yet."""
        return len(generation.tokens) - self._cache.length(generation.slot)

    def _decoded(self, generation: Generation, room: int) -> Part:
        """The last token, and what is guessed to follow it."""
        left = min(
            generation.request.max_tokens - generation.made - 1,
            self.context - len(generation.tokens) - 1,
            room,
        )
        drafted: list[int] = []
        if self._drafter is not None and left > 0:
            drafted = self._drafter.propose(generation.slot, generation.tokens, left)
        tokens = [generation.tokens[-1], *drafted]
        return Part(generation.slot, tokens, range(len(tokens)))

    def _filled(self, filled: list[Generation], room: int) -> Iterator[tuple[Generation, Part]]:
        """Prompts in turns. One that another before it has the beginning of waits for that."""
        self._turn += 1
        for number in range(len(filled)):
            at = (self._turn + number) % len(filled)
            generation = filled[at]
            if room < MIN_CHUNK or self._waits(generation, filled[:at]):
                continue
            part = self._chunk(generation, room)
            room -= len(part.tokens)
            yield generation, part

    def _waits(self, generation: Generation, before: list[Generation]) -> bool:
        here = self._cache.length(generation.slot)
        return any(
            common_prefix(g.tokens, generation.tokens)
            >= max(here, self._cache.length(g.slot)) + MIN_SHARED
            for g in before
        )

    def _chunk(self, generation: Generation, room: int) -> Part:
        generation.reused += self._cache.share(generation.slot, generation.tokens)
        start = self._cache.length(generation.slot)
        size = len(generation.tokens)
        end = size if start + room >= size else whole_chunk(size, start + room)
        tokens = generation.tokens[start:end]
        is_last = end == size
        return Part(generation.slot, tokens, [len(tokens) - 1] if is_last else [])

    # -- what a step gave --------------------------------------------------------------------------

    def _advance(self, generation: Generation, part: Part, logits: Array) -> None:
        """Choose tokens as long as they are those that were drafted."""
        drafted = part.tokens[part.rows[0] + 1 :] if part.rows else ()
        for row, expected in zip(logits, [*drafted, None]):
            if generation.is_cancelled or not self._takes(generation, row, expected):
                break
        if generation.is_done:
            self._end(generation)
        elif generation.is_full:
            self._cache.truncate(generation.slot, generation.shift())
        self._cache.truncate(generation.slot, max(0, len(generation.tokens) - 1))

    def _takes(self, generation: Generation, logits: Array, expected: int | None) -> bool:
        """Choose one token: was it the expected one, and does the answer go on?"""
        try:
            token = generation.take(np.asarray(logits))
        except Error as error:
            generation.fail(error)
            return False
        return token == expected and not generation.is_done
