"""Strided copies and iteration: axes merged, rows split into blocks, blocks into vectors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math.storage_types import UNSIGNED, stored
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer

BLOCK = 1024
"""Elements of a row in one unit."""

# -- layouts --------------------------------------------------------------------------------------


def merged(layouts: Sequence[Layout]) -> list[Layout]:
    """The same iteration space with fewer axes: those contiguous in all layouts are merged. At
    least one axis is left."""
    dims: list[DimLike] = []
    strides: list[list[DimLike]] = []
    for axis, dim in enumerate(layouts[0].dims):
        steps = [layout.strides[axis] for layout in layouts]
        if dim == 1:
            continue
        if dims and all(old == new * dim for old, new in zip(strides[-1], steps)):
            dims[-1], strides[-1] = dims[-1] * dim, steps
        else:
            dims.append(dim)
            strides.append(steps)
    if not dims:
        return [Layout((1,), (1,), layout.offset) for layout in layouts]
    columns = zip(*strides)
    return [Layout(tuple(dims), s, layout.offset) for s, layout in zip(columns, layouts)]


def axis_slice(layout: Layout, low: int, high: int) -> Layout:
    """Some of the axes, from offset 0."""
    return Layout(layout.dims[low:high], layout.strides[low:high])


def as_parts(layout: Layout, parts: int, step: int = 1) -> Layout:
    """Elements of several contiguous parts as elements of their own; with step 0, each element
    repeated per part."""
    if parts == 1:
        return layout
    wide = parts if step else 1
    strides = (*(s * wide for s in layout.strides), step)
    return Layout((*layout.dims, parts), strides, layout.offset * wide)


def copy_dtype(dtype: DType) -> tuple[DType, int]:
    """The unsigned dtype that elements are copied as, and how many of it one takes."""
    parts = 2 if dtype is DType.C128 else 1
    return UNSIGNED[dtype.itemsize // parts], parts


def real_dtype(dtype: DType) -> tuple[DType, int]:
    """The real dtype that elements consist of."""
    return dtype.real, 2 if dtype.is_complex else 1


def row_lanes(isa: Isa, dtype: DType, row: Sequence[Layout]) -> int:
    """Lanes that the last axis fills: one where it is strided."""
    if any(layout.strides[-1] != 1 for layout in row):
        return 1
    return dim_lanes(isa, dtype, row[0].dims[-1])


def dim_lanes(isa: Isa, dtype: DType, dim: DimLike) -> int:
    """Lanes that a dim fills."""
    most = isa.lanes(dtype)
    while is_static(dim) and most > dim > 0:
        most //= 2
    return most


# -- units ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows over the last of `dims`, in blocks: the units of a task."""

    dims: tuple[DimLike, ...]
    block: int = BLOCK

    @property
    def blocks_per_row(self) -> DimLike:
        """Blocks of a row."""
        return (self.dims[-1] + self.block - 1) // self.block

    @property
    def count(self) -> DimLike:
        return product((*self.dims[:-1], self.blocks_per_row))

    @contextmanager
    def each(self, w: Writer) -> Generator[tuple[list[Bound], Bound, Bound]]:
        """For each unit: the position on the outer axes, and the range of its block in the row."""
        with self.unit_range(w) as unit:
            yield self.block_of(w, unit)

    @contextmanager
    def unit_range(self, w: Writer) -> Generator[str]:
        """The units of this task that exist."""
        stop = w.code.least("%stop", w.size(self.count))
        with w.code.count("%start", stop, 1) as unit:
            yield unit

    def block_of(self, w: Writer, unit: Bound) -> tuple[list[Bound], Bound, Bound]:
        *outer, number = w.split(unit, (*self.dims[:-1], self.blocks_per_row))
        low = w.code.i64("mul", number, self.block)
        end = w.code.i64("add", low, self.block)
        return outer, low, w.code.least(end, w.size(self.dims[-1]))


@contextmanager
def loop_nest(w: Writer, dims: Sequence[DimLike], polled: int = 0) -> Generator[list[Bound]]:
    """A loop nest over `dims`, the last innermost; each loop polls after so many iterations."""
    with ExitStack() as stack:
        yield [stack.enter_context(w.code.count(0, w.size(d), 1, polled)) for d in dims]


def vector_loop(
    w: Writer, low: Bound, high: Bound, body: Callable[[Bound, Vec | None], None]
) -> None:
    """The body on whole vectors, and masked on the remainder."""
    code = w.code
    if code.lanes == 1:
        with code.count(low, high, 1) as i:
            body(i, None)
        return
    left = code.integer("sub", high, low)
    rest = code.integer("and", left, code.lanes - 1)
    end = code.integer("sub", high, rest)
    with code.count(low, end, code.lanes) as i:
        body(i, None)
    with code.when(code.compare("gt", rest, 0)):
        body(end, code.iota(DType.I64) < code.splat(rest, DType.I64))


def unrolled_vector_loop(
    w: Writer, low: Bound, high: Bound, together: int,
    body: Callable[[Bound, int, Vec | None], None],
) -> None:  # fmt: skip
    """The body on several vectors at a time, then on one, then masked on the remainder."""
    code, whole = w.code, together * w.code.lanes
    left = code.i64("sub", high, low)
    if left == whole:
        body(low, together, None)
        return
    rest = code.integer("rem", left, whole)
    end = code.i64("sub", high, rest)
    with code.count(low, end, whole) as i:
        body(i, together, None)
    vector_loop(w, end, high, lambda i, mask: body(i, 1, mask))


