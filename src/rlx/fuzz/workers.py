"""Jobs in child processes: one that crashes or hangs affects itself only, and is reported."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")
LIMIT_S = 300.0
"""A graph takes seconds; what takes minutes hangs."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that gave no answer, and why."""

    reason: str


class _Hand(Generic[Job, Answer]):
    """A child, and the number of the job it is at."""

    def __init__(self, work: Callable[[Job], Answer]) -> None:
        context = get_context("spawn")  # a fork would take along locks that threads hold
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, other), daemon=True)
        self.process.start()
        other.close()
        self.number = -1
        self.since = 0.0

    def give(self, number: int, job: Job) -> None:
        self.number, self.since = number, time.monotonic()
        self.pipe.send(job)

    def answer(self) -> Answer | Lost:
        """What came; the child is gone where nothing did."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Lost(_ending(self.process.exitcode))

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def each(
    work: Callable[[Job], Answer], jobs: Sequence[Job], workers: int, limit_s: float = LIMIT_S
) -> Iterator[Answer | Lost]:
    """The answers in the order of the jobs, each as soon as it and those before it are there."""
    hands = [_Hand[Job, Answer](work) for _ in range(min(workers, len(jobs)))]
    try:
        found: dict[int, Answer | Lost] = {}
        for number, hand in enumerate(hands):
            hand.give(number, jobs[number])
        given = len(hands)
        for number in range(len(jobs)):
            while number not in found:
                hand = _first_done(hands, limit_s)
                found[hand.number] = got = _got(hand, limit_s)
                if isinstance(got, Lost):
                    hand = _replace(hands, hand, work)
                hand.number = -1
                if given < len(jobs):
                    hand.give(given, jobs[given])
                    given += 1
            yield found.pop(number)
    finally:
        for hand in hands:
            hand.stop()


def _first_done(hands: Sequence[_Hand[Job, Answer]], limit_s: float) -> _Hand[Job, Answer]:
    """One that has an answer, is gone, or has taken too long."""
    busy = [h for h in hands if h.number >= 0]
    oldest = min(busy, key=lambda h: h.since)
    left = max(0.0, oldest.since + limit_s - time.monotonic())
    ready = connection.wait([h.pipe for h in busy], left)
    return next((h for h in busy if h.pipe in ready), oldest)


def _got(hand: _Hand[Job, Answer], limit_s: float) -> Answer | Lost:
    return hand.answer() if hand.pipe.poll() else Lost(f"no answer within {limit_s:g} s")


def _replace(
    hands: list[_Hand[Job, Answer]], lost: _Hand[Job, Answer], work: Callable[[Job], Answer]
) -> _Hand[Job, Answer]:
    lost.stop()
    hands[hands.index(lost)] = fresh = _Hand[Job, Answer](work)
    return fresh


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the process ended with code {code}"
    return f"the process was killed by {signal.Signals(-code).name}"


def _serve(work: Callable[[Any], Any], pipe: connection.Connection[Any, Any]) -> None:
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job))
