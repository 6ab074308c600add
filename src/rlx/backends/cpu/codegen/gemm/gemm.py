"""Blocked GEMM of a contraction: register tiles over packed panels, then the epilogue.

    for each unit: a block of rows of one panel
      for each block of inner steps
        for each tile of rows: a chain of multiply-adds in registers, added to the block's sums
      for each row: the epilogue on the sums

A sum is the chain of one inner block after the other, whatever the tile, the unit or the thread
it is computed in, so its bits depend on the extents alone. The sums of a unit stay on the stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import (
    ContractionBuilder,
    below,
    require_evaluable,
)
from rlx.backends.cpu.codegen.gemm.register_tile import edges, rows_function, tile_function
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.elementwise import cast, is_native
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Source
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import (
    BLOCKS_PER_POLL,
    ROW_BLOCK,
    Tiling,
    check,
    group_of,
    num_units,
    packed_batch,
    sums_dtype,
    table_bytes,
)
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract, through
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Accumulator, Axis, Expr, Load, postorder


def legal(contract: Contract) -> Contract:
    """The contraction in ops that the CPU has; tilings are chosen for this one."""
    return through(contract, lambda kernel: decomposed(kernel, lambda n: is_native(n.op.name)))


@dataclass(frozen=True, slots=True)
class Gemm:
    """A legal contraction with its tiling. Its buffers are the operands, the results, and the
    packed panels if any. The sums over the last inner axis are multiplied by the factor, which
    varies with the other inner axes and the columns."""

    contract: Contract
    tiling: Tiling
    isa: Isa
    factor: Expr | None = None

    def __post_init__(self) -> None:
        """Refuse what there is no code for."""
        check(self.contract, self.tiling, self.isa)
        factors = [] if self.factor is None else [self.factor]
        require_evaluable(self.contract, [*(s.value for s in self.contract.stores), *factors])

    @property
    def num_units(self) -> DimLike:
        return num_units(self.contract, self.tiling)

    @property
    def scratch(self) -> DimLike:
        return table_bytes(self.contract, self.tiling)

    def source(self, name: str) -> Source:
        """Its code."""
        work = _Gemm(self.contract, self.tiling, self.isa, self.factor)
        work.write()
        return work.source(name)


class EpilogueBuilder(ContractionBuilder):
    """The epilogue of a block, once its sums are complete."""

    kind: DType
    """The dtype of the sums."""
    sums: str
    n: str
    total: Vec

    def sums_at(self, row: Bound) -> str:
        """The address of the sums of a row of the block."""
        offset = self.code.i64("mul", row, self.tiling.columns)
        return advanced(self.code, self.sums, offset, self.kind)

    def row_at(self, m: str, first: Bound) -> dict[Axis, Bound]:
        """The position of a row, in a block that begins with `first`."""
        del first
        return {self.contract.rows: m}

    def epilogue(self, first: Bound, end: Bound, column: str) -> None:
        """The results of a block, row by row; what is invariant along a row is hoisted."""
        code, contract, lanes = self.code, self.contract, self.tiling.lanes
        stop = code.least(self.n, code.i64("add", column, self.tiling.columns))
        whole = column
        with code.count(first, end, 1) as m, self.placed(self.row_at(m, first)):
            sums = self.sums_at(code.i64("sub", m, first))
            self.evaluate((n for n in contract.epilogue if contract.columns not in n.free), None)
            if not code.isa.has_masks:
                length = code.integer("and", code.i64("sub", stop, column), -lanes)
                whole = code.integer("add", column, length)
                with code.count(column, whole, lanes) as n:
                    self._vector(n, column, sums, None)
            with code.count(whole, stop, lanes) as n:
                self._vector(n, column, sums, below(code, code.i64("sub", stop, n)))

    def _vector(self, n: str, column: str, sums: str, mask: Vec | None) -> None:
        """The results at some columns of a row."""
        code, contract = self.code, self.contract
        place = advanced(code, sums, code.i64("sub", n, column), self.kind)
        self.total = load(code, self.kind, place)
        with self.placed({contract.columns: n}):
            self.evaluate(contract.epilogue, mask)
            for s in contract.stores:
                value, dtype = self.values[s.value], self.dtype_of(s)
                store(code, value, dtype, self.pointers[s], self.across(s), mask)

    def value(self, node: Expr, mask: Vec | None) -> Vec:
        if isinstance(node, Accumulator):
            return cast(self.total, node.dtype)
        return super().value(node, mask)


class _Gemm(EpilogueBuilder):
    def __init__(
        self, contract: Contract, tiling: Tiling, isa: Isa, factor: Expr | None = None
    ) -> None:
        super().__init__(contract, tiling, isa)
        factors = [] if factor is None else [factor]
        roots = [contract.left, *(s.value for s in contract.stores), *factors]
        self.open_loads(roots if tiling.has_panels else [*roots, contract.right])
        for s in contract.stores:
            self.open(s, len(contract.operands) + s.result)
        behind = len(contract.operands) + len(contract.results)
        self.panels = self.buffer(behind) if tiling.has_panels else ""
        self.batch = self.extents(contract.batch)
        self.packed = {a: self.batch[a] for a in packed_batch(contract)}
        self.m, self.n = self.size(contract.rows.extent), self.size(contract.columns.extent)
        self.inner = self.extents(contract.inner)
        self.num_panels = self.parts(self.n, tiling.columns)
        self.row_block = self.size(tiling.row_block)
        self.num_row_blocks = self.parts(self.m, self.row_block)
        self.group = self.size(group_of(contract, tiling))
        self._count_inner_blocks()
        self.kind = sums_dtype(contract)
        self.factor = tuple(postorder(factors))
        self.factors = (
            self.code.slot(f"[{tiling.columns} x {ELEMENT[self.kind]}]") if factor else ""
        )
        size = ROW_BLOCK * tiling.columns
        self.sums = self.code.slot(f"[{size} x {ELEMENT[self.kind]}]")
        if tiling.has_table:
            self._write_table()

    def _write_table(self) -> None:
        """The table of the right operand's inner-step offsets; from then on they are one axis."""
        right = self.contract.right
        assert isinstance(right, Load)
        number = self.code.slot("i64")
        self.code.store_scalar(number, 0, DType.I64)
        self._write_places(list(self.inner), 0, number)
        strides = self.strides[right].items()
        self.strides[right] = {a: s for a, s in strides if a not in self.inner}

    def _write_places(self, axes: list[Axis], place: Bound, number: str) -> None:
        code, right = self.code, self.contract.right
        assert isinstance(right, Load)
        if axes:
            stride = self.strides[right].get(axes[0], 0)
            with code.count(0, self.inner[axes[0]], 1) as at:
                moved = code.i64("add", place, code.i64("mul", at, stride))
                self._write_places(axes[1:], moved, number)
            return
        step = code.load_scalar(number, DType.I64)
        code.store_scalar(advanced(code, "%scratch", step, DType.I64), place, DType.I64)
        code.store_scalar(number, code.i64("add", step, 1), DType.I64)

    def _count_inner_blocks(self) -> None:
        """Blocks are of the last inner axis; at least one, so that empty sums are written, too."""
        code = self.code
        *outer, last = self.inner.values()
        self.steps = self.product(self.inner.values())
        word = self.tiling.dot_group
        self.depth = (
            self.steps if word == 1 else code.i64("mul", self.parts(self.steps, word), word)
        )
        if self.tiling.has_table:
            outer, last = [], self.steps
        is_empty = code.compare("eq", self.steps, 0)
        self.last = code.choose(is_empty, 0, last)
        self.blocks_per_turn = code.most(self.parts(self.last, self.tiling.inner_block), 1)
        self.num_blocks = code.most(self.product([self.blocks_per_turn, *outer]), 1)

    def write(self) -> None:
        units = self.product([*self.batch.values(), self.num_row_blocks, self.num_panels])
        with self.code.count("%start", self.code.least("%stop", units), 1) as unit:
            self._unit(unit)

    def _unit(self, unit: str) -> None:
        code = self.code
        turn, panel, block = self._numbers(unit)
        first = code.integer("mul", block, self.row_block)
        end = code.least(self.m, code.i64("add", first, self.row_block))
        column = code.integer("mul", panel, self.tiling.columns)
        with self.placed(self.split(turn, self.batch)):
            with code.count(0, self.num_blocks, 1, BLOCKS_PER_POLL) as number:
                self._inner_block(number, first, end, column)
            self.epilogue(first, end, column)

    def _numbers(self, unit: str) -> tuple[str, str, str]:
        """The batch index, the panel, and the row block of a unit."""
        code = self.code
        turn, rest = self.divided(unit, code.i64("mul", self.num_row_blocks, self.num_panels))
        group, rest = self.divided(rest, code.i64("mul", self.group, self.num_panels))
        before = code.integer("mul", group, self.group)
        count = code.least(self.group, code.i64("sub", self.num_row_blocks, before))
        panel, block = self.divided(rest, count)
        return turn, panel, code.integer("add", before, block)

    # -- sums -----------------------------------------------------------------------------------

    def _inner_block(self, number: str, first: str, end: Bound, column: str) -> None:
        """Add one inner block to the sums of the rows from first to end."""
        code, contract = self.code, self.contract
        turn, start = self._outer_position(number)
        turning = () if self.tiling.has_table else contract.inner[:-1]
        at = self.split(turn, {a: self.inner[a] for a in turning})
        count = code.least(code.i64("sub", self.last, start), self.tiling.inner_block)
        moving = [x for x in (contract.left, contract.right, *self.factor) if x in self.pointers]
        positions = {**at, contract.inner[-1]: start, contract.columns: column}
        with self.placed(positions, [x for x in moving if isinstance(x, Load)]):
            step = code.i64("add", code.i64("mul", turn, self.last), start)
            self._write_factors(column)
            args = f"{self._right(column, step)}, i64 {count}"
            self._rows(first, end, args, code.compare("eq", number, 0))

    def _write_factors(self, column: str) -> None:
        """Stage the factors of this block's columns contiguously."""
        code, lanes = self.code, self.tiling.lanes
        for j in range(self.tiling.vectors if self.factor else 0):
            start = code.i64("add", column, j * lanes)
            mask = below(code, code.i64("sub", self.n, start))
            columns = self.contract.columns
            with self.moved({columns: j * lanes}, {columns: start}):
                self.evaluate(self.factor, mask)
                place = advanced(code, self.factors, j * lanes, self.kind)
                store(code, self.values[self.factor[-1]], self.kind, place)

    def _outer_position(self, number: str) -> tuple[Bound, Bound]:
        """A block's position on the outer inner axes, and its first step of the last one."""
        code, size = self.code, self.tiling.inner_block
        if len(self.inner) == 1 or self.tiling.has_table:
            return 0, code.i64("mul", number, size)
        turn = code.integer("div", number, self.blocks_per_turn, DType.U64)
        block = code.integer("rem", number, self.blocks_per_turn, DType.U64)
        return turn, code.i64("mul", block, size)

    def _right(self, column: str, step: Bound) -> str:
        """The address of the right operand's columns at an inner step, and the stride of inner
        steps."""
        code, right, width = self.code, self.contract.right, self.tiling.columns
        if isinstance(right, Load) and self.tiling.has_table:
            table = advanced(code, "%scratch", step, DType.I64)
            return f"ptr {self.pointers[right]}, ptr {table}"
        if isinstance(right, Load) and not self.tiling.has_panels:
            across = self.strides[right].get(self.contract.inner[-1], 0)
            return f"ptr {self.pointers[right]}, i64 {across}"
        before = code.i64("mul", self.joined(self.packed), self.num_panels)
        # a panel's index times its width is its first column
        lines = code.i64("mul", code.i64("add", code.i64("mul", before, width), column), self.depth)
        place = code.i64("add", lines, code.i64("mul", step, width))
        return f"ptr {advanced(code, self.panels, place, right.dtype)}, i64 {width}"

    def _rows(self, first: str, end: Bound, args: str, is_first: str) -> None:
        """Every row by the largest tile that fits."""
        code, contract, left = self.code, self.contract, self.contract.left
        assert isinstance(left, Load)
        row, step = (self.strides[left].get(a, 0) for a in (contract.rows, contract.inner[-1]))
        columns = code.i64("sub", self.n, self.at[contract.columns])
        factor = f", ptr {self.factors}" if self.factor else ""
        with self.placed({contract.rows: first}, [left]):
            given = f"ptr {self.pointers[left]}, i64 {row}, i64 {step}, {args}, i64 {columns}"
            given += f", ptr {self.sums}, i1 {is_first}{factor}"
            self._call(given, code.i64("sub", end, first))

    def _call(self, args: str, rows: Bound) -> None:
        code, tiling, has_factor = self.code, self.tiling, bool(self.factor)
        kinds = edges(tiling, code.isa)
        if tiling.rows == (self.contract.rows.extent,) and len(kinds) == 1:
            tile = tile_function(self.contract, tiling, code, tiling.rows[0], kinds[0], has_factor)
            code.do(f"call void @{tile}({args})")
            return
        name = rows_function(self.contract, tiling, code, has_factor)
        code.do(f"call void @{name}({args}, i64 {rows})")
