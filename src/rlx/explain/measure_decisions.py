"""Measured decisions: reverse one, compile again, and time both builds in interleaved rounds.

What is predicted of a reversal is the difference of two whole plans at the gate's prices, for when
one fusion is not made others may be: the decision's own figure knows nothing of those. Equivalent
decisions, such as those of equal layers, are reversed together and share the difference.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.other_load import OtherLoad, is_busy, warning
from rlx.core.public_calls import public_class
from rlx.core.units import counted
from rlx.cost.decision import Decision
from rlx.explain.measure_journal import Journal
from rlx.explain.measured import Measured
from rlx.explain.priced_again import at_sizes
from rlx.explain.pricing import Prices, key_of
from rlx.ir.mir import Node
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult
from rlx.plan.alternatives import SPLIT
from rlx.plan.planner import plan_choices
from rlx.rules.engine import Fired

if TYPE_CHECKING:
    from rlx.cost.calibrate import Progress
    from rlx.runtime.executable import Executable, Inputs

T = TypeVar("T")
MOST = 40
"""Classes that are timed, unless more are asked for."""
LEAST_SHARE = 0.01
"""Of a call: what a decision is expected to matter at least, to count in the summary."""
REFUSALS = 0.25
"""Of the places: for decisions that were refused, if there are as many."""
CLASS_TOLERANCE = 0.05
"""Of a figure: decisions that differ by less are reversed together, which is above the noise where
one of them is not."""
ROUND_S = 0.02
"""A round of one build; rounds alternate, so that what slows the machine slows both."""
MIN_ROUNDS = 12
"""Of each build, however long they take."""
RECORDED = 2
"""Calls after which work of a device is recorded, and from then on replayed."""
RESAMPLES = 1000
QUIET_QUANTILE = 0.1
"""The quantile of the rounds that is compared: the fastest, which nothing disturbed."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Skipped:
    """Decisions that could not be reversed, and why."""

    ids: tuple[str, ...]
    what: str
    reason: str


