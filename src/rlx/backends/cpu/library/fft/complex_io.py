"""The points of transforms from and to memory: real and imaginary parts, apart or in pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.storage_types import HALVES, rounded_to_half
from rlx.backends.cpu.library.fft.butterflies import LONG, POLLED, multiply_add
from rlx.backends.cpu.library.shared_functions import helper, subprogram
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Code, Vec, literal
from rlx.core.dtype import DType


@dataclass(frozen=True, slots=True)
class Numbers:
    """Real numbers in memory, a stride apart."""

    pointer: str
    dtype: DType
    stride: Bound = 1

    def at(self, code: Code, number: Bound) -> Numbers:
        """From another one on."""
        place = code.i64("mul", self.stride, number)
        return Numbers(advanced(code, self.pointer, place, self.dtype), self.dtype, self.stride)

    def every(self, code: Code, step: int) -> Numbers:
        return Numbers(self.pointer, self.dtype, code.i64("mul", self.stride, step))


def copy(code: Code, given: Numbers, to: Numbers, count: Bound, scale: str | float = 1.0) -> None:
    """Numbers from one place to another, times a factor: a number, or the name of an f64."""
    lanes = 1
    if given.stride == to.stride == 1:
        lanes = min(code.isa.lanes(d.compute) for d in (given.dtype, to.dtype))
    is_scaled = scale != 1.0
    name = f"points.copy.{given.dtype}.{to.dtype}.{lanes}.{'scaled' if is_scaled else 'plain'}"
    args = "ptr %x, i64 %xs, ptr %y, i64 %ys, i64 %n, double %scale"
    kinds = given.dtype, to.dtype
    text = scale if isinstance(scale, str) else literal(scale, DType.F64)
    places = ", ".join(f"ptr {v.pointer}, i64 {v.stride}" for v in (given, to))
    build = lambda inner: _copy(inner, *kinds, is_scaled)
    _call(code, name, args, f"{places}, i64 {count}, double {text}", build, lanes, count)


def zero(code: Code, to: Numbers, count: Bound) -> None:
    lanes = code.isa.lanes(to.dtype) if to.stride == 1 else 1
    name = f"points.zero.{to.dtype}.{lanes}"
    given = f"ptr {to.pointer}, i64 {to.stride}, i64 {count}"
    build = lambda inner: _zero(inner, to.dtype)
    _call(code, name, "ptr %y, i64 %ys, i64 %n", given, build, lanes, count)


def from_pairs(code: Code, given: Numbers, re: Numbers, im: Numbers, count: Bound) -> None:
    """Pairs that lie side by side, to parts that do."""
    name = f"points.from_pairs.{given.dtype}.{re.dtype}"
    kinds = given.dtype, re.dtype
    lanes = min(code.isa.lanes(d) for d in kinds)
    args = "ptr %x, ptr %re, ptr %im, i64 %n"
    pointers = f"ptr {given.pointer}, ptr {re.pointer}, ptr {im.pointer}"
    build = lambda inner: _from_pairs(inner, *kinds)
    _call(code, name, args, f"{pointers}, i64 {count}", build, lanes, count)


def to_pairs(
    code: Code, re: Numbers, im: Numbers, to: Numbers, count: Bound, scale: str | float
) -> None:
    name = f"points.to_pairs.{re.dtype}.{to.dtype}"
    kinds = re.dtype, to.dtype
    lanes = min(code.isa.lanes(d) for d in kinds)
    args = "ptr %re, ptr %im, ptr %y, i64 %n, double %scale"
    text = scale if isinstance(scale, str) else literal(scale, DType.F64)
    pointers = f"ptr {re.pointer}, ptr {im.pointer}, ptr {to.pointer}"
    build = lambda inner: _to_pairs(inner, *kinds)
    _call(code, name, args, f"{pointers}, i64 {count}, double {text}", build, lanes, count)


def _call(
    code: Code, name: str, args: str, given: str, build: Callable[[Code], None], lanes: int,
    count: Bound,
) -> None:  # fmt: skip
    """Many numbers may be in memory that nobody touched yet, which takes long."""
    is_long = isinstance(count, int) and count >= LONG
    subprogram(code, name, args, given, build, lanes, is_long=is_long)


def _runs(code: Code, body: Callable[[Bound, Vec | None], None]) -> None:
    """Whole vectors up to %n, and the lanes that are left."""
    rest = code.let(f"urem i64 %n, {code.lanes}")
    end = code.i64("sub", "%n", rest)
    with code.count(0, end, code.lanes, POLLED) as i:
        body(i, None)
    if code.lanes > 1:
        with code.when(code.let(f"icmp ne i64 {rest}, 0")):
            body(end, below(code, rest))


def _scale(code: Code, value: Vec) -> Vec:
    return value * code.splat("%scale", DType.F64).to(value.dtype)


def _put(
    code: Code, value: Vec, dtype: DType, at: str, mask: Vec | None, stride: Bound = 1
) -> None:
    if dtype in HALVES and value.dtype is DType.F64:
        value = rounded_to_half(value, dtype)
    store(code, value.to(dtype.compute), dtype, at, stride, mask)


def _copy(code: Code, given: DType, to: DType, is_scaled: bool) -> None:
    is_one = code.lanes == 1

    def body(i: Bound, mask: Vec | None) -> None:
        places = [code.i64("mul", i, s) if is_one else i for s in ("%xs", "%ys")]
        x = load(code, given, advanced(code, "%x", places[0], given), 0 if is_one else 1, mask)
        x = x.to(to.compute) if x.dtype.itemsize < to.compute.itemsize else x
        x = _scale(code, x) if is_scaled else x
        _put(code, x, to, advanced(code, "%y", places[1], to), mask)

    _runs(code, body)


def _zero(code: Code, dtype: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        place = code.i64("mul", i, "%ys") if code.lanes == 1 else i
        store(code, code.const(0.0, dtype), dtype, advanced(code, "%y", place, dtype), 1, mask)

    _runs(code, body)


def _from_pairs(code: Code, given: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        at = advanced(code, "%x", code.i64("mul", i, 2), given)
        for part, (start, name) in enumerate(((at, "%re"), (advanced(code, at, 1, given), "%im"))):
            is_whole = mask is None
            x = (
                _every_other(code, at, part, given)
                if is_whole
                else load(code, given, start, 2, mask)
            )
            _put(code, x, to, advanced(code, name, i, to), mask)

    _runs(code, body)


def _every_other(code: Code, at: str, first: int, dtype: DType) -> Vec:
    """The real or imaginary parts of whole pairs."""
    kind = f"<{2 * code.lanes} x {ELEMENT[dtype]}>"
    both = code.let(f"load {kind}, ptr {at}, align {dtype.itemsize}")
    picks = ", ".join(f"i32 {2 * n + first}" for n in range(code.lanes))
    text = f"shufflevector {kind} {both}, {kind} poison, {code.vector('i32')} <{picks}>"
    return Vec(code, code.let(text), dtype)


def _to_pairs(code: Code, given: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        parts = [load(code, given, advanced(code, p, i, given), 1, mask) for p in ("%re", "%im")]
        values = [_scale(code, x).to(to) for x in parts]
        at = advanced(code, "%y", code.i64("mul", i, 2), to)
        if mask is None:
            _interleaved(code, values, at, to)
            return
        for start, value in zip((at, advanced(code, at, 1, to)), values):
            store(code, value, to, start, 2, mask)

    _runs(code, body)


def _interleaved(code: Code, values: list[Vec], at: str, dtype: DType) -> None:
    re, im = values
    kind = f"<{2 * code.lanes} x {ELEMENT[dtype]}>"
    picks = ", ".join(f"i32 {n}, i32 {code.lanes + n}" for n in range(code.lanes))
    mask = f"<{2 * code.lanes} x i32> <{picks}>"
    both = code.let(f"shufflevector {re.type} {re.text}, {im.type} {im.text}, {mask}")
    code.do(f"store {kind} {both}, ptr {at}, align {dtype.itemsize}")


# -- times a window -------------------------------------------------------------------------------


def weighted(code: Code, given: Numbers, window: Numbers, to: Numbers, count: Bound) -> None:
    """Numbers times those of a window."""
    kinds = given.dtype, window.dtype, to.dtype
    is_beside = given.stride == window.stride == to.stride == 1
    lanes = min(code.isa.lanes(d.compute) for d in kinds) if is_beside else 1
    name = f"points.weighted.{given.dtype}.{to.dtype}.{lanes}"
    args = "ptr %x, i64 %xs, ptr %w, i64 %ws, ptr %y, i64 %ys, i64 %n"
    helper(code, name, args, lambda inner: _weighted(inner, *kinds), lanes)
    places = ", ".join(f"ptr {v.pointer}, i64 {v.stride}" for v in (given, window, to))
    code.do(f"call void @{name}({places}, i64 {count})")


def _weighted(code: Code, given: DType, window: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        steps = [code.i64("mul", i, s) if code.lanes == 1 else i for s in ("%xs", "%ws", "%ys")]
        ends = zip(("%x", "%w"), steps, (given, window))
        parts = [load(code, d, advanced(code, b, i, d), 1, mask) for b, i, d in ends]
        x, w = (p.to(to) for p in parts)
        store(code, x * w, to, advanced(code, "%y", steps[2], to), 1, mask)

    _runs(code, body)


def weighted_pairs(
    code: Code, given: Numbers, window: Numbers | None, re: Numbers, im: Numbers, count: Bound
) -> None:
    """At least as many pairs as there are lanes, all side by side, times those of a window: to
    parts that are. The last vector ends with the last pair, though it begins among others."""
    dtype, word = re.dtype, "plain" if window is None else "weighted"
    name = f"points.weighted_pairs.{dtype}.{word}"
    args = "ptr %x, ptr %w, ptr %re, ptr %im, i64 %n"
    build = _plain_pairs if window is None else _weighted_pairs
    helper(code, name, args, lambda inner: build(inner, dtype), code.isa.lanes(dtype))
    places = [given.pointer, "null" if window is None else window.pointer, re.pointer, im.pointer]
    code.do(f"call void @{name}({', '.join(f'ptr {p}' for p in places)}, i64 {count})")


def _plain_pairs(code: Code, dtype: DType) -> None:
    _spread(code, dtype, ("%x",))


def _weighted_pairs(code: Code, dtype: DType) -> None:
    _spread(code, dtype, ("%x", "%w"))


def _spread(code: Code, dtype: DType, bases: tuple[str, ...]) -> None:
    """The product of what is at the bases, its even numbers apart from its odd ones."""
    kind = f"<{2 * code.lanes} x {ELEMENT[dtype]}>"
    last = code.i64("sub", "%n", code.lanes)
    with code.count(0, "%n", code.lanes) as start:
        i = code.least(start, last)
        places = [advanced(code, b, code.i64("mul", i, 2), dtype) for b in bases]
        both = [code.let(f"load {kind}, ptr {p}, align {dtype.itemsize}") for p in places]
        made = both[0] if len(both) == 1 else code.let(f"fmul {kind} {both[0]}, {both[1]}")
        for first, to in enumerate(("%re", "%im")):
            picks = ", ".join(f"i32 {2 * n + first}" for n in range(code.lanes))
            order = f"{code.vector('i32')} <{picks}>"
            text = f"shufflevector {kind} {made}, {kind} poison, {order}"
            store(code, Vec(code, code.let(text), dtype), dtype, advanced(code, to, i, dtype))


# -- squared magnitudes ---------------------------------------------------------------------------


def power(code: Code, parts: list[Numbers], to: Numbers, count: Bound, *, adds: bool) -> None:
    """re² + im² of parts that lie side by side, put to a place or added to what is there."""
    given = parts[0].dtype
    is_beside = to.stride == 1
    lanes = min(code.isa.lanes(d.compute) for d in (given, to.dtype)) if is_beside else 1
    name = f"points.power.{given}.{to.dtype}.{lanes}.{'add' if adds else 'put'}"
    args = "ptr %re, ptr %im, ptr %y, i64 %ys, i64 %n"
    helper(code, name, args, lambda inner: _power(inner, given, to.dtype, adds), lanes)
    places = f"ptr {parts[0].pointer}, ptr {parts[1].pointer}, ptr {to.pointer}, i64 {to.stride}"
    code.do(f"call void @{name}({places}, i64 {count})")


def _power(code: Code, given: DType, to: DType, adds: bool) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        re, im = (load(code, given, advanced(code, p, i, given), 1, mask) for p in ("%re", "%im"))
        at = advanced(code, "%y", code.i64("mul", i, "%ys") if code.lanes == 1 else i, to)
        total = multiply_add(im, im, re * re)
        total = load(code, to, at, 1, mask) + total if adds else total
        _put(code, total, to, at, mask)

    _runs(code, body)


def add(code: Code, given: Numbers, to: Numbers, count: Bound) -> None:
    """Numbers that lie side by side, added to others of their dtype that do."""
    dtype = to.dtype
    name = f"points.add.{dtype}"
    args = "ptr %x, ptr %y, i64 %n"
    helper(code, name, args, lambda inner: _add(inner, dtype), code.isa.lanes(dtype))
    code.do(f"call void @{name}(ptr {given.pointer}, ptr {to.pointer}, i64 {count})")


def _add(code: Code, dtype: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        x, y = (load(code, dtype, advanced(code, p, i, dtype), 1, mask) for p in ("%x", "%y"))
        store(code, x + y, dtype, advanced(code, "%y", i, dtype), 1, mask)

    _runs(code, body)
