"""Packing of GGUF blocks into panels, once for each matrix.

The codes, scales and offsets of 16 rows are decoded to bytes in scratch, block by block, and
transposed from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.lowp.block_decode import unpack
from rlx.backends.cpu.codegen.lowp.block_dot.panel import PANEL, WORDS, PanelLayout
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Task, TaskKind
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer
from rlx.ops.quant.block_expr import Expr
from rlx.ops.quant.gguf_codes import BLOCK

U8, U32 = DType.U8, DType.U32
SOURCE, TARGET = 0, 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """An array of each row in scratch: a name, the value, how many of a block, and where."""

    name: str
    value: Expr
    count: int
    at: int

    @property
    def row_bytes(self) -> int:
        return self.count * self.value.dtype.itemsize

    @property
    def end(self) -> int:
        return self.at + (PANEL * self.row_bytes + 63) // 64 * 64


@dataclass(frozen=True, slots=True)
class PanelPacking:
    """The panels of a matrix: rows of blocks whose bytes are contiguous."""

    layout: PanelLayout
    packed: Layout
    machine: CpuMachine

    @property
    def blocks(self) -> DimLike:
        """Of a row."""
        return self.packed.dims[1] // self.layout.codes.block_bytes

    @property
    def panels(self) -> DimLike:
        return (self.packed.dims[0] + PANEL - 1) // PANEL

    @property
    def panel_bytes(self) -> DimLike:
        return self.blocks * self.layout.block_bytes

    @property
    def size_bytes(self) -> DimLike:
        return self.panels * self.panel_bytes

    @property
    def arrays(self) -> list[Decoded]:
        """The codes, then bases and parts of scale and offset."""
        codes, at = self.layout.codes, 0
        wanted = [("code", codes.code, codes.weights)]
        for number, factor in enumerate(self.layout.factors):
            wanted.append((f"base{number}", factor.base, 1))
            if factor.part is not None:
                wanted.append((f"part{number}", factor.part, codes.groups))
        made: list[Decoded] = []
        for name, value, count in wanted:
            made.append(Decoded(name, value, count, at))
            at = made[-1].end
        return made

    def task(self, source: Buffer, target: Buffer, name: str) -> Task:
        ns = self.machine.worker_ns(0, 8 * self.size_bytes)
        grain = self.machine.units_per_task(self.panels, ns)
        key = "panels", self.layout.codes.scheme, self.packed, self.machine.isa
        return Task(
            TaskCode(name, self.source, key), (source, target), self.panels, grain,
            self.arrays[-1].end, summary=f"panels of {PANEL} outputs", kind=TaskKind.PACKING,
        )  # fmt: skip

    def source(self, name: str) -> Source:
        isa = self.machine.isa
        w = Writer(isa, isa.lanes(DType.F32))
        code, arrays = w.code, {a.name: a for a in self.arrays}
        with code.count("%start", code.least("%stop", w.size(self.panels)), 1) as panel:
            to = code.i64("mul", panel, w.size(self.panel_bytes))
            with code.count(0, w.size(self.blocks), 1) as block:
                self._decoded(w, arrays, panel, block)
                at = code.i64("add", to, code.i64("mul", block, self.layout.block_bytes))
                self._transposed(w, arrays, w.pointer(TARGET, at, U8))
        return w.source(name)

    # -- rows to scratch ------------------------------------------------------------------------

    def _decoded(self, w: Writer, arrays: dict[str, Decoded], panel: Bound, block: Bound) -> None:
        """A block of each row; rows past the last repeat it."""
        code, codes = w.code, self.layout.codes
        last = code.i64("sub", w.size(self.packed.dims[0]), 1)
        first, offset = code.i64("mul", panel, PANEL), code.i64("mul", block, codes.block_bytes)
        with code.count(0, PANEL, 1) as lane:
            row = code.least(code.i64("add", first, lane), last)
            start = w.pointer(SOURCE, w.place(self.packed, [row, offset]), U8)
            for each in arrays.values():
                made = codes.format_of(each.value, each.count)
                function = unpack(code, f"{each.name}.{codes.scheme}", made)
                at = code.i64("add", code.i64("mul", lane, each.row_bytes), each.at)
                to = advanced(code, "%scratch", at, U8)
                code.do(f"call void @{function}(ptr {start}, ptr {to}, i64 1)")

    # -- scratch to panels ----------------------------------------------------------------------

    def _transposed(self, w: Writer, arrays: dict[str, Decoded], block: str) -> None:
        code, layout = w.code, self.layout
        for first in range(0, PANEL, code.lanes):
            for number in range(len(layout.factors)):
                self._base(w, arrays[f"base{number}"], first, block, layout.base(number))
        with code.count(0, layout.steps, 1) as step:
            at = code.i64("add", code.i64("mul", step, layout.step_bytes), layout.head_bytes)
            to = advanced(code, block, at, U8)
            for first in range(0, PANEL, code.lanes):
                self._parts(w, arrays, first, step, to)
                self._planes(w, arrays["code"], first, step, to)

    def _base(self, w: Writer, array: Decoded, first: int, block: str, at: int) -> None:
        dtype = array.value.dtype
        start = advanced(w.code, "%scratch", array.at + first * dtype.itemsize, U8)
        to = advanced(w.code, block, at + first * dtype.itemsize, U8)
        store(w.code, load(w.code, dtype, start), dtype, to)

    def _parts(self, w: Writer, arrays: dict[str, Decoded], first: int, step: str, to: str) -> None:
        code, layout = w.code, self.layout
        found = [n for n, f in enumerate(layout.factors) if f.part is not None]
        for number in found:
            array = arrays[f"part{number}"]
            for group in range(layout.groups):
                own = code.i64("add", code.i64("mul", step, layout.groups), group)
                value = self._column(w, array, first, own, U8)
                where = advanced(code, to, layout.part(number, group) + first, U8)
                store(code, value, U8, where)

    def _planes(self, w: Writer, array: Decoded, first: int, step: str, to: str) -> None:
        code, made = w.code, dict[int, Vec]()
        for word in range(WORDS):
            own = code.i64("add", code.i64("mul", step, BLOCK), 4 * word)
            value = self._column(w, array, first, own, U32)
            for field in self.layout.fields(word):
                part = (value >> field.place if field.place else value) & _mask(field.bits)
                part = part << field.shift if field.shift else part
                made[field.at] = made[field.at] | part if field.at in made else part
        for at, vector in made.items():
            store(code, vector, U32, advanced(code, to, at + 4 * first, U8))

    def _column(self, w: Writer, array: Decoded, first: int, at: Bound, dtype: DType) -> Vec:
        """The same bytes of each row."""
        code = w.code
        start = code.i64("add", at, array.at + first * array.row_bytes)
        if array.row_bytes % dtype.itemsize == 0:
            stride = array.row_bytes // dtype.itemsize
            return load(code, dtype, advanced(code, "%scratch", start, U8), stride)
        raise AssertionError(array)


def _mask(bits: int) -> int:
    return ((1 << bits) - 1) * 0x01010101
