"""The frame of a factorisation kernel: units, scratch memory, copies in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlx.backends.cpu.library.counters import store_i64
from rlx.backends.cpu.library.linalg.matrix import Matrix
from rlx.backends.cpu.library.linalg.numbers import Number, RealCell
from rlx.backends.cpu.library.strided_copy import (
    at,
    dim_lanes,
    load_integer,
    masked_lane_stride,
    vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Schedule, buffers

ALIGN = 64
FLOPS_PER_FLOP = 4
"""What a flop of a factorisation takes of those of a product: its rows are short."""


@dataclass(frozen=True, slots=True)
class Room:
    """A matrix of scratch memory."""

    rows: DimLike
    columns: DimLike
    parts: int
    """2 for complex numbers."""


Rooms = Mapping[str, Room]


@dataclass(frozen=True, slots=True)
class Unit:
    """One matrix of the stack: its factorisation under construction."""

    given: Step
    w: Writer
    matrices: Mapping[str, Matrix]
    index: tuple[Bound, ...]
    """Its position in the stack of the results."""

    def read(self, operand: int, to: str, *, rank: int = 2, transpose: bool = False) -> str:
        """Copy an operand's matrix, or its vector as one row, to a matrix that may be complex;
        whether a number of it is not finite, as an i1."""
        dtype = self.given.node.inputs[operand].shape.dtype
        view = _View.of(self.w, self.given.operands[operand], self.index, rank, transpose)
        matrix = self.matrices[to]
        check = RealCell(self.w.code, matrix.row(0).zero().real)
        with self.w.code.count(0, matrix.rows, 1) as i:
            row = matrix.row(i)

            def body(j: Bound, mask: Vec | None) -> None:
                value = view.load(operand, i, j, dtype, mask)
                for part in value.parts:
                    check.set(check.get() + part * 0.0)
                row.store(j, value.in_parts(len(row.pointers)), mask)

            vector_loop(self.w, *matrix.whole, body)
        return check.get().is_nan().any()

    def write(
        self, result: int, source: str, *, transpose: bool = False, conjugate: bool = False
    ) -> None:
        """Copy a matrix to a result."""
        matrix = self.matrices[source]

        def value(i: Bound, j: Bound, mask: Vec | None) -> Number:
            made = matrix.row(i).load(j, mask)
            return made.conj() if conjugate else made

        self._put(result, transpose, value)

    def fill(self, result: int, value: float) -> None:
        """One number for all of a result's."""
        zero = self.zero(self.given.node.shapes[result].dtype)
        number = zero.of_real(zero.real.like(value))
        self._put(result, False, lambda i, j, mask: number)

    def fill_all(self, value: float) -> None:
        """One number for all of every result's."""
        for result in range(len(self.given.results)):
            self.fill(result, value)

    def read_index(self, operand: int, i: Bound) -> str:
        """One integer of an operand that is a vector of them."""
        view = _View.of(self.w, self.given.operands[operand], self.index, 1, False)
        return load_integer(self.w, operand, view.place(0, i), DType.I64)

    def write_index(self, result: int, i: Bound, value: Bound) -> None:
        """One integer of a result that is a vector of them."""
        view = self._view(result, transpose=False)
        store_i64(self.w, value, self._buffer(result), view.place(0, i))

    def zero(self, dtype: DType) -> Number:
        value = self.w.code.const(0.0, dtype.real.compute)
        return Number((value,) * (2 if dtype.is_complex else 1))

    def _buffer(self, result: int) -> int:
        return len(self.given.operands) + result

    def _view(self, result: int, transpose: bool) -> _View:
        layout = self.given.results[result]
        return _View.of(self.w, layout, self.index, len(layout.dims) - len(self.index), transpose)

    def _put(
        self, result: int, transpose: bool, value: Callable[[Bound, Bound, Vec | None], Number]
    ) -> None:
        view, dtype = self._view(result, transpose), self.given.node.shapes[result].dtype
        number = self._buffer(result)
        with self.w.code.count(0, view.rows, 1) as i:
            vector_loop(
                self.w, 0, view.columns,
                lambda j, mask: view.store(number, i, j, value(i, j, mask), dtype, mask),
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _View:
    """A matrix, a vector as one row, or a number, in the memory of an operand or result."""

    w: Writer
    base: Bound
    rows: Bound
    columns: Bound
    row_stride: Bound
    column_stride: Bound

    @classmethod
    def of(
        cls, w: Writer, layout: Layout, index: Sequence[Bound], rank: int, transpose: bool
    ) -> _View:
        stack = len(layout.dims) - rank
        outer = Layout(layout.dims[:stack], layout.strides[:stack], layout.offset)
        mine = index[len(index) - stack :] if stack else []
        places = [0 if d == 1 else i for d, i in zip(outer.dims, mine, strict=True)]
        base = w.place(outer, places)
        axes: list[tuple[DimLike, DimLike]] = [(1, 0)] * (2 - rank)
        axes += zip(layout.dims[stack:], layout.strides[stack:])
        (rows, down), (columns, along) = reversed(axes) if transpose else axes
        lanes = masked_lane_stride(w, along)
        return cls(w, base, w.size(rows), w.size(columns), w.size(down), lanes)

    def place(self, i: Bound, j: Bound) -> Bound:
        code = self.w.code
        down, along = code.i64("mul", i, self.row_stride), code.i64("mul", j, self.column_stride)
        return at(self.w, self.base, down, along)

    def load(self, number: int, i: Bound, j: Bound, dtype: DType, mask: Vec | None) -> Number:
        code, parts = self.w.code, 2 if dtype.is_complex else 1
        first = code.i64("mul", self.place(i, j), parts)
        stride = code.i64("mul", self.column_stride, parts)
        each = (self.w.load(number, at(self.w, first, n), dtype.real, stride, mask)
                for n in range(parts))  # fmt: skip
        return Number(tuple(each))

    def store(
        self, number: int, i: Bound, j: Bound, value: Number, dtype: DType, mask: Vec | None
    ) -> None:
        code, parts = self.w.code, 2 if dtype.is_complex else 1
        first = code.i64("mul", self.place(i, j), parts)
        stride = code.i64("mul", self.column_stride, parts)
        for n, part in enumerate(value.parts[:parts]):
            self.w.store(part, number, at(self.w, first, n), dtype.real, stride, mask)


@dataclass(frozen=True, slots=True)
class MatrixKernel:
    """A task whose units are the matrices of a stack."""

    given: Step
    stack: tuple[DimLike, ...]
    rooms: Rooms
    body: Callable[[Unit], None]

    @property
    def dtype(self) -> DType:
        """That of the arithmetic, real."""
        return self.given.node.inputs[0].shape.dtype.real.compute

    def schedule(self, name: str, summary: str) -> Schedule[Task]:
        units = product(self.stack)
        node = self.given.node
        shapes = [i.shape for i in node.inputs]
        flops = node.decl.flops(shapes, node.shapes, node.attrs) * FLOPS_PER_FLOP
        ns = ceiling(self.given.machine.worker_ns(flops, 0))
        task = Task(
            TaskCode(name, self.source), buffers(len(node.inputs), len(self.given.results)), units,
            self.given.machine.units_per_task(units, ns), ceiling(self._place(None)),
            summary=summary,
        )  # fmt: skip
        return Schedule((task,))

    @property
    def _lanes(self) -> int:
        """Lanes that the longest rows fill."""
        return max(dim_lanes(self.given.isa, self.dtype, r.columns) for r in self.rooms.values())

    def _place(self, name: str | None) -> DimLike:
        """The offset of a room in scratch memory; with no name that of their end."""
        total: DimLike = 0
        for key, room in self.rooms.items():
            if key == name:
                return total
            size = room.rows * room.columns * room.parts * self.dtype.itemsize
            total = total + (size + ALIGN - 1) // ALIGN * ALIGN
        return total

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, self._lanes)
        matrices = {n: self._matrix(w, n, r) for n, r in self.rooms.items()}
        stop = w.code.least("%stop", w.size(product(self.stack)))
        with w.code.count("%start", stop, 1, 1) as unit:
            index = tuple(w.split(unit, self.stack))
            self.body(Unit(self.given, w, matrices, index))
        return w.source(name)

    def _matrix(self, w: Writer, name: str, room: Room) -> Matrix:
        place = w.size(self._place(name))
        base = w.code.advanced("%scratch", place, DType.U8)
        plane = w.size(room.rows * room.columns * self.dtype.itemsize)
        imaginary = [w.code.advanced(base, plane, DType.U8)]
        pointers = (base, *(imaginary if room.parts == 2 else ()))
        return Matrix(w, pointers, self.dtype, w.size(room.rows), w.size(room.columns))
