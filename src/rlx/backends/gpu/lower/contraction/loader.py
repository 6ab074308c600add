"""Tiles of an operand from global to shared memory, a unit of neighbours at a time.

A tile of rows by inner positions lies in shared memory in panels, whose rows are up to 128 bytes of
neighbours: along the inner axis, or along the rows where that is how the operand is contiguous. The
memory is swizzled, so that matrices of either are read without bank conflicts.

What is copied as it is goes there asynchronously. What is computed is loaded to registers first,
and stored when the stage before has been multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.backends.gpu.lower.contraction.values import ProductValues, Terms
from rlx.backends.gpu.lower.expressions import combined, zipped
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.product import Operand
from rlx.core.dim import DimLike, exact_div, is_static
from rlx.core.dim import product as count_of
from rlx.kernel.expr import Affine, Axis, Exprs, Index, Inside, Load, postorder
from rlx.program.nodes import MAX_VECTOR_BYTES
from rlx.program.types import TileType
from rlx.program.values import SharedRef, Var

MAX_TABULATED = 4096
"""Inner positions of which a table is made."""
SCATTERED = 8
"""Inner positions that a thread reads one by one, and stores at once."""
PANEL = 64
"""Half floats of a row of shared memory: 128 bytes."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Neighbours that a thread moves in every step."""

    line: Var
    """Of the tile."""
    column: Var
    """Of the line: where its first element is."""
    place: Var
    """In a stage of shared memory."""


