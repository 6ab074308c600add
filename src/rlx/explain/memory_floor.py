"""The memory floor of a call: what reading its weights and states takes at the machine's bandwidth.

A decode step reads every weight once for a handful of multiplications each, so memory bounds it;
its activations stay in the caches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.backends.base import Backend
from rlx.core.shape import Shape
from rlx.core.units import counted, size_text, time_text
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline

if TYPE_CHECKING:
    from rlx.explain.report import Report, ReportKernel

ROWS = 64
"""Of the array whose sums are timed: enough tasks for any number of threads."""
MIN_BYTES, MAX_BYTES = 1 << 20, 512 << 20
"""Of that array: what one call takes does not count, and no memory is filled for its own sake."""
SECONDS, FEWEST = 0.3, 5
PART_COLUMNS = (
    "time", "share", "weights", "cache", "activations", "floor", "of floor", "GB/s", "kernels",
    "part",
)  # fmt: skip
KERNEL_COLUMNS = ("weights", "cache", "floor", "part")


def read_gb_s(backend: Backend, size: int) -> float:
    """Bytes for each nanosecond that a kernel of the backend reads, with its threads, of as many
    bytes in the memory of the target: sums of rows, the fastest of some calls."""
    columns = max(MIN_BYTES, min(size, MAX_BYTES)) // (4 * ROWS)
    graph, shape = Graph("bandwidth"), Shape([ROWS, columns])
    graph.set_outputs([graph.sum(graph.state("x", shape), axes=(1,))])
    program = backend.timed(CompilePipeline(backend.target()).compile(graph).lir)
    weights, held = program.prepare({}, None), program.states.filled(shape, 1.0)
    times: list[int] = []
    until = time.perf_counter() + SECONDS
    while len(times) < 1 + FEWEST or time.perf_counter() < until:
        spans = program.run_timed(weights, [held]).spans
        times.append(max(s.stop_ns for s in spans) - min(s.start_ns for s in spans))
    return 4 * ROWS * columns / max(1, min(times[1:]))


@dataclass(frozen=True, slots=True)
class Floor:
    """Some kernels of a step, and the least time that memory allows them."""

    name: str
    kernels: tuple[ReportKernel, ...]
    gb_s: float

    @property
    def ns(self) -> float:
        return sum(k.ns for k in self.kernels)

    @property
    def weight_bytes(self) -> int:
        return sum(k.weight_bytes for k in self.kernels)

    @property
    def state_bytes(self) -> int:
        return sum(k.state_bytes for k in self.kernels)

    @property
    def activation_bytes(self) -> int:
        return sum(k.bytes for k in self.kernels) - self.weight_bytes - self.state_bytes

    @property
    def floor_ns(self) -> float:
        return (self.weight_bytes + self.state_bytes) / self.gb_s


def floor_of(report: Report) -> Floor:
    """All kernels of a step."""
    return Floor("step", tuple(_called(report)), gb_s_of(report))


def parts_of(report: Report) -> list[Floor]:
    """The parts of layers, the longest first."""
    held: dict[str, list[ReportKernel]] = {}
    for kernel in _called(report):
        held.setdefault(kernel.part, []).append(kernel)
    parts = [Floor(name, tuple(own), gb_s_of(report)) for name, own in held.items()]
    return sorted(parts, key=lambda p: (-p.ns, p.name))


def gb_s_of(report: Report) -> float:
    """The bandwidth that was measured; the target's own where none was."""
    return report.timings.get("read_gb_s") or report.target.gate["memory_gb_s"]


def _called(report: Report) -> Iterable[ReportKernel]:
    return (k for k in report.kernels if k.phase != "prologue")


def tokens_per_second(report: Report, ns: float) -> float:
    """Of steps that take so long each."""
    step = report.step or {"tokens": 0, "sequences": 0}
    return step["tokens"] * step["sequences"] / ns * 1e9


def step_text(report: Report) -> str:
    """What a step takes, against the floor, and what that is in tokens."""
    step, whole = report.step, floor_of(report)
    if step is None:
        return ""
    what = f"{counted(step['tokens'], 'token')} of {counted(step['sequences'], 'sequence')}"
    took = report.timings.get("call_ns") or report.totals.predicted_ns
    how = "measured" if "call_ns" in report.timings else "predicted"
    rates = [f"{tokens_per_second(report, took):,.1f} {how}"]
    if how == "measured":
        rates.append(f"{tokens_per_second(report, report.totals.predicted_ns):,.1f} predicted")
    rates.append(f"{tokens_per_second(report, whole.floor_ns):,.1f} at the memory floor")
    source = "measured" if "read_gb_s" in report.timings else "the target's rate"
    return (
        f"step: {what} behind {step['depth']:,}: {time_text(took)} {how}; tokens/s: "
        f"{', '.join(rates)}\nmemory floor: {size_text(whole.weight_bytes)} of weights and "
        f"{size_text(whole.state_bytes)} of cache at {whole.gb_s:.1f} GB/s ({source}) take "
        f"{time_text(whole.floor_ns)}, {whole.floor_ns / took:.0%} of the step"
    )


def part_rows(report: Report) -> list[tuple[str, ...]]:
    """Where the time and the bytes of a step go, by part of a layer, and all of them; none of a
    program that is no step."""
    whole = floor_of(report)
    parts = [*parts_of(report), whole] if report.step else []
    return [_cells(p, whole.ns) for p in parts]


def _cells(part: Floor, total_ns: float) -> tuple[str, ...]:
    moved = part.weight_bytes + part.state_bytes
    return (
        time_text(part.ns), f"{part.ns / max(total_ns, 1e-9):.1%}",
        *map(_size, (part.weight_bytes, part.state_bytes, part.activation_bytes)),
        time_text(part.floor_ns) if moved else "",
        f"{part.floor_ns / max(part.ns, 1e-9):.0%}" if moved else "",
        f"{moved / max(part.ns, 1.0):,.1f}" if moved else "",
        f"{len(part.kernels):,}", part.name,
    )  # fmt: skip


def _size(count: int) -> str:
    return size_text(count) if count else ""


def kernel_cells(kernels: Sequence[ReportKernel], report: Report) -> tuple[str, ...]:
    """What some kernels of a step read of weights and of the cache, and the least time for it."""
    held = Floor("", tuple(kernels), gb_s_of(report))
    floor = time_text(held.floor_ns) if held.floor_ns else ""
    return _size(held.weight_bytes), _size(held.state_bytes), floor, kernels[0].part
