"""The plan of a resize: which axes are resized, what is vectorised, and the order of the passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.library.resize.coefficients import (
    AxisPosition,
    RowTaps,
    Taps,
    TapSum,
    constant_table,
    num_taps,
    table_entry,
)
from rlx.backends.cpu.library.strided_copy import Blocks, at, copy_dtype, dim_lanes, step
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ops.nn.resize import Line, Repeat, Rule

Array = np.ndarray[Any, Any]
ROW_BLOCK, PIXEL_BLOCK = 512, 32
"""Results of a row in one unit: of one channel, or of all of them."""
UNROLL = 4
"""Vectors of channels that are summed at a time."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A range of a row's results."""

    rows: list[AxisPosition]
    """The positions on the other resized axes."""
    given: Bound
    """The offset of their first source elements."""
    made: Bound
    """The offset of the row's first result."""
    block: Bound
    is_outside: str | None
    """Is the row outside of the image? An i1."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """How vectors of a row are permuted from registers."""

    registers: int
    bases: Array
    """[blocks, vectors]: the first element in them."""


@dataclass(frozen=True, slots=True)
class ResizePlan:
    step: Step
    rule: Rule
    lines: tuple[Line | Repeat, ...]
    """The resized axes; columns are along the last one."""
    vector_axis: int | None
    """The axis of channels that is vectorised."""
    merged_axis: int | None
    """The axis of channels that is merged into the row."""
    lanes: int
    row_taps: RowTaps | None
    """Where the row is vectorised, and its taps are constants."""

    @classmethod
    def of(cls, given: Step, rule: Rule, lines: list[Line | Repeat]) -> ResizePlan:
        lines = sorted(lines, key=lambda line: _is_contiguous(given, line.axis))
        vector_axis, merged_axis = _contiguous_axis(given, {line.axis for line in lines}), None
        column = lines[-1]
        can_merge = vector_axis is not None and isinstance(column, Line)
        if can_merge and _merges_into_row(given, column.axis, vector_axis or 0):
            vector_axis, merged_axis = None, vector_axis
        dims, dtype = given.node.shape.dims, _compute_dtype(given.node.shape.dtype, rule)
        if vector_axis is not None:
            return cls(
                given,
                rule,
                tuple(lines),
                vector_axis,
                merged_axis,
                dim_lanes(given.isa, dtype, dims[vector_axis]),
                None,
            )
        if isinstance(column, Repeat):
            lanes = given.isa.lanes(dtype)
            return cls(given, rule, tuple(lines), None, None, lanes, None)
        row_channels = 1 if merged_axis is None else int(dims[merged_axis])
        wide = dtype if dtype.itemsize >= 4 else DType.F32
        lanes = dim_lanes(given.isa, wide, column.new * row_channels)
        row_taps = RowTaps.of(column, rule, row_channels, lanes, ROW_BLOCK)
        return cls(given, rule, tuple(lines), vector_axis, merged_axis, lanes, row_taps)

    # -- facts ----------------------------------------------------------------------------------

    @property
    def x(self) -> Layout:
        return self.step.operands[0]

    @property
    def y(self) -> Layout:
        return self.step.results[0]

    @property
    def is_nearest(self) -> bool:
        return self.rule.mode == "nearest"

    @property
    def dtype(self) -> DType:
        """The dtype of loads and stores: what is only moved is bits."""
        given = self.step.node.shape.dtype
        return copy_dtype(given)[0] if self.is_nearest else given

    @property
    def sums(self) -> DType:
        return self.dtype.compute

    @property
    def column(self) -> Line | Repeat:
        return self.lines[-1]

    @property
    def repeated_row(self) -> Repeat | None:
        """The columns, where the row is vectorised and its elements are repeated."""
        is_row = self.vector_axis is None and self.row_taps is None
        return self.column if is_row and isinstance(self.column, Repeat) else None

    @property
    def repeated_block(self) -> int:
        """Source elements of a row that is repeated in one unit."""
        repeat = self.repeated_row
        return max(self.lanes, ROW_BLOCK // (repeat.factor if repeat else 1))

    @property
    def row_channels(self) -> int:
        return 1 if self.merged_axis is None else int(self.y.dims[self.merged_axis])

    @property
    def outer(self) -> tuple[int, ...]:
        """The axes that units iterate over and that are not resized."""
        done = {self.vector_axis, self.merged_axis, *(line.axis for line in self.lines)}
        return tuple(a for a in range(len(self.x.dims)) if a not in done)

    @property
    def row_strides(self) -> tuple[DimLike, DimLike]:
        """Strides along a row, of the source and of the result."""
        axis = self.column.axis if self.merged_axis is None else self.merged_axis
        return self.x.strides[axis], self.y.strides[axis]

    @property
    def units(self) -> Blocks:
        outer = (self.y.dims[a] for a in self.outer)
        return Blocks((*outer, *(line.new for line in self.lines[:-1]), self.row_blocks), 1)

    @property
    def row_blocks(self) -> DimLike:
        """Units of a row."""
        if self.row_taps is not None:
            return self.row_taps.blocks
        if self.repeated_row is not None:
            return (self.column.old + self.repeated_block - 1) // self.repeated_block
        return (self.column.new + PIXEL_BLOCK - 1) // PIXEL_BLOCK

    @property
    def taps(self) -> tuple[int, int]:
        """Of a column, and of a row."""
        every = [num_taps(line, self.rule) for line in self.lines]
        return int(np.prod(every[:-1], dtype=int)), every[-1]

    @property
    def is_single_pass(self) -> bool:
        """Are both passes in one sum fewer operations? Counted in vectors, and where lanes are
        gathered element by element each of them."""
        down, across = self.taps
        if self.is_nearest or down == 1 or isinstance(self.column, Repeat):
            return True
        single = 1 if self.vector_axis is not None else self.lanes
        each = 1 if self.row_taps is None or self.in_registers(None) is not None else single
        made = across * self.column.new
        return down * made * single <= (down + 1) * self.column.old + made * each

    @property
    def permutation(self) -> Permutation | None:
        """How a row's results are permuted from registers, if they are."""
        if not self.is_single_pass:
            return self.in_registers(None)
        is_contiguous = self.row_strides[0] == 1
        if not is_contiguous or isinstance(self.column, Repeat):
            return None
        return self.in_registers(self.column.old * self.row_channels - 1)

    def in_registers(self, last: int | None) -> Permutation | None:
        """The same from elements none of which are past `last`."""
        isa, lanes = self.step.isa, self.lanes
        is_x86 = isa.arch == "x86_64" and isa.vector_bytes >= 32
        if self.row_taps is None or not is_x86 or self.sums.itemsize != 4 or lanes < 8:
            return None
        for many in (1, 2) if lanes == 16 else (1,):
            bases = self.row_taps.bases(last, many * lanes)
            if bases is not None:
                return Permutation(many, bases)
        return None

    @property
    def has_outside(self) -> bool:
        lines = [line for line in self.lines if isinstance(line, Line)]
        return any(line.crop is not None and line.outside().any() for line in lines)

    @property
    def scratch(self) -> int:
        """Bytes of the vertical sums; vectors may go past their end."""
        if self.is_single_pass:
            return 0
        size = np.diff(self.source_range).max() * (1 if self.row_taps else UNROLL * self.lanes)
        return (int(size) + 3 * self.lanes) * self.sums.itemsize

    @property
    def source_range(self) -> Array:
        """[blocks, 2]: the range of a row's source elements that a block reads."""
        if self.row_taps is not None:
            return self.row_taps.source_range
        assert isinstance(self.column, Line)
        places = self.column.taps(self.rule)[0]
        pieces = [places[i : i + PIXEL_BLOCK] for i in range(0, len(places), PIXEL_BLOCK)]
        return np.array([(p.min(), p.max() + 1) for p in pieces])

    # -- code -----------------------------------------------------------------------------------

    def unit(self, w: Writer, position: list[Bound], block: Bound) -> Unit:
        given, made = w.size(self.x.offset), w.size(self.y.offset)
        for axis, p in zip(self.outer, position):
            given = at(w, given, step(w, p, self.x.strides[axis]))
            made = at(w, made, step(w, p, self.y.strides[axis]))
        rows: list[AxisPosition] = []
        for line, p in zip(self.lines[:-1], position[len(self.outer) :], strict=True):
            rows.append(AxisPosition(line, p, self.x.strides[line.axis]))
            made = at(w, made, step(w, p, self.y.strides[line.axis]))
        return Unit(rows, given, made, block, self.is_outside(w, rows))

    def is_outside(self, w: Writer, positions: list[AxisPosition]) -> str | None:
        """Is one of the positions outside of the image?"""
        code, found = w.code, None
        for position in positions:
            line = position.line
            if isinstance(line, Repeat) or line.crop is None:
                continue
            flags = constant_table(code, line.outside().astype(np.uint8))
            flag = table_entry(code, flags, position.position, "i8")
            own = code.compare("ne", flag, 0)
            found = own if found is None else code.either(found, own)
        return found

    def source_edges(self, w: Writer, unit: Unit) -> tuple[Bound, Bound]:
        """The range of a row's source elements that the unit reads."""
        found = constant_table(w.code, self.source_range.astype(np.int32))
        entry = w.code.i64("mul", unit.block, 2)
        return table_entry(w.code, found, entry), table_entry(w.code, found, at(w, entry, 1))

    def tap_sum(self, w: Writer, positions: list[AxisPosition], base: Bound) -> TapSum:
        return Taps(w, positions, self.rule, self.sums, base).tap_sum()

    def to_scratch(self, w: Writer, value: Vec, place: Bound) -> None:
        store(w.code, value, self.sums, advanced(w.code, "%scratch", place, self.sums))

    def from_scratch(self, w: Writer, place: Bound) -> Vec:
        return load(w.code, self.sums, advanced(w.code, "%scratch", place, self.sums))

    def extrapolation(self, w: Writer) -> Vec:
        """The value outside of the image."""
        value = np.float64(self.step.node.attrs["extrapolation_value"])
        found = np.asarray(ops.cast(value, to=self.step.node.shape.dtype))
        if self.is_nearest:
            return w.code.const(int(found.view(self.dtype.numpy)), self.dtype)
        return w.code.const(float(found), self.sums)


# -- which axes -----------------------------------------------------------------------------------


def _is_contiguous(given: Step, axis: int) -> bool:
    return given.operands[0].strides[axis] == given.results[0].strides[axis] == 1


def _contiguous_axis(given: Step, resized: set[int]) -> int | None:
    """An axis of several elements that stays contiguous."""
    for axis, dim in enumerate(given.node.shape.dims):
        if axis not in resized and dim != 1 and _is_contiguous(given, axis):
            return axis
    return None


def _merges_into_row(given: Step, column: int, lane: int) -> bool:
    """Are channels so few that they are better merged into the row, and is it contiguous?"""
    dim = given.node.shape.dims[lane]
    if not is_static(dim) or dim >= given.isa.lanes(DType.F32):
        return False
    return given.operands[0].strides[column] == given.results[0].strides[column] == dim


def _compute_dtype(dtype: DType, rule: Rule) -> DType:
    return copy_dtype(dtype)[0] if rule.mode == "nearest" else dtype.compute
