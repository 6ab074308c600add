"""Stockham transforms of several rows by a block: butterflies in registers, exchanges in shared
memory.

Pass p of radix r takes x[j + m·n/r], times exp(-2πi·m·k/(L·r)) with k = j mod L, and gives
y[(j div L)·L·r + k + m·L]; L is the product of the radices before. So the first pass reads the
row, the last one leaves the spectrum, both in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex, butterfly, multiplied
from rlx.backends.gpu.library.fft.plans import PAD_EVERY, Plan
from rlx.backends.gpu.library.fft.twiddles import loaded
from rlx.backends.gpu.library.writer import View, Writer
from rlx.core.dtype import DType
from rlx.program.nodes import Scope
from rlx.program.values import Var

PAD_SHIFT = PAD_EVERY.bit_length() - 1
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
        self.scope: Scope = "warp" if plan.warp % plan.threads == 0 else "block"
        """Who exchanges points: transforms that are within warps do not wait for others."""
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

    def place(self, index: Var, offset: int = 0) -> Var:
        """Of a point of this thread's transform in the buffer in use; each is two numbers. Offsets
        of whole paddings are the last addend, which instructions add."""
        if offset % PAD_EVERY:
            index, offset = index + offset, 0
        start = self.slot * self.plan.pitch + index + (index >> PAD_SHIFT)
        buffer = self.buffer * self.plan.count * self.plan.pitch
        return start * 2 + 2 * (buffer + offset + offset // PAD_EVERY)

    def point(self, index: Var, mask: Var | None, offset: int = 0) -> Complex:
        re, im = self.memory.load(self.place(index, offset), 2, mask)
        return re, im

    def put(self, index: Var, value: Complex, mask: Var | None, offset: int = 0) -> None:
        self.memory.store(self.place(index, offset), value, mask)

    # -- passes ----------------------------------------------------------------------------------

    def twiddles(self) -> Twiddles:
        """All that this thread's butterflies need: loaded once, before a loop over transforms."""
        found: Twiddles = []
        done = 1
        for radix in self.plan.radices:
            rounds = self.butterflies(radix) if done > 1 else []
            step = self.plan.n // (done * radix)
            own: list[list[Complex]] = []
            for turn, (j, mask) in enumerate(rounds):
                is_same = turn > 0 and turn * self.plan.threads % done == 0
                index = divided(j, done)[1] * step
                own.append(own[0] if is_same else self._powers(index, radix, mask))
            found.append(own)
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

    def first_points(self) -> list[tuple[Var, Var | None]]:
        """The points that the first pass of this thread takes, in order, and whether there are
        such."""
        radix = self.plan.radices[0]
        step = self.plan.n // radix
        places = self.butterflies(radix)
        return [(self.w.plus(j, m * step), mask) for j, mask in places for m in range(radix)]

    def run(self, read: Read, twiddles: Twiddles | None = None) -> list[Held]:
        """All passes over points that are read one by one."""
        return self.transformed([read(i, mask) for i, mask in self.first_points()], twiddles)

    def transformed(self, first: Sequence[Complex], twiddles: Twiddles | None = None) -> list[Held]:
        """All passes. The results of the last one are in registers."""
        plan, given, rest = self.plan, twiddles or self.twiddles(), iter(first)
        done, held = 1, list[tuple[Var, list[Complex], Var | None]]()
        for number, radix in enumerate(plan.radices):
            count = plan.n // radix
            held = []
            for turn, (j, mask) in enumerate(self.butterflies(radix)):
                if number == 0:
                    points = [next(rest) for _ in range(radix)]
                else:
                    points = [self.point(j, mask, m * count) for m in range(radix)]
                    more = zip(points[1:], given[number][turn])
                    points = [points[0], *(multiplied(p, t) for p, t in more)]
                held.append((j, butterfly(points), mask))
            if number + 1 < len(plan.radices):
                self._exchange(held, done, radix)
            done *= radix
        last = plan.n // plan.radices[-1]
        return [
            Held([(self.w.plus(j, m * last), v) for m, v in enumerate(p)], k) for j, p, k in held
        ]

    def _exchange(
        self, held: list[tuple[Var, list[Complex], Var | None]], done: int, radix: int
    ) -> None:
        self.turn()
        for j, points, mask in held:
            group, inner = divided(j, done)
            base = group * (done * radix) + inner
            if done == 1 and radix == PAD_EVERY:
                start = self.place(base)  # a multiple of the padding: its points are neighbours
                for m, value in enumerate(points):
                    self.memory.store(self.w.plus(start, 2 * m), value, mask)
                continue
            for m, value in enumerate(points):
                self.put(base, value, mask, m * done)
        self.b.barrier(self.scope)
        self.is_read = True

    def turn(self) -> None:
        """The other buffer is written next, or the same one once it has been read."""
        if self.plan.buffers == 2:
            self.buffer = 1 - self.buffer
        elif self.is_read:
            self.b.barrier(self.scope)

    def leave(self, held: list[Held]) -> None:
        """The spectrum in shared memory, for all threads of the transform."""
        self.turn()
        for result in held:
            for index, value in result.points:
                self.put(index, value, result.mask)
        self.b.barrier(self.scope)
        self.is_read = True

    def again(self) -> None:
        """Before the next transforms of a loop: the first buffer, once nobody reads it."""
        self.b.barrier(self.scope)
        self.buffer, self.is_read = 0, False


def divided(x: Var, by: int) -> tuple[Var, Var]:
    """Quotient and remainder of a number from 0 on."""
    if by & (by - 1):
        return x // by, x % by
    return x >> (by.bit_length() - 1), x & (by - 1)


def both(a: Var | None, b: Var | None) -> Var | None:
    """Both conditions; none for no condition."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
