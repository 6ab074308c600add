"""Fourier transforms. A unit is a row, or as many short rows as there are lanes.

A row is read into scratch memory, transformed there, and written. The inverse transform is the
transform with real and imaginary parts exchanged, before and after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.library.fft.complex_io import Numbers, copy, from_pairs, to_pairs, zero
from rlx.backends.cpu.library.fft.plans import SHORT, Chirp, Engine, Smooth, has_halves
from rlx.backends.cpu.library.fft.real_fft import join, split
from rlx.backends.cpu.library.fft.twiddles import radices_of
from rlx.backends.cpu.llvm.builder import Bound, literal
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Buffer, Panels, Recipe, Step, Task, grain_of, nanoseconds
from rlx.core.dim import DimLike, dim_min, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout


@dataclass(frozen=True, slots=True)
class Side:
    """An array whose last axis is transformed, and how its points are held."""

    number: int
    layout: Layout
    dtype: DType
    has_blocks: bool = False
    """Do all imaginary parts come after all real ones?"""

    def parts(self, w: Writer, start: Bound) -> list[Numbers]:
        """The real parts of a row, and the imaginary ones if it has them."""
        stride, kind = w.size(self.layout.strides[-1]), self.dtype.real
        if self.dtype.is_complex:
            both = Numbers(w.pointer(self.number, w.code.i64("mul", start, 2), kind), kind)
            return [
                Numbers(both.at(w.code, part).pointer, kind, w.code.i64("mul", stride, 2))
                for part in (0, 1)
            ]
        re = Numbers(w.pointer(self.number, start, kind), kind, stride)
        return [re, re.at(w.code, w.size(self.layout.dims[-1] // 2))] if self.has_blocks else [re]

    @property
    def starts(self) -> Layout:
        return Layout(self.layout.dims[:-1], self.layout.strides[:-1], self.layout.offset)


@dataclass(frozen=True, slots=True)
class Job:
    """Transforms of `n` points, made of transforms of `points`."""

    step: Step
    n: DimLike
    points: DimLike
    is_inverse: bool
    norm: str
    given: Side
    made: Side

    @property
    def count(self) -> DimLike:
        return product(self.given.starts.dims)

    def engine(self) -> Engine:
        isa, dtype, n = self.step.isa, self.made.dtype.real.compute, self.points
        radices = radices_of(n, isa) if is_static(n) else None
        if radices is None or not is_static(n):
            return Chirp(n, isa)
        return Smooth(n, radices, dtype, isa, isa.lanes(dtype) if n <= SHORT else 1)

    @property
    def made_points(self) -> DimLike:
        """How many points a row of the result has."""
        last = self.made.layout.dims[-1]
        return last // 2 if self.made.has_blocks else last

    def scale(self, w: Writer) -> str | float:
        """What the results are multiplied by."""
        if self.norm == ("forward" if self.is_inverse else "backward"):
            return 1.0
        if is_static(self.n):
            n = max(1, self.n)
            return 1 / math.sqrt(n) if self.norm == "ortho" else 1 / n
        n = w.code.let(f"uitofp i64 {w.size(self.n)} to double")
        if self.norm == "ortho":
            n = w.code.intrinsic("sqrt.f64", "double", f"double {n}")
        return w.code.let(f"fdiv double {literal(1.0, DType.F64)}, {n}")


class Rows:
    """The function that transforms rows: of points, real ones among them, to points."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.engine = job.engine()
        self.w = Writer(job.step.isa)
        self.code = self.w.code

    def recipe(self, name: str) -> Recipe:
        job, side, engine = self.job, self.engine.side, self.engine
        has_tables = engine.tables != 0
        if job.n != 0:
            self.units("null" if not has_tables else self.w.buffer(2))
        units = (job.count + side - 1) // side
        ends = (Buffer("operand", 0), Buffer("result", 0))
        kind = "panels" if is_static(job.n) else "temp"
        main = Task(
            self.w.function(name),
            (*ends, Buffer(kind, 0)) if has_tables else ends,
            self.w.sizes,
            units,
            grain_of(units, self.nanoseconds()),
            4 * engine.dtype.itemsize * engine.room,
        )
        if not has_tables:
            return Recipe((main,))
        first = self.fill(f"{name}.tables", Buffer("result" if kind == "panels" else "temp", 0))
        if kind == "panels":
            return Recipe((main,), (), (Panels(first, engine.tables),))
        return Recipe((first, main), (engine.tables,))

    def nanoseconds(self) -> DimLike:
        n = self.job.n
        rounds = n.bit_length() if is_static(n) else 64
        return nanoseconds(8 * rounds * n * self.job.count, 16 * n * self.job.count)

    def fill(self, name: str, tables: Buffer) -> Task:
        w = Writer(self.job.step.isa, 1, self.code.shared)
        self.engine.fill(w, w.buffer(0))
        return Task(w.function(name), (tables,), w.sizes, scratch=self.engine.fill_scratch)

    # -- rows -----------------------------------------------------------------------------------

    def units(self, tables: str) -> None:
        code, engine = self.code, self.engine
        x = "%scratch"
        y = advanced(code, x, code.i64("mul", self.w.size(engine.room), 2), engine.dtype)
        scale = self.job.scale(self.w)
        side, count = engine.side, self.w.size(self.job.count)
        stop = code.least("%stop", code.let(f"udiv i64 {code.i64('add', count, side - 1)}, {side}"))
        with code.count("%start", stop, 1) as unit:
            first = code.i64("mul", unit, side)
            last = code.least(code.i64("add", first, side), count)
            with code.count(first, last, 1) as row:
                lane = code.i64("sub", row, first) if side > 1 else 0
                self.read(self.outer(self.job.given, row), x, y, lane)
            self.prepare(x, y)
            done = self.finish(*engine.run(self.w, x, y, tables))
            with code.count(first, last, 1) as row:
                lane = code.i64("sub", row, first) if side > 1 else 0
                self.write(done, lane, self.outer(self.job.made, row), scale)

    def outer(self, side: Side, row: Bound) -> list[Numbers]:
        """A row in its array."""
        at = self.w.split(row, side.starts.dims)
        return side.parts(self.w, self.w.place(side.starts, at))

    def inner(self, base: str, lane: Bound = 0) -> list[Numbers]:
        """A row in scratch memory: the parts that are transformed as real and as imaginary."""
        engine, code = self.engine, self.code
        re = Numbers(advanced(code, base, lane, engine.dtype), engine.dtype, engine.side)
        im = advanced(code, re.pointer, self.w.size(engine.room), engine.dtype)
        return [re, Numbers(im, engine.dtype, engine.side)]

    def oriented(self, parts: list[Numbers]) -> list[Numbers]:
        """Real parts and imaginary ones, exchanged for the inverse."""
        return parts[::-1] if self.job.is_inverse else parts

    # -- what rows hold -------------------------------------------------------------------------

    def read(self, given: list[Numbers], x: str, y: str, lane: Bound) -> None:
        """All points to x; where there are no imaginary parts they are 0."""
        self.read_points(given, self.oriented(self.inner(x, lane)), self.w.size(self.job.n))

    def prepare(self, x: str, y: str) -> None:
        """What is done to points that were read, all rows at once."""

    def finish(self, done: str, other: str) -> str:
        """What is done to transforms, all rows at once; where they are then."""
        return done

    def write(self, done: str, lane: Bound, to: list[Numbers], scale: str | float) -> None:
        parts = self.oriented(self.inner(done, lane))
        self.write_points(parts, to, self.w.size(self.job.made_points), scale)

    def read_points(self, given: list[Numbers], to: list[Numbers], count: Bound) -> None:
        if len(given) == 2 and _are_pairs(to, given) and self.job.given.dtype.is_complex:
            from_pairs(self.code, given[0], to[0], to[1], count)
            return
        for a, b in zip(given, to):
            copy(self.code, a, b, count)
        if len(given) == 1:
            zero(self.code, to[1], count)

    def write_points(
        self, done: list[Numbers], to: list[Numbers], count: Bound, scale: str | float
    ) -> None:
        if len(to) == 2 and _are_pairs(done, to) and self.job.made.dtype.is_complex:
            to_pairs(self.code, done[0], done[1], to[0], count, scale)
            return
        for a, b in zip(done, to):
            copy(self.code, a, b, count, scale)

    def clear(self, parts: list[Numbers], low: DimLike, high: DimLike) -> None:
        """Zeros from `low` up to `high`."""
        if low != high:
            for part in parts:
                zero(self.code, part.at(self.code, self.w.size(low)), self.w.size(high - low))


