"""Kernels on short-time spectra: STFT, power spectra, Welch's mean, mel filter banks. A unit is a
frame, or a chunk of a signal's frames."""

from __future__ import annotations

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
from rlx.backends.cpu.llvm.builder import Bound, literal
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    PackedWeights,
    Step,
    Task,
    estimated_ns,
    grain_of,
)
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ops.signal.fft import num_frames

FRAMES_PER_CHUNK = 32
"""Frames of a signal per partial sum."""


def row_of(w: Writer, layout: Layout, row: Bound, number: int, dtype: DType) -> StridedReals:
    """The row of an array along its last axis."""
    starts = Layout(layout.dims[:-1], layout.strides[:-1], layout.offset)
    place = w.place(starts, w.split(row, starts.dims))
    return StridedReals(w.pointer(number, place, dtype), dtype, w.size(layout.strides[-1]))


class SpectraKernel:
    """A kernel under construction: its tables, and the function over units."""

    def __init__(self, step: Step, name: str, count: DimLike, window_number: int = 1) -> None:
        self.step, self.name = step, name
        self.frames = Frames.of(step, count, window_number)
        self.w = Writer(step.isa)
        self.code = self.w.code
        self.buffers = [Buffer("operand", i) for i in range(len(step.operands))]
        self.temps: list[DimLike] = []
        self.panels: list[PackedWeights] = []
        self.before: list[Task] = []
        self.result = self.add(Buffer("result", 0))
        self.frame_transform = FrameTransform(self.frames, self.w, self._tables())

    def add(self, buffer: Buffer) -> int:
        """The index of a buffer of the function."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def temp(self, size: DimLike) -> Buffer:
        self.temps.append(size)
        return Buffer("temp", len(self.temps) - 1)

    def _tables(self) -> str:
        """The tables of the FFT plan, filled once."""
        fft_plan = self.frames.fft_plan
        if fft_plan.table_bytes == 0:
            return "null"
        number = self.add(Buffer("packed", len(self.panels)))
        w = Writer(self.step.isa, 1, self.code.shared)
        fft_plan.fill(w, w.buffer(0))
        function = w.function(f"{self.name}.table_bytes")
        task = Task.written(
            function, (Buffer("result", 0),), w.sizes, scratch=fft_plan.fill_scratch_bytes
        )
        self.panels.append(PackedWeights(task, fft_plan.table_bytes))
        return self.w.buffer(number)

    def frame(self, row: Bound) -> tuple[Bound, Bound]:
        """The signal of a frame, and its index there."""
        at = self.w.split(row, (product(self.frames.signals), self.frames.count))
        return at[0], at[1]

    def task(self, units: DimLike, scratch: DimLike = 0, flops: DimLike = 0) -> Task:
        frames = self.frames
        traffic = 4 * frames.n * frames.total
        grain = grain_of(units, estimated_ns(frames.flops + flops, traffic))
        function = self.w.function(self.name)
        scratch_bytes = frames.scratch + scratch
        return Task.written(
            function, tuple(self.buffers), self.w.sizes, units, grain, scratch_bytes
        )

    def recipe(self, *tasks: Task) -> KernelSequence:
        return KernelSequence((*self.before, *tasks), tuple(self.temps), tuple(self.panels))


# -- per frame ------------------------------------------------------------------------------------


def make_stft(step: Step, name: str) -> KernelSequence:
    """Complex spectra, interleaved."""
    made = SpectraKernel(step, name, step.results[0].dims[-2])
    dtype, code = step.node.shape.dtype.real, made.code
    layout = _doubled(step.results[0])
    with code.count("%start", code.least("%stop", made.w.size(made.frames.total)), 1) as row:
        parts = made.frame_transform.spectrum(*made.frame(row))
        to = row_of(made.w, layout, row, made.result, dtype)
        if to.stride == 2:
            interleave(code, parts[0], parts[1], to, made.frames.bins, 1.0)
        else:
            for number, part in enumerate(parts):
                at = advanced(code, to.pointer, number, dtype)
                copy(code, part, StridedReals(at, dtype, to.stride), made.frames.bins)
    return made.recipe(made.task(made.frames.total))


def _doubled(layout: Layout) -> Layout:
    """The layout of the real parts of complex numbers."""
    strides = tuple(2 * s for s in layout.strides)
    return Layout(layout.dims, strides, 2 * layout.offset)


def make_power(step: Step, name: str) -> KernelSequence:
    """The power of each frame."""
    made = SpectraKernel(step, name, step.results[0].dims[-2])
    dtype, code = step.node.shape.dtype, made.code
    with code.count("%start", code.least("%stop", made.w.size(made.frames.total)), 1) as row:
        parts = made.frame_transform.spectrum(*made.frame(row))
        to = row_of(made.w, step.results[0], row, made.result, dtype)
        power_spectrum(code, parts, to, made.frames.bins, adds=False)
    return made.recipe(made.task(made.frames.total))


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

    def made(self) -> KernelSequence:
        count = self.frames.count
        if is_static(count) and count <= 2 * FRAMES_PER_CHUNK:
            return self.recipe(self.one_chunk(int(count)))
        chunks = (count + FRAMES_PER_CHUNK - 1) // FRAMES_PER_CHUNK
        between = self.temp(self.signals * chunks * self.sum_bytes)
        self.buffers[self.result] = between
        return self.recipe(self.parts(chunks), self.sum_chunks(chunks, between))

    def one_chunk(self, count: int) -> Task:
        """A unit is a signal."""
        code = self.code
        with code.count("%start", code.least("%stop", self.w.size(self.signals)), 1) as signal:
            self.sum(signal, 0, count)
            self.write(self.w, self.result, signal)
        return self.task(self.signals, self.sum_bytes)

    def parts(self, chunks: DimLike) -> Task:
        """A unit is a chunk of a signal."""
        code, w = self.code, self.w
        units = self.signals * chunks
        with code.count("%start", code.least("%stop", w.size(units)), 1) as unit:
            signal, chunk = w.split(unit, (self.signals, chunks))
            first = code.i64("mul", chunk, FRAMES_PER_CHUNK)
            last = code.least(code.i64("add", first, FRAMES_PER_CHUNK), w.size(self.frames.count))
            self.sum(signal, first, last)
            at = self.partial(w, self.result, unit)
            copy(code, self.total(w), StridedReals(at, self.dtype), self.frames.bins)
        return self.task(units, self.sum_bytes)

    def sum_chunks(self, chunks: DimLike, between: Buffer) -> Task:
        """The sum of a signal's chunks."""
        w = Writer(self.step.isa, 1, self.code.shared)
        code, many = w.code, w.size(chunks)
        with code.count("%start", code.least("%stop", w.size(self.signals)), 1) as signal:
            zero(code, self.total(w), self.frames.bins)
            first = code.i64("mul", signal, many)
            with code.count(0, many, 1) as chunk:
                at = self.partial(w, 0, code.i64("add", first, chunk))
                accumulate(code, StridedReals(at, self.dtype), self.total(w), self.frames.bins)
            self.write(w, 1, signal)
        function = w.function(f"{self.name}.sum_chunks")
        scratch_bytes = self.frames.scratch + self.sum_bytes
        ends = (between, Buffer("result", 0))
        return Task.written(function, ends, w.sizes, self.signals, scratch=scratch_bytes)

    @property
    def dtype(self) -> DType:
        return self.frames.fft_plan.dtype

    def total(self, w: Writer) -> StridedReals:
        """The accumulator."""
        at = w.code.let(f"getelementptr i8, ptr %scratch, i64 {self.frames.scratch}")
        return StridedReals(at, self.dtype)

    def partial(self, w: Writer, number: int, unit: Bound) -> str:
        start = w.code.i64("mul", unit, self.sum_bytes)
        return w.code.let(f"getelementptr i8, ptr {w.buffer(number)}, i64 {start}")

    def sum(self, signal: Bound, first: Bound, last: Bound) -> None:
        total = self.total(self.w)
        zero(self.code, total, self.frames.bins)
        with self.code.count(first, last, 1) as frame:
            parts = self.frame_transform.spectrum(signal, frame)
            power_spectrum(self.code, parts, total, self.frames.bins, adds=True)

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


