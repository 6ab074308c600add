"""What every form of attention shares: arguments, the rows and keys of a block, loads of tiles.

A row is one query of one head. The heads of a group share their keys and values, so the rows of a
kv head are those of all its heads, the heads of one query next to each other:

    row r of (batch, kv head):  query r // group of head kv_head · group + r % group

Blocks with the most keys come first where queries see the keys up to their position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlx.core.dim import Dim, DimLike, exact_div, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.attention import MASK, Attention, K, MaskOperand, Positional, Q, V
from rlx.program.builder import Builder
from rlx.program.program import Access
from rlx.program.thread_builder import I32
from rlx.program.values import BufferRef, SharedRef, Var

MAX_I32 = 2**31 - 2**22
"""Of indices in 32 bits: tiles count a little beyond the last row."""
KeyPart = Literal["all", "past", "new"]
FAR = 1 << 30
"""Beyond any key."""


def index_dtype(form: Attention, bits: int = 64) -> DType:
    """64 bits where an index may not fit in 32, and a machine has buffers of as many elements."""
    if bits == 32:
        return I32
    layouts = [form.q, form.k, form.v, form.out]
    layouts += [form.past.k, form.past.v] if form.past is not None else []
    layouts += [form.rotary.cos, form.rotary.sin] if form.rotary is not None else []
    layouts += [form.mask.layout] if isinstance(form.mask, MaskOperand) else []
    reach = [_reach(x) for x in layouts]
    return I32 if all(r is not None and r <= MAX_I32 for r in reach) else DType.I64


def _reach(layout: Layout) -> int | None:
    """The greatest size of an index."""
    parts = [_size(layout.offset), *(_size(d * s) for d, s in zip(layout.dims, layout.strides))]
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


def _size(dim: DimLike) -> int | None:
    if is_static(dim):
        return abs(dim)
    assert isinstance(dim, Dim)
    ends = dim.interval
    return None if None in ends else max(abs(e) for e in ends if e is not None)


def vector_width(layout: Layout, dtype: DType, vector_bytes: int) -> int:
    """Neighbours along the depth that are contiguous, aligned and all inside of it."""
    width = vector_bytes // dtype.itemsize
    *others, step = layout.strides
    if step != 1:
        return 1
    fixed = (*others, layout.offset, layout.dims[3])
    while width > 1 and any(exact_div(d, width) is None for d in fixed):
        width //= 2
    return width


@dataclass(frozen=True, slots=True)
class Row:
    """A row of scores."""

    query: Var
    member: Var
    """Of the group of heads."""
    is_inside: Var


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of keys from `low` to `high`; those from `full_low` to `full_high` have no key that is
    not there or that a row of the block does not see by its position."""

    low: Var
    full_low: Var
    full_high: Var
    high: Var


