"""GGUF quantisation: decoding of its block formats.

Every scheme is decoded by table ops, so that any target can, and to the bit as the file format
defines it. Numbers of more than one byte are little-endian. In the notes of the layouts, `n·b` are
n fields of b bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, exact_div, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Kind
from rlx.ops.quant.block_scaled import times_transposed
from rlx.ops.quant.gguf_codebooks import points

Scheme = Literal[
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "q8_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl",
    "iq4_xs", "tq1_0", "tq2_0", "mxfp4",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How many weights a block has, how many bytes, and what they mean: u8[blocks, bytes] →
    f32[blocks, weights]."""

    weights: int
    size: int
    decode: Callable[[Any], Any]


SCHEMES: dict[str, Layout] = {}


def _scheme(name: Scheme, weights: int, size: int) -> Callable[[Callable[[Any], Any]], Any]:
    def declare(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        SCHEMES[name] = Layout(weights, size, decode)
        return decode

    return declare


# -- reading fields -------------------------------------------------------------------------------


def _part(blocks: Any, start: int, size: int) -> Any:
    return ops.narrow(blocks, axis=1, start=start, length=size)


def _flat(x: Any) -> Any:
    """[n, ...] as [n, m]."""
    first, *rest = dims_of(x)
    return ops.reshape(x, dims=(first, product(rest)))


def _words(part: Any, dtype: DType) -> Any:
    """Bytes as unsigned numbers of `dtype`'s width."""
    n, size = dims_of(part)
    width = dtype.itemsize
    apart = ops.cast(ops.reshape(part, dims=(n, size // width, width)), to=dtype)
    shifts = np.arange(0, 8 * width, 8, dtype=dtype.numpy)
    return ops.sum(ops.shift_left(apart, shifts), axes=(2,))


def _half(blocks: Any, start: int) -> Any:
    """The f16 at a byte, as f32[n, 1]."""
    bits = _words(_part(blocks, start, 2), DType.U16)
    return ops.cast(ops.bitcast(bits, to=DType.F16), to=DType.F32)


def _fields(words: Any, shifts: Sequence[int], bits: int) -> Any:
    """Of each number, its fields of `bits` at these shifts, concatenated."""
    kind = dtype_of(words).numpy
    apart = ops.shift_right(ops.expand_dims(words, axes=(2,)), np.array(shifts, kind))
    return _flat(ops.bit_and(apart, np.array((1 << bits) - 1, kind)))


def _planes(part: Any, run: int, bits: int) -> Any:
    """Runs of bytes, each as planes: of all its bytes the lowest `bits`, then the next, and on."""
    n, size = dims_of(part)
    apart = ops.reshape(part, dims=(n, size // run, 1, run))
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    return _flat(ops.bit_and(ops.shift_right(apart, shifts), np.uint8((1 << bits) - 1)))


def _with_high(low: Any, high: Any, at: int) -> Any:
    """Numbers whose bits from `at` upwards are `high`."""
    kind = dtype_of(low).numpy
    return ops.bit_or(low, ops.shift_left(ops.cast(high, to=dtype_of(low)), np.array(at, kind)))


def _real(x: Any) -> Any:
    return ops.cast(x, to=DType.F32)


def _signed(part: Any) -> Any:
    """Bytes as numbers from -128 to 127."""
    return _real(ops.bitcast(part, to=DType.I8))


def _scaled(scales: Any, x: Any) -> Any:
    """Runs of x, one after the other, each times its scale: f32[n, s] and f32[n, w]."""
    n, count = dims_of(scales)
    runs = ops.reshape(x, dims=(n, count, dims_of(x)[1] // count))
    return _flat(ops.mul(ops.expand_dims(scales, axes=(2,)), runs))


def _spread(values: Any, width: DimLike) -> Any:
    """Each value `width` times: [n, m] as [n, m · width]."""
    n, count = dims_of(values)
    return _flat(ops.expand(ops.expand_dims(values, axes=(2,)), dims=(n, count, width)))


def _looked_up(table: np.ndarray, indices: Any) -> Any:
    return _flat(ops.gather(table, indices, axis=0))


def _sign(bits: Any) -> Any:
    """1 for a bit that is 0, -1 for one that is 1."""
    return ops.sub(1.0, ops.mul(_real(bits), 2.0))


# -- plain numbers --------------------------------------------------------------------------------


@_scheme("f32", 1, 4)
def _(blocks: Any) -> Any:
    return ops.bitcast(_words(blocks, DType.U32), to=DType.F32)


@_scheme("f16", 1, 2)
def _(blocks: Any) -> Any:
    return _half(blocks, 0)


@_scheme("bf16", 1, 2)
def _(blocks: Any) -> Any:
    bits = ops.cast(_words(blocks, DType.U16), to=DType.U32)
    return ops.bitcast(ops.shift_left(bits, np.uint32(16)), to=DType.F32)


# -- blocks of 32: one scale, and for some an offset ----------------------------------------------


@_scheme("q4_0", 32, 18)
def _(blocks: Any) -> Any:
    """f16 scale, 32·4 less 8."""
    q = _planes(_part(blocks, 2, 16), 16, 4)
    return ops.mul(_half(blocks, 0), ops.sub(_real(q), 8.0))


@_scheme("q4_1", 32, 20)
def _(blocks: Any) -> Any:
    """f16 scale, f16 offset, 32·4."""
    q = _planes(_part(blocks, 4, 16), 16, 4)
    return ops.add(ops.mul(_half(blocks, 0), _real(q)), _half(blocks, 2))


def _fives(blocks: Any, start: int) -> Any:
    """32·1 high bits, then 32·4 low ones."""
    low = _planes(_part(blocks, start + 4, 16), 16, 4)
    return _real(_with_high(low, _planes(_part(blocks, start, 4), 1, 1), 4))


@_scheme("q5_0", 32, 22)
def _(blocks: Any) -> Any:
    """f16 scale, 32·5 less 16."""
    return ops.mul(_half(blocks, 0), ops.sub(_fives(blocks, 2), 16.0))


@_scheme("q5_1", 32, 24)
def _(blocks: Any) -> Any:
    """f16 scale, f16 offset, 32·5."""
    return ops.add(ops.mul(_half(blocks, 0), _fives(blocks, 4)), _half(blocks, 2))


@_scheme("q8_0", 32, 34)
def _(blocks: Any) -> Any:
    """f16 scale, 32·8 signed."""
    return ops.mul(_half(blocks, 0), _signed(_part(blocks, 2, 32)))


FOURS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
HALVED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the numbers of one sign, two exponent and one mantissa bit."""


@_scheme("iq4_nl", 32, 18)
def _(blocks: Any) -> Any:
    """f16 scale, 32·4 places in a table of uneven steps."""
    q = _planes(_part(blocks, 2, 16), 16, 4)
    return ops.mul(_half(blocks, 0), _looked_up(FOURS, q))


@_scheme("mxfp4", 32, 17)
def _(blocks: Any) -> Any:
    """8-bit exponent of the scale, 32·4 e2m1. The table is doubled, so the scale is halved:
    2^(e-128), which is subnormal for e below 2."""
    e = ops.cast(_part(blocks, 0, 1), to=DType.U32)
    small = ops.shift_left(np.uint32(1 << 21), e)
    bits = ops.where(ops.less(e, 2), small, ops.shift_left(ops.sub(e, 1), np.uint32(23)))
    q = _planes(_part(blocks, 1, 16), 16, 4)
    return ops.mul(ops.bitcast(bits, to=DType.F32), _looked_up(HALVED_E2M1, q))


# -- blocks of 256: scales of scales --------------------------------------------------------------


@_scheme("q2_k", 256, 84)
def _(blocks: Any) -> Any:
    """16·(4 scale, 4 offset), 256·2, f16 scale of scales, f16 scale of offsets."""
    scales, offsets = (
        ops.mul(_half(blocks, at), _real(_fields(_part(blocks, 0, 16), (shift,), 4)))
        for at, shift in ((80, 0), (82, 4))
    )
    q = _planes(_part(blocks, 16, 64), 32, 2)
    return ops.sub(_scaled(scales, _real(q)), _spread(offsets, 16))


@_scheme("q3_k", 256, 110)
def _(blocks: Any) -> Any:
    """256·1 high bits, 256·2 low ones, 16·4 low bits of the scales and 16·2 high ones, f16 scale
    of scales. A high bit of 0 takes off 4, and a scale is less 32."""
    low, high = _planes(_part(blocks, 96, 8), 8, 4), _planes(_part(blocks, 104, 4), 4, 2)
    scales = ops.sub(_real(_with_high(low, high, 4)), 32.0)
    q = _with_high(_planes(_part(blocks, 32, 64), 32, 2), _planes(_part(blocks, 0, 32), 32, 1), 2)
    return _scaled(ops.mul(_half(blocks, 108), scales), ops.sub(_real(q), 4.0))


def _sixes(blocks: Any) -> tuple[Any, Any]:
    """f16 scale of scales, f16 scale of offsets, then 8 scales and 8 offsets of 6 bits in 12
    bytes: four scales, four offsets, and the low bits of the other four of each; their high bits
    are the spare ones of the first eight bytes."""
    first, offset, rest = (_part(blocks, 4 + 4 * i, 4) for i in range(3))
    made: list[Any] = []
    for at, held, shift in ((0, first, 0), (2, offset, 4)):
        late = _with_high(_fields(rest, (shift,), 4), _fields(held, (6,), 2), 4)
        whole = ops.concat([_fields(held, (0,), 6), late], axis=1)
        made.append(ops.mul(_half(blocks, at), _real(whole)))
    return made[0], made[1]


@_scheme("q4_k", 256, 144)
def _(blocks: Any) -> Any:
    """Scales and offsets, 256·4."""
    scales, offsets = _sixes(blocks)
    q = _planes(_part(blocks, 16, 128), 32, 4)
    return ops.sub(_scaled(scales, _real(q)), _spread(offsets, 32))


@_scheme("q5_k", 256, 176)
def _(blocks: Any) -> Any:
    """Scales and offsets, 256·1 high bits, 256·4 low ones."""
    scales, offsets = _sixes(blocks)
    high = _planes(_part(blocks, 16, 32), 32, 1)
    q = _with_high(_planes(_part(blocks, 48, 128), 32, 4), high, 4)
    return ops.sub(_scaled(scales, _real(q)), _spread(offsets, 32))


@_scheme("q6_k", 256, 210)
def _(blocks: Any) -> Any:
    """256·4 low bits, 256·2 high ones, 16·8 signed scales, f16 scale of scales; less 32."""
    low, high = _planes(_part(blocks, 0, 128), 64, 4), _planes(_part(blocks, 128, 64), 32, 2)
    scales = ops.mul(_half(blocks, 208), _signed(_part(blocks, 192, 16)))
    return _scaled(scales, ops.sub(_real(_with_high(low, high, 4)), 32.0))


@_scheme("q8_k", 256, 292)
def _(blocks: Any) -> Any:
    """f32 scale, 256·8 signed, 16·16 sums of them, which decoding does not need."""
    scale = ops.bitcast(_words(_part(blocks, 0, 4), DType.U32), to=DType.F32)
    return ops.mul(scale, _signed(_part(blocks, 4, 256)))


@_scheme("iq4_xs", 256, 136)
def _(blocks: Any) -> Any:
    """f16 scale of scales, 8·2 high bits of the scales, 8·4 low ones, 256·4 places in the table
    of iq4_nl. A scale is less 32."""
    low, high = _planes(_part(blocks, 4, 4), 1, 4), _planes(_part(blocks, 2, 2), 1, 2)
    scales = ops.sub(_real(_with_high(low, high, 4)), 32.0)
    q = _planes(_part(blocks, 8, 128), 16, 4)
    return _scaled(ops.mul(_half(blocks, 0), scales), _looked_up(FOURS, q))


# -- blocks of 256: three levels ------------------------------------------------------------------


@_scheme("tq1_0", 256, 54)
def _(blocks: Any) -> Any:
    """Five weights in a byte (in the last four bytes four), f16 scale. A byte is a fraction of
    256 in base 3: times 3ⁱ, wrapping, its first digit is weight i."""
    runs = [(0, 32, 5), (32, 16, 5), (48, 4, 4)]
    rotated = [
        _flat(ops.mul(ops.expand_dims(_part(blocks, start, size), axes=(1,)),
                      (3 ** np.arange(count, dtype=np.uint8)).reshape(-1, 1)))
        for start, size, count in runs
    ]  # fmt: skip
    wide = ops.mul(ops.cast(ops.concat(rotated, axis=1), to=DType.U16), 3)
    digits = ops.shift_right(wide, np.uint16(8))
    return ops.mul(_half(blocks, 52), ops.sub(_real(digits), 1.0))


@_scheme("tq2_0", 256, 66)
def _(blocks: Any) -> Any:
    """256·2 less 1, f16 scale."""
    q = _planes(_part(blocks, 0, 64), 32, 2)
    return ops.mul(_half(blocks, 64), ops.sub(_real(q), 1.0))


# -- blocks of 256: points of a set ---------------------------------------------------------------

EVEN_SIGNS = np.array(
    [i | (i.bit_count() % 2) << 7 for i in range(128)], np.uint8
)  # the eighth sign makes their product positive, so seven bits say all eight


def _pointed(name: str, scales: Any, indices: Any, signs: Any) -> Any:
    """Points of a set with signs, in runs that share a scale. `signs` has a byte per 8 weights."""
    values = ops.mul(_looked_up(points(name), indices), _sign(_planes(signs, 1, 1)))
    return _scaled(scales, values)


def _lifted(scale: Any, fields: Any, factor: float) -> Any:
    """scale · (½ + field) · factor."""
    return ops.mul(ops.mul(scale, ops.add(_real(fields), 0.5)), factor)


def _even_signs(words: Any) -> Any:
    """Four bytes of signs from the low 28 bits of each u32."""
    return _looked_up(EVEN_SIGNS, _fields(words, (0, 7, 14, 21), 7))


@_scheme("iq2_xxs", 256, 66)
def _(blocks: Any) -> Any:
    """f16 scale; per 32 weights, four places in the set and then 4·7 signs and 4 scale."""
    n = dims_of(blocks)[0]
    pairs = ops.reshape(_part(blocks, 2, 64), dims=(n, 8, 2, 4))
    places, rest = (
        ops.reshape(ops.narrow(pairs, axis=2, start=i, length=1), dims=(n, 32)) for i in (0, 1)
    )
    words = _words(rest, DType.U32)
    scales = _lifted(_half(blocks, 0), _fields(words, (28,), 4), 0.25)
    return _pointed("iq2_xxs", scales, places, _even_signs(words))


@_scheme("iq2_xs", 256, 74)
def _(blocks: Any) -> Any:
    """f16 scale, 32·(9 place in the set, 7 signs), 16·4 scales."""
    words = _words(_part(blocks, 2, 64), DType.U16)
    scales = _lifted(_half(blocks, 0), _planes(_part(blocks, 66, 8), 1, 4), 0.25)
    signs = _looked_up(EVEN_SIGNS, _fields(words, (9,), 7))
    return _pointed("iq2_xs", scales, _fields(words, (0,), 9), signs)


@_scheme("iq2_s", 256, 82)
def _(blocks: Any) -> Any:
    """f16 scale, 32·8 low bits of places in the set, 256·1 signs, 32·2 high bits of the places,
    16·4 scales."""
    low, high = _part(blocks, 2, 32), _planes(_part(blocks, 66, 8), 1, 2)
    places = _with_high(ops.cast(low, to=DType.U16), high, 8)
    scales = _lifted(_half(blocks, 0), _planes(_part(blocks, 74, 8), 1, 4), 0.25)
    return _pointed("iq2_s", scales, places, _part(blocks, 34, 32))


@_scheme("iq3_xxs", 256, 98)
def _(blocks: Any) -> Any:
    """f16 scale, 64·8 places in the set, then per 32 weights 4·7 signs and 4 scale."""
    words = _words(_part(blocks, 66, 32), DType.U32)
    scales = _lifted(_half(blocks, 0), _fields(words, (28,), 4), 0.5)
    return _pointed("iq3_xxs", scales, _part(blocks, 2, 64), _even_signs(words))


def _odd(scale: Any, fields: Any) -> Any:
    """scale · (2 · field + 1)."""
    return ops.mul(scale, ops.add(ops.mul(_real(fields), 2.0), 1.0))


@_scheme("iq3_s", 256, 110)
def _(blocks: Any) -> Any:
    """f16 scale, 64·8 low bits of places in the set, 64·1 high ones, 256·1 signs, 8·4 scales."""
    low, high = _part(blocks, 2, 64), _planes(_part(blocks, 66, 8), 1, 1)
    places = _with_high(ops.cast(low, to=DType.U16), high, 8)
    scales = _odd(_half(blocks, 0), _planes(_part(blocks, 106, 4), 1, 4))
    return _pointed("iq3_s", scales, places, _part(blocks, 74, 32))


def _shifted(scales: Any, places: Any, signs: Any) -> Any:
    """Points of three levels, moved by ⅛ up, or down where a sign is 1; a sign and a scale hold
    for as many points as they are fewer."""
    count = dims_of(places)[1] // dims_of(signs)[1]
    moved = ops.add(
        _looked_up(points("iq1"), places), _spread(ops.mul(_sign(signs), 0.125), 8 * count)
    )
    return _scaled(scales, moved)


@_scheme("iq1_s", 256, 50)
def _(blocks: Any) -> Any:
    """f16 scale, 32·8 low bits of places in the set, 8·(4·3 high bits, 3 scale, 1 sign)."""
    words = _words(_part(blocks, 34, 16), DType.U16)
    low = ops.cast(_part(blocks, 2, 32), to=DType.U16)
    places = _with_high(low, _fields(words, (0, 3, 6, 9), 3), 8)
    return _shifted(_odd(_half(blocks, 0), _fields(words, (12,), 3)), places,
                    _fields(words, (15,), 1))  # fmt: skip


@_scheme("iq1_m", 256, 56)
def _(blocks: Any) -> Any:
    """32·8 low bits of places in the set, 32·(3 high bits, 1 sign), 4·(4·3 scales, and 4 bits of
    the f16 scale of scales, the lowest first)."""
    words = _words(_part(blocks, 48, 8), DType.U16)
    quarters = ops.shift_left(_fields(words, (12,), 4), np.array([0, 4, 8, 12], np.uint16))
    bits = ops.sum(quarters, axes=(1,), keepdims=True)
    scale = ops.cast(ops.bitcast(bits, to=DType.F16), to=DType.F32)
    rest, low = _planes(_part(blocks, 32, 16), 1, 4), ops.cast(_part(blocks, 0, 32), to=DType.U16)
    places = _with_high(low, _fields(rest, (0,), 3), 8)
    return _shifted(_odd(scale, _fields(words, (0, 3, 6, 9), 3)), places, _fields(rest, (3,), 1))


# -- the ops --------------------------------------------------------------------------------------


@composed("u8[*s n] -> f32[...]", kind=Kind.SPECIAL)
def gguf_dequantize(packed: Any, *, scheme: Scheme) -> Any:
    """The weights that rows of GGUF blocks hold; a row is the last axis, and whole blocks."""
    *lead, size = dims_of(packed)
    layout = SCHEMES[scheme]
    count = exact_div(size, layout.size)
    if count is None:
        raise GraphError(
            f"operand 0 has rows of {size} bytes, which are no whole blocks of {scheme}: they "
            f"have {layout.size} bytes"
        )
    blocks = ops.reshape(packed, dims=(product(lead) * count, layout.size))
    return ops.reshape(layout.decode(blocks), dims=(*lead, count * layout.weights))


@composed("f[...], u8[n b] -> f[...]", kind=Kind.CONTRACTION)
def gguf_matmul(x: Any, packed: Any, *, scheme: Scheme) -> Any:
    """x · Wᵀ, where row i of W, the weights of output i, is row i of `packed`. Halves are
    multiplied in f32 and rounded once."""
    return times_transposed(x, ops.gguf_dequantize(packed, scheme=scheme), ops.matmul)


@composed("f[m k], u8[e n b], i[m] -> f[...]", kind=Kind.CONTRACTION)
def gguf_grouped_matmul(x: Any, packed: Any, experts: Any, *, scheme: Scheme) -> Any:
    """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
    weights = ops.gguf_dequantize(packed, scheme=scheme)
    return times_transposed(x, weights, lambda a, w: ops.grouped_matmul(a, w, experts))


# -- drawing --------------------------------------------------------------------------------------


def draw_packed(draw: Draw, lead: tuple[int, ...]) -> tuple[Spec, str, int]:
    """Rows of whole blocks of some scheme, and how many weights a row has."""
    scheme = draw.choice(tuple(SCHEMES))
    count, layout = draw.integer(0, 2), SCHEMES[scheme]
    bytes_ = Spec((*lead, count * layout.size), DType.U8, "index:256")
    return bytes_, scheme, count * layout.weights


@gguf_dequantize.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    packed, scheme, _ = draw_packed(draw, draw.dims(0, 2))
    return [packed], {"scheme": scheme}


@gguf_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    packed, scheme, k = draw_packed(draw, (draw.size(),))
    return [Spec((*draw.dims(0, 2), k), draw.dtype("f"), "plain"), packed], {"scheme": scheme}


@gguf_grouped_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    experts, rows = draw.integer(1, 3), draw.size()
    packed, scheme, k = draw_packed(draw, (experts, draw.size()))
    chosen = Spec((rows,), draw.dtype("i"), f"index:{experts}")
    return [Spec((rows, k), draw.dtype("f"), "plain"), packed, chosen], {"scheme": scheme}
