"""GGUF block decoders: what `rlx.ops.quant.gguf` makes of a block, to the same bits.

A decoder is a function from a block being read and the index of a weight to a vector of weights
from that one on. The op's page documents each block's layout, in the same order and words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.lowp.block_reader import Block, ScalarI32, real
from rlx.backends.cpu.codegen.math.storage_types import from_memory
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.twiddles import constant
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.llvm.builder import Code, Vec
from rlx.core.dtype import DType
from rlx.ops.quant.gguf import EVEN_SIGNS, FOURS, HALVED_E2M1, SCHEMES
from rlx.ops.quant.gguf_codebooks import points

F16, BF16, F32, I8, I32, U16 = (
    DType.F16, DType.BF16, DType.F32, DType.I8, DType.I32, DType.U16,
)  # fmt: skip
Weights = Callable[[Block, int], Vec]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A scheme's decoder, and the most contiguous weights that one vector may take."""

    weights: Weights
    run: int


DECODERS: dict[str, Decoder] = {}
PLAIN = {"f32": F32, "f16": F16, "bf16": BF16}
"""Schemes without blocks."""


def _decoder(name: str, run: int = 16) -> Callable[[Weights], Weights]:
    def declare(weights: Weights) -> Weights:
        DECODERS[name] = Decoder(weights, run)
        return weights

    return declare


def unpack(code: Code, scheme: str) -> str:
    """The name of `void (ptr from, ptr to, i64 blocks)`, which dequantises to f32."""
    name, args = f"unpack.{scheme}", "ptr %from, ptr %to, i64 %count"
    if scheme in PLAIN:
        lanes = code.isa.lanes(F32)
        for width in (1, lanes):
            helper(code, f"{name}.{width}", args, lambda c: _plain(c, name, PLAIN[scheme]), width)
        return f"{name}.{lanes}"
    lanes = _lanes(code.isa, DECODERS[scheme].run)
    helper(code, name, args, lambda c: _blocks(c, scheme), lanes)
    return name


def _lanes(isa: Isa, run: int) -> int:
    return min(isa.lanes(F32), run)


def _blocks(code: Code, scheme: str) -> None:
    layout, weights = SCHEMES[scheme], DECODERS[scheme].weights
    with code.count(0, "%count", 1) as i:
        start = code.let(f"getelementptr [{layout.size} x i8], ptr %from, i64 {i}")
        to = code.let(f"getelementptr [{layout.weights} x float], ptr %to, i64 {i}")
        block = Block(code, start)
        for weight in range(0, layout.weights, code.lanes):
            _put(code, weights(block, weight), to, weight)


def _put(code: Code, value: Vec, to: str, weight: int | str) -> None:
    where = code.let(f"getelementptr float, ptr {to}, i64 {weight}")
    code.do(f"store {value.type} {value.text}, ptr {where}, align 4")


def _plain(code: Code, name: str, dtype: DType) -> None:
    """Contiguous numbers; the remainder scalar."""
    raw, size = (DType.U32 if dtype is F32 else U16), dtype.itemsize
    whole = code.let(f"and i64 %count, {-code.lanes}")
    with code.count(0, whole, code.lanes) as i:
        where = code.let(f"getelementptr i{8 * size}, ptr %from, i64 {i}")
        text = code.let(f"load {code.vector(f'i{8 * size}')}, ptr {where}, align 1")
        _put(code, from_memory(Vec(code, text, raw), dtype), "%to", i)
    if code.lanes > 1:
        start = code.let(f"getelementptr i{8 * size}, ptr %from, i64 {whole}")
        to = code.let(f"getelementptr float, ptr %to, i64 {whole}")
        rest = code.let(f"sub i64 %count, {whole}")
        code.do(f"call void @{name}.1(ptr {start}, ptr {to}, i64 {rest})")


# -- blocks of 32 ---------------------------------------------------------------------------------


@_decoder("q4_0")
def _(b: Block, w: int) -> Vec:
    return b.lookup_4bit("fours", 2, w, lambda q: b.half(0) * (q - 8.0))


@_decoder("q4_1")
def _(b: Block, w: int) -> Vec:
    return b.lookup_4bit("fours", 4, w, lambda q: b.half(0) * q + b.half(2))


