"""Register tiles of a GEMM: rows by vectors of columns of sums, over a range of inner steps."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.multiply_add import relaxed_multiply_add
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import Tiling, sums_dtype
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Load

UNROLL = 4
"""Unrolled inner steps over packed panels. Otherwise one: LLVM would hoist the later loads, and run
out of registers."""


def inner_unroll(isa: Isa) -> int:
    """Unrolled inner steps over packed panels. LLVM orders WebAssembly by its value stack, not by
    registers: with 4 steps of a tile at once an engine spills, and takes 1.6 times as long."""
    return 1 if isa.is_wasm else UNROLL


def edges(tiling: Tiling, isa: Isa) -> tuple[bool, ...]:
    """Which tile variants there are: packed panels are always whole; unpacked, the last columns are
    masked, and where masks cost nothing, so are all."""
    if tiling.has_panels:
        return (False,)
    return (True,) if isa.has_masks else (False, True)


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the tiles of a GEMM depend on beside its tiling: dtypes, and whether a row's steps are
    strided."""

    left: DType
    right: DType
    sums: DType
    is_strided: bool = False

    @classmethod
    def of(cls, contract: Contract) -> Kinds:
        left = contract.left
        is_strided = isinstance(left, Load) and left.at.coefficient(contract.inner[-1]) != 1
        return cls(left.dtype, contract.right.dtype, sums_dtype(contract), is_strided)

    @property
    def name(self) -> str:
        return f"{self.left.value}.{self.right.value}.{self.sums.value}"


def tile_name(name: str, rows: int, is_edge: bool) -> str:
    return f"{name}.tile{rows}{'.edge' if is_edge else ''}"


def tile_function(
    contract: Contract,
    tiling: Tiling,
    code: Code,
    rows: int,
    is_edge: bool,
    has_factor: bool = False,
) -> str:
    """The name of a tile's function, which is shared: GEMMs that differ in prologue and epilogue
    have the same tiles."""
    kinds, one = Kinds.of(contract), replace(tiling, rows=(rows,), row_block=0)
    name = tile_name(_name(kinds, tiling, has_factor), rows, is_edge)
    code.shared.update(_tile(name, kinds, one, code.isa, is_edge, has_factor))
    return name


def rows_function(contract: Contract, tiling: Tiling, code: Code, has_factor: bool) -> str:
    """The name of the function over any number of rows, each by the largest tile that fits. It
    takes a tile's arguments, and the number of rows."""
    for rows in tiling.rows:
        for is_edge in edges(tiling, code.isa):
            tile_function(contract, tiling, code, rows, is_edge, has_factor)
    kinds, any_block = Kinds.of(contract), replace(tiling, row_block=0)
    name = f"{_name(kinds, tiling, has_factor)}.rows{'.'.join(map(str, tiling.rows))}"
    code.shared.update(_rows(name, kinds, any_block, code.isa, has_factor))
    return name


def _name(kinds: Kinds, tiling: Tiling, has_factor: bool) -> str:
    words = [kinds.name, str(tiling.columns)]
    words += ["panels"] * tiling.has_panels + ["table"] * tiling.has_table
    words += (
        ["apart"] * kinds.is_strided + ["dots"] * (tiling.dot_group > 1) + ["scaled"] * has_factor
    )
    return ".".join(words)


Shared = tuple[tuple[str, str], ...]
"""Functions and declarations by name, as `Code.shared` has them."""


@functools.lru_cache(maxsize=1024)
def _tile(
    name: str, kinds: Kinds, tiling: Tiling, isa: Isa, is_edge: bool, has_factor: bool
) -> Shared:
    """Cached: most GEMMs of a model have the same tiles."""
    code = Code(tiling.lanes, isa)
    tile = _kind(tiling)(kinds, tiling, code, tiling.rows[0], is_edge)
    code.shared[name] = tile.text(name, has_factor)
    return tuple(code.shared.items())


