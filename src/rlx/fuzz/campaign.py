"""A fuzzing campaign: many random graphs, a tally of their ops, and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlx.fuzz.job import Job, Verdict, refused_ops, verdict
from rlx.fuzz.workers import Lost, each
from rlx.ops import op as table

LEAST = 20
"""Times that each op must occur in a large campaign."""
LARGE = 2000
SIDES = ("starts", "ends", "tail")


@dataclass(frozen=True, slots=True)
class Campaign:
    """Which graphs, and who is judged by them: pipelines' plans, or else backends' own code."""

    graphs: int = 200
    first: int = 0
    steps: int = 12
    targets: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    is_guarded: bool = False
    is_large: bool = False

    def jobs(self) -> list[Job]:
        """Backends are judged by graphs without the ops that they refuse."""
        targets = () if self.backends else self.targets
        without = refused_ops(self.backends)
        sides = SIDES if self.is_guarded else ()
        made = (self.steps, targets, self.backends, without, sides, self.is_large)
        return [Job(s, *made) for s in range(self.first, self.first + self.graphs)]

    def run(self, workers: int, progress: Callable[[Tally, list[str]], None]) -> Tally:
        """All jobs done; `progress` is called after each, with what is wrong with it."""
        jobs = self.jobs()
        tally = Tally(without=jobs[0].without)
        for job, got in zip(jobs, each(verdict, jobs, workers)):
            tally.add(got)
            progress(tally, [f"seed {job.seed}: {line}" for line in _lines(got)])
        return tally


def _lines(got: Verdict | Lost) -> list[str]:
    if isinstance(got, Lost):
        return [got.reason]
    return [*got.found, *([f"refused: {got.refusal}"] if got.refusal else [])]


@dataclass
class Tally:
    """What the graphs were made of, and how many are wrong."""

    without: frozenset[str] = frozenset()
    ops: Counter[str] = field(default_factory=Counter[str])
    dtypes: Counter[str] = field(default_factory=Counter[str])
    graphs: int = 0
    refused: int = 0
    wrong: int = 0

    def add(self, got: Verdict | Lost) -> None:
        self.graphs += 1
        if isinstance(got, Lost):
            self.wrong += 1
            return
        self.ops.update(got.ops)
        self.dtypes.update(got.dtypes)
        self.refused += bool(got.refusal)
        self.wrong += bool(got.found)

    @property
    def counts(self) -> dict[str, int]:
        """How often each op occurred that could, the rarest first."""
        found = {name: self.ops[name] for name in table.table() if name not in self.without}
        return dict(sorted(found.items(), key=lambda kv: (kv[1], kv[0])))

    @property
    def rare(self) -> list[str]:
        return [name for name, count in self.counts.items() if count < LEAST]

    @property
    def is_good(self) -> bool:
        """Do all agree and, in a large campaign, have all ops occurred?"""
        return not self.wrong and not (self.rare and self.graphs >= LARGE)

    def facts(self) -> dict[str, Any]:
        """What JSON says of it."""
        return {
            "graphs": self.graphs, "wrong": self.wrong, "refused": self.refused,
            "ops": self.counts, "dtypes": dict(self.dtypes.most_common()), "rare": self.rare,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{count:8d}  {name}" for name, count in self.counts.items()]
        dtypes = ", ".join(f"{n} {c}" for n, c in self.dtypes.most_common())
        named = f": {', '.join(self.rare)}" if self.rare else ""
        return "\n".join([
            *lines, f"values by dtype: {dtypes}",
            f"{self.graphs} graphs, {self.wrong} with mismatches, {self.refused} refused, "
            f"{len(lines)} ops, {len(self.rare)} of them under {LEAST} times{named}",
        ])  # fmt: skip
