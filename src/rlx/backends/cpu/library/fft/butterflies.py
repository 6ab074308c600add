"""One stage of a Fourier transform, over many points at once.

Stockham's way: a transform of n = r·m points, s of them side by side, is r-point transforms of
points m apart, turned, and then transforms of m points, r·s of them side by side. What comes out
is in order, without a pass to reorder it.

    y[q + s(j + rp)] = w(rm)^(pj) · Σₖ w(r)^(jk) · x[q + s(p + mk)]     w(n) = exp(-2πi/n)

Real and imaginary parts lie apart. Lanes run along q and then p, which lie side by side in x. With
fewer than all lanes in q, a vector holds several p, and its results are put in order by shuffles;
lanes that are left over write what the next vector writes again, and the last ones past the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.shared_functions import subprogram
from rlx.backends.cpu.llvm.builder import Bound, Code, Vec, fma
from rlx.core.dtype import DType

Complex = tuple[Vec, Vec]
PRIMES = (3, 5, 7, 11, 13)
"""Odd numbers of points that have a stage of their own."""
ARGS = "ptr %x, ptr %y, i64 %apart, ptr %turns, i64 %m, i64 %s"
LONG = 1 << 18
"""Points from which on a stage polls."""
POLLED, ROWS_POLLED = 1 << 12, 1 << 9
"""Vectors between two polls, and rows of at most so many vectors."""
TURNS_PAD = 16
"""Turns that may be read past the last of a stage's."""


def past_end(isa: Isa, dtype: DType) -> int:
    """How many numbers past the last point may be read or written."""
    return (max(PRIMES) + 1) * isa.lanes(dtype)


# -- a few points ---------------------------------------------------------------------------------


