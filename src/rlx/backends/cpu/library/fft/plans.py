"""FFT plans over scratch memory: mixed-radix Stockham stages, or Bluestein's algorithm.

Stages ping-pong between two buffers of equal size. In each, the imaginary parts start `im_offset`
elements after the real ones (split-complex).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.butterflies import (
    VECTORS_PER_POLL,
    Complex,
    Stage,
    complex_mul,
    overrun_elements,
)
from rlx.backends.cpu.library.fft.twiddles import (
    constant_twiddles,
    emit_table_elements,
    fill_twiddles,
    radices_of,
    root_of_unity,
    table_elements,
)
from rlx.backends.cpu.library.shared_functions import helper, polled_call
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import DimLike, dim_max, is_static
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Buffer
from rlx.program.types import POINTER

F64, I64 = DType.F64, DType.I64
MAX_CONSTANT_TABLE_POINTS = 8192
"""Up to this many points, twiddle tables are constants of the module."""
MAX_BATCHED_POINTS = 32
"""Rows up to this length are transformed as a batch, vectorised over the rows."""
ARGS = "ptr %chirp, ptr %x, ptr %y, i64 %im_offset, i64 %n, i64 %m, ptr %poll"
MAX_RADIX4_STAGES = 32
"""A bound on the radix-4 stages of any length."""


def has_half_length_fft(n: DimLike, isa: Isa) -> bool:
    """Are `n` real numbers transformed by a complex FFT of n/2 points? Its tables must be
    constants; for few points the roundings that untangling adds would show, and what it saves would
    not."""
    if not is_static(n) or n % 2 or not MAX_BATCHED_POINTS < n <= MAX_CONSTANT_TABLE_POINTS:
        return False
    return radices_of(n // 2, isa) is not None


class FftPlan(Protocol):
    """How transforms of one length are computed."""

    @property
    def dtype(self) -> DType:
        """The dtype that butterflies compute in."""
        ...

    @property
    def batch(self) -> int:
        """Transforms computed together, interleaved point by point."""
        ...

    @property
    def part_elements(self) -> DimLike:
        """Elements of the real or of the imaginary part, with what may be touched past the last."""
        ...

    @property
    def table_bytes(self) -> DimLike:
        """Bytes of tables that must be filled before the first transform."""
        ...

    @property
    def fill_scratch_bytes(self) -> DimLike:
        """Bytes of scratch that filling them takes."""
        ...

    def fill(self, w: Writer, tables: str) -> None: ...

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        """Transform the points at x: the buffer with the result, x or y, and the other one."""
        ...


def table_task(fft_plan: FftPlan, isa: Isa, name: str, to: Buffer) -> Task:
    """Fill the tables of a plan."""

    def source(own: str) -> Source:
        w = Writer(isa)
        fft_plan.fill(w, w.buffer(0))
        return w.source(own)

    code = TaskCode(name, source, ("fft tables", fft_plan, isa))
    return Task(code, (to,), scratch=fft_plan.fill_scratch_bytes)


# -- Stockham stages ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StockhamPlan:
    """A static length with small prime factors: one mixed-radix Stockham stage per factor."""

    n: int
    radices: tuple[int, ...]
    dtype: DType
    isa: Isa
    batch: int = 1

    @property
    def part_elements(self) -> int:
        return _round_to_line(self.n * self.batch + overrun_elements(self.isa, self.dtype))

    @property
    def table_bytes(self) -> int:
        if self.n <= MAX_CONSTANT_TABLE_POINTS:
            return 0
        return sum(table_elements(*stage) for stage in self._stages()) * self.dtype.itemsize

    fill_scratch_bytes = 0

    def _stages(self) -> list[tuple[int, int]]:
        """The radices, and how many points are left after each."""
        found: list[tuple[int, int]] = []
        left = self.n
        for radix in self.radices:
            left //= radix
            found.append((radix, left))
        return found

    def fill(self, w: Writer, tables: str) -> None:
        for radix, points in self._stages():
            fill_twiddles(w.code, tables, radix, points, self.dtype)
            tables = self._next(w.code, tables, radix, points)

    def _next(self, code: Code, tables: str, radix: int, points: int) -> str:
        return advanced(code, tables, table_elements(radix, points), self.dtype)

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        code, batch = w.code, self.batch
        for radix, points in self._stages():
            twiddles = self._twiddles(code, tables, radix, points)
            stage = Stage.of(radix, self.dtype, self.isa, batch, points)
            stage.call(code, x, y, self.part_elements, twiddles, points, batch)
            if self.table_bytes:
                tables = self._next(code, tables, radix, points)
            x, y, batch = y, x, batch * radix
        return x, y

    def _twiddles(self, code: Code, tables: str, radix: int, points: int) -> str:
        if points == 1:
            return "null"
        return tables if self.table_bytes else constant_twiddles(code, radix, points, self.dtype)


def _round_to_line(numbers: int) -> int:
    return -(-numbers // 16) * 16


# -- Bluestein's algorithm ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BluesteinPlan:
    """Any length, static or dynamic, by Bluestein's algorithm: jk = (j² + k² - (k-j)²) / 2 makes a
    DFT a convolution with a chirp, exp(πi j²/n), computed by power-of-two FFTs, in f64 throughout.

    Tables: the chirp, the transform of its conjugate, and the twiddles of the stages.
    """

    n: DimLike
    isa: Isa

    dtype = F64
    batch = 1

    @property
    def padded_length(self) -> DimLike:
        """At least the length of the convolution; an upper bound for a dynamic length."""
        if not is_static(self.n):
            return dim_max(16, 4 * self.n)
        return max(16, 1 << (2 * max(1, self.n) - 2).bit_length())

    @property
    def part_elements(self) -> DimLike:
        return (self.padded_length + overrun_elements(self.isa, F64) + 15) // 16 * 16

    @property
    def table_bytes(self) -> DimLike:
        twiddles = 2 * self.padded_length + 6 * 16 * MAX_RADIX4_STAGES
        return 8 * (2 * (self.n + 16) + 2 * self.part_elements + twiddles)

    @property
    def fill_scratch_bytes(self) -> DimLike:
        return 4 * 8 * self.part_elements

    def fill(self, w: Writer, tables: str) -> None:
        code = w.code
        helper(code, "bluestein.fill", ARGS, _fill, code.isa.lanes(F64), result="ptr")
        y = advanced(code, "%scratch", code.i64("mul", w.size(self.part_elements), 2), F64)
        self._call(w, "bluestein.fill", tables, "%scratch", y)

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        helper(w.code, "bluestein.run", ARGS, _run, w.code.isa.lanes(F64), result="ptr")
        self._call(w, "bluestein.run", tables, x, y)
        return x, y

    def _call(self, w: Writer, name: str, tables: str, x: str, y: str) -> None:
        n = w.size(self.n)
        sizes = f"i64 {w.size(self.part_elements)}, i64 {n}, i64 {self._length(w.code, n)}"
        polled_call(w.code, name, f"ptr {tables}, ptr {x}, ptr {y}, {sizes}")

    def _length(self, code: Code, n: Bound) -> Bound:
        """The least power of two from 16 on that is at least 2n - 1."""
        if isinstance(n, int):
            return int(self.padded_length)
        last = code.most(code.i64("sub", code.i64("mul", n, 2), 2), 15)
        zeros = code.intrinsic("ctlz.i64", "i64", f"i64 {last}", "i1 true")
        return code.integer("shl", 1, code.i64("sub", 64, zeros))


@dataclass(frozen=True, slots=True)
class _BluesteinTables:
    """Addresses of Bluestein's tables, inside its functions."""

    code: Code

    @property
    def im_offset(self) -> Bound:
        return self.code.i64("add", "%n", 16)

    @property
    def spectrum(self) -> str:
        return advanced(self.code, "%chirp", self.code.i64("mul", self.im_offset, 2), F64)

    @property
    def twiddles(self) -> str:
        return advanced(self.code, self.spectrum, self.code.i64("mul", "%im_offset", 2), F64)


