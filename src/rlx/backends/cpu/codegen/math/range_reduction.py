"""Range reduction of angles to quadrants and a remainder, for f64 of any size (Payne-Hanek).

Near 0 the quadrants are subtracted in three parts (Cody-Waite). For large x the product x · 2/π is
taken modulo 4 from a table: x = X · 2³²ᵠ with X < 2⁸⁵, and row q holds 2³²ᵠ · 2/π mod 4 in eight
pieces of 26 bits. X is split into two halves, so every product is exact, and multiples of 4 in it
are dropped exactly.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from rlx.backends.cpu.llvm.values import Vec, fma, two_product, two_sum
from rlx.core.dtype import DType

F64 = DType.F64
TWO_OVER_PI = 0.6366197723675814
HALF_PI = (
    1.57079632673412561416626,
    6.077100506303965976595549e-11,
    2.022266248795950631541144e-21,
)
HALF_PI_DD = (1.5707963267948966, 6.123233995736766e-17)
ROUNDER = 1.5 * 2.0**52
NEAR = 2.0**19
"""Below, n has 20 bits, and n times a part of π/2 with 33 bits is exact."""
STEP, ROWS, PIECES, PIECE_BITS = 32, 31, 8, 26


def quarter_turns(x: Vec) -> tuple[Vec, Vec, Vec]:
    """n and r + rest with x = n · π/2 + r + rest, |r| ≤ π/4; n is right modulo 4."""
    n, r, rest = _near(x)
    code = x.code
    slots = [code.local(v.dtype) for v in (n, r, rest)]
    for v, slot in zip((n, r, rest), slots):
        code.store(slot, v)
    is_far = ~(x.abs() < NEAR)
    with code.when(is_far.any()):
        for v, s, old in zip(_far(x), slots, (n, r, rest)):
            code.store(s, v.where(is_far, old))
    found = [code.load(s, v.dtype) for v, s in zip((n, r, rest), slots)]
    return found[0], found[1], found[2]


def _near(x: Vec) -> tuple[Vec, Vec, Vec]:
    x = x.like(0.0).where(x.abs() > NEAR, x)
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    whole = shifted.bits(DType.I64)
    a = fma(n, -HALF_PI[0], x)
    b, lost = two_product(n, n.like(-HALF_PI[1]))
    r, rest = two_sum(a, b)
    rest = rest + lost
    c = n * -HALF_PI[2]
    r, more = two_sum(r, c)
    return whole, r, rest + more


def _far(x: Vec) -> tuple[Vec, Vec, Vec]:
    """The quadrants of |x|, and the remainder in two parts, with the sign of x."""
    size = x.abs()
    e = (size.bits(DType.I64) >> 52) - 1075
    row = e.like(0).where(e < 0, e) >> 5
    row = row.where(row < ROWS, ROWS - 1)
    scale = ((row * -STEP + 1023) << 52).bits(F64)
    big = size * scale
    high = (big.bits(DType.U64) & 0xFFFFFFFFFC000000).bits(F64)
    halves = (high, big - high)
    total, lost = x.like(0.0), x.like(0.0)
    for i in range(PIECES):
        piece = _piece(row, i)
        for half in halves:
            part = half * piece
            part = part - (part * 0.25).floor() * 4.0
            total, more = two_sum(total, part)
            lost = lost + more
    n = total.round()
    fraction, more = two_sum(total - n, lost)
    r, low = two_product(fraction, x.like(HALF_PI_DD[0]))
    low = low + fma(fraction, HALF_PI_DD[1], more * HALF_PI_DD[0])
    r, low = two_sum(r, low)
    wrong = x - x
    sign = x.like(1.0).copysign(x)
    return (n * sign).to(DType.I64), r * sign + wrong, low * sign


def _piece(row: Vec, number: int) -> Vec:
    """Piece `number` of each lane's row."""
    code = row.code
    turns = code.table("turns", F64, [v for numbers in _table() for v in numbers])
    addresses = code.lane_addresses(turns, (row * PIECES) + number, F64)
    return code.gather(addresses, F64, 8, None)


@functools.cache
def _table() -> tuple[tuple[float, ...], ...]:
    """Row q: 2³²ᵠ · 2/π mod 4, cut into pieces that sum to it."""
    bits = STEP * ROWS + PIECES * PIECE_BITS + 64
    scaled = _two_over_pi(bits)
    rows: list[tuple[float, ...]] = []
    for q in range(ROWS):
        rest = (scaled << (STEP * q)) % (4 << bits)
        pieces: list[float] = []
        for i in range(PIECES):
            shift = bits + 2 - PIECE_BITS * (i + 1)
            head = rest >> shift
            pieces.append(float(Fraction(head << shift, 1 << bits)))
            rest -= head << shift
        rows.append(tuple(pieces))
    return tuple(rows)


def _two_over_pi(bits: int) -> int:
    """2/π · 2^bits, by Machin's formula for π."""
    guard = bits + 64
    one = 1 << guard

    def arctan_of_inverse(n: int) -> int:
        power, total, k = one // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power, k = power // (n * n), k + 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    return (2 << (guard + bits)) // pi