def make_mean(step: Step, name: str) -> KernelSequence:
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

    def made(self) -> KernelSequence:
        code, w, filters = self.code, self.w, self.filters
        packed, total = w.buffer(self.packed()), w.size(self.frames.total)
        units = (self.frames.total + ROWS_PER_BLOCK - 1) // ROWS_PER_BLOCK
        with code.count("%start", code.least("%stop", w.size(units)), 1) as unit:
            first = code.i64("mul", unit, ROWS_PER_BLOCK)
            count = code.least(code.i64("sub", total, first), ROWS_PER_BLOCK)
            block = code.let(f"getelementptr i8, ptr %scratch, i64 {self.frames.scratch}")
            with code.count(0, count, 1) as row:
                parts = self.frame_transform.spectrum(*self.frame(code.i64("add", first, row)))
                power_spectrum(
                    code, parts, filters.row(code, block, row), self.frames.bins, adds=False
                )
            filters.multiply(w, block, packed)
            with code.count(0, count, 1) as row:
                to = self.row(code.i64("add", first, row))
                copy(code, filters.made(w, block, row), to, w.size(filters.count))
        flops = 2 * self.frames.total * self.frames.bins * filters.count
        return self.recipe(self.task(units, filters.scratch, flops))

    def row(self, row: Bound) -> StridedReals:
        layout, dtype = self.step.results[0], self.step.node.shape.dtype
        return row_of(self.w, layout, row, self.result, dtype)

    def packed(self) -> int:
        """The filters packed by band: once if they are weights."""
        w = Writer(self.step.isa, self.filters.lanes, self.code.shared)
        self.filters.pack(w, self.step.operands[1], self.step.node.inputs[1].shape.dtype)
        size, function = self.filters.packed_bytes, w.function(f"{self.name}.filters")
        is_weight = 1 in self.step.constants and is_static(size)
        where = Buffer("result", 0) if is_weight else self.temp(size)
        task = Task.written(function, (Buffer("operand", 1), where), w.sizes, self.filters.blocks)
        if not is_weight:
            self.before.append(task)
            return self.add(where)
        self.panels.append(PackedWeights(task, size))
        return self.add(Buffer("packed", len(self.panels) - 1))


def make_mel(step: Step, name: str) -> KernelSequence:
    """The power of each frame in every band."""
    return MelSpectra(step, name).made()
