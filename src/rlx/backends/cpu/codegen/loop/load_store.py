"""Loads and stores: contiguous, uniform, strided, or gathered; masked where they must be. A lane
that is masked off touches no memory."""

from __future__ import annotations

from typing import TypeGuard

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.vector_access import store_some
from rlx.backends.cpu.codegen.math.storage_types import from_memory, stored, to_memory
from rlx.backends.cpu.llvm.values import Vec
from rlx.backends.cpu.schedule.loop_schedule import MAX_SHUFFLED_STRIDE
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.kernel.expr import Load, Store


class LoadStore:
    """Loads operands and stores results. A gathered index out of range leaves the function."""

    def __init__(self, context: LoopContext, *, is_streaming: bool) -> None:
        self.context, self.code, self.lanes = context, context.code, context.lanes
        self.is_streaming = is_streaming

    # -- loads ----------------------------------------------------------------------------------

    def load(self, node: Load, copy: int, row: Vec | None) -> Vec:
        """A load, with the index of its row if that is gathered."""
        context, lane = self.context, self.context.at.lane
        is_spread = row is not None and lane in node.args[0].free
        step = node.at.coefficient(lane) if lane else 0
        offset = context.offset(node.at, copy)
        if row is not None:
            row = row.to(DType.I64) if row.dtype.is_signed else row.to(DType.U64).bits(DType.I64)
            self._check_rows(row, node)
        if row is not None and not is_spread:
            moved = self.code.i64("mul", row.lane(), context.dim(node.stride))
            offset = self.code.i64("add", offset, moved)
        dtype = stored(node.dtype)
        where = self.code.advanced(f"%x{node.operand}", offset, dtype)
        if is_spread and row is not None:
            places = row * self.code.splat(context.dim(node.stride), DType.I64)
            places = places if step == 0 else places + context.steps(step)
            raw = self._gather(where, dtype, places)
        else:
            raw = self._strided(where, dtype, step)
        return from_memory(raw, node.dtype)

    def is_transposed(self, node: Load) -> bool:
        """Is it contiguous along the tile axis while the other axis is vectorised?"""
        tile, lane = self.context.at.tile, self.context.at.lane
        if tile is None or lane is None or self.context.mask is not None or node.args:
            return False
        return node.at.coefficient(tile) == 1 and node.at.coefficient(lane) not in (0, 1)

    def transposed_load(self, node: Load) -> list[Vec]:
        """A square of memory, loaded in rows along the tile and transposed in registers."""
        lane, dtype = self.context.at.lane, stored(node.dtype)
        assert lane is not None
        offset, step = self.context.offset(node.at, 0), self.context.dim(node.at.coefficient(lane))
        rows: list[Vec] = []
        for _ in range(self.lanes):
            where = self.code.advanced(f"%x{node.operand}", offset, dtype)
            rows.append(self._run(where, dtype))
            offset = self.code.i64("add", offset, step)
        return [from_memory(v, node.dtype) for v in transposed(rows)]

    def _strided(self, where: str, dtype: DType, step: DimLike) -> Vec:
        if step == 0:
            return self._uniform(where, dtype)
        if step == 1:
            return self._run(where, dtype)
        if step == -1 and self.context.mask is None:
            return self._backwards(where, dtype)
        if isinstance(step, int) and 1 < step <= MAX_SHUFFLED_STRIDE and self.context.mask is None:
            return self._picked(where, dtype, step)
        return self._gather(where, dtype, self.context.steps(step))

    def _uniform(self, where: str, dtype: DType) -> Vec:
        """One element, broadcast. Under a guard it is loaded only if a lane needs it."""
        code, mask = self.code, self.context.mask
        if self.context.at.guard is None:
            return code.splat(code.load_scalar(where, dtype), dtype)
        first = code.first_lane(mask.any() if mask else "true")
        return code.splat(code.load(where, dtype, dtype.itemsize, first).lane(), dtype)

    def _run(self, where: str, dtype: DType) -> Vec:
        return self.code.load(where, dtype, dtype.itemsize, self.context.mask)

    def _backwards(self, where: str, dtype: DType) -> Vec:
        last = self.lanes - 1
        first = self.code.advanced(where, -last, dtype)
        run = self.code.load(first, dtype, dtype.itemsize)
        return run.shuffled([last - n for n in range(self.lanes)])

    def _picked(self, where: str, dtype: DType, step: int) -> Vec:
        """Every step-th element of contiguous vectors. The last vector ends with the last element
        needed, as nothing after it may be read."""
        lanes = self.lanes
        last = (lanes - 1) * (step - 1)
        starts = [min(lanes * n, last) for n in range(step)]
        runs = [self._run(self.code.advanced(where, s, dtype), dtype) for s in starts]
        picked, filled = runs[0], -(-lanes // step)
        for start, run in zip(starts[1:], runs[1:]):
            until = (start + lanes - 1) // step + 1
            fresh = [lanes + n * step - start for n in range(filled, until)]
            is_first = picked is runs[0]
            picks = [n * step for n in range(filled)] if is_first else list(range(filled))
            picks += fresh
            picked = picked.joined(run, [*picks, *[-1] * (lanes - len(picks))])
            filled = until
        return picked

    def _gather(self, where: str, dtype: DType, places: Vec) -> Vec:
        addresses = self.code.lane_addresses(where, places, dtype)
        return self.code.gather(addresses, dtype, dtype.itemsize, self.context.mask)

    def _check_rows(self, row: Vec, node: Load) -> None:
        """Return an error code where a gathered row is out of range."""
        code = self.code
        bound = code.splat(self.context.dim(node.bound), DType.U64)
        is_bad = row.bits(DType.U64) >= bound
        if self.context.mask is not None:
            is_bad = is_bad & self.context.mask
        number = [n for n in self.context.kernel.nodes if isinstance(n, Load) and n.args].index(
            node
        ) + 1
        code.fail_together(is_bad, number)

    # -- stores ---------------------------------------------------------------------------------

    def store(self, store: Store, copy: int, value: Vec) -> None:
        """Store a computed value: an output may alias an input."""
        raw = to_memory(value, store.value.dtype)
        code, dtype = self.code, raw.dtype
        step = store.at.coefficient(self.context.at.lane) if self.context.at.lane else 0
        where = code.advanced(f"%y{store.result}", self.context.offset(store.at, copy), dtype)
        if step == 0:
            code.store_scalar(where, raw.lane(), dtype)
        elif step != 1 and self._has_masked_stores(step, dtype):
            self._spread(where, step, raw)
        elif step != 1:
            addresses = code.lane_addresses(where, self.context.steps(step), dtype)
            code.scatter(addresses, raw, dtype.itemsize, self.context.mask)
        elif self.context.mask is not None:
            store_some(code, raw, where, self.context.mask)
        elif self.is_streaming and self._is_aligned(store):
            code.store(where, raw, self.lanes * dtype.itemsize, is_streaming=True)
        else:
            code.store(where, raw, dtype.itemsize)

    def _is_aligned(self, store: Store) -> bool:
        """Is every vector aligned, given that the buffer is?"""
        steps = [c for a, c in store.at.terms if a is not self.context.at.lane]
        bounds = [store.at.offset, *steps, self.context.at.piece_low]
        return all(is_static(b) and b % self.lanes == 0 for b in bounds)

    def _has_masked_stores(self, step: DimLike, dtype: DType) -> TypeGuard[int]:
        """Does a masked store take one instruction, and so few of them the lanes?"""
        if not isinstance(step, int) or not 1 < step <= MAX_SHUFFLED_STRIDE:
            return False
        isa = self.code.isa
        has_masks = isa.has_masks or (isa.vector_bytes == 32 and dtype.itemsize >= 4)
        return has_masks and self.context.mask is None

    def _spread(self, where: str, step: int, raw: Vec) -> None:
        """Every step-th element of contiguous vectors; the others are masked off."""
        code, lanes = self.code, self.lanes
        for n in range(step):
            places = range(n * lanes, (n + 1) * lanes)
            picks = code.mask_of([p % step == 0 for p in places])
            value = raw.shuffled([p // step for p in places])
            store_some(code, value, code.advanced(where, n * lanes, raw.dtype), picks)


def transposed(rows: list[Vec]) -> list[Vec]:
    """Register transpose: at each distance, pairs of rows swap halves of their blocks."""
    lanes = range(len(rows))
    distance = len(rows) // 2
    while distance:
        picks = [n if n & distance == 0 else len(rows) + (n ^ distance) for n in lanes]
        other = [n ^ distance if n & distance == 0 else len(rows) + n for n in lanes]
        made = list(rows)
        for n in lanes:
            if n & distance == 0:
                a, b = rows[n], rows[n + distance]
                made[n], made[n + distance] = a.joined(b, picks), a.joined(b, other)
        rows, distance = made, distance // 2
    return rows
