"""FFT kernels: complex, real-to-complex, complex-to-real. A unit is a row, or a batch of short
rows.

A row is read into scratch memory, transformed there, and written. The inverse FFT is the forward
FFT with real and imaginary parts exchanged, before and after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.library.fft.complex_io import (
    StridedReals,
    copy,
    deinterleave,
    interleave,
    zero,
)
from rlx.backends.cpu.library.fft.plans import (
    MAX_BATCHED_POINTS,
    BluesteinPlan,
    FftPlan,
    StockhamPlan,
    has_half_length_fft,
    table_task,
)
from rlx.backends.cpu.library.fft.real_fft import tangle, untangle
from rlx.backends.cpu.library.fft.twiddles import radices_of
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import literal
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, dim_min, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule


@dataclass(frozen=True, slots=True)
class FftArray:
    """An array whose last axis is transformed, and how its complex numbers are stored."""

    number: int
    layout: Layout
    dtype: DType
    has_blocks: bool = False
    """Split-complex: do all imaginary parts come after all real ones?"""

    def parts(self, w: Writer, start: Bound) -> list[StridedReals]:
        """The real parts of a row, and the imaginary ones if it has them."""
        stride, kind = w.size(self.layout.strides[-1]), self.dtype.real
        if self.dtype.is_complex:
            both = StridedReals(w.pointer(self.number, w.code.i64("mul", start, 2), kind), kind)
            return [
                StridedReals(both.at(w.code, part).pointer, kind, w.code.i64("mul", stride, 2))
                for part in (0, 1)
            ]
        re = StridedReals(w.pointer(self.number, start, kind), kind, stride)
        return [re, re.at(w.code, w.size(self.layout.dims[-1] // 2))] if self.has_blocks else [re]

    @property
    def starts(self) -> Layout:
        return Layout(self.layout.dims[:-1], self.layout.strides[:-1], self.layout.offset)


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """Transforms of `n` points, computed by transforms of `points`."""

    step: Step
    n: DimLike
    points: DimLike
    is_inverse: bool
    norm: str
    given: FftArray
    made: FftArray

    @property
    def count(self) -> DimLike:
        return product(self.given.starts.dims)

    def fft_plan(self) -> FftPlan:
        isa, dtype, n = self.step.isa, self.made.dtype.real.compute, self.points
        radices = radices_of(n, isa) if is_static(n) else None
        if radices is None or not is_static(n):
            return BluesteinPlan(n, isa)
        return StockhamPlan(
            n, radices, dtype, isa, isa.lanes(dtype) if n <= MAX_BATCHED_POINTS else 1
        )

    @property
    def made_points(self) -> DimLike:
        """How many points a row of the result has."""
        last = self.made.layout.dims[-1]
        return last // 2 if self.made.has_blocks else last

    def scale(self, w: Writer) -> str | float:
        """The normalisation factor of the results."""
        if self.norm == ("forward" if self.is_inverse else "backward"):
            return 1.0
        if is_static(self.n):
            n = max(1, self.n)
            return 1 / math.sqrt(n) if self.norm == "ortho" else 1 / n
        n = w.code.let(f"uitofp i64 {w.size(self.n)} to double")
        if self.norm == "ortho":
            n = w.code.intrinsic("sqrt.f64", "double", f"double {n}")
        return w.code.let(f"fdiv double {literal(1.0, DType.F64)}, {n}")

    # -- tasks ----------------------------------------------------------------------------------

    def kernel_sequence(self, rows: type[ComplexFft], name: str) -> Schedule[Task]:
        """The transform of rows that `rows` writes, and what fills the tables of its plan: once,
        where the length is static."""
        fft_plan, isa = self.fft_plan(), self.step.isa
        size, ends = fft_plan.table_bytes, (Buffer("operand", 0), Buffer("result", 0))
        code = TaskCode(name, lambda own: rows(self).source(own))
        if size == 0:
            return Schedule((self.task(fft_plan, code, ends),))
        tables = Buffer("packed" if is_static(self.n) else "temp", 0)
        main = self.task(fft_plan, code, (*ends, tables))
        if tables.kind == "packed":
            first = table_task(fft_plan, isa, f"{name}.tables", Buffer("result", 0))
            return Schedule((main,), (), (PackedWeights(first, size),))
        return Schedule((table_task(fft_plan, isa, f"{name}.tables", tables), main), (size,))

    def task(self, fft_plan: FftPlan, code: TaskCode, buffers: tuple[Buffer, ...]) -> Task:
        units = (self.count + fft_plan.batch - 1) // fft_plan.batch
        scratch = 4 * fft_plan.dtype.itemsize * fft_plan.part_elements
        grain = self.step.machine.units_per_task(units, self.nanoseconds)
        return Task(code, buffers, units, grain, scratch)

    @property
    def nanoseconds(self) -> DimLike:
        n = self.n
        rounds = n.bit_length() if is_static(n) else 64
        return self.step.machine.worker_ns(8 * rounds * n * self.count, 16 * n * self.count)


class ComplexFft:
    """Complex to complex: the function that transforms rows, under construction."""

    def __init__(self, spec: TransformSpec) -> None:
        self.spec = spec
        self.fft_plan = spec.fft_plan()
        self.w = Writer(spec.step.isa)
        self.code = self.w.code

    def source(self, name: str) -> Source:
        has_tables = self.fft_plan.table_bytes != 0
        if self.spec.n != 0:
            self.units(self.w.buffer(2) if has_tables else "null")
        return self.w.source(name)

    # -- rows -----------------------------------------------------------------------------------

    def units(self, tables: str) -> None:
        code, fft_plan = self.code, self.fft_plan
        x = "%scratch"
        y = advanced(
            code, x, code.i64("mul", self.w.size(fft_plan.part_elements), 2), fft_plan.dtype
        )
        scale = self.spec.scale(self.w)
        batch, count = fft_plan.batch, self.w.size(self.spec.count)
        stop = code.least(
            "%stop", code.integer("div", code.i64("add", count, batch - 1), batch, DType.U64)
        )
        with code.count("%start", stop, 1) as unit:
            first = code.i64("mul", unit, batch)
            last = code.least(code.i64("add", first, batch), count)
            with code.count(first, last, 1) as row:
                lane = code.i64("sub", row, first) if batch > 1 else 0
                self.read(self.outer(self.spec.given, row), x, y, lane)
            self.prepare(x, y)
            done = self.finish(*fft_plan.run(self.w, x, y, tables))
            with code.count(first, last, 1) as row:
                lane = code.i64("sub", row, first) if batch > 1 else 0
                self.write(done, lane, self.outer(self.spec.made, row), scale)

    def outer(self, array: FftArray, row: Bound) -> list[StridedReals]:
        """A row in its array."""
        at = self.w.split(row, array.starts.dims)
        return array.parts(self.w, self.w.place(array.starts, at))

    def inner(self, base: str, lane: Bound = 0) -> list[StridedReals]:
        """A row in scratch memory: the parts that are transformed as real and as imaginary."""
        fft_plan, code = self.fft_plan, self.code
        re = StridedReals(
            advanced(code, base, lane, fft_plan.dtype), fft_plan.dtype, fft_plan.batch
        )
        im = advanced(code, re.pointer, self.w.size(fft_plan.part_elements), fft_plan.dtype)
        return [re, StridedReals(im, fft_plan.dtype, fft_plan.batch)]

    def oriented(self, parts: list[StridedReals]) -> list[StridedReals]:
        """Real parts and imaginary ones, exchanged for the inverse."""
        return parts[::-1] if self.spec.is_inverse else parts

    # -- prologue and epilogue of a row ---------------------------------------------------------

    def read(self, given: list[StridedReals], x: str, y: str, lane: Bound) -> None:
        """All points to x; missing imaginary parts are 0."""
        self.read_points(given, self.oriented(self.inner(x, lane)), self.w.size(self.spec.n))

    def prepare(self, x: str, y: str) -> None:
        """Prologue over the whole batch, between reading and transforming."""

    def finish(self, done: str, other: str) -> str:
        """Epilogue over the whole batch; the buffer with its result."""
        return done

    def write(self, done: str, lane: Bound, to: list[StridedReals], scale: str | float) -> None:
        parts = self.oriented(self.inner(done, lane))
        self.write_points(parts, to, self.w.size(self.spec.made_points), scale)

    def read_points(self, given: list[StridedReals], to: list[StridedReals], count: Bound) -> None:
        if len(given) == 2 and _is_interleaving(to, given) and self.spec.given.dtype.is_complex:
            deinterleave(self.code, given[0], to[0], to[1], count)
            return
        for a, b in zip(given, to):
            copy(self.code, a, b, count)
        if len(given) == 1:
            zero(self.code, to[1], count)

    def write_points(
        self, done: list[StridedReals], to: list[StridedReals], count: Bound, scale: str | float
    ) -> None:
        if len(to) == 2 and _is_interleaving(done, to) and self.spec.made.dtype.is_complex:
            interleave(self.code, done[0], done[1], to[0], count, scale)
            return
        for a, b in zip(done, to):
            copy(self.code, a, b, count, scale)

    def clear(self, parts: list[StridedReals], low: DimLike, high: DimLike) -> None:
        """Zeros from `low` up to `high`."""
        if low != high:
            for part in parts:
                zero(self.code, part.at(self.code, self.w.size(low)), self.w.size(high - low))


def _is_interleaving(im_offset: list[StridedReals], pairs: list[StridedReals]) -> bool:
    """Is the one split and contiguous, and the other interleaved?"""
    return im_offset[0].stride == 1 and pairs[0].stride == pairs[1].stride == 2


# -- real transforms ------------------------------------------------------------------------------


class RealToComplex(ComplexFft):
    """Real numbers, cut or zero-padded, to the first n/2 + 1 bins."""

    def read(self, given: list[StridedReals], x: str, y: str, lane: Bound) -> None:
        copied = dim_min(self.spec.given.layout.dims[-1], self.spec.n)
        parts = self.inner(x, lane)
        self.read_points(given, parts, self.w.size(copied))
        self.clear(parts, copied, self.spec.n)


class ComplexToReal(ComplexFft):
    """Bins, cut or zero-padded, to real numbers."""

    def read(self, given: list[StridedReals], x: str, y: str, lane: Bound) -> None:
        """The bins, and their conjugates after them (Hermitian symmetry)."""
        code, n = self.code, self.spec.n
        parts = self.oriented(self.inner(x, lane))
        self.read_bins(given, parts)
        last, count = self.w.size(n - 1), self.w.size((n - 1) // 2)
        for part, sign in zip(parts, (1.0, -1.0)):
            back = StridedReals(part.at(code, last).pointer, part.dtype, -self.fft_plan.batch)
            copy(code, part.at(code, 1), back, count, sign)

    def read_bins(self, given: list[StridedReals], parts: list[StridedReals]) -> None:
        """At most n/2 + 1 of them; DC and Nyquist are real."""
        n = self.spec.n
        copied = dim_min(self.spec.given.layout.dims[-1], n // 2 + 1)
        self.read_points(given, parts, self.w.size(copied))
        self.clear(parts, copied, n // 2 + 1)
        zero(self.code, parts[1], 1)
        if n % 2 == 0:
            zero(self.code, parts[1].at(self.code, self.w.size(n // 2)), 1)


class HalfLengthRealToComplex(RealToComplex):
    """An even number of real numbers, by a complex FFT of half the length and untangling."""

    def read(self, given: list[StridedReals], x: str, y: str, lane: Bound) -> None:
        spec, parts = self.spec, self.inner(x, lane)
        copied = min(int(spec.given.layout.dims[-1]), int(spec.n))
        if copied % 2 == 0 and given[0].stride == parts[0].stride == 1:
            deinterleave(self.code, given[0], parts[0], parts[1], copied // 2)
            self.clear(parts, copied // 2, spec.points)
            return
        for number, part in enumerate(parts):
            have = (copied + 1 - number) // 2
            if have:
                one = given[0].at(self.code, number)
                copy(self.code, one.strided(self.code, 2), part, have)
            self.clear([part], have, spec.points)

    def finish(self, done: str, other: str) -> str:
        untangle(self.code, self.inner(done), self.inner(other), int(self.spec.points))
        return other


class HalfLengthComplexToReal(ComplexToReal):
    """Bins to an even number of real numbers, by a complex FFT of half the length."""

    def read(self, given: list[StridedReals], x: str, y: str, lane: Bound) -> None:
        self.read_bins(given, self.inner(y, lane))

    def prepare(self, x: str, y: str) -> None:
        tangle(self.code, self.inner(y), self.oriented(self.inner(x)), int(self.spec.points))

    def write(self, done: str, lane: Bound, to: list[StridedReals], scale: str | float) -> None:
        parts, count = self.oriented(self.inner(done, lane)), int(self.spec.points)
        dtype = self.spec.made.dtype
        if parts[0].stride == to[0].stride == 1 and dtype.compute is dtype:
            interleave(self.code, parts[0], parts[1], to[0], count, scale)
            return
        for number, part in enumerate(parts):
            one = to[0].at(self.code, number)
            copy(self.code, part, one.strided(self.code, 2), count, scale)


# -- ops ------------------------------------------------------------------------------------------


def _arrays(step: Step) -> tuple[FftArray, FftArray]:
    dtypes = step.node.inputs[0].shape.dtype, step.node.shape.dtype
    return FftArray(0, step.operands[0], dtypes[0]), FftArray(1, step.results[0], dtypes[1])


def make_fft(step: Step, name: str) -> Schedule[Task]:
    given, made = _arrays(step)
    n, attrs = given.layout.dims[-1], step.node.attrs
    if not given.dtype.is_complex:
        n = n // 2
        given, made = (replace(s, has_blocks=True) for s in (given, made))
    spec = TransformSpec(step, n, n, bool(attrs["inverse"]), attrs["norm"], given, made)
    return spec.kernel_sequence(ComplexFft, name)


def make_ifft(step: Step, name: str) -> Schedule[Task]:
    given, made = _arrays(step)
    n = given.layout.dims[-1]
    spec = TransformSpec(step, n, n, True, step.node.attrs["norm"], given, made)
    return spec.kernel_sequence(ComplexFft, name)


def make_rfft(step: Step, name: str) -> Schedule[Task]:
    given, made = _arrays(step)
    wanted, norm = step.node.attrs["n"], step.node.attrs["norm"]
    n = given.layout.dims[-1] if wanted is None else int(wanted)
    if has_half_length_fft(n, step.isa) and is_static(given.layout.dims[-1]):
        half = TransformSpec(step, n, n // 2, False, norm, given, made)
        return half.kernel_sequence(HalfLengthRealToComplex, name)
    whole = TransformSpec(step, n, n, False, norm, given, made)
    return whole.kernel_sequence(RealToComplex, name)


def make_irfft(step: Step, name: str) -> Schedule[Task]:
    given, made = _arrays(step)
    n, norm = made.layout.dims[-1], step.node.attrs["norm"]
    if has_half_length_fft(n, step.isa):
        half = TransformSpec(step, n, n // 2, True, norm, given, made)
        return half.kernel_sequence(HalfLengthComplexToReal, name)
    whole = TransformSpec(step, n, n, True, norm, given, made)
    return whole.kernel_sequence(ComplexToReal, name)