class Frame:
    """The arguments of a program, and where its blocks are."""

    def __init__(
        self,
        b: Builder,
        form: Attention,
        rows: int,
        splits: int = 1,
        members: int = 0,
        section: int = 0,
        index_bits: int = 64,
    ) -> None:
        """`members` are the heads whose rows are taken together: all of a group, if 0. `section`
        is the number of those, of all batches, whose rows come before those of others."""
        self.b, self.form, self.rows, self.splits = b, form, rows, splits
        self.members, self.section = members or form.group, section
        self.index = index_dtype(form, index_bits)
        self.sizes: dict[tuple[Dim, DType], Var] = {}
        self.mask: BufferRef | None = None
        self.past: tuple[BufferRef, ...] = ()
        self.has_early_past = False
        """Does no kernel before write past keys and values?"""
        self.angles: tuple[BufferRef, ...] = ()

    def take(self, constants: frozenset[int]) -> None:
        """The operands as arguments."""
        form = self.form
        self.q, self.k, self.v = (self._operand(i, form.dtype, constants) for i in (Q, K, V))
        if isinstance(form.mask, MaskOperand):
            self.mask = self._operand(MASK, form.mask.dtype, constants)
        if form.past is not None:
            numbers = tuple(map(form.past_operand, (K, V)))
            self.past = tuple(self._operand(i, form.dtype, constants) for i in numbers)
            self.has_early_past = constants.issuperset(numbers)
        if form.rotary is not None:
            kind = form.rotary.dtype
            self.angles = tuple(self._operand(i, kind, constants) for i in form.angle_operands)

    def _operand(self, number: int, dtype: DType, constants: frozenset[int]) -> BufferRef:
        access: Access = "constant" if number in constants else "read"
        return self.b.buffer(f"x{number}", dtype, access)

    def begin(
        self,
        is_dependent: bool,
        early: Callable[[], None] = lambda: None,
        *,
        is_brief: bool = False,
    ) -> None:
        """Let the next kernel begin, find the place of the block, and wait for the kernels before;
        `early` reads what none of them writes. A brief kernel lets the next one begin when it has
        its turn: it would wait for the many loads of that one."""
        if is_dependent and not is_brief:
            self.b.release_dependents()
        self.at(self.b.block_index())
        early()
        if is_dependent:
            self.b.wait_dependencies()
        if is_dependent and is_brief:
            self.b.release_dependents()

    def at(self, place: Var) -> None:
        """The rows of that number among those of all blocks."""
        form, members = self.form, self.members
        units = form.heads // members
        self.split = place % self.splits
        place = place // self.splits
        tiles = self.number(row_tiles(form, self.rows, members))
        if self.section:
            pair, tile = self._in_section(place, tiles, units)
            self.unit, self.batch = pair % units, pair // units
        else:
            self.unit, place = place % units, place // units
            batch = self.number(form.batch)
            self.batch, tile = place % batch, place // batch
        self.kv_head = self.unit * members // form.group
        self.first = (tiles - 1 - tile) * self.rows
        self.count = self.number(form.queries * members)
        self.keys = self.number(form.keys)

    def _in_section(self, place: Var, tiles: Var, units: int) -> tuple[Var, Var]:
        """A pair of heads and batch, and a tile of its rows: all tiles of a section's pairs, then
        those of the next, so that the cache holds keys and values until all rows have read them."""
        size = self.section
        number = place // (tiles * size)
        rest = place - number * (tiles * size)
        pairs = (self.number(self.form.batch * units) - number * size).min(size)
        return number * size + rest % pairs, rest // pairs

    # -- numbers ---------------------------------------------------------------------------------

    def number(self, dim: DimLike, dtype: DType = I32) -> Var:
        """A number, or the argument that holds it."""
        if is_static(dim):
            return self.b.const(dim, dtype)
        assert isinstance(dim, Dim)
        if (dim, dtype) not in self.sizes:
            self.sizes[dim, dtype] = self.b.size(f"n{len(self.sizes)}", dim, dtype)
        return self.sizes[dim, dtype]

    def times(self, index: Var, stride: DimLike) -> Var:
        """An index in steps of a stride, as an offset."""
        return index.to(self.index) * self.number(stride, self.index)

    # -- places ----------------------------------------------------------------------------------

    def row(self, number: Var) -> Row:
        """The row of that number among those of the kv head."""
        members = self.members
        return Row(number // members, number % members, number < self.count)

    def of_kv_head(self, layout: Layout) -> Var:
        """The offset of the keys or values of the block."""
        start = self.number(layout.offset, self.index)
        return (
            start
            + self.times(self.batch, layout.strides[0])
            + self.times(self.kv_head, layout.strides[1])
        )

    def of_row(self, layout: Layout, row: Row) -> Var:
        """The offset of a row of queries, of results or of the mask."""
        start = self.number(layout.offset, self.index) + self.times(self.batch, layout.strides[0])
        head = self.unit * self.members + row.member
        return (
            start + self.times(head, layout.strides[1]) + self.times(row.query, layout.strides[2])
        )

    def position(self, row: Row) -> Var:
        """Of the row's query among the keys."""
        assert isinstance(self.form.mask, Positional)
        return row.query + self.number(self.form.mask.offset)

    # -- keys ------------------------------------------------------------------------------------

    def tiles(self, size: int) -> Tiles:
        """Those of this block, if it is one of several that split the keys."""
        return self.tiles_of(size, self.first, self.rows)

    def tiles_of(self, size: int, first_row: Var, rows: int) -> Tiles:
        """Those of some rows of this block."""
        zero = self.b.const(0, I32)
        low_key = full_low_key = zero
        high_key = full_high_key = self.keys
        if isinstance(self.form.mask, Positional):
            first = self.position(self.row(first_row))
            last = self.position(self.row((first_row + rows).min(self.count) - 1))
            high_key = high_key.min(last + 1).max(0)
            full_high_key = full_high_key.min(first + 1).max(0)
            if self.form.mask.window is not None:
                window = min(self.form.mask.window, FAR)
                low_key = (first - window).max(0)
                full_low_key = (last - window).max(0)
        high = (high_key + (size - 1)) // size
        low = (low_key // size).min(high)
        low, high = self._part(low, high)
        full_low = ((full_low_key + (size - 1)) // size).max(low).min(high)
        full_high = (full_high_key // size).max(full_low).min(high)
        return Tiles(low, full_low, full_high, high)

    def _part(self, low: Var, high: Var) -> tuple[Var, Var]:
        if self.splits == 1:
            return low, high
        each = (high - low + (self.splits - 1)) // self.splits
        start = (low + self.split * each).min(high)
        return start, (start + each).min(high)


def cycled(step: Var, count: int) -> tuple[Var, Var]:
    """Which of `count` a step that is not negative takes in turn, and how often it was taken."""
    if count & (count - 1):
        return step % count, step // count
    return step & (count - 1), step >> (count.bit_length() - 1)


def row_count(form: Attention) -> DimLike:
    """Rows of one kv head."""
    return form.queries * form.group


def row_tiles(form: Attention, rows: int, members: int) -> DimLike:
    return (form.queries * members + (rows - 1)) // rows


def blocks(form: Attention, rows: int, splits: int = 1, members: int = 0) -> DimLike:
    together = members or form.group
    return row_tiles(form, rows, together) * form.batch * (form.heads // together * splits)


# -- loads of tiles -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix in global memory whose rows a block loads: vectors of `width` of its columns."""

    buffer: BufferRef
    at: Callable[[Var], Var]
    """The offset of a row."""
    step: DimLike
    """From a column to the next one."""
    columns: int
    width: int


@dataclass(frozen=True, slots=True)
class Panel:
    """Columns of a matrix in shared memory: rows of `pitch` elements from `offset` on, of which
    `columns` are loaded."""

    first: int
    columns: int
    pitch: int
    offset: int


class Loader:
    """Threads of a block that load rows of a matrix to shared memory, zeros where there is none."""

    def __init__(self, frame: Frame, threads: int, is_async: bool) -> None:
        self.frame, self.b, self.threads, self.is_async = frame, frame.b, threads, is_async

    def load(
        self,
        source: Source,
        memory: SharedRef,
        base: Var | int,
        panels: tuple[Panel, ...],
        rows: int,
        is_inside: Callable[[Var], Var] | None,
        is_own: Callable[[Var], Var] | None = None,
    ) -> None:
        """Rows 0 to `rows` of the source, as far as they are inside, to memory from `base` on; of
        rows that are not its own, nothing is written."""
        for panel in panels:
            chunks = panel.columns // source.width
            total = rows * chunks
            for first in range(0, total, self.threads):
                number = self.b.thread + first
                own = is_own(number // chunks) if is_own is not None else None
                if first + self.threads > total:
                    rest = number < total
                    own = rest if own is None else own & rest
                if own is None:
                    self._chunk(source, memory, base, panel, number, is_inside)
                    continue
                with self.b.when(own):
                    self._chunk(source, memory, base, panel, number, is_inside)

    def _chunk(
        self,
        source: Source,
        memory: SharedRef,
        base: Var | int,
        panel: Panel,
        number: Var,
        is_inside: Callable[[Var], Var] | None,
    ) -> None:
        frame, width = self.frame, source.width
        chunks = panel.columns // width
        row, chunk = number // chunks, number % chunks
        column = chunk * width + panel.first
        to = number * width if panel.pitch == panel.columns else row * panel.pitch + chunk * width
        there = to + base + panel.offset
        mask = is_inside(row) if is_inside is not None else None
        if panel.first + panel.columns > source.columns:
            inside = column < source.columns
            mask = inside if mask is None else mask & inside
        index = source.at(row) + frame.times(column, source.step)
        self._moved(source, memory, there, index, mask)

    def _moved(
        self, source: Source, memory: SharedRef, there: Var, index: Var, mask: Var | None
    ) -> None:
        b, width = self.b, source.width
        if self.copies(source, memory):
            b.async_copy(memory, there, source.buffer, index, width, mask)
            return
        values = b.load(source.buffer, index, width, mask)
        held = [v.to(memory.dtype) for v in values]
        b.shared_store(memory, there, held)

    def load_keys(
        self,
        number: int,
        first: Var,
        memory: SharedRef,
        base: Var,
        panels: tuple[Panel, ...],
        rows: int,
        vector_bytes: int,
        part: KeyPart = "all",
    ) -> None:
        """A tile of keys, or of values, from key `first` on, or only what is past or new of it.
        Tiles of past keys only are copied from there; others key by key from where each is."""
        frame, form, b = self.frame, self.frame.form, self.b
        layout = (form.k, form.v)[number - K]
        buffer = (frame.k, frame.v)[number - K]
        divides = exact_div(form.keys, rows) is not None
        inside = None if divides else lambda row: first + row < frame.keys
        if form.past is None:
            source = self._keys(buffer, layout, first, memory.dtype, vector_bytes)
            self.load(source, memory, base, panels, rows, inside)
            return
        past, count = (form.past.k, form.past.v)[number - K], frame.number(form.past.keys)
        old = self._keys(frame.past[number - K], past, first, memory.dtype, vector_bytes)
        new = self._keys(buffer, layout, first - count, memory.dtype, vector_bytes)
        is_old: Callable[[Var], Var] = lambda row: first + row < count
        has_new = first + rows > count
        if part != "new":
            with b.when(has_new):
                self.load(old, memory, base, panels, rows, None, is_old)
            with b.otherwise():
                self.load(old, memory, base, panels, rows, None)
        if part != "past":
            with b.when(has_new):
                self.load(new, memory, base, panels, rows, inside, lambda row: ~is_old(row))

    def _keys(
        self, buffer: BufferRef, layout: Layout, first: Var, dtype: DType, vector_bytes: int
    ) -> Source:
        frame, start = self.frame, self.frame.of_kv_head(layout)
        width = vector_width(layout, dtype, vector_bytes)
        at: Callable[[Var], Var] = lambda r: start + frame.times(first + r, layout.strides[2])
        return Source(buffer, at, layout.strides[3], int(layout.dims[3]), width)

    def copies(self, source: Source, memory: SharedRef) -> bool:
        """Is it done by asynchronous copies?"""
        size = source.width * source.buffer.dtype.itemsize
        return self.is_async and memory.dtype is source.buffer.dtype and size >= 4
