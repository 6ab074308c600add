"""Cast: between dtypes of rlx, and to and from the element types that are codes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.handlers.text.strings import from_numbers, to_numbers
from rlx.frontends.onnx.id_tensors import element_of, in_codes
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.small_dtypes import Small
from rlx.frontends.onnx.strings import TEXT
from rlx.frontends.onnx.values import Coded, Element, Sizes, Value
from rlx.ir.mir import Node


@handles("Cast")
@codes
def cast(call: Call) -> Value:
    kind = call.required("to")
    element = call.importer.reader.element(kind)
    return _cast(call, element or call.importer.reader.dtype(kind, call.label))


@handles("CastLike")
@codes
def cast_like(call: Call) -> Value:
    return _cast(call, element_of(call.value(1)) or call.shape(1).dtype)


def cast_to(call: Call, value: Value, to: Element | DType) -> Value:
    """A value of a call as another type."""
    return _cast(replace(call, inputs=(value,)), to)


def _cast(call: Call, to: Element | DType) -> Value:
    value = call.value(0)
    if isinstance(value, Sizes) and isinstance(to, DType) and to.is_integer:
        return Sizes(value.dims, value.shape, to)
    if element_of(value) == to:
        return value
    if to is TEXT:  # of codes that are strings, they were returned
        return from_numbers(call, number(call, 0))
    if element_of(value) is TEXT:
        read = to if isinstance(to, DType) else DType.F32
        call = replace(call, inputs=(to_numbers(call, value, read), *call.inputs[1:]))
    if isinstance(to, DType):
        return ops.cast(number(call, 0), to=to)
    assert isinstance(to, Small)
    return encoded(call, number(call, 0), to)


# -- numbers of few bits --------------------------------------------------------------------------


def number(call: Call, position: int) -> Node:
    """An operand as numbers that rlx has a dtype for: the values of codes."""
    value = call.value(position)
    element = element_of(value)
    held = call.as_node(in_codes(value, call.importer.strings))
    if element is None:
        return held
    if not isinstance(element, Small):
        raise call.refused(f"operand {position} is strings, expected numbers")
    return decoded(call, held, element)


def decoded(call: Call, held: Node, element: Small) -> Node:
    """Codes as the numbers they stand for: floats by a table of all of them."""
    if not element.is_float:
        return held
    table = call.graph.constant(element.values)
    return ops.gather(table, ops.cast(held, to=DType.I32), axis=0)


def encoded(call: Call, x: Node, element: Small) -> Coded:
    """Numbers as codes of an element type: as Cast does it."""
    if not element.is_float:
        return Coded(_low_bits(x, element), element)
    wide = ops.cast(x, to=DType.F32)
    is_saturated = bool(call.attr("saturate", 1))
    if element.name == "float8_e8m0fnu":
        return Coded(_exponents(call, wide, is_saturated), element)
    return Coded(_rounded(wide, FORMATS[element.name], is_saturated), element)


def _low_bits(x: Node, element: Small) -> Node:
    """Integers keep the bits there is room for, as ONNX has it for all integers."""
    whole = ops.cast(x, to=DType.I32)
    top = np.int32(1 << (element.bits - 1))
    kept = ops.bit_and(whole, np.int32((1 << element.bits) - 1))
    signed = ops.sub(ops.bit_xor(kept, top), top) if element.is_signed else kept
    return ops.cast(signed, to=element.storage)


@dataclass(frozen=True, slots=True)
class Format:
    """A float of few bits: sign, exponent, fraction. Codes without the sign are in the order of the
    numbers, from 0 on."""

    fraction: int
    least: int
    """The exponent of the smallest normal number."""
    largest: int
    """The code of the largest finite number."""
    overflow: int
    """The code of what is larger."""
    nan: int
    sign: int = 0x80
    has_negative_zero: bool = True


FORMATS = {
    "float8_e4m3fn": Format(3, -6, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": Format(3, -7, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e5m2": Format(2, -14, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": Format(2, -15, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float4_e2m1fn": Format(1, 0, 0x7, 0x7, 0x8, sign=0x8),
}
F32_BIAS, F32_FRACTION = 127, 23
BEYOND = np.float32(2.0**20)
"""Past the largest number of every format, and of a ulp that is a normal f32."""


def _rounded(x: Node, form: Format, is_saturated: bool) -> Node:
    """The nearest number, halves to even: a code is |x| in units of its last place, plus the codes
    of all smaller exponents. A carry into the next exponent is the next code, as it should be."""
    least = ops.minimum(ops.abs(x), BEYOND)
    exponent = _exponent(ops.where(ops.is_nan(x), np.float32(0), least))
    exponent = ops.maximum(exponent, np.int32(form.least))
    units = ops.mul(least, _power(ops.sub(np.int32(form.fraction), exponent)))
    smaller = ops.shift_left(ops.sub(exponent, np.int32(form.least)), np.int32(form.fraction))
    code = ops.add(ops.cast(ops.round(units), to=DType.I32), smaller)
    over = np.int32(form.largest if is_saturated else form.overflow)
    code = ops.where(ops.greater(code, np.int32(form.largest)), over, code)
    code = ops.where(ops.is_nan(x), np.int32(form.nan), code)
    return ops.cast(_with_sign(x, code, form), to=DType.U8)


def _exponent(x: Node) -> Node:
    """⌊log2 x⌋ of a number that is not negative; of one that is not normal, less than any other."""
    bits = ops.bitcast(x, to=DType.I32)
    return ops.sub(ops.shift_right(bits, np.int32(F32_FRACTION)), np.int32(F32_BIAS))


def _power(exponent: Node) -> Node:
    """2 to a whole number that a normal f32 has as its exponent."""
    bits = ops.shift_left(ops.add(exponent, np.int32(F32_BIAS)), np.int32(F32_FRACTION))
    return ops.bitcast(bits, to=DType.F32)


def _with_sign(x: Node, code: Node, form: Format) -> Node:
    is_negative = ops.less(ops.bitcast(x, to=DType.I32), np.int32(0))
    if not form.has_negative_zero:  # the code of -0 is NaN's
        is_negative = ops.logical_and(is_negative, ops.greater(code, np.int32(0)))
    return ops.bit_or(code, ops.where(is_negative, np.int32(form.sign), np.int32(0)))


E8M0_LARGEST, E8M0_NAN = 0xFE, 0xFF
SMALLEST = 0x400000
"""The bits of 2⁻¹²⁷, the smallest number of E8M0: an f32 that is not normal."""
ROUNDED_FROM = {
    "up": (1, SMALLEST + 1),
    "nearest": (0x400000, 0x600000),
    "down": (0x800000, 1 << 23),
}
"""By how it rounds: the fraction from which a number goes up, and the bits from which one that is
not normal does."""


def _exponents(call: Call, x: Node, is_saturated: bool) -> Node:
    """E8M0 has only powers of 2: the exponent of |x|, rounded by its fraction."""
    mode = call.attr("round_mode", "up")
    if mode not in ROUNDED_FROM:
        raise GraphError(f"{call.label}: round_mode {mode[:40]!r} is not one ONNX has")
    fraction, subnormal = (np.int32(n) for n in ROUNDED_FROM[mode])
    bits = ops.bitcast(ops.abs(x), to=DType.I32)
    carried = ops.shift_right(ops.add(bits, np.int32(0x800000) - fraction), np.int32(23))
    lowest = ops.cast(ops.greater_equal(bits, subnormal), to=DType.I32)
    code = ops.where(ops.less(bits, np.int32(0x800000)), lowest, carried)
    over = np.int32(E8M0_LARGEST if is_saturated else E8M0_NAN)
    code = ops.where(ops.greater(code, np.int32(E8M0_LARGEST)), over, code)
    if not is_saturated:
        code = ops.where(ops.less(bits, np.int32(SMALLEST)), np.int32(E8M0_NAN), code)
    return ops.cast(ops.where(ops.is_nan(x), np.int32(E8M0_NAN), code), to=DType.U8)
