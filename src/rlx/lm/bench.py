"""Rates of a language model: prompts and decoding, by length, depth and number of sequences."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.core.errors import Error
from rlx.lm.engine import LONE_CHUNK
from rlx.lm.slots import Part, Slots

SEED = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """So many tokens of a prompt, or so many steps of decoding, behind `depth` tokens that are
    there, for so many sequences at once."""

    is_prompt: bool
    tokens: int
    depth: int = 0
    sequences: int = 1

    @property
    def name(self) -> str:
        """pp512, tg128 @ d1024 x8, as llama-bench has it."""
        behind = f" @ d{self.depth}" if self.depth else ""
        beside = f" x{self.sequences}" if self.sequences > 1 else ""
        return f"{'pp' if self.is_prompt else 'tg'}{self.tokens}{behind}{beside}"

    @property
    def context(self) -> int:
        return self.depth + self.tokens + 1


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of all sequences together, of each repetition."""

    test: Workload
    rates: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


def workloads_of(
    prompts: Sequence[int], decodes: Sequence[int], depths: Sequence[int], batches: Sequence[int]
) -> list[Workload]:
    """Every combination; 0 is no test."""
    kinds = [(True, n) for n in prompts if n] + [(False, n) for n in decodes if n]
    return [Workload(*kind, d, b) for b in batches for d in depths for kind in kinds]


def measured(
    slots: Slots,
    vocabulary: int,
    tests: Sequence[Workload],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Rate]:
    """The rates of tests, each after one repetition that is not counted. Tokens are random: what
    they are does not change the work."""
    rng = np.random.default_rng(SEED)
    for test in tests:
        if test.sequences > slots.count:
            raise Error(
                f"{test.sequences} sequences need as many slots, and there are {slots.count}."
            )
        tokens = rng.integers(0, vocabulary, test.depth + test.tokens).tolist()
        bench = _Bench(slots, test, tokens)
        bench.run()
        times: list[float] = []
        for _ in range(repetitions):
            bench.rewind()
            start = clock()
            bench.run()
            times.append(clock() - start)
        bench.clear()
        yield Rate(test, tuple(test.tokens * test.sequences / t for t in times))


class _Bench:
    """One test: sequences are filled to its depth, then its tokens are computed again and again."""

    def __init__(self, slots: Slots, test: Workload, tokens: list[int]) -> None:
        self._slots, self._test = slots, test
        self._before, self._tokens = tokens[: test.depth], tokens[test.depth :]
        self.clear()
        for slot in range(test.sequences):
            self._fill([slot], self._before)

    def run(self) -> None:
        every = range(self._test.sequences)
        if self._test.is_prompt:
            self._fill(every, self._tokens)
            return
        for token in self._tokens:
            self._slots.step([Part(slot, [token], [0]) for slot in every])

    def _fill(self, slots: Sequence[int], tokens: list[int]) -> None:
        """Prompts in chunks; the logits of the last token are computed, as for an answer."""
        for start in range(0, len(tokens), LONE_CHUNK):
            chunk = tokens[start : start + LONE_CHUNK]
            rows = [len(chunk) - 1] if start + len(chunk) == len(tokens) else []
            self._slots.step([Part(slot, chunk, rows) for slot in slots])

    def rewind(self) -> None:
        for slot in range(self._test.sequences):
            kept = self._slots.keeps(slot, self._test.depth)
            self._slots.truncate(slot, kept)
            if kept < self._test.depth:
                self._fill([slot], self._before)

    def clear(self) -> None:
        for slot in range(self._slots.count):
            self._slots.truncate(slot, 0)
