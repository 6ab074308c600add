"""Ways to transform points that lie in scratch memory: by stages, or by a convolution.

Points are held in two places of equal size that stages go between. In each, imaginary parts lie
`apart` numbers after the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.butterflies import POLLED, Complex, Stage, past_end, times
from rlx.backends.cpu.library.fft.twiddles import constant_table, fill, radices_of, root, table_size
from rlx.backends.cpu.library.shared_functions import helper, polled_call
from rlx.backends.cpu.llvm.builder import Bound, Code, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dim import DimLike, dim_max, is_static
from rlx.core.dtype import DType

F64, I64 = DType.F64, DType.I64
CONSTANT = 8192
"""Up to so many points, tables are constants of the module."""
SHORT = 32
"""Rows up to this length are transformed side by side."""
ARGS = "ptr %chirp, ptr %x, ptr %y, i64 %apart, i64 %n, i64 %m, ptr %poll"
STAGES = 32
"""More stages of radix 4 no length has."""


def has_halves(n: DimLike, isa: Isa) -> bool:
    """Are `n` real numbers transformed as half as many points? Their tables are constants; of few
    points the roundings that it adds would show, and what it saves would not."""
    if not is_static(n) or n % 2 or not SHORT < n <= CONSTANT:
        return False
    return radices_of(n // 2, isa) is not None


class Engine(Protocol):
    """A way to transform."""

    @property
    def dtype(self) -> DType:
        """What is computed in."""
        ...

    @property
    def side(self) -> int:
        """How many transforms are done together, point by point side by side."""
        ...

    @property
    def room(self) -> DimLike:
        """Numbers of one part, real or imaginary, with what may be touched past the last."""
        ...

    @property
    def tables(self) -> DimLike:
        """Bytes of tables that must be filled before."""
        ...

    @property
    def fill_scratch(self) -> DimLike:
        """Bytes that filling them takes."""
        ...

    def fill(self, w: Writer, tables: str) -> None: ...

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        """Transform the points at x: where the result is, x or y, and the other place."""
        ...


# -- by stages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Smooth:
    """A known length of small factors."""

    n: int
    radices: tuple[int, ...]
    dtype: DType
    isa: Isa
    side: int = 1

    @property
    def room(self) -> int:
        return _lines(self.n * self.side + past_end(self.isa, self.dtype))

    @property
    def tables(self) -> int:
        if self.n <= CONSTANT:
            return 0
        sizes = [table_size(r, m, Code(1, self.isa)) for r, m in self._stages()]
        return sum(int(s) for s in sizes) * self.dtype.itemsize

    fill_scratch = 0

    def _stages(self) -> list[tuple[int, int]]:
        """Radices, and how many points are left after each."""
        found: list[tuple[int, int]] = []
        left = self.n
        for radix in self.radices:
            left //= radix
            found.append((radix, left))
        return found

    def fill(self, w: Writer, tables: str) -> None:
        for radix, points in self._stages():
            fill(w.code, tables, radix, points, self.dtype)
            tables = self._next(w.code, tables, radix, points)

    def _next(self, code: Code, tables: str, radix: int, points: int) -> str:
        return advanced(code, tables, table_size(radix, points, code), self.dtype)

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        code, beside = w.code, self.side
        for radix, points in self._stages():
            turns = self._turns(code, tables, radix, points)
            stage = Stage.of(radix, self.dtype, self.isa, beside, points)
            stage.call(code, x, y, self.room, turns, points, beside)
            if self.tables:
                tables = self._next(code, tables, radix, points)
            x, y, beside = y, x, beside * radix
        return x, y

    def _turns(self, code: Code, tables: str, radix: int, points: int) -> str:
        if points == 1:
            return "null"
        return tables if self.tables else constant_table(code, radix, points, self.dtype)


def _lines(numbers: int) -> int:
    return -(-numbers // 16) * 16


# -- by a convolution -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chirp:
    """Any length, known or not: jk = (j² + k² - (k-j)²) / 2 makes a transform a convolution with
    a chirp, exp(πi j²/n), and that is done by transforms of a power of two, in f64 throughout.

    Tables: the chirp, the transform of its conjugate, and the turns of the stages.
    """

    n: DimLike
    isa: Isa

    dtype = F64
    side = 1

    @property
    def power(self) -> DimLike:
        """At least the length of the convolution: of a length not known, a bound."""
        if not is_static(self.n):
            return dim_max(16, 4 * self.n)
        return max(16, 1 << (2 * max(1, self.n) - 2).bit_length())

    @property
    def room(self) -> DimLike:
        return (self.power + past_end(self.isa, F64) + 15) // 16 * 16

    @property
    def tables(self) -> DimLike:
        turns = 2 * self.power + 6 * 16 * STAGES
        return 8 * (2 * (self.n + 16) + 2 * self.room + turns)

    @property
    def fill_scratch(self) -> DimLike:
        return 4 * 8 * self.room

    def fill(self, w: Writer, tables: str) -> None:
        code = w.code
        helper(code, "chirp.fill", ARGS, _fill, code.isa.lanes(F64), result="ptr")
        y = advanced(code, "%scratch", code.i64("mul", w.size(self.room), 2), F64)
        self._call(w, "chirp.fill", tables, "%scratch", y)

    def run(self, w: Writer, x: str, y: str, tables: str) -> tuple[str, str]:
        helper(w.code, "chirp.run", ARGS, _run, w.code.isa.lanes(F64), result="ptr")
        self._call(w, "chirp.run", tables, x, y)
        return x, y

    def _call(self, w: Writer, name: str, tables: str, x: str, y: str) -> None:
        n = w.size(self.n)
        sizes = f"i64 {w.size(self.room)}, i64 {n}, i64 {self._length(w.code, n)}"
        polled_call(w.code, name, f"ptr {tables}, ptr {x}, ptr {y}, {sizes}")

    def _length(self, code: Code, n: Bound) -> Bound:
        """The least power of two from 16 on that is at least 2n - 1."""
        if isinstance(n, int):
            return int(self.power)
        last = code.most(code.i64("sub", code.i64("mul", n, 2), 2), 15)
        zeros = code.intrinsic("ctlz.i64", "i64", f"i64 {last}", "i1 true")
        return code.let(f"shl i64 1, {code.i64('sub', 64, zeros)}")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the tables of a chirp are, inside its functions."""

    code: Code

    @property
    def apart(self) -> Bound:
        return self.code.i64("add", "%n", 16)

    @property
    def spectrum(self) -> str:
        return advanced(self.code, "%chirp", self.code.i64("mul", self.apart, 2), F64)

    @property
    def turns(self) -> str:
        return advanced(self.code, self.spectrum, self.code.i64("mul", "%apart", 2), F64)


