"""Bitonic sort of a tile of items by a block.

Item m·B + t of the tile is in register m of thread t, of B threads. Partners at a distance of B or
more are registers of one thread, those within a warp meet by shuffles, and only the others go
through shared memory. Every tile of a row is sorted by itself: the runs that merges join, or the
candidates that a selection goes on with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.backends.gpu.library.sort.keys import Item, Keys, chosen, shared_items
from rlx.backends.gpu.library.writer import Writer
from rlx.program.values import SharedRef, Var


def tile_threads(tile: int, max_block: int, warp: int) -> int:
    """One for every two items, and whole warps."""
    return max(warp, min(tile // 2, max_block))


def sort_tile(
    w: Writer, keys: Keys, tile: int, start: Var, fetch: Callable[[Var], Item]
) -> list[tuple[Var, Item]]:
    """Items `start` … `start + tile` of a row in order: those of this thread, each with its place
    in the tile. `fetch` gives `keys.nothing` behind the row's end."""
    block = w.b.made.block
    places = [w.b.thread + m * block for m in range(-(-tile // block))]
    items = [fetch(start + w.wide(p)) for p in places]
    if tile < block:  # a part of a warp has items
        items = [chosen(w.b.thread < tile, item, keys.nothing(w.b)) for item in items]
    return _Network(w, keys, max(tile, block), places).sorted(items)


@dataclass(slots=True)
class _Network:
    """Runs of 2, 4, … items, each merged from two that run against each other."""

    w: Writer
    keys: Keys
    tile: int
    places: list[Var]
    memory: list[SharedRef] = field(default_factory=list[SharedRef])
    turn: int = 0
    """Which half of shared memory is written next: what is read from the other needs no barrier."""

    def sorted(self, items: list[Item]) -> list[tuple[Var, Item]]:
        size = 2
        while size <= self.tile:
            stride = size // 2
            while stride:
                items = self._step(items, size, stride)
                stride //= 2
            size *= 2
        return list(zip(self.places, items))

    def _step(self, items: list[Item], size: int, stride: int) -> list[Item]:
        block = self.w.b.made.block
        if stride >= block:
            return self._within_threads(items, size, stride // block)
        is_near = stride < self.w.b.made.warp
        others = self._shuffled(items, stride) if is_near else self._exchanged(items, stride)
        b = self.w.b
        is_low = (b.thread & stride).eq(0)
        made: list[Item] = []
        for m, (own, other) in enumerate(zip(items, others)):
            rises = self._rises(m, size)
            wants_less = is_low if rises is True else ~is_low if rises is False else is_low ^ ~rises
            keeps = ~(self.keys.is_less(self.w, own, other) ^ wants_less)
            made.append(chosen(keeps, own, other))
        return made

    def _rises(self, m: int, size: int) -> Var | bool:
        """Does the run of register m end with its greatest item? All of a thread's registers, or
        some of its threads, are in such a run."""
        block = self.w.b.made.block
        if size >= self.tile:
            return True
        if size >= block:
            return m & (size // block) == 0
        return (self.w.b.thread & size).eq(0)

    def _within_threads(self, items: list[Item], size: int, distance: int) -> list[Item]:
        made = list(items)
        for m in range(len(items)):
            if m & distance:
                continue
            one, other = items[m], items[m + distance]
            rises = self._rises(m, size)
            assert isinstance(rises, bool)
            is_less = self.keys.is_less(self.w, one, other)
            stays = is_less if rises else ~is_less
            made[m], made[m + distance] = chosen(stays, one, other), chosen(stays, other, one)
        return made

    def _shuffled(self, items: list[Item], stride: int) -> list[Item]:
        return [[self.w.b.shuffle(v, stride) for v in item] for item in items]

    def _exchanged(self, items: list[Item], stride: int) -> list[Item]:
        b, block = self.w.b, self.w.b.made.block
        count = block * len(items)
        if not self.memory:
            self.memory = shared_items(b, self.keys, 2 * count)
        half = self.turn * count
        for m, item in enumerate(items):
            for ref, value in zip(self.memory, item):
                ref[b.thread + (half + m * block)] = value
        b.barrier()
        self.turn = 1 - self.turn
        partner = b.thread ^ stride
        return [
            [ref[partner + (half + m * block)] for ref in self.memory] for m in range(len(items))
        ]
