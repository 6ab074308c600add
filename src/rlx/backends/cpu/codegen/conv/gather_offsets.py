"""Gather offsets of an implicit GEMM: the address of every kernel tap for each output position of a
block.

Extents and strides are arguments, so that convolutions of all sizes share one function; only the
number of axes, and which of them are padded, are specialised.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType

ARGS = (
    "ptr %table, ptr %bases, ptr %positions, ptr %borders, ptr %zeros, i64 %room, ptr %image, "
    "i64 %first, i64 %count"
)
"""Arrays in scratch memory, each of `room` i64: an address for each tap; the origin of each
position's receptive field; its coordinate along each axis, and along each padded axis; the padding
line. Then the image, and the block's first position and their number."""


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """The output axes and kernel axes of a padded image axis."""

    places: tuple[bool, ...]
    taps: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class OffsetsForm:
    """What specialises the function: how many output and kernel axes there are, the padded ones,
    and the element's bytes."""

    places: int
    taps: int
    padded_axes: tuple[PaddedAxis, ...]
    width: int

    @property
    def name(self) -> str:
        bits = (b.places + b.taps for b in self.padded_axes)
        words = ["".join(str(int(b)) for b in row) for row in bits]
        return ".".join([f"gather_offsets{self.width}", str(self.places), str(self.taps), *words])

    @property
    def args(self) -> list[str]:
        """Its integer arguments: for each axis the extent and the stride in elements; for each
        padded axis its origin, the ends of the image, and the stride of each axis."""
        found = [f"{n}{i}" for i in range(self.places) for n in ("extent", "step")]
        found += [f"{n}{i}" for i in range(self.taps) for n in ("taps", "along")]
        for c, padded_axis in enumerate(self.padded_axes):
            found += [f"{n}{c}" for n in ("start", "low", "high")]
            found += [f"place{c}.{i}" for i, moves in enumerate(padded_axis.places) if moves]
            found += [f"tap{c}.{i}" for i, moves in enumerate(padded_axis.taps) if moves]
        return found


def gather_offsets_function(code: Code, form: OffsetsForm) -> str:
    """The name of the shared function that computes the gather offsets of a form."""
    code.shared.update(_written(form, code.isa, code.lanes))
    return form.name


@functools.lru_cache(maxsize=256)
def _written(form: OffsetsForm, isa: Isa, lanes: int) -> tuple[tuple[str, str], ...]:
    code = Code(lanes, isa)
    _Writing(code, form).write()
    code.do("ret void")
    args = ", ".join([ARGS, *(f"i64 %{n}" for n in form.args)])
    head = f"define internal void @{form.name}({args}) noinline"
    code.shared[form.name] = code.function(head)
    return tuple(code.shared.items())