def _pair(code: Code, base: str, place: Bound, apart: Bound) -> Complex:
    re = advanced(code, base, place, F64)
    return load(code, F64, re), load(code, F64, advanced(code, re, apart, F64))


def _put(code: Code, value: Sequence[Vec], base: str, place: Bound, apart: Bound) -> None:
    re = advanced(code, base, place, F64)
    store(code, value[0], F64, re)
    store(code, value[1], F64, advanced(code, re, apart, F64))


def _clear(code: Code, base: str, low: Bound, high: Bound) -> None:
    """Zeros from `low` on, at least up to `high`."""
    nothing = code.const(0.0, F64)
    with code.count(low, high, code.lanes) as i:
        _put(code, (nothing, nothing), base, i, "%apart")


def _run(code: Code) -> None:
    """Times the chirp; the convolution; times the chirp again. The inverse transform is a
    transform with real and imaginary parts exchanged, before and after."""
    places = _Places(code)
    chirp, spectrum, turns = places.apart, places.spectrum, places.turns
    with code.count(0, "%n", code.lanes, POLLED) as i:
        made = times(_pair(code, "%x", i, "%apart"), _pair(code, "%chirp", i, chirp))
        _put(code, made, "%x", i, "%apart")
    _clear(code, "%x", "%n", "%m")
    first = _power(code, "%x", "%y", turns)
    with code.count(0, "%m", code.lanes, POLLED) as i:
        made = times(_pair(code, first, i, "%apart"), _pair(code, spectrum, i, "%apart"))
        _put(code, made[::-1], first, i, "%apart")
    is_x = code.let(f"icmp eq ptr {first}, %x")
    other = code.let(f"select i1 {is_x}, ptr %y, ptr %x")
    last = _power(code, first, other, turns)
    with code.count(0, "%n", code.lanes, POLLED) as i:
        im, re = _pair(code, last, i, "%apart")
        _put(code, times((re, im), _pair(code, "%chirp", i, chirp)), "%x", i, "%apart")
    code.do("ret ptr %x")


def _fill(code: Code) -> None:
    places = _Places(code)
    apart, spectrum, turns = places.apart, places.spectrum, places.turns
    twice = code.i64("mul", "%n", 2)
    with code.count(0, "%n", code.lanes, POLLED) as i:
        number = code.iota(I64) + code.splat(i, I64)
        parts = root((number * number) % code.splat(twice, I64), str(twice))
        _put(code, parts, "%chirp", i, apart)
    _fill_turns(code, turns)
    _clear(code, "%x", 0, "%m")
    _mirrored(code, apart)
    made = _power(code, "%x", "%y", turns)
    with code.count(0, "%m", code.lanes, POLLED) as i:
        _put(code, _pair(code, made, i, "%apart"), spectrum, i, "%apart")
    code.do("ret ptr %x")


