"""Decoding of block-scaled weights (int4, int8, fp8): as `block_dequantize` does, to the same
bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import load, store
from rlx.backends.cpu.codegen.lowp.block_reader import permuted
from rlx.backends.cpu.codegen.math.storage_types import (
    HALF_PRECISION,
    from_memory,
    rounded_to_half,
    stored,
)
from rlx.backends.cpu.library.strided_copy import at
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Code, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Step
from rlx.core.dtype import DType
from rlx.core.layout import Layout

F16, F32, F64, I32, I64, U8, U16 = (
    DType.F16, DType.F32, DType.F64, DType.I32, DType.I64, DType.U8, DType.U16,
)  # fmt: skip
RUNS = (64, 32, 16, 8)
TWO_120 = 2.0**120
"""From the exponents of e4m3 to those of f32: the difference of their biases."""


@dataclass(frozen=True, slots=True)
class BlockScaledWeights:
    """The weights of `dequant_matmul`."""

    step: Step

    @property
    def compute_dtype(self) -> DType:
        """The compute dtype of weights."""
        return F64 if self.scale is F64 else F32

    @property
    def scale(self) -> DType:
        return self.step.node.inputs[2].shape.dtype

    @property
    def packing(self) -> str:
        return self.step.node.attrs["packing"]

    @property
    def block(self) -> int:
        return self.step.node.attrs["block"]

    @property
    def is_four(self) -> bool:
        return self.packing in ("int4", "uint4")

    def unpack(self, w: Writer, row: Bound, first: Bound, count: Bound, to: str) -> None:
        """`count` weights of a row, from the `first` on."""
        make = self.neighbours if self.is_beside(w.code.lanes) else self.gathered
        with w.code.count(0, count, w.code.lanes) as i:
            raw, others = make(w, row, at(w, first, i), w.code.i64("sub", count, i))
            where = w.code.let(f"getelementptr {ELEMENT[self.compute_dtype]}, ptr {to}, i64 {i}")
            store(w.code, self.made(raw, others), self.compute_dtype, where)

    def made(self, raw: Vec, others: list[Vec]) -> Vec:
        """(q - zero point) · scale, as precise as the scale's dtype."""
        value = self.number(raw).to(self.compute_dtype)
        scale, *zeros = (o.to(self.compute_dtype) for o in others)
        for zero in zeros:
            value = value - zero
        value = value * scale
        return rounded_to_half(value, self.scale) if self.scale in HALF_PRECISION else value

    # -- loads ----------------------------------------------------------------------------------

    def is_beside(self, lanes: int) -> bool:
        """Are whole vectors contiguous with one scale?"""
        return self.block % lanes == 0 and self.step.operands[1].strides[1] == 1

    def run(self, lanes: int) -> int | None:
        """The weights of an unrolled block with one scale; None if there is no such block."""
        return next((n for n in RUNS if self.block % n == 0 and self.is_beside(lanes)), None)

    def opened(self, w: Writer, row: Bound, first: Bound) -> Callable[[int], Vec]:
        """The weights of a block. There are sixteen 4-bit values, which one vector may hold."""
        others = self.others(w, row, first)
        if not (self.is_four and w.code.lanes == 16):
            return lambda k: self.made(self.raw(w, row, at(w, first, k)), others)
        table = self.made(w.code.iota(U8), others)
        return lambda k: permuted(table, _twice(w.code, self.pointer(w, row, at(w, first, k))))

    def neighbours(self, w: Writer, row: Bound, k: Bound, left: Bound) -> tuple[Vec, list[Vec]]:
        """Contiguous weights with one scale."""
        return self.raw(w, row, k), self.others(w, row, k)

    def others(self, w: Writer, row: Bound, k: Bound) -> list[Vec]:
        """The scale, and the zero point, of a weight."""
        group = w.code.let(f"udiv i64 {k}, {self.block}")
        return [
            w.load(n, w.place(self.step.operands[n], [row, group]), self.dtype(n), stride=0)
            for n in range(2, len(self.step.operands))
        ]

    def pointer(self, w: Writer, row: Bound, k: Bound) -> str:
        byte = w.code.let(f"udiv i64 {k}, 2") if self.is_four else k
        return w.pointer(1, w.place(self.step.operands[1], [row, byte]), U8)

    def raw(self, w: Writer, row: Bound, k: Bound) -> Vec:
        where = self.pointer(w, row, k)
        return _twice(w.code, where) & 15 if self.is_four else load(w.code, U8, where)

    def gathered(self, w: Writer, row: Bound, k: Bound, left: Bound) -> tuple[Vec, list[Vec]]:
        """Weights gathered one by one, each with its scale; masked past the last."""
        code = w.code
        mask = code.iota(I64) < code.splat(left, I64)
        steps = code.iota(I64).bits(DType.U64) + code.splat(k, DType.U64)
        groups = steps / self.block
        others = [
            _gather(w, n, row, groups, self.step.operands[n], self.dtype(n), mask)
            for n in range(2, len(self.step.operands))
        ]
        places = steps >> 1 if self.is_four else steps
        raw = _gather(w, 1, row, places, self.step.operands[1], U8, mask)
        if self.is_four:
            raw = raw >> ((steps & 1) << 2).to(U8) & 15
        return raw, others

    def dtype(self, operand: int) -> DType:
        return self.step.node.inputs[operand].shape.dtype

    # -- formats --------------------------------------------------------------------------------

    def number(self, raw: Vec) -> Vec:
        """The value of a byte, or of four bits."""
        match self.packing:
            case "fp8_e4m3":
                return _e4m3(raw.to(I32))
            case "fp8_e5m2":
                return from_memory(raw.to(U16) << 8, F16)
            case "int8":
                return raw.bits(DType.I8).to(I32).to(F32)
            case "int4":
                return ((raw.to(I32) ^ 8) - 8).to(F32)
            case _:
                return raw.to(I32).to(F32)


