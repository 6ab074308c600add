"""Block-scaled quantised weights: low-precision numbers with one scale per block of a row.

A row holds the weights of one output, as GGUF's and PyTorch's do, so products multiply by the
transpose. Numbers of four bits are packed two to a byte, the first in the low half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import exact_div
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind
from rlx.ops.quant.block_arrays import applied, decoded
from rlx.ops.quant.block_expr import (
    POSITION,
    BlockFormat,
    Expr,
    Operand,
    bitcast,
    cast,
    f16,
    field_of,
    real,
    signed,
    u8,
    where,
)

Packing = Literal["int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2"]
PACKINGS: tuple[Packing, ...] = ("int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2")


def _e4m3() -> Expr:
    """One sign, four exponent and three mantissa bits: bias 7, subnormals, no infinity, and NaN
    where exponent and mantissa are all ones. They are moved to where f32 has them, and a sum
    corrects the bias. A subnormal gets the exponent of the least normal number, 2⁻⁶, which is then
    taken away again: none is one of f32, which targets may take for 0. All ones give 480, whose
    bits are exchanged for those of a NaN."""
    byte = cast(u8(0), DType.U32)
    bits = ((byte & 0x7F) << 20) + 0x3C000000
    is_subnormal, is_nan = (byte & 0x78).equals(0), (byte & 0x7F).equals(0x7F)
    subnormal = bitcast(bitcast(bits + 0x00800000, DType.F32) - 2.0**-6, DType.U32)
    size = where(is_subnormal, subnormal, bits)
    value = size ^ where(is_nan, 0x43F00000 ^ 0x7FC00000, size.like(0))
    return bitcast(value ^ ((byte & 0x80) << 24), DType.F32)


_FOUR_BITS = field_of(0, POSITION, 4)
NUMBERS: dict[Packing, BlockFormat] = {
    "int8": BlockFormat(1, 1, real(signed(u8(0)))),
    "uint8": BlockFormat(1, 1, real(u8(0))),
    # two's complement: the sign bit flipped, less 8
    "int4": BlockFormat(2, 1, real((cast(_FOUR_BITS, DType.I32) ^ 8) - 8)),
    "uint4": BlockFormat(2, 1, real(_FOUR_BITS)),
    "fp8_e4m3": BlockFormat(1, 1, _e4m3()),
    # the upper byte of an f16
    "fp8_e5m2": BlockFormat(1, 1, f16(cast(u8(0), DType.U16) << 8)),
}
"""The numbers that bytes hold, as f32."""


def scaled(number: Expr, scale: DType, zero: DType | None) -> Expr:
    """(number - zero) · scale, as precise as the scale's dtype."""
    wide = _wide(scale)
    value = cast(number, wide)
    if zero is not None:
        value = value - cast(Operand(zero, name="zero"), wide)
    return cast(value * cast(Operand(scale, name="scale"), wide), scale)


def _numbers(packed: Any, packing: Packing) -> Any:
    *lead, size = dims_of(packed)
    block_format = NUMBERS[packing]
    made = decoded(block_format, ops.expand_dims(packed, axes=(len(lead) + 1,)))
    return ops.reshape(made, dims=(*lead, size * block_format.weights))


@composed("u8[*s b], f[*s g], i[*s g]? -> f[...]", kind=Kind.SPECIAL)
def block_dequantize(
    packed: Any, scale: Any, zero: Any = None, *, packing: Packing, block: int
) -> Any:
    """(number - zero) · scale, where `block` numbers of a row share a scale and a zero point.
    Floats of eight bits have no zero point; a NaN among them stays one."""
    if zero is not None and packing.startswith("fp8"):
        raise GraphError(f"operand 2: {packing} has no zero point")
    numbers = _numbers(packed, packing)
    *lead, size = dims_of(numbers)
    groups = dims_of(scale)[-1]
    if block < 1 or groups * block != size:
        raise GraphError(f"rows of {size} numbers are not {groups} blocks of {block}")
    given = {"number": ops.reshape(numbers, dims=(*lead, groups, block)), "scale": _inside(scale)}
    if zero is not None:
        given["zero"] = _inside(zero)
    kind = None if zero is None else dtype_of(zero)
    made = applied(scaled(Operand(DType.F32, name="number"), dtype_of(scale), kind), given)
    return ops.reshape(made, dims=(*lead, size))


def _inside(values: Any) -> Any:
    """A value per block, for each of its numbers."""
    return ops.expand_dims(values, axes=(len(dims_of(values)),))


def _wide(dtype: DType) -> DType:
    return DType.F64 if dtype is DType.F64 else DType.F32


def times_transposed(x: Any, weights: Any, multiply: Callable[[Any, Any], Any]) -> Any:
    """`multiply` of x and the weights with their last two axes exchanged: in f32, in f64 where x
    is, and rounded to x's dtype."""
    given, rank = dtype_of(x), len(dims_of(weights))
    perm = (*range(rank - 2), rank - 1, rank - 2)
    columns = ops.transpose(ops.cast(weights, to=_wide(given)), perm=perm)
    return ops.cast(multiply(ops.cast(x, to=_wide(given)), columns), to=given)


@composed("f[...], u8[n b], _[n g], i[n g]? -> f[...]", kind=Kind.CONTRACTION)
def dequant_matmul(
    x: Any, packed: Any, scale: Any, zero: Any = None, *, packing: Packing, block: int
) -> Any:
    """x · Wᵀ, where W is what `block_dequantize` gives. Half floats are multiplied in f32 and
    rounded once."""
    weights = ops.block_dequantize(packed, scale, zero, packing=packing, block=block)
    return times_transposed(x, weights, ops.matmul)


