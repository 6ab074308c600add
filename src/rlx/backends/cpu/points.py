"""Convolutions whose channels lie side by side, as native code.

    for each unit: a block of places of one panel of output channels
      a table of where each place's window finds each tap, if the block is not the last one's
      for each block of inner steps, for each tile of places: multiply-adds in registers
      for each place: the epilogue on the sums

A place is any point of the image and the batch, so tiles are full whatever its size. Where a tap
is outside of the image, the table has the address of a line of zeros: no loop tests where it is,
and no window and no border is ever written. The order of a sum's additions depends on the
extents of its kernel alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlx.backends.cpu.gemm import Results
from rlx.backends.cpu.ir import ELEMENT, Bound, Code, Vec
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.lanes import advanced, load, store
from rlx.backends.cpu.tile import UNROLL, Chains, Kinds, multiply_add
from rlx.backends.cpu.tiling import (
    INNER_BLOCK,
    NoGemm,
    Tiling,
    packed_batch,
    parts_of,
    sums_dtype,
    tiling_of,
)
from rlx.backends.cpu.work import Source, below
from rlx.dim import DimLike, is_static, product
from rlx.dtype import DType
from rlx.kernel.contract import Contract, extent_of
from rlx.kernel.expr import Axis, Inside, Load
from rlx.kernel.form_points import conditions_of, is_by_itself, points_of

TABLE_BYTES = 1 << 17
"""Of the table of a block, roughly: it is to stay near."""
NEAR_BYTES = 1 << 18
"""A panel of kernels up to this size stays in the second cache."""


def points_tiling(contract: Contract, isa: Isa) -> Tiling:
    """Tiles as those of a product with as many rows as there are places."""
    points = points_of(contract)
    image, _ = conditions_of(contract.left)
    places = Axis("places", extent_of(points))
    groups = tuple(b for b in contract.batch if b not in points)
    flat = replace(contract, batch=groups, rows=places, left=image)
    made = tiling_of(flat, isa, has_panels=True)
    room = TABLE_BYTES // (8 * num_taps(contract))
    rows = made.rows[0]
    block = max(made.row_block, rows * max(1, _least_places(contract, made) // rows))
    most = rows * max(1, room // rows)
    rows = _whole(made.rows, places.extent)
    return replace(made, row_block=min(block, most), rows=rows, word=1)


def _least_places(contract: Contract, tiling: Tiling) -> int:
    """Of a block: so many that kernels past the second cache are read seldom."""
    steps = extent_of(contract.inner)
    assert is_static(steps)
    return 24 if steps * tiling.columns * contract.right.dtype.itemsize > NEAR_BYTES else 1


def _whole(rows: tuple[int, ...], extent: DimLike) -> tuple[int, ...]:
    """Tiles for any remainder: blocks may be smaller than those the tiling was made for."""
    return (rows[0], *(s for s in (8, 4, 2, 1) if s < rows[0])) if extent != rows[0] else rows


def num_taps(contract: Contract) -> int:
    taps = product(a.extent for a in contract.inner[:-1])
    assert is_static(taps)
    return taps


def num_units(contract: Contract, tiling: Tiling) -> DimLike:
    points = points_of(contract)
    groups = extent_of(b for b in contract.batch if b not in points)
    blocks = parts_of(extent_of(points), tiling.row_block)
    return groups * blocks * parts_of(contract.columns.extent, tiling.columns)


def emit_points(contract: Contract, tiling: Tiling, isa: Isa, name: str) -> Source:
    """A legal contraction of `form_points`. Its buffers are the operands, the results, and the
    panels."""
    kind = _ByItself if is_by_itself(contract) else _Points
    work = kind(contract, tiling, isa)
    work.write()
    return work.source(name, num_units(contract, tiling), work.scratch_bytes)


class _Points(Results):
    def __init__(self, contract: Contract, tiling: Tiling, isa: Isa) -> None:
        super().__init__(contract, tiling, isa)
        image, self.conditions = conditions_of(contract.left)
        if not isinstance(image, Load) or image.args:
            raise NoGemm(f"{contract.name}: its image is computed")
        self.image = image
        self.open_loads([image, *(s.value for s in contract.stores)])
        for s in contract.stores:
            self.open(s, len(contract.operands) + s.result)
        self.panels = self.buffer(len(contract.operands) + len(contract.results))
        points = points_of(contract)
        self.points = self.extents(points)
        self.groups = self.extents(b for b in contract.batch if b not in points)
        self.packed = {a: e for a, e in self.groups.items() if a in packed_batch(contract)}
        self.n = self.size(contract.columns.extent)
        self.num_places = self.product(self.points.values())
        self.num_panels = self.parts(self.n, tiling.columns)
        self.num_blocks = self.parts(self.num_places, tiling.row_block)
        self._measure()
        self.kind = sums_dtype(contract)
        size = tiling.row_block * tiling.columns
        self.sums = self.code.slot(f"[{size} x {ELEMENT[self.kind]}]")

    def _measure(self) -> None:
        """Where things are in scratch memory: the table, by tap; of each place its address, its
        position along each axis, and that along each axis with a border; zeros."""
        lanes, contract = self.tiling.lanes, self.contract
        self.room = -(-self.tiling.row_block // lanes) * lanes
        self.num_taps = num_taps(contract)
        steps = contract.inner[-1].extent
        assert is_static(steps)
        self.steps = steps
        line = 8 * self.room
        self.base_at = self.num_taps * line
        self.position_at = self.base_at + line
        self.border_at = self.position_at + line * len(self.points)
        self.zeros_at = self.border_at + line * len(self.conditions)
        width = contract.left.dtype.itemsize
        zeros = -(-self._line_length() * width // 64) * 64 if self.conditions else 0
        self.scratch_bytes = self.zeros_at + zeros

    def _line_length(self) -> int:
        """How many elements from a tap's address on are read."""
        return self.steps

    def _scratch(self, at: int, place: Bound = 0) -> str:
        line = advanced(self.code, "%scratch", at, DType.U8)
        return advanced(self.code, line, place, DType.I64)

    # -- units ----------------------------------------------------------------------------------

    def write(self) -> None:
        code = self.code
        if self.conditions:
            zero = code.const(0, DType.I32)
            with code.count(0, self.scratch_bytes - self.zeros_at, code.lanes * 4) as at:
                place = advanced(code, self._scratch(self.zeros_at), at, DType.U8)
                store(code, zero, DType.I32, place)
        self.written = code.slot("i64")
        code.do(f"store i64 -1, ptr {self.written}")
        counts = [*self.groups.values(), self.num_blocks, self.num_panels]
        with code.count("%start", code.least("%stop", self.product(counts)), 1) as unit:
            self._unit(unit)

    def _unit(self, unit: str) -> None:
        code, size = self.code, self.tiling.row_block
        place, panel = self.divided(unit, self.num_panels)
        turn, block = self.divided(place, self.num_blocks)
        first = code.let(f"mul i64 {block}, {size}")
        end = code.least(self.num_places, code.i64("add", first, size))
        column = code.let(f"mul i64 {panel}, {self.tiling.columns}")
        with self.placed(self.split(turn, self.groups)):
            known = code.let(f"load i64, ptr {self.written}")
            with code.when(code.let(f"icmp ne i64 {known}, {place}")):
                self._table(first, code.i64("sub", end, first))
                code.do(f"store i64 {place}, ptr {self.written}")
            self._sum(first, end, panel)
            self.epilogue(first, end, column)

    # -- the table ------------------------------------------------------------------------------

    def _table(self, first: str, count: Bound) -> None:
        self._places(first, count)
        number = self.code.slot("i64")
        self.code.do(f"store i64 0, ptr {number}")
        extents = {a: a.extent for a in self.contract.inner[:-1]}
        self._taps(list(extents), {}, count, number)

    def _places(self, first: str, count: Bound) -> None:
        """Of each place of a block: where its window would begin, and its positions."""
        code, slots = self.code, {a: self.code.slot("i64") for a in self.points}
        for axis, at in self.split(first, self.points).items():
            code.do(f"store i64 {at}, ptr {slots[axis]}")
        with code.count(0, count, 1) as row:
            here: dict[Axis, Bound] = {a: code.let(f"load i64, ptr {s}") for a, s in slots.items()}
            with self.placed(here, [self.image]):
                address = code.let(f"ptrtoint ptr {self.pointers[self.image]} to i64")
            self._note(self.base_at, row, address)
            for i, place in enumerate(here.values()):
                self._note(self.position_at + 8 * self.room * i, row, place)
            for i, condition in enumerate(self.conditions):
                place = self._along(condition, here, condition.at.offset)
                self._note(self.border_at + 8 * self.room * i, row, place)
            self._advance(slots, here)

    def _note(self, line: int, row: str, value: Bound) -> None:
        self.code.do(f"store i64 {value}, ptr {self._scratch(line, row)}")

    def _along(self, condition: Inside, at: dict[Axis, Bound], start: DimLike) -> Bound:
        """The part of a condition's position that some axes make up."""
        code = self.code
        total: Bound = int(start) if is_static(start) else self.size(start)
        for axis, place in at.items():
            step = condition.at.coefficient(axis)
            if step != 0:
                factor: Bound = int(step) if is_static(step) else self.size(step)
                total = code.i64("add", total, code.i64("mul", place, factor))
        return total

    def _advance(self, slots: dict[Axis, str], at: dict[Axis, Bound]) -> None:
        """The next place: the last axis counts, and carries."""
        code, carry = self.code, "true"
        for axis in reversed(list(slots)):
            more = code.i64("add", at[axis], 1)
            is_over = code.let(f"icmp eq i64 {more}, {self.points[axis]}")
            turned = code.let(f"select i1 {is_over}, i64 0, i64 {more}")
            code.do(f"store i64 {code.let(f'select i1 {carry}, i64 {turned}, i64 {at[axis]}')}, "
                    f"ptr {slots[axis]}")  # fmt: skip
            carry = code.let(f"and i1 {carry}, {is_over}")

    def _taps(self, axes: list[Axis], at: dict[Axis, Bound], count: Bound, number: str) -> None:
        """Of each tap, its address in the window of every place."""
        code = self.code
        if axes:
            with code.count(0, self.size(axes[0].extent), 1) as tap:
                self._taps(axes[1:], {**at, axes[0]: tap}, count, number)
            return
        offset: Bound = 0
        for axis, tap in at.items():
            step = self.strides[self.image].get(axis, 0)
            offset = code.i64("add", offset, code.i64("mul", tap, step))
        width = self.image.dtype.itemsize
        moved = code.splat(code.i64("mul", offset, width), DType.U64)
        parts = [code.splat(self._along(c, at, 0), DType.U64) for c in self.conditions]
        line = code.i64("mul", code.let(f"load i64, ptr {number}"), self.room)
        with code.count(0, count, code.lanes) as row:
            address = load(code, DType.U64, self._scratch(self.base_at, row)) + moved
            for i, (condition, part) in enumerate(zip(self.conditions, parts)):
                address = self._bordered(address, condition, part, i, row)
            store(code, address, DType.U64, self._scratch(0, code.i64("add", line, row)))
        done = code.i64("add", code.let(f"load i64, ptr {number}"), 1)
        code.do(f"store i64 {done}, ptr {number}")

    def _bordered(self, address: Vec, condition: Inside, part: Vec, number: int, row: str) -> Vec:
        """The address, or that of the zeros; a position before the image is a large number."""
        code = self.code
        place = load(code, DType.U64, self._scratch(self.border_at + 8 * self.room * number, row))
        low, high = (code.splat(self.size(d), DType.U64) for d in (condition.low, condition.high))
        zeros = code.let(f"ptrtoint ptr {self._scratch(self.zeros_at)} to i64")
        is_inside = (place + part - low) < (high - low)
        return address.where(is_inside, code.splat(zeros, DType.U64))

    def row_at(self, m: str, first: Bound) -> dict[Axis, Bound]:
        if len(self.points) == 1:
            return {self.contract.rows: m}
        row = self.code.i64("sub", m, first)
        lines = [self.position_at + 8 * self.room * i for i in range(len(self.points))]
        return {
            axis: self.code.let(f"load i64, ptr {self._scratch(line, row)}")
            for axis, line in zip(self.points, lines)
        }

    # -- sums -----------------------------------------------------------------------------------

    def _line(self, panel: str) -> Bound:
        """Where a panel of kernels is, in lines."""
        code = self.code
        before = code.i64("mul", self.joined(self.packed), self.num_panels)
        return code.i64("mul", code.i64("add", before, panel), self.num_taps * self.steps)

    def _sum(self, first: str, end: Bound, panel: str) -> None:
        """All inner blocks: some whole taps, or a part of the channels of one."""
        code, steps, taps = self.code, self.steps, self.num_taps
        line = self._line(panel)
        if steps <= INNER_BLOCK:
            some = max(1, INNER_BLOCK // steps)
            with code.count(0, taps, some) as tap:
                count = code.least(some, code.i64("sub", taps, tap))
                self._block(first, end, line, (tap, count, 0, steps))
            return
        with code.count(0, taps, 1) as tap, code.count(0, steps, INNER_BLOCK) as start:
            count = code.least(INNER_BLOCK, code.i64("sub", steps, start))
            self._block(first, end, line, (tap, 1, start, count))

    def _block(
        self, first: str, end: Bound, line: Bound, part: tuple[Bound, Bound, Bound, Bound]
    ) -> None:
        code, (tap, taps, start, count) = self.code, part
        step = code.i64("add", code.i64("mul", tap, self.steps), start)
        is_first = code.let(f"icmp eq i64 {step}, 0")
        lines = code.i64("mul", code.i64("add", line, step), self.tiling.columns)
        right = advanced(code, self.panels, lines, self.contract.right.dtype)
        across = self.strides[self.image].get(self.contract.inner[-1], 0)
        given = f"i64 {self.room}, i64 {taps}, i64 {start}, i64 {across}, ptr {right}, i64 {count}"
        table = code.i64("mul", tap, self.room)
        rows = code.i64("sub", end, first)
        for size, row in self._tiles(rows):
            name = _tile(self.contract, self.tiling, code, size, across == 1)
            places = self._scratch(0, code.i64("add", table, row))
            sums = self.sums_at(row)
            code.do(f"call void @{name}(ptr {places}, {given}, ptr {sums}, i1 {is_first})")

    def _tiles(self, rows: Bound) -> Iterator[tuple[int, str]]:
        """Loops over all rows of a block, by the largest tile that fits."""
        code = self.code
        at: Bound = 0
        for size in self.tiling.rows:
            tiles = code.let(f"udiv i64 {code.i64('sub', rows, at)}, {size}")
            until = code.i64("add", at, code.i64("mul", tiles, size))
            with code.count(at, until, size) as row:
                yield size, row
            at = until


class _ByItself(_Points):
    """Each channel by itself: columns of the image times columns of the kernels."""

    def _line_length(self) -> int:
        channels = self.contract.columns.extent
        assert is_static(channels)
        return channels

    def _sum(self, first: str, end: Bound, panel: str) -> None:
        code, columns = self.code, self.tiling.columns
        lines = code.i64("mul", self._line(panel), columns)
        right = advanced(code, self.panels, lines, self.contract.right.dtype)
        start = code.i64("mul", panel, columns)
        left = code.i64("sub", self.n, start)
        given = f"i64 {self.room}, i64 {self.num_taps}, i64 {start}, i64 {left}, ptr {right}"
        for size, row in self._tiles(code.i64("sub", end, first)):
            args = f"ptr {self._scratch(0, row)}, {given}, ptr {self.sums_at(row)}"
            kinds = (True,) if code.isa.has_masks else (False, True)
            for is_edge in kinds:
                order = "slt" if is_edge else "sge"
                name = _lines(self.contract, self.tiling, code, size, is_edge)
                if len(kinds) == 1:
                    code.do(f"call void @{name}({args})")
                    continue
                with code.when(code.let(f"icmp {order} i64 {left}, {columns}")):
                    code.do(f"call void @{name}({args})")


def _tile(contract: Contract, tiling: Tiling, code: Code, rows: int, is_near: bool) -> str:
    """The name of a tile's function, which is shared."""
    kinds = contract.left.dtype, contract.right.dtype, sums_dtype(contract)
    words = ["points", *(k.value for k in kinds), str(tiling.columns)]
    name = ".".join([*words, *([] if is_near else ["apart"]), f"tile{rows}"])
    if name not in code.shared:
        inner = Code(tiling.lanes, code.isa, code.shared)
        tile = _PointTile(Kinds.of(contract), tiling, inner, rows)
        if is_near:
            tile.step = 1
        code.shared[name] = tile.text(name)
    return name


def _lines(contract: Contract, tiling: Tiling, code: Code, rows: int, is_edge: bool) -> str:
    """The name of the function of a tile of channels by themselves, which is shared."""
    kinds = contract.left.dtype, contract.right.dtype, sums_dtype(contract)
    words = ["lines", *(k.value for k in kinds), str(tiling.columns)]
    name = ".".join([*words, f"tile{rows}{'.edge' if is_edge else ''}"])
    if name not in code.shared:
        inner = Code(tiling.lanes, code.isa, code.shared)
        tile = _LineTile(Kinds.of(contract), tiling, inner, rows)
        code.shared[name] = tile.text(name, is_edge)
    return name


class _LineTile(Chains):
    """sums[rows, columns] = Σ place[tap, row][column] · b[tap, column] over taps."""

    ARGS = (
        "ptr noalias %table, i64 %room, i64 %taps, i64 %start, i64 %left, ptr noalias %b, "
        "ptr noalias %sums"
    )

    def text(self, name: str, is_edge: bool) -> str:
        code, (left, _) = self.code, self.kinds
        lanes, vectors = self.tiling.lanes, self.tiling.vectors
        masks = [below(code, code.i64("sub", "%left", j * lanes)) if is_edge else None
                 for j in range(vectors)]  # fmt: skip
        self.begin()
        with code.count(0, "%taps", 1) as tap:
            line = advanced(code, "%table", code.i64("mul", tap, "%room"), DType.I64)
            right, sums = self._right(tap), self.kept()
            for i, run in enumerate(sums):
                found = code.let(f"load ptr, ptr {advanced(code, line, i, DType.I64)}")
                place = advanced(code, found, "%start", left)
                places = [advanced(code, place, j * lanes, left) for j in range(vectors)]
                seen = [load(code, left, p, 1, m).to(self.sums) for p, m in zip(places, masks)]
                sums[i] = [multiply_add(x, r, s) for x, r, s in zip(seen, right, run)]
            self.keep(sums)
        self.write()
        code.do("ret void")
        return code.function(f"define internal void @{name}({self.ARGS}) noinline")

    def write(self) -> None:
        code, columns = self.code, self.tiling.columns
        for i, run in enumerate(self.kept()):
            for j, value in enumerate(run):
                place = advanced(code, "%sums", i * columns + j * code.lanes, self.sums)
                store(code, value, self.sums, place)


class _PointTile(Chains):
    """sums[rows, columns] = or += Σ place[tap, row][k] · b[tap, k, column], over taps and k."""

    ARGS = (
        "ptr noalias %table, i64 %room, i64 %taps, i64 %start, i64 %step, ptr noalias %b, "
        "i64 %count, ptr noalias %sums, i1 %is_first"
    )

    def text(self, name: str) -> str:
        code, (left, right) = self.code, self.kinds
        self.begin()
        begun = code.i64("mul", "%start", self.step)
        size = code.i64("mul", "%count", self.tiling.columns)
        with code.count(0, "%taps", 1) as tap:
            line = advanced(code, "%table", code.i64("mul", tap, "%room"), DType.I64)
            places = [advanced(code, line, i, DType.I64) for i in range(len(self.slots))]
            found = [code.let(f"load ptr, ptr {p}") for p in places]
            self.rows = [advanced(code, p, begun, left) for p in found]
            self.right = advanced(code, "%b", code.i64("mul", tap, size), right)
            self.run("%count", UNROLL)
        self.finish()
        return code.function(f"define internal void @{name}({self.ARGS}) noinline")
