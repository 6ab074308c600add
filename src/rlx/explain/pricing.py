"""What a whole plan should take by the gate's prices, kernel by kernel.

A kernel costs a launch, its bytes at the speed of the cache that holds what it touches, and its
arithmetic; one whose work is shared out costs handing it out as well, and runs at the rates of all
workers instead of one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlx.backends.cpu.task import SPLIT_NS, nanoseconds
from rlx.cost.calibrate import HANDOUT_NS
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Node

if TYPE_CHECKING:
    from rlx.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class Prices:
    """The rates of one worker and of all of them together."""

    one: Target
    all: Target
    threads: int
    handout_ns: float
    """What sharing a kernel's work out costs, on top of a launch."""

    @classmethod
    def of(cls, exe: Executable) -> Prices:
        """Those that an executable was compiled at; documented ones where a number of workers was
        not measured."""
        target, threads = exe.lir.target, exe.threads
        numbers, alone = exe.numbers(threads), exe.numbers(1)
        one = alone.applied(target) if alone else _shared_evenly(target, threads)
        handout = numbers.handout_ns if numbers else HANDOUT_NS
        return cls(one, target, threads, handout)

    def plan_ns(self, lir: LirModule, sizes: Mapping[str, int]) -> float:
        """What a call should take."""
        terms = Terms(self.all, sizes=sizes)
        kernels = [n for n in lir.plan.schedule if lir.plan.phases[n] is not Phase.PROLOGUE]
        return sum(self.kernel_ns(n, terms, lir.split.get(n)) for n in kernels)

    def kernel_ns(self, node: Node, terms: Terms, is_split: bool | None = None) -> float:
        """What one kernel should take; by itself it is split where it is long enough."""
        near = terms.compute([node]).working_set_bytes
        traffic, flops = terms.kernel(node).device_traffic_bytes, terms.flops_of(node)
        if is_split is None:
            is_split = nanoseconds(flops, traffic) >= SPLIT_NS  # pyright: ignore[reportOperatorIssue]
        is_shared = is_split and self.threads > 1
        rates = self.all if is_shared else self.one
        return (
            rates.gate.dispatch_ns
            + self.handout_ns * is_shared
            + traffic / rates.memory_gb_s(near)
            + flops / rates.gflops(node.shapes[0].dtype)
        )


def _shared_evenly(target: Target, threads: int) -> Target:
    """One worker's part of what all reach in arithmetic; memory they rarely wait for together."""
    rates = {d: v / threads for d, v in target.peak_gflops.items()}
    return replace(target, peak_gflops=rates)