@public_class
@dataclass(frozen=True, slots=True)
class Measurement:
    """The decisions of one model, timed on given inputs."""

    name: str
    sizes: Mapping[str, int]
    call_ns: float
    measured: tuple[Measured, ...]
    """The largest predicted effect first."""
    skipped: tuple[Skipped, ...] = ()
    left: int = 0
    """Classes that were not timed, as their predicted effect was smaller than that of others."""
    interrupted: int = 0
    """Classes that were not timed, as the measurement was ended by a signal."""

    @property
    def busy_cores(self) -> float:
        """The most that others used while a row was timed."""
        return max((m.busy_cores for m in self.measured), default=0.0)

    def of(self, decision_id: str) -> Measured | None:
        """What was measured of a decision; None where it was not."""
        return next((m for m in self.measured if decision_id in m.ids), None)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON, with the summary."""
        return {**asdict(self), "summary": summary([self])}

    def __str__(self) -> str:
        head = f"{self.name}: {self.call_ns / 1e3:,.1f} µs a call"
        notes = [f"interrupted: {self.interrupted} were not timed"] if self.interrupted else []
        notes += [warning(self.busy_cores)] if is_busy(self.busy_cores) else []
        return "\n".join([head, *map(_line, self.measured), summary([self]), *notes])


def _line(m: Measured) -> str:
    mark = ("confirmed" if m.is_right else "refuted") if m.is_certain else "undecided"
    mark += " *" if is_busy(m.busy_cores) else ""
    times = f"{len(m.ids)} x " if len(m.ids) > 1 else ""
    figures = m.predicted_ns, m.measured_ns, m.low_ns, m.high_ns
    predicted, measured, low, high = (f"{len(m.ids) * ns / 1e3:+.2f}" for ns in figures)
    return (
        f"  {'took' if m.verdict else 'left'} {times}{m.what} at {m.where[0] if m.where else '?'}: "
        f"predicted {predicted} µs, {m.share:.1%} of a call, measured {measured} "
        f"({low} to {high}) µs: {mark}"
    )


def summary(measurements: Iterable[Measurement]) -> str:
    """The cost model in one line: verdicts that are confirmed, and predicted over measured gain."""
    every = [m for each in measurements for m in each.measured]
    large = [m for m in every if m.share >= LEAST_SHARE]
    certain = [m for m in every if m.is_certain]
    confirmed = sum(m.is_right for m in certain)
    refusals = sum(not m.verdict for m in every)
    of_them = f" ({refusals} of them refusals)" if refusals else ""
    text = (
        f"cost model: {counted(len(every), 'decision')} reversed and measured{of_them}: "
        f"{confirmed} confirmed, {len(certain) - confirmed} refuted, "
        f"{len(every) - len(certain)} within noise"
    )
    ratios = [m.ratio for m in large if m.ratio is not None and m.ratio > 0]
    if large:
        right = sum(m.is_right for m in large)
        text += f"; above {LEAST_SHARE:.0%} of a call, {right} of {len(large)} have the right sign"
    if ratios:
        ratio = f"{statistics.median(ratios):.2f}"
        text += f", median predicted/measured {ratio} where both have one sign"
    return text


# -- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """Equivalent decisions, and what reversing all of them should do to a call."""

    members: tuple[Decision, ...]
    effect_ns: float
    """How much longer a call should take."""


def classes(decisions: Iterable[Decision]) -> list[tuple[Decision, ...]]:
    """Reversible decisions in equivalence classes: the same change to the same ops that saves about
    the same, such as layers of which each sees a little further; and all uses of one rule."""
    found: dict[object, list[Decision]] = {}
    for d in decisions:
        if d.is_reversible:
            ops = () if d.kind == "rule" else tuple(w.split(" ")[0] for w in d.where)
            figures = _about(round(d.predicted_ns)), d.launches_saved
            found.setdefault((d.what, d.verdict, ops, figures), []).append(d)
    return [tuple(each) for each in found.values()]


def _about(figure: float) -> tuple[bool, int]:
    """The same for figures within `CLASS_TOLERANCE` of each other, but for those at an edge."""
    return figure < 0, round(math.log(max(abs(figure), 1)) / math.log1p(CLASS_TOLERANCE))


def decisions_of(
    result: CompileResult, sizes: Mapping[str, int], gains: Mapping[Node, tuple[bool, float]]
) -> list[Decision]:
    """What the passes decided, what the plan chose at these sizes, and every rule that fired.
    `gains` are of every step that can be split into tasks: is it, and what does that gain?"""
    found = list(result.decisions)
    for choice in plan_choices(result.lir, replace(result.options, sizes=sizes)):
        made, node = choice.decision, choice.node
        if made.what != SPLIT:
            found.append(made)
        elif node in gains:
            verdict, gain = gains[node]
            found.append(replace(made, verdict=verdict, predicted_ns=gain))
    fired = [e for e in result.rewrites if isinstance(e, Fired)]
    found += [Decision(e.id, e.rule, (e.before,), True, e.identity, kind="rule") for e in fired]
    return list({d.id: d for d in found}.values())


class Bench:
    """A model and its inputs; builds of it with decisions reversed."""

    def __init__(self, exe: Executable, inputs: Inputs) -> None:
        if exe.source is None:
            raise Error(
                f"{exe.name}: what it was compiled from is not here, so that it cannot be compiled "
                "otherwise. Compile the model itself: rlx.compile(rlx.load(...))."
            )
        self.exe, self._model = exe, getattr(exe.source, "graph", exe.source)
        self.arrays, self.sizes = exe.arrays(inputs), exe.sizes(inputs)
        self.target, self.prices = exe.lir.target, Prices.of(exe)
        self.splits = exe.backend.splits(exe.lir, self.sizes)
        self.known = {key_of(node): is_split for node, is_split in self.splits.items()}
        self.base_ns = self.prices.plan_ns(exe.lir, self.sizes, self.known)

    def candidates(
        self, most: int, progress: Progress
    ) -> tuple[list[Candidate], list[Skipped], int]:
        """The classes of largest predicted effect, the largest first; those that cannot be
        reversed; and how many were left out, by what the decisions themselves predict."""
        every = classes(self.decisions())
        likely = _likely(every, most)
        unpriced = [c for c in every if c[0].kind == "rule"]
        chosen = list(dict.fromkeys([*unpriced, *likely]))
        found: list[Candidate] = []
        skipped: list[Skipped] = []
        for i, members in enumerate(chosen):
            progress(i, len(chosen), f"planning without {members[0].what}")
            try:
                found.append(self._priced(members))
            except Error as error:
                skipped.append(Skipped(_ids(members), members[0].what, str(error)))
        kept = _with_refusals(
            sorted(found, key=lambda c: -abs(c.effect_ns)), most, lambda c: c.members[0].verdict
        )
        return kept, skipped, len(every) - len(skipped) - len(kept)

    def decisions(self) -> list[Decision]:
        """Every decision, priced at the sizes of the inputs."""
        gains = self.prices.gains_of_splitting(self.splits, self.sizes)
        shared = {n: (is_split, gains[n]) for n, is_split in self.splits.items()}
        priced = at_sizes(self.exe.result, self.sizes, self._model)
        return decisions_of(priced, self.sizes, shared)

    def _priced(self, members: tuple[Decision, ...]) -> Candidate:
        """All of them reversed, or the first alone where they conflict."""
        if members[0].what == SPLIT:  # nothing else changes, so that their gains are the effect
            sign = 1 if members[0].verdict else -1
            return Candidate(members, sign * sum(d.predicted_ns for d in members))
        try:
            lir = self._compiled(members).lir
        except Error:
            members = members[:1]
            lir = self._compiled(members).lir
        return Candidate(members, self.prices.plan_ns(lir, self.sizes, self.known) - self.base_ns)

    def _compiled(self, members: Sequence[Decision]) -> CompileResult:
        options = self.exe.result.options
        flipped = {d.id: not d.verdict for d in members}
        return self._run(replace(options, force={**options.force, **flipped}))

    def _run(self, options: FusionOptions) -> CompileResult:
        alignment = self.exe.lir.plan.alignment
        pipeline = CompilePipeline(self.target, options=options, alignment=alignment)
        return pipeline.compile(self._model)

    def reversed_build(self, candidate: Candidate) -> Executable:
        """The build with these decisions reversed, and the same weights."""
        return type(self.exe)(self.exe.loaded.compiled(self._compiled(candidate.members)))

    def time(self, other: Executable, seconds: float) -> tuple[Array, Array]:
        """Nanoseconds of a call of this build and of another, round by round."""
        calls = [_timer(exe, self.arrays) for exe in (self.exe, other)]
        rounds: list[tuple[float, float]] = []
        until = time.perf_counter() + seconds
        while len(rounds) < MIN_ROUNDS or time.perf_counter() < until:
            order = (0, 1) if len(rounds) % 2 else (1, 0)
            took = {i: _round(calls[i]) for i in order}
            rounds.append((took[0], took[1]))
        both = np.array(rounds)
        return both[:, 0], both[:, 1]


def _timer(exe: Executable, arrays: Sequence[Array]) -> Callable[[], float]:
    """What a call takes, measured by calling it: on arrays of the device, by its own clock, where
    calls are bound to one; else by the host's."""

    def timed() -> float:
        start = time.perf_counter_ns()
        exe(*arrays)
        return float(time.perf_counter_ns() - start)

    timed()
    try:
        bound = exe.bind(*arrays)
    except UnsupportedError:
        return timed
    for _ in range(RECORDED):
        bound()
    return bound.time_ns


