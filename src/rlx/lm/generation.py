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
    """The state of one request. Pieces go to `deliver`, and so does an error that ended it."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        context: int,
        deliver: Callable[[Delivered], None],
    ) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.made = 0
        self.reused = 0
        """Tokens of the prompt that were cached."""
        self.slot = -1
        self.is_done = self.is_cancelled = False
        self.is_noted = False
        """Has its first token been counted?"""
        self.submitted_s = time.monotonic()
        self.deliver = deliver
        self._tokenizer, self._context = tokenizer, context
        self._sampler = Sampler(request.sampling)
        self._constraint = request.constraint.begin() if request.constraint else None
        self._stream = TextStream(request.stops)

    def cancel(self) -> None:
        """No token is computed for it after the step that is under way."""
        self.is_cancelled = True

    def take(self, logits: Array) -> int:
        """Choose the next token and deliver what is known of the text."""
        token = self._chosen(logits)
        self.tokens.append(token)
        self.made += 1
        text, reason = self._text_of(token)
        chances, likeliest = self._chances(logits, token)
        self.is_done = reason is not None
        self.deliver(Piece(text, (token,), chances, reason, likeliest))
        return token

    def fail(self, error: Error) -> None:
        self.is_done = True
        self.deliver(error)

    def shift(self) -> int:
        """Forget the older half of what follows the prompt's beginning: how many tokens stay in
        front, whose keys and values remain valid."""
        front = min(len(self.request.prompt), self._context // 4)
        del self.tokens[front : front + (len(self.tokens) - front) // 2]
        return front

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self._context

    def _chosen(self, logits: Array) -> int:
        if self._constraint is None:
            return self._sampler.choose(logits, self.tokens)
        token = self._sampler.choose(logits, self.tokens, self._constraint.allowed(len(logits)))
        self._constraint.accept(token)
        return token

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
        return self.is_full and not self.request.shifts_context

    def _chances(
        self, logits: Array, token: int
    ) -> tuple[tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]:
        count = self.request.logprobs
        if count is None:
            return (), ()
        chances = log_probabilities(logits)
        own = (float(chances[token]),)
        return own, (_likeliest(chances, count),) if count else ()


def _likeliest(chances: Array, count: int) -> tuple[tuple[int, float], ...]:
    count = min(count, len(chances))
    found = np.argpartition(-chances, count - 1)[:count]
    found = found[np.lexsort((found, -chances[found]))]
    return tuple((int(t), float(chances[t])) for t in found)
