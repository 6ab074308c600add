"""Launches that transform rows, whatever they are read from and written to.

Real rows of even length are transforms of half the length, whose points are pairs of neighbours;
what belongs to even and to odd points is told apart behind the last pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlx.backends.gpu.library.fft.butterflies import Complex, multiplied, swapped
from rlx.backends.gpu.library.fft.plans import Plan, bluestein_length, plan_of
from rlx.backends.gpu.library.fft.transform import Transform, both
from rlx.backends.gpu.library.fft.twiddles import chirp, chirp_spectrum, loaded, roots
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.simt.values import Var
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.refusal import NotLowered

ReadPoint = Callable[[Writer, Var, Var, Var | None], Complex]
"""A point of a row: the row's number, the point's, and a mask."""
ReadReal = Callable[[Writer, Var, Var, Var | None], Var]
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
            self._bluestein(read)
            return
        table = roots(self.made, self.n, self.dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, self.dtype)
            row, active = self._row(w, t)
            held = t.run(lambda i, mask: read(w, row, i, both(mask, active)))
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
        )

    def _bluestein(self, read: ReadPoint) -> None:
        """Σ x_i ω^(ik) = c_k Σ (x_i c_i) / c_(k-i) with c_k = exp(-πi k²/n): a convolution, by two
        transforms of a power of two."""
        n, dtype, length = self.n, self.dtype, bluestein_length(self.n)
        plan = self._plan(length)
        if plan is None:
            raise self.too_long()
        table, own = roots(self.made, length, dtype), chirp(self.made, n, dtype)
        spectrum = chirp_spectrum(self.made, n, length, dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, dtype)
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

    # -- real rows -------------------------------------------------------------------------------

    def real_rows(self, read: ReadReal) -> None:
        """The first n // 2 + 1 points of the spectrum of real rows."""
        plan = None if self.n % 2 else self._plan(self.n // 2)
        if plan is None:
            self._as_complex(read)
            return
        table = roots(self.made, self.n, self.dtype)

        def body(w: Writer) -> None:
            t = Transform(w, plan, table, self.dtype, table_stride=2)
            row, active = self._row(w, t)
            held = t.run(lambda i, mask: _pair(w, read, row, i, both(mask, active)))
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


def _pair(w: Writer, read: ReadReal, row: Var, i: Var, mask: Var | None) -> Complex:
    return read(w, row, i * 2, mask), read(w, row, i * 2 + 1, mask)


def real_bins(t: Transform, half: int, active: Var | None) -> list[tuple[Var, Complex, Var | None]]:
    """The bins 0 … half of this thread, of real points whose pairs were transformed; the spectrum
    of the pairs Z is in shared memory:

        X_k = (Z_k + Z*_(h-k)) / 2 + ω^k (Z_k - Z*_(h-k)) / 2i"""
    found: list[tuple[Var, Complex, Var | None]] = []
    threads = t.plan.threads
    for start in range(0, half + 1, threads):
        k = t.lane + start
        is_whole = start + threads <= half + 1
        mask = both(active, None if is_whole else k <= half)
        (a, b), (c, d) = (
            t.point(k.where(k < half, 0), mask),
            t.point((half - k).where(k > 0, 0), mask),
        )
        turn = loaded(t.w, t.table, k, mask)
        odd = multiplied((b + d, c - a), turn)
        found.append((k, ((a + c + odd[0]) * 0.5, (b - d + odd[1]) * 0.5), mask))
    return found
