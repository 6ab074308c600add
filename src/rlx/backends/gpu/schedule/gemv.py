"""How a product with few rows runs on a GPU: what the threads of a block read of the matrix.

The matrix is read once, so its bytes are the time: every thread has `machine.stream_bytes` of it on
their way before it waits for any. Vectors are along whichever axis of the matrix is contiguous.

    along inner    a column's elements are neighbours: threads share a column, each a part of it
    along columns  neighbouring columns are neighbours: threads share columns, each some inner steps

The parts of a sum are added up in the order of threads, then of warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import is_aligned, traffic_bytes
from rlx.core.dim import DimLike, exact_div, is_static, product, upper_bound
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract, row_scale
from rlx.kernel.expr import Apply, Axis, Expr, Load, postorder
from rlx.kernel.refusal import Refusal

PASS_BYTES = 32 << 10
SHARED_LOADS = 128
"""Of a thread that has a part of a sum, instead of all of it."""
MAX_ROWS = 16
"""Rows whose sums fit in a thread's registers."""
MAX_HALF_ROWS = 4
"""Of half floats, where there are matrix instructions: converting more takes longer than loading
the matrix."""
UNKNOWN_EXTENT = 4096
"""What a choice assumes of an extent that is not bounded."""
MAX_WIDTH = 16
"""Neighbours that a thread decodes at once."""
MIN_CHUNKS, MAX_CHUNKS = 4, 16
"""Vectors that a thread has at once along inner axes, where they are rows apart."""
REGISTERS = 65536
"""Of a processor."""
BOUND_SUMS, BOUND_DECODED_SUMS = 8, 2
"""Sums of a column up to which a thread's registers are bounded, and where a byte is several
weights: on an H200 a thread of 4 rows and q6_k left 1064 bytes in memory."""
MAX_OWN = 8
"""Positions of axes that a thread goes along by itself."""
MAX_NODES = 8192
"""Of the code of a thread's vectors: more takes longer to assemble than it saves."""


