"""Transforms along the last axis: fft, ifft, rfft, irfft."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex, scaled, swapped
from rlx.backends.gpu.library.fft.rows import Spectra
from rlx.backends.gpu.library.fft.transform import both
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, is_static, product
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import NotLowered, Refusal
from rlx.program.values import Var


def norm_factor(norm: str, n: int, *, inverse: bool) -> float:
    """What a transform is multiplied by."""
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "backward") == inverse else 1.0


def static_length(made: Launches, n: DimLike) -> int:
    """The length; only transforms of a known one have a plan."""
    if not is_static(n):
        raise NotLowered(f"{made.node.label}: a transform of {n} points has no plan yet")
    return n


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows along the last axis whose elements are complex, real, or halves of real parts and of
    imaginary ones."""

    rows: Rows
    is_split: bool = False

    @classmethod
    def of(cls, view: View, *, is_split: bool = False) -> _Rows:
        return cls(Rows(view, len(view.layout.dims) - 1), is_split)

    @property
    def count(self) -> DimLike:
        return product(self.rows.others.dims)

    def read(self, w: Writer, row: Var, i: Var, mask: Var | None, n: int = 0) -> Complex:
        view = self.rows.view
        values = w.load(view, self.rows.at(w, row, i), mask)
        if self.is_split:
            values += w.load(view, self.rows.at(w, row, i + n), mask)
        re, *im = (v.to(view.dtype.real.compute) for v in values)
        return re, im[0] if im else w.b.const(0.0, re.dtype)

    def write(
        self, w: Writer, row: Var, i: Var, value: Complex, mask: Var | None, n: int = 0
    ) -> None:
        view = self.rows.view
        stored = [v.to(view.dtype.real) for v in value]
        if view.dtype.is_complex:
            w.store(view, self.rows.at(w, row, i), stored, mask)
            return
        w.store(view, self.rows.at(w, row, i), stored[:1], mask)
        if self.is_split:
            w.store(view, self.rows.at(w, row, i + n), stored[1:], mask)


def _complex(made: Launches, *, is_split: bool, inverse: bool) -> Schedule[GpuTask]:
    """Points in, points out. An inverse transform exchanges the parts of both."""
    x, y = _Rows.of(made.operand(0), is_split=is_split), _Rows.of(made.result(), is_split=is_split)
    length = static_length(made, x.rows.length)
    n = length // 2 if is_split else length
    if n == 0:
        return made.schedule()
    factor = norm_factor(made.node.attrs["norm"], n, inverse=inverse)
    order = swapped if inverse else _as_it_is

    def emit(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        y.write(w, row, k, scaled(order(value), factor), mask, n)

    dtype = y.rows.view.dtype.real.compute
    views = (x.rows.view,), (y.rows.view,)
    given = Spectra(made, n, dtype, x.count, *views, emit)
    given.complex_rows(lambda w, row, i, mask: order(x.read(w, row, i, mask, n)))
    return made.schedule()


def _as_it_is(value: Complex) -> Complex:
    return value


def make_fft(made: Launches) -> Schedule[GpuTask] | Refusal:
    """fft: of complex numbers, or of blocks of real and imaginary parts."""
    is_split = not made.result().dtype.is_complex
    return _complex(made, is_split=is_split, inverse=made.node.attrs["inverse"])


def make_ifft(made: Launches) -> Schedule[GpuTask] | Refusal:
    """ifft: of complex or real numbers, to complex ones."""
    return _complex(made, is_split=False, inverse=True)


def make_rfft(made: Launches) -> Schedule[GpuTask] | Refusal:
    """rfft: the first bins of real numbers, cut or zero-padded to n."""
    x, y = _Rows.of(made.operand(0)), _Rows.of(made.result())
    length, attrs = x.rows.length, made.node.attrs
    n = static_length(made, length if attrs["n"] is None else attrs["n"])
    factor = norm_factor(attrs["norm"], n, inverse=False)

    def read(w: Writer, row: Var, i: Var, mask: Var | None) -> Var:
        inside = None if length == n else w.wide(i) < w.dim(length)
        return x.read(w, row, i, both(mask, inside))[0]

    def emit(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        y.write(w, row, k, scaled(value, factor), mask)

    dtype = y.rows.view.dtype.real
    Spectra(made, n, dtype, x.count, (x.rows.view,), (y.rows.view,), emit).real_rows(read)
    return made.schedule()


def make_irfft(made: Launches) -> Schedule[GpuTask] | Refusal:
    """irfft: bins behind the middle are the conjugates of those before it, which may be cut or
    zero-padded; imaginary parts of the first and the middle one do not count."""
    x, y = _Rows.of(made.operand(0)), _Rows.of(made.result())
    n, bins = static_length(made, y.rows.length), x.rows.length
    factor = norm_factor(made.node.attrs["norm"], n, inverse=True)

    def read(w: Writer, row: Var, i: Var, mask: Var | None) -> Complex:
        is_mirrored = i > n // 2
        own = (n - i).where(is_mirrored, i)
        inside = both(mask, w.wide(own) < w.dim(bins))
        re, im = x.read(w, row, own, inside)
        is_real = i.eq(0) | (i * 2).eq(n)
        return swapped((re, (-im).where(is_mirrored, im).where(~is_real, 0.0)))

    def emit(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        y.write(w, row, k, scaled(swapped(value), factor), mask)

    dtype = y.rows.view.dtype.compute
    Spectra(made, n, dtype, x.count, (x.rows.view,), (y.rows.view,), emit).complex_rows(read)
    return made.schedule()