class _Writing:
    def __init__(self, code: Code, form: OffsetsForm) -> None:
        self.code, self.form = code, form

    def write(self) -> None:
        self._places()
        number = self.code.slot("i64")
        self.code.store_scalar(number, 0, DType.I64)
        self._taps([], number)

    def _line(self, base: str, number: int, row: str) -> str:
        """The entry of a position in one of several arrays."""
        line = self.code.i64("mul", "%room", number)
        return advanced(self.code, base, self.code.i64("add", line, row), DType.I64)

    def _sum(self, start: Bound, terms: Sequence[tuple[str, str]]) -> Bound:
        for at, step in terms:
            start = self.code.i64("add", start, self.code.i64("mul", at, step))
        return start

    # -- output positions -----------------------------------------------------------------------

    def _places(self) -> None:
        """For each position: the origin of its receptive field, and its coordinates."""
        code, form = self.code, self.form
        slots = [code.slot("i64") for _ in range(form.places)]
        self._split("%first", slots)
        with code.count(0, "%count", 1) as row:
            here = [code.load_scalar(s, DType.I64) for s in slots]
            steps = [(at, f"%step{i}") for i, at in enumerate(here)]
            moved = code.i64("mul", self._sum(0, steps), form.width)
            image = code.let("ptrtoint ptr %image to i64")
            self._note("%bases", 0, row, code.i64("add", image, moved))
            for i, at in enumerate(here):
                self._note("%positions", i, row, at)
            for c, padded_axis in enumerate(form.padded_axes):
                moving = [
                    (at, f"%place{c}.{i}") for i, at in enumerate(here) if padded_axis.places[i]
                ]
                self._note("%borders", c, row, self._sum(f"%start{c}", moving))
            self._advance(slots, here)

    def _split(self, number: str, slots: Sequence[str]) -> None:
        """Delinearise a position, row-major."""
        code = self.code
        for i in reversed(range(1, len(slots))):
            code.store_scalar(slots[i], code.let(f"urem i64 {number}, %extent{i}"), DType.I64)
            number = code.let(f"udiv i64 {number}, %extent{i}")
        code.do(*(f"store i64 {number}, ptr {s}" for s in slots[:1]))

    def _note(self, base: str, number: int, row: str, value: Bound) -> None:
        self.code.store_scalar(self._line(base, number, row), value, DType.I64)

    def _advance(self, slots: Sequence[str], here: Sequence[str]) -> None:
        """The next position: the last axis increments, with carry."""
        code, carry = self.code, "true"
        for i in reversed(range(len(slots))):
            more = code.i64("add", here[i], 1)
            is_over = code.let(f"icmp eq i64 {more}, %extent{i}")
            turned = code.choose(is_over, 0, more)
            value = code.choose(carry, turned, here[i])
            code.store_scalar(slots[i], value, DType.I64)
            carry = code.both(carry, is_over)

    # -- kernel taps ----------------------------------------------------------------------------

    def _taps(self, at: list[str], number: str) -> None:
        """For each tap, its address at every position."""
        code, form = self.code, self.form
        if len(at) < form.taps:
            with code.count(0, f"%taps{len(at)}", 1) as tap:
                self._taps([*at, tap], number)
            return
        steps = [(tap, f"%along{i}") for i, tap in enumerate(at)]
        moved = code.splat(code.i64("mul", self._sum(0, steps), form.width), DType.U64)
        parts = [self._part(c, padded_axis, at) for c, padded_axis in enumerate(form.padded_axes)]
        done = code.load_scalar(number, DType.I64)
        line = code.i64("mul", done, "%room")
        with code.count(0, "%count", code.lanes) as row:
            address = load(code, DType.U64, self._line("%bases", 0, row)) + moved
            for c, (part, size) in enumerate(parts):
                address = self._or_padding(address, c, part, size, row)
            store(code, address, DType.U64, advanced(
                code, "%table", code.i64("add", line, row), DType.I64))  # fmt: skip
        code.store_scalar(number, code.i64("add", done, 1), DType.I64)

    def _part(self, number: int, padded_axis: PaddedAxis, at: Sequence[str]) -> tuple[Vec, Vec]:
        """The displacement of a tap along a padded axis, from the image's origin, and the image's
        extent."""
        code = self.code
        moving = [(tap, f"%tap{number}.{i}") for i, tap in enumerate(at) if padded_axis.taps[i]]
        moved = code.i64("sub", self._sum(0, moving), f"%low{number}")
        size = code.i64("sub", f"%high{number}", f"%low{number}")
        return code.splat(moved, DType.U64), code.splat(size, DType.U64)

    def _or_padding(self, address: Vec, number: int, part: Vec, size: Vec, row: str) -> Vec:
        """The address, or that of the padding line; a coordinate before the image is a large
        unsigned number."""
        code = self.code
        place = load(code, DType.U64, self._line("%borders", number, row))
        zeros = code.let("ptrtoint ptr %zeros to i64")
        return address.where((place + part) < size, code.splat(zeros, DType.U64))
