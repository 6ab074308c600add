"""The launches of a named algorithm under construction: its values, temporaries and programs.

A launch is a loop kernel, scheduled like any other, or a program that is written with the builder.
Values may be strided; where an algorithm wants them contiguous, a loop kernel copies them first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rlx.backends.gpu.library.writer import View, Writer, index_dtype
from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.extent import ceiling, measured_in
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import Special
from rlx.kernel.program.lower_step import copy_kernel
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.program.builder import Builder
from rlx.program.program import Access, Program

Body = Callable[[Writer], None]


Size = tuple[Sequence[DimLike], int, int]
"""Of a launch: its grid, the threads of a block, and the blocks that a processor is to hold."""


@dataclass(slots=True)
class Launches:
    """What makes the schedule of one `Special`."""

    special: Special
    machine: GpuMachine
    name: str
    constants: frozenset[int] = frozenset()
    """The operands that no kernel of a run writes."""
    tasks: list[GpuTask] = field(default_factory=list[GpuTask])
    temps: list[DimLike] = field(default_factory=list[DimLike])
    packed: list[PackedWeights[GpuTask]] = field(default_factory=list[PackedWeights[GpuTask]])

    @property
    def node(self) -> Node:
        return self.special.node

    # -- values ----------------------------------------------------------------------------------

    def operand(self, number: int) -> View:
        dtype = self.special.operands[number].dtype
        buffer = Buffer("operand", number)
        is_constant = number in self.constants
        return View(buffer, self.special.sources[number], dtype, is_constant)

    def result(self, number: int = 0) -> View:
        dtype = self.special.results[number].dtype
        return View(Buffer("result", number), self.special.targets[number], dtype)

    def measured(self) -> View:
        """Where the size that the node measures is written."""
        names = [s.name for s in measured_in(d for s in self.node.shapes for d in s.dims)]
        where = Buffer("size", names.index(self.node.attrs["extent"]))
        return View(where, Layout((1,), (1,)), DType.I64)

    def temp(self, dims: Sequence[DimLike], dtype: DType) -> View:
        """A contiguous value between launches."""
        self.temps.append(ceiling(product(dims)) * dtype.itemsize)
        return View(Buffer("temp", len(self.temps) - 1), Layout.contiguous(dims), dtype)

    def contiguous(self, view: View) -> View:
        """The view, or a copy of it where it is strided."""
        if view.layout.is_contiguous:
            return view
        made = self.temp(view.layout.dims, view.dtype)
        self.copy(view, made)
        return made

    def copy(self, source: View, target: View) -> None:
        shape = Shape(source.layout.dims, source.dtype)
        self.loop("copy", copy_kernel(shape, source.layout, target.layout), [source], [target])

    # -- launches --------------------------------------------------------------------------------

    def loop(
        self, part: str, kernel: Kernel, operands: Sequence[View], results: Sequence[View]
    ) -> None:
        """A loop kernel on these values; its layouts are in its index maps."""
        first = len(self.temps)

        def move(buffer: Buffer) -> Buffer:
            match buffer.kind:
                case "operand":
                    return operands[buffer.index].buffer
                case "result":
                    return results[buffer.index].buffer
                case _:
                    return replace(buffer, index=first + buffer.index)

        made = loop_schedule(kernel, self.machine, self._named(part)).moved(move)
        self.tasks += made.tasks
        self.temps += made.temps

    def program(
        self,
        part: str,
        body: Body,
        *,
        grid: Sequence[DimLike],
        block: int,
        reads: Sequence[View] = (),
        writes: Sequence[View] = (),
        updates: Sequence[View] = (),
        failures: tuple[str, ...] = (),
        note: str = "",
        shape: object = None,
        is_early: bool = False,
        resident: int = 0,
    ) -> None:
        """A program of the body. What it depends on beside the op, its layouts and the machine is
        its `part` and `shape`. The body of an early one reads constants, then waits (`w.wait`).
        `resident` blocks are to be on a processor at once, where it is not 0."""
        views, size = (reads, writes, updates), (grid, block, resident)
        launch = self._launch(part, body, size, views, shape, is_early=is_early)
        self.tasks.append(replace(launch, failures=failures, note=note))

    def pack(
        self,
        part: str,
        body: Body,
        *,
        grid: Sequence[DimLike],
        block: int,
        made: View,
        reads: Sequence[View] = (),
    ) -> View:
        """A table that follows from the program alone, or from weights: made once. It is written
        as result 0; tables of equal parts and operands are equal."""
        key = ("pack", part, made.layout.dims, made.dtype, tuple(reads))
        launch = self._launch(part, body, (grid, block, 0), (reads, (made,), ()), key)
        size = product(made.layout.dims) * made.dtype.itemsize
        self.packed.append(PackedWeights(replace(launch, key=key), size))
        return View(Buffer("packed", len(self.packed) - 1), made.layout, made.dtype, True)

    def _launch(
        self,
        part: str,
        body: Body,
        size: Size,
        views: tuple[Sequence[View], Sequence[View], Sequence[View]],
        shape: object,
        *,
        is_early: bool = False,
    ) -> Launch:
        (reads, writes, updates), (grid, block, _) = views, size
        every = [(v, "constant" if v.is_constant else "read") for v in reads]
        every += [(v, "write") for v in writes] + [(v, "update") for v in updates]
        index = index_dtype([v for v, _ in every], [*grid, block], self.machine.index_bits)

        def write(name: str) -> Program:
            w = _writer(name, self.machine, size, every, index)
            if not is_early:
                w.wait()
            body(w)
            return w.program()

        given = [v.buffer for v, _ in every]
        key = (*self._key, part, size[1:], tuple(grid), tuple(every), shape)
        return Launch(self._named(part), write, key, tuple(map(str, given)), tuple(given))

    def _named(self, part: str) -> str:
        return f"{self.name}_{part}{len(self.tasks)}"

    @property
    def _key(self) -> tuple[object, ...]:
        special, node = self.special, self.node
        what = (node.op, node.attr_key, special.operands, special.sources, special.targets)
        return *what, self.constants, self.machine

    def schedule(self) -> Schedule[GpuTask]:
        """What was made."""
        return Schedule(tuple(self.tasks), tuple(self.temps), tuple(self.packed))


def _writer(
    name: str,
    machine: GpuMachine,
    size: Size,
    views: Sequence[tuple[View, str]],
    index: DType,
) -> Writer:
    """A program with its buffers. Kernels behind it are released when its blocks end: those of a
    selection that wait beside a transform made the two take 23 µs instead of 19."""
    grid, block, resident = size
    b = Builder(name, block=block, grid=grid, warp=machine.warp, resident=resident)
    refs = {v.buffer: b.buffer(str(v.buffer), v.dtype.real, _access(access)) for v, access in views}
    return Writer(b, refs, index, is_dependent=machine.has_dependent_launch)


def _access(name: str) -> Access:
    return {"read": "read", "constant": "constant", "write": "write"}.get(name, "update")  # pyright: ignore[reportReturnType]
