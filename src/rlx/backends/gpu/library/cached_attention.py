"""Attention over a cache: each row of a batch reads one slot, up to its own queries.

Two ways, by the number of queries of a call. A few, as of a step of decoding: a block has the heads
of one query that share a kv head, and one chunk of the keys, so that the whole device reads the
cache; a second launch combines the chunks. Many, as of a prompt: a block has some queries as well,
and goes through all chunks. Blocks of chunks behind a row's queries, or before their window, end at
once. Chunks begin at fixed positions, so that the order of sums follows from the row's position and
from which of the two ways it is: bits depend neither on the capacity nor on other rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlx.backends.gpu.device import VECTOR_BYTES
from rlx.backends.gpu.library.cached_attention_block import attend
from rlx.backends.gpu.library.cached_attention_merge import merge
from rlx.backends.gpu.library.cached_operands import NO_ROOM, NO_SLOT, Cached, Parts, Tile
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import (
    DimLike,
    dim_max,
    dim_min,
    exact_div,
    is_static,
    lower_bound,
    product,
    provably_le,
    upper_bound,
)
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal

SLOTS, SCALES = 4, 5
"""The operand of slots, and the first of the scales of keys and values that are quantised."""
CHUNK = 128
"""Keys of a chunk: a thread of the block has one."""
FEW_QUERIES = 16
"""Of a call, up to which chunks are blocks of their own. What they leave is in memory."""
MAX_ROWS, MAX_SUMS = 8, 64
"""Queries of heads that a block has, and sums of a thread: in registers."""


def make_cached_attention(made: Launches) -> Schedule[GpuTask] | Refusal:
    """cached_attention: in chunks of keys, or all of them by a block of some queries."""
    depths = made.special.operands[0].dims[2], made.special.results[0].dims[2]
    if not all(map(is_static, depths)):
        return Refusal(f"{made.node.label}: the depth of its heads is not fixed")
    given = _given(made)
    if given.row_bytes + given.sum_bytes > given.shared_bytes:
        return Refusal(f"{made.node.label}: its heads are too deep for shared memory")
    capacity, queries = given.keys.layout.dims[1], given.q.layout.dims[1]
    few = dim_max(0, dim_min(1, FEW_QUERIES + 1 - queries))
    is_one = provably_le(capacity, given.chunk)
    if not is_one and lower_bound(queries) <= FEW_QUERIES:
        _split(made, given, few)
    if is_one or (most := upper_bound(queries)) is None or most > FEW_QUERIES:
        _whole(made, given, 1 if is_one else 1 - few)
    return made.schedule()


def _split(made: Launches, given: Cached, few: DimLike) -> None:
    """A block for each chunk of keys of a query, and what combines them, where queries are few."""
    tile = _tile(given, 1)
    splits = (given.keys.layout.dims[1] + (given.chunk - 1)) // given.chunk
    held = dim_min(given.q.layout.dims[1], FEW_QUERIES)
    rows = few * given.q.layout.dims[0] * held * given.heads * splits
    sums = made.temp((rows, given.columns), given.dtype)
    stats = made.temp((rows, 2), given.dtype)
    parts = Parts(sums, stats, splits)
    blocks = (given.q.layout.dims[0], given.kv_heads * tile.parts, given.q.layout.dims[1], splits)
    made.program(
        "split",
        lambda w: attend(w, given, tile, blocks, parts),
        grid=(few * product(blocks),),
        block=given.chunk,
        reads=given.operands,
        writes=(sums, stats),
        failures=(NO_ROOM, NO_SLOT),
        note=f"a block {given.chunk} keys of {tile.heads} heads, up to {FEW_QUERIES} queries",
    )
    points = product((*given.y.layout.dims[:2], given.heads, given.columns))
    block = made.machine.block
    made.program(
        "merge",
        lambda w: merge(w, given, parts, points),
        grid=(few * ((points + (block - 1)) // block),),
        block=block,
        reads=(given.at, sums, stats),
        writes=(given.y,),
        note="a thread a column, over chunks of keys",
    )


def _whole(made: Launches, given: Cached, many: DimLike) -> None:
    """A block for some queries of the heads that share a kv head, which goes through all keys."""
    tile = _tile(given, max(1, _most_rows(given) // _tile(given, 1).heads))
    queries = (given.q.layout.dims[1] + (tile.queries - 1)) // tile.queries
    blocks = (given.q.layout.dims[0], given.kv_heads * tile.parts, queries)
    made.program(
        "attend",
        lambda w: attend(w, given, tile, blocks, None),
        grid=(many * product(blocks),),
        block=given.chunk,
        reads=given.operands,
        writes=(given.y,),
        failures=(NO_ROOM, NO_SLOT),
        note=f"a block {tile.queries} queries of {tile.heads} heads, {given.chunk} keys at a time",
    )


def _given(made: Launches) -> Cached:
    q, keys, values, at = (made.operand(i) for i in range(SLOTS))
    count = len(made.special.operands)
    slots = made.operand(SLOTS) if count > SLOTS else None
    scales = tuple(made.operand(i) for i in range(SCALES, count))
    attrs: dict[str, Any] = dict(made.node.attrs)
    y, machine = made.result(), made.machine
    chunk = min(CHUNK, machine.max_block)
    found = Cached(q, keys, values, at, slots, scales, y, attrs, machine, chunk, 1, 1)
    widths = _width(keys, found.depth), _width(values, found.columns)
    return replace(found, key_width=widths[0], value_width=widths[1])


def _width(view: View, depth: int) -> int:
    """Elements that a thread loads at once: every head of a row begins at a multiple of them."""
    *outer, last = view.layout.strides
    width = VECTOR_BYTES // view.dtype.itemsize
    parts = (depth, view.layout.offset, *outer)
    while width > 1 and (last != 1 or any(exact_div(p, width) is None for p in parts)):
        width //= 2
    return width


def _most_rows(given: Cached) -> int:
    """As many as registers and half of shared memory have room for."""
    held = given.row_bytes
    return max(1, min(MAX_ROWS, MAX_SUMS // given.thread_columns, given.shared_bytes // 2 // held))


def _tile(given: Cached, queries: int) -> Tile:
    """The heads of a kv head in as few parts as there may be rows for."""
    shared = given.heads // given.kv_heads
    parts = -(-shared // _most_rows(given))
    return Tile(queries, -(-shared // parts), parts)
