"""GEMM tiling: register tiles, cache blocks, and packed panels.

A register tile is some rows by some vectors of columns. A panel is the right operand's columns of
one tile, packed as [inner][columns] with unit stride; the last one is zero-padded. Where an
instruction adds several products to a sum, the inner steps of a dot-product group are contiguous,
[inner / group][columns][group], the last group zero-padded. Weights are packed once. A unit is a
block of rows of one panel. Consecutive units are the rows of one panel, which stays in cache; after
as many rows as stay in cache themselves comes the next panel, then the next rows, then the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.codegen.lowp.operand_types import dot_group_of
from rlx.backends.cpu.isa import Isa
from rlx.core.dim import DimLike, dim_max, dim_min, is_static, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.machine import register_tiles
from rlx.kernel.contract import Contract, extent_of
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Load, Store, postorder
from rlx.kernel.rewrite import Rewriter, substitution

INNER_BLOCK = 128
"""Inner steps of one chain of float additions; part of the definition of the bits, so the same
everywhere. Chains of 512 were twice as far from f64 on positive numbers, and 1 % faster."""
BLOCKS_PER_POLL = 16
"""Inner blocks between two polls: some 100 µs of a row block."""
INTEGER_INNER_BLOCK = 512
"""Inner steps of a chain of integer additions, which are exact."""
ROW_BLOCK = 192
"""Rows of a unit, at most."""
MIN_UNITS = 128
"""Enough for 64 workers to finish at about the same time."""
UNIT_FLOPS = 1 << 18
"""Of a unit at least, where there could be more of them."""
GROUP_BYTES = 1 << 21
"""Bytes of rows that are read again for each panel."""
ROW_GROUPS = 16
"""Groups of rows, at least, where the right operand stays in the L2 cache. Each worker then reads
and writes rows of its own: a line that two cores have read takes 8 ns to write where they share no
cache, on 2 cores of an EPYC 1x1 convolutions took 1.2 to 1.6 times as long by panels."""
RESIDENT_BYTES = 1 << 19
"""A right operand up to this size stays in the L2 cache."""
FMA_LATENCY = 4
UNPACKED_MAX_ROWS = 24
"""Up to here packing reads and writes as much as the GEMM itself."""


GEMV_MAX_ROWS = 4


L1_RESIDENT_BYTES = 1 << 15
"""A matrix up to this size stays in the L1 cache whatever its strides."""


class NoGemm(UnsupportedError):
    """The contraction has no native code; it says why."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The schedule of a contraction. Only `inner_block` and the dot-product group affect the bits
    of the result."""

    rows: tuple[int, ...]
    """Rows of the register tiles, most first: the largest that fits is taken, again and again."""
    vectors: int
    lanes: int
    has_panels: bool
    row_block: int
    has_table: bool = False
    """Is the right operand unpacked, addressed by a table of inner-step offsets?"""
    inner_block: int = INNER_BLOCK
    dot_group: int = 1
    """Inner steps that one instruction adds to a sum. It affects the bits, as the block does."""

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def tiling_of(contract: Contract, isa: Isa, *, has_panels: bool) -> Tiling:
    """The tiles that waste least, by the static extents. Several inner axes of an unpacked right
    operand are one by an offset table, if they are on the left."""
    check_operands(contract, has_panels=has_panels)
    lanes = isa.vector_bytes // sums_dtype(contract).itemsize
    tiles = register_tiles(isa.registers, has_fma=isa.has_fma)
    rows, vectors = min(tiles, key=lambda t: _cost(contract, *t, lanes))
    taken = _row_counts(rows, contract.rows.extent)
    row_block = rows * _tiles_in_unit(contract, rows, vectors * lanes)
    has_table = not has_panels and len(contract.inner) > 1 and steps_evenly(contract.left, contract)
    dot_group = dot_group_of(contract, isa) if has_panels else 1
    block = INNER_BLOCK * dot_group if contract.sums.is_float else INTEGER_INNER_BLOCK
    return Tiling(taken, vectors, lanes, has_panels, row_block, has_table, block, dot_group)


def _tiles_in_unit(contract: Contract, rows: int, columns: int) -> int:
    """As many tiles, one below the other, as leave enough units, each of them with enough flops."""
    inner, panels = (
        _or(extent_of(contract.inner), 512),
        _or(extent_of(contract.batch) * parts_of(contract.columns.extent, columns), 16),
    )
    tiles = -(-_or(contract.rows.extent, 256) // rows)
    wanted = max(1, tiles * panels // MIN_UNITS)
    least = UNIT_FLOPS // max(1, 2 * rows * columns * inner)
    return max(1, min(ROW_BLOCK // rows, max(wanted, least)))


def _or(extent: DimLike, usual: int) -> int:
    return extent if is_static(extent) else usual


def group_of(contract: Contract, tiling: Tiling) -> DimLike:
    """Row blocks that iterate over the panels together."""
    size = extent_of(contract.inner) * (tiling.row_block * contract.left.dtype.itemsize)
    most = GROUP_BYTES // dim_max(1, size)
    steps = extent_of(contract.inner)
    right = steps * contract.columns.extent * contract.right.dtype.itemsize
    if is_static(right) and right <= RESIDENT_BYTES:
        most = dim_min(most, parts_of(contract.rows.extent, tiling.row_block) // ROW_GROUPS)
    return dim_max(1, most)


def oriented(contract: Contract, constants: Collection[int] = ()) -> Contract:
    """The contraction or its transposed one: results contiguous along the columns first, then full
    tiles, then the constant operand packed."""
    return min((contract, contract.swapped()), key=lambda c: _misfit(c, constants))


def reads_only(x: Expr, constants: Collection[int]) -> bool:
    """Is all that the operand reads constant?"""
    return all(n.operand in constants for n in postorder([x]) if isinstance(n, Load))


def _misfit(contract: Contract, constants: Collection[int]) -> tuple[int, bool, bool]:
    apart = sum(s.at.coefficient(contract.columns) not in (0, 1) for s in contract.stores)
    return apart, contract.columns.extent == 1, not reads_only(contract.right, constants)


def steps_evenly(x: Expr, contract: Contract) -> bool:
    """Has an operand in memory a single stride over all inner steps?"""
    if not isinstance(x, Load) or x.args:
        return False
    pairs = zip(contract.inner, contract.inner[1:])
    step = x.at.coefficient
    return all(step(a) == step(b) * b.extent for a, b in pairs)


def check(contract: Contract, tiling: Tiling, isa: Isa) -> None:
    """Refuse what there is no code for, and a tiling of another contraction."""
    check_operands(contract, has_panels=tiling.has_panels)
    if tiling.has_table and (tiling.has_panels or not steps_evenly(contract.left, contract)):
        raise NoGemm(f"{contract.name}: a table of inner steps is not for it")
    if tiling.dot_group != 1 and (
        not tiling.has_panels or tiling.dot_group != dot_group_of(contract, isa)
    ):
        raise NoGemm(f"{contract.name}: {isa.name} takes no {tiling.dot_group} steps of it at once")
    if tiling.lanes * sums_dtype(contract).itemsize != isa.vector_bytes:
        raise NoGemm(f"{contract.name}: {tiling.lanes} lanes are not a vector of {isa.name}")
    extent = contract.rows.extent
    blocks = _blocks(extent, tiling.row_block) if is_static(extent) else ()
    if tiling.rows[-1] != 1 and not (blocks and all(_fits(b, tiling.rows) for b in blocks)):
        raise NoGemm(f"{contract.name}: tiles of {tiling.rows} rows leave some of {extent} out")


def _blocks(extent: int, size: int) -> tuple[int, ...]:
    """The sizes of the blocks of an extent."""
    return (size, extent % size) if extent >= size else (extent,)


def _fits(extent: int, sizes: Sequence[int]) -> bool:
    return sum(_cut(extent, sizes)) == extent


def check_operands(contract: Contract, *, has_panels: bool) -> None:
    """Refuse operands that tiles cannot read."""
    if contract.sums.is_complex:
        raise NoGemm(f"{contract.name}: complex products have no register tiles")
    if not isinstance(contract.left, Load) or contract.left.args:
        raise NoGemm(f"{contract.name}: its left operand is computed. Materialise it first")
    right = contract.right
    if has_panels:
        return
    if not isinstance(right, Load) or right.args:
        raise NoGemm(f"{contract.name}: its right operand is not in memory. Pack it")
    if right.at.coefficient(contract.columns) != 1:
        raise NoGemm(f"{contract.name}: the columns of its right operand lie apart. Pack it")


def reads_in_place(contract: Contract) -> bool:
    """Can the right operand be read without packing?"""
    try:
        check_operands(contract, has_panels=False)
    except NoGemm:
        return False
    return True


def is_windowed(contract: Contract) -> bool:
    """Has the right operand several inner axes, and is readable without packing?"""
    right = contract.right
    if len(contract.inner) == 1 or not isinstance(right, Load) or right.args:
        return False
    return right.at.coefficient(contract.columns) == 1


def is_worth_packing(contract: Contract, *, is_constant: bool) -> bool:
    """A constant is packed once. An activation is packed where it must be, or where several tiles
    of rows reread a panel: rows a page apart map to a few cache sets and evict each other.
    Convolution windows overlap: packed (im2col) they would be many times as large."""
    if is_constant or not reads_in_place(contract):
        return True
    size = extent_of((*contract.inner, contract.columns)) * contract.right.dtype.itemsize
    if is_windowed(contract) or provably_le(size, L1_RESIDENT_BYTES):
        return False
    rows = contract.rows.extent
    return not is_static(rows) or rows > UNPACKED_MAX_ROWS


def is_gemv(contract: Contract, constants: Collection[int]) -> bool:
    """GEMV: are there so few rows that packing the right operand, whose columns are strided, takes
    longer than the product? Each sum is then a dot product along memory."""
    rows, right = contract.rows.extent, contract.right
    if not is_static(rows) or rows > GEMV_MAX_ROWS or reads_only(right, constants):
        return False
    return isinstance(right, Load) and right.at.coefficient(contract.inner[-1]) == 1 and (
        right.at.coefficient(contract.columns) != 1)  # fmt: skip


def has_few_output_channels(contract: Contract) -> bool:
    """Are there so few output channels per window that reading it takes longer than the sums?
    Vectorising over the columns is then enough."""
    rows = contract.rows.extent
    return is_windowed(contract) and is_static(rows) and rows < GEMV_MAX_ROWS


def table_bytes(contract: Contract, tiling: Tiling) -> DimLike:
    return 8 * extent_of(contract.inner) if tiling.has_table else 0


def num_units(contract: Contract, tiling: Tiling) -> DimLike:
    """The number of units; any range of them may run independently, in any order."""
    blocks = parts_of(contract.rows.extent, tiling.row_block)
    return extent_of(contract.batch) * blocks * parts_of(contract.columns.extent, tiling.columns)


def panels_of(contract: Contract, tiling: Tiling) -> Shape:
    """The packed right operand: [batch it varies with · panels, inner, columns]."""
    count = parts_of(contract.columns.extent, tiling.columns)
    panels = extent_of(packed_batch(contract)) * count
    *outer, last = contract.inner
    steps = extent_of(outer) * parts_of(last.extent, tiling.dot_group) * tiling.dot_group
    return Shape((panels, steps, tiling.columns), contract.right.dtype)


def pack_kernel(contract: Contract, tiling: Tiling) -> Kernel:
    """The kernel that packs the right operand, prologue included; its one result is the panels."""
    exprs = Exprs()
    panel = Axis("panel", parts_of(contract.columns.extent, tiling.columns))
    column = Axis("column", tiling.columns)
    place = Affine.of(panel) * tiling.columns + Affine.of(column)
    right = Rewriter(exprs, substitution({contract.columns: place}))(contract.right)
    zero = exprs.const(np.zeros((), right.dtype.numpy), right.dtype)
    is_inside = exprs.inside(place, 0, contract.columns.extent)
    axes = (*packed_batch(contract), panel, *contract.inner, column)
    strides = Layout.contiguous([a.extent for a in axes]).strides
    at = Affine(tuple((a, s) for a, s in zip(axes, strides) if s != 0))
    store = Store(0, at, exprs.choose(is_inside, right, zero))
    result = panels_of(contract, tiling)
    return Kernel(f"{contract.name}.pack", axes, (store,), contract.operands, (result,))


def packed_batch(contract: Contract) -> tuple[Axis, ...]:
    return tuple(b for b in contract.batch if b in contract.right.free)


def parts_of(extent: DimLike, size: int) -> DimLike:
    return (extent + size - 1) // size


def _row_counts(most: int, extent: DimLike) -> tuple[int, ...]:
    """The row counts in use: all powers of two below the most, unless the extent is static. Few
    rows are one tile."""
    sizes = (most, *(s for s in (8, 4, 2, 1) if s < most))
    if not is_static(extent):
        return sizes
    if 0 < extent <= most:
        return (extent,)
    used = list(_cut(extent, sizes))
    return tuple(s for s in sizes if s in used) or (1,)


def _cut(extent: int, sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield from [size] * (extent // size)
        extent %= size


def _cost(contract: Contract, rows: int, vectors: int, lanes: int) -> int:
    """Cycles of one inner step over all tiles: multiplications, or their latency in small tiles."""
    m = contract.rows.extent if is_static(contract.rows.extent) else 24
    n = contract.columns.extent if is_static(contract.columns.extent) else 24 * lanes
    panels = -(-n // (vectors * lanes))
    return panels * sum(max(r * vectors, FMA_LATENCY) for r in _cut(m, _row_counts(rows, m)))


def sums_dtype(contract: Contract) -> DType:
    """The accumulator dtype: small integers wrap alike in 32 bits."""
    sums = contract.sums
    if sums.is_integer and sums.itemsize < 4:
        return DType.I32
    return sums