def _pair(code: Code, base: str, place: Bound, im_offset: Bound) -> Complex:
    re = advanced(code, base, place, F64)
    return load(code, F64, re), load(code, F64, advanced(code, re, im_offset, F64))


def _put(code: Code, value: Sequence[Vec], base: str, place: Bound, im_offset: Bound) -> None:
    re = advanced(code, base, place, F64)
    store(code, value[0], F64, re)
    store(code, value[1], F64, advanced(code, re, im_offset, F64))


def _clear(code: Code, base: str, low: Bound, high: Bound) -> None:
    """Zeros from `low` on, at least up to `high`."""
    zeros = code.const(0.0, F64)
    with code.count(low, high, code.lanes) as i:
        _put(code, (zeros, zeros), base, i, "%im_offset")


def _run(code: Code) -> None:
    """Multiply by the chirp, convolve, multiply by the chirp again. The inverse FFT is the forward
    FFT with real and imaginary parts exchanged, before and after."""
    places = _BluesteinTables(code)
    chirp, spectrum, twiddles = places.im_offset, places.spectrum, places.twiddles
    with code.count(0, "%n", code.lanes, VECTORS_PER_POLL) as i:
        made = complex_mul(_pair(code, "%x", i, "%im_offset"), _pair(code, "%chirp", i, chirp))
        _put(code, made, "%x", i, "%im_offset")
    _clear(code, "%x", "%n", "%m")
    first = _power_of_two_fft(code, "%x", "%y", twiddles)
    with code.count(0, "%m", code.lanes, VECTORS_PER_POLL) as i:
        made = complex_mul(
            _pair(code, first, i, "%im_offset"), _pair(code, spectrum, i, "%im_offset")
        )
        _put(code, made[::-1], first, i, "%im_offset")
    is_x = code.let(f"icmp eq ptr {first}, %x")
    other = code.let(f"select i1 {is_x}, ptr %y, ptr %x")
    last = _power_of_two_fft(code, first, other, twiddles)
    with code.count(0, "%n", code.lanes, VECTORS_PER_POLL) as i:
        im, re = _pair(code, last, i, "%im_offset")
        _put(code, complex_mul((re, im), _pair(code, "%chirp", i, chirp)), "%x", i, "%im_offset")
    code.do("ret ptr %x")


