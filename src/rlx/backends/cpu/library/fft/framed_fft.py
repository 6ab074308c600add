"""Short-time Fourier transforms: frames of a signal, windowed and transformed.

Frames that reach past an end of the signal are padded in scratch memory; all others are read in
place. Neither frames nor spectra leave the scratch memory of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.complex_io import (
    StridedReals,
    apply_window,
    apply_window_deinterleaving,
    copy,
    zero,
)
from rlx.backends.cpu.library.fft.plans import (
    BluesteinPlan,
    FftPlan,
    StockhamPlan,
    has_half_length_fft,
)
from rlx.backends.cpu.library.fft.real_fft import untangle
from rlx.backends.cpu.library.fft.twiddles import radices_of
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout


def _bytes(count: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-count // 64) * 64


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a signal, operand 0, and their window, if there is one."""

    layout: Layout
    dtype: DType
    window: Layout | None
    window_number: int
    n: int
    hop: int
    is_centred: bool
    is_reflected: bool
    """Reflect padding; else zero padding."""
    count: DimLike
    """Frames per signal."""
    isa: Isa

    @classmethod
    def of(cls, step: Step, count: DimLike, window_number: int = 1) -> Frames:
        attrs, has_window = step.node.attrs, len(step.operands) > window_number
        window = step.operands[window_number] if has_window else None
        return cls(
            step.operands[0], step.node.inputs[0].shape.dtype, window, window_number,
            attrs["n_fft"], attrs["hop"], attrs["center"], attrs["pad"] == "reflect", count,
            step.isa,
        )  # fmt: skip

    @property
    def bins(self) -> int:
        return self.n // 2 + 1

    @property
    def signals(self) -> tuple[DimLike, ...]:
        return self.layout.dims[:-1]

    @property
    def total(self) -> DimLike:
        """The frames of all signals."""
        return product(self.signals) * self.count

    @property
    def has_half_length_fft(self) -> bool:
        return has_half_length_fft(self.n, self.isa)

    @property
    def fft_plan(self) -> FftPlan:
        points = self.n // 2 if self.has_half_length_fft else self.n
        radices = radices_of(points, self.isa)
        if radices is None:
            return BluesteinPlan(points, self.isa)
        return StockhamPlan(points, radices, self.dtype.compute, self.isa)

    @property
    def scratch(self) -> int:
        """Bytes: two buffers of points, and one of a frame."""
        return self.points_bytes + _bytes(self.n * self.dtype.itemsize)

    @property
    def points_bytes(self) -> int:
        return _bytes(4 * self.fft_plan.dtype.itemsize * int(self.fft_plan.part_elements))

    @property
    def flops(self) -> DimLike:
        return 4 * self.n.bit_length() * self.n * self.total