def _fives(b: Block, at: int, w: int) -> Vec:
    low = b.plane(at + 4, 16, 4, w)
    return (low | 16).where(b.bits(b.integer(at + w // 16 * 2, 2), w % 16), low)


@_decoder("q5_0")
def _(b: Block, w: int) -> Vec:
    return b.half(0) * _less(_fives(b, 2, w), 16)


@_decoder("q5_1")
def _(b: Block, w: int) -> Vec:
    return b.half(0) * real(_fives(b, 4, w)) + b.half(2)


def _less(numbers: Vec, by: int) -> Vec:
    """Unsigned bytes below 128 less a constant, as signed bytes."""
    return real((numbers - by).bits(I8))


@_decoder("q8_0")
def _(b: Block, w: int) -> Vec:
    return b.half(0) * b.signed(2 + w)


@_decoder("iq4_nl")
def _(b: Block, w: int) -> Vec:
    return b.lookup_4bit("fours", 2, w, lambda q: b.half(0) * q, levels=FOURS)


@_decoder("mxfp4")
def _(b: Block, w: int) -> Vec:
    def scale() -> Vec:
        e = b.integer(0)
        is_small = b.code.let(f"icmp ult i32 {e.text}, 2")
        # a shift by 2 or more is not selected, and one past the width would be poison
        small = ScalarI32(b.code, 1 << 21) << (e & 1)
        return b.bits_as_f32(small.where(is_small, e - 1 << 23))

    return b.lookup_4bit("fours", 1, w, lambda q: b.cached("scale", scale) * q, levels=HALVED_E2M1)


# -- super-blocks of 256: quantised scales --------------------------------------------------------


@_decoder("q2_k")
def _(b: Block, w: int) -> Vec:
    scale = b.lane("scale", w // 16, lambda g: b.half(80) * real(b.bytes(g[0]) & 15))
    offset = b.lane("offset", w // 16, lambda g: b.half(82) * real(b.bytes(g[0]) >> 4))
    return scale * real(b.plane(16, 32, 2, w)) - offset


@_decoder("q3_k")
def _(b: Block, w: int) -> Vec:
    def scales(several: range) -> Vec:
        low = b.fields(94, [(96 + g % 8, g // 8 * 4) for g in several], 4)
        high = b.fields(94, [(104 + g % 4, g // 4 * 2) for g in several], 2)
        return b.half(108) * ((low | high << 4).to(F32) - 32.0)

    q = b.plane(32, 32, 2, w) | b.plane(0, 32, 1, w) << 2
    return b.lane("scale", w // 16, scales) * _less(q, 4)


def _six(b: Block, g: int, at: int) -> Vec:
    """Scale (at 0) or offset (at 1) number g of eight."""

    def make(several: range) -> Vec:
        pairs = [divmod(n, 8) for n in several]
        low = b.fields(0, [(4 + 4 * a + g, 0) if g < 4 else (8 + g, 4 * a) for a, g in pairs], 6)
        high = b.fields(0, [(4 + 4 * a + g % 4, 6) for a, g in pairs], 2)
        late = (low & 15) | high << 4
        number = late.where(b.mask([g > 3 for _, g in pairs]), low).to(F32)
        scales = [b.half(2 * a) for a in sorted({a for a, _ in pairs})]
        if len(scales) == 1:
            return scales[0] * number
        return scales[1].where(b.mask([a == 1 for a, _ in pairs]), scales[0]) * number

    return b.lane("six", 8 * at + g, make)


@_decoder("q4_k")
def _(b: Block, w: int) -> Vec:
    scale, offset = _six(b, w // 32, 0), _six(b, w // 32, 1)
    return b.lookup_4bit(("fours", w // 32), 16, w, lambda q: scale * q - offset, run=32)


@_decoder("q5_k")
def _(b: Block, w: int) -> Vec:
    q = b.plane(48, 32, 4, w) | b.plane(16, 32, 1, w) << 4
    return _six(b, w // 32, 0) * real(q) - _six(b, w // 32, 1)


@_decoder("q6_k")
def _(b: Block, w: int) -> Vec:
    scale = b.lane("scale", w // 16, lambda g: b.half(208) * b.signed(192 + g[0]))
    q = b.plane(0, 64, 4, w) | b.plane(128, 32, 2, w) << 4
    return scale * _less(q, 32)


@_decoder("q8_k")
def _(b: Block, w: int) -> Vec:
    return b.cached("scale", lambda: b.bits_as_f32(b.integer(0, 4))) * b.signed(4 + w)


@_decoder("iq4_xs")
def _(b: Block, w: int) -> Vec:
    def scales(several: range) -> Vec:
        eight = [g % 8 for g in several]
        low = b.fields(0, [(4 + g // 2, g % 2 * 4) for g in eight], 4)
        high = b.fields(0, [(2 + g // 4, g % 4 * 2) for g in eight], 2)
        return b.half(0) * ((low | high << 4).to(F32) - 32.0)

    scale = b.lane("scale", w // 32, scales)
    return b.lookup_4bit(("fours", w // 32), 8, w, lambda q: scale * q, levels=FOURS)


# -- super-blocks of 256: ternary -----------------------------------------------------------------


@_decoder("tq1_0", run=4)
def _(b: Block, w: int) -> Vec:
    first, at, run = next(r for r in ((240, 48, 4), (160, 32, 16), (0, 0, 32)) if w >= r[0])
    turn, byte = divmod(w - first, run)
    digit = (b.bytes(at + byte) * 3**turn).to(I32) * 3 >> 8
    return b.half(52) * (digit.to(F32) - 1.0)


@_decoder("tq2_0")
def _(b: Block, w: int) -> Vec:
    return b.half(64) * _less(b.plane(0, 32, 2, w), 1)


# -- super-blocks of 256: vector codebooks --------------------------------------------------------


def _point(b: Block, name: str, place: ScalarI32, w: int) -> Vec:
    """Components of a codebook vector, from that of the weight on."""
    table = points(name)
    width = table.shape[1]
    base = constant(b.code, f"points.{name}", table.astype("int8"))
    index = b.code.let(f"zext i32 {place.text} to i64")
    row = b.code.let(f"getelementptr [{width} x i8], ptr {base}, i64 {index}")
    at = b.code.let(f"getelementptr i8, ptr {row}, i64 {w % width}")
    return real(b.bytes_at(at).bits(I8))


def _signed(b: Block, values: Vec, signs: ScalarI32, w: int) -> Vec:
    """Negated where the sign bit is 1."""
    return (-values).where(b.bits(signs, w % 8), values)


def _even_signs(b: Block, seven: ScalarI32) -> ScalarI32:
    base = constant(b.code, "even.signs", EVEN_SIGNS)
    at = b.code.let(f"getelementptr i8, ptr {base}, i32 {seven.text}")
    value = b.code.let(f"load i8, ptr {at}")
    return ScalarI32(b.code, b.code.let(f"zext i8 {value} to i32"))


def _lifted(b: Block, g: int, integer: Callable[[], ScalarI32], factor: float) -> Vec:
    return b.cached(("scale", g), lambda: b.half(0) * (b.real(integer()) + 0.5) * factor)


def _odd(b: Block, scale: Vec, integer: ScalarI32) -> Vec:
    return scale * (b.real(integer) * 2.0 + 1.0)


@_decoder("iq2_xxs", run=8)
def _(b: Block, w: int) -> Vec:
    s, p = divmod(w // 8, 4)
    integer = b.integer(6 + 8 * s, 4)
    scale = _lifted(b, s, lambda: integer >> 28, 0.25)
    signs = _even_signs(b, integer >> 7 * p & 127)
    return scale * _signed(b, _point(b, "iq2_xxs", b.integer(2 + 8 * s + p), w), signs, w)


@_decoder("iq2_xs", run=8)
def _(b: Block, w: int) -> Vec:
    integer, g = b.integer(2 + w // 8 * 2, 2), w // 16
    scale = _lifted(b, g, lambda: b.field(66, g, 4), 0.25)
    signs = _even_signs(b, integer >> 9)
    return scale * _signed(b, _point(b, "iq2_xs", integer & 511, w), signs, w)


@_decoder("iq2_s", run=8)
def _(b: Block, w: int) -> Vec:
    p, g = w // 8, w // 16
    scale = _lifted(b, g, lambda: b.field(74, g, 4), 0.25)
    place = b.integer(2 + p) | b.field(66, p, 2) << 8
    return scale * _signed(b, _point(b, "iq2_s", place, w), b.integer(34 + p), w)


@_decoder("iq3_xxs", run=4)
def _(b: Block, w: int) -> Vec:
    s, p = divmod(w // 8, 4)
    integer = b.integer(66 + 4 * s, 4)
    scale = _lifted(b, s, lambda: integer >> 28, 0.5)
    signs = _even_signs(b, integer >> 7 * p & 127)
    return scale * _signed(b, _point(b, "iq3_xxs", b.integer(2 + w // 4), w), signs, w)


@_decoder("iq3_s", run=4)
def _(b: Block, w: int) -> Vec:
    p, g = w // 4, w // 32
    scale = b.cached(("scale", g), lambda: _odd(b, b.half(0), b.field(106, g, 4)))
    place = b.integer(2 + p) | b.field(66, p, 1) << 8
    return scale * _signed(b, _point(b, "iq3_s", place, w), b.integer(74 + w // 8), w)


def _moved(b: Block, place: ScalarI32, sign: ScalarI32, w: int) -> Vec:
    """A ternary codebook vector plus ⅛, or minus where the sign is 1."""
    one = b.code.const(1.0, F32)
    return _point(b, "iq1", place, w) + (one - b.real(sign) * 2.0) * 0.125


@_decoder("iq1_s", run=8)
def _(b: Block, w: int) -> Vec:
    s, p = divmod(w // 8, 4)
    integer = b.integer(34 + 2 * s, 2)
    scale = b.cached(("scale", s), lambda: _odd(b, b.half(0), integer >> 12 & 7))
    place = b.integer(2 + w // 8) | (integer >> 3 * p & 7) << 8
    return scale * _moved(b, place, integer >> 15, w)


@_decoder("iq1_m", run=8)
def _(b: Block, w: int) -> Vec:
    def whole() -> Vec:
        a, *rest = (b.integer(48 + 2 * i, 2) >> 12 << 4 * i for i in range(4))
        for more in rest:
            a = a | more
        return b.half_of(a)

    g, p = w // 16, w // 8
    field = b.integer(48 + g // 4 * 2, 2) >> 3 * (g % 4) & 7
    scale = b.cached(("scale", g), lambda: _odd(b, b.cached("whole", whole), field))
    rest = b.field(32, p, 4)
    return scale * _moved(b, b.integer(p) | (rest & 7) << 8, rest >> 3, w)
