"""Frames of signals: windows of points, one every hop, which are read in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.fft.transform import both
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.core.dim import DimLike, dim_max, exact_div, is_static, product
from rlx.core.dtype import DType
from rlx.program.values import Var, Variable


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
        value = self.sample(w, signal, w.plus(frame * self.hop, w.wide(i)), mask)
        factor = self.factor(w, i, mask)
        return value if factor is None else value * factor

    def factor(self, w: Writer, i: Var, mask: Var | None) -> Var | None:
        """The window at a point."""
        if self.window is None:
            return None
        return w.element(self.window, (w.wide(i),), mask)

    # -- pairs -----------------------------------------------------------------------------------

    def pairs(self, w: Writer, row: Var, places: Sequence[tuple[Var, Var | None]]) -> list[Complex]:
        """Pairs of neighbours of a frame. Those of frames that do not reach into a margin are
        vectors, if they begin at even points."""
        b, count = w.b, w.dim(self.count)
        signal, frame = row // count, row % count
        start = w.plus(frame * self.hop, -self.margin)
        if not self._has_pairs():
            found = self._one_by_one(w, signal, frame, places)
        elif not self.margin:
            found = self._vectors(w, signal, start, places)
        else:
            inner = (start >= 0) & (start + self.n <= w.dim(self.signals.length))
            values = [b.variable(0.0, self.dtype) for _ in range(2 * len(places))]
            with b.when(inner, carry=values):
                _set(values, self._vectors(w, signal, start, places))
            with b.otherwise(carry=values):
                _set(values, self._one_by_one(w, signal, frame, places))
            found = [(values[i], values[i + 1]) for i in range(0, len(values), 2)]
        return [self._windowed(w, i, mask, pair) for (i, mask), pair in zip(places, found)]

    def _has_pairs(self) -> bool:
        """Is every second point of every frame at an even place of its contiguous signal?"""
        layout = self.signals.view.layout
        steps = (*self.signals.others.strides, layout.offset, self.hop, self.margin)
        is_even = all(s == 0 or exact_div(s, 2) is not None for s in steps)
        return layout.strides[self.signals.axis] == 1 and is_even

    def _vectors(
        self, w: Writer, signal: Var, start: Var, places: Sequence[tuple[Var, Var | None]]
    ) -> list[Complex]:
        found: list[Complex] = []
        for i, mask in places:
            at = self.signals.at(w, signal, w.plus(start, w.wide(w.times(i, 2))))
            re, im = w.ref(self.signals.view).load(at, 2, mask)
            found.append((re.to(self.dtype), im.to(self.dtype)))
        return found

    def _one_by_one(
        self, w: Writer, signal: Var, frame: Var, places: Sequence[tuple[Var, Var | None]]
    ) -> list[Complex]:
        first = frame * self.hop
        found: list[Complex] = []
        for i, mask in places:
            at = w.plus(first, w.wide(w.times(i, 2)))
            found.append(
                (self.sample(w, signal, at, mask), self.sample(w, signal, w.plus(at, 1), mask))
            )
        return found

    def _windowed(self, w: Writer, i: Var, mask: Var | None, pair: Complex) -> Complex:
        if self.window is None:
            return pair
        at, layout = w.times(i, 2), self.window.layout
        if layout.strides == (1,) and exact_div(layout.offset, 2) is not None:
            one, other = w.ref(self.window).load(w.at(layout, (w.wide(at),)), 2, mask)
        else:
            one, other = (
                w.load(self.window, w.at(layout, (w.wide(w.plus(at, n)),)), mask)[0] for n in (0, 1)
            )
        return pair[0] * one.to(self.dtype), pair[1] * other.to(self.dtype)

    # -- points ----------------------------------------------------------------------------------

    def sample(self, w: Writer, signal: Var, position: Var, mask: Var | None) -> Var:
        """The signal with its margins: reflected at its ends, or zero."""
        at, view = w.plus(position, -self.margin), self.signals.view
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


def _set(variables: Sequence[Variable], pairs: Sequence[Complex]) -> None:
    for variable, value in zip(variables, (v for pair in pairs for v in pair), strict=True):
        variable.set(value)
