"""How a recurrent layer runs: register tiles over its gates' sums, rows of a unit, scratch memory,
and packed recurrent weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.codegen.math.elementwise import is_native
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.gemm_tiling import parts_of
from rlx.core.dim import DimLike, dim_max, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Affine, Axis, Exprs, Kernel, Load, Store, strided
from rlx.kernel.rewrite import substituted
from rlx.kernel.scan import Direction, Scan, Value

MAX_TILE_ROWS = 6
"""Rows of a register tile at most: more reuse a load of the weights with no more gain."""
MAX_UNIT_TILES = 8
"""Tiles of rows in a unit at most: their state stays in the L1 and L2 caches."""
MIN_UNITS = 16
CACHE_BYTES_PER_NS = 64
"""Recurrent weights are reread at every step, from a cache."""
NS_PER_COLUMN = 2
"""Nanoseconds of a cell at a hidden column, beside its sums."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The sums of some gates over a state vector, and the cell on them, in native ops."""

    first: int
    """The gate of its first sum."""
    sums: Contract
    cell: Kernel
    source: str
    """The value that is contracted."""

    @property
    def count(self) -> int:
        """Of its gates."""
        return int(self.sums.batch[0].extent)

    @property
    def bias(self) -> Load | None:
        """What is added to the sums."""
        return next((n for n in self.sums.epilogue if isinstance(n, Load)), None)

    def bias_of(self, gate: int) -> Affine | None:
        """The bias of one of its gates."""
        at = None if self.bias is None else self.bias.at
        return None if at is None else substituted(at, {self.sums.batch[0]: Affine((), gate)})


