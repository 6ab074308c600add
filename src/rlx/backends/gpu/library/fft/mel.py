"""Mel filter banks: the power of a block's frames in shared memory, times filters of which most
entries are 0.

Of filters that are weights, the range of rows in which each column is not 0 is found once, and only
those are multiplied. What is left out would add 0 where all powers are finite; where one is not, 0
times it is NaN, and all rows are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.fft.frames import Frames
from rlx.backends.gpu.library.fft.plans import Plan
from rlx.backends.gpu.library.fft.rows import Spectra
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import SharedRef, Var

I32 = DType.I32
POWER, STRANGE, SLOT, LOW, HIGH = "power", "strange", "slot", "low", "high"
"""The powers of a block's frames, whether a thread has met one that is not finite, which of the
block's transforms it belongs to, and the rows of its band."""
MAX_FRAMES = 8
"""Frames whose sums share what is loaded of the filters."""


@dataclass(frozen=True, slots=True)
class MelProduct:
    """Frames, and the filters [bins, bands]."""

    made: Launches
    frames: Frames
    filters: View
    bands: int

    @property
    def bins(self) -> int:
        return self.frames.n // 2 + 1

    def schedule(self) -> Schedule[GpuTask] | Refusal:
        if self.bands == 0:
            return self.made.schedule()
        made, frames, ranges = self.made, self.frames, self._ranges()
        tables = (self.filters, *([] if ranges is None else [ranges]))
        given = Spectra(
            made,
            frames.n,
            frames.dtype,
            frames.total,
            (*frames.reads, *tables),
            (made.result(),),
            self._emit,
            more_bytes=self.bins * frames.dtype.itemsize,
            before=lambda w, plan: self._before(w, plan, ranges),
            after=lambda w, plan: self._after(w, plan, ranges),
        )
        given.real_rows(frames.point, frames.pairs)
        return made.schedule()

    def _before(self, w: Writer, plan: Plan, ranges: View | None) -> None:
        """What sums need that does not depend on the signal is loaded first."""
        b = w.b
        b.shared(POWER, self.frames.dtype, plan.count * self.bins)
        w.variables[STRANGE] = b.variable(False, DType.BOOL)
        w.variables[SLOT] = b.variable(b.thread // plan.threads)
        low, high = self._range(w, ranges, b.thread % self.bands)
        w.variables[LOW], w.variables[HIGH] = b.variable(low), b.variable(high)

    def _memory(self, w: Writer) -> SharedRef:
        return SharedRef(w.b, POWER, self.frames.dtype)

    def _emit(self, w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        re, im = value
        slot = w.variables[SLOT]
        power = w.b.fma(re, re, im * im)
        strange = w.variables[STRANGE]
        strange.set(strange | (power - power).ne(0.0))
        self._memory(w).store(slot * self.bins + k, [power], mask)

    def _after(self, w: Writer, plan: Plan, ranges: View | None) -> None:
        """Sums for every frame of the block and every band."""
        b, frames = w.b, self._frames_per_thread(plan)
        count = -(-plan.count // frames) * self.bands
        is_strange = b.block_reduce("max", w.variables[STRANGE])
        b.barrier()
        rest = w.number(self.frames.total) - w.block_index() * plan.count
        last = (rest.min(plan.count) - 1).to(I32)
        if count <= plan.block:
            found = w.variables[LOW], w.variables[HIGH]
            with b.when(b.thread < count):
                self._sums(w, plan, b.thread, self._chosen(found, is_strange), last)
            return
        with b.loop(b.thread, count, plan.block) as number:
            found = self._range(w, ranges, number % self.bands)
            self._sums(w, plan, number, self._chosen(found, is_strange), last)

    def _frames_per_thread(self, plan: Plan) -> int:
        """The fewest for which every thread has one band at most, so that all are busy."""
        for frames in range(1, min(plan.count, MAX_FRAMES) + 1):
            if -(-plan.count // frames) * self.bands <= plan.block:
                return frames
        return min(plan.count, MAX_FRAMES)

    def _sums(self, w: Writer, plan: Plan, number: Var, found: tuple[Var, Var], last: Var) -> None:
        """Those of a band and some frames, which share what is loaded of the filters."""
        b, frames = w.b, self._frames_per_thread(plan)
        group, band = number // self.bands, number % self.bands
        slots = [group * frames + n for n in range(frames)]
        known = [s.min(last) * self.bins for s in slots]
        totals = [b.variable(0.0, self.frames.dtype) for _ in slots]
        with b.loop(*found, carry=totals) as k:
            factor = w.element(self.filters, (w.wide(k), w.wide(band)))
            for start, total in zip(known, totals):
                total.set(b.fma(self._memory(w)[start + k], factor, total))
        for slot, total in zip(slots, totals):
            self._store(w, plan, slot, band, total)

    def _store(self, w: Writer, plan: Plan, slot: Var, band: Var, total: Var) -> None:
        to = Rows(self.made.result(), _last(self.made))
        row = w.block_index() * plan.count + w.wide(slot)
        inside = (slot < plan.count) & (row < w.dim(self.frames.total))
        w.store(to.view, to.at(w, row, band), [total.to(to.view.dtype)], inside)

    # -- ranges ----------------------------------------------------------------------------------

    def _range(self, w: Writer, ranges: View | None, band: Var) -> tuple[Var, Var]:
        """The rows in which a band is not 0, as far as it is known."""
        if ranges is None:
            return w.b.const(0, I32), w.b.const(self.bins, I32)
        low, high = w.ref(ranges).load(band * 2, 2)
        return low, high

    def _chosen(self, found: tuple[Var, Var], is_strange: Var) -> tuple[Var, Var]:
        """All rows where a power is not finite."""
        low, high = found
        builder = low.builder
        return (
            builder.const(0, I32).where(is_strange, low),
            builder.const(self.bins, I32).where(is_strange, high),
        )

    def _ranges(self) -> View | None:
        """[bands, 2]: the first row that is not 0, and behind the last one, of filters that are
        weights."""
        if not self.filters.is_constant:
            return None
        table = View(Buffer("result", 0), Layout.contiguous((self.bands, 2)), I32)

        def body(w: Writer) -> None:
            b = w.b
            with b.when(w.thread < self.bands):
                low, high = b.variable(self.bins, I32), b.variable(0, I32)
                with b.loop(0, self.bins, carry=[low, high]) as k:
                    value = w.element(self.filters, (w.wide(k), w.thread))
                    is_set = value.ne(0.0)
                    low.set(low.min(k).where(is_set, low))
                    high.set((k + 1).where(is_set, high))
                w.ref(table).store(w.thread * 2, [low, high])

        grid = (-(-self.bands // 32),)
        return self.made.pack(
            "ranges", body, grid=grid, block=32, made=table, reads=(self.filters,)
        )


def _last(made: Launches) -> int:
    return len(made.result().layout.dims) - 1