@functools.lru_cache(maxsize=256)
def _rows(name: str, kinds: Kinds, tiling: Tiling, isa: Isa, has_factor: bool) -> Shared:
    code, tile = Code(tiling.lanes, isa), _name(kinds, tiling, has_factor)
    across, factor = Tile.ACROSS[tiling.has_table], Tile.FACTOR[has_factor]
    for size, m in tiled(code, "%rows", tiling.rows):
        a = advanced(code, "%a", code.i64("mul", m, "%row"), kinds.left)
        sums = advanced(code, "%sums", code.i64("mul", m, tiling.columns), kinds.sums)
        given = f"ptr {a}, i64 %row, i64 %step, ptr %b, {across}, i64 %count, i64 %columns"
        args = f"({given}, ptr {sums}, i1 %is_first{factor})"
        call_tile(code, tile_name(tile, size, False), args, tiling, edges(tiling, isa))
    code.do("ret void")
    args = f"{Tile.ARGS.format(across, factor)}, i64 %rows"
    code.shared[name] = code.function(f"define internal void @{name}({args}) noinline")
    return tuple(code.shared.items())


def call_tile(code: Code, tile: str, args: str, tiling: Tiling, kinds: tuple[bool, ...]) -> None:
    """Call a tile, or its masked variant, by the number of remaining columns."""
    if len(kinds) == 1:
        code.do(f"call void @{tile}{'.edge' * kinds[0]}{args}")
        return
    for is_edge, order in ((False, "sge"), (True, "slt")):
        with code.when(code.let(f"icmp {order} i64 %columns, {tiling.columns}")):
            code.do(f"call void @{tile}{'.edge' * is_edge}{args}")


def tiled(code: Code, rows: Bound, sizes: Sequence[int]) -> Generator[tuple[int, str]]:
    """Loops over all rows, by the largest tile that fits."""
    at: Bound = 0
    for size in sizes:
        tiles = code.integer("div", code.i64("sub", rows, at), size, DType.U64)
        until = code.i64("add", at, code.i64("mul", tiles, size))
        with code.count(at, until, size) as row:
            yield size, row
        at = until


def _kind(tiling: Tiling) -> type[Tile]:
    from rlx.backends.cpu.codegen.gemm.dot_product_tile import DotProductTile

    return Tile if tiling.dot_group == 1 else DotProductTile