@composed("f[m k], u8[e n b], _[m], _[e n g], i[e n g]? -> f[...]", kind=Kind.CONTRACTION)
def dequant_grouped_matmul(
    x: Any, packed: Any, experts: Any, scale: Any, zero: Any = None, *, packing: Packing, block: int
) -> Any:
    """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
    weights = ops.block_dequantize(packed, scale, zero, packing=packing, block=block)
    return times_transposed(x, weights, lambda a, w: ops.grouped_matmul(a, w, experts))


# -- quantisation ---------------------------------------------------------------------------------

Signed = Literal["int8", "int4", "fp8_e4m3", "fp8_e5m2"]
_GREATEST: dict[str, float] = {"int8": 127.0, "int4": 7.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


@composed("f[*s k] -> u8[...], f[...]", kind=Kind.SPECIAL)
def block_quantize(x: Any, *, packing: Signed, block: int) -> tuple[Any, Any]:
    """Bytes and scales of which `block_dequantize` makes x again, up to rounding. The scale of
    `block` consecutive elements makes the greatest of them, in size, the greatest number of the
    packing; numbers are rounded to the nearest, ties to the even one, and none past the greatest.
    A block with a NaN or infinity in it comes back as NaN."""
    *lead, size = dims_of(x)
    groups = exact_div(size, block) if block > 0 else None
    if groups is None or (packing == "int4" and exact_div(size, 2) is None):
        twos = ", whose numbers fill bytes in twos" if packing == "int4" else ""
        raise GraphError(f"rows of {size} numbers are not blocks of {block}{twos}")
    wide = ops.cast(ops.reshape(x, dims=(*lead, groups, block)), to=_wide(dtype_of(x)))
    most = ops.max(ops.abs(wide), axes=(len(lead) + 1,))
    scale = ops.cast(ops.div(most, _GREATEST[packing]), to=dtype_of(x))
    each = _inside(ops.cast(scale, to=dtype_of(wide)))
    given = ops.div(wide, each)
    known = ops.logical_not(ops.logical_or(ops.equal(each, 0.0), ops.is_nan(given)))
    numbers = ops.reshape(ops.where(known, given, 0.0), dims=(*lead, size))
    return _packed(numbers, packing), scale


def _edges(packing: Signed, dtype: DType) -> Array:
    """For each finite code but 0, the least number that is rounded to it or a greater one: the
    middle between it and the code before, or, where that code is even, the next number after."""
    codes = np.arange(127 if packing == "fp8_e4m3" else 124, dtype=np.uint8)
    values = _numbers(codes, packing).astype(dtype.numpy)
    middles = (values[1:] + values[:-1]) / 2
    after = np.nextafter(middles, values.dtype.type(np.inf))
    return np.where(np.arange(len(middles)) % 2 == 0, after, middles)


def _packed(numbers: Any, packing: Signed) -> Any:
    """The bytes that hold the nearest numbers."""
    if packing.startswith("fp8"):
        edges = _edges(packing, dtype_of(numbers))
        codes = ops.cast(ops.searchsorted(edges, ops.abs(numbers), side="right"), to=DType.U8)
        return ops.where(ops.less(numbers, 0.0), ops.bit_or(codes, np.uint8(128)), codes)
    most = _GREATEST[packing]
    near = ops.clamp(ops.round(numbers), min=-most, max=most)
    codes = ops.bitcast(ops.cast(near, to=DType.I8), to=DType.U8)
    if packing == "int8":
        return codes
    *lead, size = dims_of(codes)
    pairs = ops.reshape(ops.bit_and(codes, np.uint8(15)), dims=(*lead, size // 2, 2))
    low, high = (
        ops.reshape(
            ops.narrow(pairs, axis=len(lead) + 1, start=i, length=1), dims=(*lead, size // 2)
        )
        for i in (0, 1)
    )
    return ops.bit_or(low, ops.shift_left(high, np.uint8(4)))


# -- drawing --------------------------------------------------------------------------------------


def _draw_blocks(draw: Draw, lead: tuple[int, ...]) -> tuple[list[Spec], dict[str, Any], int]:
    """Bytes, scales and perhaps zero points, the attributes, and how many numbers a row has."""
    packing = draw.choice(PACKINGS)
    is_half = packing in ("int4", "uint4")
    groups, block = draw.integer(0, 3), 2 * draw.integer(1, 3)
    size = groups * block // (2 if is_half else 1)
    specs = [
        Spec((*lead, size), DType.U8, "index:256"),
        Spec((*lead, groups), draw.dtype("f"), "positive"),
    ]
    if not packing.startswith("fp8") and draw.coin():
        specs.append(Spec((*lead, groups), draw.choice((DType.I8, DType.U8, DType.I32)), "plain"))
    return specs, {"packing": packing, "block": block}, groups * block


@block_dequantize.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    specs, attrs, _ = _draw_blocks(draw, draw.dims(0, 2))
    return specs, attrs


@dequant_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    specs, attrs, k = _draw_blocks(draw, (draw.size(),))
    return [Spec((*draw.dims(0, 2), k), draw.dtype("f"), "plain"), *specs], attrs


@dequant_grouped_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    experts, rows = draw.integer(1, 3), draw.size()
    (packed, *scales), attrs, k = _draw_blocks(draw, (experts, draw.size()))
    chosen = Spec((rows,), draw.dtype("i"), f"index:{experts}")
    return [Spec((rows, k), draw.dtype("f"), "plain"), packed, chosen, *scales], attrs


@block_quantize.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    block = 2 * draw.integer(1, 3)
    dims = (*draw.dims(0, 2), draw.integer(0, 3) * block)
    attrs = {"packing": draw.choice(tuple(_GREATEST)), "block": block}
    return [Spec(dims, draw.dtype("f"))], attrs
