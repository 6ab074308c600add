"""Random programs, each called at several sizes: what rlx gives against what another runtime does.

A front end draws programs and asks the other runtime; the calls, the comparison, the count and the
command line are the same for all.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core.errors import Error

Array = np.ndarray[Any, Any]
NUM_SIZES = 8
BAD = ("wrong", "refused", "crashed")


@dataclass(frozen=True)
class Finding:
    """A call that is not what it should be, and how."""

    seed: int
    word: str
    text: str


Judged = tuple[Counter[str], list[Finding]]


def judged_calls(
    seed: int,
    sizes: Sequence[Mapping[str, int]],
    expected: Sequence[Sequence[Array] | None],
    run: Callable[[int], Sequence[Array]],
    excuse: Callable[[int], str] = lambda number: "",
) -> Judged:
    """How many calls are right, and those that are not. Where nothing is expected of a call it is
    not run; `excuse` says what one that differs counts as, where it is no finding."""
    words, findings = Counter[str](), list[Finding]()
    for number, right in enumerate(expected):
        if right is None:
            words["refused by both or not asked"] += 1
            continue
        try:
            word, text = verdict(run(number), right)
        except Error as error:
            word, text = "refused", str(error)
        except Exception as error:
            word, text = "crashed", f"{type(error).__name__}: {error}"
        excused = excuse(number) if word in ("wrong", "refused") else ""
        words[excused or word] += 1
        if word in BAD and not excused:
            findings.append(Finding(seed, word, f"{dict(sizes[number])}: {text}"))
    return words, findings


def verdict(made: Sequence[Any], right: Sequence[Any]) -> tuple[str, str]:
    """Is a result what is expected, and how is it not?"""
    for a, b in zip(map(np.asarray, made), right, strict=True):
        if a.shape != b.shape:
            return "wrong", f"dims {a.shape} for {b.shape}"
        if not np.allclose(a, b, rtol=1e-4, atol=1e-3, equal_nan=True):
            return "wrong", f"off by {np.nanmax(np.abs(a - b))}"
    return "same", ""


def main(description: str | None, judge: Callable[[int, str], Judged], count: int) -> int:
    """Judge programs by their seeds, and print what was found; 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--native", default="cpu", help="the target that generates code")
    parser.add_argument("--native-every", type=int, default=100, help="each n-th on that target")
    parser.add_argument("--show", type=int, default=10, help="findings that are printed")
    given = parser.parse_args()
    words, shown = Counter[str](), 0
    for seed in range(given.first, given.first + given.count):
        target = given.native if seed % given.native_every == 0 else "reference"
        found, findings = judge(seed, target)
        words += found
        for each in findings[: max(0, given.show - shown)]:
            print(f"{each.seed} on {target}: {each.word}: {each.text[:600]}", flush=True)
            shown += 1
    print(f"{given.count} programs: {dict(words)}")
    return int(any(words[w] for w in BAD))