def _fill(code: Code) -> None:
    places = _BluesteinTables(code)
    im_offset, spectrum, twiddles = places.im_offset, places.spectrum, places.twiddles
    twice = code.i64("mul", "%n", 2)
    with code.count(0, "%n", code.lanes, VECTORS_PER_POLL) as i:
        number = code.iota(I64) + code.splat(i, I64)
        parts = root_of_unity((number * number) % code.splat(twice, I64), str(twice))
        _put(code, parts, "%chirp", i, im_offset)
    _fill_twiddles(code, twiddles)
    _clear(code, "%x", 0, "%m")
    _fill_conjugate_chirp(code, im_offset)
    made = _power_of_two_fft(code, "%x", "%y", twiddles)
    with code.count(0, "%m", code.lanes, VECTORS_PER_POLL) as i:
        _put(code, _pair(code, made, i, "%im_offset"), spectrum, i, "%im_offset")
    code.do("ret ptr %x")


def _fill_conjugate_chirp(code: Code, im_offset: Bound) -> None:
    """The conjugate chirp over m, at j and at -j mod m, scalar."""
    length = code.let("sitofp i64 %m to double")
    with code.count(0, "%n", 1, VECTORS_PER_POLL) as j:
        back = code.choose(code.compare("eq", j, 0), 0, code.i64('sub', '%m', j))  # fmt: skip
        for part in (0, 1):
            start = code.i64("mul", im_offset, part)
            at = advanced(code, "%chirp", code.i64("add", start, j), F64)
            value = code.let(f"fdiv double {code.load_scalar(at, DType.F64)}, {length}")
            value = code.let(f"fneg double {value}") if part else value
            for place in (j, back):
                to = code.i64("add", place, code.i64("mul", "%im_offset", part))
                code.store_scalar(advanced(code, "%x", to, F64), value, DType.F64)


