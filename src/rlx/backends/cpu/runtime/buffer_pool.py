"""Memory that is used again: a block is free when nobody but its keeper holds it.

Fresh memory costs a call two to four times its time, for the system clears every page of it. So
outputs and arenas come from blocks. A block is an array over memory of its own; a result made of
it has it as its base, and so has every view of the result, so its count of references says when
it is free. All of that is read and changed under Python's lock.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass, replace

import numpy as np

from rlx.backends.cpu.runtime.binding_table import KEPT, NUM_BLOCK_SLOTS, BlockSlot
from rlx.backends.cpu.runtime.cpython_layout import can_bind, references
from rlx.backends.cpu.system.current import hold_over_fork
from rlx.core.errors import OutOfMemoryError
from rlx.core.memory_limits import require_memory
from rlx.core.pages import anonymous_memory
from rlx.ops.op import Array

HUGE = 2 << 20
_PAGE = 4096
SLACK = 64 << 10
"""A result may hold a block twice its size and this much more, and no larger."""

_KEPT_AND_TAKEN = 2
"""References to a block's memory that the keeper and one who takes it hold; a local variable would
add one in some versions of CPython and none in others."""


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
        return anonymous_memory(size)
    except (OSError, OverflowError):
        raise OutOfMemoryError(
            f"there is no memory for {size:,} bytes. Use smaller inputs, or end other programs."
        ) from None


def _rounded(size: int) -> int:
    """Up to an eighth more, so that sizes that differ a little fit the same blocks."""
    size = max(size, _PAGE)
    step = max(_PAGE, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


_keeping = threading.RLock()
hold_over_fork(_keeping)


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
            found = replace(block)  # whoever looks from now on finds it held
            if references(id(found.base)) == _KEPT_AND_TAKEN:
                return found
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
