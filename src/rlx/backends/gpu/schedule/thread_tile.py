"""How a product runs where barriers cost more than loads: a thread by itself does a tile of sums.

Factors are read straight from global memory, as vectors along the axis that they are contiguous
along. Nothing is shared, so that threads never meet: on adapters that run in software a host's
thread runs the threads of a block in turn, and shared memory is no nearer than any other.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product as pairs

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.factors import (
    Loader,
    inner_order,
    loader_of,
    outer_axes,
    store_width,
)
from rlx.backends.gpu.schedule.loop import estimate
from rlx.core.dim import DimLike, exact_div, is_static, product
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Axis

SIZES = (1, 2, 4, 8)
"""Rows or columns of a thread."""
MAX_SUMS = 64
"""Of a thread: 128 were no faster on either of two software adapters, 32 took a third longer."""
LOAD_PRODUCTS = 5
"""Products in the time of a load, which each thread of a SIMD group makes by itself: measured to be
4.6 and 10 on two software adapters."""
START_PRODUCTS = 100
"""Products in the time that a thread takes before the first one and after the last."""
DEPTH = 4
"""Inner steps of one step of a loop."""
MAX_PRODUCTS = 512
"""Of one step of a loop: longer code costs more to compile than it saves."""
RANKED = 4
"""Candidates that a search may try."""
MIN_SPLIT_DEPTH = 256
"""Inner steps of a part."""
MAX_SPLITS = 16


@dataclass(frozen=True, slots=True)
class ThreadTileSchedule:
    """A schedule of a product in tiles of one thread each."""

    rows: int
    columns: int
    depth: int
    """Steps of the last inner axis in one step of its loop."""
    batch: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    """In the order in which they are gone along, each in a loop of its own."""
    left: Loader
    right: Loader
    store_width: int
    block: int
    index_bits: int

    @property
    def order(self) -> Hashable:
        """In which sums are added up: that of the inner axes."""
        return "thread tile", tuple(a.name for a in self.inner)

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        return f"{self.rows}x{self.columns} sums a thread from global memory, {self.block} threads"


def ranked_thread_tiles(
    contract: Contract, machine: GpuMachine
) -> list[tuple[float, ThreadTileSchedule]]:
    """The first few candidates with the products, or what takes as long, that are expected of
    each; the fewest first."""
    rows, columns, batch = outer_axes(contract)
    inner = inner_order(contract, machine)
    loaders = [
        loader_of(contract, factor, axes, inner[-1], is_large=True, machine=machine)
        for factor, axes in ((contract.left, rows), (contract.right, columns))
    ]
    found = sorted(
        ((_cost(contract, r, c, machine), r, c) for r, c in pairs(SIZES, SIZES)),
        key=lambda x: (x[0], -x[1] * x[2]),
    )
    width = store_width(contract, machine)
    made: list[tuple[float, ThreadTileSchedule]] = []
    for cost, r, c in found[:RANKED]:
        left, right = (_fitted(x, n) for x, n in zip(loaders, (r, c)))
        tiles = _tiles(contract, r, c)
        schedule = ThreadTileSchedule(
            r, c, _depth(inner[-1], left, right, r * c), batch, inner, left, right,
            min(width, c), _block(tiles, machine), machine.index_bits,
        )  # fmt: skip
        made.append((cost, schedule))
    return made


def thread_tile_cost(
    contract: Contract, schedule: ThreadTileSchedule, machine: GpuMachine
) -> float:
    """What a schedule is expected to take of a contraction, be it that of other sizes."""
    return _cost(contract, schedule.rows, schedule.columns, machine)


def _fitted(loader: Loader, count: int) -> Loader:
    """Vectors of no more than what a thread has of the axis."""
    if loader.along == "inner" or loader.width <= count:
        return loader
    return Loader(loader.axes, loader.along, loader.vector, count)


def _depth(last: Axis, left: Loader, right: Loader, sums: int) -> int:
    """Steps of the last inner axis at once: whole vectors, and all of an axis of few steps."""
    least = max((x.width for x in (left, right) if x.along == "inner"), default=1)
    extent = last.extent
    if least == 1 and is_static(extent) and 0 < extent * sums <= MAX_PRODUCTS and extent <= 8:
        return int(extent)
    depth = max(least, DEPTH)
    return depth if exact_div(extent, depth) is not None else least


def _block(tiles: int, machine: GpuMachine) -> int:
    """Threads: whole SIMD groups, and blocks for all processors."""
    block = machine.simd
    while block < machine.block and 2 * block * machine.processors <= tiles:
        block *= 2
    return block


def _tiles(contract: Contract, rows: int, columns: int) -> int:
    m, n, batch = _counts(contract)
    return batch * _ceil(m, rows) * _ceil(n, columns)


def _counts(contract: Contract) -> tuple[int, int, int]:
    m, n, batch = (estimate(product(a.extent for a in axes)) for axes in outer_axes(contract))
    return m, n, batch


def _cost(contract: Contract, rows: int, columns: int, machine: GpuMachine) -> float:
    """Of the rounds that the SIMD groups of all processors need for the tiles."""
    if rows * columns > MAX_SUMS:
        return float("inf")
    depth = max(1, estimate(product(a.extent for a in contract.inner)))
    each = rows * columns + LOAD_PRODUCTS * (rows + columns)
    rounds = _ceil(_tiles(contract, rows, columns), machine.processors * machine.simd)
    return float(rounds * (depth * each + START_PRODUCTS))


def choose_thread_splits(contract: Contract, machine: GpuMachine) -> int:
    """Into how many parts the inner axes are cut, so that every SIMD group has something to do; 1
    where tiles are enough, or sums are short."""
    if not all(is_static(a.extent) for a in contract.inner):
        return 1
    longest = max(int(a.extent) for a in contract.inner)
    depth = int(product(int(a.extent) for a in contract.inner))
    rows, columns = max(pairs(SIZES, SIZES), key=lambda x: -_cost(contract, *x, machine))
    threads = machine.processors * machine.simd
    wanted = threads // max(1, _tiles(contract, rows, columns))
    fits = (
        s
        for s in range(min(wanted, MAX_SPLITS), 1, -1)
        if longest % s == 0 and depth // s >= MIN_SPLIT_DEPTH
    )
    return next(fits, 1)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def tile_count(contract: Contract, schedule: ThreadTileSchedule) -> tuple[DimLike, DimLike]:
    """Of rows and of columns."""
    sides = (schedule.left.axes, schedule.rows), (schedule.right.axes, schedule.columns)
    down, across = ((product(a.extent for a in x) + (n - 1)) // n for x, n in sides)
    return down, across