@dataclass(frozen=True, slots=True)
class GemvSchedule:
    """A schedule of a product with few rows."""

    rows: int
    """The most there are."""
    inner: tuple[Axis, ...]
    """In the order in which they are gone along, the last the fastest."""
    own: tuple[Axis, ...]
    """Inner axes that the matrix does not vary with, though what is made of it does, such as the
    halves of a byte: every thread goes along them by itself."""
    along: Literal["inner", "columns"]
    width: int
    """Neighbours of a vector."""
    columns: int
    """Vectors beside each other that a thread has, along columns; else columns of a thread."""
    chunks: int
    """Vectors behind each other along the inner axes that a thread has at once."""
    inner_lanes: int
    """Threads of a warp that share columns."""
    inner_warps: int
    """Warps that do."""
    column_warps: int
    """Warps of a block with columns of their own."""
    warp: int
    is_decoded: bool = False
    """Is more done with the matrix than a conversion?"""
    is_dependent: bool = False
    pass_bytes: int = PASS_BYTES
    """Of shared memory for the sums of some rows: more rows are done in several passes."""
    index_bits: int = 64
    """At most, of indices of elements."""
    parts: int = 1
    """Sums of each column."""
    needs_rows: bool = False
    """Are the products of numbers that follow from whole rows, which are reduced before?"""

    @property
    def block(self) -> int:
        return self.inner_warps * self.column_warps * self.warp

    @property
    def inner_threads(self) -> int:
        return self.inner_lanes * self.inner_warps

    @property
    def thread_columns(self) -> int:
        return self.columns * (self.width if self.along == "columns" else 1)

    @property
    def thread_sums(self) -> int:
        """Of each row."""
        return self.thread_columns * self.parts

    @property
    def groups(self) -> int:
        """Of threads that share columns."""
        return self.warp // self.inner_lanes * self.column_warps

    @property
    def block_columns(self) -> int:
        return self.groups * self.thread_columns

    @property
    def step(self) -> int:
        """Elements along the inner axes that the threads of a group have at once."""
        return self.inner_threads * self.chunks * (self.width if self.along == "inner" else 1)

    @property
    def resident(self) -> int:
        """Blocks that a processor is to hold: the loads of many threads hide each other."""
        is_light = self.rows * self.parts <= 2 and self.along == "inner" and not self.is_decoded
        registers = (80 if self.needs_rows else 64) if is_light else 128
        is_bound = self.rows * self.parts <= (BOUND_DECODED_SUMS if self.own else BOUND_SUMS)
        return max(1, REGISTERS // (registers * self.block)) if is_bound else 0

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        return (
            f"gemv of {self.rows} rows: {self.block_columns} columns{self._parts_text} a block of "
            f"{self.block} threads, {self.width} neighbours along {self.along}"
        )

    @property
    def _parts_text(self) -> str:
        return f" of {self.parts} parts" if self.parts > 1 else ""


def choose_gemv(contract: Contract, machine: GpuMachine) -> GemvSchedule | Refusal:
    """The schedule of a contraction whose rows are few."""
    rows = upper_bound(contract.rows.extent)
    if contract.is_plain and not machine.pays_barrier(SHARED_LOADS):
        return Refusal(f"{contract.name}: barriers cost more than threads that share its sums save")
    if rows is None or rows > MAX_ROWS:
        return Refusal(f"{contract.name}: it has more than {MAX_ROWS} rows and columns")
    more = [a.extent for a in contract.batch if a not in contract.right.free]
    if rows * _most(product(more)) > MAX_ROWS:
        return Refusal(f"{contract.name}: batch axes that share its matrix are more rows")
    if rows > MAX_HALF_ROWS and machine.tiles and _are_halves(contract):
        return Refusal(f"{contract.name}: matrix instructions take {rows} rows of half floats")
    if rows == 0:
        return Refusal(f"{contract.name}: it has no rows")
    along, axis, width = _vectors(contract, machine)
    if along == "columns":
        return _along_columns(contract, machine, rows, width)
    return _along_inner(contract, machine, rows, axis, width)


def _needs_rows(contract: Contract) -> bool:
    return contract.has_folds and row_scale(contract) is None


def _is_decoded(contract: Contract) -> bool:
    done = (n for n in postorder([contract.right]) if isinstance(n, Apply))
    return any(n.op.name != "cast" for n in done)


def _are_halves(contract: Contract) -> bool:
    return {contract.left.dtype, contract.right.dtype} <= {DType.F16, DType.BF16}


def matrix_loads(factor: Expr, columns: Axis, inner: tuple[Axis, ...]) -> list[Load]:
    """The loads of a factor that go along columns and inner axes."""
    loads = [n for n in postorder([factor]) if isinstance(n, Load)]
    return [n for n in loads if columns in n.at.axes and n.at.axes & set(inner)] or loads


def _vectors(
    contract: Contract, machine: GpuMachine
) -> tuple[Literal["inner", "columns"], Axis, int]:
    """The axis along which the most of the matrix is contiguous, and the neighbours of a vector."""
    loads = matrix_loads(contract.right, contract.columns, contract.inner)
    axes = (*reversed(contract.inner), contract.columns)
    widths = {a: _width(loads, a, machine) for a in axes}
    bytes_of = {
        a: sum(traffic_bytes(n.free, n.dtype) for n in loads if n.at.coefficient(a) == 1)
        for a in axes
    }
    best = max(axes, key=lambda a: (widths[a] * bytes_of[a], bytes_of[a]))
    return ("columns" if best is contract.columns else "inner"), best, widths[best]


def _width(loads: list[Load], axis: Axis, machine: GpuMachine) -> int:
    """Neighbours whose widest access is one vector of the machine."""
    sizes = [n.dtype.itemsize for n in loads if n.at.coefficient(axis) == 1]
    width = min(MAX_WIDTH, machine.vector_bytes // min(sizes, default=machine.vector_bytes))
    while width > 1 and not (
        exact_div(axis.extent, width) is not None
        and any(is_aligned(n.at, axis, width, n.stride) for n in loads)
    ):
        width //= 2
    return width


def _element_bytes(contract: Contract) -> int:
    """Of what most of the matrix is."""
    loads = matrix_loads(contract.right, contract.columns, contract.inner)
    most = max(loads, key=lambda n: traffic_bytes(n.free, n.dtype), default=None)
    return 1 if most is None else most.dtype.itemsize


def _most(dim: DimLike) -> int:
    found = upper_bound(dim)
    return UNKNOWN_EXTENT if found is None else found


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, count - 1).bit_length()


# -- along inner axes -----------------------------------------------------------------------------


def _along_inner(
    contract: Contract, machine: GpuMachine, rows: int, axis: Axis, width: int
) -> GemvSchedule:
    own = _own_axes(contract, axis)
    inner = (*(a for a in contract.inner if a is not axis and a not in own), axis)
    depth = _most(product(a.extent for a in inner))
    vectors = max(1, _ceil(depth, width))
    loads = _loads(contract, machine, width, own, rows)
    columns = _columns(contract, machine, loads)
    chunks, threads = _share(vectors, max(1, loads // (columns * len(contract.rights))), machine)
    warps = max(1, threads // machine.warp)
    lanes = min(machine.warp, threads)
    beside = max(1, min(4 * machine.warp, machine.max_block) // (warps * machine.warp))
    return GemvSchedule(
        rows, inner, own, "inner", width, columns, chunks, lanes, warps, beside, machine.warp,
        is_decoded=_is_decoded(contract), is_dependent=machine.has_dependent_launch,
        pass_bytes=min(PASS_BYTES, machine.shared_bytes), index_bits=machine.index_bits,
        parts=len(contract.rights), needs_rows=_needs_rows(contract),
    )  # fmt: skip


def _own_axes(contract: Contract, axis: Axis) -> tuple[Axis, ...]:
    """The inner axes that loads along the axis do not vary with, as long as they are short."""
    loads = [n for n in postorder([contract.right]) if isinstance(n, Load)]
    moving = frozenset[Axis]().union(*(n.free for n in loads if axis in n.at.axes))
    found = [a for a in contract.inner if a not in moving and a is not axis]
    count = product(a.extent for a in found)
    return tuple(found) if is_static(count) and count <= MAX_OWN else ()


def _loads(
    contract: Contract, machine: GpuMachine, width: int, own: tuple[Axis, ...], rows: int
) -> int:
    """Vectors that a thread has on their way, fewer where much code is made of each."""
    own_points = product(a.extent for a in own)
    assert is_static(own_points)
    nodes = sum(isinstance(n, Apply) for n in postorder([contract.right])) + rows
    code = max(1, MAX_NODES // max(1, nodes * width * own_points))
    return max(1, min(code, machine.stream_bytes // (width * _element_bytes(contract))))


def _columns(contract: Contract, machine: GpuMachine, loads: int) -> int:
    """Columns of a thread: half of its loads, and few where that leaves processors idle. Where rows
    are reduced, all of its loads: twice the threads share what a block does once."""
    points = _most(product(a.extent for a in contract.batch)) * _most(contract.columns.extent)
    most = min(8, _power(loads)) if contract.has_folds else min(4, _power(loads // 2))
    columns = max(1, most // _power(len(contract.rights)))
    while columns > 1 and _ceil(points, columns) < 2 * machine.processors:
        columns //= 2
    return columns


def _share(vectors: int, chunks: int, machine: GpuMachine) -> tuple[int, int]:
    """Vectors of each thread, and threads, for so many: the fewest turns, then the fewest idle."""
    if vectors <= machine.warp:
        return 1, _power(vectors)
    most = max(1, machine.max_block // machine.warp)
    found: list[tuple[int, int, int, int]] = []
    for held in range(1, chunks + 2):
        warps = min(most, _ceil(vectors, held * machine.warp))
        turn = warps * machine.warp * held
        found.append((_ceil(vectors, turn) * turn, abs(held - chunks), held, warps))
    _, _, held, warps = min(found)
    return held, warps * machine.warp


# -- along columns --------------------------------------------------------------------------------


def _along_columns(contract: Contract, machine: GpuMachine, rows: int, width: int) -> GemvSchedule:
    """A block has as many columns as leave most processors one, a whole transfer at least."""
    depth = max(1, _most(product(a.extent for a in contract.inner)))
    batch = _most(product(a.extent for a in contract.batch))
    vectors = max(1, _ceil(_most(contract.columns.extent), width))
    size = width * _element_bytes(contract)
    least = min(machine.warp, _power(max(1, machine.transfer_bytes // size)))
    lanes = machine.warp
    while lanes > least and 4 * batch * _ceil(vectors, lanes) < 3 * machine.processors:
        lanes //= 2
    lanes = min(lanes, _power(vectors))
    inner_lanes = machine.warp // lanes
    sums = rows * len(contract.rights)
    held = 2 * machine.stream_bytes // (size * sums) if rows else 1
    chunks = max(1, min(MAX_CHUNKS, max(held, MIN_CHUNKS), _ceil(depth, inner_lanes)))
    most = max(1, machine.max_block // machine.warp)
    warps = max(1, min(most, _ceil(depth, inner_lanes * chunks)))
    return GemvSchedule(
        rows, contract.inner, (), "columns", width, 1, chunks, inner_lanes, warps, 1, machine.warp,
        is_decoded=_is_decoded(contract), is_dependent=machine.has_dependent_launch,
        pass_bytes=min(PASS_BYTES, machine.shared_bytes), index_bits=machine.index_bits,
        parts=len(contract.rights), needs_rows=_needs_rows(contract),
    )  # fmt: skip
