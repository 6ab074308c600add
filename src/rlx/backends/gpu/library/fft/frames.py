"""Frames of signals: windows of points, one every hop, which are read in place."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.fft.transform import both
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.simt.values import Var
from rlx.core.dim import DimLike, dim_max, is_static, product
from rlx.core.dtype import DType


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of all signals along the last axis."""

    signals: Rows
    window: View | None
    n: int
    hop: int
    margin: int
    """Points in front of the signal, and behind it."""
    is_reflected: bool
    count: DimLike
    """Of one signal's frames."""

    @classmethod
    def of(cls, made: Launches, count: DimLike, window: int = 1) -> Frames:
        """The frames of operand 0; the operand `window` may be there."""
        attrs, x = made.node.attrs, made.operand(0)
        has_window = len(made.special.operands) > window
        return cls(
            Rows(x, len(x.layout.dims) - 1),
            made.operand(window) if has_window else None,
            attrs["n_fft"],
            attrs["hop"],
            attrs["n_fft"] // 2 if attrs["center"] else 0,
            attrs["center"] and attrs["pad"] == "reflect",
            count,
        )

    @property
    def total(self) -> DimLike:
        """Frames of all signals."""
        return product(self.signals.others.dims) * self.count

    @property
    def dtype(self) -> DType:
        """Of the arithmetic."""
        return self.signals.view.dtype.compute

    @property
    def reads(self) -> tuple[View, ...]:
        views = (self.signals.view, self.window)
        return tuple(v for v in views if v is not None)

    def point(self, w: Writer, row: Var, i: Var, mask: Var | None) -> Var:
        """A point of a frame, by its number among all frames."""
        count = w.dim(self.count)
        return self.framed(w, row // count, row % count, i, mask)

    def framed(self, w: Writer, signal: Var, frame: Var, i: Var, mask: Var | None) -> Var:
        """A point of a frame, times the window."""
        value = self.sample(w, signal, frame * self.hop + w.wide(i), mask)
        factor = self.factor(w, i, mask)
        return value if factor is None else value * factor

    def factor(self, w: Writer, i: Var, mask: Var | None) -> Var | None:
        """The window at a point."""
        if self.window is None:
            return None
        return w.element(self.window, (w.wide(i),), mask)

    def sample(self, w: Writer, signal: Var, position: Var, mask: Var | None) -> Var:
        """The signal with its margins: reflected at its ends, or zero."""
        at, view = position - self.margin, self.signals.view
        if self.margin and self.is_reflected:
            at = self._reflected(w, at)
        elif self.margin:
            mask = both(mask, (at >= 0) & (at < w.dim(self.signals.length)))
        value = w.load(view, self.signals.at(w, signal, at), mask)[0]
        return value.to(view.dtype.compute)

    def _reflected(self, w: Writer, at: Var) -> Var:
        """Without its ends repeated, and as often as it takes: only a call may tell that a signal
        is shorter than a margin."""
        length = self.signals.length
        if is_static(length) and length > self.margin:
            inner = abs(at)
            return inner.min(2 * (length - 1) - inner)
        period = w.number(dim_max(2 * (length - 1), 1))
        inner = abs(at) % period
        return inner.min(period - inner).min(w.number(dim_max(length - 1, 0)))
