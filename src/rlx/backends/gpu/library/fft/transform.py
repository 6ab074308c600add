"""Stockham transforms of several rows by a block: butterflies in registers, exchanges in shared
memory.

Pass p of radix r takes x[j + m·n/r], times exp(-2πi·m·k/(L·r)) with k = j mod L, and gives
y[(j div L)·L·r + k + m·L]; L is the product of the radices before. So the first pass reads the
row, the last one leaves the spectrum, both in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex, butterfly, multiplied
from rlx.backends.gpu.library.fft.plans import PAD_EVERY, Plan
from rlx.backends.gpu.library.fft.twiddles import loaded
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.simt.values import Var
from rlx.core.dtype import DType

Read = Callable[[Var, Var | None], Complex]
"""The point of this number, where a mask holds."""
Emit = Callable[[Var, Complex, Var | None], None]
"""Takes the point of this number, where a mask holds."""
Twiddles = list[list[list[Complex]]]
"""Of each pass, of each round of butterflies, for m = 1, 2, …"""


@dataclass(frozen=True, slots=True)
class Held:
    """The results of one butterfly of the last pass."""

    points: list[tuple[Var, Complex]]
    mask: Var | None


class Transform:
    """The transforms of a block in a program under construction; a thread does a part of one."""

    def __init__(
        self, w: Writer, plan: Plan, table: View, dtype: DType, table_stride: int = 1
    ) -> None:
        self.w, self.b, self.plan, self.table = w, w.b, plan, table
        self.table_stride = table_stride
        """The table is of so many times the length."""
        self.memory = self.b.shared("points", dtype, 2 * plan.elements)
        self.lane, self.slot = self.b.thread % plan.threads, self.b.thread // plan.threads
        whole = plan.block == plan.threads * plan.count
        self.is_used = None if whole else self.slot < plan.count
        """Does this thread belong to a transform at all?"""
        self.buffer = 0
        self.is_read = False
        """May some thread still read the buffer that is written next?"""

    # -- places ----------------------------------------------------------------------------------

    def butterflies(self, radix: int) -> list[tuple[Var, Var | None]]:
        """The numbers of this thread's butterflies in a pass, and whether there are such."""
        threads, count = self.plan.threads, self.plan.n // radix
        found: list[tuple[Var, Var | None]] = []
        for start in range(0, count, threads):
            number = self.lane + start
            is_whole = start + threads <= count
            found.append((number, both(self.is_used, None if is_whole else number < count)))
        return found

    def place(self, index: Var) -> Var:
        """Of a point of this thread's transform in the buffer in use; each is two numbers."""
        start = (self.buffer * self.plan.count + self.slot) * self.plan.pitch
        return (start + index + index // PAD_EVERY) * 2

    def point(self, index: Var, mask: Var | None) -> Complex:
        re, im = self.memory.load(self.place(index), 2, mask)
        return re, im

    def put(self, index: Var, value: Complex, mask: Var | None) -> None:
        self.memory.store(self.place(index), value, mask)

    # -- passes ----------------------------------------------------------------------------------

    def twiddles(self) -> Twiddles:
        """All that this thread's butterflies need: loaded once, before a loop over transforms."""
        found: Twiddles = []
        done = 1
        for radix in self.plan.radices:
            rounds = self.butterflies(radix) if done > 1 else []
            step = self.plan.n // (done * radix)
            found.append([self._powers(j % done * step, radix, m) for j, m in rounds])
            done *= radix
        return found

    def _powers(self, index: Var, radix: int, mask: Var | None) -> list[Complex]:
        """ω, ω², …: those of powers of two are loaded, the others are products of two."""
        found: dict[int, Complex] = {}
        for m in range(1, radix):
            high = 1 << (m.bit_length() - 1)
            if m == high:
                found[m] = loaded(self.w, self.table, index * (m * self.table_stride), mask)
            else:
                found[m] = multiplied(found[high], found[m - high])
        return [found[m] for m in range(1, radix)]

    def run(self, read: Read, twiddles: Twiddles | None = None) -> list[Held]:
        """All passes. The results of the last one are in registers."""
        plan, given = self.plan, twiddles or self.twiddles()
        done, held = 1, list[tuple[Var, list[Complex], Var | None]]()
        for number, radix in enumerate(plan.radices):
            count = plan.n // radix
            held = []
            for turn, (j, mask) in enumerate(self.butterflies(radix)):
                points = [read(j + m * count, mask) for m in range(radix)]
                if number:
                    more = zip(points[1:], given[number][turn])
                    points = [points[0], *(multiplied(p, t) for p, t in more)]
                held.append((j, butterfly(points), mask))
            if number + 1 < len(plan.radices):
                self._exchange(held, done, radix)
                read = self.point
            done *= radix
        last = plan.n // plan.radices[-1]
        return [Held([(j + m * last, v) for m, v in enumerate(p)], k) for j, p, k in held]

    def _exchange(
        self, held: list[tuple[Var, list[Complex], Var | None]], done: int, radix: int
    ) -> None:
        self.turn()
        for j, points, mask in held:
            base = j // done * (done * radix) + j % done
            for m, value in enumerate(points):
                self.put(base + m * done, value, mask)
        self.b.barrier()
        self.is_read = True

    def turn(self) -> None:
        """The other buffer is written next, or the same one once it has been read."""
        if self.plan.buffers == 2:
            self.buffer = 1 - self.buffer
        elif self.is_read:
            self.b.barrier()

    def leave(self, held: list[Held]) -> None:
        """The spectrum in shared memory, for all threads of the transform."""
        self.turn()
        for result in held:
            for index, value in result.points:
                self.put(index, value, result.mask)
        self.b.barrier()
        self.is_read = True

    def again(self) -> None:
        """Before the next transforms of a loop: the first buffer, once nobody reads it."""
        self.b.barrier()
        self.buffer, self.is_read = 0, False


def both(a: Var | None, b: Var | None) -> Var | None:
    """Both conditions; none for no condition."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