class FrameTransform:
    """Frames to spectra, inside a function that has scratch memory for it."""

    def __init__(self, frames: Frames, w: Writer, tables: str) -> None:
        self.frames, self.w, self.code, self.tables = frames, w, w.code, tables
        self.fft_plan = frames.fft_plan

    def spectrum(self, signal: Bound, frame: Bound) -> list[StridedReals]:
        """The bins of a frame: contiguous real parts and imaginary parts in scratch memory."""
        code, fft_plan = self.code, self.fft_plan
        x = "%scratch"
        y = advanced(code, x, 2 * int(fft_plan.part_elements), fft_plan.dtype)
        self._read(self._frame(signal, frame), self._parts(x))
        done, other = fft_plan.run(self.w, x, y, self.tables)
        if not self.frames.has_half_length_fft:
            return self._parts(done)
        untangle(code, self._parts(done), self._parts(other), self.frames.n // 2)
        return self._parts(other)

    def _parts(self, base: str) -> list[StridedReals]:
        fft_plan = self.fft_plan
        im = advanced(self.code, base, int(fft_plan.part_elements), fft_plan.dtype)
        return [StridedReals(base, fft_plan.dtype), StridedReals(im, fft_plan.dtype)]

    # -- windowed points ------------------------------------------------------------------------

    def _read(self, frame: StridedReals, to: list[StridedReals]) -> None:
        code, n, window = self.code, self.frames.n, self._window()
        if not self.frames.has_half_length_fft:
            self._put(frame, window, to[0], n)
            zero(code, to[1], n)
            return
        plain = frame.dtype.compute is frame.dtype and frame.stride == 1
        if plain and (window is None or window.stride == 1):
            apply_window_deinterleaving(code, frame, window, to[0], to[1], n // 2)
            return
        for number, part in enumerate(to):
            both = [v and v.at(code, number).strided(code, 2) for v in (frame, window)]
            self._put(both[0] or frame, both[1], part, n // 2)

    def _put(
        self, frame: StridedReals, window: StridedReals | None, to: StridedReals, count: int
    ) -> None:
        if window is None:
            copy(self.code, frame, to, count)
        else:
            apply_window(self.code, frame, window, to, count)

    def _window(self) -> StridedReals | None:
        layout, dtype = self.frames.window, self.frames.dtype
        if layout is None:
            return None
        at = self.w.pointer(self.frames.window_number, self.w.size(layout.offset), dtype)
        return StridedReals(at, dtype, self.w.size(layout.strides[-1]))

    # -- frames ---------------------------------------------------------------------------------

    def _frame(self, signal: Bound, frame: Bound) -> StridedReals:
        """A frame: in place in its signal, or padded in scratch."""
        frames, code, w = self.frames, self.code, self.w
        where = Layout(frames.signals, frames.layout.strides[:-1], frames.layout.offset)
        base = w.place(where, w.split(signal, frames.signals))
        whole = StridedReals(
            w.pointer(0, base, frames.dtype), frames.dtype, w.size(frames.layout.strides[-1])
        )
        start = code.i64("mul", frame, frames.hop)
        if not frames.is_centred:
            return whole.at(code, start)
        start = code.i64("sub", start, frames.n // 2)
        return self._padded(whole, start)

    def _padded(self, signal: StridedReals, start: Bound) -> StridedReals:
        """The frame from `start` on, which may begin before the signal. A contiguous frame inside
        the signal is not copied."""
        code, frames = self.code, self.frames
        padded = code.advanced("%scratch", frames.points_bytes, DType.U8)
        t, end = self.w.size(frames.layout.dims[-1]), code.i64("add", start, frames.n)
        ends = code.compare("lt", start, 0), code.compare("gt", end, t)
        is_contiguous = signal.stride == 1
        is_out = code.either(ends[0], ends[1]) if is_contiguous else "true"
        with code.when(is_out):
            code.do(
                f"call void @{self._padded_frame_function()}("
                f"ptr {signal.pointer}, i64 {signal.stride}, "
                f"i64 {start}, i64 {t}, ptr {padded}, i64 {frames.n})"
            )
        inside = signal.at(code, start).pointer
        chosen = code.let(f"select i1 {is_out}, ptr {padded}, ptr {inside}")
        return StridedReals(chosen, frames.dtype)

    def _padded_frame_function(self) -> str:
        frames = self.frames
        gather = PaddedFrame(
            frames.dtype, frames.is_reflected, is_static(frames.layout.dims[-1]),
            frames.layout.strides[-1] == 1,
        )  # fmt: skip
        args = "ptr %x, i64 %xs, i64 %start, i64 %t, ptr %y, i64 %n"
        helper(self.code, gather.name, args, gather.write)
        return gather.name


@dataclass(frozen=True, slots=True)
class PaddedFrame:
    """A padded frame: what is inside the signal is copied, the rest computed element by element."""

    dtype: DType
    is_reflected: bool
    reflects_once: bool
    """Does padding reflect at most once? A signal of dynamic length may be so short that indices
    reflect several times."""
    is_contiguous: bool

    @property
    def name(self) -> str:
        return ".".join(["fft.padded_frame", *(str(getattr(self, f)) for f in self.__slots__)])

    def write(self, code: Code) -> None:
        dtype = self.dtype
        low = code.least(code.most(code.i64("sub", 0, "%start"), 0), "%n")
        high = code.most(code.least(code.i64("sub", "%t", "%start"), "%n"), low)
        signal = StridedReals("%x", dtype, 1 if self.is_contiguous else "%xs")
        inside = signal.at(code, code.i64("add", "%start", low))
        count = code.i64("sub", high, low)
        copy(code, inside, StridedReals("%y", dtype).at(code, low), count)
        for first, last in ((0, low), (high, "%n")):
            with code.count(first, last, 1) as j:
                at = advanced(code, "%y", j, dtype)
                store(code, code.const(0.0, dtype.compute), dtype, at)
                if self.is_reflected:
                    self._reflect(code, code.i64("add", "%start", j), at)

    def _reflect(self, code: Code, place: Bound, to: str) -> None:
        """The element at a reflected index."""
        around = code.i64("mul", code.i64("sub", "%t", 1), 2)
        if not self.reflects_once:
            place = code.integer("rem", place, code.most(around, 1))
        place = code.intrinsic("abs.i64", "i64", f"i64 {place}", "i1 false")
        place = code.least(place, code.i64("sub", around, place))
        with code.when(code.compare("lt", place, "%t", DType.U64)):
            at = advanced(code, "%x", code.i64("mul", place, "%xs"), self.dtype)
            store(code, load(code, self.dtype, at, 0), self.dtype, to)