@dataclass
class TileLoader:
    """One operand's tiles, for the threads of a block."""

    values: ProductValues
    operand: Operand
    memory: SharedRef
    outer: int
    """Rows or columns of a tile."""
    depth: int
    threads: int
    first: Var
    """The flat position of the tile's first row or column."""
    units: list[_Unit] = field(default_factory=list[_Unit])
    scopes: dict[int, Scope] = field(default_factory=dict[int, Scope])
    """Of rows or columns, by the thread's units."""

    def __post_init__(self) -> None:
        self.lines, self.row = self.outer, self.depth
        if not self.operand.is_along_inner:
            self.lines, self.row = self.depth, self.outer
        self.panel = min(PANEL, self.row)
        self.unit = SCATTERED if self.operand.is_scattered else self.operand.unit
        per_line = self.row // self.unit
        self.count = self.lines * per_line
        self.units = [self._unit(i, per_line) for i in range(-(-self.count // self.threads))]
        self.outer_scopes = [self._outer(u) for u in self.units]
        extent = count_of(a.extent for a in self.operand.inner)
        self._flat = Axis("flat", extent)
        self._bounds = Exprs().inside(Affine.of(self._flat), 0, extent)
        """Is a scattered position one of the product's?"""
        self._tables = self._tabulated(extent) if self.operand.is_scattered else {}

    @property
    def size(self) -> int:
        """Elements of a stage."""
        return self.outer * self.depth

    @property
    def axis(self) -> tuple[Axis, ...]:
        """Along which units go."""
        axes = self.operand.inner if self.operand.is_along_inner else self.operand.outer
        return axes[-1:]

    def _unit(self, number: int, per_line: int) -> _Unit:
        """Threads of a warp go along a line, or across lines of what is scattered. Sizes are
        powers of two."""
        if self.operand.is_scattered:
            column, line = self._divided(number, self.lines)
        else:
            line, column = self._divided(number, per_line)
        return _Unit(line, column * self.unit, self.place(line, column * self.unit))

    def _divided(self, number: int, count: int) -> tuple[Var, Var]:
        """The number of one of the thread's units, divided by a count, and the rest."""
        b, threads = self.values.b, self.threads
        if threads == count:
            return b.index(number), b.thread
        if threads % count == 0:
            return b.thread // count + number * (threads // count), b.thread % count
        return b.index(number * threads // count), b.thread + number * threads % count

    def place(self, line: Var | int, column: Var | int) -> Var:
        """Of an element of a stage in shared memory."""
        b = self.values.b
        at, along = b.index(line), b.index(column)
        return (
            along // self.panel * (self.lines * self.panel) + at * self.panel + along % self.panel
        )

    # -- positions -------------------------------------------------------------------------------

    def _outer(self, unit: _Unit) -> Scope:
        """Of the operand's rows: the same in every step, so it is known before the loop."""
        is_inner = self.operand.is_along_inner
        own = (unit.line if is_inner else unit.column).to(self.values.index_dtype)
        width = 1 if is_inner or self.operand.source is not None else self.unit
        outer = self.operand.outer
        is_whole = exact_div(count_of(a.extent for a in outer), self.outer) is not None
        scope = self.values.scope(outer, self.first + own, width, is_whole=is_whole)
        if self._is_partial and self.operand.source is None:
            is_there = self.values.b.thread < self.count
            scope.mask = is_there if scope.mask is None else scope.mask & is_there
        return scope

    @property
    def _is_partial(self) -> bool:
        """Have only some threads a unit?"""
        return self.count < self.threads

    def _inner(self, unit: _Unit, start: Var, has_tail: bool) -> Scope:
        is_inner = self.operand.is_along_inner
        own = (unit.column if is_inner else unit.line).to(self.values.index_dtype)
        width = self.operand.unit if is_inner and self.operand.source is None else 1
        inner = self.operand.inner
        if self.operand.is_scattered:
            return self._scattered(start + own)
        return self.values.scope(inner, start + own, width, is_whole=not has_tail)

    def _scattered(self, first: Var) -> Scope:
        """Neighbouring inner positions, each by its own indices."""
        values, inner = self.values, self.operand.inner
        flat = [first + i for i in range(SCATTERED)]
        inside = first.min(self._tabulated_count - SCATTERED) if self._tables else first
        values.parts = {
            terms: [v for i in range(0, SCATTERED, wide) for v in table.load(inside + i, wide)]
            for terms, table in self._tables.items()
            for wide in [MAX_VECTOR_BYTES // table.dtype.itemsize]
        }
        opened = [{} if self._tables else values.opened(inner, f, 1) for f in flat]
        index = {a: flat if self._tables else [o[a][0] for o in opened] for a in inner}
        return Scope(values.b.depth, {**index, self._flat: flat})

    def _tabulated(self, extent: DimLike) -> dict[Terms, SharedRef]:
        """What each inner position has to do with each index map, in shared memory: a table costs
        a load, and the indices of several axes some divisions."""
        inner, b = self.operand.inner, self.values.b
        nodes = postorder([self.operand.value])
        maps = [n.at for n in nodes if isinstance(n, Load | Index | Inside)]
        found = dict.fromkeys(tuple(t for t in m.terms if t[0] in inner) for m in maps)
        if not is_static(extent) or not 0 < extent <= MAX_TABULATED or len(inner) < 2:
            return {}
        self._tabulated_count = count = -(-extent // self.depth) * self.depth
        tables = {
            terms: b.shared(f"{self.memory.name}_offsets{i}", self.values.index_dtype, count)
            for i, terms in enumerate(t for t in found if t)
        }
        with b.loop(b.thread, count, self.threads) as at:
            flat = at.to(self.values.index_dtype)
            opened = self.values.opened(inner, flat.min(extent - 1), 1)
            for terms, table in tables.items():
                table[at] = self._sum(terms, opened)
        b.barrier()
        return tables

    def _sum(self, terms: Terms, opened: dict[Axis, Values]) -> Var:
        total = self.values.number(0)
        for axis, coefficient in terms:
            total = total + opened[axis][0] * self.values.dim(coefficient)
        return total

    # -- copies ----------------------------------------------------------------------------------

    def fill(self, stage: Var, start: Var, *, has_tail: bool = True) -> Callable[[], None]:
        """Begin to fill a stage with the tile whose first inner position is given; what is left to
        do once it may be overwritten. A tail is masked where there may be one."""
        at = stage * self.size
        source = self.operand.source
        if source is None:
            held = [self._computed(i, start, has_tail) for i in range(len(self.units))]
            return lambda: self._stored(at, held)
        if self._is_partial:
            with self.values.b.when(self.values.b.thread < self.count):
                self._copy(source, at, start, has_tail)
        else:
            self._copy(source, at, start, has_tail)
        return lambda: None

    def _copy(self, source: Load, at: Var, start: Var, has_tail: bool) -> None:
        values, operand = self.values, self.operand
        guards: Guards = tuple((g, True) for g in operand.guards)
        for unit, outer in zip(self.units, self.outer_scopes):
            with values.inside(outer), values.inside(self._inner(unit, start, has_tail)):
                (index,) = values.affine(source.at)
                mask = combined(values.masks(guards))
                buffer = values.inputs[source.operand]
                values.b.async_copy(self.memory, at + unit.place, buffer, index, operand.unit, mask)

    def _computed(self, number: int, start: Var, has_tail: bool) -> Values:
        """The unit's values; 0 behind the last inner position, whatever is computed of nothing."""
        values, is_scattered = self.values, self.operand.is_scattered
        values.parts = {}
        values.vector = self.axis[0] if self.axis and not is_scattered else None
        inner = self._inner(self.units[number], start, has_tail)
        with values.inside(self.outer_scopes[number]), values.inside(inner):
            guards: Guards = ((self._bounds, True),) if is_scattered and has_tail else ()
            made = values.value(self.operand.value, guards)
            masks = values.value(self._bounds) if guards else [inner.mask] if inner.mask else []
            lists = [made * self.unit if len(made) == 1 else made, *([masks] if masks else [])]
            kept = [slot[0].where(slot[1], 0.0) if masks else slot[0] for slot in zipped(lists)]
        return [v.to(self.memory.dtype) for v in kept]

    def _stored(self, at: Var, held: list[Values]) -> None:
        b = self.values.b
        mask = b.thread < self.count if self._is_partial else None
        for unit, kept in zip(self.units, held):
            self.memory.store(at + unit.place, kept, mask)

    # -- matrices --------------------------------------------------------------------------------

    def start(self, stage: Var, outer: Var, inner: Var) -> Var:
        """The first matrix of a warp in a stage."""
        is_inner = self.operand.is_along_inner
        return stage * self.size + self.place(*((outer, inner) if is_inner else (inner, outer)))

    def matrix(self, tile: TileType, start: Var, outer: int, inner: int) -> Var:
        """A matrix, so many rows or columns and inner positions behind a warp's first one. The
        number of whole lines is added last: printers make it part of the instruction."""
        b = self.values.b
        is_inner = self.operand.is_along_inner
        line, column = (outer, inner) if is_inner else (inner, outer)
        panel = column // self.panel * self.lines
        at = start + column % self.panel + (panel + line) * self.panel
        is_transposed = is_inner != (tile.role == "a")
        return b.tile_load(tile, self.memory, at, self.panel, is_transposed=is_transposed)
