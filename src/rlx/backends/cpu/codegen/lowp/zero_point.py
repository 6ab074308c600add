"""Zero-point correction: integer GEMMs of bytes with zero points, as GEMMs of the stored bytes.

    Σ (x - a)(w - b) = Σ xw - a Σ w - b Σ x + k a b

so that tiles multiply what is in memory. VNNI instructions multiply u8 by i8: other bytes are
offset by 128 with their zero points. Without VNNI, i16 instructions (pmaddwd) multiply bytes less
their zero points. All is in i32, which wraps on both sides of the identity. Padding is the zero
point, which counts as 0. For depthwise convolutions, kernels are packed less their zero points, so
that no window sums are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlx.backends.cpu.codegen.lowp.operand_types import BYTES, before_widening, dot_group_size
from rlx.backends.cpu.isa import Isa
from rlx.core.dim import DimLike, exact_div
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract, extent_of
from rlx.kernel.expr import (
    Accumulator,
    Affine,
    Apply,
    Axis,
    Const,
    Expr,
    Exprs,
    Inside,
    Kernel,
    Load,
    Store,
)
from rlx.kernel.lower.nhwc_conv import Reads, bounds_checks_of, is_depthwise
from rlx.kernel.rewrite import Rewriter
from rlx.ops.op import lookup

I16, I32, SIGN_OFFSET = DType.I16, DType.I32, 128


@dataclass(frozen=True, slots=True)
class QuantizedOperand:
    """Bytes, and their zero point: None where there is none."""

    value: Expr
    zero: Expr | None

    @property
    def border(self) -> Expr | None:
        """The byte that stands for 0 (padding); None if it is not uniform."""
        if self.zero is None:
            return Const(self.value.dtype, value=np.zeros((), self.value.dtype.numpy))
        byte = before_widening(self.zero, I32)
        return byte if byte.dtype is self.value.dtype and not byte.free else None


@dataclass(frozen=True, slots=True)
class CorrectionSums:
    """The kernel that sums the rows of the left operand or the columns of the right one; its result
    is one more operand."""

    kernel: Kernel
    of: Expr


def reads_of(isa: Isa) -> Reads:
    """How convolutions read low-precision images: bytes, and bf16 where there are dot products of
    them, as stored."""

    def reads(image: Expr, kernels: Expr, sums: DType, is_over_channels: bool) -> tuple[Expr, int]:
        found = _bytes(image) if sums is I32 else None
        if found is not None and found.border is not None:
            if not is_over_channels or _bytes(kernels) is None:
                return found.value, 1
            if _are_i16(image, kernels, isa):
                return _short(Exprs(), image), dot_group_size(I16, I16, I32, isa)
            return found.value, dot_group_size(DType.U8, DType.I8, I32, isa)
        x, w = (before_widening(v, sums) for v in (image, kernels))
        steps = dot_group_size(x.dtype, w.dtype, sums, isa) if is_over_channels else 1
        return (x, steps) if steps > 1 else (image, 1)

    return reads


@dataclass(frozen=True, slots=True)
class LowPrecisionConv:
    """A convolution of stored low-precision operands, its correction sums, and its dot-product
    group of channels."""

    contract: Contract
    sums: tuple[CorrectionSums, ...] = ()
    dot_group: int = 1


def low_precision_conv(contract: Contract, isa: Isa, written: int | None) -> LowPrecisionConv:
    """The convolution of low-precision operands, if it is one. An image that was packed for it may
    be padded after the channels of a group."""
    image, conditions = bounds_checks_of(contract.left)
    seen = _bytes(image) if contract.sums is I32 else None
    border = seen and seen.border
    exprs = Exprs()
    if seen is not None and border is not None:
        left = _bordered(exprs, seen.value, conditions, border)
        return _byte_conv(replace(contract, left=left), seen, isa, written)
    x, w = (before_widening(v, contract.sums) for v in (image, contract.right))
    if x.dtype is I16 and _bytes(contract.right) is not None:
        w = _short(exprs, contract.right)
    zero = exprs.const(np.zeros((), x.dtype.numpy), x.dtype)
    made = replace(contract, left=_bordered(exprs, x, conditions, zero), right=w)
    dot_group = _dot_group(made, dot_group_size(x.dtype, w.dtype, contract.sums, isa), written)
    return LowPrecisionConv(made, (), dot_group) if dot_group > 1 else LowPrecisionConv(contract)


def _byte_conv(
    contract: Contract, x: QuantizedOperand, isa: Isa, written: int | None
) -> LowPrecisionConv:
    exprs, kernels = Exprs(), _bytes(contract.right)
    varies = kernels is not None and kernels.zero is not None and (
        not kernels.zero.free.isdisjoint(contract.inner))  # fmt: skip
    if kernels is None or varies or (is_depthwise(contract) and kernels.zero is not None):
        return LowPrecisionConv(*_corrected(contract, x, None, exprs))
    dot_group = _dot_group(contract, dot_group_size(DType.U8, DType.I8, I32, isa), written)
    kernels = _as(kernels, DType.I8, exprs) if dot_group > 1 else kernels
    contract = replace(contract, right=kernels.value)
    by = SIGN_OFFSET if dot_group > 1 and x.value.dtype is DType.I8 else 0
    return LowPrecisionConv(*_corrected(contract, x, kernels.zero, exprs, by), dot_group)


def _dot_group(contract: Contract, dot_group: int, written: int | None) -> int:
    """The dot-product group, if the channels of a tap are whole groups."""
    (image, _), last = bounds_checks_of(contract.left), contract.inner[-1]
    if not isinstance(image, Load) or image.at.coefficient(last) != 1 or is_depthwise(contract):
        return 1
    is_whole = last.extent % dot_group == 0
    if written is not None and image.operand == written:
        is_whole |= _is_padded_to_groups(image, last, contract.operands[written], dot_group)
    return dot_group if is_whole else 1


def _is_padded_to_groups(image: Load, last: Axis, shape: Shape, dot_group: int) -> bool:
    """Is every line of an image aligned to a group, and padded to whole ones?"""
    steps = [c for a, c in image.at.terms if a is not last]
    return all(
        exact_div(d, dot_group) is not None for d in (*steps, image.at.offset, shape.dims[-1])
    )


def _bordered(exprs: Exprs, x: Expr, conditions: Sequence[Inside], outside: Expr) -> Expr:
    for condition in reversed(conditions):
        x = exprs.choose(condition, x, outside)
    return x


def correct_zero_points(
    contract: Contract, isa: Isa
) -> tuple[Contract, tuple[CorrectionSums, ...]]:
    """The contraction as one of bytes, and its correction sums; itself where it is none."""
    inner = contract.inner
    if contract.sums is I32 and _are_i16(contract.left, contract.right, isa):
        exprs = Exprs()
        left, right = (_short(exprs, x) for x in (contract.left, contract.right))
        return replace(contract, left=left, right=right), ()
    if contract.sums is not I32 or len(inner) != 1:
        return contract, ()
    found = [_bytes(x) for x in (contract.left, contract.right)]
    left, right = found
    if left is None or right is None or any(b.zero and inner[0] in b.zero.free for b in found if b):
        return contract, ()
    exprs = Exprs()
    left, right = _as(left, DType.U8, exprs), _as(right, DType.I8, exprs)
    contract = replace(contract, left=left.value, right=right.value)
    return _corrected(contract, left, right.zero, exprs)


def _are_i16(left: Expr, right: Expr, isa: Isa) -> bool:
    """Are both operands bytes without VNNI, to be widened to i16 less their zero points?"""
    if dot_group_size(DType.U8, DType.I8, I32, isa) > 1 or dot_group_size(I16, I16, I32, isa) == 1:
        return False
    found = [_bytes(x) for x in (left, right)]
    return all(b and (b.zero is None or before_widening(b.zero, I32).dtype in BYTES) for b in found)


def _short(exprs: Exprs, x: Expr) -> Expr:
    return exprs.apply(lookup("cast"), [x], {"to": I16}, I16)


def _bytes(x: Expr) -> QuantizedOperand | None:
    """A value as bytes less a zero point."""
    value = before_widening(x, I32)
    if value.dtype in BYTES:
        return QuantizedOperand(value, None)
    if not isinstance(x, Apply) or x.op.name != "sub":
        return None
    value, zero = before_widening(x.args[0], I32), x.args[1]
    if value.dtype not in BYTES:
        return None
    return QuantizedOperand(value, None if _is_zero(zero) else zero)


def _is_zero(x: Expr) -> bool:
    while isinstance(x, Apply) and x.op.name == "cast":
        x = x.args[0]
    return isinstance(x, Const) and not np.any(x.value)


def _as(x: QuantizedOperand, dtype: DType, exprs: Exprs) -> QuantizedOperand:
    """The same numbers as bytes of another signedness: flipping the sign bit adds or subtracts
    128."""
    if x.value.dtype is dtype:
        return x
    bits = exprs.apply(lookup("bitcast"), [x.value], {"to": dtype}, dtype)
    sign = exprs.const(np.array(0x80, np.uint8).view(dtype.numpy), dtype)
    value = exprs.apply(lookup("bit_xor"), [bits, sign], {}, dtype)
    return QuantizedOperand(
        value, _offset_zero_point(x.zero, SIGN_OFFSET if dtype is DType.U8 else -SIGN_OFFSET, exprs)
    )


def _offset_zero_point(zero: Expr | None, by: int, exprs: Exprs) -> Expr | None:
    """A zero point, and the offset added to each byte."""
    more = exprs.const(np.array(by, np.int32), I32)
    if zero is None:
        return more
    if isinstance(known := before_widening(zero, I32), Const):
        total = int(known.value) + by
        return exprs.const(np.array(total, np.int32), I32) if total else None
    return exprs.apply(lookup("add"), [zero, more], {}, I32)


def _corrected(
    contract: Contract, x: QuantizedOperand, b: Expr | None, exprs: Exprs, by: int = 0
) -> tuple[Contract, tuple[CorrectionSums, ...]]:
    """The contraction whose epilogue subtracts the zero points' terms. Tiles add `by` to each byte
    on the left, which the row sums do not include."""
    a = x.zero
    (total,) = (n for n in contract.epilogue if isinstance(n, Accumulator))
    made: Expr = total
    sums: list[CorrectionSums] = []
    left_zero = _offset_zero_point(a, by, exprs) if by else a
    sides = (left_zero, contract.right, contract.columns), (b, contract.left, contract.rows)
    for zero, side, axis in sides:
        if zero is not None:
            added = _summed(contract, side, axis)
            at = added.kernel.stores[0].at
            loaded = exprs.load(len(contract.operands), at, I32)
            contract = replace(contract, operands=(*contract.operands, *added.kernel.results))
            part = exprs.apply(lookup("mul"), [zero, loaded], {}, I32)
            made = exprs.apply(lookup("sub"), [made, part], {}, I32)
            sums.append(added)
    if a is not None and b is not None:
        both = exprs.apply(lookup("mul"), [a, b], {}, I32)
        count = exprs.size(extent_of(contract.inner), I32)
        both = exprs.apply(lookup("mul"), [both, count], {}, I32)
        made = exprs.apply(lookup("add"), [made, both], {}, I32)
    if not sums:
        return contract, ()
    move = Rewriter(exprs, replaced={total: made})
    stores = tuple(replace(s, value=move(s.value)) for s in contract.stores)
    return replace(contract, stores=stores), tuple(sums)


def _summed(contract: Contract, side: Expr, axis: Axis) -> CorrectionSums:
    """The sum of an operand over the inner axes, for each row or column and what it varies with."""
    exprs = Exprs()
    axes = (*(b for b in contract.batch if b in side.free), axis)
    value = exprs.apply(lookup("cast"), [Rewriter(exprs)(side)], {"to": I32}, I32)
    for inner in reversed(contract.inner):
        value = exprs.reduce("sum", inner, value)
    dims: list[DimLike] = [x.extent for x in axes]
    strides = Layout.contiguous(dims).strides
    at = Affine(tuple((x, s) for x, s in zip(axes, strides) if s != 0))
    store = Store(0, at, value)
    kernel = Kernel(f"{contract.name}.sums", axes, (store,), contract.operands, (Shape(dims, I32),))
    return CorrectionSums(kernel, side)
