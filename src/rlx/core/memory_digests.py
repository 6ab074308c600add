"""Digests of memory that others may write unseen: is it what it was?

A copy that a program made of a weight, such as a packed one, is right as long as the weight is what
it was. Where a library does not count all writes, the memory itself says: it is read and hashed, a
block at a time, at the speed of memory, unless the system says that no page of it was written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.core.page_writes import LEAST, PageWrites, Span, page_writes, whole_pages

Blocks = np.ndarray[Any, Any]
BLOCK = 1 << 16
"""Bytes that are hashed together: the unit that threads share, and after which a change is seen."""


def blocks_of(spans: Sequence[Span]) -> Blocks:
    """For each block of some memory where it begins, its bytes, and room for a digest."""
    rows = [
        (begin + low, min(BLOCK, size - low), 0)
        for begin, size in spans
        for low in range(0, size, BLOCK)
    ]
    return np.array(rows, np.int64).reshape(len(rows), 3)


class MemoryDigests:
    """Memory as it was when this was made. Whoever has it sees to it that the memory stays. Pages
    whose writes the system counts, if they are to be, are read only once one was written."""

    def __init__(self, spans: Sequence[Span], *, counts_writes: bool = False) -> None:
        self.pages = page_writes(spans) if counts_writes else None
        self.blocks = blocks_of(spans)
        self._note(self.blocks)
        self.always = self.blocks
        """What is read each time: all, or what is in no page whose writes are counted."""
        if self.pages is not None:
            self.always = blocks_of(_around(spans, self.pages))
            self._note(self.always)

    def _note(self, blocks: Blocks) -> None:
        blocks[:, 2] = _digests(blocks)

    def _is_same(self, blocks: Blocks) -> bool:
        return bool(np.array_equal(_digests(blocks), blocks[:, 2]))

    def is_unchanged(self) -> bool:
        """Has every byte the value that it had?"""
        if not self._is_same(self.always):
            return False
        if self.pages is None or not self.pages.any_written():
            return True
        self.pages.clear()  # before the memory is read: what is written later counts
        return self._is_same(self.blocks)


def _around(spans: Sequence[Span], pages: PageWrites) -> list[Span]:
    """Memory beside the pages whose writes are counted."""
    counted = {int(begin): int(end) for begin, end in pages.scans[:, 2:4]}
    found: list[Span] = []
    for begin, size in spans:
        low, length = whole_pages((begin, size))
        high = counted.get(low) if length >= LEAST else None
        parts = [(begin, begin + size)] if high is None else [(begin, low), (high, begin + size)]
        found += [(a, b - a) for a, b in parts if b > a]
    return found


def _digests(blocks: Blocks) -> Blocks:
    made = [_digest(begin, size) for begin, size, _ in blocks.tolist()]
    return np.array(made, np.int64)


def _digest(begin: int, size: int) -> int:
    """Python's hash of bytes: 64 bits, keyed by the process."""
    return hash(ctypes.string_at(begin, size))
