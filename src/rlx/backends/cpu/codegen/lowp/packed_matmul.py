"""GEMM with quantised weights: x · Wᵀ where a row of W is blocks of bytes.

Weights are streamed as they are stored. A worker takes a few rows of W at a time, decodes a piece
of each into scratch, and multiplies it by the same piece of all its rows of x: so memory traffic is
the quantised bytes, once for every `ROWS` rows of x. Each sum has a fixed order, along K in vectors
and at the end over their lanes, whatever is computed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import load, store
from rlx.backends.cpu.codegen.lowp.block_decode import Block, unpack
from rlx.backends.cpu.codegen.lowp.block_scaled_decode import BlockScaledWeights
from rlx.backends.cpu.codegen.lowp.decode_plan import decode_plan
from rlx.backends.cpu.codegen.lowp.linear_step import LinearStep
from rlx.backends.cpu.codegen.lowp.streamed import streams
from rlx.backends.cpu.codegen.math.storage_types import to_memory
from rlx.backends.cpu.library.strided_copy import (
    BufferView,
    at,
    axis_slice,
    copy_task,
    masked_lane_stride,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import near_fma
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task, TaskKind
from rlx.backends.cpu.schedule.contraction import contraction_tasks
from rlx.core.dim import DimLike, dim_min, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.lower.contract import lower_contract
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.refusal import Refusal
from rlx.ops.quant.gguf import SCHEMES

COLUMNS = 4
"""Rows of W that are multiplied at once."""
PIECE = 256
"""Weights of each that are decoded at once: with x's they stay in the L1 cache."""
ROWS = 64
"""Rows of x that reuse what was decoded."""
TILE = 4
"""Rows of x whose sums are in registers."""
GEMV_MAX_ROWS, GEMV_MAX_ROWS_LARGE_BLOCKS = 4, 2
"""Rows of W whose blocks are decoded together in GEMV, and of large blocks, which need more
registers."""
WEIGHTS_PER_NS = 8
FLOPS_PER_NS = 48
GIVEN, PACKED = 0, 1
"""Buffers of the product: x in row-major form, W; then the operands of decoding, and the result."""
F32, F64 = DType.F32, DType.F64

Unpack = Callable[[Writer, Bound, Bound, Bound, str], None]
"""Emits the decoding of a row of W: its first weight, how many, and the destination."""


Open = Callable[[Writer, Bound, Bound], Callable[[int], Vec]]
"""Opens a block, given by its row of W and its index: what yields its weights from any on."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks whose weights come as vectors, which need not be staged."""

    weights: int
    open: Open


@dataclass(frozen=True, slots=True)
class Weights:
    """How W is decoded: the dtype of its weights, and the buffers of its operands."""

    dtype: DType
    buffers: tuple[Buffer, ...]
    unpack: Unpack
    blocks: Blocks | None
    """Where vectors of weights are as wide as those of sums."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of x that are multiplied by the same rows of W, which are those from the base on."""

    first: Bound
    count: Bound
    base: Bound


