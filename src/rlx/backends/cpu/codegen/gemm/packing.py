"""Packing of right operands into panels: by register transpose where inner steps are contiguous,
and in dot-product groups for VNNI-style instructions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import (
    ContractionBuilder,
    below,
    require_evaluable,
)
from rlx.backends.cpu.codegen.gemm.register_transpose import (
    transpose_partial_square,
    transpose_square,
)
from rlx.backends.cpu.codegen.loop.vector_access import advanced, store
from rlx.backends.cpu.codegen.math.storage_types import UNSIGNED, stored, to_memory
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Source
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import Tiling, packed_batch, parts_of
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract, extent_of
from rlx.kernel.expr import Axis, Expr, Load, postorder
from rlx.kernel.structure import Structure

STEPS_PER_UNIT = 256
"""Inner steps of a unit."""


def needs_transpose(contract: Contract) -> bool:
    """Is the right operand in memory, its inner steps contiguous and its columns strided?"""
    right = contract.right
    if not isinstance(right, Load) or right.args:
        return False
    steps = [right.at.coefficient(a) for a in (contract.inner[-1], contract.columns)]
    return steps[0] == 1 and steps[1] not in (0, 1)


@dataclass(frozen=True, slots=True)
class Packing:
    """The right operand of a contraction into panels: in dot-product groups, where the tiling has
    some, else by register transpose. Its buffers are the operands that it reads, and the panels."""

    contract: Contract
    tiling: Tiling
    isa: Isa

    def __post_init__(self) -> None:
        """Refuse what there is no code for."""
        if self.tiling.dot_group > 1:
            require_evaluable(self.contract, [self.contract.right])

    @property
    def num_units(self) -> DimLike:
        contract = self.contract
        chunks = parts_of(contract.inner[-1].extent, STEPS_PER_UNIT)
        panels = parts_of(contract.columns.extent, self.tiling.columns)
        return extent_of((*packed_batch(contract), *contract.inner[:-1])) * panels * chunks

    @property
    def key(self) -> Hashable:
        """All that its code follows from, and the sizes that it is called with."""
        made, contract = Structure(), self.contract
        axes = [*packed_batch(contract), *contract.inner, contract.columns]
        right = made.expr(contract.right)
        return made.axes(axes), right, made.value, self.tiling, self.isa.name

    def source(self, name: str) -> Source:
        """Its code."""
        builder = _PackGroups if self.tiling.dot_group > 1 else _Pack
        work = builder(self.contract, self.tiling, self.isa)
        work.write()
        return work.source(name)


class _Pack(ContractionBuilder):
    def __init__(self, contract: Contract, tiling: Tiling, isa: Isa) -> None:
        super().__init__(contract, tiling, isa)
        assert isinstance(contract.right, Load)
        self.right, self.raw = contract.right, stored(contract.right.dtype)
        self.open(self.right, 0)
        self.panels = self.buffer(1)
        self.batch = self.extents(packed_batch(contract))
        self.n = self.size(contract.columns.extent)
        *outer, last = contract.inner
        self.outer_extents, self.last = self.extents(outer), self.size(last.extent)
        self.num_panels = self.parts(self.n, tiling.columns)
        self.num_chunks = self.parts(self.last, STEPS_PER_UNIT)

    def write(self) -> None:
        counts = [
            *self.batch.values(),
            self.num_panels,
            *self.outer_extents.values(),
            self.num_chunks,
        ]
        with self.code.count("%start", self.code.least("%stop", self.product(counts)), 1) as unit:
            self._unit(unit)

    def _unit(self, unit: str) -> None:
        code, contract, width = self.code, self.contract, self.tiling.columns
        outer_extents = self.product(self.outer_extents.values())
        rest, chunk = self.divided(unit, self.num_chunks)
        rest, outer = self.divided(rest, outer_extents)
        batch, panel = self.divided(rest, self.num_panels)
        step, column = code.i64("mul", chunk, STEPS_PER_UNIT), code.i64("mul", panel, width)
        positions = {
            **self.split(batch, self.batch), **self.split(outer, self.outer_extents),
            contract.inner[-1]: step, contract.columns: column,
        }  # fmt: skip
        before = code.i64("add", code.i64("mul", rest, outer_extents), outer)
        line = code.i64("add", code.i64("mul", before, self.last), step)
        self.to = advanced(code, self.panels, code.i64("mul", line, width), self.raw)
        count = code.least(STEPS_PER_UNIT, code.i64("sub", self.last, step))
        with self.placed(positions):
            self._columns(count, code.i64("sub", self.n, column))

    def _columns(self, steps: Bound, columns: Bound) -> None:
        """Whole squares, and masked ones at the edges."""
        code, lanes = self.code, self.tiling.lanes
        with code.count(0, self.tiling.columns, lanes) as column:
            left = code.i64("sub", columns, column)
            is_whole = code.compare("ge", left, lanes)
            length = code.integer("and", steps, -lanes)
            whole = code.choose(is_whole, length, 0)
            with code.count(0, whole, lanes) as step:
                self._square(step, column, None, left)
            with code.count(whole, steps, lanes) as step:
                self._square(step, column, code.i64("sub", steps, step), left)

    def _square(self, step: str, column: str, steps: Bound | None, columns: Bound) -> None:
        """A square with all inner steps, or only so many."""
        code, width = self.code, self.tiling.columns
        apart = self.strides[self.right][self.contract.columns]
        start = code.i64("add", step, code.i64("mul", column, apart))
        given = advanced(code, self.pointers[self.right], start, self.raw), apart
        place = code.i64("add", code.i64("mul", step, width), column)
        to = advanced(code, self.to, place, self.raw), width
        if steps is None:
            transpose_square(code, self.raw, given, to)
        else:
            transpose_partial_square(code, self.raw, given, to, (columns, steps))


def operands_read(x: Expr) -> tuple[int, ...]:
    """The operands that an expression reads, in order."""
    return tuple(sorted({n.operand for n in postorder([x]) if isinstance(n, Load)}))


class _PackGroups(ContractionBuilder):
    """[batch · panel][outer inner axes][last one / group][columns][group], zero-padded past the
    last step and column."""

    def __init__(self, contract: Contract, tiling: Tiling, isa: Isa) -> None:
        super().__init__(contract, tiling, isa)
        self.right = tuple(postorder([contract.right]))
        self.raw = stored(contract.right.dtype)
        read = operands_read(contract.right)
        for node in self.right:
            if isinstance(node, Load):
                self.open(node, read.index(node.operand))
        self.panels = self.buffer(len(read))
        self.batch = self.extents(packed_batch(contract))
        *outer, last = contract.inner
        self.n, self.steps = self.size(contract.columns.extent), self.size(last.extent)
        self.outer_extents = self.extents(outer)
        self.num_panels = self.parts(self.n, tiling.columns)
        self.num_chunks = self.parts(self.steps, STEPS_PER_UNIT)
        self.depth = self.code.i64(
            "mul", self.parts(self.steps, tiling.dot_group), tiling.dot_group
        )

    def write(self) -> None:
        counts = [
            *self.batch.values(),
            self.num_panels,
            *self.outer_extents.values(),
            self.num_chunks,
        ]
        with self.code.count("%start", self.code.least("%stop", self.product(counts)), 1) as unit:
            self._unit(unit)

    def _unit(self, unit: str) -> None:
        code, width = self.code, self.tiling.columns
        line, chunk = self.divided(unit, self.num_chunks)
        rest, outer = self.divided(line, self.product(self.outer_extents.values()))
        batch, panel = self.divided(rest, self.num_panels)
        first, column = code.i64("mul", chunk, STEPS_PER_UNIT), code.i64("mul", panel, width)
        lines = code.i64("add", code.i64("mul", line, self.depth), first)
        self.to = advanced(code, self.panels, code.i64("mul", lines, width), self.raw)
        count = code.least(STEPS_PER_UNIT, code.i64("sub", self.steps, first))
        positions = {
            **self.split(batch, self.batch), **self.split(outer, self.outer_extents),
            self.contract.inner[-1]: first, self.contract.columns: column,
        }  # fmt: skip
        with self.placed(positions):
            self._vectors(count, code.i64("sub", self.n, column))

    def _vectors(self, steps: Bound, columns: Bound) -> None:
        code, lanes, word = self.code, self.tiling.lanes, self.tiling.dot_group
        whole = code.integer("and", steps, -word)
        with code.count(0, self.tiling.columns, lanes) as column:
            mask = below(code, code.i64("sub", columns, column))
            with self._on({self.contract.columns: column}):
                with code.count(0, whole, word) as step:
                    values = [self._step(code.i64("add", step, i), mask) for i in range(word)]
                    self._store(values, step, column)
                with code.when(code.compare("lt", whole, steps)):
                    values = [self._last(code.i64("add", whole, i), steps, mask)
                              for i in range(word)]  # fmt: skip
                    self._store(values, whole, column)

    def _on(self, by: Mapping[Axis, Bound]) -> AbstractContextManager[None]:
        """Code some steps further on than here."""
        at = {a: self.code.i64("add", self.at[a], count) for a, count in by.items()}
        return self.moved(by, at)

    def _step(self, step: Bound, mask: Vec) -> Vec:
        """The elements at an inner step, zero-extended to 32 bits."""
        with self._on({self.contract.inner[-1]: step}):
            self.evaluate(self.right, mask)
            value = to_memory(self.values[self.contract.right], self.contract.right.dtype)
        return value.bits(UNSIGNED[self.raw.itemsize]).to(DType.U32)

    def _last(self, step: Bound, steps: Bound, mask: Vec) -> Vec:
        """The same of a step that may be past the last."""
        code = self.code
        is_there = code.compare("lt", step, steps)
        near = code.choose(is_there, step, 0)
        chosen = code.splat(code.let(f"sext i1 {is_there} to i32"), DType.U32)
        return self._step(near, mask) & chosen

    def _store(self, values: list[Vec], step: Bound, column: Bound) -> None:
        code, bits = self.code, 8 * self.raw.itemsize
        total, *rest = (v << (i * bits) for i, v in enumerate(values))
        for value in rest:
            total = total | value
        place = code.i64("add", code.i64("mul", step, self.tiling.columns),
                         code.i64("mul", column, self.tiling.dot_group))  # fmt: skip
        store(code, total, DType.U32, advanced(code, self.to, place, self.raw))
