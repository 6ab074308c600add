"""Launches that transform rows, whatever they are read from and written to.

Real rows of even length are transforms of half the length, whose points are pairs of neighbours;
the spectra of even and of odd points are separated after the last pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.library.fft.butterflies import Complex, multiplied, swapped
from rlx.backends.gpu.library.fft.plans import Plan, bluestein_length, plan_of, radices_of
from rlx.backends.gpu.library.fft.transform import Transform, both
from rlx.backends.gpu.library.fft.twiddles import chirp, chirp_spectrum, loaded, roots
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.refusal import NotLowered
from rlx.program.values import Var

MAX_CHIRP_TERMS = 1 << 30
"""Of the transform of a chirp by its definition, which is made once."""
ReadPoint = Callable[[Writer, Var, Var, Var | None], Complex]
"""A point of a row: the row's number, the point's, and a mask."""
ReadReal = Callable[[Writer, Var, Var, Var | None], Var]
ReadPairs = Callable[[Writer, Var, Sequence[tuple[Var, Var | None]]], list[Complex]]
"""Pairs of neighbours of a row: their numbers, each with a mask."""
Hook = Callable[[Writer, Plan], None]
EmitPoint = Callable[[Writer, Var, Var, Complex, Var | None], None]


@dataclass(frozen=True, slots=True)
class Spectra:
    """Rows to transform, and what becomes of their spectra."""

    made: Launches
    n: int
    dtype: DType
    """Of the arithmetic: f32 or f64."""
    rows: DimLike
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    emit: EmitPoint
    more_bytes: int = 0
    """Of shared memory that each transform takes beside its points."""
    before: Hook | None = None
    """Written in front of the transforms of a block, and behind them."""
    after: Hook | None = None

    def too_long(self) -> NotLowered:
        return NotLowered(
            f"{self.made.node.label}: a transform of {self.n} points does not fit shared memory"
        )

    # -- complex rows ----------------------------------------------------------------------------

    def complex_rows(self, read: ReadPoint) -> None:
        """Every point of the spectrum of complex rows."""
        plan = self._plan(self.n)
        if plan is None:
            (self._bluestein if radices_of(self.n) is None else self._four_step)(read)
            return
        table = roots(self.made, self.n, self.dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, self.dtype)
            twiddles = t.twiddles()
            w.wait()
            row, active = self._row(w, t)
            held = t.run(lambda i, mask: read(w, row, i, both(mask, active)), twiddles)
            for result in held:
                for k, value in result.points:
                    self.emit(w, row, k, value, both(result.mask, active))

        self._launch("fft", body, plan, (table,), plan.text)

    def _row(self, w: Writer, t: Transform) -> tuple[Var, Var]:
        """The row of this thread, and whether there is such a row."""
        row = w.block_index() * t.plan.count + w.wide(t.slot)
        inside = both(t.is_used, row < w.dim(self.rows))
        assert inside is not None
        return row, inside

    def _plan(self, n: int) -> Plan | None:
        return plan_of(n, self.dtype, self.made.machine, more_bytes=self.more_bytes)

    def _launch(
        self,
        part: str,
        body: Callable[[Writer], None],
        plan: Plan,
        tables: tuple[View, ...],
        note: str,
    ) -> None:
        def whole(w: Writer) -> None:
            if self.before is not None:
                self.before(w, plan)
            body(w)
            if self.after is not None:
                self.after(w, plan)

        self.made.program(
            part,
            whole,
            grid=((self.rows + (plan.count - 1)) // plan.count,),
            block=plan.block,
            reads=(*self.reads, *tables),
            writes=self.writes,
            note=note,
            shape=plan,
            is_early=True,
        )

    def _bluestein(self, read: ReadPoint) -> None:
        """Σ x_i ω^(ik) = c_k Σ (x_i c_i) / c_(k-i) with c_k = exp(-πi k²/n): a convolution, by two
        transforms of a power of two."""
        n, dtype, length = self.n, self.dtype, bluestein_length(self.n)
        plan = self._plan(length)
        if plan is None:
            self._long_bluestein(read, length)
            return
        table, own = roots(self.made, length, dtype), chirp(self.made, n, dtype)
        spectrum = chirp_spectrum(self.made, n, length, dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, dtype)
            w.wait()
            row, active = self._row(w, t)

            def chirped(i: Var, mask: Var | None) -> Complex:
                inside = both(both(mask, active), i < n)
                return multiplied(read(w, row, i, inside), loaded(w, own, i, inside))

            held = t.run(chirped)
            for result in held:
                for number, (k, value) in enumerate(result.points):
                    product = multiplied(value, loaded(w, spectrum, k, result.mask))
                    result.points[number] = (k, swapped(product))
            t.leave(held)
            for result in t.run(t.point):
                for k, value in result.points:
                    inside = both(both(result.mask, active), k < n)
                    turned = multiplied(swapped(value), loaded(w, own, k, inside))
                    self.emit(w, row, k, turned, inside)

        note = f"{n} points as a convolution of {plan.text}"
        self._launch("bluestein", body, plan, (table, own, spectrum), note)

    def _long_bluestein(self, read: ReadPoint, length: int) -> None:
        """The same where a row does not fit shared memory: the product goes through a temporary."""
        n, dtype, made = self.n, self.dtype, self.made
        if self.after is not None or n * length > MAX_CHIRP_TERMS:
            raise self.too_long()
        own, spectrum = chirp(made, n, dtype), chirp_spectrum(made, n, length, dtype)
        between = made.temp((self.rows, length, 2), dtype)

        def chirped(w: Writer, row: Var, i: Var, mask: Var | None) -> Complex:
            inside = both(mask, i < n)
            return multiplied(read(w, row, i, inside), loaded(w, own, i, inside))

        def keep(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
            product = multiplied(value, loaded(w, spectrum, k, mask))
            _put(w, between, (row, w.wide(k)), swapped(product), mask)

        def finish(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
            inside = both(mask, k < n)
            turned = multiplied(swapped(value), loaded(w, own, k, inside))
            self.emit(w, row, k, turned, inside)

        reads = (*self.reads, own, spectrum)
        Spectra(made, length, dtype, self.rows, reads, (between,), keep).complex_rows(chirped)
        last = Spectra(made, length, dtype, self.rows, (between, own), self.writes, finish)
        last.complex_rows(lambda w, row, i, mask: _got(w, between, (row, w.wide(i)), mask))

    def _four_step(self, read: ReadPoint) -> None:
        """n = p·q: transforms of p points that are q apart, turned, then of q points:

        X_(k + p·m) = Σ_j ω_q^(jm) ω_n^(jk) Σ_i ω_p^(ik) x_(i·q + j)"""
        halves = self._halves()
        if halves is None or self.after is not None:
            raise self.too_long()
        (p, q), made, dtype = halves, self.made, self.dtype
        table, between = roots(made, self.n, dtype), made.temp((self.rows, p, q, 2), dtype)

        def column(w: Writer, number: Var, i: Var, mask: Var | None) -> Complex:
            row, j = w.split(number, (self.rows, q))
            return read(w, row, i * q + j.to(i.dtype), mask)

        def turn(w: Writer, number: Var, k: Var, value: Complex, mask: Var | None) -> None:
            row, j = w.split(number, (self.rows, q))
            turned = multiplied(value, loaded(w, table, j.to(k.dtype) * k, mask))
            _put(w, between, (row, w.wide(k), j), turned, mask)

        def finish(w: Writer, number: Var, m: Var, value: Complex, mask: Var | None) -> None:
            row, k = w.split(number, (self.rows, p))
            self.emit(w, row, m * p + k.to(m.dtype), value, mask)

        def row_of(w: Writer, number: Var, i: Var, mask: Var | None) -> Complex:
            row, k = w.split(number, (self.rows, p))
            return _got(w, between, (row, k, w.wide(i)), mask)

        reads = (*self.reads, table)
        Spectra(made, p, dtype, self.rows * q, reads, (between,), turn).complex_rows(column)
        last = (between, *self.reads)
        Spectra(made, q, dtype, self.rows * p, last, self.writes, finish).complex_rows(row_of)

    def _halves(self) -> tuple[int, int] | None:
        """The most even factors that each fit a block."""
        for p in range(math.isqrt(self.n), 1, -1):
            if self.n % p == 0 and self._plan(p) and self._plan(self.n // p):
                return p, self.n // p
        return None

    # -- real rows -------------------------------------------------------------------------------

    def real_rows(self, read: ReadReal, read_pairs: ReadPairs | None = None) -> None:
        """The first n // 2 + 1 points of the spectrum of real rows; `read_pairs` reads several
        pairs of neighbours at once, where there is a better way than one by one."""
        plan = None if self.n % 2 else self._plan(self.n // 2)
        if plan is None:
            self._as_complex(read)
            return
        table = roots(self.made, self.n, self.dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, self.dtype, table_stride=2)
            twiddles = t.twiddles()
            w.wait()
            row, active = self._row(w, t)
            places = [(i, both(mask, active)) for i, mask in t.first_points()]
            if read_pairs is None:
                points = [_pair(w, read, row, i, mask) for i, mask in places]
            else:
                points = read_pairs(w, row, places)
            held = t.transformed(points, twiddles)
            t.leave(held)
            for k, value, mask in real_bins(t, plan.n, active):
                self.emit(w, row, k, value, mask)

        self._launch("real", body, plan, (table,), f"real: {plan.text}")

    def _as_complex(self, read: ReadReal) -> None:
        last = self.n // 2

        def emit(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
            self.emit(w, row, k, value, both(mask, k <= last))

        def point(w: Writer, row: Var, i: Var, mask: Var | None) -> Complex:
            return read(w, row, i, mask), w.b.const(0.0, self.dtype)

        replace(self, emit=emit).complex_rows(point)


def _put(w: Writer, view: View, at: tuple[Var, ...], value: Complex, mask: Var | None) -> None:
    w.ref(view).store(w.at(view.layout, (*at, 0)), value, mask)


def _got(w: Writer, view: View, at: tuple[Var, ...], mask: Var | None) -> Complex:
    re, im = w.ref(view).load(w.at(view.layout, (*at, 0)), 2, mask)
    return re, im


def _pair(w: Writer, read: ReadReal, row: Var, i: Var, mask: Var | None) -> Complex:
    first = w.times(i, 2)
    return read(w, row, first, mask), read(w, row, w.plus(first, 1), mask)


def real_bins(t: Transform, half: int, active: Var | None) -> list[tuple[Var, Complex, Var | None]]:
    """The bins 0 … half of this thread, of real points whose pairs were transformed; the spectrum
    of the pairs Z is in shared memory. Bins k and half - k are made together:

        E = (Z_k + Z*_(h-k)) / 2, O = (Z_k - Z*_(h-k)) / 2i, X_k = E + ω^k O, X_(h-k) = (E - ω^k O)*
    """
    found: list[tuple[Var, Complex, Var | None]] = []
    threads, last = t.plan.threads, half // 2
    for start in range(0, last + 1, threads):
        k = t.w.plus(t.lane, start)
        is_whole = start + threads <= last + 1
        mask = both(active, None if is_whole else k <= last)
        mirror = half - k
        (a, b), (c, d) = t.point(k, mask), t.point(mirror.where(k > 0, 0), mask)
        odd = multiplied((b + d, c - a), loaded(t.w, t.table, k, mask))
        even = a + c, b - d
        found.append((k, ((even[0] + odd[0]) * 0.5, (even[1] + odd[1]) * 0.5), mask))
        other = (even[0] - odd[0]) * 0.5, (odd[1] - even[1]) * 0.5
        is_own = k.eq(mirror) if start + threads > last else None
        found.append((mirror, other, mask if is_own is None else both(mask, ~is_own)))
    return found
