"""Merges of sorted runs by rank: an item's place is how many items of all runs are less.

Items are unique, as each holds its index: so ranks are places, nothing depends on the order of
threads, and the own run needs no special case. A launch joins eight runs.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.gpu.library.sort.keys import Item, Items, Keys
from rlx.backends.gpu.library.writer import Writer
from rlx.program.values import Var, Variable

WAYS = 8
"""Runs that one launch merges: their searches are independent, so that loads overlap."""


def merge_item(
    w: Writer, keys: Keys, source: Items, run: int, put: Callable[[Var, Var, Item], None]
) -> None:
    """One item of rows whose runs of length `run` are sorted; eight of them become one."""
    b, length = w.b, w.number(source.length)
    rows = w.number(source.views[0].layout.dims[0])
    number = w.thread
    with b.when(number < rows * length):
        row, position = number // length, number % length
        own = source.load(w, row, position)
        group = position // (run * WAYS) * (run * WAYS)
        starts = [(group + s * run).min(length) for s in range(WAYS)]
        counts = [(length - s).min(run) for s in starts]
        found = [b.variable(0, w.index) for _ in range(WAYS)]
        with b.loop(0, run.bit_length(), carry=found) as step:
            half = w.wide(b.const(run, step.dtype) >> step)
            for start, count, place in zip(starts, counts, found):
                _search(w, keys, source, (row, start, count), own, half, place)
        total = group
        for place in found:
            total = total + place
        put(row, total, own)


def _search(
    w: Writer,
    keys: Keys,
    source: Items,
    run: tuple[Var, Var, Var],
    own: Item,
    half: Var,
    place: Variable,
) -> None:
    """`place` + `half`, if so many items of the run are less."""
    row, start, count = run
    next_place = place + half
    is_there = next_place <= count
    there = source.load(w, row, start + next_place - 1, is_there)
    place.set(next_place.where(is_there & keys.is_less(w, there, own), place))
