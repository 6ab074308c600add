"""What attention over a cache is given, how many of it a block has, and what parts leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.program.values import Var

NO_ROOM, NO_SLOT = "queries do not fit at their position", "a slot is out of range"

SHARED_BYTES = 32 << 10
"""Of a block: several are on a processor."""


@dataclass(frozen=True, slots=True)
class Cached:
    """Operands and the result, with the sizes of heads."""

    q: View
    keys: View
    values: View
    at: View
    slots: View | None
    scales: tuple[View, ...]
    """Of keys and of values; none where they are floats."""
    y: View
    attrs: dict[str, Any]
    machine: GpuMachine
    chunk: int
    """Keys of a chunk, and threads of a block."""
    key_width: int
    value_width: int
    """Elements that a thread loads at once."""

    @property
    def operands(self) -> tuple[View, ...]:
        last = () if self.slots is None else (self.slots, *self.scales)
        return (self.q, self.keys, self.values, self.at, *last)

    @property
    def heads(self) -> int:
        return self.attrs["num_heads"]

    @property
    def kv_heads(self) -> int:
        return self.attrs["kv_heads"] or self.heads

    @property
    def depth(self) -> int:
        return int(self.q.layout.dims[2]) // self.heads

    @property
    def columns(self) -> int:
        """Of the values of a head."""
        return int(self.y.layout.dims[2]) // self.heads

    @property
    def vectors(self) -> int:
        """Of the values of a head at one key."""
        return self.columns // self.value_width

    @property
    def groups(self) -> int:
        """Of threads that have all columns, each at some keys."""
        return max(1, self.chunk // max(1, self.vectors))

    @property
    def turns(self) -> int:
        """Vectors of columns of a thread."""
        return max(1, -(-self.vectors // self.chunk))

    @property
    def thread_columns(self) -> int:
        return self.turns * self.value_width

    @property
    def dtype(self) -> DType:
        """What it computes in."""
        return self.q.dtype.compute

    @property
    def shared_bytes(self) -> int:
        """That a block may have."""
        return min(SHARED_BYTES, self.machine.shared_bytes)

    @property
    def row_bytes(self) -> int:
        """Of shared memory for a query of a head: its elements, and its weights of a chunk."""
        return (self.depth + self.chunk + 1) * self.dtype.itemsize

    @property
    def sum_bytes(self) -> int:
        """The same for the sums of all groups."""
        return self.groups * self.columns * self.dtype.itemsize

    @property
    def window(self) -> int | None:
        return self.attrs["window"]

    def position(self, w: Writer, row: Var) -> tuple[Var, Var]:
        """Where a row's queries stand, 0 where they do not fit, and whether they do."""
        found = w.load(self.at, w.at(self.at.layout, [row]))[0]
        queries, capacity = w.number(self.q.layout.dims[1]), w.number(self.keys.layout.dims[1])
        fits = is_row(found, capacity - queries + 1)
        return w.wide(found).where(fits, 0), fits

    def first(self, w: Writer, place: Var) -> Var:
        """The first key that a query at a place sees."""
        return w.number(0) if self.window is None else (place - self.window).max(0)


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block has: some queries of some of the heads that share a kv head."""

    queries: int
    heads: int
    parts: int
    """Blocks among which those heads are divided."""

    @property
    def rows(self) -> int:
        return self.queries * self.heads


@dataclass(frozen=True, slots=True)
class Parts:
    """What blocks of one chunk leave of a query of a head: weighted sums of values, the greatest
    score and the sum of the weights."""

    sums: View
    stats: View
    splits: DimLike
    """Chunks of a slot."""

    def row(self, w: Writer, given: Cached, place: tuple[Var, Var, Var, Var]) -> Var:
        """The number of a batch row, query, head and chunk."""
        batch_row, query, head, split = place
        queries = w.dim(given.q.layout.dims[1])
        flat = (batch_row * queries + query) * given.heads + head
        return flat * w.dim(self.splits) + split
