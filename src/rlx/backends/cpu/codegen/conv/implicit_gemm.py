"""NHWC convolution as an implicit GEMM, and depthwise convolution.

    for each unit: a block of output positions of one panel of output channels
      gather offsets: the address of every tap for each position, if the block is a new one
      for each block of inner steps, for each tile of positions: multiply-adds in registers
      for each position: the epilogue on the sums

Positions run over the image and the batch, so tiles are full whatever its size. Where a tap is in
the padding, its gather offset is that of a line of zeros: no loop tests bounds, and neither an
im2col matrix nor a padded image is ever written. The order of a sum's additions depends on the
extents of its kernel alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.conv.gather_offsets import (
    OffsetsForm,
    PaddedAxis,
    gather_offsets_function,
)
from rlx.backends.cpu.codegen.conv.register_tile import depthwise_rows, implicit_gemm_rows
from rlx.backends.cpu.codegen.gemm.gemm import EpilogueBuilder
from rlx.backends.cpu.codegen.gemm.microkernel import require_evaluable
from rlx.backends.cpu.codegen.gemm.register_tile import Kinds
from rlx.backends.cpu.codegen.loop.vector_access import advanced, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Source
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import (
    BLOCKS_PER_POLL,
    NoGemm,
    Tiling,
    packed_batch,
    parts_of,
    sums_dtype,
    tiling_of,
)
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract, extent_of
from rlx.kernel.expr import Axis, Load, postorder
from rlx.kernel.lower.nhwc_conv import bounds_checks_of, is_depthwise, padding_value_of, window_axes

TABLE_BYTES = 1 << 17
"""Bytes of a block's gather offsets, roughly: they should stay in cache."""
L2_BYTES = 1 << 20
L2_RESIDENT_BYTES = 1 << 18
"""A panel of kernels up to this size stays in the L2 cache."""
MIN_POSITIONS = 24
"""Of a block, where its panel of kernels does not."""