def _e4m3(raw: Vec) -> Vec:
    """Exponent and mantissa moved to where f32 has them, and the bias corrected, which is exact for
    subnormals too."""
    size, sign = raw & 127, (raw & 128) << 24
    value = (size << 20).bits(F32) * TWO_120
    value = value.like(float("nan")).where(size.equals(127), value)
    return (value.bits(I32) | sign).bits(F32)


def _twice(code: Code, where: str) -> Vec:
    """Half as many bytes as lanes, each duplicated, the second shifted by four bits: the values are
    the low bits."""
    half = f"<{code.lanes // 2} x i8>"
    given = code.let(f"load {half}, ptr {where}, align 1")
    order = ", ".join(f"i32 {i // 2}" for i in range(code.lanes))
    mask = f"{code.vector('i32')} <{order}>"
    twice = code.let(f"shufflevector {half} {given}, {half} poison, {mask}")
    shifts = ", ".join(f"i32 {i % 2 * 4}" for i in range(code.lanes))
    return Vec(code, twice, U8).to(I32) >> Vec(code, f"<{shifts}>", I32)


def _gather(
    w: Writer, number: int, row: Bound, columns: Vec, layout: Layout, dtype: DType, mask: Vec
) -> Vec:
    """Elements of a row of a buffer."""
    code, raw = w.code, stored(dtype)
    base = w.pointer(number, w.place(layout, [row, 0]), dtype)
    places = columns * code.splat(w.size(layout.strides[1]), columns.dtype)
    element, kind = ELEMENT[raw], code.vector(ELEMENT[raw])
    where = code.let(f"getelementptr {element}, ptr {base}, {places.type} {places.text}")
    made = code.intrinsic(
        f"masked.gather.{code.suffix(element)}.v{code.lanes}p0", kind,
        f"{code.vector('ptr')} align {dtype.itemsize} {where}",
        f"{code.vector('i1')} {mask.text}", f"{kind} zeroinitializer",
    )  # fmt: skip
    return from_memory(Vec(code, made, raw), dtype)