def plus(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def minus(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def times_minus_i(a: Complex) -> Complex:
    return a[1], -a[0]


def multiply_add(x: Vec, y: Vec | float, z: Vec) -> Vec:
    """x · y + z, rounded once where that is one instruction."""
    return fma(x, y, z) if x.code.isa.has_fma else x * y + z


def times(a: Complex, w: Complex) -> Complex:
    re = multiply_add(a[0], w[0], -(a[1] * w[1]))
    return re, multiply_add(a[0], w[1], a[1] * w[0])


def transform(x: Sequence[Complex]) -> list[Complex]:
    """The transform of a few points."""
    if len(x) in PRIMES:
        return _odd(x)
    if len(x) == 2:
        return [plus(*x), minus(*x)]
    even, odd = transform(x[::2]), _turned(transform(x[1::2]))
    return [plus(e, o) for e, o in zip(even, odd)] + [minus(e, o) for e, o in zip(even, odd)]


def _turned(x: list[Complex]) -> list[Complex]:
    """Times w(2n)^j: of n = 2 quarter turns, of n = 4 eighth turns."""
    if len(x) == 2:
        return [x[0], times_minus_i(x[1])]
    half = math.sqrt(0.5)
    (a, b), (c, d) = x[1], x[3]
    first = ((a + b) * half, (b - a) * half)
    return [x[0], first, times_minus_i(x[2]), ((d - c) * half, -((c + d) * half))]


def _odd(x: Sequence[Complex]) -> list[Complex]:
    """Of a prime number of points: those k and -k from the first are added and subtracted, as
    they share a cosine and, but for the sign, a sine."""
    n, half = len(x), len(x) // 2
    sums = [plus(x[k], x[n - k]) for k in range(1, half + 1)]
    gaps = [minus(x[k], x[n - k]) for k in range(1, half + 1)]
    made: dict[int, Complex] = {0: functools.reduce(plus, sums, x[0])}
    for j in range(1, half + 1):
        (a, b), (c, d) = _waves(n, j, x[0], sums, gaps)
        made[j], made[n - j] = (a + d, b - c), (a - d, b + c)
    return [made[j] for j in range(n)]


def _waves(
    n: int, j: int, first: Complex, sums: Sequence[Complex], gaps: Sequence[Complex]
) -> tuple[Complex, Complex]:
    """The cosine part of the j-th result, and its sine part."""
    even = first
    angles = [2 * math.pi * (j * k % n) / n for k in range(1, len(sums) + 1)]
    for angle, (re, im) in zip(angles, sums):
        c = math.cos(angle)
        even = multiply_add(re, c, even[0]), multiply_add(im, c, even[1])
    one = math.sin(angles[0])
    odd = gaps[0][0] * one, gaps[0][1] * one
    for angle, (re, im) in zip(angles[1:], gaps[1:]):
        s = math.sin(angle)
        odd = multiply_add(re, s, odd[0]), multiply_add(im, s, odd[1])
    return even, odd


# -- stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's function; the number of points and of transforms are arguments."""

    radix: int
    dtype: DType
    beside: int = 0
    """How many transforms lie side by side, if they are fewer than lanes."""
    is_last: bool = False
    """Is m = 1, so that nothing is turned?"""
    is_long: bool = False
    """Are there so many points that it polls?"""

    @classmethod
    def of(cls, radix: int, dtype: DType, isa: Isa, beside: int, points: int) -> Stage:
        """The stage of `radix` with `points` each left after it."""
        is_few = beside < isa.lanes(dtype)
        is_long = points * radix * beside >= LONG
        return cls(radix, dtype, beside if is_few else 0, points == 1, is_long)

    def call(
        self, code: Code, x: str, y: str, apart: Bound, turns: str, points: Bound, beside: Bound
    ) -> None:
        """Points in x to points in y, imaginary parts `apart` numbers after the real ones."""
        end = "last" if self.is_last else "turned"
        name = f"fourier.{self.radix}.{self.beside}.{end}.{self.dtype}"
        given = f"ptr {x}, ptr {y}, i64 {apart}, ptr {turns}, i64 {points}, i64 {beside}"
        build, lanes = self._narrow if self.beside else self._wide, code.isa.lanes(self.dtype)
        subprogram(code, name, ARGS, given, build, lanes, is_long=self.is_long)

    def _wide(self, code: Code) -> None:
        """Lanes along q; the last vector of a row ends with it, though it begins in another."""
        last = code.i64("sub", "%s", code.lanes)
        with code.count(0, "%m", 1, ROWS_POLLED) as p:
            turns = [] if self.is_last else self._turns(code, p, 0)
            start = code.i64("mul", p, "%s")
            to = code.i64("mul", start, self.radix)
            with code.count(0, "%s", code.lanes, POLLED) as at:
                q = code.least(at, last)
                made = self._points(code, code.i64("add", start, q), turns)
                for j, value in enumerate(made):
                    step = code.i64("mul", "%s", j)
                    self._store(code, value, code.i64("add", code.i64("add", to, q), step))

    def _narrow(self, code: Code) -> None:
        """Lanes along q and p."""
        groups = code.lanes // self.beside
        with code.count(0, "%m", groups, POLLED) as p:
            turns = [] if self.is_last else self._spread_turns(code, p)
            start = code.i64("mul", p, self.beside)
            made = self._points(code, start, turns)
            to = code.i64("mul", start, self.radix)
            parts = [self._ordered(code, [v[c] for v in made]) for c in (0, 1)]
            for number, value in enumerate(zip(*parts)):
                self._store(code, value, code.i64("add", to, number * code.lanes))

    def _points(self, code: Code, at: Bound, turns: Sequence[Complex]) -> list[Complex]:
        """The results of the stage at the lanes of one place."""
        step = code.i64("mul", "%m", self.beside or "%s")
        places = [code.i64("add", at, code.i64("mul", step, k)) for k in range(self.radix)]
        made = transform([self._load(code, "%x", place) for place in places])
        return [made[0], *(times(v, w) for v, w in zip(made[1:], turns))] if turns else made

    def _load(self, code: Code, base: str, place: Bound) -> Complex:
        re = advanced(code, base, place, self.dtype)
        im = advanced(code, re, "%apart", self.dtype)
        return load(code, self.dtype, re), load(code, self.dtype, im)

    def _store(self, code: Code, value: Sequence[Vec], place: Bound) -> None:
        re = advanced(code, "%y", place, self.dtype)
        store(code, value[0], self.dtype, re)
        store(code, value[1], self.dtype, advanced(code, re, "%apart", self.dtype))

    def _turns(self, code: Code, p: Bound, stride: int) -> list[Complex]:
        """w(rm)^(pj) for all j but 0: the same in all lanes, or from p on."""
        row = code.i64("add", "%m", TURNS_PAD)
        made: list[Vec] = []
        for number in range(2 * (self.radix - 1)):
            place = code.i64("add", code.i64("mul", row, number), p)
            at = advanced(code, "%turns", place, self.dtype)
            made.append(load(code, self.dtype, at, stride))
        return list(zip(made[::2], made[1::2]))

    def _spread_turns(self, code: Code, p: Bound) -> list[Complex]:
        """Those of each lane's p."""
        turns = self._turns(code, p, 1)
        if self.beside == 1:
            return turns
        picks = [lane // self.beside for lane in range(code.lanes)]
        return [(re.shuffled(picks), im.shuffled(picks)) for re, im in turns]

    def _ordered(self, code: Code, made: Sequence[Vec]) -> list[Vec]:
        """The lanes of all results in the order of y."""
        groups, r, s = code.lanes // self.beside, self.radix, self.beside
        if r & (r - 1) == 0 and code.lanes % (2 * s) == 0:
            return _zipped(list(made), s)
        sources = [
            (j, p * s + q) for p in range(groups) for j in range(r) for q in range(s)
        ]  # what comes to each place: a vector, and its lane
        count = -(-len(sources) // code.lanes)
        sources += sources[-1:] * (count * code.lanes - len(sources))
        cuts = [sources[i * code.lanes : (i + 1) * code.lanes] for i in range(count)]
        return [_picked(made, cut) for cut in cuts]


def _zipped(made: list[Vec], beside: int) -> list[Vec]:
    """A power of two of vectors, taken in turns so many lanes at a time: of the even ones and of
    the odd ones first, and then of both."""
    if len(made) == 1:
        return made
    halves = zip(_zipped(made[::2], beside), _zipped(made[1::2], beside))
    return [part for a, b in halves for part in _zip(a, b, beside)]


def _zip(a: Vec, b: Vec, beside: int) -> list[Vec]:
    lanes = a.code.lanes
    starts = [start for g in range(0, lanes, beside) for start in (g, lanes + g)]
    picks = [str(start + q) for start in starts for q in range(beside)]
    return [_shuffled(a, b, picks[:lanes]), _shuffled(a, b, picks[lanes:])]


def _shuffled(a: Vec, b: Vec, picks: Sequence[str]) -> Vec:
    """Any lanes of two vectors."""
    mask = f"{a.code.vector('i32')} <{', '.join(f'i32 {p}' for p in picks)}>"
    return a.made(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {mask}")


def _picked(made: Sequence[Vec], sources: Sequence[tuple[int, int]]) -> Vec:
    """A vector of any lanes of several: two by two, each lane where it will be."""
    used = sorted({j for j, _ in sources})
    parts = [({j}, made[j], {(j, lane): lane for lane in range(len(sources))}) for j in used]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else _joined(*pair, sources) for pair in pairs]
    _, vec, where = parts[0]
    picks = [where[s] for s in sources]
    return vec if picks == list(range(len(sources))) else vec.shuffled(picks)


Part = tuple[set[int], Vec, dict[tuple[int, int], int]]


def _joined(a: Part, b: Part, sources: Sequence[tuple[int, int]]) -> Part:
    """The lanes of both parts that are wanted, at the places where they are wanted."""
    lanes, members = len(sources), a[0] | b[0]
    picks = ["poison"] * lanes
    where: dict[tuple[int, int], int] = {}
    for place, source in enumerate(sources):
        if source[0] in members:
            picks[place] = str(a[2][source] if source[0] in a[0] else lanes + b[2][source])
            where[source] = place
    return members, _shuffled(a[1], b[1], picks), where
