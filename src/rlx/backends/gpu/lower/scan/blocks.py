"""Scans whose steps mix the points of their carries: a block goes along the time axis, and its
threads meet after each kernel of a step.

A block has one point of the axes that no step mixes, or a few neighbours, such as rows of a batch:
then it reads recurrent weights once for all of them. Reductions of a step are a few threads'
each, along the reduced axis, so that weights are read contiguously. Values of the scan are in
shared memory where they fit, else in global memory.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rlx.backends.gpu.lower.expressions import combined, zipped
from rlx.backends.gpu.lower.loop import index_dtype_of
from rlx.backends.gpu.lower.reductions import FOLDS
from rlx.backends.gpu.lower.scan.local import LocalIndex
from rlx.backends.gpu.lower.scan.steps import ScanKernels, Steps, first_points
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.loop import chain_of
from rlx.backends.gpu.schedule.scan import BlockSchedule
from rlx.core.dim import DimLike, exact_div, lower_bound, product
from rlx.kernel.expr import Affine, Axis, Kernel, Load, Reduce, Store
from rlx.kernel.scan import Value
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import BufferRef, SharedRef, Var

UNROLL = 8
"""Loads of a reduction that a thread has in flight."""


def emit_blocks(
    kernels: ScanKernels,
    schedule: BlockSchedule,
    constants: frozenset[int],
    is_dependent: bool,
    name: str,
) -> Program:
    """The program of a scan whose steps mix all points."""
    return _Blocks(kernels, schedule, constants, name).program(is_dependent)


class _Blocks(Steps):
    """One program."""

    def __init__(
        self, kernels: ScanKernels, schedule: BlockSchedule, constants: frozenset[int], name: str
    ) -> None:
        self.schedule = schedule
        count = product(a.extent for a in schedule.points)
        blocks = exact_div(count, schedule.width)
        assert blocks is not None
        self.blocks = blocks
        grid = (blocks, len(kernels.reversals))
        builder = Builder(name, block=schedule.block, grid=grid, warp=schedule.warp)
        points = [product(a.extent for a in k.axes) for k in kernels.all]
        counts = [*points, count, kernels.scan.time.extent]
        index = index_dtype_of(kernels.whole, counts, schedule.index_bits)
        super().__init__(builder, kernels, index, schedule.vector, constants)
        self.shared = {n: self._shared(n, x) for n, x in schedule.local.items()}
        self.is_cooperative = False

    def declare(self, constants: frozenset[int]) -> None:
        super().declare(constants)
        read = {v.name for n in self.kernels.loads if (v := self.kernels.value_of(n))}
        self.own: dict[str, BufferRef] = {}
        for number, value in enumerate(self.kernels.memory.values):
            name, is_written = value.name, value.name in self.kernels.written
            if name not in self.schedule.local and (is_written or name in read):
                access = "update" if is_written else "read"
                self.own[name] = self.b.buffer(f"v{number}", value.dtype, access)

    def _shared(self, name: str, index: LocalIndex) -> SharedRef:
        return self.b.shared(f"v_{name}", index.value.dtype, max(1, index.size))

    def program(self, is_dependent: bool) -> Program:
        if is_dependent:
            self.b.release_dependents()
            self.b.wait_dependencies()
        if self.blocks != 0:
            self._open()
            self._start()
            self._loop()
            self._run(self.kernels.finish)
        return self.b.program()

    # -- places ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """The point of the block."""
        b, schedule = self.b, self.schedule
        block = b.block_index().to(self.index_dtype)
        index: dict[Axis, Values] = {}
        for number, axis in reversed(list(enumerate(schedule.points))):
            width = schedule.width if axis is schedule.vector else 1
            extent = exact_div(axis.extent, width)
            assert extent is not None
            own = block if number == 0 else block % self.dim(extent)
            block = block if number == 0 else block // self.dim(extent)
            index[axis] = [own * width + s for s in range(width)]
        way = b.block_index(1).to(self.index_dtype)
        index[self.scan.direction] = [way + self.kernels.first]
        self.scopes = [Scope(b.depth, index)]

    def _position(self, step: Var) -> Var:
        """On the time axis, in the block's direction."""
        ways = self.kernels.reversals
        if len(set(ways)) == 1:
            return self.position_of(step, ways[0])
        (way,) = self.position(self.scan.direction)
        found = self.position_of(step, ways[0])
        for number, is_reversed in enumerate(ways[1:], self.kernels.first + 1):
            found = self.position_of(step, is_reversed).where(way.eq(number), found)
        return found

    # -- steps -----------------------------------------------------------------------------------

    def _start(self) -> None:
        scan = self.scan
        if not scan.has_first:
            self._run(self.kernels.start)
            return
        if lower_bound(scan.time.extent) > 0:
            self._first()
            return
        with self.b.when(self.number(scan.time.extent) > 0):
            self._first()

    def _first(self) -> None:
        place = self._position(self.b.const(0, self.index_dtype))
        with self.inside(Scope(self.b.depth, {self.scan.time: [place]})):
            self._run(self.kernels.start)

    def _loop(self) -> None:
        low = self.b.const(int(self.scan.has_first), self.index_dtype)
        with (
            self.b.loop(low, self.number(self.scan.time.extent)) as step,
            self.inside(Scope(self.b.depth, {self.scan.time: [self._position(step)]})),
        ):
            self._run(self.kernels.steps)

    def _run(self, kernels: Sequence[Kernel]) -> None:
        """Kernels in order, each by all threads."""
        for kernel in kernels:
            self._kernel(kernel)
            self.b.barrier()

    def _kernel(self, kernel: Kernel) -> None:
        """A thread a point, or a group of threads where there is something to reduce."""
        axes = [a for a in kernel.axes if a not in self.schedule.points]
        count: DimLike = product(a.extent for a in axes)
        self.is_cooperative = any(isinstance(n, Reduce) for n in kernel.nodes)
        with (
            self._points(count) as (flat, mask),
            self.inside(Scope(self.b.depth, self.opened(axes, flat, 1), mask)),
        ):
            values = [self.value(s.value) for s in kernel.stores]
            for store, made in zip(kernel.stores, values):
                self._store(kernel, store, made)

    @contextmanager
    def _points(self, count: DimLike) -> Generator[tuple[Var, Var | None]]:
        """A loop over points, and whether the thread has one: all threads of a warp go around as
        often, as they meet in reductions."""
        b, block, group = self.b, self.schedule.block, self.schedule.group
        end = self.number(count)
        if not self.is_cooperative:
            with b.loop(b.thread.to(self.index_dtype), end, block) as flat:
                yield flat, None
            return
        groups = self.schedule.warp // group
        first = b.warp.to(self.index_dtype) * groups
        own = (b.lane // group).to(self.index_dtype)
        with b.loop(first, end, block // group) as base:
            flat = base + own
            yield flat, None if exact_div(count, groups) is not None else flat < end

    def _store(self, kernel: Kernel, store: Store, values: Values) -> None:
        known = [a for a in kernel.axes if a not in self.schedule.points]
        firsts = [self.position(a)[0].eq(0) for a in first_points(kernel, store, known)]
        if self.is_cooperative:
            firsts.append((self.b.lane % self.schedule.group).eq(0))
        mask = combined([*self.point_masks(), *firsts])
        masks = [] if mask is None else [mask]
        value = self.kernels.stored_value(store)
        if value is None:
            self.store(store.result, store.at, values, masks)
            return
        index = self._index(value, store.at)
        given = [v.to(value.dtype) for v, _ in zipped([values, index])]
        memory = self._memory(value)
        for place, one in zip(index, given):
            memory.store(place, [one], mask)

    # -- values ----------------------------------------------------------------------------------

    def _memory(self, value: Value) -> BufferRef | SharedRef:
        return self.own[value.name] if value.name in self.own else self.shared[value.name]

    def _index(self, value: Value, at: Affine) -> Values:
        """Where a value is: in the block's own memory, or in that of its direction."""
        local = self.schedule.local.get(value.name)
        if local is not None:
            return self._local(local, at)
        index = self.affine(at)
        if value.name not in self.kernels.written:
            return index
        size = self.number(product(a.extent for a in value.axes))
        start = self.b.block_index(1).to(self.index_dtype) * size
        return [i + start for i in index]

    def _local(self, local: LocalIndex, at: Affine) -> Values:
        terms, offset = local.of(at)
        total = self.b.const(offset, self.index_dtype)
        slots = 1
        for axis, coefficient in terms:
            if axis is self.schedule.vector:
                slots = self.schedule.width
            elif axis not in self.schedule.points:
                total = total + self.position(axis)[0] * coefficient
        stride = next((c for a, c in terms if a is self.schedule.vector), 0)
        return [total + s * stride for s in range(slots)]

    def held_value(self, node: Load, value: Value) -> Values:
        memory, mask = self._memory(value), combined(self.point_masks())
        return [memory.load(i, 1, mask)[0] for i in self._index(value, node.at)]

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """By a group: each thread its steps in order, then the threads, neighbours first."""
        b, op, group = self.b, FOLDS[node.fold], self.schedule.group
        axes, body = chain_of(node)
        extent: DimLike = product(a.extent for a in axes)
        identity = b.const(node.identity, node.dtype.compute)
        slots = max((len(self.position(a)) for a in node.free), default=1)
        if extent == 0:
            return [identity] * slots
        totals = [b.variable(identity) for _ in range(slots)]
        unroll = min(UNROLL, -(-extent // group)) if isinstance(extent, int) else UNROLL
        is_whole = exact_div(extent, group * unroll) is not None
        high, first = self.number(extent), (b.lane % group).to(self.index_dtype)
        with b.loop(first, high, group * unroll, totals) as flat:
            for number in range(unroll):
                at = flat + number * group
                mask = None if is_whole or not number else at < high
                with self.inside(Scope(b.depth, self.opened(axes, at, 1), mask)):
                    values = self.value(body, guards)
                for total, value in zip(totals, values if len(values) > 1 else values * slots):
                    kept = value if mask is None else value.where(mask, identity)
                    total.set(b.binary(op, total, kept))
        return [b.warp_reduce(op, t, group) for t in totals]
