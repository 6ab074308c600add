"""Scans of independent channels: each thread goes along the time axis with its carries in
registers.

Rows of a state are shared by neighbouring threads, row r by thread r % lanes; what steps reduce
over the rows, each thread adds up in order, then the threads, neighbours first. The operands of
several steps are loaded before the first of them is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product as combinations

from rlx.backends.gpu.lower.expressions import combined
from rlx.backends.gpu.lower.loop import index_dtype_of
from rlx.backends.gpu.lower.reductions import FOLDS
from rlx.backends.gpu.lower.scan.steps import ScanKernels, Steps, first_points
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.scan import ChannelSchedule
from rlx.core.dim import exact_div, lower_bound, product
from rlx.kernel.expr import Kernel, Load, Reduce, Store
from rlx.kernel.scan import Value
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import Var, Variable


def emit_channels(
    kernels: ScanKernels,
    schedule: ChannelSchedule,
    constants: frozenset[int],
    is_dependent: bool,
    name: str,
) -> Program:
    """The program of a scan of channels."""
    return _Channels(kernels, schedule, constants, name).program(is_dependent)


@dataclass(slots=True)
class _Frame:
    """The scopes of a kernel at a step: one for each point of the axes that no carry has, and in
    it those of the rows that the thread holds."""

    kernel: Kernel
    copies: list[tuple[Scope, list[Scope]]]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A value that is stored when all that a kernel reads was read."""

    store: Store
    scopes: tuple[Scope, ...]
    slot: int
    values: Values


