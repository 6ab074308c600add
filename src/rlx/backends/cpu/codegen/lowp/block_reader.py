"""Block reader of quantised weights: block-wide fields, and vectors of contiguous weights.

Blocks have byte alignment. Block-wide fields are read and combined as scalar integers, and
broadcast where they are multiplied.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlx.backends.cpu.codegen.math.storage_types import from_memory
from rlx.backends.cpu.library.fft.twiddles import constant
from rlx.backends.cpu.llvm.builder import Bound, Code, Vec, literal
from rlx.core.dtype import DType

F16, F32, I8, I32, U8, U16 = DType.F16, DType.F32, DType.I8, DType.I32, DType.U8, DType.U16


@dataclass(frozen=True, slots=True)
class ScalarI32:
    """A scalar i32."""

    code: Code
    text: Bound

    def __rshift__(self, by: int) -> ScalarI32:
        return self._made("lshr", by) if by else self

    def __lshift__(self, by: int | ScalarI32) -> ScalarI32:
        return self._made("shl", by) if by else self

    def __and__(self, mask: int) -> ScalarI32:
        return self._made("and", mask)

    def __or__(self, other: ScalarI32) -> ScalarI32:
        return self._made("or", other)

    def __sub__(self, less: int) -> ScalarI32:
        return self._made("sub", less)

    def __mul__(self, by: int) -> ScalarI32:
        return self._made("mul", by)

    def where(self, condition: str, other: ScalarI32) -> ScalarI32:
        text = f"select i1 {condition}, i32 {self.text}, i32 {other.text}"
        return ScalarI32(self.code, self.code.let(text))

    def _made(self, integer: str, other: int | ScalarI32) -> ScalarI32:
        right = other.text if isinstance(other, ScalarI32) else other
        return ScalarI32(self.code, self.code.let(f"{integer} i32 {self.text}, {right}"))


@dataclass(slots=True)
class Block:
    """A block being read: its address, and the vectors cached so far."""

    code: Code
    start: str
    _kept: dict[object, Vec] = field(default_factory=dict[object, Vec])

    @property
    def lanes(self) -> int:
        return self.code.lanes

    def cached(self, key: object, make: Callable[[], Vec]) -> Vec:
        """A vector that neighbouring weights share, computed once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    # -- scalars --------------------------------------------------------------------------------

    def integer(self, at: int, size: int = 1) -> ScalarI32:
        """`size` bytes as an integer."""
        code, kind = self.code, f"i{8 * size}"
        value = code.let(f"load {kind}, ptr {self.pointer(at)}, align 1")
        return ScalarI32(code, value if size == 4 else code.let(f"zext {kind} {value} to i32"))

    def field(self, at: int, number: int, bits: int) -> ScalarI32:
        """A bit field of those packed from byte `at` on, least significant first."""
        byte, low = divmod(number * bits, 8)
        return self.integer(at + byte) >> low & ((1 << bits) - 1)

    def real(self, integer: ScalarI32) -> Vec:
        """A signed integer as f32, broadcast."""
        one = self.code.let(f"sitofp i32 {integer.text} to float")
        return self.code.splat(one, F32)

    def half(self, at: int) -> Vec:
        return self.cached(("half", at), lambda: self.half_of(self.integer(at, 2)))

    def half_of(self, integer: ScalarI32) -> Vec:
        """The f16 with these bits, broadcast."""
        bits = self.code.let(f"trunc i32 {integer.text} to i16")
        return from_memory(self.code.splat(bits, U16), F16)

    def bits_as_f32(self, integer: ScalarI32) -> Vec:
        one = self.code.let(f"bitcast i32 {integer.text} to float")
        return self.code.splat(one, F32)

    # -- vectors --------------------------------------------------------------------------------

    def bytes(self, at: int) -> Vec:
        """As many bytes as there are lanes. Bit operations stay on bytes, for those of many lanes
        fit small registers."""
        return self.cached(at, lambda: self.bytes_at(self.pointer(at)))

    def bytes_at(self, pointer: str) -> Vec:
        text = self.code.let(f"load {self.code.vector('i8')}, ptr {pointer}, align 1")
        return Vec(self.code, text, U8)

    def signed(self, at: int) -> Vec:
        """Bytes from -128 to 127."""
        return real(self.bytes(at).bits(I8))

    def plane(self, at: int, run: int, bits: int, weight: int) -> Vec:
        """Bit fields stored in planes: of a run of bytes the lowest bits of each, then the next,
        and on."""
        moved, is_last = self.moved(at, run, bits, weight)
        return moved if is_last else moved & ((1 << bits) - 1)

    def moved(self, at: int, run: int, bits: int, weight: int) -> tuple[Vec, bool]:
        """The same with the bits above, and whether there are none."""
        which, rest = divmod(weight, run * 8 // bits)
        shift, byte = divmod(rest, run)
        given = self.bytes(at + which * run + byte)
        return (given >> shift * bits if shift else given), (shift + 1) * bits == 8

    def bits(self, integer: ScalarI32, first: int = 0) -> Vec:
        """The bits of an integer from the `first` on, one per lane."""
        low = self.code.let(f"trunc i32 {(integer >> first).text} to i{self.lanes}")
        kind = self.code.vector("i1")
        return Vec(self.code, self.code.let(f"bitcast i{self.lanes} {low} to {kind}"), DType.BOOL)

    def lookup_4bit(
        self, key: object, at: int, weight: int, make: Callable[[Vec], Vec],
        run: int = 16, levels: NDArray[np.float32] | None = None,
    ) -> Vec:  # fmt: skip
        """A function of 4-bit values, or of the codebook level of each. Where a vector holds all
        sixteen, they are computed once per key, and looked up by a permutation."""
        if self.lanes == 16:
            all_of_them = np.arange(16, dtype=np.float32) if levels is None else levels
            table = self.cached(key, lambda: make(Vec(self.code, _literal(all_of_them), F32)))
            # permutations use the low bits of indices
            return permuted(table, self.moved(at, run, 4, weight)[0].to(I32))
        numbers = self.plane(at, run, 4, weight)
        return make(real(numbers) if levels is None else self.looked_up(levels, numbers))

    def fields(self, at: int, places: Sequence[tuple[int, int]], bits: int) -> Vec:
        """A bit field per lane: that of these bytes, at these shifts. The bytes are among the
        sixteen from `at` on, all of which are the block's."""
        code, count = self.code, self.lanes
        given = code.let(f"load <16 x i8>, ptr {self.pointer(at)}, align 1")
        picks = ", ".join(f"i32 {byte - at}" for byte, _ in places)
        mask = f"<{count} x i32> <{picks}>"
        made = code.let(f"shufflevector <16 x i8> {given}, <16 x i8> poison, {mask}")
        shifts = f"<{', '.join(f'i32 {shift}' for _, shift in places)}>"
        return Vec(code, made, U8).to(I32) >> Vec(code, shifts, I32) & ((1 << bits) - 1)

    def mask(self, lanes: Sequence[bool]) -> Vec:
        """A mask of lanes."""
        return Vec(self.code, f"<{', '.join(f'i1 {int(x)}' for x in lanes)}>", DType.BOOL)

    def lane(self, key: object, number: int, make: Callable[[range], Vec]) -> Vec:
        """One of many scalars, broadcast: they are computed a vector at a time."""
        which, lane = divmod(number, self.lanes)
        several = range(which * self.lanes, (which + 1) * self.lanes)
        whole = self.cached((key, which), lambda: make(several))
        return self.cached((key, which, lane), lambda: whole.shuffled([lane] * self.lanes))

    def looked_up(self, levels: NDArray[np.float32], numbers: Vec) -> Vec:
        """The codebook level of each index."""
        code, indices = self.code, numbers.to(I32)
        base = constant(code, f"levels.{zlib.crc32(levels.tobytes()):x}", levels)
        kind = code.vector("float")
        where = code.let(f"getelementptr float, ptr {base}, {indices.type} {indices.text}")
        made = code.intrinsic(
            f"masked.gather.{code.suffix('float')}.v{code.lanes}p0", kind,
            f"{code.vector('ptr')} align 4 {where}", f"{code.vector('i1')} splat (i1 true)",
            f"{kind} zeroinitializer",
        )  # fmt: skip
        return Vec(code, made, F32)

    def pointer(self, at: Bound) -> str:
        return self.code.let(f"getelementptr i8, ptr {self.start}, i64 {at}") if at else self.start


def real(numbers: Vec) -> Vec:
    """Small integers as f32."""
    return numbers.to(I32).to(F32)


PERMUTED = {16: "x86.avx512.permvar.sf.512", 8: "x86.avx2.permps"}


def permuted(table: Vec, indices: Vec, more: Vec | None = None) -> Vec:
    """A permutation: of sixteen or eight numbers, or of two times sixteen, those that the low bits
    of indices select."""
    parts = [f"{v.type} {v.text}" for v in (table, indices, *([] if more is None else [more]))]
    name = PERMUTED[table.code.lanes] if more is None else "x86.avx512.vpermi2var.ps.512"
    return Vec(table.code, table.code.intrinsic(name, table.type, *parts), F32)


def _literal(table: NDArray[np.float32]) -> str:
    return f"<{', '.join(f'float {literal(float(x), F32)}' for x in table)}>"
