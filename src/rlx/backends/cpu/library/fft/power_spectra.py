"""Kernels on short-time spectra: STFT, power spectra, Welch's mean, mel filter banks. A unit is a
frame, or a chunk of a signal's frames."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.library.fft.banded_matmul import ROWS_PER_BLOCK, BandedMatmul
from rlx.backends.cpu.library.fft.complex_io import (
    StridedReals,
    accumulate,
    copy,
    interleave,
    power_spectrum,
    zero,
)
from rlx.backends.cpu.library.fft.framed_fft import Frames, FrameTransform
from rlx.backends.cpu.library.fft.plans import table_task
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import literal
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.ops.signal.fft import num_frames

FRAMES_PER_CHUNK = 32
"""Frames of a signal per partial sum."""


def row_of(w: Writer, layout: Layout, row: Bound, number: int, dtype: DType) -> StridedReals:
    """The row of an array along its last axis."""
    starts = Layout(layout.dims[:-1], layout.strides[:-1], layout.offset)
    place = w.place(starts, w.split(row, starts.dims))
    return StridedReals(w.pointer(number, place, dtype), dtype, w.size(layout.strides[-1]))


class SpectraKernel:
    """A kernel of a step: its frames, buffers and tables."""

    def __init__(self, step: Step, name: str, count: DimLike, window_number: int = 1) -> None:
        self.step, self.name = step, name
        self.frames = Frames.of(step, count, window_number)
        self.buffers = [Buffer("operand", i) for i in range(len(step.operands))]
        self.temps: list[DimLike] = []
        self.packed: list[PackedWeights[Task]] = []
        self.before: list[Task] = []
        self.result = self.add(Buffer("result", 0))
        self.tables = self._tables()
        """The index of the buffer of the FFT plan's tables, if it has any."""

    def add(self, buffer: Buffer) -> int:
        """The index of a buffer of the function."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def temp(self, size: DimLike) -> Buffer:
        self.temps.append(size)
        return Buffer("temp", len(self.temps) - 1)

    def _tables(self) -> int | None:
        """The tables of the FFT plan, filled once."""
        fft_plan = self.frames.fft_plan
        if fft_plan.table_bytes == 0:
            return None
        number = self.add(Buffer("packed", len(self.packed)))
        name = f"{self.name}.tables"
        task = table_task(fft_plan, self.step.isa, name, Buffer("result", 0))
        self.packed.append(PackedWeights(task, fft_plan.table_bytes))
        return number

    def task(
        self,
        write: Callable[[SpectraWriter], None],
        units: DimLike,
        scratch: DimLike = 0,
        flops: DimLike = 0,
    ) -> Task:
        """The task over units whose function `write` emits."""
        frames = self.frames
        traffic = 4 * frames.n * frames.total
        machine = self.step.machine
        grain = machine.units_per_task(units, machine.worker_ns(frames.flops + flops, traffic))

        def source(name: str) -> Source:
            made = SpectraWriter(self)
            write(made)
            return made.w.source(name)

        code, scratch_bytes = TaskCode(self.name, source), frames.scratch + scratch
        return Task(code, tuple(self.buffers), units, grain, scratch_bytes)

    def kernel_sequence(self, *tasks: Task) -> Schedule[Task]:
        return Schedule((*self.before, *tasks), tuple(self.temps), tuple(self.packed))


class SpectraWriter:
    """The function over units of such a kernel, under construction."""

    def __init__(self, kernel: SpectraKernel) -> None:
        self.frames, self.w = kernel.frames, Writer(kernel.step.isa)
        self.code = self.w.code
        tables = "null" if kernel.tables is None else self.w.buffer(kernel.tables)
        self.frame_transform = FrameTransform(self.frames, self.w, tables)

    @contextmanager
    def each(self, units: DimLike) -> Generator[str]:
        """The units of this part that exist."""
        stop = self.code.least("%stop", self.w.size(units))
        with self.code.count("%start", stop, 1) as unit:
            yield unit

    def spectrum(self, row: Bound) -> list[StridedReals]:
        """The bins of a frame of all signals."""
        signal, frame = self.w.split(row, (product(self.frames.signals), self.frames.count))
        return self.frame_transform.spectrum(signal, frame)


# -- per frame ------------------------------------------------------------------------------------


def make_stft(step: Step, name: str) -> Schedule[Task]:
    """Complex spectra, interleaved."""
    kernel = SpectraKernel(step, name, step.results[0].dims[-2])
    dtype, layout, bins = step.node.shape.dtype.real, _doubled(step.results[0]), kernel.frames.bins

    def write(made: SpectraWriter) -> None:
        code = made.code
        with made.each(kernel.frames.total) as row:
            parts = made.spectrum(row)
            to = row_of(made.w, layout, row, kernel.result, dtype)
            if to.stride == 2:
                interleave(code, parts[0], parts[1], to, bins, 1.0)
            else:
                for number, part in enumerate(parts):
                    at = advanced(code, to.pointer, number, dtype)
                    copy(code, part, StridedReals(at, dtype, to.stride), bins)

    return kernel.kernel_sequence(kernel.task(write, kernel.frames.total))


def _doubled(layout: Layout) -> Layout:
    """The layout of the real parts of complex numbers."""
    strides = tuple(2 * s for s in layout.strides)
    return Layout(layout.dims, strides, 2 * layout.offset)


def make_power(step: Step, name: str) -> Schedule[Task]:
    """The power of each frame."""
    kernel = SpectraKernel(step, name, step.results[0].dims[-2])

    def write(made: SpectraWriter) -> None:
        with made.each(kernel.frames.total) as row:
            parts = made.spectrum(row)
            to = row_of(made.w, step.results[0], row, kernel.result, step.node.shape.dtype)
            power_spectrum(made.code, parts, to, kernel.frames.bins, adds=False)

    return kernel.kernel_sequence(kernel.task(write, kernel.frames.total))


# -- Welch's mean over frames ---------------------------------------------------------------------


class WelchMean(SpectraKernel):
    """Frames are summed in chunks of a fixed size, and then chunks, so that the sum does not depend
    on the thread count; one chunk is its own sum."""

    def __init__(self, step: Step, name: str) -> None:
        attrs = step.node.attrs
        count = num_frames(
            step.operands[0].dims[-1], n_fft=attrs["n_fft"], hop=attrs["hop"],
            center=attrs["center"],
        )  # fmt: skip
        super().__init__(step, name, count)
        self.sum_bytes = 64 * (-(-self.frames.bins * self.frames.fft_plan.dtype.itemsize // 64))

    @property
    def signals(self) -> DimLike:
        return product(self.frames.signals)

    def made(self) -> Schedule[Task]:
        count = self.frames.count
        if is_static(count) and count <= 2 * FRAMES_PER_CHUNK:
            return self.kernel_sequence(self.one_chunk(int(count)))
        chunks = (count + FRAMES_PER_CHUNK - 1) // FRAMES_PER_CHUNK
        between = self.temp(self.signals * chunks * self.sum_bytes)
        self.buffers[self.result] = between
        return self.kernel_sequence(self.parts(chunks), self.sum_chunks(chunks, between))

    def one_chunk(self, count: int) -> Task:
        """A unit is a signal."""

        def write(made: SpectraWriter) -> None:
            with made.each(self.signals) as signal:
                self.sum(made, signal, 0, count)
                self.write(made.w, self.result, signal)

        return self.task(write, self.signals, self.sum_bytes)

    def parts(self, chunks: DimLike) -> Task:
        """A unit is a chunk of a signal."""
        units = self.signals * chunks

        def write(made: SpectraWriter) -> None:
            code, w = made.code, made.w
            with made.each(units) as unit:
                signal, chunk = w.split(unit, (self.signals, chunks))
                first = code.i64("mul", chunk, FRAMES_PER_CHUNK)
                end = code.i64("add", first, FRAMES_PER_CHUNK)
                last = code.least(end, w.size(self.frames.count))
                self.sum(made, signal, first, last)
                at = self.partial(w, self.result, unit)
                copy(code, self.total(w), StridedReals(at, self.dtype), self.frames.bins)

        return self.task(write, units, self.sum_bytes)

    def sum_chunks(self, chunks: DimLike, between: Buffer) -> Task:
        """The sum of a signal's chunks."""
        code = TaskCode(
            f"{self.name}.sum_chunks", lambda name: self.sum_chunks_source(chunks, name)
        )
        scratch_bytes = self.frames.scratch + self.sum_bytes
        return Task(code, (between, Buffer("result", 0)), self.signals, scratch=scratch_bytes)

    def sum_chunks_source(self, chunks: DimLike, name: str) -> Source:
        w = Writer(self.step.isa)
        code, many = w.code, w.size(chunks)
        with code.count("%start", code.least("%stop", w.size(self.signals)), 1) as signal:
            zero(code, self.total(w), self.frames.bins)
            first = code.i64("mul", signal, many)
            with code.count(0, many, 1) as chunk:
                at = self.partial(w, 0, code.i64("add", first, chunk))
                accumulate(code, StridedReals(at, self.dtype), self.total(w), self.frames.bins)
            self.write(w, 1, signal)
        return w.source(name)

    @property
    def dtype(self) -> DType:
        return self.frames.fft_plan.dtype

    def total(self, w: Writer) -> StridedReals:
        """The accumulator."""
        at = w.code.advanced("%scratch", self.frames.scratch, DType.U8)
        return StridedReals(at, self.dtype)

    def partial(self, w: Writer, number: int, unit: Bound) -> str:
        start = w.code.i64("mul", unit, self.sum_bytes)
        return w.code.advanced(w.buffer(number), start, DType.U8)

    def sum(self, made: SpectraWriter, signal: Bound, first: Bound, last: Bound) -> None:
        code, total = made.code, self.total(made.w)
        zero(code, total, self.frames.bins)
        with code.count(first, last, 1) as frame:
            parts = made.frame_transform.spectrum(signal, frame)
            power_spectrum(code, parts, total, self.frames.bins, adds=True)

    def write(self, w: Writer, number: int, signal: Bound) -> None:
        """The sum over the number of frames, or twice that for the bins with a negative
        frequency."""
        count = self.frames.count
        if is_static(count):
            scale: str | float = 1.0 / int(count)
        else:
            frames = w.code.let(f"sitofp i64 {w.size(count)} to double")
            scale = w.code.let(f"fdiv double {literal(1.0, DType.F64)}, {frames}")
        to = row_of(w, self.step.results[0], signal, number, self.step.node.shape.dtype)
        if not self.step.node.attrs["one_sided"]:
            copy(w.code, self.total(w), to, self.frames.bins, scale)
            return
        bins, last = self.frames.bins, 1 - self.frames.n % 2
        single = {0, bins - 1} if last else {0}
        inner = max(0, bins - len(single))
        double = _doubled_text(w, scale) if isinstance(scale, str) else 2.0 * scale
        copy(w.code, *self._from_bin(w, to, 1), inner, double)
        for bin_ in sorted(single):
            copy(w.code, *self._from_bin(w, to, bin_), 1, scale)

    def _from_bin(
        self, w: Writer, to: StridedReals, bin_: int
    ) -> tuple[StridedReals, StridedReals]:
        """The sum and the result, from a bin on."""
        code, total = w.code, self.total(w)
        behind = code.i64("mul", to.stride, bin_)
        result = StridedReals(advanced(code, to.pointer, behind, to.dtype), to.dtype, to.stride)
        return StridedReals(advanced(code, total.pointer, bin_, self.dtype), self.dtype), result


