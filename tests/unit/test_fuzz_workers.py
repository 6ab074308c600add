"""Jobs in child processes: what crashes or hangs is named, and the others are done."""

from __future__ import annotations

import os
import signal
import time

from rlx.fuzz.workers import Lost, each


def twice(number: int) -> int:
    """2 crashes, 4 hangs, 5 leaves."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 4:
        time.sleep(1e6)
    if number == 5:
        os._exit(3)
    return 2 * number


def test_every_job_has_its_answer_in_order() -> None:
    got = list(each(twice, [0, 1, 2, 3, 5, 6], 2))
    assert got == [
        0, 2, Lost("the process was killed by SIGSEGV"), 6,
        Lost("the process ended with code 3"), 12,
    ]  # fmt: skip


def test_a_job_that_hangs_is_lost() -> None:
    assert list(each(twice, [4, 4], 1, limit_s=0.5)) == [Lost("no answer within 0.5 s")] * 2


def test_leaving_early_stops_the_children() -> None:
    answers = each(twice, [0, 4], 2)
    assert next(answers) == 0
    answers.close()


def test_no_jobs_no_answers() -> None:
    assert list(each(twice, [], 2)) == []