def stages_of(form: Scan, one: Direction) -> tuple[Stage, ...]:
    """The contractions of a step, each with the kernel that follows it."""
    found, first = list[Stage](), 0
    for sums, cell in zip(one.steps, one.steps[1:]):
        if isinstance(sums, Contract) and isinstance(cell, Kernel):
            assert isinstance(sums.left, Load)
            source = form.memory.values[sums.left.operand - len(form.operands)].name
            native = decomposed(cell, lambda n: is_native(n.op.name))
            found.append(Stage(first, sums, native, source))
            first += found[-1].count
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RecurrentSchedule:
    """A recurrent layer on an instruction set."""

    form: Scan
    machine: CpuMachine
    stages: tuple[tuple[Stage, ...], ...]
    """Of each direction, or those of all."""

    @classmethod
    def of(cls, form: Scan, machine: CpuMachine) -> RecurrentSchedule:
        ways = {d.steps: d for d in form.directions}.values()
        return cls(form, machine, tuple(stages_of(form, d) for d in ways))

    @property
    def isa(self) -> Isa:
        return self.machine.isa

    @property
    def state(self) -> Value:
        return self.form.carries[0]

    @property
    def batch(self) -> DimLike:
        return self.state.axes[0].extent

    @property
    def hidden(self) -> DimLike:
        return self.state.axes[1].extent

    @property
    def length(self) -> DimLike:
        return self.form.time.extent

    @property
    def directions(self) -> int:
        return len(self.form.directions)

    @property
    def dtype(self) -> DType:
        return self.form.operands[0].dtype

    @property
    def kind(self) -> DType:
        """The dtype of the state."""
        return self.state.dtype

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def gates(self) -> int:
        return sum(s.count for s in self.stages[0])

    @property
    def columns(self) -> DimLike:
        return self.gates * self.hidden

    @property
    def padded(self) -> DimLike:
        """Hidden columns in whole vectors, which is their scratch layout."""
        return parts_of(self.hidden, self.lanes) * self.lanes

    @property
    def projected_bytes(self) -> DimLike:
        """With a vector more: the last one of a row is read whole."""
        count = self.length * self.batch * self.directions * self.columns
        return (count + self.lanes) * self.kind.itemsize

    def leaves(self, name: str) -> list[tuple[int, Affine]]:
        """The operand and the index of each load with a name."""
        return [(x.operand, x.at) for x in self.form.leaves if x.name == name]

    # -- tiles ----------------------------------------------------------------------------------

    def vectors(self, one: Stage) -> int:
        """Vectors of columns of each gate at a time: few gates alone would be bound by the latency
        of their sums."""
        wanted = {4: 1, 3: 2 if self.isa.registers >= 32 else 1, 2: 2, 1: 4}[one.count]
        if not is_static(self.hidden):
            return wanted
        return max(1, min(wanted, int(parts_of(self.hidden, self.lanes))))

    def width(self, one: Stage) -> int:
        return self.vectors(one) * self.lanes

    def rows(self, one: Stage) -> tuple[int, ...]:
        """Rows of register tiles, most first."""
        used = self.vectors(one) * one.count
        most = max(1, min(MAX_TILE_ROWS, (self.isa.registers - 1 - used) // used))
        if is_static(self.batch):
            most = max(1, min(most, int(self.batch)))
        return (most, *(s for s in (4, 2, 1) if s < most))

    @property
    def row_block(self) -> int:
        """Rows of a unit: as even as whole tiles allow."""
        most = min(self.rows(s)[0] for s in self.stages[0])
        if not is_static(self.batch):
            return most
        tiles = -(-int(self.batch) // most)
        each = max(1, min(MAX_UNIT_TILES, tiles * self.directions // MIN_UNITS))
        blocks = max(1, -(-tiles // each))
        return max(1, -(-int(self.batch) // blocks))

    @property
    def blocks(self) -> DimLike:
        return parts_of(self.batch, self.row_block)

    # -- costs and scratch memory ---------------------------------------------------------------

    def step_ns(self, units: DimLike, rows: DimLike) -> DimLike:
        """Nanoseconds of one step of so many rows in so many units on one worker."""
        weights = self.hidden * self.columns
        read = units * weights * self.kind.itemsize // CACHE_BYTES_PER_NS
        worked = rows * weights * 2 // self.machine.worker_flops_per_ns
        cells = rows * self.hidden * NS_PER_COLUMN // self.lanes
        return dim_max(read, worked) + cells

    def scratch(self) -> tuple[dict[str, DimLike], DimLike]:
        """The scratch layout of a unit's states, two of `h`, and of what it reads at every step:
        the offset of each in elements, and their end."""
        rows = self.row_block
        lines = {v.name: rows for v in self.form.carries} | {"h": 2 * rows}
        lines |= {n: rows for n in ("z", "seen") if self.form.value(n) is not None}
        lines |= {"bias": self.gates} if self.stages[0][0].bias is not None else {}
        lines |= {"peep": 3} if self.leaves("peep") else {}
        places: dict[str, DimLike] = {}
        end: DimLike = 0
        for name, count in lines.items():
            places[name] = end
            end = end + count * self.padded
        return places, end


def packed_recurrent_weights(layer: RecurrentSchedule, one: Stage) -> Kernel:
    """The recurrent weights of a stage: [direction, block, step, gate, column of the block]."""
    exprs, width, kind, sums = Exprs(), layer.width(one), layer.kind, one.sums
    d, block = Axis("d", layer.directions), Axis("block", parts_of(layer.hidden, width))
    k, gate, column = Axis("k", layer.hidden), Axis("gate", one.count), Axis("column", width)
    place = Affine.of(block) * width + Affine.of(column)
    moves = {layer.form.direction: Affine.of(d), sums.columns: place,
             sums.batch[0]: Affine.of(gate), sums.inner[0]: Affine.of(k)}  # fmt: skip
    assert isinstance(sums.right, Load)
    load = exprs.load(sums.right.operand, substituted(sums.right.at, moves), sums.right.dtype)
    zero = exprs.const(np.zeros((), kind.numpy), kind)
    axes = (d, block, k, gate, column)
    made = Shape(tuple(a.extent for a in axes), kind)
    inside = exprs.inside(place, 0, layer.hidden)
    to = strided(Layout.contiguous(made.dims), axes)
    store = Store(0, to, exprs.choose(inside, exprs.cast(load, kind), zero))
    return Kernel("panels", axes, (store,), layer.form.operands, (made,))
