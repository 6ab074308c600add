"""The report of a compile: one value from which text, JSON and pages are made.

It is made when somebody asks, from what a compile keeps anyway: the final graph, the plan, the
decisions. A compile that nobody asks about pays nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rlx.backends.base import Runner
from rlx.core.errors import Error
from rlx.core.public_calls import public_class

if TYPE_CHECKING:
    from rlx.explain.trace import Trace

SCHEMA = 1
"""Of the JSON form; docs/explain.md describes it."""

NOT_NAMES = ("rule", "pass", "phase", "value")
"""Kinds of origin that are no name of the user's."""


@dataclass(frozen=True, slots=True)
class From:
    """Where something comes from: a `line`, a front end's name, a `block`, a `rule`, a `pass`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of the model."""

    name: str
    shape: str
    node: int
    """Of the final graph."""


@dataclass(frozen=True, slots=True)
class About:
    """What was compiled."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: int
    param_bytes: int
    sizes: dict[str, int]
    """Of named dims: what everything is counted at."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What it was compiled for, and the prices that were weighed with."""

    name: str
    digest: str
    claims: str
    """A hash of what the target can run, without its prices: what a replay must find again."""
    gate: dict[str, Any]
    caches: tuple[dict[str, float], ...]
    """Nearest first: bytes, and GB/s."""
    peak_gflops: dict[str, float]
    vector_bytes: int = 0
    transpose_gb_s: float = 0.0
    """At which values are copied with axes exchanged."""


@dataclass(frozen=True, slots=True)
class Totals:
    """One call, as it is counted."""

    kernels: int
    launches: int
    sync_points: int
    traffic_bytes: int
    output_bytes: int
    flops: int
    predicted_ns: float
    arena_bytes: int
    unshared_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node as it was given, before any pass."""

    id: int
    op: str
    shape: str
    inputs: tuple[int, ...]
    origins: tuple[From, ...]
    name: str = ""
    inside: int = 0
    """Ops in its bodies, at any depth."""


@dataclass(frozen=True, slots=True)
class ReportNode:
    """A node of the final graph."""

    id: int
    op: str
    shape: str
    inputs: tuple[int, ...]
    origins: tuple[From, ...]
    name: str
    phase: str
    kernel: int | None
    """The kernel that computes it; none for leaves, views and items."""
    buffer: int | None
    """Its buffer; none for a node of several results, whose items have one each."""
    text: str
    """The node as a line of IR."""


@dataclass(frozen=True, slots=True)
class ReportKernel:
    """A step of the schedule."""

    id: int
    """Its place in the schedule."""
    name: str
    op: str
    ops: tuple[str, ...]
    """The ops it computes, those inside a region listed."""
    node: int
    where: tuple[str, ...]
    """The user's names for what is in it."""
    shape: str
    phase: str
    reads: tuple[int, ...]
    """Buffers."""
    writes: tuple[int, ...]
    bytes: int
    flops: int
    dtype: str
    predicted_ns: float
    source: str
    """What it computes, as IR."""
    strategy: str = ""
    """The lowering strategy, in a word; empty where no backend is installed."""
    schedule: tuple[str, ...] = ()
    """How, in sentences, task by task."""
    measured: dict[str, Any] | None = None
    weight_bytes: int = 0
    """Of `bytes`, what is read of weights."""
    state_bytes: int = 0
    """Of `bytes`, what is read and written of states."""
    part: str = ""
    """Of a language model's step: the part of a layer that it belongs to, such as attention."""
    phase_reason: str = ""
    """Why it is in its phase: what needs it, or what it depends on."""

    @property
    def ns(self) -> float:
        """As measured; as predicted where it was not."""
        return self.measured["median_ns"] if self.measured else self.predicted_ns


@dataclass(frozen=True, slots=True)
class ReportBuffer:
    """Bytes, from the first step that writes them to the last that reads them."""

    id: int
    space: str
    """`arena`, `weights` or `state`."""
    offset: int
    bytes: int
    first: int
    """-1 is before the first step."""
    last: int
    names: tuple[str, ...]
    is_external: bool
    over: int | None = None
    """The buffer that it is written over, in place."""


@dataclass(frozen=True, slots=True)
class ReportDecision:
    """A decision, and the class of equivalent decisions that it belongs to."""

    id: str
    kind: str
    what: str
    where: tuple[str, ...]
    verdict: bool
    reason: str
    predicted_ns: float
    bytes_saved: int
    launches_saved: int
    is_reversible: bool
    group: str
    """Equivalent decisions, such as those of equal layers, have the same."""
    measured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RuleFired:
    """A rewrite that happened."""

    id: str
    rule: str
    identity: str
    before: str
    after: str
    is_exact: bool
    """Are the bits the same? Otherwise `why` says where they differ."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RuleMissed:
    """A rewrite that nearly happened."""

    rule: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What only the user can change, and what the gate says it is worth."""

    what: str
    where: tuple[str, ...]
    text: str
    predicted_ns: float
    bytes_saved: int
    launches_saved: int


