"""One Stockham stage of an FFT: butterflies and twiddles, vectorised over points and batch.

Stockham's autosort: a transform of n = r·m points, in a batch of s interleaved ones, is r-point
butterflies of points m apart, times twiddles, and then transforms of m points in a batch of r·s.
The output is in order, without a bit-reversal pass.

    y[q + s(j + rp)] = w(rm)^(pj) · Σₖ w(r)^(jk) · x[q + s(p + mk)]     w(n) = exp(-2πi/n)

Complex numbers are split: real and imaginary parts in separate arrays. Vectorised over q and then
p, which are contiguous in x. Where the batch is smaller than a vector, a vector holds several p,
and shuffles put its results in order; the excess lanes write what the next vector overwrites, and
the last ones write past the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.shared_functions import subprogram
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType

Complex = tuple[Vec, Vec]
ODD_RADICES = (3, 5, 7, 11, 13)
"""The odd radices."""
ARGS = "ptr %x, ptr %y, i64 %im_offset, ptr %twiddles, i64 %m, i64 %s"
MIN_POLLED_POINTS = 1 << 18
"""Points from which on a stage polls for interrupts."""
VECTORS_PER_POLL, ROWS_PER_POLL = 1 << 12, 1 << 9
"""Vectors between two polls, and rows of at most so many vectors."""
TWIDDLE_PAD = 16
"""Twiddles that may be read past a stage's last."""


def overrun_elements(isa: Isa, dtype: DType) -> int:
    """Elements past the last point that may be read or written."""
    return (max(ODD_RADICES) + 1) * isa.lanes(dtype)


# -- butterflies ----------------------------------------------------------------------------------


