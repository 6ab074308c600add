"""Memory that is used again: a block is free when nobody but its keeper holds it.

Fresh memory costs a call two to four times its time, for the system clears every page of it. So
outputs and arenas come from blocks. A block is an array over memory of its own; a result made of
it has it as its base, and so has every view of the result, so its count of references says when
it is free. All of that is read and changed under Python's lock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from dataclasses import dataclass, replace

import numpy as np

from rlx.backends.cpu.runtime.binding_table import KEPT, NUM_BLOCK_SLOTS, BlockSlot
from rlx.backends.cpu.runtime.cpython_layout import Field, can_bind
from rlx.core.errors import OutOfMemoryError
from rlx.core.memory_limits import require_memory
from rlx.ops.op import Array

HUGE = 2 << 20
_PAGE = 4096
SLACK = 64 << 10
"""A result may hold a block twice its size and this much more, and no larger."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes from `data` on, in the memory that `base` owns."""

    base: Array
    data: int
    size: int


def new_block(size: int, often: int = 0) -> Block:
    """Memory of its own, in pages of 2 MiB where it is large; cleared, and aligned to a page.

    Only what is read often, from some byte on, is worth such pages: to get one takes up to some
    milliseconds, where the system must make room or is itself a guest.
    """
    size = _rounded(size)
    if size < HUGE:
        base = np.frombuffer(_mapped(size), np.uint8)
        return Block(base, base.ctypes.data, size)
    memory = _mapped(size + HUGE)
    base = np.frombuffer(memory, np.uint8)
    start = -base.ctypes.data % HUGE
    first = start + -(-often // HUGE) * HUGE
    if first < start + size and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE, first, len(memory) - first)
    return Block(base, base.ctypes.data + start, size)


def _mapped(size: int) -> mmap.mmap:
    require_memory(size, "a block of memory")
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise OutOfMemoryError(f"there is no memory for {size:,} bytes.") from None


def _rounded(size: int) -> int:
    """Up to an eighth more, so that sizes that differ a little fit the same blocks."""
    size = max(size, _PAGE)
    step = max(_PAGE, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


_keeping = threading.RLock()
os.register_at_fork(
    before=_keeping.acquire, after_in_parent=_keeping.release, after_in_child=_keeping.release
)


class Keeper:
    """The blocks kept for one use, where the native side finds them: a few words each."""

    def __init__(self, words: Array, is_bounded: bool) -> None:
        self._words, self._is_bounded = words, is_bounded
        self._kept: list[Block | None] = [None] * KEPT
        self._next = 0

    def take(self, size: int) -> Block:
        """A block that is free, or a new one, which takes the place of one that is kept."""
        if not can_bind():
            return new_block(size)
        with _keeping:
            found = self._free(size)
        if found is None:
            found = new_block(size)
            with _keeping:
                self._keep(replace(found))
        return found

    def _free(self, size: int) -> Block | None:
        for block in self._kept:
            if block is None or not self._suits(block, size):
                continue
            base = block.base
            # held by `block` and by `base`: whoever looks from now on finds it held
            if ctypes.c_int32.from_address(id(base) + Field.COUNT).value == 2:
                return Block(base, block.data, block.size)
        return None

    def _suits(self, block: Block, size: int) -> bool:
        return size <= block.size and (not self._is_bounded or block.size <= 2 * size + SLACK)

    def _keep(self, block: Block) -> None:
        """While the words change, the native side sees no block there."""
        at = self._next * NUM_BLOCK_SLOTS
        self._words[at + BlockSlot.OBJECT] = 0
        self._kept[self._next] = block
        self._words[at + BlockSlot.DATA] = block.data
        self._words[at + BlockSlot.BYTES] = block.size
        self._words[at + BlockSlot.OBJECT] = id(block.base)
        self._next = (self._next + 1) % KEPT
