"""Traces: compile passes, code generation, and calls, kernel by kernel and thread by thread.

The format is Chrome's trace events, which Perfetto (ui.perfetto.dev) reads as well. Times are of
one monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlx._version import __version__
from rlx.backends.timing import CodegenSpan, Run
from rlx.core.files import writing
from rlx.core.public_calls import public_class
from rlx.cost.terms import Terms
from rlx.explain.roofline import kernel_time

if TYPE_CHECKING:
    from rlx.ir.mir import Node
    from rlx.ops.op import Array
    from rlx.pipeline import CompileResult
    from rlx.runtime.loaded_program import LoadedProgram

COMPILE, CALLS = 1, 2
"""The two processes that a trace shows."""
OF_REPORT = 5
"""Calls of which a report shows one."""
TIMED_BUILD = "timed build"
"""The category of the instrumented build, which exists for the trace alone."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time."""

    name: str
    category: str
    process: int
    thread: int
    start_ns: int
    stop_ns: int
    args: tuple[tuple[str, Any], ...] = ()


@public_class
@dataclass(frozen=True, slots=True)
class Trace:
    """Events of a compile and of some calls."""

    name: str
    target: str
    events: tuple[Event, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of the trace-event format; times from the first event on, in microseconds."""
        first = min((e.start_ns for e in self.events), default=0)
        return {
            "traceEvents": [*self._names(), *(_json(e, first) for e in self.events)],
            "displayTimeUnit": "ns",
            "otherData": {"model": self.name, "target": self.target, "rlx": __version__},
        }

    def _names(self) -> Iterator[dict[str, Any]]:
        seen = dict.fromkeys((e.process, e.thread) for e in self.events)
        titles = {COMPILE: f"compile {self.name}", CALLS: f"run {self.name}"}
        for process in dict.fromkeys(p for p, _ in seen):
            yield _named("process_name", process, 0, titles[process])
        for process, thread in sorted(seen):
            yield _named("thread_name", process, thread, thread_name(process, thread))

    def median_call(self) -> Trace:
        """The same with one of its calls, the one of the median time: one may be interrupted."""
        calls = sorted((e for e in self.events if e.category == "call"), key=_took)
        if not calls:
            return self
        taken = calls[(len(calls) - 1) // 2]
        within = range(taken.start_ns, taken.stop_ns + 1)
        kept = (e for e in self.events if e.process != CALLS or e.start_ns in within)
        return replace(self, events=tuple(kept))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, all of it or nothing."""
        with writing(path) as file:
            file.write(json.dumps(self.as_dict()).encode())


def trace(loaded: LoadedProgram, arrays: Sequence[Array], *, calls: int = 3) -> Trace:
    """What was done to compile a program, and what it does in some calls on inputs, and on states
    behind them.

    The kernels are those of an instrumented build, whose compilation is part of the trace. Code
    generation is that of the program itself where it was compiled here; else that of the build.
    """
    result = loaded.result
    begun = time.monotonic_ns()
    program, weights = loaded.timed()
    ready = time.monotonic_ns()
    program.run_timed(weights, arrays)
    runs = [program.run_timed(weights, arrays) for _ in range(calls)]
    terms = Terms(result.lir.target, sizes=loaded.sizes(arrays))
    events = [
        *_passes(result),
        Event("instrumented build", TIMED_BUILD, COMPILE, 0, begun, ready),
        *_codegen(loaded.program.codegen_spans or program.codegen_spans, program.functions),
        *(e for i, run in enumerate(runs) for e in _call(i, run, program.steps, terms)),
    ]
    return Trace(loaded.name, result.lir.target.name, tuple(events))


def _passes(result: CompileResult) -> Iterator[Event]:
    for t in result.timings:
        yield Event(t.name, "pass", COMPILE, 0, t.start_ns, t.stop_ns, (("nodes", t.nodes),))


def _codegen(codegen_spans: Iterable[CodegenSpan], steps: Mapping[str, Node]) -> Iterator[Event]:
    """Code written and compiled, by the user's names of its kernels."""
    for m in codegen_spans:
        names = [steps[f].label if f in steps else f for f in m.functions]
        name = f"{m.what} {names[0] if names else 'shared functions'}"
        rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
        args = ("for", names), ("functions", list(m.functions)), ("bytes", m.bytes)
        yield Event(name + rest, "codegen", COMPILE, m.thread, m.start_ns, m.stop_ns, args)


def _call(number: int, run: Run, steps: tuple[Node, ...], terms: Terms) -> Iterator[Event]:
    """Rates are of the whole step, whichever threads had parts of it."""
    lost = (("dropped spans", run.lost),) if run.lost else ()
    yield Event(f"call {number + 1}", "call", CALLS, 0, run.start_ns, run.stop_ns, lost)
    took = run.step_ns(len(steps))
    for span in run.spans:
        node = steps[span.step]
        rates = kernel_time(node, took[span.step], 1, sum(took), terms)
        args = (
            ("step", span.step), ("op", node.op), ("shape", str(node.shape)),
            ("bytes", rates.bytes), ("flops", rates.flops), ("GB/s", round(rates.gb_s, 3)),
            ("GFLOP/s", round(rates.gflop_s, 3)),
            ("of the roofline", round(rates.roofline_share, 3)),
        )  # fmt: skip
        yield Event(node.label, "kernel", CALLS, 1 + span.thread, span.start_ns, span.stop_ns, args)


def _took(event: Event) -> int:
    return event.stop_ns - event.start_ns


def _json(event: Event, first: int) -> dict[str, Any]:
    return {
        "name": event.name, "cat": event.category, "ph": "X", "pid": event.process,
        "tid": event.thread, "ts": (event.start_ns - first) / 1e3,
        "dur": (event.stop_ns - event.start_ns) / 1e3, "args": dict(event.args),
    }  # fmt: skip


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def thread_name(process: int, thread: int) -> str:
    """Of a track."""
    if process == COMPILE:
        return "compiler" if thread == 0 else f"code generation {thread}"
    return "calls" if thread == 0 else f"thread {thread}"