@public_class
@dataclass(frozen=True, slots=True)
class Report:
    """Everything about one compile."""

    model: About
    target: TargetFacts
    options: dict[str, Any]
    versions: dict[str, str]
    fingerprint: str
    graph: str
    """A hash of the final graph."""
    totals: Totals
    fusion: dict[str, Any]
    phases: dict[str, tuple[int, ...]]
    """The kernels of each phase."""
    source: tuple[SourceNode, ...]
    nodes: tuple[ReportNode, ...]
    kernels: tuple[ReportKernel, ...]
    buffers: tuple[ReportBuffer, ...]
    decisions: tuple[ReportDecision, ...]
    rules: tuple[RuleFired, ...]
    missed_rules: tuple[RuleMissed, ...]
    advice: tuple[Advice, ...]
    cuts: tuple[str, ...]
    """Ids of the decisions where a call leaves native code."""
    code: dict[str, Any] | None = None
    """Code size, arithmetic and memory as the target's compiler counts them, where it says so."""
    step: dict[str, int] | None = None
    """Of a language model's step: its `tokens` of each of `sequences`, behind `depth` tokens."""
    runner: Runner = field(default=Runner(""), compare=False)
    """What runs it here: `name`, `threads`, `why` that is not the target's own code or a slow way
    into it; predicted times are those of what runs only if `is_target`."""
    machine: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Where it was compiled: `processor`, `cores`, `system`, and the `threads` that calls use."""
    timings: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What was measured, such as of the passes of a compile that was not cached, and the `date`.
    All else is the same from run to run."""
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """As plain lists and dicts."""
        return {"schema": self.schema, **asdict(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """The documented JSON form. Its bytes are the same from run to run, except `timings`
        and `measured`."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote."""
        try:
            return _read(cls, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Error(f"this is no report of rlx: {error}.") from None

    def without_timings(self) -> Report:
        """What is the same from run to run."""
        kernels = tuple(replace(k, measured=None) for k in self.kernels)
        decisions = tuple(replace(d, measured=None) for d in self.decisions)
        return replace(self, kernels=kernels, decisions=decisions, timings={})

    def decision(self, id_: str) -> ReportDecision:
        """The decision called `id_`."""
        for each in self.decisions:
            if each.id == id_:
                return each
        raise Error(f"{self.model.name}: there is no decision {id_!r}. `report.decisions` has all.")

    def __str__(self) -> str:
        from rlx.explain.text import report_text

        return report_text(self)

    def _repr_html_(self) -> str:
        """For notebooks: what a call takes, its kernels, its decisions."""
        from rlx.explain.notebook import report_html

        return report_html(self)

    def to_html(self, trace: Trace | None = None) -> str:
        """The page: overview, graphs, kernels, memory, decisions, roofline, and a trace's calls."""
        from rlx.explain.html import page_of

        return page_of(self, trace)

    def __repr__(self) -> str:
        return (
            f"<Report of {self.model.name!r} for {self.target.name}: {len(self.kernels)} kernels, "
            f"{len(self.decisions)} decisions>"
        )


_ROWS: dict[str, Any] = {
    "source": SourceNode, "nodes": ReportNode, "kernels": ReportKernel,
    "buffers": ReportBuffer, "decisions": ReportDecision, "rules": RuleFired,
    "missed_rules": RuleMissed, "advice": Advice, "inputs": Value, "outputs": Value,
    "origins": From,
}  # fmt: skip
_RECORDS: dict[str, Any] = {
    "model": About,
    "target": TargetFacts,
    "totals": Totals,
    "runner": Runner,
}


def _read(kind: Any, held: dict[str, Any]) -> Any:
    """A dataclass out of the dict that it was written as."""
    if kind is Report and held["schema"] != SCHEMA:
        raise ValueError(f"its schema is {held['schema']}, and this rlx reads {SCHEMA}")
    return kind(**{f.name: _value(f.name, held[f.name]) for f in fields(kind) if f.name in held})


def _value(name: str, held: Any) -> Any:
    if name in _RECORDS and isinstance(held, dict):
        return _read(_RECORDS[name], held)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(held, list):
        return _tuples(held) if name == "phases" else held
    rows: Iterable[Any] = held  # pyright: ignore[reportUnknownVariableType]
    is_rows = name in _ROWS
    return tuple(_read(_ROWS[name], r) if is_rows and isinstance(r, dict) else r for r in rows)


def _tuples(held: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) for k, v in held.items()}
