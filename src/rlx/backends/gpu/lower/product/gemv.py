"""Products with few rows: the matrix is streamed once, and all rows share what was loaded.

for the columns of a group of threads:
    request the elements of the first turn       # before the wait, where they are constants
    reduce the rows of the left factor, where it is a norm of them
    for each turn: sums[row, column] += left[row, inner] · right[inner, column]
    add up the sums of a group: lanes by exchanges, warps through shared memory
    one thread a sum: epilogue and stores
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from rlx.backends.gpu.lower.elementwise import cast
from rlx.backends.gpu.lower.product.expressions import (
    ProductExpressions,
    failures_of,
    legal_product,
    names_of,
    structure_of_product,
)
from rlx.backends.gpu.lower.reductions import FOLDS
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.gemv import GemvSchedule, choose_gemv
from rlx.backends.gpu.schedule.loop import chain_of
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import DimLike, evaluate, exact_div, is_static, lower_bound, product, upper_bound
from rlx.kernel.contract import Contract, row_scale
from rlx.kernel.expr import Affine, Axis, Expr, Load, Reduce, postorder
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.program.builder import Builder
from rlx.program.nodes import MAX_VECTOR_BYTES
from rlx.program.program import Program
from rlx.program.values import Var, Variable


def gemv_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launch of a contraction with few rows, or few columns."""
    is_few = _is_less(contract.rows.extent, contract.columns.extent)
    if not is_few and not contract.is_plain:
        return Refusal(f"{contract.name}: its rows are not few")
    made = legal_product(contract if is_few else contract.swapped())
    if isinstance(made, Refusal):
        return made
    choice = choose_gemv(made, machine)
    if isinstance(choice, Refusal):
        return choice
    every = buffers(len(made.operands), len(made.results))
    key = structure_of_product(made), machine, constants, "gemv"
    write = lambda n: emit_gemv(made, choice, n, constants)
    launch = Launch(name, write, key, names_of(every), every, failures_of(made), choice.text)
    return Schedule((launch,))


def _is_less(a: DimLike, b: DimLike) -> bool:
    """Is the greatest a no greater than the greatest b?"""
    most = [upper_bound(d) for d in (a, b)]
    return most[0] is not None and (most[1] is None or most[0] <= most[1])


def emit_gemv(
    contract: Contract, schedule: GemvSchedule, name: str, constants: Iterable[int] = ()
) -> Program:
    """The program of a legal contraction whose rows are few."""
    return _Gemv(contract, schedule, name, constants).program()


Points = list[list[tuple[Scope, Scope]]]
"""By chunk, then by column or row: its scope, and that of the inner axes in it."""