# -- elements -------------------------------------------------------------------------------------


def at(w: Writer, *parts: Bound) -> Bound:
    """The sum of offsets."""
    total: Bound = 0
    for p in parts:
        total = w.code.i64("add", total, p)
    return total


def step(w: Writer, position: Bound, stride: DimLike) -> Bound:
    return w.code.i64("mul", position, w.size(stride))


def masked_lane_stride(w: Writer, stride: DimLike) -> Bound:
    """A lane stride that may be masked; one of 0 has no masked form."""
    return w.argument(stride) if stride == 0 else w.size(stride)


Value = tuple[Vec, ...]
"""A real number; two of them are complex."""


def load_value(
    w: Writer,
    number: int,
    place: Bound,
    dtype: DType,
    parts: int,
    mask: Vec | None = None,
    stride: Bound = 1,
) -> Value:
    """An element of `parts` contiguous real numbers."""
    first = w.code.i64("mul", place, parts)
    return tuple(w.load(number, at(w, first, n), dtype, stride, mask) for n in range(parts))


def store_value(
    w: Writer,
    value: Value,
    number: int,
    place: Bound,
    dtype: DType,
    mask: Vec | None = None,
    stride: Bound = 1,
) -> None:
    first = w.code.i64("mul", place, len(value))
    for n, v in enumerate(value):
        w.store(v, number, at(w, first, n), dtype, stride, mask)


def multiply(x: Value, y: Value) -> Value:
    """The product of numbers, real or complex."""
    if len(x) == 1:
        return (x[0] * y[0],)
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def per_part(op: Callable[[Vec, Vec], Vec]) -> Callable[[Value, Value], Value]:
    """Apply to the real and to the imaginary part."""
    return lambda x, y: tuple(op(a, b) for a, b in zip(x, y))


def load_integer(w: Writer, number: int, place: Bound, dtype: DType) -> str:
    """One integer, as i64; a u64 past its range is negative."""
    pointer = w.pointer(number, place, dtype)
    element = ELEMENT[stored(dtype)]
    value = w.code.let(f"load {element}, ptr {pointer}, align {dtype.itemsize}")
    if dtype.itemsize == 8:
        return value
    word = "sext" if dtype.is_signed else "zext"
    return w.code.let(f"{word} {element} {value} to i64")


def load_index(w: Writer, number: int, place: Bound, dtype: DType, size: Bound) -> str:
    """An index that is in range; one that is not is failure 1."""
    value = load_integer(w, number, place, dtype)
    w.fail(w.code.compare("ge", value, size, DType.U64), 1)
    return value


# -- copies ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BufferView:
    """A buffer with a layout."""

    buffer: Buffer
    layout: Layout
    dtype: DType


def copy_task(given: BufferView, to: BufferView, machine: CpuMachine, name: str) -> Task:
    """Copy a layout to another; between half precision and f32 as numbers, else bitwise."""
    is_moved = given.dtype is to.dtype
    parts = copy_dtype(given.dtype)[1]
    places = [
        BufferView(
            p.buffer, as_parts(p.layout, parts), copy_dtype(p.dtype)[0] if is_moved else p.dtype
        )
        for p in (given, to)
    ]
    return map_task(places[0], places[1], lambda x: x, machine, name)


def map_task(
    given: BufferView, to: BufferView, change: Callable[[Vec], Vec], machine: CpuMachine, name: str
) -> Task:
    """Map each number, from one layout to another."""
    x, y = merged([given.layout, to.layout])
    made = _Map(x, y, (given.dtype, to.dtype), change, machine.isa)
    traffic = product(x.dims) * (given.dtype.itemsize + to.dtype.itemsize)
    units = made.units.count
    grain = machine.units_per_task(units, machine.worker_ns(0, traffic))
    return Task(TaskCode(name, made.source), (given.buffer, to.buffer), units, grain)


@dataclass(frozen=True, slots=True)
class _Map:
    """Rows of merged layouts. Buffers: the operand 0, the result 1."""

    x: Layout
    y: Layout
    dtypes: tuple[DType, DType]
    change: Callable[[Vec], Vec]
    isa: Isa

    @property
    def units(self) -> Blocks:
        return Blocks(self.x.dims)

    def source(self, name: str) -> Source:
        rows = self.x, self.y
        w = Writer(self.isa, row_lanes(self.isa, self.dtypes[0], rows))
        with self.units.each(w) as (outer, low, high):
            bases = [w.place(outer_axes(v), outer) for v in rows]

            def body(i: Bound, mask: Vec | None) -> None:
                source, target = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, rows))
                value = self.change(w.load(0, source, self.dtypes[0], mask=mask))
                w.store(value, 1, target, self.dtypes[1], mask=mask)

            vector_loop(w, low, high, body)
        return w.source(name)


def outer_axes(layout: Layout) -> Layout:
    """The outer axes, with the offset."""
    return Layout(layout.dims[:-1], layout.strides[:-1], layout.offset)