def _doubled_text(w: Writer, scale: str) -> str:
    return w.code.let(f"fadd double {scale}, {scale}")


def make_mean(step: Step, name: str) -> Schedule[Task]:
    """The mean power of each signal's frames."""
    return WelchMean(step, name).made()


# -- mel filter banks -----------------------------------------------------------------------------


class MelSpectra(SpectraKernel):
    """A unit is a block of frames: their power, and its product with the filters."""

    def __init__(self, step: Step, name: str) -> None:
        super().__init__(step, name, step.results[0].dims[-2], 2)
        self.filters = BandedMatmul(
            self.frames.bins, step.results[0].dims[-1], self.frames.fft_plan.dtype, step.isa
        )

    def made(self) -> Schedule[Task]:
        flops = 2 * self.frames.total * self.frames.bins * self.filters.count
        filters = self.packed_filters()
        task = self.task(
            lambda made: self.write(made, filters), self.units, self.filters.scratch, flops
        )
        return self.kernel_sequence(task)

    @property
    def units(self) -> DimLike:
        return (self.frames.total + ROWS_PER_BLOCK - 1) // ROWS_PER_BLOCK

    def write(self, made: SpectraWriter, number: int) -> None:
        """The function, with packed filters in the buffer of this number."""
        code, w, filters = made.code, made.w, self.filters
        packed, total = w.buffer(number), w.size(self.frames.total)
        with made.each(self.units) as unit:
            first = code.i64("mul", unit, ROWS_PER_BLOCK)
            count = code.least(code.i64("sub", total, first), ROWS_PER_BLOCK)
            block = code.advanced("%scratch", self.frames.scratch, DType.U8)
            with code.count(0, count, 1) as row:
                parts = made.spectrum(code.i64("add", first, row))
                to = filters.row(code, block, row)
                power_spectrum(code, parts, to, self.frames.bins, adds=False)
            filters.multiply(w, block, packed)
            with code.count(0, count, 1) as row:
                to = self.row(w, code.i64("add", first, row))
                copy(code, filters.made(w, block, row), to, w.size(filters.count))

    def row(self, w: Writer, row: Bound) -> StridedReals:
        layout, dtype = self.step.results[0], self.step.node.shape.dtype
        return row_of(w, layout, row, self.result, dtype)

    def packed_filters(self) -> int:
        """The buffer of the filters packed by band: once if they are weights."""
        size = self.filters.packed_bytes
        if 1 not in self.step.constants or not is_static(size):
            where = self.temp(size)
            self.before.append(self.packing(where))
            return self.add(where)
        self.packed.append(PackedWeights(self.packing(Buffer("result", 0)), size))
        return self.add(Buffer("packed", len(self.packed) - 1))

    def packing(self, to: Buffer) -> Task:
        filters, dtype = self.step.operands[1], self.step.node.inputs[1].shape.dtype

        def source(name: str) -> Source:
            w = Writer(self.step.isa, self.filters.lanes)
            self.filters.pack(w, filters, dtype)
            return w.source(name)

        key = ("banded filters", self.filters, filters, dtype)
        code = TaskCode(f"{self.name}.filters", source, key)
        return Task(code, (Buffer("operand", 1), to), self.filters.blocks)


def make_mel(step: Step, name: str) -> Schedule[Task]:
    """The power of each frame in every band."""
    return MelSpectra(step, name).made()
