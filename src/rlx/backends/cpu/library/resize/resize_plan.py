"""What a resize is to its kernels: which axes are resized, where lanes go, and in which order sums
are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.library.resize.coefficients import Columns, Fold, Spot, Taps, number, table
from rlx.backends.cpu.library.strided_copy import Blocks, at, filled, moved_as, step
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Step
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ops.nn.resize import Line, Rule

Array = np.ndarray[Any, Any]
ROW, PIXELS = 512, 32
"""Results of a row that are one unit of work: of one channel, or of all of them."""
TOGETHER = 4
"""Vectors of channels that are summed at a time."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Some results of a row."""

    rows: list[Spot]
    """Where it is on the other axes that are resized."""
    given: Bound
    """Where their first old elements lie."""
    made: Bound
    """Where the row's first result lies."""
    block: Bound
    hidden: str | None
    """Is the row outside of the image? An i1."""


@dataclass(frozen=True, slots=True)
class Picks:
    """How vectors of a row are picked from registers."""

    registers: int
    bases: Array
    """[blocks, vectors]: where the elements in them begin."""


@dataclass(frozen=True, slots=True)
class Form:
    step: Step
    rule: Rule
    lines: tuple[Line, ...]
    """The axes that are resized; along the last one lie columns."""
    lane: int | None
    """The axis, of channels, that lanes go along."""
    part: int | None
    """The axis of channels that is part of a row."""
    lanes: int
    columns: Columns | None
    """Where lanes go along a row."""

    @classmethod
    def of(cls, given: Step, rule: Rule, lines: list[Line]) -> Form:
        lines = sorted(lines, key=lambda line: _is_beside(given, line.axis))
        lane, part = _lane(given, {line.axis for line in lines}), None
        if lane is not None and _is_part(given, lines[-1].axis, lane):
            lane, part = None, lane
        dims, dtype = given.node.shape.dims, _computed(given.node.shape.dtype, rule)
        if lane is not None:
            return cls(
                given, rule, tuple(lines), lane, part, filled(given.isa, dtype, dims[lane]), None
            )
        beside = 1 if part is None else int(dims[part])
        wide = dtype if dtype.itemsize >= 4 else DType.F32
        lanes = filled(given.isa, wide, lines[-1].new * beside)
        columns = Columns.of(lines[-1], rule, beside, lanes, ROW)
        return cls(given, rule, tuple(lines), lane, part, lanes, columns)

    # -- facts ----------------------------------------------------------------------------------

    @property
    def x(self) -> Layout:
        return self.step.operands[0]

    @property
    def y(self) -> Layout:
        return self.step.results[0]

    @property
    def is_moved(self) -> bool:
        return self.rule.mode == "nearest"

    @property
    def dtype(self) -> DType:
        """As elements are loaded and stored: what is only moved is bits."""
        given = self.step.node.shape.dtype
        return moved_as(given)[0] if self.is_moved else given

    @property
    def sums(self) -> DType:
        return self.dtype.compute

    @property
    def column(self) -> Line:
        return self.lines[-1]

    @property
    def beside(self) -> int:
        return 1 if self.part is None else int(self.y.dims[self.part])

    @property
    def outer(self) -> tuple[int, ...]:
        """The axes that units go over and that stay as they are."""
        done = {self.lane, self.part, *(line.axis for line in self.lines)}
        return tuple(a for a in range(len(self.x.dims)) if a not in done)

    @property
    def apart(self) -> tuple[DimLike, DimLike]:
        """Strides along a row, of what is given and made."""
        axis = self.column.axis if self.part is None else self.part
        return self.x.strides[axis], self.y.strides[axis]

    @property
    def units(self) -> Blocks:
        blocks = -(-self.column.new // PIXELS) if self.columns is None else self.columns.blocks
        outer = (self.y.dims[a] for a in self.outer)
        return Blocks((*outer, *(line.new for line in self.lines[:-1]), blocks), 1)

    @property
    def taps(self) -> tuple[int, int]:
        """Of a column, and of a row."""
        every = [line.taps(self.rule)[0].shape[1] for line in self.lines]
        return int(np.prod(every[:-1], dtype=int)), every[-1]

    @property
    def is_once(self) -> bool:
        """Are sums over both at once less work? Work counts vectors, and where lanes are picked
        one by one each of them."""
        down, across = self.taps
        if self.is_moved or down == 1:
            return True
        single = 1 if self.lane is not None else self.lanes
        each = 1 if self.columns is None or self.in_registers(None) is not None else single
        made = across * self.column.new
        return down * made * single <= (down + 1) * self.column.old + made * each

    @property
    def picks(self) -> Picks | None:
        """How a row's results are picked from registers, if they are."""
        if not self.is_once:
            return self.in_registers(None)
        is_beside = self.apart[0] == 1
        return self.in_registers(self.column.old * self.beside - 1) if is_beside else None

    def in_registers(self, last: int | None) -> Picks | None:
        """The same from elements none of which are past `last`."""
        isa, lanes = self.step.isa, self.lanes
        is_x86 = isa.arch == "x86_64" and isa.vector_bytes >= 32
        if self.columns is None or not is_x86 or self.sums.itemsize != 4 or lanes < 8:
            return None
        for many in (1, 2) if lanes == 16 else (1,):
            bases = self.columns.bases(last, many * lanes)
            if bases is not None:
                return Picks(many, bases)
        return None

    @property
    def has_outside(self) -> bool:
        return any(line.crop is not None and line.outside().any() for line in self.lines)

    @property
    def scratch(self) -> int:
        """Bytes of the row that is summed first; vectors may go past its end."""
        if self.is_once:
            return 0
        size = np.diff(self.seen).max() * (1 if self.columns else TOGETHER * self.lanes)
        return (int(size) + 3 * self.lanes) * self.sums.itemsize

    @property
    def seen(self) -> Array:
        """[blocks, 2]: the first old elements of a row that a block sees, and where they end."""
        if self.columns is not None:
            return self.columns.seen
        places = self.column.taps(self.rule)[0]
        pieces = [places[i : i + PIXELS] for i in range(0, len(places), PIXELS)]
        return np.array([(p.min(), p.max() + 1) for p in pieces])

    # -- code -----------------------------------------------------------------------------------

    def unit(self, w: Writer, position: list[Bound], block: Bound) -> Unit:
        given, made = w.size(self.x.offset), w.size(self.y.offset)
        for axis, p in zip(self.outer, position):
            given = at(w, given, step(w, p, self.x.strides[axis]))
            made = at(w, made, step(w, p, self.y.strides[axis]))
        rows: list[Spot] = []
        for line, p in zip(self.lines[:-1], position[len(self.outer) :], strict=True):
            rows.append(Spot(line, p, self.x.strides[line.axis]))
            made = at(w, made, step(w, p, self.y.strides[line.axis]))
        return Unit(rows, given, made, block, self.hidden(w, rows))

    def hidden(self, w: Writer, spots: list[Spot]) -> str | None:
        """Is one of the positions outside of the image?"""
        code, found = w.code, None
        for spot in spots:
            if spot.line.crop is None:
                continue
            flags = table(code, spot.line.outside().astype(np.uint8))
            flag = number(code, flags, spot.position, "i8")
            own = code.let(f"icmp ne i64 {flag}, 0")
            found = own if found is None else code.let(f"or i1 {found}, {own}")
        return found

    def edges(self, w: Writer, unit: Unit) -> tuple[Bound, Bound]:
        """Which old elements of a row the unit sees."""
        found = table(w.code, self.seen.astype(np.int32))
        entry = w.code.i64("mul", unit.block, 2)
        return number(w.code, found, entry), number(w.code, found, at(w, entry, 1))

    def folded(self, w: Writer, spots: list[Spot], base: Bound) -> Fold:
        return Taps(w, spots, self.rule, self.sums, base).folded()

    def keep(self, w: Writer, value: Vec, place: Bound) -> None:
        store(w.code, value, self.sums, advanced(w.code, "%scratch", place, self.sums))

    def kept(self, w: Writer, place: Bound) -> Vec:
        return load(w.code, self.sums, advanced(w.code, "%scratch", place, self.sums))

    def nothing(self, w: Writer) -> Vec:
        """What stands outside of the image."""
        value = np.float64(self.step.node.attrs["extrapolation_value"])
        found = np.asarray(ops.cast(value, to=self.step.node.shape.dtype))
        if self.is_moved:
            return w.code.const(int(found.view(self.dtype.numpy)), self.dtype)
        return w.code.const(float(found), self.sums)


# -- which axes -----------------------------------------------------------------------------------


def _is_beside(given: Step, axis: int) -> bool:
    return given.operands[0].strides[axis] == given.results[0].strides[axis] == 1


def _lane(given: Step, resized: set[int]) -> int | None:
    """An axis of several elements that stay side by side."""
    for axis, dim in enumerate(given.node.shape.dims):
        if axis not in resized and dim != 1 and _is_beside(given, axis):
            return axis
    return None


def _is_part(given: Step, column: int, lane: int) -> bool:
    """Are channels so few that they are better part of a row, and is it whole?"""
    dim = given.node.shape.dims[lane]
    if not is_static(dim) or dim >= given.isa.lanes(DType.F32):
        return False
    return given.operands[0].strides[column] == given.results[0].strides[column] == dim


def _computed(dtype: DType, rule: Rule) -> DType:
    return moved_as(dtype)[0] if rule.mode == "nearest" else dtype.compute
