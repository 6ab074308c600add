"""Transforms of 2n real numbers by transforms of n points: each point is two of the numbers.

With z = x[2j] + i·x[2j+1], Z its transform, and the mirror image M[k] = conj Z[n-k],

    X[k] = ½ (Z[k] + M[k]) + t[k] (Z[k] - M[k]),    t[k] = -½ i · w(2n)^k,    0 ≤ k ≤ n

and the other way round, twice Z[k] is (X[k] + M[k]) + 2 · conj t[k] · (X[k] - M[k]), M now of X.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.library.fft.butterflies import (
    LONG,
    POLLED,
    TURNS_PAD,
    Complex,
    minus,
    plus,
    times,
)
from rlx.backends.cpu.library.fft.complex_io import Numbers
from rlx.backends.cpu.library.fft.twiddles import constant, table
from rlx.backends.cpu.library.shared_functions import subprogram
from rlx.backends.cpu.llvm.builder import Bound, Code, Vec
from rlx.core.dtype import DType

ARGS = "ptr %xr, ptr %xi, ptr %yr, ptr %yi, ptr %turns, i64 %n"


def split(code: Code, given: Sequence[Numbers], to: Sequence[Numbers], n: int) -> None:
    """From Z to X; the place after the last Z is used."""
    _call(code, "split", given, to, n)


def join(code: Code, given: Sequence[Numbers], to: Sequence[Numbers], n: int) -> None:
    """From X to Z."""
    _call(code, "join", given, to, n)


def _call(code: Code, word: str, given: Sequence[Numbers], to: Sequence[Numbers], n: int) -> None:
    dtype, is_along = given[0].dtype, given[0].stride == 1
    name = f"mirrors.{word}.{'along' if is_along else 'beside'}.{dtype}"
    build = _along if is_along else _beside
    write, lanes = lambda inner: build(inner, dtype, word), code.isa.lanes(dtype)
    pointers = ", ".join(f"ptr {v.pointer}" for v in (*given, *to))
    values = f"{pointers}, ptr {_turns(code, n, dtype)}, i64 {n}"
    subprogram(code, name, ARGS, values, write, lanes, is_long=n >= LONG)


def _turns(code: Code, n: int, dtype: DType) -> str:
    """The name of the table of t[k], real parts and then imaginary parts, each padded."""
    roots = table(2, n)[0]
    made = np.zeros_like(roots, shape=(2, n + 1 + TURNS_PAD))
    made[0, :n], made[1, :n] = roots[1, :n] / 2, -roots[0, :n] / 2
    made[1, n] = 0.5
    return constant(code, f"mirrors.turns.{n}.{dtype}", made.astype(dtype.numpy))


def _along(code: Code, dtype: DType, word: str) -> None:
    """Lanes along k. The last vector ends with the last k, though it begins in another."""
    if word == "split":
        _close(code, dtype)
    count = code.i64("add", "%n", 1)
    last = code.i64("sub", count, code.lanes)
    backwards = list(reversed(range(code.lanes)))
    with code.count(0, count, code.lanes, POLLED) as start:
        k = code.least(start, last)
        a = _pair(code, dtype, ("%xr", "%xi"), k)
        b = _pair(code, dtype, ("%xr", "%xi"), code.i64("sub", last, k))
        b = b[0].shuffled(backwards), b[1].shuffled(backwards)
        t = _pair(code, dtype, ("%turns", _imaginary(code, dtype)), k)
        _put(code, dtype, _combined(a, b, t, word), k)


def _close(code: Code, dtype: DType) -> None:
    """Z[n] is Z[0]."""
    for base in ("%xr", "%xi"):
        first = load(code, dtype, base, 0).lane()
        kind = "float" if dtype is DType.F32 else "double"
        code.do(f"store {kind} {first}, ptr {advanced(code, base, '%n', dtype)}")


def _beside(code: Code, dtype: DType, word: str) -> None:
    """Lanes across transforms."""
    if word == "split":
        first = _pair(code, dtype, ("%xr", "%xi"), 0)
        end = code.i64("mul", "%n", code.lanes)
        for value, base in zip(first, ("%xr", "%xi")):
            store(code, value, dtype, advanced(code, base, end, dtype))
    with code.count(0, code.i64("add", "%n", 1), 1) as k:
        places = [code.i64("mul", v, code.lanes) for v in (k, code.i64("sub", "%n", k))]
        a, b = (_pair(code, dtype, ("%xr", "%xi"), place) for place in places)
        t = _pair(code, dtype, ("%turns", _imaginary(code, dtype)), k, 0)
        _put(code, dtype, _combined(a, b, t, word), places[0])


def _combined(a: Complex, b: Complex, t: Complex, word: str) -> Complex:
    mirror = b[0], -b[1]
    even, odd = plus(a, mirror), minus(a, mirror)
    if word == "split":
        turned = times(odd, t)
        return even[0] * 0.5 + turned[0], even[1] * 0.5 + turned[1]
    turned = times(odd, (t[0] * 2.0, t[1] * -2.0))
    return plus(even, turned)


def _imaginary(code: Code, dtype: DType) -> str:
    return advanced(code, "%turns", code.i64("add", "%n", 1 + TURNS_PAD), dtype)


def _pair(
    code: Code, dtype: DType, bases: tuple[str, str], place: Bound, stride: int = 1
) -> Complex:
    re, im = (load(code, dtype, advanced(code, b, place, dtype), stride) for b in bases)
    return re, im


def _put(code: Code, dtype: DType, value: Sequence[Vec], place: Bound) -> None:
    for part, base in zip(value, ("%yr", "%yi")):
        store(code, part, dtype, advanced(code, base, place, dtype))
