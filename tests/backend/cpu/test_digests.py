"""Digests of memory: every bit counts, wherever it is, natively and in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlx.backends.cpu.runtime.digest_code import FEW, NativeDigests
from rlx.backends.cpu.runtime.support_code import support
from rlx.core.memory_digests import BLOCK, MemoryDigests
from rlx.core.page_writes import Span

Make = Callable[[Sequence[Span]], MemoryDigests]
SIZES = [1, 7, 8, 63, 64, 65, 200, BLOCK - 1, BLOCK + 1, (FEW + 2) * BLOCK + 5]


def native(spans: Sequence[Span]) -> MemoryDigests:
    code = support()
    code.pool.grow(2)
    return NativeDigests(code, 2, spans)


def spans_of(*arrays: np.ndarray) -> list[Span]:
    return [(a.ctypes.data, a.nbytes) for a in arrays]


def counted(spans: Sequence[Span]) -> MemoryDigests:
    """Asks the system, where that counts writes."""
    code = support()
    code.pool.grow(2)
    return NativeDigests(code, 2, spans, counts_writes=True)


@pytest.mark.parametrize("make", [native, counted, MemoryDigests])
@pytest.mark.parametrize("size", SIZES)
def test_every_bit_counts(make: Make, size: int) -> None:
    rng = np.random.default_rng(size)
    memory = rng.integers(0, 256, size + 1, np.uint8)[1:]  # not aligned
    digests = make(spans_of(memory))
    assert digests.is_unchanged()
    places = {0, size - 1, size // 2, size // 64 * 64 - 1, *rng.integers(0, size, 8).tolist()}
    for place in (p for p in places if 0 <= p < size):
        for bit in range(8):
            memory[place] ^= 1 << bit
            assert not digests.is_unchanged()
            memory[place] ^= 1 << bit
    assert digests.is_unchanged()


@pytest.mark.parametrize("make", [native, counted, MemoryDigests])
def test_order_counts(make: Make) -> None:
    """Elements, rows and stripes that change places, and signs."""
    memory = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    before = memory.copy()
    digests = make(spans_of(memory))
    for changed in (before[::-1], before[:, ::-1], -before, np.roll(before, 16, 1), before * 0):
        memory[...] = changed
        assert not digests.is_unchanged()
    memory[...] = before
    assert digests.is_unchanged()


@pytest.mark.parametrize("make", [native, counted, MemoryDigests])
def test_any_of_several(make: Make) -> None:
    arrays = [np.zeros(n, np.uint8) for n in (3, 0, 70, BLOCK * 2)]
    digests = make(spans_of(*(a for a in arrays if a.size)))
    assert digests.is_unchanged()
    for array in (a for a in arrays if a.size):
        array[-1] = 1
        assert not digests.is_unchanged()
        array[-1] = 0
    assert make([]).is_unchanged()