class _Channels(Steps):
    """One program."""

    def __init__(
        self,
        kernels: ScanKernels,
        schedule: ChannelSchedule,
        constants: frozenset[int],
        name: str,
    ) -> None:
        self.schedule = schedule
        chunks = schedule.chunks
        self.axes = (*([chunks.axis] if chunks else []), *schedule.points)
        self.count = product(a.extent for a in self.axes)
        threads = self.count * schedule.lanes
        block = schedule.block
        grid = ((threads + (block - 1)) // block,)
        builder = Builder(name, block=block, grid=grid, warp=schedule.warp)
        time = kernels.scan.time.extent
        counts = [threads + block, 2 * time + block]
        index = index_dtype_of(kernels.whole, counts, schedule.index_bits)
        super().__init__(builder, kernels, index, None, constants)
        self.held: dict[str, list[Var]] = {}
        """Values by name: a register for each row that the thread holds."""
        self.slots: list[Scope] = []
        self.slot = 0

    def declare(self, constants: frozenset[int]) -> None:
        super().declare(constants)
        dtype = self.scan.carries[0].dtype
        self.start = self.buffer("start", dtype, "read", self.schedule.chunks is not None)

    def program(self, is_dependent: bool) -> Program:
        if is_dependent:
            self.b.release_dependents()
            self.b.wait_dependencies()
        if self.count == 0:
            return self.b.program()
        self._open()
        self._start()
        self._loop()
        self._run([self._frame(k) for k in self.kernels.finish])
        return self.b.program()

    # -- places ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """The channel of the thread."""
        b, schedule = self.b, self.schedule
        thread = b.block_index().to(self.index_dtype) * schedule.block
        thread = thread + b.thread.to(self.index_dtype)
        point = thread // schedule.lanes
        is_whole = exact_div(self.count * schedule.lanes, schedule.block) is not None
        inside = None if is_whole else point < self.dim(self.count)
        index = self.opened(self.axes, point, 1)
        self.point = point
        index[self.scan.direction] = [b.const(self.kernels.first, self.index_dtype)]
        self.scopes = [Scope(b.depth, index, inside)]

    def _frame(self, kernel: Kernel) -> _Frame:
        """New scopes for a kernel where the program is now."""
        rows = self.schedule.rows
        extras = [a for a in kernel.axes if a not in self.schedule.points and a is not rows]
        made: list[tuple[Scope, list[Scope]]] = []
        for point in combinations(*(range(int(a.extent)) for a in extras)):
            index = {a: [self.b.const(i, self.index_dtype)] for a, i in zip(extras, point)}
            made.append((Scope(self.b.depth, index), self._rows()))
        return _Frame(kernel, made)

    def _rows(self) -> list[Scope]:
        rows, lanes = self.schedule.rows, self.schedule.lanes
        if rows is None:
            return [Scope(self.b.depth, {})]
        lane = (self.b.thread % lanes).to(self.index_dtype)
        indices = [lane + slot * lanes for slot in range(self.schedule.slots)]
        is_whole = exact_div(rows.extent, lanes) is not None
        masks = [None if is_whole else i < self.dim(rows.extent) for i in indices]
        return [Scope(self.b.depth, {rows: [i]}, m) for i, m in zip(indices, masks)]

    # -- steps -----------------------------------------------------------------------------------

    def _start(self) -> None:
        for value in self.kernels.memory.values:
            zero = self.b.const(0, value.dtype.compute)
            self.held[value.name] = [zero] * (self.schedule.slots if self._has_rows(value) else 1)
        scan = self.scan
        if self.schedule.chunks is not None:
            (carry,) = scan.carries
            (made,) = self.start.load(self.point, 1, self.scopes[0].mask)
            self.held[carry.name] = [made.to(carry.dtype.compute)]
            return
        first = self.position_of(self.b.const(0, self.index_dtype), self.kernels.reversals[0])
        may_be_empty = scan.has_first and lower_bound(scan.time.extent) == 0
        mask = self.number(scan.time.extent) > 0 if may_be_empty else None
        index = {scan.time: [first]} if scan.has_first else {}
        with self.inside(Scope(self.b.depth, index, mask)):
            self._run([self._frame(k) for k in self.kernels.start])

    def _has_rows(self, value: Value) -> bool:
        return self.schedule.rows is not None and self.schedule.rows in value.axes

    def _loop(self) -> None:
        """All steps, several at a time."""
        b, unroll = self.b, self.schedule.unroll
        low, high = self._bounds()
        carried = [v.name for v in self.scan.carries]
        variables = {n: [b.variable(v) for v in self.held[n]] for n in carried}
        every = [v for held in variables.values() for v in held]
        with b.loop(low, high, unroll, every) as step:
            self._give(variables)
            steps = [self._step(step, number, high) for number in range(unroll)]
            for scope, frames in steps:
                with self.inside(scope):
                    self._request(frames)
            for scope, frames in steps:
                with self.inside(scope):
                    self._run(frames)
            for name, held in variables.items():
                for variable, value in zip(held, self.held[name], strict=True):
                    variable.set(value)
        self._give(variables)

    def _bounds(self) -> tuple[Var, Var]:
        """The first step and the end, of all steps or of a chunk's."""
        chunks, end = self.schedule.chunks, self.number(self.scan.time.extent)
        if chunks is None:
            return self.b.const(int(self.scan.has_first), self.index_dtype), end
        length = self.dim(chunks.length)
        low = self.position(chunks.axis)[0] * length
        return low, (low + length).min(end)

    def _give(self, variables: dict[str, list[Variable]]) -> None:
        for name, held in variables.items():
            self.held[name] = [Var(self.b, v.value) for v in held]

    def _step(self, step: Var, number: int, end: Var) -> tuple[Scope, list[_Frame]]:
        now = step + number
        mask = now < end if number else None
        place = self.position_of(now, self.kernels.reversals[0])
        scope = Scope(self.b.depth, {self.scan.time: [place]}, mask)
        return scope, [self._frame(k) for k in self.kernels.steps]

    def _request(self, frames: Sequence[_Frame]) -> None:
        """All loads of operands."""
        for frame in frames:
            loads = [n for n in frame.kernel.nodes if isinstance(n, Load)]
            own = [n for n in loads if n not in self.volatile and not n.args]
            for scope, rows in frame.copies:
                with self.inside(scope):
                    for node in own:
                        self._load(node, rows)

    def _load(self, node: Load, rows: Sequence[Scope]) -> None:
        if self.schedule.rows not in node.free:
            self.value(node)
            return
        for row in rows:
            with self.inside(row):
                self.value(node)

    def _run(self, frames: Sequence[_Frame]) -> None:
        """Kernels in order. Each reads all that it reads before it writes."""
        for frame in frames:
            pending = [p for copy in frame.copies for p in self._pending(frame, *copy)]
            for one in pending:
                self._commit(frame.kernel, one)

    def _pending(self, frame: _Frame, scope: Scope, rows: list[Scope]) -> list[_Pending]:
        """What a kernel stores at a point of the axes that no carry has."""
        is_first = scope is frame.copies[0][0]
        self.slots = rows
        made: list[_Pending] = []
        with self.inside(scope):
            for store in frame.kernel.stores:
                if is_first or store.at.axes & set(scope.index):
                    made += self._values_of(store, scope, rows)
        return made

    def _values_of(self, store: Store, scope: Scope, rows: list[Scope]) -> list[_Pending]:
        if self.schedule.rows is None or self.schedule.rows not in store.at.axes:
            return [_Pending(store, (scope,), 0, self.value(store.value))]
        made: list[_Pending] = []
        for slot, row in enumerate(rows):
            self.slot = slot
            with self.inside(row):
                made.append(_Pending(store, (scope, row), slot, self.value(store.value)))
        return made

    def _commit(self, kernel: Kernel, one: _Pending) -> None:
        value = self.kernels.stored_value(one.store)
        if value is not None:
            self._keep(value, one)
            return
        with ExitStack() as places:
            for scope in one.scopes:
                places.enter_context(self.inside(scope))
            conditions = [*self.point_masks(), *self._firsts(kernel, one.store)]
            mask = combined(conditions)
            self.store(one.store.result, one.store.at, one.values, [] if mask is None else [mask])

    def _keep(self, value: Value, one: _Pending) -> None:
        """In a register; behind the last step it stays."""
        (new,) = one.values
        mask = self.scopes[-1].mask if len(self.scopes) > 1 else None
        kept = list(self.held[value.name])
        kept[one.slot] = new if mask is None else new.where(mask, kept[one.slot])
        self.held[value.name] = kept

    def _firsts(self, kernel: Kernel, store: Store) -> list[Var]:
        """One of the threads that share a channel, and of the points that a store is the same at,
        stores."""
        known = [*self.schedule.points, *([self.schedule.rows] if self.schedule.rows else [])]
        missing = first_points(kernel, store, known)
        firsts = [self.position(a)[0].eq(0) for a in missing if a is not self.schedule.rows]
        if self.schedule.lanes > 1 and self.schedule.rows not in store.at.axes:
            firsts.append((self.b.thread % self.schedule.lanes).eq(0))
        return firsts

    # -- values ----------------------------------------------------------------------------------

    def held_value(self, node: Load, value: Value) -> Values:
        return [self.held[value.name][self.slot if self._has_rows(value) else 0]]

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """Over the rows of a state: those of the thread in order, then the threads'."""
        b, op, own = self.b, FOLDS[node.fold], self.slot
        identity = b.const(node.identity, node.dtype.compute)
        total = identity
        for slot, row in enumerate(self._open_rows()):
            self.slot = slot
            with self.inside(row):
                (value,) = self.value(node.args[0], guards)
            value = value if row.mask is None else value.where(row.mask, identity)
            total = b.binary(op, total, value) if slot else value
        self.slot = own
        lanes = self.schedule.lanes
        return [b.warp_reduce(op, total, lanes) if lanes > 1 else total]

    def _open_rows(self) -> list[Scope]:
        """The scopes of the kernel's rows, if it is evaluated where they are."""
        is_here = bool(self.slots) and self.slots[0].depth == self.b.depth
        return self.slots if is_here and self.is_volatile_place() else self._rows()

    def is_volatile_place(self) -> bool:
        """Are all scopes of the step open?"""
        return any(self.scan.time in s.index for s in self.scopes)