def implicit_gemm_tiling(contract: Contract, isa: Isa, dot_group: int = 1) -> Tiling:
    """Tiles as those of a GEMM with as many rows as there are output positions."""
    points = window_axes(contract)
    image, _ = bounds_checks_of(contract.left)
    places = Axis("places", extent_of(points))
    groups = tuple(b for b in contract.batch if b not in points)
    flat = replace(contract, batch=groups, rows=places, left=image)
    made = tiling_of(flat, isa, has_panels=True)
    rows = made.rows[0]
    most = rows * max(1, TABLE_BYTES // (8 * num_taps(contract) * rows))
    block = min(_row_block(contract, made, places.extent), most)
    rows = _whole(made.rows, places.extent)
    return replace(made, row_block=block, rows=rows, dot_group=dot_group)


def _row_block(contract: Contract, tiling: Tiling, places: DimLike) -> int:
    """Positions per block: of kernels larger than the L2 cache so many, and as many in each block,
    that they are read seldom."""
    steps, rows = extent_of(contract.inner), tiling.rows[0]
    assert is_static(steps)
    if steps * tiling.columns * contract.right.dtype.itemsize <= L2_RESIDENT_BYTES:
        return tiling.row_block
    block = max(tiling.row_block, MIN_POSITIONS)
    if is_static(places) and places > 0:
        block = -(-places // max(1, places // block))
    return -(-block // rows) * rows


def _whole(rows: tuple[int, ...], extent: DimLike) -> tuple[int, ...]:
    """Tiles for any remainder: blocks may be smaller than those the tiling was chosen for."""
    return (rows[0], *(s for s in (8, 4, 2, 1) if s < rows[0])) if extent != rows[0] else rows


def is_panel_major(contract: Contract) -> bool:
    """Are consecutive units those of a panel? Kernels that exceed the L2 cache are then read once;
    others are read by each worker, so that it reads and writes positions of its own."""
    size = extent_of((*contract.inner, contract.columns)) * contract.right.dtype.itemsize
    return is_static(size) and size > L2_BYTES and not is_depthwise(contract)


def num_taps(contract: Contract) -> int:
    taps = product(a.extent for a in contract.inner[:-1])
    assert is_static(taps)
    return taps


def num_units(contract: Contract, tiling: Tiling) -> DimLike:
    points = window_axes(contract)
    groups = extent_of(b for b in contract.batch if b not in points)
    blocks = parts_of(extent_of(points), tiling.row_block)
    return groups * blocks * parts_of(contract.columns.extent, tiling.columns)


@dataclass(frozen=True, slots=True)
class ImplicitGemm:
    """A legal contraction of a convolution, and its tiling. Its buffers are the operands, the
    results, and the packed kernels."""

    contract: Contract
    tiling: Tiling
    isa: Isa

    def __post_init__(self) -> None:
        """Refuse what there is no code for."""
        contract = self.contract
        image, _ = bounds_checks_of(contract.left)
        if not isinstance(image, Load) or image.args:
            raise NoGemm(f"{contract.name}: its image is computed")
        padding = padding_value_of(contract.left)
        require_evaluable(contract, [*padding, *(s.value for s in contract.stores)])

    @property
    def num_units(self) -> DimLike:
        return num_units(self.contract, self.tiling)

    @property
    def scratch(self) -> DimLike:
        return Scratch.of(self.contract, self.tiling).size

    def source(self, name: str) -> Source:
        """Its code."""
        kind = _Depthwise if is_depthwise(self.contract) else _ImplicitGemm
        work = kind(self.contract, self.tiling, self.isa)
        work.write()
        return work.source(name)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Offsets in a worker's scratch: gather offsets by tap; of each position its origin, its
    coordinate along each axis, and along each padded axis; the padding line."""

    room: int
    """Positions of a block, up to whole vectors."""
    base: int
    position: int
    border: int
    padding: int
    size: int

    @classmethod
    def of(cls, contract: Contract, tiling: Tiling) -> Scratch:
        _, conditions = bounds_checks_of(contract.left)
        room = -(-tiling.row_block // tiling.lanes) * tiling.lanes
        line = 8 * room
        base = num_taps(contract) * line
        position = base + line
        border = position + line * len(window_axes(contract))
        padding = border + line * len(conditions)
        taken = _line_length(contract, tiling) * contract.left.dtype.itemsize
        size = padding + (-(-taken // 64) * 64 if conditions else 0)
        return cls(room, base, position, border, padding, size)


def _line_length(contract: Contract, tiling: Tiling) -> int:
    """Contiguous elements that are read at a tap's address."""
    if not is_depthwise(contract):
        return _steps(contract, tiling)
    channels = contract.columns.extent
    assert is_static(channels)
    return channels


def _steps(contract: Contract, tiling: Tiling) -> int:
    """Input channels, up to whole dot-product groups."""
    steps = contract.inner[-1].extent
    assert is_static(steps)
    return -(-steps // tiling.dot_group) * tiling.dot_group


class _ImplicitGemm(EpilogueBuilder):
    def __init__(self, contract: Contract, tiling: Tiling, isa: Isa) -> None:
        super().__init__(contract, tiling, isa)
        image, self.conditions = bounds_checks_of(contract.left)
        assert isinstance(image, Load)
        self.image = image
        self.outside = tuple(postorder(padding_value_of(contract.left)))
        self.open_loads([image, *self.outside, *(s.value for s in contract.stores)])
        for s in contract.stores:
            self.open(s, len(contract.operands) + s.result)
        self.panels = self.buffer(len(contract.operands) + len(contract.results))
        points = window_axes(contract)
        self.points = self.extents(points)
        self.groups = self.extents(b for b in contract.batch if b not in points)
        self.packed = {a: e for a, e in self.groups.items() if a in packed_batch(contract)}
        self.n = self.size(contract.columns.extent)
        self.num_places = self.product(self.points.values())
        self.num_panels = self.parts(self.n, tiling.columns)
        self.num_blocks = self.parts(self.num_places, tiling.row_block)
        self.scratch = Scratch.of(contract, tiling)
        self.num_taps, self.steps = num_taps(contract), _steps(contract, tiling)
        self.kind = sums_dtype(contract)
        size = tiling.row_block * tiling.columns
        self.sums = self.code.slot(f"[{size} x {ELEMENT[self.kind]}]")

    def _scratch(self, at: int, place: Bound = 0) -> str:
        line = advanced(self.code, "%scratch", at, DType.U8)
        return advanced(self.code, line, place, DType.I64)

    # -- units ----------------------------------------------------------------------------------

    def write(self) -> None:
        code = self.code
        if self.conditions:
            zero = self._outside()
            with code.count(0, self.scratch.size - self.scratch.padding, code.lanes * 4) as at:
                place = advanced(code, self._scratch(self.scratch.padding), at, DType.U8)
                store(code, zero, DType.I32, place)
        self.written = code.slot("i64")
        code.store_scalar(self.written, -1, DType.I64)
        counts = [*self.groups.values(), self.num_blocks, self.num_panels]
        with code.count("%start", code.least("%stop", self.product(counts)), 1) as unit:
            self._unit(unit)

    def _outside(self) -> Vec:
        """The padding value, as 32-bit groups: zeros, or the zero point."""
        kind = self.image.dtype
        if kind.itemsize > 1:
            return self.code.const(0, DType.I32)
        self.evaluate(self.outside, None)
        byte = self.values[self.outside[-1]].bits(DType.U8).to(DType.U32)
        return (byte * 0x01010101).bits(DType.I32)

    def _unit(self, unit: str) -> None:
        code, size = self.code, self.tiling.row_block
        turn, place, panel = self._numbers(unit)
        block = code.i64("sub", place, code.i64("mul", turn, self.num_blocks))
        first = code.integer("mul", block, size)
        end = code.least(self.num_places, code.i64("add", first, size))
        column = code.integer("mul", panel, self.tiling.columns)
        with self.placed(self.split(turn, self.groups)):
            known = code.load_scalar(self.written, DType.I64)
            with code.when(code.compare("ne", known, place)):
                self._table(first, code.i64("sub", end, first))
                code.store_scalar(self.written, place, DType.I64)
            self._sum(first, end, panel)
            self.epilogue(first, end, column)

    def _numbers(self, unit: str) -> tuple[str, Bound, str]:
        """The group of a unit, its block counted over all groups, and its panel."""
        code = self.code
        if not is_panel_major(self.contract):
            place, panel = self.divided(unit, self.num_panels)
            return code.integer("div", place, self.num_blocks, DType.U64), place, panel
        turn, rest = self.divided(unit, code.i64("mul", self.num_blocks, self.num_panels))
        panel, block = self.divided(rest, self.num_blocks)
        return turn, code.i64("add", code.i64("mul", turn, self.num_blocks), block), panel

    # -- gather offsets -------------------------------------------------------------------------

    def _table(self, first: str, count: Bound) -> None:
        """Compute the gather offsets of a block. An unpadded image has no padding line."""
        code, steps = self.code, self.strides[self.image]
        taps = self.contract.inner[:-1]
        axes = [(extent, a) for a, extent in self.points.items()]
        axes += [(self.size(a.extent), a) for a in taps]
        numbers: list[Bound] = [n for extent, a in axes for n in (extent, steps.get(a, 0))]
        for condition in self.conditions:
            ends = condition.at.offset, condition.low, condition.high
            moves = [condition.at.coefficient(a) for _, a in axes]
            numbers += [self._number(d) for d in (*ends, *(m for m in moves if m != 0))]
        lines = (
            0,
            self.scratch.base,
            self.scratch.position,
            self.scratch.border,
            self.scratch.padding,
        )
        places = [f"ptr {self._scratch(line)}" for line in lines]
        given = f"ptr {self.pointers[self.image]}, i64 {first}, i64 {count}"
        args = [*places, f"i64 {self.scratch.room}", given, *(f"i64 {n}" for n in numbers)]
        code.do(
            f"call void @{gather_offsets_function(code, self._offsets_form())}({', '.join(args)})"
        )

    def _offsets_form(self) -> OffsetsForm:
        taps = self.contract.inner[:-1]
        padded_axes = [
            PaddedAxis(
                *(tuple(c.at.coefficient(a) != 0 for a in axes) for axes in (self.points, taps))
            )
            for c in self.conditions
        ]
        width = self.image.dtype.itemsize
        return OffsetsForm(len(self.points), len(taps), tuple(padded_axes), width)

    def _number(self, dim: DimLike) -> Bound:
        return int(dim) if is_static(dim) else self.size(dim)

    def row_at(self, m: str, first: Bound) -> dict[Axis, Bound]:
        if len(self.points) == 1:
            return {self.contract.rows: m}
        row = self.code.i64("sub", m, first)
        lines = [self.scratch.position + 8 * self.scratch.room * i for i in range(len(self.points))]
        return {
            axis: self.code.load_scalar(self._scratch(line, row), DType.I64)
            for axis, line in zip(self.points, lines)
        }

    # -- sums -----------------------------------------------------------------------------------

    def _line(self, panel: str) -> Bound:
        """The offset of a panel of kernels, in lines."""
        code = self.code
        before = code.i64("mul", self.joined(self.packed), self.num_panels)
        return code.i64("mul", code.i64("add", before, panel), self.num_taps * self.steps)

    def _sum(self, first: str, end: Bound, panel: str) -> None:
        """All inner blocks: some whole taps, or a part of the channels of one."""
        code, steps, taps = self.code, self.steps, self.num_taps
        line, most = self._line(panel), self.tiling.inner_block
        if steps <= most:
            some = max(1, most // steps)
            with code.count(0, taps, some, BLOCKS_PER_POLL) as tap:
                count = code.least(some, code.i64("sub", taps, tap))
                self._block(first, end, line, (tap, count, 0, steps))
            return
        blocks = code.count(0, steps, most, BLOCKS_PER_POLL)
        with code.count(0, taps, 1, BLOCKS_PER_POLL) as tap, blocks as start:
            count = code.least(most, code.i64("sub", steps, start))
            self._block(first, end, line, (tap, 1, start, count))

    def _block(
        self, first: str, end: Bound, line: Bound, part: tuple[Bound, Bound, Bound, Bound]
    ) -> None:
        code, (tap, taps, start, count) = self.code, part
        step = code.i64("add", code.i64("mul", tap, self.steps), start)
        is_first = code.compare("eq", step, 0)
        lines = code.i64("mul", code.i64("add", line, step), self.tiling.columns)
        right = advanced(code, self.panels, lines, self.contract.right.dtype)
        across = self.strides[self.image].get(self.contract.inner[-1], 0)
        room = self.scratch.room
        given = f"i64 {room}, i64 {taps}, i64 {start}, i64 {across}, ptr {right}, i64 {count}"
        places = self._scratch(0, code.i64("mul", tap, room))
        name = implicit_gemm_rows(
            replace(Kinds.of(self.contract), is_strided=across != 1), self.tiling, code
        )
        rows = code.i64("sub", end, first)
        code.do(
            f"call void @{name}(ptr {places}, {given}, ptr {self.sums}, i1 {is_first}, i64 {rows})"
        )


class _Depthwise(_ImplicitGemm):
    """Depthwise convolution: columns of the image times columns of the kernels."""

    def _sum(self, first: str, end: Bound, panel: str) -> None:
        code, columns = self.code, self.tiling.columns
        lines = code.i64("mul", self._line(panel), columns)
        right = advanced(code, self.panels, lines, self.contract.right.dtype)
        start = code.i64("mul", panel, columns)
        left = code.i64("sub", self.n, start)
        given = (
            f"i64 {self.scratch.room}, i64 {self.num_taps}, i64 {start}, i64 {left}, ptr {right}"
        )
        name = depthwise_rows(Kinds.of(self.contract), self.tiling, code)
        args = f"ptr {self._scratch(0)}, {given}, ptr {self.sums}"
        code.do(f"call void @{name}({args}, i64 {code.i64('sub', end, first)})")
