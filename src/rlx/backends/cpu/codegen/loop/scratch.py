"""Rows in scratch memory: staged values, and the accumulators of column reductions."""

from __future__ import annotations

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.loop_schedule import ROW_WIDTH, SCRATCH_PAD
from rlx.core.dtype import DType
from rlx.kernel.expr import Expr


class Scratch:
    """A row for each value that the schedule stages, one for each accumulator, and after all of
    these one for the f64 accumulator beside each."""

    def __init__(self, context: LoopContext) -> None:
        self.context, self.code = context, context.code
        self.rows = (*context.schedule.staged, *context.schedule.row_accumulators)

    def load(self, node: Expr, copy: int) -> Vec:
        dtype = node.dtype.compute
        return self._load(self._pointer(self.rows.index(node), copy, dtype), dtype)

    def store(self, node: Expr, copy: int, value: Vec) -> None:
        """Unmasked: a scratch row is padded, and what follows a piece of the row is written after
        it."""
        where = self._pointer(self.rows.index(node), copy, node.dtype.compute)
        self.code.store(where, value, value.dtype.itemsize)

    def load_wide(self, node: Expr, copy: int) -> Vec:
        """The f64 accumulator beside an f32 one."""
        return self._load(self._wide(node, copy), DType.F64)

    def store_wide(self, node: Expr, copy: int, value: Vec) -> None:
        self.code.store(self._wide(node, copy), value, 8)

    def _wide(self, node: Expr, copy: int) -> str:
        return self._pointer(len(self.rows) + self.rows.index(node), copy, DType.F64)

    def _load(self, where: str, dtype: DType) -> Vec:
        return self.code.load(where, dtype, dtype.itemsize)

    def _pointer(self, number: int, copy: int, dtype: DType) -> str:
        axis, code = self.context.schedule.vector, self.code
        assert axis is not None
        row = code.i64("mul", number, self._row_bytes())
        start = code.advanced("%scratch", row, DType.U8)
        place = code.i64("sub", self.context.position(axis, copy), self.context.at.row_start)
        return code.advanced(start, place, dtype)

    def _row_bytes(self) -> Bound:
        schedule = self.context.schedule
        assert schedule.vector is not None
        is_block = bool(schedule.row_accumulators)
        extent = ROW_WIDTH if is_block else self.context.dim(schedule.vector.extent)
        return self.code.i64("mul", self.code.i64("add", extent, SCRATCH_PAD), 8)