def complex_add(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def complex_sub(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def mul_minus_i(a: Complex) -> Complex:
    return a[1], -a[0]


def complex_mul(a: Complex, w: Complex) -> Complex:
    re = multiply_add(a[0], w[0], -(a[1] * w[1]))
    return re, multiply_add(a[0], w[1], a[1] * w[0])


def butterfly(x: Sequence[Complex]) -> list[Complex]:
    """The r-point butterfly."""
    if len(x) in ODD_RADICES:
        return _odd_butterfly(x)
    if len(x) == 2:
        return [complex_add(*x), complex_sub(*x)]
    even, odd = butterfly(x[::2]), _twiddled(butterfly(x[1::2]))
    return [complex_add(e, o) for e, o in zip(even, odd)] + [
        complex_sub(e, o) for e, o in zip(even, odd)
    ]


def _twiddled(x: list[Complex]) -> list[Complex]:
    """Twiddled inside the butterfly, times w(2n)^j: j quadrants for n = 2, octants for n = 4."""
    if len(x) == 2:
        return [x[0], mul_minus_i(x[1])]
    half = math.sqrt(0.5)
    (a, b), (c, d) = x[1], x[3]
    first = ((a + b) * half, (b - a) * half)
    return [x[0], first, mul_minus_i(x[2]), ((d - c) * half, -((c + d) * half))]


def _odd_butterfly(x: Sequence[Complex]) -> list[Complex]:
    """An odd prime radix: inputs k and n-k are added and subtracted, as they have the same cosine
    and, but for the sign, the same sine."""
    n, half = len(x), len(x) // 2
    sums = [complex_add(x[k], x[n - k]) for k in range(1, half + 1)]
    differences = [complex_sub(x[k], x[n - k]) for k in range(1, half + 1)]
    made: dict[int, Complex] = {0: functools.reduce(complex_add, sums, x[0])}
    for j in range(1, half + 1):
        (a, b), (c, d) = _cosine_and_sine_sums(n, j, x[0], sums, differences)
        made[j], made[n - j] = (a + d, b - c), (a - d, b + c)
    return [made[j] for j in range(n)]


def _cosine_and_sine_sums(
    n: int, j: int, first: Complex, sums: Sequence[Complex], differences: Sequence[Complex]
) -> tuple[Complex, Complex]:
    """The cosine sum of the j-th output, and its sine sum."""
    even = first
    angles = [2 * math.pi * (j * k % n) / n for k in range(1, len(sums) + 1)]
    for angle, (re, im) in zip(angles, sums):
        c = math.cos(angle)
        even = multiply_add(re, c, even[0]), multiply_add(im, c, even[1])
    one = math.sin(angles[0])
    odd = differences[0][0] * one, differences[0][1] * one
    for angle, (re, im) in zip(angles[1:], differences[1:]):
        s = math.sin(angle)
        odd = multiply_add(re, s, odd[0]), multiply_add(im, s, odd[1])
    return even, odd


# -- stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's function; the number of points and the batch are arguments."""

    radix: int
    dtype: DType
    batch: int = 0
    """Interleaved transforms, if they are fewer than lanes; else 0."""
    is_last: bool = False
    """Is m = 1, so that every twiddle is 1?"""
    is_long: bool = False
    """Are there so many points that it polls?"""

    @classmethod
    def of(cls, radix: int, dtype: DType, isa: Isa, batch: int, points: int) -> Stage:
        """The stage of `radix` with `points` each left after it."""
        is_few = batch < isa.lanes(dtype)
        is_long = points * radix * batch >= MIN_POLLED_POINTS
        return cls(radix, dtype, batch if is_few else 0, points == 1, is_long)

    def call(
        self,
        code: Code,
        x: str,
        y: str,
        im_offset: Bound,
        twiddles: str,
        points: Bound,
        batch: Bound,
    ) -> None:
        """Points in x to points in y, imaginary parts `im_offset` elements after the real ones."""
        end = "last" if self.is_last else "twiddled"
        name = f"fft.stage.{self.radix}.{self.batch}.{end}.{self.dtype}"
        given = f"ptr {x}, ptr {y}, i64 {im_offset}, ptr {twiddles}, i64 {points}, i64 {batch}"
        build, lanes = (
            self._vectorise_batch_and_p if self.batch else self._vectorise_batch,
            code.isa.lanes(self.dtype),
        )
        subprogram(code, name, ARGS, given, build, lanes, is_long=self.is_long)

    def _vectorise_batch(self, code: Code) -> None:
        """Vectorised over q; the last vector of a row ends with it and overlaps the one before."""
        last = code.i64("sub", "%s", code.lanes)
        with code.count(0, "%m", 1, ROWS_PER_POLL) as p:
            twiddles = [] if self.is_last else self._twiddles(code, p, 0)
            start = code.i64("mul", p, "%s")
            to = code.i64("mul", start, self.radix)
            with code.count(0, "%s", code.lanes, VECTORS_PER_POLL) as at:
                q = code.least(at, last)
                made = self._outputs(code, code.i64("add", start, q), twiddles)
                for j, value in enumerate(made):
                    step = code.i64("mul", "%s", j)
                    self._store(code, value, code.i64("add", code.i64("add", to, q), step))

    def _vectorise_batch_and_p(self, code: Code) -> None:
        """Vectorised over q and p."""
        groups = code.lanes // self.batch
        with code.count(0, "%m", groups, VECTORS_PER_POLL) as p:
            twiddles = [] if self.is_last else self._twiddles_per_lane(code, p)
            start = code.i64("mul", p, self.batch)
            made = self._outputs(code, start, twiddles)
            to = code.i64("mul", start, self.radix)
            parts = [self._in_output_order(code, [v[c] for v in made]) for c in (0, 1)]
            for number, value in enumerate(zip(*parts)):
                self._store(code, value, code.i64("add", to, number * code.lanes))

    def _outputs(self, code: Code, at: Bound, twiddles: Sequence[Complex]) -> list[Complex]:
        """The outputs of the butterflies at one vector of positions."""
        step = code.i64("mul", "%m", self.batch or "%s")
        places = [code.i64("add", at, code.i64("mul", step, k)) for k in range(self.radix)]
        made = butterfly([self._load(code, "%x", place) for place in places])
        return (
            [made[0], *(complex_mul(v, w) for v, w in zip(made[1:], twiddles))]
            if twiddles
            else made
        )

    def _load(self, code: Code, base: str, place: Bound) -> Complex:
        re = advanced(code, base, place, self.dtype)
        im = advanced(code, re, "%im_offset", self.dtype)
        return load(code, self.dtype, re), load(code, self.dtype, im)

    def _store(self, code: Code, value: Sequence[Vec], place: Bound) -> None:
        re = advanced(code, "%y", place, self.dtype)
        store(code, value[0], self.dtype, re)
        store(code, value[1], self.dtype, advanced(code, re, "%im_offset", self.dtype))

    def _twiddles(self, code: Code, p: Bound, stride: int) -> list[Complex]:
        """w(rm)^(pj) for j from 1: broadcast, or contiguous from p on."""
        row = code.i64("add", "%m", TWIDDLE_PAD)
        made: list[Vec] = []
        for number in range(2 * (self.radix - 1)):
            place = code.i64("add", code.i64("mul", row, number), p)
            at = advanced(code, "%twiddles", place, self.dtype)
            made.append(load(code, self.dtype, at, stride))
        return list(zip(made[::2], made[1::2]))

    def _twiddles_per_lane(self, code: Code, p: Bound) -> list[Complex]:
        """The twiddles of each lane's p."""
        twiddles = self._twiddles(code, p, 1)
        if self.batch == 1:
            return twiddles
        picks = [lane // self.batch for lane in range(code.lanes)]
        return [(re.shuffled(picks), im.shuffled(picks)) for re, im in twiddles]

    def _in_output_order(self, code: Code, made: Sequence[Vec]) -> list[Vec]:
        """The lanes of all outputs in the order of y."""
        groups, r, s = code.lanes // self.batch, self.radix, self.batch
        if r & (r - 1) == 0 and code.lanes % (2 * s) == 0:
            return _interleave_all(list(made), s)
        sources = [
            (j, p * s + q) for p in range(groups) for j in range(r) for q in range(s)
        ]  # for each output element: the vector and its lane
        count = -(-len(sources) // code.lanes)
        sources += sources[-1:] * (count * code.lanes - len(sources))
        cuts = [sources[i * code.lanes : (i + 1) * code.lanes] for i in range(count)]
        return [_gather_lanes(made, cut) for cut in cuts]


def _interleave_all(made: list[Vec], batch: int) -> list[Vec]:
    """Interleave a power of two of vectors, `batch` lanes at a time: the even ones and the odd ones
    first, and then both."""
    if len(made) == 1:
        return made
    halves = zip(_interleave_all(made[::2], batch), _interleave_all(made[1::2], batch))
    return [part for a, b in halves for part in _interleave(a, b, batch)]


def _interleave(a: Vec, b: Vec, batch: int) -> list[Vec]:
    lanes = a.code.lanes
    starts = [start for g in range(0, lanes, batch) for start in (g, lanes + g)]
    picks = [str(start + q) for start in starts for q in range(batch)]
    return [_shuffle(a, b, picks[:lanes]), _shuffle(a, b, picks[lanes:])]


def _shuffle(a: Vec, b: Vec, picks: Sequence[str]) -> Vec:
    """A shuffle of two vectors."""
    mask = f"{a.code.vector('i32')} <{', '.join(f'i32 {p}' for p in picks)}>"
    return a.made(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {mask}")


def _gather_lanes(made: Sequence[Vec], sources: Sequence[tuple[int, int]]) -> Vec:
    """Gather lanes of several vectors into one by a tree of two-input shuffles, each lane placed
    where it will be."""
    used = sorted({j for j, _ in sources})
    parts = [({j}, made[j], {(j, lane): lane for lane in range(len(sources))}) for j in used]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else _merge_lanes(*pair, sources) for pair in pairs]
    _, vec, where = parts[0]
    picks = [where[s] for s in sources]
    return vec if picks == list(range(len(sources))) else vec.shuffled(picks)


Part = tuple[set[int], Vec, dict[tuple[int, int], int]]


def _merge_lanes(a: Part, b: Part, sources: Sequence[tuple[int, int]]) -> Part:
    """Merge two parts of the shuffle tree: the wanted lanes of both, at their final positions."""
    lanes, members = len(sources), a[0] | b[0]
    picks = ["poison"] * lanes
    where: dict[tuple[int, int], int] = {}
    for place, source in enumerate(sources):
        if source[0] in members:
            picks[place] = str(a[2][source] if source[0] in a[0] else lanes + b[2][source])
            where[source] = place
    return members, _shuffle(a[1], b[1], picks), where