def _mirrored(code: Code, apart: Bound) -> None:
    """The conjugate chirp over m, at j and at -j, one by one."""
    length = code.let("sitofp i64 %m to double")
    with code.count(0, "%n", 1, POLLED) as j:
        back = code.let(f"select i1 {code.let(f'icmp eq i64 {j}, 0')}, i64 0, "
                        f"i64 {code.i64('sub', '%m', j)}")  # fmt: skip
        for part in (0, 1):
            start = code.i64("mul", apart, part)
            at = advanced(code, "%chirp", code.i64("add", start, j), F64)
            value = code.let(f"fdiv double {code.let(f'load double, ptr {at}')}, {length}")
            value = code.let(f"fneg double {value}") if part else value
            for place in (j, back):
                to = code.i64("add", place, code.i64("mul", "%apart", part))
                code.do(f"store double {value}, ptr {advanced(code, '%x', to, F64)}")


# -- powers of two known in a run -----------------------------------------------------------------


def _fill_turns(code: Code, turns: str) -> None:
    at, left = code.slot("ptr"), code.slot("i64")
    code.do(f"store ptr {turns}, ptr {at}", f"store i64 %m, ptr {left}")
    with code.count(0, _stages(code, "%m"), 1):
        m = code.let(f"lshr i64 {code.let(f'load i64, ptr {left}')}, 2")
        to = code.let(f"load ptr, ptr {at}")
        fill(code, to, 4, m, F64)
        code.do(f"store i64 {m}, ptr {left}")
        code.do(f"store ptr {advanced(code, to, table_size(4, m, code), F64)}, ptr {at}")


def _stages(code: Code, m: str) -> str:
    """How many stages of radix 4 a power of two has."""
    twos = code.intrinsic("cttz.i64", "i64", f"i64 {m}", "i1 true")
    return code.let(f"lshr i64 {twos}, 1")


def _power(code: Code, x: str, y: str, turns: str) -> str:
    """The transform of m points, a power of two from 16 on; where it is."""
    name, args = "chirp.power", "ptr %x, ptr %y, i64 %apart, ptr %turns, i64 %m, ptr %poll"
    helper(code, name, args, lambda inner: _Power(inner).write(), result="ptr")
    return polled_call(code, name, f"ptr {x}, ptr {y}, i64 %apart, ptr {turns}, i64 %m")


class _Power:
    """Stages of radix 4, one of radix 2 where one is left."""

    def __init__(self, code: Code) -> None:
        self.code = code
        kinds = {"here": "ptr", "there": "ptr", "turns": "ptr", "left": "i64", "beside": "i64"}
        self.kinds, self.slots = kinds, {k: code.slot(v) for k, v in kinds.items()}

    def get(self, name: str) -> str:
        return self.code.let(f"load {self.kinds[name]}, ptr {self.slots[name]}")

    def set(self, name: str, value: Bound) -> None:
        self.code.do(f"store {self.kinds[name]} {value}, ptr {self.slots[name]}")

    def write(self) -> None:
        start = {"here": "%x", "there": "%y", "turns": "%turns", "left": "%m", "beside": 1}
        for name, value in start.items():
            self.set(name, value)
        few = [s for s in (1, 4) if s < self.code.isa.lanes(F64)]
        for beside in few:
            self.stage(Stage(4, F64, beside, is_long=True))
        with self.code.count(len(few), _stages(self.code, "%m"), 1):
            self.stage(Stage(4, F64, is_long=True))
        with self.code.when(self.code.let(f"icmp eq i64 {self.get('left')}, 2")):
            self.stage(Stage(2, F64, is_last=True, is_long=True))
        self.code.do(f"ret ptr {self.get('here')}")

    def stage(self, stage: Stage) -> None:
        code, x, y = self.code, self.get("here"), self.get("there")
        turns, beside = self.get("turns"), self.get("beside")
        m = code.let(f"udiv i64 {self.get('left')}, {stage.radix}")
        stage.call(code, x, y, "%apart", turns, m, beside)
        after = advanced(code, turns, table_size(stage.radix, m, code), F64)
        for name, value in (("here", y), ("there", x), ("turns", after), ("left", m)):
            self.set(name, value)
        self.set("beside", code.i64("mul", beside, stage.radix))
