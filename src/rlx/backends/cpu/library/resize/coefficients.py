"""Resampling coefficients: source indices and weights of each result, as constant tables, and the
weighted sums over taps. A repeated axis has no table: result i is source element i // factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from rlx.backends.cpu.library.fft.twiddles import constant
from rlx.backends.cpu.library.strided_copy import at, step
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import near_fma
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.ops.nn.resize import Line, Repeat, Rule

Array = np.ndarray[Any, Any]
MAX_UNROLLED_TAPS = 16
"""Taps up to this many are unrolled."""
Load = Callable[[Bound], list[Vec]]
TapSum = Callable[[int, Load], list[Vec]]


def constant_table(code: Code, values: Array) -> str:
    """The name of a constant array in the module, named by its contents."""
    name = f"taps.{blake2b(values.tobytes(), digest_size=8).hexdigest()}"
    return constant(code, name, np.ascontiguousarray(values))


def table_entry(code: Code, base: str, place: Bound, kind: str = "i32") -> str:
    """An integer of a table, as i64."""
    where = code.let(f"getelementptr {kind}, ptr {base}, i64 {place}")
    found = code.let(f"load {kind}, ptr {where}")
    return code.let(f"zext {kind} {found} to i64")


def num_taps(line: Line | Repeat, rule: Rule) -> int:
    return 1 if isinstance(line, Repeat) else line.taps(rule)[0].shape[1]


# -- scalar positions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AxisPosition:
    """A position on a resized axis, whose taps are `stride` apart in the source."""

    line: Line | Repeat
    position: Bound
    stride: DimLike


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of positions on several axes: their outer product."""

    w: Writer
    positions: Sequence[AxisPosition]
    rule: Rule
    dtype: DType
    """Of weights."""
    base: Bound
    """The offset of the axes' first elements."""

    @property
    def counts(self) -> list[int]:
        return [num_taps(s.line, self.rule) for s in self.positions]

    def tap(self, position: AxisPosition, n: Bound) -> tuple[Bound, str | None]:
        """The source offset of one, and its weight; where elements are only moved there is none."""
        code, line = self.w.code, position.line
        if isinstance(line, Repeat):
            place = code.integer("div", position.position, line.factor, DType.U64)
            return step(self.w, place, position.stride), None
        places, weights = line.taps(self.rule)
        entry = at(self.w, code.i64("mul", position.position, places.shape[1]), n)
        place = table_entry(code, constant_table(code, places.astype(np.int32)), entry)
        where = step(self.w, place, position.stride)
        if self.rule.mode == "nearest":
            return where, None
        kind, base = ELEMENT[self.dtype], constant_table(code, weights.astype(self.dtype.numpy))
        pointer = code.let(f"getelementptr {kind}, ptr {base}, i64 {entry}")
        return where, code.let(f"load {kind}, ptr {pointer}")

    def joined(self, numbers: Sequence[Bound]) -> tuple[Bound, Vec | None]:
        """One tap of each axis."""
        code, kind = self.w.code, ELEMENT[self.dtype]
        place, weight = self.base, None
        for position, n in zip(self.positions, numbers, strict=True):
            where, own = self.tap(position, n)
            place = at(self.w, place, where)
            both = weight is not None and own is not None
            weight = code.let(f"fmul {kind} {weight}, {own}") if both else own or weight
        return place, code.splat(weight, self.dtype) if weight is not None else None

    def tap_sum(self) -> TapSum:
        """The weighted sum over the taps: of so many vectors, given what loads them from an
        offset."""
        if np.prod(self.counts) > MAX_UNROLLED_TAPS:
            return self.loop_sum
        every = [self.joined(n) for n in np.ndindex(*self.counts)]

        def sums(_: int, load: Load) -> list[Vec]:
            (place, weight), *more = every
            made = load(place)
            made = made if weight is None else [x * weight for x in made]
            for place, weight in more:
                assert weight is not None
                made = [near_fma(x, weight, so_far) for x, so_far in zip(load(place), made)]
            return made

        return sums

    def loop_sum(self, count: int, load: Load) -> list[Vec]:
        """The same in loops over the taps."""
        sums = [Accumulator(self.w.code, self.dtype) for _ in range(count)]
        with ExitStack() as stack:
            each = [stack.enter_context(self.w.code.count(0, n, 1)) for n in self.counts]
            place, weight = self.joined(each)
            assert weight is not None
            for x, total in zip(load(place), sums):
                total.add(x, weight)
        return [s.value for s in sums]


class Accumulator:
    """An accumulator of products in a loop."""

    def __init__(self, code: Code, dtype: DType) -> None:
        self.code, self.dtype = code, dtype
        self.kind = code.vector(ELEMENT[dtype])
        self.slot = code.slot(self.kind)
        code.do(f"store {self.kind} zeroinitializer, ptr {self.slot}")

    @property
    def value(self) -> Vec:
        return self.code.vector_of(self.code.let(f"load {self.kind}, ptr {self.slot}"), self.dtype)

    def add(self, x: Vec, weight: Vec) -> None:
        made = near_fma(x, weight, self.value) if self.dtype.is_float else x * weight + self.value
        self.code.do(f"store {made.type} {made.text}, ptr {self.slot}")


# -- vectors along an axis ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowTaps:
    """Rows of results in blocks, and blocks in vectors, the last of which begins early enough to be
    full; for each lane its taps."""

    starts: Array
    """[blocks, vectors]: the first result of each vector."""
    places: Array
    """[blocks, vectors, taps, lanes]"""
    weights: Array
    outside: Array
    """[blocks, vectors, lanes]"""

    @classmethod
    def of(cls, line: Line, rule: Rule, row_channels: int, lanes: int, most: int) -> RowTaps:
        """Of a row of elements of `row_channels` numbers each, in blocks of at most so many."""
        places, weights = line.taps(rule)
        outside = line.outside() if line.crop is not None else np.zeros(line.new, bool)
        expanded = places[:, None, :] * row_channels + np.arange(row_channels)[:, None]
        places = expanded.reshape(-1, places.shape[1])
        size = len(places)
        blocks = -(-size // most)
        edges = np.arange(blocks + 1) * size // blocks
        vectors = -(-int(np.diff(edges).max()) // lanes)
        starts = edges[:-1, None] + np.arange(vectors) * lanes
        starts = np.minimum(starts, edges[1:, None] - lanes)
        each = starts[..., None] + np.arange(lanes)
        order = (0, 1, 3, 2)
        return cls(
            starts, places[each].transpose(order), weights[each // row_channels].transpose(order),
            outside[each // row_channels],
        )  # fmt: skip

    @property
    def blocks(self) -> int:
        return len(self.starts)

    @property
    def source_range(self) -> Array:
        """[blocks, 2]: the range of source elements that a block reads."""
        flat = self.places.reshape(len(self.places), -1)
        return np.stack([flat.min(1), flat.max(1) + 1], 1)

    def bases(self, last: int | None, width: int) -> Array | None:
        """[blocks, vectors]: the first of `width` source elements, none of them past `last`, that
        hold all taps of a vector of results; None if that is more."""
        found = self.places.min((2, 3))
        if last is not None:
            found = np.minimum(found, last + 1 - width)
        span = (self.places - found[..., None, None]).max()
        return found if found.min() >= 0 and span < width else None