# -- powers of two known at run time --------------------------------------------------------------


def _fill_twiddles(code: Code, twiddles: str) -> None:
    at, left = code.slot("ptr"), code.slot("i64")
    code.do(f"store ptr {twiddles}, ptr {at}", f"store i64 %m, ptr {left}")
    with code.count(0, _stages(code, "%m"), 1):
        m = code.integer("shr", code.load_scalar(left, DType.I64), 2, DType.U64)
        to = code.load_uniform(at, POINTER)
        fill_twiddles(code, to, 4, m, F64)
        code.store_scalar(left, m, DType.I64)
        code.store_uniform(at, advanced(code, to, emit_table_elements(code, 4, m), F64), POINTER)


def _stages(code: Code, m: str) -> str:
    """The radix-4 stages of a power of two."""
    twos = code.intrinsic("cttz.i64", "i64", f"i64 {m}", "i1 true")
    return code.integer("shr", twos, 1, DType.U64)


def _power_of_two_fft(code: Code, x: str, y: str, twiddles: str) -> str:
    """The FFT of m points, a power of two from 16 on; the buffer with the result."""
    name, args = "bluestein.fft", "ptr %x, ptr %y, i64 %im_offset, ptr %twiddles, i64 %m, ptr %poll"
    helper(code, name, args, lambda inner: _PowerOfTwoFft(inner).write(), result="ptr")
    return polled_call(code, name, f"ptr {x}, ptr {y}, i64 %im_offset, ptr {twiddles}, i64 %m")


class _PowerOfTwoFft:
    """Stages of radix 4, and one of radix 2 for an odd power."""

    def __init__(self, code: Code) -> None:
        self.code = code
        kinds = {"here": "ptr", "there": "ptr", "twiddles": "ptr", "left": "i64", "batch": "i64"}
        self.kinds, self.slots = kinds, {k: code.slot(v) for k, v in kinds.items()}

    def get(self, name: str) -> str:
        return self.code.let(f"load {self.kinds[name]}, ptr {self.slots[name]}")

    def set(self, name: str, value: Bound) -> None:
        self.code.do(f"store {self.kinds[name]} {value}, ptr {self.slots[name]}")

    def write(self) -> None:
        start = {"here": "%x", "there": "%y", "twiddles": "%twiddles", "left": "%m", "batch": 1}
        for name, value in start.items():
            self.set(name, value)
        few = [s for s in (1, 4) if s < self.code.isa.lanes(F64)]
        for batch in few:
            self.stage(Stage(4, F64, batch, is_long=True))
        with self.code.count(len(few), _stages(self.code, "%m"), 1):
            self.stage(Stage(4, F64, is_long=True))
        with self.code.when(self.code.compare("eq", self.get("left"), 2)):
            self.stage(Stage(2, F64, is_last=True, is_long=True))
        self.code.do(f"ret ptr {self.get('here')}")

    def stage(self, stage: Stage) -> None:
        code, x, y = self.code, self.get("here"), self.get("there")
        twiddles, batch = self.get("twiddles"), self.get("batch")
        m = code.integer("div", self.get("left"), stage.radix, DType.U64)
        stage.call(code, x, y, "%im_offset", twiddles, m, batch)
        after = advanced(code, twiddles, emit_table_elements(code, stage.radix, m), F64)
        for name, value in (("here", y), ("there", x), ("twiddles", after), ("left", m)):
            self.set(name, value)
        self.set("batch", code.i64("mul", batch, stage.radix))