def _round(call: Callable[[], float]) -> float:
    """The median call of a round."""
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while not times or time.perf_counter() < end:
        times.append(call())
    return statistics.median(times)


def interval(ours: Array, theirs: Array) -> tuple[float, float, float]:
    """The difference of a low quantile of both, and its confidence interval by bootstrap over
    rounds. Whatever disturbs a round only ever adds to it, so the low end of each is compared: its
    variance is half of the median's."""
    rng = np.random.default_rng(0)
    picked = rng.integers(0, len(ours), (RESAMPLES, len(ours)))
    ends = [np.quantile(times[picked], QUIET_QUANTILE, axis=1) for times in (ours, theirs)]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ends[1] - ends[0], [tail, 100 - tail])
    middle = float(np.quantile(theirs, QUIET_QUANTILE) - np.quantile(ours, QUIET_QUANTILE))
    return middle, min(float(low), middle), max(float(high), middle)


def measure(
    exe: Executable,
    inputs: Inputs,
    *,
    most: int = MOST,
    seconds: float = 1.0,
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> Measurement:
    """Time the decisions of largest predicted effect, each class reversed at once. An interrupt
    (Ctrl-C) ends it with what was measured until then. Rows go to a `journal` as they are measured;
    those that it has from an earlier run are not measured again."""
    bench, report = Bench(exe, inputs), progress or (lambda _done, _total, _what: None)
    chosen, skipped, left = bench.candidates(most, report)
    rows = journal or Journal()
    made: list[Measured] = []
    calls: list[float] = []
    interrupted = 0
    for i, candidate in enumerate(chosen):
        ids = _ids(candidate.members)
        try:
            report(i, len(chosen), f"without {candidate.members[0].what}")
            if ids not in rows.rows:
                rows.add(*_timed(bench, candidate, seconds))
        except Error as error:
            skipped.append(Skipped(ids, candidate.members[0].what, str(error)))
            continue
        except KeyboardInterrupt:
            interrupted = len(chosen) - i
            break
        row, call_ns = rows.rows[ids]
        made.append(row)
        calls.append(call_ns)
    if not interrupted:
        rows.complete()
    call_ns = statistics.median(calls) if calls else 0.0
    found = Measurement(bench.exe.name, bench.sizes, call_ns, tuple(made), tuple(skipped), left)
    return replace(found, interrupted=interrupted)


def _timed(bench: Bench, candidate: Candidate, seconds: float) -> tuple[Measured, float]:
    """A row, and the nanoseconds of a call."""
    load = OtherLoad()
    ours, theirs = bench.time(bench.reversed_build(candidate), seconds)
    call_ns = float(np.median(ours))
    return replace(_measured(candidate, ours, theirs, call_ns), busy_cores=load.cores()), call_ns


def _measured(candidate: Candidate, ours: Array, theirs: Array, call_ns: float) -> Measured:
    """What the reversed build takes more is a gain of taking, where it was taken."""
    first, count = candidate.members[0], len(candidate.members)
    sign = 1 if first.verdict else -1
    middle, low, high = (sign * v / count for v in interval(ours, theirs))
    return Measured(
        _ids(candidate.members), first.what, first.where, first.verdict,
        sign * candidate.effect_ns / count, middle, min(low, high), max(low, high),
        abs(candidate.effect_ns) / call_ns, len(ours),
    )  # fmt: skip


def _likely(every: Iterable[tuple[Decision, ...]], most: int) -> list[tuple[Decision, ...]]:
    """The classes of largest effect by what the decisions say themselves."""
    largest = sorted(every, key=lambda c: -_stated_ns(c))
    return _with_refusals(largest, most, lambda c: c[0].verdict)


def _with_refusals(largest: Sequence[T], most: int, is_taken: Callable[[T], bool]) -> list[T]:
    """The first of them, as many as asked for; a part of the places is for what was refused, since
    a gate is right where it says no, too."""
    refused = [c for c in largest if not is_taken(c)][: int(most * REFUSALS)]
    others = [c for c in largest if c not in refused][: most - len(refused)]
    return [c for c in largest if c in refused or c in others]


def _stated_ns(members: Sequence[Decision]) -> float:
    """What decisions say themselves of what they save."""
    return abs(sum(d.predicted_ns for d in members))


def _ids(members: Iterable[Decision]) -> tuple[str, ...]:
    return tuple(d.id for d in members)
