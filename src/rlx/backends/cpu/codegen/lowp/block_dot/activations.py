"""Activations rounded to int8: each 32 of a row share a scale, as `block_quantize` defines it.

codes        i8[K/32, rows, 32]
scales      f32[K/32, rows]
corrections      [K/32, rows, groups]   what zero points and offsets need of the sums of codes:
                                    −zero · Σ as i32, or scale · Σ as f32
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.lowp.block_dot.panel import PanelLayout
from rlx.backends.cpu.library.strided_copy import at, axis_slice
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Buffer
from rlx.ops.quant.gguf_codes import BLOCK

F32, I8, I32, U32 = DType.F32, DType.I8, DType.I32, DType.U32
MOST = 127.0
NS_PER_BLOCK = 12


@dataclass(frozen=True, slots=True)
class Activations:
    """The rows of x, and where they are written: three temporaries."""

    step: Step
    layout: PanelLayout

    @property
    def rows(self) -> DimLike:
        return product(self.step.operands[0].dims[:-1])

    @property
    def blocks(self) -> DimLike:
        """Of a row."""
        return self.step.operands[0].dims[-1] // BLOCK

    @property
    def correction(self) -> DType:
        """The dtype of what is stored for each group."""
        return I32 if self.layout.codes.offset is None else F32

    @property
    def terms(self) -> int:
        """Roundings whose sum an activation is."""
        return self.step.node.attrs["terms"]

    @property
    def temps(self) -> tuple[DimLike, ...]:
        count = self.rows * self.blocks * self.terms
        return count * BLOCK, count * 4, count * 4 * self.layout.groups

    def task(self, name: str) -> Task:
        ns = self.rows * self.blocks * self.terms * NS_PER_BLOCK
        grain = self.step.machine.units_per_task(self.rows, ns)
        given = Buffer("operand", 0), *(Buffer("temp", n) for n in range(3))
        return Task(
            TaskCode(name, self.source), given, self.rows, grain,
            summary=f"rows rounded to int8, {BLOCK} to a scale",
        )  # fmt: skip

    def source(self, name: str) -> Source:
        w = Writer(self.step.isa, self.step.isa.lanes(F32))
        x, code = self.step.operands[0], w.code
        with code.count("%start", code.least("%stop", w.size(self.rows)), 1) as row:
            base = at(w, w.size(x.offset), w.place(axis_slice(x, 0, -1), w.split(row, x.dims[:-1])))
            with code.count(0, w.size(self.blocks), 1) as block:
                first = at(w, base, code.i64("mul", block, w.size(x.strides[-1] * BLOCK)))
                to = at(w, code.i64("mul", block, w.size(self.rows)), row)
                self._block(w, first, to)
        return w.source(name)

    def _block(self, w: Writer, first: Bound, to: Bound) -> None:
        code, step, dtype = w.code, self.step.operands[0].strides[-1], self.step.node.inputs[0]
        starts = range(0, BLOCK, code.lanes)
        places = [at(w, first, code.i64("mul", s, w.size(step))) for s in starts]
        by = w.size(step) if step != 0 else 0
        x = [w.load(0, p, dtype.shape.dtype, by).to(F32) for p in places]
        for term in range(self.terms):
            x = self._rounded(w, x, at(w, code.i64("mul", to, self.terms), term))

    def _rounded(self, w: Writer, x: list[Vec], to: Bound) -> list[Vec]:
        """One rounding is stored; what it leaves."""
        code = w.code
        scale = code.splat(self._greatest(x), F32) / MOST
        codes = [self._codes(v, scale) for v in x]
        for number, value in enumerate(codes):
            w.store(value.to(I8), 1, at(w, code.i64("mul", to, BLOCK), number * code.lanes), I8)
        self._put(w, scale, 2, to)
        self._corrections(w, codes, scale, to)
        return [v - c.to(F32) * scale for v, c in zip(x, codes)]

    def _greatest(self, x: list[Vec]) -> str:
        """The greatest size. Sizes are ordered as their bits are, NaN above all."""
        most = x[0].abs().bits(U32)
        for v in x[1:]:
            bits = v.abs().bits(U32)
            most = bits.where(bits > most, most)
        name = f"vector.reduce.umax.{most.code.suffix('i32')}"
        found = most.code.intrinsic(name, "i32", f"{most.type} {most.text}")
        return most.code.let(f"bitcast i32 {found} to float")

    def _codes(self, x: Vec, scale: Vec) -> Vec:
        """x / scale to the nearest, and 0 where that is no number or the scale is 0."""
        given = x / scale
        known = given.equals(given) & scale.differs(0.0)
        near = given.where(known, 0.0).round()
        near = near.where(near < MOST, MOST)
        near = near.where(near > -MOST, -MOST)
        return near.made(f"fptosi {near.type} {near.text} to {near.code.vector('i32')}", I32)

    def _corrections(self, w: Writer, codes: list[Vec], scale: Vec, to: Bound) -> None:
        code, layout = w.code, self.layout
        per_group = len(codes) // layout.groups
        for group in range(layout.groups):
            own = codes[group * per_group : (group + 1) * per_group]
            total = own[0]
            for v in own[1:]:
                total = total + v
            name = f"vector.reduce.add.{code.suffix('i32')}"
            found = code.intrinsic(name, "i32", f"{total.type} {total.text}")
            value = code.splat(found, I32)
            made = value * -layout.codes.zero if self.correction is I32 else scale * value.to(F32)
            self._put(w, made, 3, at(w, code.i64("mul", to, layout.groups), group))

    def _put(self, w: Writer, value: Vec, number: int, place: Bound) -> None:
        """One of equal lanes."""
        where = w.pointer(number, place, value.dtype)
        w.code.do(f"store {ELEMENT[value.dtype]} {value.lane()}, ptr {where}, align 4")