def _are_pairs(apart: list[Numbers], pairs: list[Numbers]) -> bool:
    """Are the one parts side by side, and the others pairs that are?"""
    return apart[0].stride == 1 and pairs[0].stride == pairs[1].stride == 2


# -- rows of real numbers -------------------------------------------------------------------------


class FromReal(Rows):
    """Real numbers, cut or zero-padded, to the first bins."""

    def read(self, given: list[Numbers], x: str, y: str, lane: Bound) -> None:
        kept = dim_min(self.job.given.layout.dims[-1], self.job.n)
        parts = self.inner(x, lane)
        self.read_points(given, parts, self.w.size(kept))
        self.clear(parts, kept, self.job.n)


class ToReal(Rows):
    """Bins, cut or zero-padded, to real numbers."""

    def read(self, given: list[Numbers], x: str, y: str, lane: Bound) -> None:
        """The bins, and their mirror images after them."""
        code, n = self.code, self.job.n
        parts = self.oriented(self.inner(x, lane))
        self.read_bins(given, parts)
        last, count = self.w.size(n - 1), self.w.size((n - 1) // 2)
        for part, sign in zip(parts, (1.0, -1.0)):
            back = Numbers(part.at(code, last).pointer, part.dtype, -self.engine.side)
            copy(code, part.at(code, 1), back, count, sign)

    def read_bins(self, given: list[Numbers], parts: list[Numbers]) -> None:
        """As many as count; the first and the middle one are real."""
        n = self.job.n
        kept = dim_min(self.job.given.layout.dims[-1], n // 2 + 1)
        self.read_points(given, parts, self.w.size(kept))
        self.clear(parts, kept, n // 2 + 1)
        zero(self.code, parts[1], 1)
        if n % 2 == 0:
            zero(self.code, parts[1].at(self.code, self.w.size(n // 2)), 1)


class FromPairs(FromReal):
    """An even number of real numbers, as half as many points."""

    def read(self, given: list[Numbers], x: str, y: str, lane: Bound) -> None:
        job, parts = self.job, self.inner(x, lane)
        kept = min(int(job.given.layout.dims[-1]), int(job.n))
        if kept % 2 == 0 and given[0].stride == parts[0].stride == 1:
            from_pairs(self.code, given[0], parts[0], parts[1], kept // 2)
            self.clear(parts, kept // 2, job.points)
            return
        for number, part in enumerate(parts):
            have = (kept + 1 - number) // 2
            if have:
                one = given[0].at(self.code, number)
                copy(self.code, one.every(self.code, 2), part, have)
            self.clear([part], have, job.points)

    def finish(self, done: str, other: str) -> str:
        split(self.code, self.inner(done), self.inner(other), int(self.job.points))
        return other


class ToPairs(ToReal):
    """Bins to an even number of real numbers, by half as many points."""

    def read(self, given: list[Numbers], x: str, y: str, lane: Bound) -> None:
        self.read_bins(given, self.inner(y, lane))

    def prepare(self, x: str, y: str) -> None:
        join(self.code, self.inner(y), self.oriented(self.inner(x)), int(self.job.points))

    def write(self, done: str, lane: Bound, to: list[Numbers], scale: str | float) -> None:
        parts, count = self.oriented(self.inner(done, lane)), int(self.job.points)
        dtype = self.job.made.dtype
        if parts[0].stride == to[0].stride == 1 and dtype.compute is dtype:
            to_pairs(self.code, parts[0], parts[1], to[0], count, scale)
            return
        for number, part in enumerate(parts):
            one = to[0].at(self.code, number)
            copy(self.code, part, one.every(self.code, 2), count, scale)


# -- ops ------------------------------------------------------------------------------------------


def _sides(step: Step) -> tuple[Side, Side]:
    dtypes = step.node.inputs[0].shape.dtype, step.node.shape.dtype
    return Side(0, step.operands[0], dtypes[0]), Side(1, step.results[0], dtypes[1])


def make_fft(step: Step, name: str) -> Recipe:
    given, made = _sides(step)
    n, attrs = given.layout.dims[-1], step.node.attrs
    if not given.dtype.is_complex:
        n = n // 2
        given, made = (replace(s, has_blocks=True) for s in (given, made))
    job = Job(step, n, n, bool(attrs["inverse"]), attrs["norm"], given, made)
    return Rows(job).recipe(name)


def make_ifft(step: Step, name: str) -> Recipe:
    given, made = _sides(step)
    n = given.layout.dims[-1]
    return Rows(Job(step, n, n, True, step.node.attrs["norm"], given, made)).recipe(name)


def make_rfft(step: Step, name: str) -> Recipe:
    given, made = _sides(step)
    wanted, norm = step.node.attrs["n"], step.node.attrs["norm"]
    n = given.layout.dims[-1] if wanted is None else int(wanted)
    if has_halves(n, step.isa) and is_static(given.layout.dims[-1]):
        return FromPairs(Job(step, n, n // 2, False, norm, given, made)).recipe(name)
    return FromReal(Job(step, n, n, False, norm, given, made)).recipe(name)


def make_irfft(step: Step, name: str) -> Recipe:
    given, made = _sides(step)
    n, norm = made.layout.dims[-1], step.node.attrs["norm"]
    if has_halves(n, step.isa):
        return ToPairs(Job(step, n, n // 2, True, norm, given, made)).recipe(name)
    return ToReal(Job(step, n, n, True, norm, given, made)).recipe(name)
