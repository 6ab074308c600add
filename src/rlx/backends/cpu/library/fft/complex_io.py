"""Vector loops between split-complex, interleaved and real arrays: copies, windows, power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.storage_types import HALF_PRECISION, rounded_to_half
from rlx.backends.cpu.library.fft.butterflies import MIN_POLLED_POINTS, VECTORS_PER_POLL
from rlx.backends.cpu.library.shared_functions import helper, subprogram
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.printer import ELEMENT, literal
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType


@dataclass(frozen=True, slots=True)
class StridedReals:
    """Real numbers in memory, with a stride in elements."""

    pointer: str
    dtype: DType
    stride: Bound = 1

    def at(self, code: Code, number: Bound) -> StridedReals:
        """From another element on."""
        place = code.i64("mul", self.stride, number)
        return StridedReals(
            advanced(code, self.pointer, place, self.dtype), self.dtype, self.stride
        )

    def strided(self, code: Code, step: int) -> StridedReals:
        return StridedReals(self.pointer, self.dtype, code.i64("mul", self.stride, step))


def copy(
    code: Code, given: StridedReals, to: StridedReals, count: Bound, scale: str | float = 1.0
) -> None:
    """Copy and convert, times a factor: a number, or the name of an f64."""
    lanes = 1
    if given.stride == to.stride == 1:
        lanes = min(code.isa.lanes(d.compute) for d in (given.dtype, to.dtype))
    is_scaled = scale != 1.0
    name = f"fft.copy.{given.dtype}.{to.dtype}.{lanes}.{'scaled' if is_scaled else 'plain'}"
    args = "ptr %x, i64 %xs, ptr %y, i64 %ys, i64 %n, double %scale"
    kinds = given.dtype, to.dtype
    text = scale if isinstance(scale, str) else literal(scale, DType.F64)
    places = ", ".join(f"ptr {v.pointer}, i64 {v.stride}" for v in (given, to))
    build = lambda inner: _copy(inner, *kinds, is_scaled)
    _call(code, name, args, f"{places}, i64 {count}, double {text}", build, lanes, count)


def zero(code: Code, to: StridedReals, count: Bound) -> None:
    lanes = code.isa.lanes(to.dtype) if to.stride == 1 else 1
    name = f"fft.zero.{to.dtype}.{lanes}"
    given = f"ptr {to.pointer}, i64 {to.stride}, i64 {count}"
    build = lambda inner: _zero(inner, to.dtype)
    _call(code, name, "ptr %y, i64 %ys, i64 %n", given, build, lanes, count)


def deinterleave(
    code: Code, given: StridedReals, re: StridedReals, im: StridedReals, count: Bound
) -> None:
    """Interleaved complex numbers to split ones."""
    name = f"fft.deinterleave.{given.dtype}.{re.dtype}"
    kinds = given.dtype, re.dtype
    lanes = min(code.isa.lanes(d) for d in kinds)
    args = "ptr %x, ptr %re, ptr %im, i64 %n"
    pointers = f"ptr {given.pointer}, ptr {re.pointer}, ptr {im.pointer}"
    build = lambda inner: _deinterleave(inner, *kinds)
    _call(code, name, args, f"{pointers}, i64 {count}", build, lanes, count)


def interleave(
    code: Code,
    re: StridedReals,
    im: StridedReals,
    to: StridedReals,
    count: Bound,
    scale: str | float,
) -> None:
    name = f"fft.interleave.{re.dtype}.{to.dtype}"
    kinds = re.dtype, to.dtype
    lanes = min(code.isa.lanes(d) for d in kinds)
    args = "ptr %re, ptr %im, ptr %y, i64 %n, double %scale"
    text = scale if isinstance(scale, str) else literal(scale, DType.F64)
    pointers = f"ptr {re.pointer}, ptr {im.pointer}, ptr {to.pointer}"
    build = lambda inner: _interleave(inner, *kinds)
    _call(code, name, args, f"{pointers}, i64 {count}, double {text}", build, lanes, count)


def _call(
    code: Code, name: str, args: str, given: str, build: Callable[[Code], None], lanes: int,
    count: Bound,
) -> None:  # fmt: skip
    """Long copies poll: first touches of fresh pages are slow."""
    is_long = isinstance(count, int) and count >= MIN_POLLED_POINTS
    subprogram(code, name, args, given, build, lanes, is_long=is_long)


def _vector_loop(code: Code, body: Callable[[Bound, Vec | None], None]) -> None:
    """Whole vectors up to %n, and a masked remainder."""
    rest = code.integer("rem", "%n", code.lanes, DType.U64)
    end = code.i64("sub", "%n", rest)
    with code.count(0, end, code.lanes, VECTORS_PER_POLL) as i:
        body(i, None)
    if code.lanes > 1:
        with code.when(code.compare("ne", rest, 0)):
            body(end, below(code, rest))


def _scale(code: Code, value: Vec) -> Vec:
    return value * code.splat("%scale", DType.F64).to(value.dtype)


def _put(
    code: Code, value: Vec, dtype: DType, at: str, mask: Vec | None, stride: Bound = 1
) -> None:
    if dtype in HALF_PRECISION and value.dtype is DType.F64:
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

    _vector_loop(code, body)


def _zero(code: Code, dtype: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        place = code.i64("mul", i, "%ys") if code.lanes == 1 else i
        store(code, code.const(0.0, dtype), dtype, advanced(code, "%y", place, dtype), 1, mask)

    _vector_loop(code, body)


def _deinterleave(code: Code, given: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        at = advanced(code, "%x", code.i64("mul", i, 2), given)
        for part, (start, name) in enumerate(((at, "%re"), (advanced(code, at, 1, given), "%im"))):
            is_whole = mask is None
            x = (
                _load_deinterleaved(code, at, part, given)
                if is_whole
                else load(code, given, start, 2, mask)
            )
            _put(code, x, to, advanced(code, name, i, to), mask)

    _vector_loop(code, body)


def _load_deinterleaved(code: Code, at: str, first: int, dtype: DType) -> Vec:
    """The real or imaginary parts of whole vectors of interleaved numbers."""
    kind = f"<{2 * code.lanes} x {ELEMENT[dtype]}>"
    both = code.let(f"load {kind}, ptr {at}, align {dtype.itemsize}")
    picks = ", ".join(f"i32 {2 * n + first}" for n in range(code.lanes))
    text = f"shufflevector {kind} {both}, {kind} poison, {code.vector('i32')} <{picks}>"
    return code.vector_of(code.let(text), dtype)


def _interleave(code: Code, given: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        parts = [load(code, given, advanced(code, p, i, given), 1, mask) for p in ("%re", "%im")]
        values = [_scale(code, x).to(to) for x in parts]
        at = advanced(code, "%y", code.i64("mul", i, 2), to)
        if mask is None:
            _store_interleaved(code, values, at, to)
            return
        for start, value in zip((at, advanced(code, at, 1, to)), values):
            store(code, value, to, start, 2, mask)

    _vector_loop(code, body)


def _store_interleaved(code: Code, values: list[Vec], at: str, dtype: DType) -> None:
    re, im = values
    kind = f"<{2 * code.lanes} x {ELEMENT[dtype]}>"
    picks = ", ".join(f"i32 {n}, i32 {code.lanes + n}" for n in range(code.lanes))
    mask = f"<{2 * code.lanes} x i32> <{picks}>"
    both = code.let(f"shufflevector {re.type} {re.text}, {im.type} {im.text}, {mask}")
    code.do(f"store {kind} {both}, ptr {at}, align {dtype.itemsize}")


# -- window functions -----------------------------------------------------------------------------


def apply_window(
    code: Code, given: StridedReals, window: StridedReals, to: StridedReals, count: Bound
) -> None:
    """Elementwise product with a window."""
    kinds = given.dtype, window.dtype, to.dtype
    is_contiguous = given.stride == window.stride == to.stride == 1
    lanes = min(code.isa.lanes(d.compute) for d in kinds) if is_contiguous else 1
    name = f"fft.window.{given.dtype}.{to.dtype}.{lanes}"
    args = "ptr %x, i64 %xs, ptr %w, i64 %ws, ptr %y, i64 %ys, i64 %n"
    helper(code, name, args, lambda inner: _apply_window(inner, *kinds), lanes)
    places = ", ".join(f"ptr {v.pointer}, i64 {v.stride}" for v in (given, window, to))
    code.do(f"call void @{name}({places}, i64 {count})")


def _apply_window(code: Code, given: DType, window: DType, to: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        steps = [code.i64("mul", i, s) if code.lanes == 1 else i for s in ("%xs", "%ws", "%ys")]
        ends = zip(("%x", "%w"), steps, (given, window))
        parts = [load(code, d, advanced(code, b, i, d), 1, mask) for b, i, d in ends]
        x, w = (p.to(to) for p in parts)
        store(code, x * w, to, advanced(code, "%y", steps[2], to), 1, mask)

    _vector_loop(code, body)


def apply_window_deinterleaving(
    code: Code,
    given: StridedReals,
    window: StridedReals | None,
    re: StridedReals,
    im: StridedReals,
    count: Bound,
) -> None:
    """At least a vector of interleaved pairs, contiguous, times a contiguous window: to split
    parts. The last vector ends with the last pair and overlaps the one before."""
    dtype, direction = re.dtype, "plain" if window is None else "weighted"
    name = f"fft.window_deinterleave.{dtype}.{direction}"
    args = "ptr %x, ptr %w, ptr %re, ptr %im, i64 %n"
    build = _split_pairs if window is None else _window_pairs
    helper(code, name, args, lambda inner: build(inner, dtype), code.isa.lanes(dtype))
    places = [given.pointer, "null" if window is None else window.pointer, re.pointer, im.pointer]
    code.do(f"call void @{name}({', '.join(f'ptr {p}' for p in places)}, i64 {count})")


def _split_pairs(code: Code, dtype: DType) -> None:
    _deinterleave_product(code, dtype, ("%x",))


def _window_pairs(code: Code, dtype: DType) -> None:
    _deinterleave_product(code, dtype, ("%x", "%w"))


def _deinterleave_product(code: Code, dtype: DType, bases: tuple[str, ...]) -> None:
    """The product of what is at the bases, its even elements split from its odd ones."""
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
            store(code, code.vector_of(code.let(text), dtype), dtype, advanced(code, to, i, dtype))


# -- power spectra --------------------------------------------------------------------------------


def power_spectrum(
    code: Code, parts: list[StridedReals], to: StridedReals, count: Bound, *, adds: bool
) -> None:
    """re² + im² of contiguous parts, stored or accumulated."""
    given = parts[0].dtype
    is_contiguous = to.stride == 1
    lanes = min(code.isa.lanes(d.compute) for d in (given, to.dtype)) if is_contiguous else 1
    name = f"fft.power.{given}.{to.dtype}.{lanes}.{'add' if adds else 'put'}"
    args = "ptr %re, ptr %im, ptr %y, i64 %ys, i64 %n"
    helper(code, name, args, lambda inner: _power_spectrum(inner, given, to.dtype, adds), lanes)
    places = f"ptr {parts[0].pointer}, ptr {parts[1].pointer}, ptr {to.pointer}, i64 {to.stride}"
    code.do(f"call void @{name}({places}, i64 {count})")


def _power_spectrum(code: Code, given: DType, to: DType, adds: bool) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        re, im = (load(code, given, advanced(code, p, i, given), 1, mask) for p in ("%re", "%im"))
        at = advanced(code, "%y", code.i64("mul", i, "%ys") if code.lanes == 1 else i, to)
        total = multiply_add(im, im, re * re)
        total = load(code, to, at, 1, mask) + total if adds else total
        _put(code, total, to, at, mask)

    _vector_loop(code, body)


def accumulate(code: Code, given: StridedReals, to: StridedReals, count: Bound) -> None:
    """Accumulate contiguous numbers of one dtype."""
    dtype = to.dtype
    name = f"fft.add.{dtype}"
    args = "ptr %x, ptr %y, i64 %n"
    helper(code, name, args, lambda inner: _accumulate(inner, dtype), code.isa.lanes(dtype))
    code.do(f"call void @{name}(ptr {given.pointer}, ptr {to.pointer}, i64 {count})")


def _accumulate(code: Code, dtype: DType) -> None:
    def body(i: Bound, mask: Vec | None) -> None:
        x, y = (load(code, dtype, advanced(code, p, i, dtype), 1, mask) for p in ("%x", "%y"))
        store(code, x + y, dtype, advanced(code, "%y", i, dtype), 1, mask)

    _vector_loop(code, body)
