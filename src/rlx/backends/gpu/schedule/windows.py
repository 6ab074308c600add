"""Operands that are read through windows, as the copy engine reads them: images of channels, and a
box of neighbouring windows at one tap.

    left[(n, y, x), (u, v, c)] = image[n, y·s + u·d - p, x·s + v·d - p, c],  0 outside of the image

The rows of the product are the places of windows in order, and its inner positions taps, then
channels: the copy engine counts windows as the rows do, from one line and one image to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from rlx.backends.gpu.schedule.product import Operand, Product
from rlx.core.dim import DimLike, exact_div, is_static, provably_le, upper_bound
from rlx.kernel.expr import Affine, Axis, Inside, Load
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.program.tensor_map import MAX_OUTER, OuterDim, WindowAxis

CHANNELS = 64
"""Of a box: lines of 128 bytes."""
UNIT = 8
"""Half floats of 16 bytes: where images, their lines and their pixels may start."""
REACH = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
"""How far outside of images windows may reach, by the number of their axes."""
MAX_STEP = 8


@dataclass(frozen=True, slots=True)
class ImageAxis:
    """One axis of the images that windows go along."""

    extent: DimLike
    stride: DimLike
    """Elements from one place to the next."""
    windows: WindowAxis
    tap: Axis | None
    dilation: int


@dataclass(frozen=True, slots=True)
class WindowOperand:
    """An operand as boxes of windows."""

    operand: int
    offset: DimLike
    """Of the first pixel."""
    images: OuterDim
    axes: tuple[ImageAxis, ...]
    """The outermost first."""
    channel: Axis
    places: tuple[Axis | None, ...]
    """The product's axes of images and of windows; none where there is one image."""

    @property
    def outer(self) -> tuple[OuterDim, ...]:
        """The dims of the images' matrices of pixels and channels."""
        return (self.images, *(OuterDim(a.extent, a.stride) for a in self.axes[:-1]))


def window_operand(product: Product, operand: Operand) -> WindowOperand | Refusal:
    """An operand whose rows are windows of images, or why it is none that the engine reads."""
    return attempt(lambda: _found(product, operand))


def _found(product: Product, operand: Operand) -> WindowOperand:
    source, channel = operand.source, operand.inner[-1] if operand.inner else None
    if not operand.outer:
        raise NotLowered("it has one window")
    if source is None or channel is None or not operand.is_along_inner or product.batch:
        raise NotLowered("an operand is computed, or its windows are of several groups")
    if source.at.coefficient(channel) != 1 or exact_div(channel.extent, CHANNELS) is None:
        raise NotLowered(f"its channels are no multiple of {CHANNELS}")
    taps = _by_place(operand, source)
    image, places = _image(operand, taps)
    axes = tuple(_axis(source, operand.guards, a, taps.get(a)) for a in places)
    if not 1 <= len(axes) <= MAX_OUTER or not all(map(_is_in_reach, axes, [len(axes)] * 3)):
        raise NotLowered("its windows have too many axes, or reach too far")
    offset = source.at.offset
    for axis in axes:
        offset = offset - axis.windows.first * axis.stride
    count, apart = (1, UNIT) if image is None else (image.extent, source.at.coefficient(image))
    steps = apart, *(a.stride for a in axes)
    if any(exact_div(d, UNIT) is None for d in (offset, *steps)):
        raise NotLowered("its pixels are not aligned to 16 bytes")
    if not all(provably_le(0, s) for s in steps):
        raise NotLowered("its images are read backwards")
    images = OuterDim(count, apart)
    return WindowOperand(source.operand, offset, images, axes, channel, (image, *places))


def _by_place(operand: Operand, source: Load) -> dict[Axis, Axis]:
    """The tap axis that goes along with each axis of places: by what bounds both of them, or by
    their steps."""
    found: dict[Axis, Axis] = {}
    for tap in operand.inner[:-1]:
        bounded = [g for g in operand.guards if tap in g.free]
        places = [a for g in bounded for a in g.at.axes if a in operand.outer]
        if not bounded:
            apart = {a: _apart(source.at, a, tap) for a in operand.outer}
            places = [min(operand.outer, key=lambda a: apart[a])]
        if len(places) != 1 or places[0] in found:
            raise NotLowered("a tap is of no single axis of the images")
        found[places[0]] = tap
    return found


def _apart(at: Affine, place: Axis, tap: Axis) -> float:
    """How unlike the steps of windows and of taps are: those of one axis are its stride and its
    dilation, and those of two are lines or images apart."""
    steps = at.coefficient(place), at.coefficient(tap)
    one, other = (s if is_static(s) else upper_bound(s) for s in steps)
    return max(one / other, other / one) if one and other else float("inf")


def _image(operand: Operand, taps: dict[Axis, Axis]) -> tuple[Axis | None, tuple[Axis, ...]]:
    """The axis of images, where there is one, and those of windows."""
    first, *rest = operand.outer
    is_bounded = any(first in g.free for g in operand.guards)
    if first in taps or is_bounded or not rest:
        return None, operand.outer
    return first, tuple(rest)


def _axis(source: Load, guards: Sequence[Inside], place: Axis, tap: Axis | None) -> ImageAxis:
    """Where windows are along an axis."""
    own = [g for g in guards if place in g.free]
    if len(own) > 1 or any(g.low != 0 or g.at.axes - {place, tap} for g in own):
        raise NotLowered("a bound is of more than one axis")
    if own:
        at, extent = own[0].at, own[0].high
        step, first = at.coefficient(place), at.offset
        dilation = at.coefficient(tap) if tap else 0
    else:
        step, first, (dilation, extent) = _step(source, place, tap), 0, (0, place.extent)
        if tap:
            unit = exact_div(source.at.coefficient(place), step) or 1
            dilation = exact_div(source.at.coefficient(tap), unit) or -1
            extent = (place.extent - 1) * step + (tap.extent - 1) * dilation + 1
    if not (is_static(step) and is_static(dilation) and is_static(first)) or step < 1:
        raise NotLowered("the steps of its windows are not known")
    stride = exact_div(source.at.coefficient(place), step)
    moved = source.at.coefficient(tap) if tap else 0
    if stride is None or dilation < 0 or (tap is not None and moved != stride * dilation):
        raise NotLowered("its taps are not where its windows are")
    return ImageAxis(extent, stride, WindowAxis(place.extent, first, step), tap, dilation)


def _step(source: Load, place: Axis, tap: Axis | None) -> int:
    """Of windows that nothing bounds: the image is what they read."""
    steps = source.at.coefficient(place), source.at.coefficient(tap) if tap else 0
    if tap is None or steps[0] == steps[1]:
        return 1
    if not is_static(steps[0]) or not is_static(steps[1]):
        raise NotLowered("the steps of its windows are not known")
    return steps[0] // gcd(*steps)


def _is_in_reach(axis: ImageAxis, count: int) -> bool:
    """May windows start where they do, and are the taps near enough?"""
    reach, windows = REACH[count], axis.windows
    last = (windows.count - 1) * windows.step + windows.first - (axis.extent - 1)
    taps = axis.tap.extent if axis.tap else 1
    if not is_static(last) or not is_static(taps) or windows.step > MAX_STEP:
        return False
    return all(-reach <= n < reach for n in (windows.first, last, (taps - 1) * axis.dilation))
