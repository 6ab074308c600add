"""Register tiles of dot-product instructions: VNNI (u8 × i8) and AVX512-BF16.

Two products of bf16 fill the 32 bits of an accumulator lane, and four of bytes. A row's inner steps
are read in dot-product groups, broadcast to all columns; packed panels hold the columns' groups
contiguously.
"""

from __future__ import annotations

from rlx.backends.cpu.codegen.gemm.register_tile import RegisterSums, Tile
from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.codegen.math.storage_types import stored
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType

DOT_PRODUCTS = {
    DType.BF16: ("x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"),
    DType.U8: ("x86.avx512.vpdpbusd.512", "<64 x i8>"),
    DType.I8: ("x86.avx512.vpdpbusd.512", "<64 x i8>"),
}
"""The instruction that adds the products of a group to each sum, and its operand type, by the left
operand's dtype. It multiplies u8 by i8: 128 is added to each i8 on the left."""
PAIR_DOTS = {16: "x86.sse2.pmadd.wd", 32: "x86.avx2.pmadd.wd", 64: "x86.avx512.pmaddw.d.512"}
"""The instruction that adds two products of i16 (pmaddwd), by the vector width in bytes."""
WASM_PAIR_DOT = "wasm.dot"
UNROLL = 2


class DotProductSums(RegisterSums):
    """The same sums, a dot-product group of inner steps at a time."""

    is_whole = False
    """Are all runs of inner steps whole groups, on the left, too?"""

    def run(self, count: Bound, unroll: int) -> None:
        del unroll
        code, group = self.code, self.tiling.dot_group
        whole = code.integer("and", count, -group)
        even = code.integer("and", count, -UNROLL * group)
        for low, high, groups in ((0, even, UNROLL), (even, whole, 1)):
            with code.count(low, high, groups * group) as k:
                self._groups(k, groups)
        if self.is_whole:
            return
        with code.when(code.compare("lt", whole, count)):
            last = [self._part(row, whole, count) for row in self.rows]
            self.store_sums(self._added(self.load_sums(), whole, last))

    def _groups(self, k: str, count: int) -> None:
        sums = self.load_sums()
        for u in range(count):
            at = self.code.i64("add", k, u * self.tiling.dot_group)
            sums = self._added(sums, at, [self._group(row, at) for row in self.rows])
        self.store_sums(sums)

    def _group(self, row: str, at: Bound) -> str:
        """A group of a row's inner steps, as an i32."""
        kind = self.kinds[0]
        place = advanced(self.code, row, at, kind)
        group = self.code.let(f"load i32, ptr {place}, align {kind.itemsize}")
        return self._unsigned(group)

    def _unsigned(self, group: str) -> str:
        """Bytes as u8: flipping the sign bit of an i8 adds 128."""
        is_signed = self.kinds[0] is DType.I8
        if not is_signed:
            return group
        return self.code.integer("xor", group, 0x80808080 - (1 << 32), DType.I32)

    def _part(self, row: str, at: Bound, count: Bound) -> str:
        """The last, partial group of a row, zero-padded."""
        code, raw = self.code, stored(self.kinds[0])
        slot, bits = code.slot("i32"), 8 * raw.itemsize
        code.store_scalar(slot, 0, DType.I32)
        with code.count(at, count, 1) as k:
            one = code.let(f"load {ELEMENT[raw]}, ptr {advanced(code, row, k, raw)}")
            wide = code.let(f"zext {ELEMENT[raw]} {one} to i32")
            by = code.i64("mul", code.i64("sub", k, at), bits)
            moved = code.integer("shl", wide, code.converted(by, DType.I64, DType.I32), DType.I32)
            held = code.load_scalar(slot, DType.I32)
            code.store_scalar(slot, code.integer("or", held, moved, DType.I32), DType.I32)
        return self._unsigned(code.load_scalar(slot, DType.I32))

    def _added(self, sums: list[list[Vec]], at: Bound, groups: list[str]) -> list[list[Vec]]:
        """Add the products of one group of each row with those of all columns."""
        code, group, kind = self.code, self.tiling.dot_group, self.kinds[1]
        name, taken = self._instruction()
        line = advanced(code, self.right, code.i64("mul", at, self.tiling.columns), kind)
        steps = range(0, self.tiling.columns * group, code.lanes * group)
        places = [advanced(code, line, s, kind) for s in steps]
        right = [code.let(f"load {taken}, ptr {p}, align {kind.itemsize}") for p in places]
        made: list[list[Vec]] = []
        for one, run in zip(groups, sums):
            splat = code.splat(one, DType.I32)
            left = code.let(f"bitcast {splat.type} {splat.text} to {taken}")
            words_ = [(f"{taken} {left}", f"{taken} {r}") for r in right]
            made.append([self._plus(s, name, *pair) for s, pair in zip(run, words_)])
        return made

    def _instruction(self) -> tuple[str, str]:
        if self.kinds[0] is DType.I16:
            taken = f"<{self.code.lanes * self.tiling.dot_group} x i16>"
            isa = self.code.isa
            return WASM_PAIR_DOT if isa.is_wasm else PAIR_DOTS[isa.vector_bytes], taken
        return DOT_PRODUCTS[self.kinds[0]]

    def _plus(self, total: Vec, name: str, left: str, right: str) -> Vec:
        """A sum plus the products of two groups."""
        code, kind = self.code, total.type
        if self.kinds[0] is DType.I16:
            return total + code.vector_of(code.intrinsic(name, kind, left, right), self.sums)
        product = code.intrinsic(name, kind, f"{kind} {total.text}", left, right)
        return code.vector_of(product, self.sums)


class DotProductTile(DotProductSums, Tile):
    """The tile of a GEMM."""
