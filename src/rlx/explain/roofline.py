"""Measured kernels and the roofline: what each takes, and the least that the machine allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlx.core.dtype import DType
from rlx.core.public_calls import public_class
from rlx.cost.machine import Machine
from rlx.cost.terms import Terms
from rlx.ir.mir import Node

if TYPE_CHECKING:
    from rlx.ops.op import Array
    from rlx.runtime.loaded_program import LoadedProgram

FEWEST = 5
"""Calls that are timed however long they take."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of the schedule."""

    label: str
    op: str
    calls: int
    """How many times it was timed."""
    median_ns: float
    bytes: int
    """What it reads and writes, each value once, at the sizes it was timed at."""
    flops: int
    gb_s: float
    gflop_s: float
    roofline_ns: float
    """The roofline: the longer of its bytes and its arithmetic at the target's rates."""
    roofline_share: float
    """Of the time it takes; 1 is as fast as the machine is."""
    share: float
    """Of the time of all kernels."""


@public_class
@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Every kernel of a call, in the order of the schedule."""

    name: str
    sizes: Mapping[str, int]
    call_ns: float
    """The median call, in the instrumented build."""
    kernels: tuple[KernelTime, ...]

    @property
    def roofline_share(self) -> float:
        """Roofline time over measured time, of all kernels."""
        took = sum(k.median_ns for k in self.kernels)
        return sum(k.roofline_ns for k in self.kernels) / took if took else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**asdict(self), "roofline_share": self.roofline_share}

    def __str__(self) -> str:
        """A table, slowest first."""
        head = (
            f"{self.name}: {len(self.kernels)} kernels, {self.call_ns / 1e3:,.1f} µs a call, "
            f"{self.roofline_share:.0%} of the roofline\n"
            f"{'µs':>10} {'share':>6} {'GB/s':>7} {'GFLOP/s':>8} {'roof':>5}  kernel"
        )
        slowest = sorted(self.kernels, key=lambda k: -k.median_ns)
        return "\n".join([head, *map(_line, slowest)])


def _line(k: KernelTime) -> str:
    return (
        f"{k.median_ns / 1e3:10,.1f} {k.share:6.1%} {k.gb_s:7.1f} {k.gflop_s:8.1f} "
        f"{k.roofline_share:5.0%}  {k.label}"
    )


def profile(
    loaded: LoadedProgram,
    arrays: Sequence[Array],
    *,
    seconds: float = 1.0,
    cached_rows: int | None = None,
) -> KernelTimes:
    """Time every kernel of a program on inputs, and on states behind them, for about `seconds`."""
    sizes = loaded.sizes(arrays)
    program, weights = loaded.timed()
    steps = program.steps
    program.run_timed(weights, arrays)  # warm-up: the first call faults pages in
    taken: list[list[int]] = []
    calls: list[int] = []
    until = time.perf_counter() + seconds
    while len(calls) < FEWEST or time.perf_counter() < until:
        run = program.run_timed(weights, arrays)
        taken.append(run.step_ns(len(steps)))
        calls.append(run.stop_ns - run.start_ns)
    medians = [float(statistics.median(step)) for step in zip(*taken)]
    terms = Terms(loaded.result.lir.target, sizes=sizes, cached_rows=cached_rows)
    total = sum(medians)
    made = [kernel_time(n, ns, len(calls), total, terms) for n, ns in zip(steps, medians)]
    return KernelTimes(loaded.name, sizes, statistics.median(calls), tuple(made))


def kernel_time(node: Node, ns: float, calls: int, total: float, terms: Terms) -> KernelTime:
    """A kernel that took so long: what it moved and computed meanwhile, and what the machine could
    have."""
    size, flops = terms.kernel(node).device_traffic_bytes, terms.flops_of(node)
    least = least_ns(terms.target.machine, size, flops, node.shapes[0].dtype)
    spent = max(ns, 1.0)
    return KernelTime(
        node.label, node.op, calls, ns, size, flops, size / spent, flops / spent,
        least, least / spent, ns / total if total else 0.0,
    )  # fmt: skip


def least_ns(machine: Machine, size: int, flops: int, dtype: DType) -> float:
    """The roofline: memory and arithmetic overlap, so the slower of the two."""
    return max(size / machine.memory_gb_s(size), flops / machine.gflops(dtype))
