"""The engine in a thread of its own, and its pieces as asynchronous streams."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rlx.core.errors import Error, InternalError
from rlx.lm.engine import Engine
from rlx.lm.generation import Delivered, Generation, Piece, Request
from rlx.serve.errors import Refused
from rlx.serve.metrics import Metrics

LOG = logging.getLogger("rlx.serve")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A piece of one of several answers."""

    index: int
    piece: Piece


class Answers:
    """The answers to one request: what comes of them, and their end if nobody reads on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.items: asyncio.Queue[tuple[int, Delivered]] = asyncio.Queue()
        self.generations: list[Generation] = []
        self._open = 0

    def begin(self, generations: list[Generation]) -> None:
        self.generations, self._open = generations, len(generations)
        self._metrics.prompt_tokens.inc(sum(len(g.request.prompt) for g in generations))

    async def pieces(self) -> AsyncIterator[Numbered]:
        """All pieces, as they come. An error that ended an answer ends all."""
        while self._open:
            index, item = await self.items.get()
            if isinstance(item, Error):
                raise item
            self._note(index, item)
            self._open -= item.finish_reason is not None
            yield Numbered(index, item)

    def _note(self, index: int, piece: Piece) -> None:
        generation = self.generations[index]
        self._metrics.tokens.inc(len(piece.tokens))
        if not generation.is_noted:
            generation.is_noted = True
            self._metrics.cached_tokens.inc(generation.reused)
            self._metrics.first_token.observe(time.monotonic() - generation.submitted_s)

    def cancel(self) -> None:
        """Free the slots, if answers are not there yet."""
        if self._open:
            self._open = 0
            self._metrics.cancelled.inc()
        for generation in self.generations:
            generation.cancel()


class Runner:
    """Steps an engine as long as it has something to do. Pieces of one step reach the event loop
    in one call."""

    def __init__(self, engine: Engine, metrics: Metrics, queue: int) -> None:
        self._engine, self._metrics, self._queue = engine, metrics, queue
        self._wake = threading.Event()
        self._made: deque[tuple[Answers, int, Delivered]] = deque()
        self._thread = threading.Thread(target=self._run, name="rlx-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = self.is_draining = False

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is under way."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def submit(self, requests: Sequence[Request]) -> Answers:
        if self.is_draining:
            raise Refused(503, "the server is shutting down.", code="shutting_down")
        self.check_room(len(requests))
        answers = Answers(self._metrics)
        answers.begin([self._submitted(answers, i, r) for i, r in enumerate(requests)])
        self._wake.set()
        return answers

    def check_room(self, count: int) -> None:
        """Refuse for good what an idle server has no room for, and for now what must wait behind a
        full queue."""
        load = self._engine.load
        most = load.slots + self._queue
        if count > most:
            raise Refused(
                400,
                f"{count:,} answers are asked for, and this server takes {most:,} at once: it has "
                f"{load.slots:,} slots and a queue of {self._queue:,}.",
                code="too_many_answers",
            )
        free = max(0, load.slots - load.running)
        if load.waiting + count - free > self._queue:
            raise Refused(
                429, f"{load.waiting:,} requests wait already; try again.", code="queue_full"
            )

    def _submitted(self, answers: Answers, index: int, request: Request) -> Generation:
        def deliver(item: Delivered) -> None:
            self._made.append((answers, index, item))
            self._wake.set()  # others may step the engine, too

        return self._engine.submit(request, deliver)

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not self._step():
                self._wake.wait()

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except BaseException as error:  # a panic of a library in Rust is no Exception
            LOG.exception("a step of the engine failed")
            self._engine.abort(InternalError(f"a step failed: {type(error).__name__}."))
            return True
        finally:
            self._handed_over()

    def _handed_over(self) -> None:
        if not self._made or self._loop is None:
            return
        made = [self._made.popleft() for _ in range(len(self._made))]
        try:
            self._loop.call_soon_threadsafe(_put, made)
        except RuntimeError:  # the loop is closed, and nobody reads
            self._is_stopping = True


def _put(made: list[tuple[Answers, int, Delivered]]) -> None:
    for answers, index, item in made:
        answers.items.put_nowait((index, item))
