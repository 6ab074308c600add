"""How a product runs on a GPU without matrix instructions: tiles in shared memory and registers.

A block does a tile of rows and columns; its factors come through shared memory, a few inner steps
at a time, two stages of them. A thread keeps a small tile of sums in registers. All batch axes that
a factor does not vary with are more rows or columns: the tiles of a convolution go over images.

Where there are fewer tiles than processors, the inner axes are cut in parts, and a second launch
adds the parts up in order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.factors import (
    Loader,
    inner_order,
    loader_of,
    outer_axes,
    store_width,
)
from rlx.core.dim import DimLike, is_static, lower_bound, product, upper_bound
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Axis

UNKNOWN_EXTENT = 1024
"""What a choice assumes of an extent that is not bounded."""
LANES = 128
"""Products that a processor adds up in a cycle."""
IDLE_SHARE, WARP_SHARE = 0.5, 0.03
"""Of a processor that warps keep busy, and that each of them adds: 4 reach 0.6, 16 all of it."""
REGISTERS, MAX_REGISTERS = 65536, 128
"""Of a processor, and of a thread where two blocks of 256 are to fit."""
VECTOR_BYTES = 16
"""What threads read from shared memory at once."""
DEPTH, MAX_STAGES = 8, 4
"""Inner steps of a stage: more take registers for elements on their way."""
STAGE_LOADS = 16 * DEPTH
"""Of a thread in a stage, which shared memory serves."""
START_CYCLES, EXCHANGE_CYCLES, LAUNCH_CYCLES = 1500, 300, 6000
"""Of a block, before its first product and after its last; of adding a slice; of a second
launch."""
STAGE_CYCLES = 150
"""Of a stage at least: a barrier, and shared memory's latency."""
SPLIT_BYTES = 12
"""Bytes that a processor writes and reads again in a cycle."""
RANKED = 8
"""Candidates that a search may try."""
MAX_SPLITS = 16
MIN_SPLIT_DEPTH = 128
"""Inner steps of a part."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of a block, and of a thread."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    share: float
    """Of the peak rate, where nothing else is in the way."""

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def is_large(self) -> bool:
        """Are a thread's sums most of its registers?"""
        return self.thread_rows * self.thread_columns >= 64

    def sums_bytes(self, itemsize: int, slices: int) -> int:
        """Of the sums of all slices but one."""
        return itemsize * self.rows * self.columns * (slices - 1)

    def registers(self, itemsize: int) -> int:
        """Of a thread: its sums, twice what it multiplies, and addresses."""
        own = self.thread_rows * self.thread_columns
        numbers = own + 2 * (self.thread_rows + self.thread_columns)
        return numbers * max(1, itemsize // 4) + 32


TILES = (
    Tile(128, 128, 8, 8, 0.70),
    Tile(128, 64, 8, 8, 0.60),
    Tile(64, 128, 8, 8, 0.62),
    Tile(64, 64, 8, 4, 0.53),
    Tile(64, 32, 4, 4, 0.34),
    Tile(32, 64, 4, 4, 0.40),
    Tile(32, 32, 4, 2, 0.24),
    Tile(16, 16, 2, 2, 0.12),
)
SLICES = (1, 4)
"""Groups of threads that share a block's inner steps."""


@dataclass(frozen=True, slots=True)
class RegisterTileSchedule:
    """A schedule of a product in tiles."""

    tile: Tile
    depth: int
    """Inner steps of a stage."""
    stages: int
    """That are in shared memory at a time, a power of two."""
    slices: int
    """Groups of threads that each have stages of their own; their sums are added up in order."""
    batch: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    """In the order in which they are gone along, the last the fastest."""
    left: Loader
    right: Loader
    store_width: int
    """Neighbouring columns that a thread stores at once."""
    warp: int
    is_dependent: bool = False
    index_bits: int = 64
    """At most, of indices of elements."""

    @property
    def block(self) -> int:
        return self.tile.threads * self.slices

    def resident(self, itemsize: int) -> int:
        """Blocks that a processor is to hold: large tiles take more registers than they need."""
        is_large = self.tile.is_large and itemsize == 4
        return max(1, REGISTERS // (MAX_REGISTERS * self.block)) if is_large else 0

    @property
    def order(self) -> Hashable:
        """In which sums are added up: that of inner axes, in as many parts as there are groups."""
        return "register tile", self.slices, self.depth

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        t = self.tile
        return (
            f"tiles of {t.rows}x{t.columns}x{self.depth}, {self.stages} stages, "
            f"{t.thread_rows}x{t.thread_columns} sums a thread, {self.block} threads"
            + (f" in {self.slices} groups along inner axes" if self.slices > 1 else "")
        )


def ranked_register_tiles(
    contract: Contract, machine: GpuMachine
) -> list[tuple[float, RegisterTileSchedule]]:
    """The first few candidates, and the cycles that are expected of each, the fewest first."""
    candidates = [
        (_cycles(contract, *candidate, 1, machine), *candidate)
        for candidate in _candidates(contract, machine)
    ]
    ranked = sorted(candidates, key=lambda candidate: candidate[0])[:RANKED]
    make = _Maker(contract, machine)
    return [(cycles, make.schedule(tile, slices)) for cycles, tile, slices in ranked]


def register_tile_cycles(
    contract: Contract, schedule: RegisterTileSchedule, machine: GpuMachine
) -> float:
    """What a schedule is expected to take of a contraction, be it that of other sizes."""
    return _cycles(contract, schedule.tile, schedule.slices, 1, machine)


class _Maker:
    """Schedules of one contraction: how factors are read depends on little of a tile."""

    def __init__(self, contract: Contract, machine: GpuMachine) -> None:
        self.contract, self.machine = contract, machine
        self.rows, self.columns, self.batch = outer_axes(contract)
        self.inner = inner_order(contract, machine)
        self.store_width = store_width(contract, machine)
        self._loaders: dict[bool, tuple[Loader, Loader]] = {}

    def loaders(self, tile: Tile) -> tuple[Loader, Loader]:
        if tile.is_large not in self._loaders:
            sides = (self.contract.left, self.rows), (self.contract.right, self.columns)
            left, right = (
                loader_of(self.contract, factor, axes, self.inner[-1], tile.is_large, self.machine)
                for factor, axes in sides
            )
            self._loaders[tile.is_large] = left, right
        return self._loaders[tile.is_large]

    def schedule(self, tile: Tile, slices: int) -> RegisterTileSchedule:
        left, right = self.loaders(tile)
        return RegisterTileSchedule(
            tile,
            DEPTH,
            _stages(self.contract, tile, slices, left, right, self.machine),
            slices,
            self.batch,
            self.inner,
            left,
            right,
            self.store_width,
            self.machine.warp,
            self.machine.has_dependent_launch,
            self.machine.index_bits,
        )


def choose_splits(contract: Contract, machine: GpuMachine) -> int:
    """Into how many parts the inner axes are cut; 1 where that does not pay."""
    outer = [upper_bound(a.extent) for a in contract.outer]
    if None in outer or not all(is_static(a.extent) for a in contract.inner):
        return 1
    longest = max(int(a.extent) for a in contract.inner)
    depth = _most(product(a.extent for a in contract.inner))
    parts = [
        s
        for s in range(1, MAX_SPLITS + 1)
        if s == 1 or (longest % s == 0 and depth // s >= MIN_SPLIT_DEPTH)
    ]
    return min(parts, key=lambda s: _least_cycles(contract, s, machine))


def _least_cycles(contract: Contract, splits: int, machine: GpuMachine) -> float:
    return min(
        _cycles(contract, *candidate, splits, machine)
        for candidate in _candidates(contract, machine)
    )


def _candidates(contract: Contract, machine: GpuMachine) -> list[tuple[Tile, int]]:
    """Tiles whose sums leave room for two blocks' registers, and slices that a block has room for:
    the sums of all but one are exchanged through shared memory. Large tiles have one slice: they
    are bound by the rate of shared memory already."""
    size = contract.sums.itemsize
    found = [
        (t, n)
        for t in TILES
        for n in SLICES
        if machine.lanes <= t.threads * n <= machine.max_block
        and (n == 1 or not t.is_large)
        and t.registers(size) <= MAX_REGISTERS
        and n * _stage_bytes(contract, t) * 2 + t.sums_bytes(size, n) <= machine.shared_bytes
    ]
    return found or [(TILES[-1], 1)]


def _stage_bytes(contract: Contract, tile: Tile) -> int:
    size = contract.sums.itemsize
    return DEPTH * (size * (tile.rows + tile.columns) + 2 * VECTOR_BYTES)


def _stages(
    contract: Contract, tile: Tile, slices: int, left: Loader, right: Loader, machine: GpuMachine
) -> int:
    """More than two where copies are under way while threads go on."""
    sums = tile.sums_bytes(contract.sums.itemsize, slices)
    size = MAX_STAGES * slices * _stage_bytes(contract, tile) + sums
    has_copies = left.source is not None or right.source is not None
    return MAX_STAGES if has_copies and size <= machine.shared_bytes else 2


# -- cost -----------------------------------------------------------------------------------------


def _cycles(contract: Contract, tile: Tile, slices: int, splits: int, machine: GpuMachine) -> float:
    """What a processor takes for its tiles, those that run at once sharing its lanes."""
    rows, columns, batch = ([_most(a.extent) for a in axes] for axes in outer_axes(contract))
    m, n, count = (_product(x) for x in (rows, columns, batch))
    k = max(1, _most(product(a.extent for a in contract.inner)) // splits)
    blocks = count * splits * _ceil(m, tile.rows) * _ceil(n, tile.columns)
    each = max(1, _ceil(blocks, machine.processors))
    threads = tile.threads * slices
    room = max(1, REGISTERS // (tile.registers(contract.sums.itemsize) * threads))
    warps = max(1, threads // machine.lanes)
    turns, rest = divmod(each, room)
    cycles = turns * _turn_cycles(tile, room, warps, k, slices)
    cycles += _turn_cycles(tile, rest, warps, k, slices) if rest else 0.0
    if splits > 1:
        size = contract.sums.itemsize * splits * count * m * n
        cycles += LAUNCH_CYCLES + size / (SPLIT_BYTES * machine.processors)
    return cycles


def _turn_cycles(tile: Tile, blocks: int, warps: int, depth: int, slices: int) -> float:
    """Of some blocks that run at once."""
    busy = min(1.0, IDLE_SHARE + WARP_SHARE * blocks * warps)
    work = blocks * tile.rows * tile.columns * depth
    start = START_CYCLES + EXCHANGE_CYCLES * (slices - 1)
    stages = _ceil(depth, DEPTH * slices)
    return start + max(work / (LANES * tile.share * busy), stages * STAGE_CYCLES)


def _most(dim: DimLike) -> int:
    found = upper_bound(dim)
    return max(UNKNOWN_EXTENT, 2 * lower_bound(dim)) if found is None else found


def _product(counts: Iterable[int]) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
