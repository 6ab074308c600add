"""Launches that select the k first of rows in order.

Of short rows a warp holds all items in registers and takes the first one k times. Of longer ones
the k first of every tile are candidates, until they are one tile. Where k is most of a tile, rows
are sorted.
"""

from __future__ import annotations

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Item, Items, Keys, Rows
from rlx.backends.gpu.library.sort.sort import (
    MAX_LENGTH,
    TOO_LONG,
    Sorted,
    sort_rows,
    tile_of,
)
from rlx.backends.gpu.library.sort.tiles import sort_tile, tile_threads
from rlx.backends.gpu.library.writer import Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, upper_bound
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import Var

MAX_HELD = 32
"""Items of a row that a thread of a warp holds."""
MIN_SHRINKAGE = 4
"""A launch over tiles leaves at most one candidate of so many."""


def make_top_k(made: Launches) -> Schedule[GpuTask] | Refusal:
    """The k greatest or least elements in order, and where they were."""
    attrs = made.node.attrs
    k, rows = attrs["k"], Rows(made.operand(0), attrs["axis"])
    keys = Keys(rows.view.dtype, attrs["largest"])
    values, places = (made.result(i) for i in range(2))
    to = [Rows(v, rows.axis) for v in (values, places)]

    def put(w: Writer, row: Var, place: Var, item: Item) -> None:
        with w.b.when(place < k):
            index = keys.index(item)
            value = w.load(rows.view, rows.at(w, row, w.wide(index)))
            w.store(values, to[0].at(w, row, place), value)
            w.store(places, to[1].at(w, row, place), [index.to(DType.I64)])

    given = Sorted(rows, keys, (values, places), put)
    longest = upper_bound(ceiling(rows.length))
    if longest is not None and longest > MAX_LENGTH:
        return Refusal(f"{made.node.label}: {TOO_LONG}")
    warp, held = made.machine.warp, MAX_HELD // len(keys.dtypes)
    if longest is not None and k <= warp and longest <= warp * held:
        _in_registers(made, given, k, max(1, -(-longest // warp)))
        return made.schedule()
    tile = tile_of(made, keys, longest)
    if longest is None or k * MIN_SHRINKAGE > tile or longest <= tile:
        return sort_rows(made, given)
    _by_tiles(made, given, k, tile)
    return made.schedule()


def _in_registers(made: Launches, given: Sorted, k: int, held: int) -> None:
    """A warp a row: the first of all items k times; thread t keeps number t."""
    warp, block, keys = made.machine.warp, made.machine.block, given.keys
    per_block = block // warp

    def body(w: Writer) -> None:
        b = w.b
        row = w.block_index() * per_block + w.wide(b.warp)
        with b.when(row < w.dim(given.count)):
            items = [given.fetch(w, row, w.wide(b.lane) + turn * warp) for turn in range(held)]
            kept = [b.variable(v) for v in keys.nothing(b)]
            left = [[b.variable(v) for v in item] for item in items]
            carried = [v for item in left for v in item]
            with b.loop(0, k, carry=[*kept, *carried]) as number:
                best = _first(w, keys, [list(item) for item in left], warp)
                is_own = b.lane.eq(number)
                for to, value in zip(kept, best):
                    to.set(value.where(is_own, to))
                for item in left:
                    is_taken = keys.index(list(item)).eq(keys.index(best))
                    for variable, none in zip(item, keys.nothing(b)):
                        variable.set(none.where(is_taken, variable))
            place = w.wide(b.lane)
            with b.when(place < k):
                given.put(w, row, place, list(kept))

    made.program(
        "select",
        body,
        grid=((given.count + (per_block - 1)) // per_block,),
        block=block,
        reads=given.reads,
        writes=given.writes,
        note=f"a warp a row, {held} items a thread",
    )


def _first(w: Writer, keys: Keys, items: list[Item], warp: int) -> Item:
    """The least item of all threads of the warp."""
    while len(items) > 1:
        pairs = [_less(w, keys, *items[i : i + 2]) for i in range(0, len(items) - 1, 2)]
        items = [*pairs, *items[len(pairs) * 2 :]]
    (own,) = items
    if len(own) == 1:
        return [w.b.warp_reduce("min", own[0], warp)]
    key = w.b.warp_reduce("min", own[0], warp)
    last = w.b.const(-1, own[1].dtype)
    return [key, w.b.warp_reduce("min", own[1].where(own[0].eq(key), last), warp)]


def _less(w: Writer, keys: Keys, a: Item, b: Item) -> Item:
    if len(a) == 1:
        return [a[0].min(b[0])]
    is_less = keys.is_less(w, a, b)
    return [x.where(is_less, y) for x, y in zip(a, b)]


def _by_tiles(made: Launches, given: Sorted, k: int, tile: int) -> None:
    """The k first of every tile, then of every tile of these, until there is one tile."""
    source: Items | None = None
    length = given.length
    while (longest := upper_bound(ceiling(length)) or 0) > tile:
        tiles = (length + (tile - 1)) // tile
        dims = (given.count, tiles * k)
        to = Items(tuple(made.temp(dims, d) for d in given.keys.dtypes))
        _candidates(made, given, (source, length), to, tile, k)
        source, length = to, tiles * k
    _candidates(made, given, (source, length), None, tile_of(made, given.keys, longest), k)


def _candidates(
    made: Launches,
    given: Sorted,
    source: tuple[Items | None, DimLike],
    to: Items | None,
    tile: int,
    k: int,
) -> None:
    """The k first items of every tile; of the last one, what is asked for."""
    (items, length), keys = source, given.keys
    tiles = (length + (tile - 1)) // tile
    block = tile_threads(tile, made.machine.max_block, made.machine.warp)

    def fetch(w: Writer, row: Var, position: Var) -> Item:
        if items is None:
            return given.fetch(w, row, position)
        inside = position < w.dim(length)
        item = items.load(w, row, position, inside)
        return [x.where(inside, n) for x, n in zip(item, keys.nothing(w.b))]

    def body(w: Writer) -> None:
        b, number, count = w.b, w.block_index(), w.dim(tiles)
        row, own = number // count, number % count
        for i, item in sort_tile(w, keys, tile, own * tile, lambda at: fetch(w, row, at)):
            with b.when(i < min(k, tile)):
                if to is None:
                    given.put(w, row, w.wide(i), item)
                else:
                    to.store(w, row, own * k + w.wide(i), item)

    made.program(
        "candidates",
        body,
        grid=(given.count * tiles,),
        block=block,
        reads=(*given.reads, *(items.views if items is not None else ())),
        writes=given.writes if to is None else to.views,
        note=f"the first {k} of tiles of {tile}",
        shape=tile,
    )
