"""What a whole plan should take by the gate's prices, kernel by kernel.

A kernel costs a launch, its bytes at the speed of the cache that holds what it touches, and its
arithmetic; a parallel one costs a fork-join as well, and runs at the rates of all workers instead
of one's. On top of that comes what its memory layouts cost: partly filled vectors, copies, and
operands that it packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlx.core.layout import Layout
from rlx.cost.calibrate import Numbers
from rlx.cost.layout_cost import NO_COST, LayoutCost, inner_results, layout_cost
from rlx.cost.machine import Machine
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.ir.lir import BufferPlan, LirModule, Phase
from rlx.ir.mir import Node
from rlx.ir.plan_nodes import with_all_items
from rlx.ops.op import Kind
from rlx.passes.bodies import bodies_of
from rlx.plan.planner import plan_buffers

if TYPE_CHECKING:
    from rlx.runtime.executable import Executable


MATMULS = ("matmul", "conv", "fused_matmul_bias_act", "fused_conv_bias_act")
"""Ops that read their second operand packed."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The rates of one worker and of all of them together."""

    one: Machine
    target: Target
    """Its machine is that of all workers."""
    threads: int

    @classmethod
    def of(cls, exe: Executable) -> Prices:
        """Those that an executable was compiled at; documented ones where a number of workers was
        not measured."""
        return cls.at(exe.lir.target, exe.threads, exe.backend.calibrated)

    @classmethod
    def at(cls, target: Target, threads: int, measured: Callable[[int], Numbers | None]) -> Prices:
        """Those of a target, which are of so many workers; `measured` are those of any number."""
        alone, machine = measured(1), target.machine
        one = alone.applied(machine) if alone else _one_worker(machine, threads)
        return cls(one, target, threads)

    def plan_ns(
        self, lir: LirModule, sizes: Mapping[str, int], splits: Mapping[str, bool] | None = None
    ) -> float:
        """What a call should take, its outputs read back. `splits` are kernels that are known to be
        parallel, or not."""
        terms, known = Terms(self.target, sizes=sizes), splits or {}
        outputs = sum(terms.bytes_of(o.shape) for o in dict.fromkeys(lir.plan.io.outputs))
        readback_ns = outputs / self.target.gate.effective_readback_gb_s
        return readback_ns + self._schedule_ns(
            lir.plan, terms, lambda n: lir.split.get(n, known.get(key_of(n)))
        )

    def _schedule_ns(
        self, plan: BufferPlan, terms: Terms, is_split: Callable[[Node], bool | None]
    ) -> float:
        """What runs on every call of a plan, or every time that a body runs."""
        steps = [n for n in plan.schedule if plan.phases[n] is not Phase.PROLOGUE]
        return sum(
            self._control_ns(n, plan, terms, is_split)
            if n.decl.kind is Kind.CONTROL
            else self.kernel_ns(n, terms, is_split(n), more_of(n, plan, terms))
            for n in steps
        )

    def _control_ns(
        self, node: Node, plan: BufferPlan, terms: Terms, is_split: Callable[[Node], bool | None]
    ) -> float:
        """The longer side of a branch; the steps of a loop, one where no count is known."""
        bodies = [plan_buffers(with_all_items(b), self.target, plan.alignment)
                  for b in bodies_of(node)]  # fmt: skip
        each = [self._schedule_ns(b, terms, is_split) for b in bodies]
        is_branch = node.op == "if"
        count = node.attrs.get("length", node.attrs.get("max_iterations"))
        times = 1 if is_branch or count is None else terms.size_of(count)
        inside = max(each) if is_branch else times * sum(each)
        return self.target.machine.gate.dispatch_ns + inside

    def kernel_ns(
        self, node: Node, terms: Terms, is_split: bool | None = None, more: LayoutCost = NO_COST
    ) -> float:
        """What one kernel should take; by itself it is split where it is long enough. `more` is
        what it does beside computing its results and reading and writing each value once."""
        traffic, flops = terms.kernel(node).device_traffic_bytes, terms.flops_of(node)
        if is_split is None:
            machine = self.target.machine
            is_split = machine.worker_ns(flops, traffic) >= machine.split_ns  # pyright: ignore[reportOperatorIssue]
        is_parallel = is_split and self.threads > 1
        rates = self.target.machine if is_parallel else self.one
        return (
            rates.gate.dispatch_ns
            + rates.fork_join_ns * is_parallel
            + traffic / rates.memory_gb_s(traffic)
            + terms.peak_flops(node) / rates.gflops(node.shapes[0].dtype)
            + more.ns(rates, traffic, node.shapes[0].dtype)
        )

    def gains_of_splitting(
        self, nodes: Iterable[Node], sizes: Mapping[str, int]
    ) -> dict[Node, float]:
        """What sharing each kernel's work out should save, where it is possible."""
        terms = Terms(self.target, sizes=sizes)
        return {
            n: self.kernel_ns(n, terms, is_split=False) - self.kernel_ns(n, terms, is_split=True)
            for n in nodes
        }


def more_of(node: Node, plan: BufferPlan, terms: Terms) -> LayoutCost:
    """What the memory layouts of a step's values cost."""
    operands = [plan.layout(i) for i in node.inputs]
    plain = [Layout.contiguous(s.dims) for s in node.shapes]
    results = inner_results(node, plain if node.has_items else [plan.layout(node)])
    return layout_cost(node, operands, results, terms) + packed(node, plan, terms)


def packed(node: Node, plan: BufferPlan, terms: Terms) -> LayoutCost:
    """What a matmul reads and writes to pack its right operand. Weights are packed when they are
    set; an operand of the call is packed on every call, and transposed where its columns are
    strided."""
    body = node.attrs.get("body")
    inside = {n: node.inputs[i] for i, n in enumerate(body.inputs)} if body else {}
    total = NO_COST
    for matmul in body.order() if body else (node,):
        if matmul.op in MATMULS:
            right = matmul.inputs[1]
            while body and right.inputs and right.decl.kind is Kind.MOVEMENT:
                right = right.inputs[0]
            given = inside.get(right, right)
            if given.op == "input" or plan.phases.get(given, Phase.STEADY_STATE) > Phase.PROLOGUE:
                size = 2 * terms.bytes_of(matmul.inputs[1].shape)
                is_strided = given.shapes[0].rank > 0 and plan.layout(given).strides[-1] != 1
                total += (
                    LayoutCost(transposed_bytes=size)
                    if is_strided
                    else LayoutCost(sequential_bytes=size)
                )
    return total


def key_of(node: Node) -> str:
    """What tells a kernel from the others of a plan, and is the same in another plan."""
    return f"{node.op} {node.label} {node.shape}"


def _one_worker(machine: Machine, threads: int) -> Machine:
    """One worker's part of what all reach in arithmetic; memory they rarely wait for together."""
    rates = {d: v / threads for d, v in machine.peak_gflops.items()}
    return replace(machine, peak_gflops=rates)