@dataclass(frozen=True, slots=True)
class Product(LinearStep):
    """x[m, k] · W[n, k]ᵀ."""

    weights: Weights

    @property
    def sums(self) -> DType:
        return F64 if self.step.node.inputs[0].shape.dtype is F64 else F32

    @property
    def lanes(self) -> int:
        return self.step.isa.lanes(self.sums)

    @property
    def row(self) -> DimLike:
        """Row stride of x: whole vectors, zero-padded."""
        return (self.k + self.lanes - 1) // self.lanes * self.lanes

    @property
    def rows(self) -> DimLike:
        return dim_min(ROWS, self.m)

    @property
    def runs(self) -> DimLike:
        """An upper bound of the runs of rows."""
        return (self.m + ROWS - 1) // ROWS

    @property
    def known_rows(self) -> int | None:
        """Static rows of a run, of all of them where there are several."""
        return int(self.m) if is_static(self.m) else None

    @property
    def more(self) -> tuple[Buffer, ...]:
        """The buffers with the permutation of rows, if there is one."""
        return ()

    def run(self, w: Writer, number: Bound) -> Run:
        first = w.code.i64("mul", number, ROWS)
        return Run(first, w.code.least(ROWS, w.code.i64("sub", w.size(self.m), first)), 0)

    def place(self, w: Writer, row: Bound, order: int) -> Bound:
        """Which row of x and of the result a row is; `order` is the first of `more`."""
        return row

    @property
    def units(self) -> tuple[DimLike, DimLike]:
        """Runs of rows of x, by blocks of rows of W."""
        return self.runs, (self.n + COLUMNS - 1) // COLUMNS

    @property
    def width(self) -> int:
        """Row stride of decoded weights: a vector more than a piece, for the zeros after the
        last."""
        return PIECE + self.lanes

    @property
    def pieces_bytes(self) -> int:
        return COLUMNS * self.width * self.weights.dtype.itemsize

    # -- tasks ----------------------------------------------------------------------------------

    def kernel_sequence(self, name: str) -> Schedule[Task]:
        x_bytes = self.m * self.row * self.sums.itemsize
        return Schedule((self.row_major(f"{name}.x"), self.multiply(name)), (x_bytes,))

    def row_major(self, name: str) -> Task:
        """x in the dtype of the sums, row-major, zero-padded."""
        grain = self.step.machine.units_per_task(self.m, self.m * self.row // 8)
        given = (Buffer("operand", 0), Buffer("temp", 0), *self.more)
        return Task(TaskCode(name, self.row_major_source), given, self.m, grain)

    def multiply(self, name: str) -> Task:
        runs, groups = self.units
        given = (Buffer("temp", 0), *self.weights.buffers, Buffer("result", 0), *self.more)
        units = runs * groups
        grain = self.step.machine.units_per_task(units, self.nanoseconds)
        scratch = self.pieces_bytes + self.rows * COLUMNS * self.step.isa.vector_bytes
        return Task(
            TaskCode(name, self.source), given, units, grain, scratch,
            summary=f"GEMM with quantised weights, {PIECE} of {COLUMNS} columns at a time",
            kind=TaskKind.GEMM,
        )  # fmt: skip

    @property
    def nanoseconds(self) -> DimLike:
        weights = self.n * self.k
        return weights * self.units[0] // WEIGHTS_PER_NS + 2 * self.m * weights // FLOPS_PER_NS

    # -- code -----------------------------------------------------------------------------------

    def row_major_source(self, name: str) -> Source:
        w = Writer(self.step.isa, self.lanes)
        x, dtype = self.step.operands[0], self.step.node.inputs[0].shape.dtype
        code, rows = w.code, w.code.least("%stop", w.size(self.m))
        with code.count("%start", rows, 1) as row:
            from_ = w.split(self.place(w, row, 2), x.dims[:-1])
            base = at(w, w.size(x.offset), w.place(axis_slice(x, 0, -1), from_))
            to = code.i64("mul", row, w.size(self.row))
            with code.count(0, w.size(self.k), self.lanes) as i:
                left = code.splat(code.i64("sub", w.size(self.k), i), DType.I64)
                place = at(w, base, code.i64("mul", i, w.size(x.strides[-1])))
                mask = code.iota(DType.I64) < left
                by = masked_lane_stride(w, x.strides[-1])
                value = w.load(0, place, dtype, by, mask)
                w.store(value, 1, at(w, to, i), self.sums)
        return Source(w.function(name), w.sizes)

    def source(self, name: str) -> Source:
        w = Writer(self.step.isa, self.lanes)
        runs, groups = self.units
        stop = w.code.least("%stop", w.size(runs * groups))
        with w.code.count("%start", stop, 1) as unit:
            run, group = w.split(unit, (runs, groups))
            self.unit(w, self.run(w, run), w.code.i64("mul", group, COLUMNS))
        return Source(w.function(name), w.sizes)

    def unit(self, w: Writer, run: Run, column: Bound) -> None:
        code, known = w.code, self.known_rows
        columns = code.least(COLUMNS, code.i64("sub", w.size(self.n), column))
        sums = code.advanced("%scratch", self.pieces_bytes, DType.U8)
        with code.count(0, code.i64("mul", run.count, COLUMNS), 1) as i:
            self.put(w, code.const(0.0, self.sums), sums, i)
        if self.weights.blocks is None or (known is not None and known > TILE):
            self.pieces(w, run, column, columns, sums)
        elif known is not None:
            self.gemv(w, self.weights.blocks, known, run, column, sums)
        else:
            one = code.compare("eq", run.count, 1)
            with code.when(one):
                self.gemv(w, self.weights.blocks, 1, run, column, sums)
            with code.when(code.compare("gt", run.count, 1)):
                self.pieces(w, run, column, columns, sums)
        self.results(w, run, column, columns, sums)

    # -- GEMV: weights are multiplied as they are decoded ------------------------------------------

    def gemv(
        self, w: Writer, blocks: Blocks, rows: int, run: Run, column: Bound, sums: str
    ) -> None:
        """The sums of a few rows; a column past the last repeats it."""
        last = w.code.i64("sub", w.size(self.n), 1)
        width = GEMV_MAX_ROWS if blocks.weights < PIECE else GEMV_MAX_ROWS_LARGE_BLOCKS
        for c in range(0, COLUMNS, width):
            columns = [w.code.least(at(w, column, c + i), last) for i in range(width)]
            own = [at(w, run.base, c) for c in columns]
            slots = self.block_sums(w, blocks, rows, run.first, own)
            for number, slot in enumerate(slots):
                r, i = divmod(number, width)
                self.put(w, self.load_sum(w, slot), sums, r * COLUMNS + c + i)

    def block_sums(
        self, w: Writer, blocks: Blocks, rows: int, row: Bound, columns: list[Bound]
    ) -> list[str]:
        code, width, kind = w.code, len(columns), w.code.vector(ELEMENT[self.sums])
        slots = [code.slot(kind) for _ in range(rows * width)]
        code.do(*(f"store {kind} zeroinitializer, ptr {s}" for s in slots))
        with code.count(0, w.size(self.k // blocks.weights), 1) as b:
            opened = [blocks.open(w, c, b) for c in columns]
            first = code.i64("mul", b, blocks.weights)
            for k in range(0, blocks.weights, self.lanes):
                packed = [weights(k) for weights in opened]
                for r in range(rows):
                    x = self.x(w, at(w, row, r), at(w, first, k))
                    for c, weight in enumerate(packed):
                        self.store_sum(
                            w,
                            near_fma(x, weight, self.load_sum(w, slots[r * width + c])),
                            slots[r * width + c],
                        )
        return slots

    # -- many rows: a piece is decoded, and multiplied by all of them ------------------------------

    def pieces(self, w: Writer, run: Run, column: Bound, columns: Bound, sums: str) -> None:
        code = w.code
        with code.count(0, w.size(self.k), PIECE) as first:
            count = code.least(PIECE, code.i64("sub", w.size(self.k), first))
            self.unpacked(w, at(w, run.base, column), columns, first, count)
            self.tiles(w, run.first, run.count, first, count, sums)

    def unpacked(
        self, w: Writer, column: Bound, columns: Bound, first: Bound, count: Bound
    ) -> None:
        """A piece of each row of W. Those past the last are multiplied like the others, and their
        sums not stored."""
        code, kind = w.code, ELEMENT[self.weights.dtype]
        is_whole = is_static(self.k) and int(self.k) % self.lanes == 0
        with code.count(0, columns, 1) as c:
            place = code.i64("mul", c, self.width)
            to = code.let(f"getelementptr {kind}, ptr %scratch, i64 {place}")
            if not is_whole:
                behind = code.integer("and", count, -self.lanes)
                end = code.let(f"getelementptr {kind}, ptr {to}, i64 {behind}")
                store(code, code.const(0.0, self.weights.dtype), self.weights.dtype, end)
            self.weights.unpack(w, code.i64("add", column, c), first, count, to)

    def tiles(
        self, w: Writer, row: Bound, rows: Bound, first: Bound, count: Bound, sums: str
    ) -> None:
        """The piece times that of every row of x."""
        whole: Bound = 0
        if self.known_rows is None or self.known_rows >= TILE:
            whole = w.code.integer("and", rows, -TILE)
            with w.code.count(0, whole, TILE) as i:
                self.tile(w, TILE, row, i, first, count, sums)
        with w.code.count(whole, rows, 1) as i:
            self.tile(w, 1, row, i, first, count, sums)

    def tile(
        self, w: Writer, height: int, row: Bound, i: Bound, first: Bound, count: Bound, sums: str
    ) -> None:
        code, start = w.code, w.code.i64("mul", i, COLUMNS)
        slots = [code.slot(code.vector(ELEMENT[self.sums])) for _ in range(height * COLUMNS)]
        for number, slot in enumerate(slots):
            self.store_sum(w, self.get(w, sums, at(w, start, number)), slot)
        with code.count(0, count, self.lanes) as k:
            packed = [self.weight(w, c, k) for c in range(COLUMNS)]
            for r in range(height):
                x = self.x(w, at(w, row, i, r), at(w, first, k))
                for c, weight in enumerate(packed):
                    slot = slots[r * COLUMNS + c]
                    self.store_sum(w, near_fma(x, weight, self.load_sum(w, slot)), slot)
        for number, slot in enumerate(slots):
            self.put(w, self.load_sum(w, slot), sums, at(w, start, number))

    def x(self, w: Writer, row: Bound, k: Bound) -> Vec:
        return w.load(GIVEN, at(w, w.code.i64("mul", row, w.size(self.row)), k), self.sums)

    def load_sum(self, w: Writer, slot: str) -> Vec:
        kind = w.code.vector(ELEMENT[self.sums])
        return w.code.vector_of(w.code.let(f"load {kind}, ptr {slot}"), self.sums)

    def store_sum(self, w: Writer, value: Vec, slot: str) -> None:
        w.code.do(f"store {value.type} {value.text}, ptr {slot}")

    def weight(self, w: Writer, column: int, k: Bound) -> Vec:
        dtype = self.weights.dtype
        place = at(w, k, column * self.width)
        where = w.code.let(f"getelementptr {ELEMENT[dtype]}, ptr %scratch, i64 {place}")
        return load(w.code, dtype, where).to(self.sums)

    def get(self, w: Writer, sums: str, number: Bound) -> Vec:
        kind = w.code.vector(ELEMENT[self.sums])
        where = w.code.let(f"getelementptr {kind}, ptr {sums}, i64 {number}")
        return w.code.vector_of(w.code.let(f"load {kind}, ptr {where}, align 4"), self.sums)

    def put(self, w: Writer, value: Vec, sums: str, number: Bound) -> None:
        where = w.code.let(f"getelementptr {value.type}, ptr {sums}, i64 {number}")
        w.code.do(f"store {value.type} {value.text}, ptr {where}, align 4")

    def results(self, w: Writer, run: Run, column: Bound, columns: Bound, sums: str) -> None:
        code, made = w.code, self.step.results[0]
        dtype, number = self.step.node.shape.dtype, 1 + len(self.weights.buffers)
        with code.count(0, run.count, 1) as i:
            row = self.place(w, at(w, run.first, i), number + 1)
            outer = w.place(self.lead, w.split(row, self.lead.dims))
            with code.count(0, columns, 1) as c:
                lanes = self.get(w, sums, at(w, c, code.i64("mul", i, COLUMNS)))
                total = to_memory(self.total(lanes), dtype)
                step = code.i64("mul", at(w, column, c), w.size(made.strides[-1]))
                where = w.pointer(number, at(w, outer, step), dtype)
                code.do(
                    f"store {ELEMENT[total.dtype]} {total.lane()}, ptr {where}, "
                    f"align {dtype.itemsize}"
                )

    def total(self, value: Vec) -> Vec:
        """Horizontal sum by recursive halving, broadcast."""
        step = self.lanes // 2
        while step:
            value = value + value.shuffled([i ^ step for i in range(self.lanes)])
            step //= 2
        return value


# -- weights --------------------------------------------------------------------------------------


def make_gguf_matmul(step: Step, name: str) -> Schedule[Task]:
    """Blocks of a GGUF scheme. Strided bytes of a row are compacted first."""
    packed, place = step.operands[1], Buffer("operand", 1)
    if packed.strides[1] == 1:
        return Product(step, gguf_weights(step, packed, place)).kernel_sequence(name)
    compact, temp = Layout.contiguous(packed.dims), Buffer("temp", 1)
    given, to = BufferView(place, packed, DType.U8), BufferView(temp, compact, DType.U8)
    first = copy_task(given, to, step.machine, f"{name}.w")
    rest = Product(step, gguf_weights(step, compact, temp)).kernel_sequence(name)
    return Schedule((first, *rest.tasks), (*rest.temps, product(packed.dims)))


def gguf_weights(step: Step, packed: Layout, place: Buffer) -> Weights:
    scheme, lanes = step.node.attrs["scheme"], step.isa.lanes(F32)
    block_format = SCHEMES[scheme]

    def unpacked(w: Writer, row: Bound, first: Bound, count: Bound, to: str) -> None:
        blocks, passed = (_blocks(w, n, block_format.weights) for n in (count, first))
        where = w.place(packed, [row, w.code.i64("mul", passed, block_format.block_bytes)])
        start, function = w.pointer(PACKED, where, DType.U8), unpack(w.code, scheme, block_format)
        w.code.do(f"call void @{function}(ptr {start}, ptr {to}, i64 {blocks})")

    def opened(w: Writer, row: Bound, number: Bound) -> Callable[[int], Vec]:
        where = w.place(packed, [row, w.code.i64("mul", number, block_format.block_bytes)])
        plan = decode_plan(block_format, block_format.weights, lanes)
        return Block(w.code, plan, w.pointer(PACKED, where, DType.U8)).weights

    is_whole = block_format.weights % lanes == 0 and _has_wide_sums(step)
    fits = is_whole and decode_plan(block_format, block_format.weights, lanes).lanes == lanes
    blocks = Blocks(block_format.weights, opened) if fits else None
    return Weights(F32, (place,), unpacked, blocks)


def _has_wide_sums(step: Step) -> bool:
    """Are sums f32, and vectors wide enough for unrolled blocks?"""
    return step.isa.lanes(F32) >= 8 and step.node.inputs[0].shape.dtype is not F64


def _blocks(w: Writer, weights: Bound, size: int) -> Bound:
    if isinstance(weights, int):
        return weights // size
    return weights if size == 1 else w.code.integer("div", weights, size, DType.U64)


def make_dequant_matmul(step: Step, name: str) -> Schedule[Task]:
    """Block-scaled weights, whose scales and zero points are operands of their own."""
    if not streams(step.node):
        contract = lower_contract(step.node, step.operands, step.results)
        if not isinstance(contract, Refusal):
            return contraction_tasks(contract, step.constants, step.machine, name)
    places = tuple(Buffer("operand", i) for i in range(1, len(step.operands)))
    return Product(step, number_weights(step, places)).kernel_sequence(name)


def number_weights(step: Step, places: tuple[Buffer, ...]) -> Weights:
    given, lanes = BlockScaledWeights(step), step.isa.lanes(F32)
    run = given.run(lanes) if _has_wide_sums(step) and given.compute_dtype is F32 else None

    def opened(w: Writer, row: Bound, number: Bound) -> Callable[[int], Vec]:
        return given.opened(w, row, w.code.i64("mul", number, run or 1), run or 1)

    blocks = Blocks(run, opened) if run is not None else None
    return Weights(given.compute_dtype, places, given.unpack, blocks)
