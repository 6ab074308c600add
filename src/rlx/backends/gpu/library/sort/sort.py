"""Launches that sort rows: sort, argsort, and the order of a value for other algorithms.

Rows of one tile are sorted by a block in shared memory; longer ones tile by tile, and the sorted
tiles are merged. How many merges there are follows from the greatest length a row can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Item, Items, Keys, Rows
from rlx.backends.gpu.library.sort.merge import WAYS, merge_item
from rlx.backends.gpu.library.sort.tiles import sort_tile, tile_threads
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, product, upper_bound
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import Var

MAX_LENGTH = 1 << 31
TOO_LONG = f"a row has more than {MAX_LENGTH} elements. Split it"
Put = Callable[[Writer, Var, Var, Item], None]
"""Stores what is at a place of a sorted row."""


def make_argsort(made: Launches) -> Schedule[GpuTask] | Refusal:
    """y[i] = where the i-th least element is."""
    rows, out = Rows(made.operand(0), made.node.attrs["axis"]), made.result()
    keys = Keys(rows.view.dtype, made.node.attrs["descending"])
    to = Rows(out, rows.axis)

    def put(w: Writer, row: Var, place: Var, item: Item) -> None:
        w.store(out, to.at(w, row, place), [keys.index(item).to(DType.I64)])

    return sort_rows(made, Sorted(rows, keys, (out,), put))


def make_sort(made: Launches) -> Schedule[GpuTask] | Refusal:
    """y[i] = the i-th least element, read where it is: keys do not tell zeros apart."""
    rows, out = Rows(made.operand(0), made.node.attrs["axis"]), made.result()
    keys = Keys(rows.view.dtype, made.node.attrs["descending"])
    to = Rows(out, rows.axis)

    def put(w: Writer, row: Var, place: Var, item: Item) -> None:
        value = w.load(rows.view, rows.at(w, row, w.wide(keys.index(item))))
        w.store(out, to.at(w, row, place), value)

    return sort_rows(made, Sorted(rows, keys, (out,), put))


def order_of(made: Launches, view: View) -> View | Refusal:
    """Where the elements of a vector are, in order, as i32: in a temporary."""
    rows, keys = Rows(view, 0), Keys(view.dtype, descending=False)
    order = made.temp(view.layout.dims, DType.I32)

    def put(w: Writer, row: Var, place: Var, item: Item) -> None:
        w.ref(order)[w.wide(place)] = keys.index(item).bits(DType.I32)

    done = sort_rows(made, Sorted(rows, keys, (order,), put))
    return done if isinstance(done, Refusal) else order


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows, how they are sorted, and what becomes of sorted items."""

    rows: Rows
    keys: Keys
    writes: tuple[View, ...]
    put: Put

    @property
    def count(self) -> DimLike:
        """Of the rows."""
        return product(self.rows.others.dims)

    @property
    def length(self) -> DimLike:
        """Of a row."""
        return self.rows.length

    @property
    def reads(self) -> tuple[View, ...]:
        """What items, their order and their results depend on."""
        return (self.rows.view,)

    def fetch(self, w: Writer, row: Var, position: Var) -> Item:
        """The item at a position, or nothing behind the row's end."""
        inside = position < w.dim(self.length)
        value = w.load(self.rows.view, self.rows.at(w, row, position), inside)[0]
        item = self.keys.item(w.b, value, position)
        return [x.where(inside, n) for x, n in zip(item, self.keys.nothing(w.b))]


def sort_rows(made: Launches, given: Sorted) -> Schedule[GpuTask] | Refusal:
    """The launches that sort rows."""
    longest = upper_bound(ceiling(given.length))
    if longest is not None and longest > MAX_LENGTH:
        return Refusal(f"{made.node.label}: {TOO_LONG}")
    tile = tile_of(made, given.keys, longest)
    if longest is not None and longest <= tile:
        _tiles(made, given, tile, None)
        return made.schedule()
    _merged(made, given, tile, MAX_LENGTH if longest is None else longest)
    return made.schedule()


def tile_of(made: Launches, keys: Keys, longest: int | None) -> int:
    """The least power of two that holds a row, if shared memory holds so many items."""
    fits = 1 << ((made.machine.shared_bytes // (2 * keys.item_bytes)).bit_length() - 1)
    most = min(keys.max_tile, fits)
    return most if longest is None else min(most, max(2, 1 << (longest - 1).bit_length()))


def _tiles(made: Launches, given: Sorted, tile: int, to: Items | None) -> None:
    """Sort every tile; whole rows are stored, tiles of rows are items of the next launch."""
    length, keys = given.length, given.keys
    tiles = (length + (tile - 1)) // tile
    block = tile_threads(tile, made.machine.max_block, made.machine.warp)
    is_unbounded = upper_bound(ceiling(length)) is None

    def body(w: Writer) -> None:
        b, block_number = w.b, w.block_index()
        count = w.dim(tiles)
        row, start = block_number // count, block_number % count * tile
        if is_unbounded:
            w.fail(w.number(length) > MAX_LENGTH, TOO_LONG)
        for i, item in sort_tile(w, keys, tile, start, lambda at: given.fetch(w, row, at)):
            place = start + w.wide(i)
            with b.when((i < tile) & (place < w.dim(length))):
                if to is None:
                    given.put(w, row, place, item)
                else:
                    to.store(w, row, place, item)

    made.program(
        "tiles",
        body,
        grid=(given.count * tiles,),
        block=block,
        reads=given.reads,
        writes=given.writes if to is None else to.views,
        failures=(TOO_LONG,) if is_unbounded else (),
        note=f"sorts tiles of {tile}",
    )


def _merged(made: Launches, given: Sorted, tile: int, longest: int) -> None:
    """Sorted tiles, then merges from one temporary to the other until a row is one run."""
    both = [_items(made, given) for _ in range(2)]
    _tiles(made, given, tile, both[0])
    run, number = tile, 0
    while run < longest:
        is_last = run * WAYS >= longest
        _merge(made, given, both[number % 2], None if is_last else both[1 - number % 2], run)
        run, number = run * WAYS, number + 1


def _merge(made: Launches, given: Sorted, source: Items, to: Items | None, run: int) -> None:
    keys, block = given.keys, made.machine.block
    total = given.count * given.length

    def body(w: Writer) -> None:
        def put(row: Var, place: Var, item: Item) -> None:
            if to is None:
                given.put(w, row, place, item)
            else:
                to.store(w, row, place, item)

        merge_item(w, keys, source, run, put)

    made.program(
        "merge",
        body,
        grid=((total + (block - 1)) // block,),
        block=block,
        reads=(*source.views, *given.reads),
        writes=given.writes if to is None else to.views,
        note=f"merges runs of {run}",
        shape=run,
    )


def _items(made: Launches, given: Sorted) -> Items:
    dims = (given.count, given.length)
    return Items(tuple(made.temp(dims, d) for d in given.keys.dtypes))
