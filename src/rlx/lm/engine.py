"""The generation engine: continuous batching of requests over the slots of a decoder.

Each step appends one token, or one and drafted ones, to every sequence that is being decoded, and
computes a part of the prompts that are not there yet: new requests start while others go on.

A step may be interrupted anywhere, by Ctrl-C. What slots hold and what has been chosen are the
record: the next step derives everything else from it, so that answers have the same bits. One that
fails is computed request by request, and what fails alone is the error of that request.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rlx.core.errors import Error, InternalError, OutOfMemoryError
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
LOAN_S = 0.05
"""How long a step waits at once for a slot, where all compute logits of no request."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do."""

    running: int
    waiting: int
    slots: int


class _Loan:
    """A slot that no request has: whoever computes logits has it as long as it holds this, also
    where it is interrupted before it can give it back."""

    def __init__(self, slot: int) -> None:
        self.slot = slot


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
        self._loans: weakref.WeakSet[_Loan] = weakref.WeakSet()
        self._returned = threading.Condition(self._lock)
        self._is_interrupted = False
        """Was a step begun that has not ended?"""

    @property
    def load(self) -> Load:
        waiting = sum(not g.is_cancelled for g in list(self._waiting))
        return Load(len(self._running), waiting, self._slots.count)

    def submit(
        self, request: Request, deliver: Callable[[Delivered], None] = lambda _: None
    ) -> Generation:
        """Put a request behind those that wait. Any thread may, also while a step is computed."""
        made = Generation(request, self._tokenizer, self.context, deliver)
        self._waiting.append(made)
        return made

    def pieces(self, request: Request) -> Iterator[Piece]:
        """The pieces of one request, computed as they are asked for. Closing it cancels."""
        generation, count = self.submit(request), 0
        try:
            while not generation.is_done or count < len(generation.pieces):
                if count == len(generation.pieces):
                    self.step()
                    continue
                yield generation.pieces[count]
                count += 1
            if generation.error is not None:
                raise generation.error
        finally:
            generation.cancel()

    def step(self) -> bool:
        """One step of all sequences; False where there is none."""
        with self._lock:
            with self._undertaken():
                self._drop_ended()
                self._admit()
                running = list(self._running)
                if running:
                    self._compute(running)
            if not running and not self._cache.free:  # who has the slots needs the lock
                self._returned.wait(LOAN_S)
            return bool(running or self._waiting)

    def abort(self, error: Error) -> None:
        """End all requests that have a slot with an error."""
        with self._undertaken():
            for generation in list(self._running):
                self._fail(generation, error)

    def logits(self, tokens: Sequence[int], take: Callable[[Array], None]) -> None:
        """Give the logits behind each of some tokens to `take`, chunk by chunk. Others may compute
        steps of requests between chunks."""
        loan, start = self._lend(tokens), 0
        try:
            while start < len(tokens):
                end = whole_chunk(len(tokens), min(len(tokens), start + PROMPT_CHUNK))
                part = Part(loan.slot, tokens[start:end], range(end - start))
                with self._undertaken():
                    rows = self._cache.step([part])[0].copy()  # the next step writes over them
                take(rows)
                start = end
        finally:
            with self._undertaken():
                self._loans.discard(loan)
                self._cache.release(loan.slot)
                self._returned.notify_all()

    def _lend(self, tokens: Sequence[int]) -> _Loan:
        """A slot for these tokens, once one is free."""
        with self._lock:
            while not self._cache.free:
                self.step()
            with self._undertaken():
                loan = _Loan(self._cache.acquire(tokens[:1]))
                self._loans.add(loan)
                return loan

    # -- what is undone ----------------------------------------------------------------------------

    @contextmanager
    def _undertaken(self) -> Generator[None]:
        """One change at a time, behind one that has ended."""
        with self._lock:
            if self._is_interrupted:
                self._recover()
            self._is_interrupted = True
            yield
            self._is_interrupted = False

    def _recover(self) -> None:
        """Derive everything from the requests that run and from what their slots hold."""
        while self._waiting and self._waiting[0] in self._running:
            self._waiting.popleft()
        self._release_unused()
        for generation in [g for g in self._running if not g.is_done]:
            try:
                generation.recover()
            except Exception as error:
                generation.fail(_fault_of(error))
            self._cut(generation)

    def _cut(self, generation: Generation) -> None:
        """To what is valid of its sequence: its last token is to be computed."""
        self._cache.truncate(
            generation.slot, self._cache.shared(generation.slot, generation.tokens)
        )

    # -- who takes part ----------------------------------------------------------------------------

    def _drop_ended(self) -> None:
        for generation in [g for g in self._running if g.is_cancelled or g.is_done]:
            self._end(generation)
        self._release_unused()

    def _release_unused(self) -> None:
        self._cache.release_others([user.slot for user in (*self._running, *self._loans)])

    def _admit(self) -> None:
        while self._waiting and self._cache.free:
            generation = self._waiting[0]
            if generation.is_cancelled:
                generation.is_done = True
            else:
                generation.slot = self._cache.acquire(generation.tokens)
                generation.reused = self._cache.length(generation.slot)
                self._running.append(generation)
            self._waiting.popleft()

    def _end(self, generation: Generation) -> None:
        generation.is_done = True
        self._running.remove(generation)
        self._cache.release(generation.slot)

    def _fail(self, generation: Generation, error: Error) -> None:
        generation.fail(error)
        self._end(generation)

    # -- what a step computes ----------------------------------------------------------------------

    def _compute(self, generations: Sequence[Generation]) -> None:
        """A step of these requests; of each by itself, if that of all fails."""
        try:
            parts = self._parts(generations)
            made = self._cache.step([part for _, part in parts])
        except Exception as error:
            if len(generations) == 1:
                self._fail(generations[0], _fault_of(error))
                return
            for generation in generations:
                self._cut(generation)
                self._compute([generation])
            return
        for (generation, part), logits in zip(parts, made, strict=True):
            self._advance(generation, part, logits)

    def _parts(self, generations: Sequence[Generation]) -> list[tuple[Generation, Part]]:
        decoded = [g for g in generations if self._missing(g) == 1]
        filled = [g for g in generations if self._missing(g) > 1]
        room = MAX_VERIFIED // len(decoded) - 1 if decoded else 0
        parts = [(g, self._decoded(g, room)) for g in decoded]
        parts += self._filled(filled, PROMPT_CHUNK if decoded else LONE_CHUNK)
        if not parts:
            raise InternalError("requests are running, and a step has no token of any to compute")
        return parts

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
        shifts = generation.shifts
        try:
            for row, expected in zip(logits, [*drafted, None]):
                if generation.is_cancelled or generation.is_done:
                    break
                if generation.take(np.asarray(row)) != expected:
                    break
        except Exception as error:
            is_known = isinstance(error, Error)
            generation.fail(error if is_known else _fault_of(error))
        is_shifted = generation.shifts > shifts
        left = generation.front if is_shifted else len(generation.tokens) - 1
        self._cache.truncate(generation.slot, left)
        if generation.is_done:
            self._end(generation)


def _fault_of(error: Exception) -> Error:
    """An exception that no request is to blame for, as an error that one ends with."""
    if isinstance(error, InternalError | OutOfMemoryError):
        return error
    kind = OutOfMemoryError if isinstance(error, MemoryError) else InternalError
    made = kind(f"a step failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
