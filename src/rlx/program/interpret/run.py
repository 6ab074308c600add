"""A launch on NumPy: all threads of some blocks in lock step, one batch of clusters after another.

Threads in different branches go on in turns: a branch that waits for an mbarrier lets the others
run, and a launch in which all wait for ever is reported as such.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlx.core.dim import evaluate
from rlx.program import nodes as ir
from rlx.program.errors import LaunchError, located
from rlx.program.interpret.arithmetic import evaluate as computed
from rlx.program.interpret.copies import Copies
from rlx.program.interpret.memory import BufferSpan, Memory
from rlx.program.interpret.shadow import Shadow
from rlx.program.interpret.threads import Mask
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program
from rlx.program.uniformity import Uniformity, Varies

Array = np.ndarray[Any, Any]
BATCH_THREADS = 1 << 16
"""Threads that run at once."""
MAX_STEPS = 1 << 14
"""Of a loop that ends when a condition does: the longest in use has 64, one for each bit."""


def launch(
    program: Program,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    spans: Mapping[str, BufferSpan] | None = None,
) -> None:
    """Run a verified program on flat arrays, which it changes in place.

    `sizes` are the values of dims; `scalars` those of arguments that are no dim's; `spans` say
    of buffers where they are, and from which element on they may be touched.
    """
    known = dict(sizes or {})
    x, y, z = (evaluate(d, known) for d in program.grid)
    memories = {b.name: _memory(program, b.name, buffers, spans or {}) for b in program.buffers}
    numbers = _scalars(program, known, scalars or {})
    total = x * y * z
    if total % program.cluster:
        why = f"{total} blocks are no clusters of {program.cluster}; round the grid up."
        raise LaunchError(located(program, None, why))
    together = 1 if _waits_by_block(program) else BATCH_THREADS
    clusters = max(1, together // (program.block * program.cluster))
    step = clusters * program.cluster
    for first in range(0, total, step):
        blocks = min(step, total - first)
        batch = _Batch(program, (x, y, z), first, blocks, memories, numbers)
        batch.sizes = known
        batch.run()


def _waits_by_block(program: Program) -> bool:
    """Do blocks wait for mbarriers in loops of lengths of their own? In lock step one of them would
    wait for what another does only later."""
    loops = [n for n in program.nodes if isinstance(n, ir.For) and program.mbarriers]
    found = Uniformity(program) if loops else None
    return any(found is not None and found.of(n.args[:3]) > Varies.GRID for n in loops)


def _memory(
    program: Program, name: str, buffers: Mapping[str, Array], spans: Mapping[str, BufferSpan]
) -> Memory:
    declared = program.buffer(name)
    if name not in buffers:
        raise LaunchError(located(program, None, f"buffer {name} is not given."))
    data = buffers[name]
    if data.dtype != declared.dtype.numpy or data.ndim != 1:
        why = f"buffer {name} is a flat array of {declared.dtype}, and this is {data.dtype}."
        raise LaunchError(located(program, None, why))
    shadow = Shadow(data.size, program.warp) if declared.is_written else None
    return Memory(name, data, data.size, shadow, span=spans.get(name, BufferSpan()))


def _scalars(
    program: Program, sizes: Mapping[str, int], given: Mapping[str, float]
) -> dict[Value, Array]:
    found: dict[Value, Array] = {}
    for scalar in program.scalars:
        number = given.get(scalar.name) if scalar.dim is None else evaluate(scalar.dim, sizes)
        if number is None:
            raise LaunchError(located(program, None, f"scalar {scalar.name} is not given."))
        found[scalar.value] = np.asarray(number, scalar.value.dtype.numpy)
    return found


class _Batch(Copies):
    """Blocks that run at once."""

    def run(self) -> None:
        self.prepare()
        self.steps: dict[type[Node], Callable[[Any, Mask], None]] = {
            ir.Load: self.load,
            ir.TableLoad: self.table_load,
            ir.Store: self.store,
            ir.Atomic: self.atomic,
            ir.SharedLoad: self.shared_load,
            ir.SharedStore: self.shared_store,
            ir.Barrier: self.barrier,
            ir.Reduce: self.reduce,
            ir.Scan: self.scan,
            ir.ReduceScatter: self.reduce_scatter,
            ir.Shuffle: self.shuffle,
            ir.TileFill: self.tile_fill,
            ir.TileMul: self.tile_mul,
            ir.WarpgroupMul: self.warpgroup_mul,
            ir.WarpgroupWait: self.warpgroup_wait,
            ir.ProxyFence: self.proxy_fence,
            ir.RegisterLimit: lambda node, mask: None,
            ir.TileLoad: self.tile_load,
            ir.TileStore: self.tile_store,
            ir.TileElements: self.tile_elements,
            ir.TilePack: self.tile_pack,
            ir.TilePlace: self.tile_place,
            ir.AsyncCopy: self.async_copy,
            ir.AsyncCommit: self.async_commit,
            ir.AsyncWait: self.async_wait,
            ir.MbarrierInit: self.mbarrier_init,
            ir.MbarrierArrive: self.mbarrier_arrive,
            ir.BulkCopy: self.bulk_copy,
            ir.Push: self.push,
            ir.ReleaseDependents: lambda node, mask: None,
            ir.WaitDependencies: lambda node, mask: None,
        }
        seen = -1
        for waiting in self.region(self.program.body, None):
            if self.progress == seen and self.may_split:
                raise self.accesses.error(
                    waiting,
                    "deadlock: every thread waits for a phase that does not complete; check "
                    "arrivals, expected bytes and parity.",
                )
            self.may_split = self.progress == seen
            seen = self.progress
        self.finish()

    def region(self, region: Region, mask: Mask) -> Generator[Node]:
        yield from self.nodes(region.nodes, mask)

    def nodes(self, nodes: Sequence[Node], mask: Mask) -> Generator[Node]:
        """Runs the nodes; gives the one that waits, whenever no thread of it can go on."""
        for number, node in enumerate(nodes):
            before = [self.values.get(r) for r in node.results] if self.splits else []
            step = self.steps.get(type(node))
            if step is not None:
                step(node, mask)
            elif isinstance(node, ir.Position):
                self.values[node.result] = self.position(node)
            elif isinstance(node, ir.MbarrierWait):
                behind = yield from self.mbarrier_wait(node, mask)
                if behind is not None:
                    yield from self.split(nodes[number:], mask, behind)
                    return
            elif node.regions:
                yield from self.control(node, mask)
            else:
                made = computed(node, self.args(node))
                assert made is not None
                self.values[node.result] = made
            self.merge(node.results, before, mask)

    def split(self, nodes: Sequence[Node], mask: Mask, behind: Array) -> Generator[Node]:
        """Threads that wait for others of the same region are left behind there; all meet at its
        end."""
        ready = ~behind if mask is None else mask & ~behind
        self.splits += 1
        self.progress += 1
        yield from self.together([self.nodes(nodes, ready), self.nodes(nodes, behind)])
        self.splits -= 1

    def together(self, running: list[Generator[Node]]) -> Generator[Node]:
        """In turns, as long as one of them goes on."""
        while running:
            waiting: list[tuple[Generator[Node], Node]] = []
            for side in running:
                stopped = next(side, None)
                waiting += [] if stopped is None else [(side, stopped)]
            running = [side for side, _ in waiting]
            if waiting:
                yield waiting[0][1]

    def merge(self, values: Sequence[Value], before: Sequence[Array | None], mask: Mask) -> None:
        """While threads of one region are at different nodes, each keeps its own values."""
        for value, old in zip(values, before):
            if mask is not None and old is not None:
                self.values[value] = self.chosen(mask, self.values[value], old, value)

    def control(self, node: Node, mask: Mask) -> Generator[Node]:
        match node:
            case ir.For():
                yield from self.loop(node, mask)
            case ir.If():
                yield from self.branch(node, mask)
            case _:
                yield from self.repeat(node, mask)

    def loop(self, node: ir.For, mask: Mask) -> Generator[Node]:
        (body,) = node.regions
        low, high, step = (self.values[a] for a in node.args[:3])
        carried = [self.values[a] for a in node.args[3:]]
        if (step <= 0).any():
            raise self.accesses.error(node, f"its step is {int(np.min(step))}; use 1 or more.")
        index = low
        while True:
            inside = self.within(mask, index < high)
            if inside is False:
                break
            self.give(body.params, [index, *carried], inside)
            yield from self.region(body, inside)
            carried = self.taken(inside, mask, body.yields, carried)
            index = np.asarray(index + step, low.dtype)
        self.give(node.results, carried, mask)

    def within(self, mask: Mask, condition: Array) -> Mask | Literal[False]:
        """The threads for which it holds, too; False for none."""
        if condition.ndim == 0:
            return mask if bool(condition) and (mask is None or bool(mask.any())) else False
        both = condition if mask is None else mask & condition
        if not both.any():
            return False
        return None if both.all() else both

    def give(self, params: Sequence[Value], values: Sequence[Array], mask: Mask) -> None:
        before = [self.values.get(p) for p in params] if self.splits else []
        for param, value in zip(params, values, strict=True):
            self.values[param] = value
        self.merge(params, before, mask)

    def taken(
        self,
        inside: Mask | Literal[False],
        mask: Mask,
        values: Sequence[Value],
        old: Sequence[Array],
    ) -> list[Array]:
        """The new values of the threads inside; others keep theirs."""
        new = [self.values[v] for v in values]
        if inside is None or inside is mask or inside is False:
            return new
        return [self.chosen(inside, n, o, v) for n, o, v in zip(new, old, values)]

    def branch(self, node: ir.If, mask: Mask) -> Generator[Node]:
        condition = self.values[node.args[0]]
        both = (condition, ~condition)
        sides: list[Mask | Literal[False]] = [self.within(mask, c) for c in both]
        sides_run = [self.region(r, m) for r, m in zip(node.regions, sides) if m is not False]
        yield from self.together(sides_run)
        yes, no = ([self.values.get(v) for v in r.yields] for r in node.regions)
        for result, a, b in zip(node.results, yes, no):
            if sides[0] is False or sides[1] is False or a is None or b is None:
                made = b if sides[0] is False else a
            else:
                made = self.chosen(np.broadcast_to(condition, (self.count,)), a, b, result)
            assert made is not None
            self.give([result], [made], mask)

    def repeat(self, node: Node, mask: Mask) -> Generator[Node]:
        test, body = node.regions
        carried = [self.values[a] for a in node.args]
        inside: Mask | Literal[False] = mask
        for steps in itertools.count():
            if steps == MAX_STEPS:
                why = f"it goes on after {MAX_STEPS} steps; check its condition."
                raise self.accesses.error(node, why)
            self.give(test.params, carried, inside)
            yield from self.region(test, inside)
            inside = self.within(inside, self.values[test.yields[0]])
            if inside is False:
                break
            self.give(body.params, carried, inside)
            yield from self.region(body, inside)
            carried = self.taken(inside, None, body.yields, carried)
        self.give(node.results, carried, mask)