class RegisterSums:
    """The sums of a tile in registers, and inner steps accumulated one after the other."""

    def __init__(self, kinds: Kinds, tiling: Tiling, code: Code, rows: int) -> None:
        self.code, self.tiling, self.sums = code, tiling, kinds.sums
        self.kinds = kinds.left, kinds.right
        self.rows: list[str] = []
        """The address of each row at the first inner step."""
        self.right = "%b"
        self.step: Bound = "%step"
        self.across: Bound = tiling.columns
        self.masks: list[Vec | None] = [None] * tiling.vectors
        self.slots = [
            [code.slot(code.vector(ELEMENT[self.sums])) for _ in range(tiling.vectors)]
            for _ in range(rows)
        ]

    def begin(self) -> None:
        zero = self.code.const(0, self.sums)
        self.store_sums([[zero] * len(run) for run in self.slots])

    def run(self, count: Bound, unroll: int) -> None:
        """So many inner steps, unrolled."""
        code = self.code
        whole: Bound = 0
        if unroll > 1:
            whole = code.integer("and", count, -unroll)
            with code.count(0, whole, unroll) as k:
                self._steps(k, unroll)
        with code.count(whole, count, 1) as k:
            self._steps(k, 1)

    def _steps(self, k: str, count: int) -> None:
        code, (kind, _) = self.code, self.kinds
        sums = self.load_sums()
        for u in range(count):
            at = code.i64("add", k, u)
            right = self._right(at)
            along = code.i64("mul", at, self.step)
            for i, row in enumerate(self.rows):
                left = load(code, kind, advanced(code, row, along, kind), 0).to(self.sums)
                sums[i] = [relaxed_multiply_add(left, r, s) for r, s in zip(right, sums[i])]
        self.store_sums(sums)

    def _right(self, at: Bound) -> list[Vec]:
        """The columns at an inner step."""
        code, (_, kind) = self.code, self.kinds
        line = advanced(code, self.right, self._line(at), kind)
        places = [advanced(code, line, j * code.lanes, kind) for j in range(self.tiling.vectors)]
        return [load(code, kind, p, 1, m).to(self.sums) for p, m in zip(places, self.masks)]

    def _line(self, at: Bound) -> Bound:
        return self.code.i64("mul", at, self.across)

    def load_sums(self) -> list[list[Vec]]:
        code, kind = self.code, self.code.vector(ELEMENT[self.sums])
        return [
            [code.vector_of(code.let(f"load {kind}, ptr {s}"), self.sums) for s in run]
            for run in self.slots
        ]

    def store_sums(self, sums: list[list[Vec]]) -> None:
        for run, slots in zip(sums, self.slots):
            self.code.do(*(f"store {v.type} {v.text}, ptr {s}" for v, s in zip(run, slots)))

    def finish(self, has_factor: bool = False) -> None:
        """Store the sums, perhaps times a factor: overwriting, or accumulating in memory."""
        code, columns = self.code, self.tiling.columns
        factors = [self._factor(j) for j in range(self.tiling.vectors)] if has_factor else []
        sums = [
            (
                v * factors[j] if has_factor else v,
                advanced(code, "%sums", i * columns + j * code.lanes, self.sums),
            )
            for i, run in enumerate(self.load_sums())
            for j, v in enumerate(run)
        ]
        with code.when("%is_first"):
            for value, place in sums:
                store(code, value, self.sums, place)
        with code.when(code.negated("%is_first")):
            for value, place in sums:
                store(code, load(code, self.sums, place) + value, self.sums, place)
        code.do("ret void")

    def _factor(self, vector: int) -> Vec:
        place = advanced(self.code, "%factor", vector * self.code.lanes, self.sums)
        return load(self.code, self.sums, place)


class Tile(RegisterSums):
    """sums[rows, columns] = or += Σ a[row, k] · b[k, column] over `count` steps of k, the sum times
    factor[column] where there is one."""

    ARGS = (
        "ptr noalias %a, i64 %row, i64 %step, ptr noalias %b, {0}, i64 %count, "
        "i64 %columns, ptr noalias %sums, i1 %is_first{1}"
    )
    ACROSS = "i64 %across", "ptr noalias %table"
    """The stride of inner steps on the right, or the table of their offsets."""
    FACTOR = "", ", ptr noalias %factor"

    def __init__(self, kinds: Kinds, tiling: Tiling, code: Code, rows: int, is_edge: bool) -> None:
        super().__init__(kinds, tiling, code, rows)
        if not kinds.is_strided:
            self.step = 1
        if not tiling.has_panels:
            self.across = "%across"
        self.rows = [
            advanced(code, "%a", code.i64("mul", "%row", i), kinds.left) for i in range(rows)
        ]
        ends = [code.i64("sub", "%columns", j * tiling.lanes) for j in range(tiling.vectors)]
        self.masks = [below(code, e) if is_edge else None for e in ends]

    def text(self, name: str, has_factor: bool = False) -> str:
        self.begin()
        self.run("%count", inner_unroll(self.code.isa) if self.tiling.has_panels else 1)
        self.finish(has_factor)
        args = self.ARGS.format(self.ACROSS[self.tiling.has_table], self.FACTOR[has_factor])
        return self.code.function(f"define internal void @{name}({args}) noinline")

    def _line(self, at: Bound) -> Bound:
        if not self.tiling.has_table:
            return super()._line(at)
        code = self.code
        return code.load_scalar(advanced(code, "%table", at, DType.I64), DType.I64)
