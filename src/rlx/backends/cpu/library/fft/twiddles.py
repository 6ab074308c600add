"""Radices of a length and the twiddle factors of its stages.

A stage of radix r with m points left has the table w(rm)^(pj), p < m, for j from 1: for each j all
real parts, then all imaginary parts, each row padded. Small tables are constants of the module;
larger ones, and those of dynamic lengths, are filled at run time by native code. All are computed
in f64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, store
from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.butterflies import (
    ODD_RADICES,
    TWIDDLE_PAD,
    VECTORS_PER_POLL,
    Complex,
)
from rlx.backends.cpu.library.shared_functions import subprogram
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec, fma
from rlx.core.dtype import DType

Array = np.ndarray[Any, Any]
F64, I64 = DType.F64, DType.I64
BYTES = tuple(f"\\{b:02X}" for b in range(256))
"""Bytes as LLVM writes them in constants."""


def radices_of(n: int, isa: Isa) -> tuple[int, ...] | None:
    """The radices of a length's stages, powers of two first and large primes last, where the batch
    of interleaved transforms is larger; None if a prime factor is too large."""
    twos = (n & -n).bit_length() - 1 if n else 0
    rest, odd = n >> twos, list[int]()
    for p in ODD_RADICES:
        while rest and rest % p == 0:
            odd.append(p)
            rest //= p
    return (*_power_of_two_radices(twos, isa), *odd) if rest <= 1 else None


def _power_of_two_radices(twos: int, isa: Isa) -> list[int]:
    """A radix-8 butterfly takes 16 registers and a few more; with fewer than 32, radix 4."""
    if isa.registers < 32:
        return [4] * (twos // 2) + [2] * (twos % 2)
    fours = 0 if twos < 2 else -twos % 3
    return [8] * ((twos - 2 * fours) // 3) + [4] * fours + [2] * (twos == 1)


def table_elements(radix: int, points: int) -> int:
    """Elements of a stage's twiddle table."""
    return _table_rows(radix) * (points + TWIDDLE_PAD)


def emit_table_elements(code: Code, radix: int, points: str) -> Bound:
    """The same of a number of points that is known at run time."""
    return code.i64("mul", _table_rows(radix), code.i64("add", points, TWIDDLE_PAD))


def _table_rows(radix: int) -> int:
    return 2 * (radix - 1)


# -- constants ------------------------------------------------------------------------------------


def twiddle_table(radix: int, points: int) -> Array:
    """A stage's twiddle table, in f64."""
    n = radix * points
    made = np.zeros((radix - 1, 2, points + TWIDDLE_PAD))
    number = np.arange(1, radix)[:, None] * np.arange(points)
    quarter = np.rint(4 * number / n).astype(np.int64)
    angle = (4 * number - quarter * n) / n * (math.pi / 2)
    root_of_unity: Array = np.exp(-1j * angle) * np.array([1, -1j, -1, 1j])[quarter % 4]
    made[:, 0, :points], made[:, 1, :points] = np.real(root_of_unity), np.imag(root_of_unity)
    return made


def constant_twiddles(code: Code, radix: int, points: int, dtype: DType) -> str:
    """The name of the stage's twiddle table in the module."""
    name = f"twiddles.{radix}.{points}.{dtype}"
    if name in code.shared:
        return f"@{name}"
    return constant(code, name, twiddle_table(radix, points).astype(dtype.numpy))


def constant(code: Code, name: str, values: Array) -> str:
    """The name of a constant array in the module."""
    if name not in code.shared:
        data = values.tobytes()
        text = "".join(map(BYTES.__getitem__, data))
        code.shared[name] = f'@{name} = internal constant [{len(data)} x i8] c"{text}", align 64'
    return f"@{name}"


# -- tables filled at run time --------------------------------------------------------------------


def root_of_unity(number: Vec, count: str) -> Complex:
    """w(count)^number of i64 lanes below the count: whole quadrants are subtracted exactly."""
    code = number.code
    whole = code.splat(count, I64)
    quarter = (number.to(F64) * 4.0 / whole.to(F64)).round().to(I64)
    angle = (number * 4 - quarter * whole).to(F64) / whole.to(F64) * (math.pi / 2)
    re, im = _small_angle(angle)
    is_odd, is_half = (quarter & 1).differs(0), (quarter & 2).differs(0)
    re, im = im.where(is_odd, re), (-re).where(is_odd, im)
    return (-re).where(is_half, re), (-im).where(is_half, im)


def _small_angle(x: Vec) -> Complex:
    """exp(-ix) for |x| ≤ π/4."""
    z = x * x
    sine = fma(x * z, maths.polynomial(z, maths.SIN[F64]), x)
    half = z * 0.5
    flat = half.like(1.0) - half
    lost = (flat.like(1.0) - flat) - half
    return flat + fma(z * z, maths.polynomial(z, maths.COS[F64]), lost), -sine


def fill_twiddles(code: Code, to: str, radix: Bound, points: Bound, dtype: DType) -> None:
    """Fill a stage's twiddle table."""
    name = f"twiddles.fill.{dtype}"
    args, given = "ptr %to, i64 %radix, i64 %m", f"ptr {to}, i64 {radix}, i64 {points}"
    build = lambda inner: _fill(inner, dtype)
    subprogram(code, name, args, given, build, code.isa.lanes(F64), is_long=True)


def _fill(code: Code, dtype: DType) -> None:
    row = code.i64("add", "%m", TWIDDLE_PAD)
    n = code.integer("mul", "%m", "%radix")
    with code.count(1, "%radix", 1) as j, code.count(0, "%m", code.lanes, VECTORS_PER_POLL) as p:
        lanes = code.iota(I64) + code.splat(p, I64)
        parts = root_of_unity(lanes * code.splat(j, I64), n)
        start = code.i64("mul", code.i64("mul", code.i64("sub", j, 1), row), 2)
        at = advanced(code, "%to", code.i64("add", start, p), dtype)
        store(code, parts[0].to(dtype), dtype, at)
        store(code, parts[1].to(dtype), dtype, advanced(code, at, row, dtype))
