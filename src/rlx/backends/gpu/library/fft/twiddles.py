"""Tables of roots of unity, made once: in f64, then rounded.

Angles are reduced to an eighth of a turn in integers, so that every entry is right to the last bit
or so, whatever the length.
"""

from __future__ import annotations

import math

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.values import Var
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer

F64, I64, BOOL = DType.F64, DType.I64, DType.BOOL
BLOCK = 128


def root(b: Builder, k: Var, n: int) -> Complex:
    """exp(-2πi k/n) in f64, for 0 ≤ k < n (i64)."""
    quarter = (k * 8 + n) // (2 * n)
    rest = k * 4 - quarter * n
    angle = rest.to(F64) * (math.pi / 2 / n)
    c, s = b.call("cos", angle), b.call("sin", angle)
    turn = quarter & 3
    is_odd, is_back = (turn & 1).ne(0), (turn & 2).ne(0)
    re, im = (-s).where(is_odd, c), c.where(is_odd, s)
    re, im = (-re).where(is_back, re), (-im).where(is_back, im)
    return re, -im


def table_of(dtype: DType, dims: tuple[int, ...]) -> View:
    """What a table of complex numbers is, as pairs of reals."""
    return View(Buffer("result", 0), Layout.contiguous((*dims, 2)), dtype)


def roots(made: Launches, n: int, dtype: DType) -> View:
    """[n, 2]: exp(-2πi k/n)."""
    table = table_of(dtype, (n,))

    def body(w: Writer) -> None:
        with w.b.when(w.thread < n):
            values = [v.to(dtype) for v in root(w.b, w.thread.to(I64), n)]
            w.ref(table).store(w.thread * 2, values)

    return made.pack(f"roots{n}", body, grid=(-(-n // BLOCK),), block=BLOCK, made=table)


def chirp(made: Launches, n: int, dtype: DType) -> View:
    """[n, 2]: exp(-πi k²/n)."""
    table = table_of(dtype, (n,))

    def body(w: Writer) -> None:
        with w.b.when(w.thread < n):
            k = w.thread.to(I64)
            values = [v.to(dtype) for v in root(w.b, k * k % (2 * n), 2 * n)]
            w.ref(table).store(w.thread * 2, values)

    return made.pack(f"chirp{n}", body, grid=(-(-n // BLOCK),), block=BLOCK, made=table)


def chirp_spectrum(made: Launches, n: int, length: int, dtype: DType) -> View:
    """[length, 2]: the transform of exp(+πi k²/n) for |k| < n, periodic, over the length; by its
    definition, as it is made once."""
    table = table_of(dtype, (length,))

    def body(w: Writer) -> None:
        b = w.b
        with b.when(w.thread < length):
            k = w.thread.to(I64)
            re, im = (b.variable(v, F64) for v in (1.0, 0.0))
            with b.loop(b.const(1, I64), n, carry=[re, im]) as i:
                c, s = root(b, i * i % (2 * n), 2 * n)
                cosine, _ = root(b, i * k % length, length)
                re += c * cosine * 2.0
                im += -(s * cosine * 2.0)
            w.ref(table).store(w.thread * 2, [(v * (1 / length)).to(dtype) for v in (re, im)])

    blocks = (-(-length // BLOCK),)
    return made.pack(f"chirps{n}", body, grid=blocks, block=BLOCK, made=table)


def loaded(w: Writer, table: View, index: Var, mask: Var | None = None) -> Complex:
    re, im = w.ref(table).load(index * 2, 2, mask)
    return re, im
