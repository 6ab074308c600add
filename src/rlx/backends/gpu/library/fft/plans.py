"""FFT plans: the radices of a length, and how many threads and transforms a block has.

A length with a greater prime factor than a butterfly has points is a convolution of a length that
has none (Bluestein): the chirp exp(-iπk²/n) turns products of indices into differences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dtype import DType

RADICES = (8, 4, 2, 3, 5, 7, 11, 13)
PAD_EVERY = 8
"""Of shared memory: an element more behind so many, so that strides of a radix differ in banks."""
BLOCK_THREADS = 128
"""Of all transforms of a block: measured to be a little faster than more."""
DOUBLE_BUFFER_BYTES = 40 << 10
"""Up to which an exchange has two buffers, and so one barrier less."""


@functools.cache
def radices_of(n: int) -> tuple[int, ...] | None:
    """Factors that butterflies have, the powers of two first; None where there are none."""
    found: list[int] = []
    for radix in RADICES:
        while n % radix == 0:
            found.append(radix)
            n //= radix
    if n > 1:
        return None
    if found[:1] == [8] and found[-1:] == [2] and all(r in (2, 8) for r in found):
        found[-2:] = [4, 4]  # 8·2 = 4·4, whose butterflies are more even
    return tuple(found) or (1,)


@dataclass(frozen=True, slots=True)
class Plan:
    """How transforms of a length run."""

    n: int
    radices: tuple[int, ...]
    threads: int
    """Of one transform."""
    count: int
    """Transforms of a block."""
    buffers: int
    """In shared memory: with two, what is read is not what is written."""
    warp: int

    @property
    def block(self) -> int:
        return -(-self.threads * self.count // self.warp) * self.warp

    @property
    def pitch(self) -> int:
        """Elements of shared memory of one transform."""
        return pitch_of(self.n)

    @property
    def elements(self) -> int:
        return self.pitch * self.count * self.buffers

    @property
    def text(self) -> str:
        factors = "·".join(map(str, self.radices))
        return f"{self.n} = {factors}, {self.threads} threads each, {self.count} in a block"


def pitch_of(n: int) -> int:
    return n + n // PAD_EVERY + 1


def plan_of(
    n: int,
    dtype: DType,
    machine: GpuMachine,
    *,
    more_bytes: int = 0,
    buffers: Sequence[int] = (2, 1),
    most: int | None = None,
) -> Plan | None:
    """The plan of a length; None where butterflies or shared memory do not suffice. `more_bytes`
    of shared memory are used otherwise for each transform; a block has at most `most` of them."""
    radices = radices_of(n)
    if radices is None:
        return None
    threads = _threads(n, radices, machine)
    room, element = machine.shared_bytes, 2 * dtype.itemsize
    block = min(machine.block, BLOCK_THREADS)
    wanted = max(1, min(block // threads, most or block))
    for number in buffers:
        own = number * pitch_of(n) * element + more_bytes
        count = min(wanted, room // own)
        if count and (number == 1 or own * count <= DOUBLE_BUFFER_BYTES):
            return Plan(n, radices, threads, count, number, machine.warp)
    return None


def _threads(n: int, radices: tuple[int, ...], machine: GpuMachine) -> int:
    """One butterfly a thread in some pass, or as many threads as there are: the most of those that
    cost about the least."""
    choices = {max(1, min(n // r, machine.max_block)) for r in radices}
    costs = {t: _cost(n, radices, t) for t in choices}
    return max(t for t in choices if costs[t] <= 1.1 * min(costs.values()))


def _cost(n: int, radices: tuple[int, ...], threads: int) -> int:
    """Points of all rounds of butterflies, times the threads that wait for them."""
    rounds = [-(-(n // r) // threads) * r for r in radices]
    return sum(rounds) * threads


def bluestein_length(n: int) -> int:
    """The power of two that holds a convolution of n points without wrapping."""
    return 1 << (2 * n - 2).bit_length()
