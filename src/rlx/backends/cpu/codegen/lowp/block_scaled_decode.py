"""Decoding of block-scaled weights (int4, int8, fp8), from the expressions of their formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from rlx.backends.cpu.codegen.loop.vector_access import store
from rlx.backends.cpu.codegen.lowp.block_decode import Block, decoded_at
from rlx.backends.cpu.codegen.lowp.decode_plan import decode_plan
from rlx.backends.cpu.codegen.math.storage_types import from_memory, stored
from rlx.backends.cpu.library.strided_copy import at
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ops.quant.block_expr import BlockFormat
from rlx.ops.quant.block_scaled import NUMBERS, Packing, scaled

F32, F64, I64, U8 = DType.F32, DType.F64, DType.I64, DType.U8
RUNS = (64, 32, 16, 8)
"""Weights that are decoded unrolled."""


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
    def packing(self) -> Packing:
        return self.step.node.attrs["packing"]

    @property
    def block(self) -> int:
        return self.step.node.attrs["block"]

    @property
    def block_format(self) -> BlockFormat:
        zero = self.dtype(3) if len(self.step.operands) > 3 else None
        return block_scaled_format(self.packing, self.scale, zero)

    def unpack(self, w: Writer, row: Bound, first: Bound, count: Bound, to: str) -> None:
        """`count` weights of a row, from the `first` on."""
        make = self.contiguous if self.is_contiguous(w.code.lanes) else self.gathered
        with w.code.count(0, count, w.code.lanes) as i:
            value = make(w, row, at(w, first, i), w.code.i64("sub", count, i))
            where = w.code.let(f"getelementptr {ELEMENT[self.compute_dtype]}, ptr {to}, i64 {i}")
            store(w.code, value, self.compute_dtype, where)

    # -- loads ----------------------------------------------------------------------------------

    def is_contiguous(self, lanes: int) -> bool:
        """Are whole vectors contiguous with one scale?"""
        return self.block % lanes == 0 and self.step.operands[1].strides[1] == 1

    def run(self, lanes: int) -> int | None:
        """The weights of an unrolled block with one scale; None if there is no such block."""
        return next((n for n in RUNS if self.block % n == 0 and self.is_contiguous(lanes)), None)

    def opened(self, w: Writer, row: Bound, first: Bound, count: int) -> Callable[[int], Vec]:
        """The weights of a block with one scale."""
        plan = decode_plan(self.block_format, count, w.code.lanes)
        operands = self.operands(w, row, first)
        return Block(w.code, plan, self.pointer(w, row, first), operands).weights

    def contiguous(self, w: Writer, row: Bound, k: Bound, left: Bound) -> Vec:
        """Contiguous weights with one scale."""
        return self.opened(w, row, k, w.code.lanes)(0)

    def operands(self, w: Writer, row: Bound, k: Bound) -> dict[str, Vec]:
        """The scale, and the zero point, of a weight."""
        group = w.code.integer("div", k, self.block, DType.U64)
        layouts = self.step.operands
        return {
            name: w.load(n, w.place(layouts[n], [row, group]), self.dtype(n), stride=0)
            for n, name in zip(range(2, len(layouts)), ("scale", "zero"))
        }

    def pointer(self, w: Writer, row: Bound, k: Bound) -> str:
        byte = (
            w.code.integer("div", k, self.block_format.weights, DType.U64)
            if self.block_format.weights > 1
            else k
        )
        return w.pointer(1, w.place(self.step.operands[1], [row, byte]), U8)

    def gathered(self, w: Writer, row: Bound, k: Bound, left: Bound) -> Vec:
        """Weights gathered one by one, each with its scale; masked past the last."""
        code, layouts = w.code, self.step.operands
        mask = code.iota(I64) < code.splat(left, I64)
        steps = code.iota(I64).bits(DType.U64) + code.splat(k, DType.U64)
        groups = steps / self.block
        operands = {
            name: _gather(w, n, row, groups, layouts[n], self.dtype(n), mask)
            for n, name in zip(range(2, len(layouts)), ("scale", "zero"))
        }
        return decoded_at(
            self.block_format,
            steps,
            lambda at: _gather(w, 1, row, at, layouts[1], U8, mask),
            operands,
        )

    def dtype(self, operand: int) -> DType:
        return self.step.node.inputs[operand].shape.dtype


@cache
def block_scaled_format(packing: Packing, scale: DType, zero: DType | None) -> BlockFormat:
    """A number and what scales it."""
    given = NUMBERS[packing]
    return BlockFormat(given.weights, given.block_bytes, scaled(given.value, scale, zero))


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
    return from_memory(code.vector_of(made, raw), dtype)
