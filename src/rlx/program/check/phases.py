"""Phases of asynchronous copies and of dependent launch.

Forward through the program: what was copied into an array of shared memory may be read once the
copies were committed, waited for, and a barrier has made them visible. An array of several stages
is refilled while others of its stages are read, which indices decide: here only the first use is
checked, and the interpreter checks every word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from rlx.program import nodes as ir
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program

Fault = tuple[Node | None, str]


class State(IntEnum):
    """Of an array, the least advanced over all paths."""

    COPYING = 0
    COMMITTED = 1
    WAITED = 2
    READY = 3


NEXT = {
    State.COPYING: "commit the copies, wait for them, then use a barrier.",
    State.COMMITTED: "wait for the group, then use a barrier.",
    State.WAITED: "use a barrier: other threads' copies are not seen yet.",
}


def phase_faults(program: Program) -> Iterator[Fault]:
    walker = _Walker()
    yield from walker.region(program.body)
    yield from _unwaited(program)
    if any(isinstance(n, ir.WarpgroupMul) and n.is_async for n in program.nodes):
        yield from _Products().region(program.body)
        yield from _products_in_place(program)
    yield from _mbarriers(program)
    yield from _dependent_launch(program)


STEPS = frozenset((
    ir.AsyncCopy, ir.AsyncCommit, ir.AsyncWait, ir.Barrier, ir.SharedLoad, ir.TileLoad,
    ir.WarpgroupMul,
))  # fmt: skip
"""What copies into shared memory, waits, or reads it."""


class _Walker:
    """The state of each array as the program goes on."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}

    def region(self, region: Region) -> Iterator[Fault]:
        for node in region.nodes:
            if node.regions:
                yield from self.branches(node)
            elif type(node) in STEPS:
                yield from self.step(node)

    def branches(self, node: Node) -> Iterator[Fault]:
        """Both sides of a branch start alike; a loop is gone through as if it ran."""
        before, after = dict(self.states), list[dict[str, State]]()
        for region in node.regions:
            self.states = dict(before) if isinstance(node, ir.If) else self.states
            yield from self.region(region)
            after.append(self.states)
        if isinstance(node, ir.If):
            names = dict.fromkeys(n for s in after for n in s)
            known = {n: [s[n] for s in after if n in s] for n in names}
            self.states = {n: min(found) for n, found in known.items()}

    def step(self, node: Node) -> Iterator[Fault]:
        match node:
            case ir.AsyncCopy(memory=name):
                self.states.setdefault(name, State.COPYING)
            case ir.AsyncCommit():
                self.advance(State.COPYING, State.COMMITTED)
            case ir.AsyncWait():
                self.advance(State.COMMITTED, State.WAITED)
            case ir.Barrier(scope="block" | "cluster"):
                self.advance(State.WAITED, State.READY)
            case ir.SharedLoad(memory=name) | ir.TileLoad(memory=name):
                state = self.states.get(name, State.READY)
                if state is not State.READY:
                    yield node, f"it reads {name}, which is still being copied; {NEXT[state]}"
            case ir.WarpgroupMul(left=left, right=right):
                for name in filter(None, (left, right)):
                    for _, why in self.step(ir.TileLoad(memory=name, pitch=1)):
                        yield node, why
            case _:
                pass

    def advance(self, old: State, new: State) -> None:
        for name, state in self.states.items():
            if state is old:
                self.states[name] = new


class _Products:
    """Sums of asynchronous products that are under way as the program goes on: of each product,
    in the order in which they were started."""

    def __init__(self) -> None:
        self.open: list[set[Value]] = []

    def region(self, region: Region) -> Iterator[Fault]:
        for node in region.nodes:
            yield from self.step(node)
            for inner in node.regions:
                yield from self.region(inner)
            for inner, sums in ((r, s) for r in node.regions for s in self.open):
                sums |= {r for r, y in zip(node.results, inner.yields) if y in sums}

    def step(self, node: Node) -> Iterator[Fault]:
        if isinstance(node, ir.WarpgroupWait):
            self.open = self.open[max(0, len(self.open) - node.pending) :]
        is_product = isinstance(node, ir.WarpgroupMul) and node.is_async
        used = set(node.args[1:] if is_product else node.args)
        if not node.regions and any(used & sums for sums in self.open):
            yield node, "it uses sums of a product that is under way; wait for it."
        if is_product:
            for sums in (s for s in self.open if node.args[0] in s):
                sums.add(node.result)
            self.open.append({node.result})


def _products_in_place(program: Program) -> Iterator[Fault]:
    """An asynchronous product adds to the registers of its sums."""
    products = [n for n in program.nodes if isinstance(n, ir.WarpgroupMul) and n.is_async]
    used = Counter(a for n in program.nodes for a in n.args)
    used.update(y for n in program.nodes for r in n.regions for y in r.yields)
    for node in products:
        if used[node.args[0]] > 1:
            yield node, "the sums that it adds to are used elsewhere, too; give it its own."


def _unwaited(program: Program) -> Iterator[Fault]:
    """A thread must not end while copies into its block's memory are under way."""
    nodes = list(program.nodes)
    copies = [i for i, n in enumerate(nodes) if isinstance(n, ir.AsyncCopy)]
    waits = [i for i, n in enumerate(nodes) if isinstance(n, ir.AsyncWait)]
    if copies and not waits:
        yield nodes[copies[-1]], "nothing waits for this copy; add a commit and a wait."


def _mbarriers(program: Program) -> Iterator[Fault]:
    nodes = list(program.nodes)
    for barrier in program.mbarriers:
        uses = [n for n in nodes if getattr(n, "mbarrier", None) == barrier.name]
        waits = [n for n in uses if isinstance(n, ir.MbarrierWait)]
        counted = [n for n in uses if isinstance(n, ir.BulkCopy | ir.Push)]
        if uses and not any(isinstance(n, ir.MbarrierInit) for n in uses):
            yield uses[0], f"mbarrier {barrier.name} is never initialised; do it in one thread."
        if counted and not waits:
            yield counted[0], f"nothing waits for mbarrier {barrier.name}, which counts this."
        if counted and not any(isinstance(n, ir.MbarrierArrive) and n.expected_bytes for n in uses):
            yield (
                counted[0],
                (
                    f"mbarrier {barrier.name} counts these bytes, and no arrival expects them; "
                    "arrive with expected_bytes."
                ),
            )


def _dependent_launch(program: Program) -> Iterator[Fault]:
    """Before the wait, what earlier kernels write may not be there yet, and what they read may
    not be overwritten."""
    nodes = list(program.nodes)
    waits = [i for i, n in enumerate(nodes) if isinstance(n, ir.WaitDependencies)]
    released = any(isinstance(n, ir.ReleaseDependents) for n in nodes)
    if released and not waits:
        yield None, "it releases the next kernel and never waits for those before; add the wait."
    for node in nodes[: waits[0]] if waits else []:
        if isinstance(node, ir.Store | ir.Atomic):
            yield node, "it writes before the kernels before are done; move it behind the wait."
        if isinstance(node, ir.Load | ir.AsyncCopy):
            buffer = program.buffer(node.buffer)
            if buffer.access != "constant":
                yield (
                    node,
                    (
                        f"it reads {buffer.name} before the kernels before are done; move it "
                        "behind the wait, or declare the buffer constant."
                    ),
                )
