"""Register tiles of implicit-GEMM and depthwise convolutions: rows are output positions, addressed
by gather offsets."""

from __future__ import annotations

import functools
from dataclasses import replace

from rlx.backends.cpu.codegen.gemm.dot_product_tile import DotProductSums
from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.gemm.register_tile import (
    Kinds,
    RegisterSums,
    Shared,
    call_tile,
    inner_unroll,
    tile_name,
    tiled,
)
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.multiply_add import relaxed_multiply_add
from rlx.backends.cpu.schedule.gemm_tiling import Tiling
from rlx.core.dtype import DType
from rlx.program.types import POINTER


def implicit_gemm_rows(kinds: Kinds, tiling: Tiling, code: Code) -> str:
    """The name of the shared function over any number of output positions, each by the largest tile
    that fits. It takes a tile's arguments, and the number of positions."""
    words = ["implicit_gemm", kinds.name, str(tiling.columns), *["dots"] * (tiling.dot_group > 1)]
    name = ".".join([*words, *["apart"] * kinds.is_strided])
    any_block = replace(tiling, row_block=0)
    for rows in tiling.rows:
        one = replace(any_block, rows=(rows,))
        code.shared.update(_implicit_gemm_tile(tile_name(name, rows, False), kinds, one, code.isa))
    call = "i64 %room, i64 %taps, i64 %start, i64 %step, ptr %b, i64 %count, {0}, i1 %is_first"
    return _with_rows(name, ImplicitGemmTile.ARGS, call, (kinds, any_block), code, (False,))


def depthwise_rows(kinds: Kinds, tiling: Tiling, code: Code) -> str:
    """The same for depthwise convolutions."""
    name = ".".join(["lines", kinds.name, str(tiling.columns)])
    any_block = replace(tiling, row_block=0)
    edges = (True,) if code.isa.has_masks else (False, True)
    for rows in tiling.rows:
        one = replace(any_block, rows=(rows,))
        for is_edge in edges:
            full = tile_name(name, rows, is_edge)
            code.shared.update(_depthwise_tile(full, kinds, one, code.isa, is_edge))
    call = "i64 %room, i64 %taps, i64 %start, i64 %columns, ptr %b, {0}"
    return _with_rows(name, DepthwiseTile.ARGS, call, (kinds, any_block), code, edges)


def _with_rows(
    name: str, args: str, call: str, of: tuple[Kinds, Tiling], code: Code, edges: tuple[bool, ...]
) -> str:
    full = f"{name}.rows{'.'.join(map(str, of[1].rows))}"
    code.shared.update(_rows(full, name, args, call, *of, code.isa, edges))
    return full


@functools.lru_cache(maxsize=256)
def _rows(
    full: str,
    name: str,
    args: str,
    call: str,
    kinds: Kinds,
    tiling: Tiling,
    isa: Isa,
    edges: tuple[bool, ...],
) -> Shared:
    code = Code(tiling.lanes, isa)
    for size, row in tiled(code, "%rows", tiling.rows):
        places = advanced(code, "%table", row, DType.I64)
        sums = advanced(code, "%sums", code.i64("mul", row, tiling.columns), kinds.sums)
        given = f"(ptr {places}, {call.format(f'ptr {sums}')})"
        call_tile(code, tile_name(name, size, False), given, tiling, edges)
    code.do("ret void")
    head = f"define internal void @{full}({args}, i64 %rows) noinline"
    code.shared[full] = code.function(head)
    return tuple(code.shared.items())


@functools.lru_cache(maxsize=256)
def _implicit_gemm_tile(name: str, kinds: Kinds, tiling: Tiling, isa: Isa) -> Shared:
    code = Code(tiling.lanes, isa)
    kind = ImplicitGemmTile if tiling.dot_group == 1 else ImplicitGemmDotTile
    tile = kind(kinds, tiling, code, tiling.rows[0])
    if not kinds.is_strided:
        tile.step = 1
    code.shared[name] = tile.text(name)
    return tuple(code.shared.items())


@functools.lru_cache(maxsize=256)
def _depthwise_tile(name: str, kinds: Kinds, tiling: Tiling, isa: Isa, is_edge: bool) -> Shared:
    code = Code(tiling.lanes, isa)
    code.shared[name] = DepthwiseTile(kinds, tiling, code, tiling.rows[0]).text(name, is_edge)
    return tuple(code.shared.items())


class DepthwiseTile(RegisterSums):
    """Depthwise: sums[rows, columns] = Σ image[tap, row][column] · b[tap, column] over taps."""

    ARGS = (
        "ptr noalias %table, i64 %room, i64 %taps, i64 %start, i64 %columns, ptr noalias %b, "
        "ptr noalias %sums"
    )

    def text(self, name: str, is_edge: bool) -> str:
        code, (left, _) = self.code, self.kinds
        lanes, vectors = self.tiling.lanes, self.tiling.vectors
        masks = [below(code, code.i64("sub", "%columns", j * lanes)) if is_edge else None
                 for j in range(vectors)]  # fmt: skip
        self.begin()
        with code.count(0, "%taps", 1) as tap:
            line = advanced(code, "%table", code.i64("mul", tap, "%room"), DType.I64)
            right, sums = self._right(tap), self.load_sums()
            for i, run in enumerate(sums):
                found = code.load_uniform(advanced(code, line, i, DType.I64), POINTER)
                place = advanced(code, found, "%start", left)
                places = [advanced(code, place, j * lanes, left) for j in range(vectors)]
                seen = [load(code, left, p, 1, m).to(self.sums) for p, m in zip(places, masks)]
                sums[i] = [relaxed_multiply_add(x, r, s) for x, r, s in zip(seen, right, run)]
            self.store_sums(sums)
        self.write()
        code.do("ret void")
        return code.function(f"define internal void @{name}({self.ARGS}) noinline")

    def write(self) -> None:
        code, columns = self.code, self.tiling.columns
        for i, run in enumerate(self.load_sums()):
            for j, value in enumerate(run):
                place = advanced(code, "%sums", i * columns + j * code.lanes, self.sums)
                store(code, value, self.sums, place)


class ImplicitGemmTile(RegisterSums):
    """sums[rows, columns] = or += Σ image[tap, row][k] · b[tap, k, column], over taps and k."""

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
            found = [code.load_uniform(p, POINTER) for p in places]
            self.rows = [advanced(code, p, begun, left) for p in found]
            self.right = advanced(code, "%b", code.i64("mul", tap, size), right)
            self.run("%count", inner_unroll(self.code.isa))
        self.finish()
        return code.function(f"define internal void @{name}({self.ARGS}) noinline")


class ImplicitGemmDotTile(DotProductSums, ImplicitGemmTile):
    """The same, a dot-product group of channels at a time."""

    is_whole = True
