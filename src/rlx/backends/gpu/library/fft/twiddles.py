"""Tables of roots of unity, made once: in the widest float there is, then rounded.

Angles are reduced to an eighth of a turn in integers, so that every entry is right to the last bit
or so, whatever the length.
"""

from __future__ import annotations

import math

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.launches import Body, Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer
from rlx.program.builder import Builder
from rlx.program.values import Var

I64 = DType.I64
BLOCK = 128


def root(b: Builder, k: Var, n: int, dtype: DType) -> Complex:
    """exp(-2πi k/n) in a dtype, for 0 ≤ k < n (i64)."""
    quarter = (k * 8 + n) // (2 * n)
    rest = k * 4 - quarter * n
    angle = rest.to(dtype) * (math.pi / 2 / n)
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
            values = [v.to(dtype) for v in root(w.b, w.thread.to(I64), n, made.machine.wide_float)]
            w.ref(table).store(w.thread * 2, values)

    return _packed(made, f"roots{n}", body, n, table)


def chirp(made: Launches, n: int, dtype: DType) -> View:
    """[n, 2]: exp(-πi k²/n)."""
    table = table_of(dtype, (n,))

    def body(w: Writer) -> None:
        with w.b.when(w.thread < n):
            k = w.thread.to(I64)
            found = root(w.b, k * k % (2 * n), 2 * n, made.machine.wide_float)
            values = [v.to(dtype) for v in found]
            w.ref(table).store(w.thread * 2, values)

    return _packed(made, f"chirp{n}", body, n, table)


def chirp_spectrum(made: Launches, n: int, length: int, dtype: DType) -> View:
    """[length, 2]: the transform of exp(+πi k²/n) for |k| < n, periodic, over the length; by its
    definition, as it is made once."""
    table = table_of(dtype, (length,))

    def body(w: Writer) -> None:
        b, wide = w.b, made.machine.wide_float
        with b.when(w.thread < length):
            k = w.thread.to(I64)
            re, im = (b.variable(v, wide) for v in (1.0, 0.0))
            with b.loop(b.const(1, I64), n, carry=[re, im]) as i:
                c, s = root(b, i * i % (2 * n), 2 * n, wide)
                cosine, _ = root(b, i * k % length, length, wide)
                re += c * cosine * 2.0
                im += -(s * cosine * 2.0)
            w.ref(table).store(w.thread * 2, [(v * (1 / length)).to(dtype) for v in (re, im)])

    return _packed(made, f"chirps{n}", body, length, table)


def _packed(made: Launches, part: str, body: Body, count: int, table: View) -> View:
    """A table with a thread for each entry."""
    block = min(BLOCK, made.machine.max_block)
    return made.pack(part, body, grid=(-(-count // block),), block=block, made=table)


def loaded(w: Writer, table: View, index: Var, mask: Var | None = None) -> Complex:
    re, im = w.ref(table).load(index * 2, 2, mask)
    return re, im