class _Gemv(ProductExpressions):
    def __init__(
        self, contract: Contract, schedule: GemvSchedule, name: str, constants: Iterable[int]
    ) -> None:
        self.schedule = schedule
        columns = schedule.block_columns
        self.blocks = (contract.columns.extent + (columns - 1)) // columns
        points = product(a.extent for a in contract.batch) * self.blocks
        grid = (points if contract.stores and schedule.rows else 0,)
        builder = Builder(
            name,
            block=schedule.block,
            grid=grid,
            warp=schedule.warp,
            resident=schedule.resident,
        )
        vector = schedule.inner[-1] if schedule.along == "inner" else contract.columns
        vector = vector if schedule.width > 1 else None
        super().__init__(builder, contract, constants, vector, schedule.index_bits)
        self.extent = product(a.extent for a in schedule.inner)
        self.left, self.scale = row_scale(contract) or (contract.left, None)
        counts = [range(int(evaluate(a.extent, {}))) for a in schedule.own]
        self.own_at: dict[Axis, int] = {}
        self.own = [dict(zip(schedule.own, at)) for at in itertools.product(*counts)]

    def program(self) -> Program:
        b, schedule = self.b, self.schedule
        if schedule.is_dependent:
            b.release_dependents()
        self._open()
        right, left = self._turn(b.const(0, self.index_dtype), is_first=True)
        self.held = left
        self._request(right, *self.contract.rights, is_early=True)
        self._request(left, self.left, is_early=True)
        if schedule.is_dependent:
            b.wait_dependencies()
        self._request(right, *self.contract.rights)
        if self.contract.has_folds:
            self._request(left, self.left)
            self._reduce_rows()
        self._add(right, left)
        self._other_turns()
        self._scale_rows()
        self._finish()
        return b.program()

    # -- where a thread is -----------------------------------------------------------------------

    def _open(self) -> None:
        """The block's point, the thread's columns, and the rows."""
        b, schedule, index = self.b, self.schedule, self.index_dtype
        lanes = schedule.inner_lanes
        point, blocks = b.block_index().to(index), self.dim(self.blocks)
        self.corner = point % blocks * schedule.block_columns
        self.scopes = [self.scope(self.open_points(self.contract.batch, point // blocks))]
        self.inner_warp, self.inner_lane = b.warp % schedule.inner_warps, b.lane % lanes
        column_warp = b.warp // schedule.inner_warps
        self.group = column_warp * (schedule.warp // lanes) + b.lane // lanes
        self.inner_thread = (self.inner_warp * lanes + self.inner_lane).to(index)
        self.columns = self._columns()
        self.rows = [self._row(m) for m in range(schedule.rows)]
        zero = b.const(0, self.contract.sums)
        count = schedule.rows * schedule.thread_sums
        self.totals = [b.variable(zero) for _ in range(count)]

    def _columns(self) -> list[Scope]:
        schedule = self.schedule
        start = self.corner + self.group.to(self.index_dtype) * schedule.thread_columns
        width = schedule.width if schedule.along == "columns" else 1
        return [self._column(start + j * width, width) for j in range(schedule.columns)]

    def _column(self, start: Var, width: int) -> Scope:
        axis = self.contract.columns
        is_full = exact_div(axis.extent, self.schedule.block_columns) is not None
        mask = None if is_full else start < self.dim(axis.extent)
        return self.scope({axis: [start + s for s in range(width)]}, mask)

    def _row(self, number: int) -> Scope:
        axis = self.contract.rows
        here = self.b.const(number, self.index_dtype)
        mask = None if is_static(axis.extent) else here < self.dim(axis.extent)
        return self.scope({axis: [here]}, mask)

    # -- turns -----------------------------------------------------------------------------------

    def _turn(self, start: Var, *, is_first: bool = False) -> tuple[Points, Points]:
        """The points of the right and of the left factor, from a place along the inner axes on."""
        right, left = Points(), Points()
        for chunk in range(self.schedule.chunks):
            index, mask = self._chunk(start, chunk, is_first)
            right.append([(c, self.scope(index, mask)) for c in self.columns])
            left.append([(r, self.scope(index, mask)) for r in self.rows])
        return right, left

    def _chunk(
        self, start: Var, chunk: int, is_first: bool
    ) -> tuple[dict[Axis, Values], Var | None]:
        schedule = self.schedule
        threads = schedule.inner_threads
        width = schedule.width if schedule.along == "inner" else 1
        flat = start + (self.inner_thread + chunk * threads) * width
        end = (chunk + 1) * threads * width
        is_inside = is_first and is_static(self.extent) and end <= self.extent
        is_some = not is_first or lower_bound(self.extent) > 0
        is_full = is_inside or (is_some and exact_div(self.extent, schedule.step) is not None)
        mask = None if is_full else flat < self.dim(self.extent)
        return self.opened(schedule.inner, flat, width), mask

    def _request(self, points: Points, *factors: Expr, is_early: bool = False) -> None:
        for outer, inner in (point for chunk in points for point in chunk):
            with self.inside(outer), self.inside(inner):
                for factor in factors:
                    self.request(factor, is_early=is_early)

    def _add(self, right: Points, left: Points) -> None:
        """The products of a turn, chunk by chunk. The factor that fewer values are of is converted
        first, and stays while the other goes by."""
        factors = self.left, self.contract.rights
        for columns, rows in zip(right, left):
            for own in self.own:
                here = [lambda p=p, o=own: self._values(p, o, factors[0]) for p in rows]
                there = [
                    lambda p=p, x=x, o=own: self._values(p, o, x)
                    for p in columns
                    for x in factors[1]
                ]
                if len(here) <= len(there):
                    held = [x() for x in here]
                    for j, make in enumerate(there):
                        y = make()
                        for m, x in enumerate(held):
                            self._add_product(m, j, x, y)
                else:
                    kept = [y() for y in there]
                    for m, make in enumerate(here):
                        x = make()
                        for j, y in enumerate(kept):
                            self._add_product(m, j, x, y)

    def _values(self, point: tuple[Scope, Scope], own: dict[Axis, int], factor: Expr) -> Values:
        """At a position of the thread's own axes: what does not vary with them is made once."""
        self.own_at = own
        index = {a: [self.b.const(i, self.index_dtype)] for a, i in own.items()}
        with self.inside(point[0]), self.inside(point[1]), self.inside(self.scope(index)):
            return self.factor(factor)

    def fetched(self, node: Load, guards: Guards) -> Values:
        axis = None if guards else self._interleaved(node)
        if axis is None or self.vector is None:
            return super().fetched(node, guards)
        with self.at(self.place(node, ()) - 1) as scope:
            if node not in scope.requested:
                scope.requested[node] = self._run(node, axis)
        return scope.requested[node][self.own_at[axis] :: int(evaluate(axis.extent, {}))]

    def _interleaved(self, node: Load) -> Axis | None:
        """The axis of the thread's own whose positions lie between those of the vectors, if all
        of them together are a run of aligned vectors."""
        between = [a for a in self.schedule.own if a in node.at.axes]
        if self.vector is None or len(between) != 1 or node.args:
            return None
        step, (axis,) = node.at.coefficient(self.vector), between
        if step != axis.extent or node.at.coefficient(axis) != 1:
            return None
        size = self._piece(node)
        rest = [c for a, c in node.at.terms if a not in (axis, self.vector)]
        is_whole = all(d == 0 or exact_div(d, size) is not None for d in (*rest, node.at.offset))
        return axis if is_whole else None

    def _piece(self, node: Load) -> int:
        """Elements of a run that are loaded at once."""
        assert self.vector is not None
        count = self.schedule.width * int(evaluate(node.at.coefficient(self.vector), {}))
        return min(count, MAX_VECTOR_BYTES // node.dtype.real.itemsize)

    def _run(self, node: Load, axis: Axis) -> Values:
        """The elements at all positions of the axis."""
        assert self.vector is not None
        start = Affine(tuple(t for t in node.at.terms if t[0] is not axis), node.at.offset)
        index, masks, size = self.affine(start)[0], self.masks(()), self._piece(node)
        count = self.schedule.width * int(evaluate(axis.extent, {}))
        buffer, mask = self.inputs[node.operand], masks[0] if masks else None
        return [v for s in range(0, count, size) for v in buffer.load(index + s, size, mask)]

    def _add_product(self, row: int, number: int, x: Values, y: Values) -> None:
        """Of a row, and of a part of a column by its number among those of the thread."""
        schedule = self.schedule
        first = row * schedule.thread_sums + number
        for s in range(schedule.width):
            own = first + (0 if schedule.along == "inner" else s * schedule.parts)
            pair = (v[s if len(v) > 1 else 0] for v in (x, y))
            self.totals[own].set(self.multiplied(self.totals[own], *pair))

    def _other_turns(self) -> None:
        step = self.schedule.step
        if is_static(self.extent) and self.extent <= step:
            return
        start = self.b.const(step, self.index_dtype)
        with self.b.loop(start, self.number(self.extent), step, self.totals) as flat:
            right, left = self._turn(flat)
            self._request(right, *self.contract.rights)
            self._add(right, left)

    # -- rows ------------------------------------------------------------------------------------

    def _reduce_rows(self) -> None:
        """Before anything is done with the elements of the matrix, which are still on their way."""
        folds = [n for n in postorder([self.left]) if isinstance(n, Reduce)]
        inner = {n.args[0] for n in folds}
        for row in self.rows:
            with self.inside(row):
                for node in folds:
                    if node not in inner:
                        self.value(node)

    def _scale_rows(self) -> None:
        """What is a factor of whole rows, times their sums."""
        if self.scale is None:
            return
        count = self.schedule.thread_sums
        for m, row in enumerate(self.rows):
            with self.inside(row):
                scale = cast(self.b, self.value(self.scale)[0], self.contract.sums)
            for total in self.totals[m * count : (m + 1) * count]:
                total.set(total * scale)

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """A number of a row, by all threads of the block: each what it holds of the row, then the
        other turns. Of groups that hold the same, the first one's counts."""
        b, schedule = self.b, self.schedule
        row = next((m for m, scope in enumerate(self.rows) if scope is self.scopes[-1]), 0)
        total = b.variable(b.const(node.identity, node.dtype.compute))
        for chunk in self.held:
            self._fold(node, total, chunk[row][1], guards)
        if not (is_static(self.extent) and self.extent <= schedule.step):
            start = b.const(schedule.step, self.index_dtype)
            with b.loop(start, self.number(self.extent), schedule.step, [total]) as flat:
                for chunk in range(schedule.chunks):
                    scope = self.scope(*self._chunk(flat, chunk, is_first=False))
                    self._fold(node, total, scope, guards)
        own: Var = total
        if schedule.groups > 1:
            own = own.where(self.group.eq(0), node.identity)
        return [b.block_reduce(FOLDS[node.fold], own)]

    def _fold(self, node: Reduce, total: Variable, scope: Scope, guards: Guards) -> None:
        """What a thread has of a row in a scope, at all positions of its own axes."""
        _, body = chain_of(node)
        width = self.schedule.width if self.schedule.along == "inner" else 1
        for own in self.own:
            self.own_at = own
            index = {a: [self.b.const(i, self.index_dtype)] for a, i in own.items()}
            with self.inside(scope), self.inside(self.scope(index)):
                values = self.value(body, guards)
            for s in range(width):
                value = values[s if len(values) > 1 else 0]
                if scope.mask is not None:
                    value = value.where(scope.mask, node.identity)
                total.set(self.b.binary(FOLDS[node.fold], total, value))

    # -- sums ------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Some rows at a time, as many as shared memory is kept for."""
        schedule = self.schedule
        each = schedule.inner_warps * schedule.groups * schedule.thread_sums
        rows = max(
            1, min(schedule.rows, schedule.pass_bytes // (each * self.contract.sums.itemsize))
        )
        values = rows * schedule.thread_sums
        self.padded = -(-values // self._scattered(values)) * self._scattered(values)
        count = schedule.inner_warps * schedule.groups * self.padded
        self.parts = self.b.shared("parts", self.contract.sums, count)
        for first in range(0, schedule.rows, rows):
            if first:
                self.b.barrier()
            self._share(first, rows)
            self.b.barrier()
            self._store_rows(first, min(rows, schedule.rows - first))

    def _scattered(self, values: int) -> int:
        """Values that lanes add up at once, each keeping a part of them."""
        return min(self.schedule.inner_lanes, 1 << max(0, values - 1).bit_length())

    def _share(self, first: int, rows: int) -> None:
        """Each warp's sums of some rows to shared memory."""
        b, schedule = self.b, self.schedule
        size = schedule.thread_sums
        held: list[Var] = [*self.totals[first * size : (first + rows) * size]]
        count, lanes = self._scattered(rows * size), schedule.inner_lanes
        held += [b.const(0, self.contract.sums)] * (self.padded - len(held))
        start = (self.inner_warp * schedule.groups + self.group) * self.padded
        each = lanes // count
        mask = (self.inner_lane % each).eq(0) if each > 1 else None
        for number in range(0, self.padded, count):
            part = held[number : number + count]
            total = b.reduce_scatter("add", part, lanes) if lanes > 1 else part[0]
            self.parts.store(start + self.inner_lane // each + number, [total], mask)

    def _store_rows(self, first: int, rows: int) -> None:
        """A thread for each sum, several where there are more."""
        b, schedule = self.b, self.schedule
        points = rows * schedule.block_columns
        for start in range(0, points, schedule.block):
            point = b.thread + start
            is_full = start + schedule.block <= points
            mask = None if is_full else point < points
            self._store_point(first, point, mask)

    def _store_point(self, first: int, point: Var, mask: Var | None) -> None:
        schedule, contract = self.schedule, self.contract
        columns, size, parts = schedule.block_columns, schedule.thread_columns, schedule.parts
        row, column = point // columns, point % columns
        at = column // size * self.padded + row * schedule.thread_sums + column % size * parts
        totals = [self._total(at + part, mask) for part in range(parts)]
        index = {
            contract.rows: [row.to(self.index_dtype) + first],
            contract.columns: [self.corner + column.to(self.index_dtype)],
        }
        with self.inside(self.scope(index, self._is_point(index, mask))):
            self.store_sums(*([t] for t in totals))

    def _total(self, at: Var, mask: Var | None) -> Var:
        """What all warps have of a sum."""
        pitch = self.schedule.groups * self.padded
        total = self.parts.load(at, 1, mask)[0]
        for warp in range(1, self.schedule.inner_warps):
            total = total + self.parts.load(at + warp * pitch, 1, mask)[0]
        return total

    def _is_point(self, index: dict[Axis, Values], mask: Var | None) -> Var | None:
        """Is it one of the contraction's?"""
        limits = [a for a in index if not is_static(a.extent) or a is self.contract.columns]
        for axis in limits:
            if (
                exact_div(axis.extent, self.schedule.block_columns) is None
                or axis is self.contract.rows
            ):
                inside = index[axis][0] < self.dim(axis.extent)
                mask = inside if mask is None else mask & inside
        return mask
