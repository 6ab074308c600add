"""Bitonic sort of a tile of items in a block's shared memory.

Every tile of a row is sorted by itself: the runs that merges join, or the candidates that a
selection goes on with.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.gpu.library.sort.keys import Item, Keys, chosen, shared_items
from rlx.backends.gpu.library.writer import Writer
from rlx.backends.gpu.simt.values import SharedRef, Var

Fetch = Callable[[Var, Var, Var], Item]
"""The item of a row at a position, where a mask holds."""
Put = Callable[[Var, Var, Item, Var], None]
"""Stores the item of a row at a position of the result, where a mask holds."""


def tile_threads(tile: int, max_block: int) -> int:
    """One for every two items, and whole warps."""
    return max(32, min(tile // 2, max_block))


def sort_tile(
    w: Writer, keys: Keys, tile: int, row: Var, start: Var, fetch: Callable[[Var, Var], Item]
) -> list[SharedRef]:
    """Items `start` … `start + tile` of a row in order, in shared memory; `fetch` has the position
    and gives `keys.nothing` behind the row's end."""
    b, block = w.b, w.b.made.block
    memory = shared_items(b, keys, tile)
    with b.loop(b.thread, tile, block) as i:
        for ref, value in zip(memory, fetch(start + w.wide(i), i)):
            ref[i] = value
    b.barrier()
    _bitonic(w, keys, tile, memory)
    return memory


def _bitonic(w: Writer, keys: Keys, tile: int, memory: list[SharedRef]) -> None:
    """Runs of 2, 4, … items, each merged from two that run against each other."""
    b, block = w.b, w.b.made.block
    levels = tile.bit_length() - 1
    pairs = tile // 2
    with b.loop(1, levels + 1) as level, b.loop(0, level) as step:
        shift = level - 1 - step
        stride = b.const(1, shift.dtype) << shift
        with b.loop(b.thread, pairs, block) as p:
            low = ((p >> shift) << (shift + 1)) | (p & (stride - 1))
            high = low + stride
            one, other = ([m[i] for m in memory] for i in (low, high))
            falls = ((low >> level) & 1).ne(0)
            swaps = keys.is_less(w, other, one) ^ falls
            for ref, x, y in zip(memory, chosen(swaps, other, one), chosen(swaps, one, other)):
                ref[low] = x
                ref[high] = y
        b.barrier()
