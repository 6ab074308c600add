"""One answer in the making: its request, its tokens, how the next is chosen, the text so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlx.core.errors import Error
from rlx.core.public_calls import public_class
from rlx.lm.constraint import Constraint
from rlx.lm.sampling import Sampler, Sampling, log_probabilities
from rlx.lm.stopping import TextStream
from rlx.lm.tokenizer import Tokenizer
from rlx.ops.op import Array


@public_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be generated."""

    prompt: tuple[int, ...]
    max_tokens: int
    stops: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: int | None = None
    """Log-probabilities of chosen tokens, and of so many of the likeliest at each place."""
    constraint: Constraint | None = None
    shifts_context: bool = False
    """At the end of the context, forget the middle and go on."""
    ignores_end: bool = False
    """Go on behind tokens that end an answer: for measuring."""


@public_class
@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: whole characters, and the tokens that they came with. The last piece
    has a `finish_reason`: "stop" at an end or a stop text, "length" at a limit."""

    text: str
    tokens: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    finish_reason: str | None = None
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The likeliest tokens at each place, if they were asked for."""


Delivered = Piece | Error


class Generation:
    """The state of one request. `pieces` are its record: all else follows from them. They go to
    `deliver`, too, and so does an error that ended it."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        context: int,
        deliver: Callable[[Delivered], None] = lambda _: None,
    ) -> None:
        self.request = request
        self.reused = 0
        """Tokens of the prompt that were cached."""
        self.slot = -1
        self.is_done = self.is_cancelled = False
        self.is_noted = False
        """Has its first token been counted?"""
        self.submitted_s = time.monotonic()
        self.deliver = deliver
        self._tokenizer, self._context = tokenizer, context
        self.pieces: list[Piece] = []
        self.error: Error | None = None
        self._delivered = 0
        self._begin()

    def _begin(self) -> None:
        request = self.request
        self.tokens, self.made, self.shifts = list(request.prompt), 0, 0
        self._sampler = Sampler(request.sampling)
        self._constraint = request.constraint.begin() if request.constraint else None
        self._stream = TextStream(request.stops)

    def cancel(self) -> None:
        """No token is computed for it after the step that is under way."""
        self.is_cancelled = True

    def take(self, logits: Array) -> int:
        """Choose the next token and deliver what is known of the text."""
        token = self._chosen(logits)
        text, reason = self._added(token)
        chances, likeliest = self._chances(logits, token)
        self.pieces.append(Piece(text, (token,), chances, reason, likeliest))
        self._deliver()
        return token

    def recover(self) -> None:
        """Derive all from its pieces, behind one that was interrupted."""
        self._begin()
        for piece in self.pieces:
            self._sampler.skip()
            self._added(piece.tokens[0])
        self._deliver()

    def _deliver(self) -> None:
        """Who sees that it is done finds all of its pieces."""
        for piece in self.pieces[self._delivered :]:
            self.deliver(piece)
            self._delivered += 1
        self.is_done |= bool(self.pieces) and self.pieces[-1].finish_reason is not None

    def fail(self, error: Error) -> None:
        try:
            self.error = error
            self.deliver(error)
        finally:
            self.is_done = True

    @property
    def front(self) -> int:
        """How many tokens stay where they are when the context is shifted: their keys and values
        remain valid."""
        return min(len(self.request.prompt), self._context // 4)

    @property
    def _is_full(self) -> bool:
        return len(self.tokens) >= self._context

    def _chosen(self, logits: Array) -> int:
        form = self._constraint
        allowed = None if form is None else form.allowed(len(logits))
        return self._sampler.choose(logits, self.tokens, allowed)

    def _added(self, token: int) -> tuple[str, str | None]:
        """Append a token: the text that is certain now, and why it is the last, if it is. A full
        context forgets the older half of what follows the prompt's beginning."""
        if self._constraint is not None:
            self._constraint.accept(token)
        self.tokens.append(token)
        self.made += 1
        found = self._text_of(token)
        if found[1] is None and self._is_full:
            del self.tokens[self.front : self.front + (len(self.tokens) - self.front) // 2]
            self.shifts += 1
        return found

    def _text_of(self, token: int) -> tuple[str, str | None]:
        """The text that is certain now, and why it is the last, if it is."""
        if token in self._tokenizer.ends and not self.request.ignores_end:
            return self._stream.rest(), "stop"
        text = self._stream.add(self._tokenizer.piece(token))
        if self._stream.is_stopped:
            return text, "stop"
        if self._constraint is not None and self._constraint.is_complete:
            return text + self._stream.rest(), "stop"
        if self.made >= self.request.max_tokens or self._is_at_end:
            return text + self._stream.rest(), "length"
        return text, None

    @property
    def _is_at_end(self) -> bool:
        return self._is_full and not self.request.shifts_context

    def _chances(
        self, logits: Array, token: int
    ) -> tuple[tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]:
        count = self.request.logprobs
        if count is None:
            return (), ()
        chances = log_probabilities(logits)
        own = (float(chances[token]),)
        return own, (likeliest(chances, count),) if count else ()


def likeliest(chances: Array, count: int) -> tuple[tuple[int, float], ...]:
    """The tokens of the highest log-probabilities, in order, with these."""
    count = min(count, len(chances))
    found = np.argpartition(-chances, count - 1)[:count]
    found = found[np.lexsort((found, -chances[found]))]
    return tuple((int(t), float(chances[t])) for t in found)
