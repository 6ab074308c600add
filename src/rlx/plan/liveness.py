"""Liveness over the schedule, and in-place reuse of an operand at its last use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlx.ir.lir import Phase, View
from rlx.ir.mir import Node
from rlx.ops.op import Kind
from rlx.plan.views import is_whole, location

START = -1
"""The step before the first kernel: inputs are there."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The live range of a buffer: first and last step, both included."""

    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The schedule, the results of its kernels, and the views."""

    schedule: Sequence[Node]
    results: Mapping[Node, Sequence[Node]]
    """Kernel → its items; a kernel of one result is not here."""
    views: Mapping[Node, View]

    def root(self, node: Node) -> Node:
        view = self.views.get(node)
        return view.root if view else node

    def written(self, kernel: Node) -> Sequence[Node]:
        """The values a kernel makes."""
        return self.results[kernel] if kernel.has_items else (kernel,)


def lifetimes(
    steps: Steps, inputs: Sequence[Node], outputs: Sequence[Node], phases: Mapping[Node, Phase]
) -> dict[Node, Lifetime]:
    """The lifetime of every buffer that a kernel touches, and of inputs and outputs.

    Inputs stay to the end: the caller's memory is never overwritten. So does what SteadyState
    leaves to the Epilogue, which may run any number of times.
    """
    birth: dict[Node, int] = dict.fromkeys(inputs, START)
    death: dict[Node, int] = {}
    for step, kernel in enumerate(steps.schedule):
        for value in steps.written(kernel):
            root = steps.root(value)
            birth.setdefault(root, step)
            death[root] = step
        for operand in kernel.inputs:
            death[steps.root(operand)] = step
    end = len(steps.schedule)
    crossing = _crossing(steps, phases)
    death.update((steps.root(node), end) for node in (*inputs, *outputs, *crossing))
    return {root: Lifetime(born, death[root]) for root, born in birth.items()}


def _crossing(steps: Steps, phases: Mapping[Node, Phase]) -> Iterator[Node]:
    """Values made before the Epilogue that a kernel of it reads."""
    for kernel in steps.schedule:
        if phases[kernel] is Phase.EPILOGUE:
            yield from (i for i in kernel.inputs if phases[steps.root(i)] < Phase.EPILOGUE)


def find_in_place(
    steps: Steps, lives: Mapping[Node, Lifetime], in_arena: Mapping[Node, bool]
) -> dict[Node, Node]:
    """Kernel → the operand it may overwrite, the first one that qualifies."""
    found: dict[Node, Node] = {}
    for step, kernel in enumerate(steps.schedule):
        if not _is_pointwise(kernel) or kernel in steps.views or not in_arena[kernel]:
            continue
        for operand in kernel.inputs:
            root = steps.root(operand)
            dies = in_arena[root] and not root.is_leaf and lives[root].death == step
            if dies and _is_read_in_step(kernel, root, steps):
                found[kernel] = operand
                break
    return found


def _is_pointwise(kernel: Node) -> bool:
    """Does each element of the result depend on the operands' elements at its own index only?"""
    if kernel.has_items:
        return False
    if kernel.op != "elementwise_region":
        return kernel.decl.kind is Kind.ELEMENTWISE
    pointwise = (Kind.LEAF, Kind.ELEMENTWISE)
    return all(node.decl.kind in pointwise for node in kernel.attrs["body"].order())


def _is_read_in_step(kernel: Node, root: Node, steps: Steps) -> bool:
    """Is `root` as large as the result, and wherever the kernel reads it, read at that index?"""
    if root.shape.dtype.itemsize != kernel.shape.dtype.itemsize:
        return False
    return all(
        operand.shape.dims == kernel.shape.dims and is_whole(location(steps.views, operand))
        for operand in kernel.inputs
        if steps.root(operand) is root
    )
