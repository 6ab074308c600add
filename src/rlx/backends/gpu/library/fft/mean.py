"""Welch's mean: the power of all frames of a signal, summed in registers."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.fft.frames import Frames
from rlx.backends.gpu.library.fft.plans import Plan, plan_of
from rlx.backends.gpu.library.fft.transform import Transform, both
from rlx.backends.gpu.library.fft.twiddles import roots
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, is_static, product
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import SharedRef, Var, Variable

MAX_PARTS = 64
"""Blocks that share the frames of one signal."""
RESIDENT_THREADS, MAX_RADIX = 1024, 8
"""Threads of a processor with 64 registers each, and the radix up to which those are enough."""


@dataclass(frozen=True, slots=True)
class MeanPower:
    """Frames of signals, two of them a transform; some blocks share a signal's pairs."""

    made: Launches
    frames: Frames
    is_one_sided: bool

    @property
    def signals(self) -> DimLike:
        return product(self.frames.signals.others.dims)

    @property
    def bins(self) -> int:
        return self.frames.n // 2 + 1

    def schedule(self) -> Schedule[GpuTask] | Refusal:
        frames, made = self.frames, self.made
        n, size = frames.n, frames.dtype.itemsize
        plan = plan_of(n, frames.dtype, made.machine, more_bytes=n * size)
        if plan is None:
            return Refusal(f"{made.node.label}: frames of {n} points have no plan in one block")
        table, parts = roots(made, n, frames.dtype), self._parts(plan)
        if parts == 1:
            self._sums(plan, table, 1, made.result())
            return made.schedule()
        sums = made.temp((self.signals, parts, self.bins), frames.dtype)
        self._sums(plan, table, parts, sums)
        self._combine(sums, parts)
        return made.schedule()

    def _parts(self, plan: Plan) -> int:
        """Enough blocks for the device, if there are frames for them."""
        count, signals = self.frames.count, self.signals
        if is_static(count) and count <= 4 * plan.count:
            return 1
        if not is_static(signals):
            return 1
        wanted = -(-2 * self.made.machine.processors // max(1, signals))
        most = -(-count // (4 * plan.count)) if is_static(count) else MAX_PARTS
        return max(1, min(wanted, most, MAX_PARTS))

    # -- sums ------------------------------------------------------------------------------------

    def _sums(self, plan: Plan, table: View, parts: int, to: View) -> None:
        n, dtype, made = self.frames.n, self.frames.dtype, self.made

        def body(w: Writer) -> None:
            b = w.b
            t = Transform(w, plan, table, dtype)
            sums = b.shared("sums", dtype, plan.count * n)
            signal, part = w.block_index() // parts, w.block_index() % parts
            self._transforms(w, t, signal, part, parts, sums)
            b.barrier()
            with b.loop(b.thread, self.bins, plan.block) as k:
                mirror = (n - k).where(k > 0, 0)
                total = b.const(0.0, dtype)
                for slot in range(plan.count):
                    total = total + (sums[slot * n + k] + sums[slot * n + mirror])
                self._store(w, to, (signal, part), k, total * 0.5)

        made.program(
            "mean",
            body,
            grid=(self.signals * parts,),
            block=plan.block,
            reads=(*self.frames.reads, table),
            writes=(to,),
            note=f"pairs of frames: {plan.text}",
            shape=(plan, parts),
            is_early=True,
            resident=self._resident(plan, parts),
        )

    def _resident(self, plan: Plan, parts: int) -> int:
        """All blocks at once, where so few registers are enough for that."""
        held = RESIDENT_THREADS // plan.block
        blocks, places = self.signals * parts, held * self.made.machine.processors
        is_one_wave = is_static(blocks) and blocks <= places
        return held if is_one_wave and max(plan.radices) <= MAX_RADIX else 0

    def _transforms(
        self, w: Writer, t: Transform, signal: Var, part: Var, parts: int, sums: SharedRef
    ) -> None:
        """The powers of all pairs of this thread's transforms, to shared memory."""
        b, plan, frames = w.b, t.plan, self.frames
        twiddles = t.twiddles()
        last = plan.radices[-1]
        places = t.butterflies(last)
        totals = [b.variable(0.0, frames.dtype) for _ in range(len(places) * last)]
        pairs, count = w.number((frames.count + 1) // 2), w.dim(frames.count)
        is_early = self.frames.window is not None and self.frames.window.is_constant
        factors = self._factors(w, t) if is_early else {}
        w.wait()
        factors = factors or self._factors(w, t)
        with b.loop(part * plan.count, pairs, parts * plan.count, carry=totals) as start:
            t.again()
            pair = start + w.wide(t.slot)
            first, second = pair * 2, pair * 2 + 1
            inside = both(t.is_used, first < count), both(t.is_used, second < count)

            def read(i: Var, mask: Var | None) -> Complex:
                values = [
                    frames.sample(w, signal, w.plus(f * frames.hop, w.wide(i)), both(mask, own))
                    for f, own in ((first, inside[0]), (second, inside[1]))
                ]
                factor = factors.get(i.value)
                return tuple(v if factor is None else v * factor for v in values)  # pyright: ignore[reportReturnType]

            held = t.run(read, twiddles)
            values = [v for h in held for _, v in h.points]
            for total, (re, im) in zip(totals, values):
                total.set(b.fma(re, re, b.fma(im, im, total)))
        self._leave(w, t, totals, sums)

    def _factors(self, w: Writer, t: Transform) -> dict[object, Var]:
        """The window at the points of this thread, loaded once."""
        radix = t.plan.radices[0]
        step, found = t.plan.n // radix, dict[object, Var]()
        for j, mask in t.butterflies(radix):
            for m in range(radix):
                i = w.plus(j, m * step)
                factor = self.frames.factor(w, i, mask)
                if factor is not None:
                    found[i.value] = factor
        return found

    def _leave(self, w: Writer, t: Transform, totals: list[Variable], sums: SharedRef) -> None:
        n, last = t.plan.n, t.plan.radices[-1]
        rest = iter(totals)
        for j, mask in t.butterflies(last):
            for m in range(last):
                sums.store(t.slot * n + j + m * (n // last), [next(rest)], mask)

    # -- results ---------------------------------------------------------------------------------

    def _store(self, w: Writer, to: View, block: tuple[Var, Var], k: Var, total: Var) -> None:
        signal, part = block
        if to.buffer.kind == "temp":
            w.store(to, w.at(to.layout, (signal, part, w.wide(k))), [total])
            return
        rows = Rows(to, len(to.layout.dims) - 1)
        mean = total / w.number(self.frames.count).to(self.frames.dtype)
        w.store(to, rows.at(w, signal, k), [self._sided(k, mean).to(to.dtype)])

    def _sided(self, k: Var, mean: Var) -> Var:
        if not self.is_one_sided:
            return mean
        return mean.where(k.eq(0) | (k * 2).eq(self.frames.n), mean * 2.0)

    def _combine(self, sums: View, parts: int) -> None:
        """The parts of every signal, in order."""
        made, block, to = self.made, self.made.machine.block, self.made.result()
        total = self.signals * self.bins

        def body(w: Writer) -> None:
            with w.b.when(w.thread < w.dim(total)):
                signal, k = w.thread // self.bins, w.thread % self.bins
                value = w.b.variable(0.0, self.frames.dtype)
                with w.b.loop(w.number(0), parts, carry=[value]) as part:
                    value += w.load(sums, w.at(sums.layout, (signal, part, k)))[0]
                self._store(w, to, (signal, w.number(0)), k, value)

        made.program(
            "combine",
            body,
            grid=((total + (block - 1)) // block,),
            block=block,
            reads=(sums,),
            writes=(to,),
        )
