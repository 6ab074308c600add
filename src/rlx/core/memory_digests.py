"""Digests of memory that others may write unseen: is it what it was?

A copy that a program made of a weight, such as a packed one, is right as long as the weight is what
it was. Where a library does not count all writes, the memory itself says: it is read and hashed, a
block at a time, at the speed of memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

Span = tuple[int, int]
"""Where memory begins, and how many bytes it has."""
BLOCK = 1 << 16
"""Bytes that are hashed together: the unit that threads share, and after which a change is seen."""


def blocks_of(spans: Sequence[Span]) -> np.ndarray[Any, Any]:
    """For each block of some memory where it begins, its bytes, and room for a digest."""
    rows = [
        (begin + low, min(BLOCK, size - low), 0)
        for begin, size in spans
        for low in range(0, size, BLOCK)
    ]
    return np.array(rows, np.int64).reshape(len(rows), 3)


class MemoryDigests:
    """Memory as it was when this was made. Whoever has it sees to it that the memory stays."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.blocks = blocks_of(spans)
        self._note()

    def _note(self) -> None:
        self.blocks[:, 2] = _digests(self.blocks)

    def is_unchanged(self) -> bool:
        """Has every byte the value that it had?"""
        return bool(np.array_equal(_digests(self.blocks), self.blocks[:, 2]))


def _digests(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    made = [_digest(begin, size) for begin, size, _ in blocks.tolist()]
    return np.array(made, np.int64)


def _digest(begin: int, size: int) -> int:
    """Python's hash of bytes: 64 bits, keyed by the process."""
    return hash(ctypes.string_at(begin, size))
