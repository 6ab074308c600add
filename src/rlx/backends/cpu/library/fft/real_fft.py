"""Real-FFT untangling: a transform of 2n real numbers by a complex FFT of n points.

With z = x[2j] + i·x[2j+1], Z its transform, and the reflection M[k] = conj Z[n-k],

    X[k] = ½ (Z[k] + M[k]) + t[k] (Z[k] - M[k]),    t[k] = -½ i · w(2n)^k,    0 ≤ k ≤ n

and inversely, twice Z[k] is (X[k] + M[k]) + 2 · conj t[k] · (X[k] - M[k]), M now of X.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.library.fft.butterflies import (
    MIN_POLLED_POINTS,
    TWIDDLE_PAD,
    VECTORS_PER_POLL,
    Complex,
    complex_add,
    complex_mul,
    complex_sub,
)
from rlx.backends.cpu.library.fft.complex_io import StridedReals
from rlx.backends.cpu.library.fft.twiddles import constant, twiddle_table
from rlx.backends.cpu.library.shared_functions import subprogram
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType

ARGS = "ptr %xr, ptr %xi, ptr %yr, ptr %yi, ptr %twiddles, i64 %n"


def untangle(code: Code, given: Sequence[StridedReals], to: Sequence[StridedReals], n: int) -> None:
    """From Z to X; the element after the last Z is overwritten."""
    _call(code, "untangle", given, to, n)


def tangle(code: Code, given: Sequence[StridedReals], to: Sequence[StridedReals], n: int) -> None:
    """From X to Z."""
    _call(code, "tangle", given, to, n)


def _call(
    code: Code, direction: str, given: Sequence[StridedReals], to: Sequence[StridedReals], n: int
) -> None:
    dtype, is_contiguous = given[0].dtype, given[0].stride == 1
    name = f"real_fft.{direction}.{'bins' if is_contiguous else 'batch'}.{dtype}"
    build = _vectorise_bins if is_contiguous else _vectorise_batch
    write, lanes = lambda inner: build(inner, dtype, direction), code.isa.lanes(dtype)
    pointers = ", ".join(f"ptr {v.pointer}" for v in (*given, *to))
    values = f"{pointers}, ptr {_twiddles(code, n, dtype)}, i64 {n}"
    subprogram(code, name, ARGS, values, write, lanes, is_long=n >= MIN_POLLED_POINTS)


def _twiddles(code: Code, n: int, dtype: DType) -> str:
    """The name of the table of t[k], real parts and then imaginary parts, each padded."""
    roots = twiddle_table(2, n)[0]
    made = np.zeros_like(roots, shape=(2, n + 1 + TWIDDLE_PAD))
    made[0, :n], made[1, :n] = roots[1, :n] / 2, -roots[0, :n] / 2
    made[1, n] = 0.5
    return constant(code, f"real_fft.twiddles.{n}.{dtype}", made.astype(dtype.numpy))


def _vectorise_bins(code: Code, dtype: DType, direction: str) -> None:
    """Vectorised over k. The last vector ends with the last k and overlaps the one before."""
    if direction == "untangle":
        _wrap_last_bin(code, dtype)
    count = code.i64("add", "%n", 1)
    last = code.i64("sub", count, code.lanes)
    backwards = list(reversed(range(code.lanes)))
    with code.count(0, count, code.lanes, VECTORS_PER_POLL) as start:
        k = code.least(start, last)
        a = _pair(code, dtype, ("%xr", "%xi"), k)
        b = _pair(code, dtype, ("%xr", "%xi"), code.i64("sub", last, k))
        b = b[0].shuffled(backwards), b[1].shuffled(backwards)
        t = _pair(code, dtype, ("%twiddles", _imaginary(code, dtype)), k)
        _put(code, dtype, _combined(a, b, t, direction), k)


def _wrap_last_bin(code: Code, dtype: DType) -> None:
    """Z[n] is Z[0]."""
    for base in ("%xr", "%xi"):
        first = load(code, dtype, base, 0).lane()
        kind = "float" if dtype is DType.F32 else "double"
        code.do(f"store {kind} {first}, ptr {advanced(code, base, '%n', dtype)}")


def _vectorise_batch(code: Code, dtype: DType, direction: str) -> None:
    """Vectorised over the batch."""
    if direction == "untangle":
        first = _pair(code, dtype, ("%xr", "%xi"), 0)
        end = code.i64("mul", "%n", code.lanes)
        for value, base in zip(first, ("%xr", "%xi")):
            store(code, value, dtype, advanced(code, base, end, dtype))
    with code.count(0, code.i64("add", "%n", 1), 1) as k:
        places = [code.i64("mul", v, code.lanes) for v in (k, code.i64("sub", "%n", k))]
        a, b = (_pair(code, dtype, ("%xr", "%xi"), place) for place in places)
        t = _pair(code, dtype, ("%twiddles", _imaginary(code, dtype)), k, 0)
        _put(code, dtype, _combined(a, b, t, direction), places[0])


def _combined(a: Complex, b: Complex, t: Complex, direction: str) -> Complex:
    reflected = b[0], -b[1]
    even, odd = complex_add(a, reflected), complex_sub(a, reflected)
    if direction == "untangle":
        twiddled = complex_mul(odd, t)
        return even[0] * 0.5 + twiddled[0], even[1] * 0.5 + twiddled[1]
    twiddled = complex_mul(odd, (t[0] * 2.0, t[1] * -2.0))
    return complex_add(even, twiddled)


def _imaginary(code: Code, dtype: DType) -> str:
    return advanced(code, "%twiddles", code.i64("add", "%n", 1 + TWIDDLE_PAD), dtype)


def _pair(
    code: Code, dtype: DType, bases: tuple[str, str], place: Bound, stride: int = 1
) -> Complex:
    re, im = (load(code, dtype, advanced(code, b, place, dtype), stride) for b in bases)
    return re, im


def _put(code: Code, dtype: DType, value: Sequence[Vec], place: Bound) -> None:
    for part, base in zip(value, ("%yr", "%yi")):
        store(code, part, dtype, advanced(code, base, place, dtype))
