"""Convolution and pooling over images: NCHW activations, OIHW weights.

Padding is (top, left, bottom, right). A window starts every `stride` rows and columns and takes
`dilation` steps between its taps; along one axis there are (n + pads - span) // stride + 1 of
them, where span = dilation * (taps - 1) + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx import ops
from rlx.dim import Dim, DimLike, dim_max, dim_min
from rlx.draw import Draw, Spec
from rlx.dtype import DType
from rlx.errors import GraphError, UnsupportedError
from rlx.op import Array, Kind, op
from rlx.shape import Shape

Ints = tuple[int, ...]
MAX_TAPS = 256
"""A lowering writes one slice per tap: past this many a target needs a kernel of its own."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows lie in an image. `ceil` adds one that runs over the end of the padding, as
    long as it starts before the data ends."""

    kernel: tuple[DimLike, ...]
    stride: Ints
    padding: Ints
    dilation: Ints
    ceil: bool = False

    def check(self) -> None:
        """Every number is there and in its range."""
        for name, values, count, least in (
            ("stride", self.stride, 2, 1),
            ("padding", self.padding, 4, 0),
            ("dilation", self.dilation, 2, 1),
            ("kernel", self.kernel, 2, 1),
        ):
            if len(values) != count or any(not isinstance(v, Dim) and v < least for v in values):
                shown = ", ".join(map(str, values))
                raise GraphError(f"{name}: expected {count} numbers from {least}, got ({shown})")

    @property
    def spans(self) -> tuple[DimLike, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    def counts(self, image: Sequence[DimLike]) -> tuple[DimLike, ...]:
        """How many windows there are, down and across."""
        return tuple(self._count(axis, n) for axis, n in enumerate(image))

    def _count(self, axis: int, n: DimLike) -> DimLike:
        before, after, step = self.padding[axis], self.padding[axis + 2], self.stride[axis]
        whole, span = n + before + after, self.spans[axis]
        room = whole - span
        if not isinstance(room, Dim) and room < 0:
            name = ("height", "width")[axis]
            raise GraphError(f"the window spans {span}, but the padded {name} is {whole}")
        if not self.ceil:
            return room // step + 1
        return dim_min((room + step - 1) // step + 1, (n + before - 1) // step + 1)

    def reach(self, image: Sequence[DimLike]) -> tuple[DimLike, ...]:
        """(top, left, bottom, right) that the windows read outside of the image."""
        after: list[DimLike] = []
        for axis, (n, count) in enumerate(zip(image, self.counts(image))):
            end = (count - 1) * self.stride[axis] + self.spans[axis]
            after.append(dim_max(0, end - n - self.padding[axis]))
        return (*self.padding[:2], *after)

    def taps(self, x: Array, fill: Any) -> Array:
        """[n, c, rows, columns, kernel height, kernel width]: what each window sees."""
        image = x.shape[2:]
        return self.seen(np.pad(x, _margins(self.reach(image)), constant_values=fill), image)

    def seen(self, padded: Array, image: Sequence[int]) -> Array:
        """The same of an image that has been padded to its reach, or further."""
        every = sliding_window_view(padded, tuple(int(s) for s in self.spans), (2, 3))
        (down, across), (i, j) = self.stride, self.dilation
        rows, columns = (int(c) for c in self.counts(image))
        return every[:, :, ::down, ::across, ::i, ::j][:, :, :rows, :columns]

    def shifts(self, x: Any, value: float) -> list[Any]:
        """The taps in table ops: for each, the image shifted and strided."""
        image = shape_of(x).dims[2:]
        return self.shifted(padded(x, self.reach(image), value), image)

    def shifted(self, x: Any, image: Sequence[DimLike]) -> list[Any]:
        """The same of an image that has been padded to its reach, or further."""
        counts, outer = self.counts(image), shape_of(x).dims[:2]
        found: list[Any] = []
        for tap in np.ndindex(*self._small()):
            starts = [int(t) * d for t, d in zip(tap, self.dilation)]
            stops = [s + (m - 1) * step + 1 for s, m, step in zip(starts, counts, self.stride)]
            found.append(ops.slice(x, starts=(0, 0, *starts), stops=(*outer, *stops),
                                   steps=(1, 1, *self.stride)))  # fmt: skip
        return found

    def _small(self) -> Ints:
        """The kernel's size, where a slice per tap is a sensible way to write it."""
        sizes = tuple(k for k in self.kernel if not isinstance(k, Dim))
        if len(sizes) != len(self.kernel) or sizes[0] * sizes[1] > MAX_TAPS:
            shown = " x ".join(map(str, self.kernel))
            raise UnsupportedError(f"a kernel of {shown} is lowered only up to {MAX_TAPS} taps")
        return sizes


def shape_of(value: Any) -> Shape:
    """The shape of a node or an array."""
    return value.shape if isinstance(value.shape, Shape) else Shape(value.shape, value.dtype)


def padded(x: Any, reach: Sequence[DimLike], value: float) -> Any:
    """An image with (top, left, bottom, right) more of `value`, in table ops."""
    if all(not isinstance(r, Dim) and r == 0 for r in reach):
        return x
    return ops.pad(x, low=(0, 0, *reach[:2]), high=(0, 0, *reach[2:]), value=value)


def _margins(reach: Sequence[DimLike]) -> list[tuple[int, int]]:
    top, left, bottom, right = (int(r) for r in reach)
    return [(0, 0), (0, 0), (top, bottom), (left, right)]


# -- convolution ----------------------------------------------------------------------------------


def _conv2d_shape(x: Shape, w: Shape, *_: Shape, groups: int, **geometry: Any) -> Shape:
    n, c, *image = x.dims
    o, i, *kernel = w.dims
    windows = Windows(tuple(kernel), **geometry)
    windows.check()
    if groups < 1 or i * groups != c:
        raise GraphError(f"x has {c} channels, but w takes {i} in each of {groups} groups")
    if o % groups != 0:
        raise GraphError(f"w gives {o} channels, which {groups} groups do not divide")
    return Shape([n, o, *windows.counts(image)], x.dtype)


@op(
    "f[n c h w], f[o i kh kw], f[o]? -> f[n o ...]",
    kind=Kind.CONVOLUTION,
    shape=_conv2d_shape,
    flops="2*out*i*kh*kw",
)
def conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Array:
    """Sums over windows of the zero-padded image against each kernel. Input and output channels
    are cut into `groups` that see only each other; `bias` is added per output channel."""
    o, i, kh, kw = w.shape
    taps = Windows((kh, kw), stride, padding, dilation).taps(x, 0)
    n, _, rows, columns = taps.shape[:4]
    grouped = taps.reshape(n, groups, i, rows, columns, kh, kw).transpose(0, 1, 3, 4, 2, 5, 6)
    flat = grouped.reshape(n, groups, rows * columns, i * kh * kw)
    kernels = w.reshape(groups, o // groups, i * kh * kw).transpose(0, 2, 1)
    sums = np.matmul(flat, kernels).transpose(0, 1, 3, 2).reshape(n, o, rows, columns)
    return sums if bias is None else sums + bias[:, None, None]


@conv2d.lowering
def _(x: Any, w: Any, bias: Any = None, *, groups: int, **geometry: Any) -> Any:
    shape = _conv2d_shape(shape_of(x), shape_of(w), groups=groups, **geometry)
    n, o, rows, columns = shape.dims
    _, i, kh, kw = shape_of(w).dims
    taps = Windows((kh, kw), **geometry).shifts(x, 0.0)
    many = [ops.reshape(t, dims=(n, groups, i, 1, rows * columns)) for t in taps]
    seen = ops.reshape(ops.concat(many, axis=3), dims=(n, groups, i * kh * kw, rows * columns))
    kernels = ops.reshape(w, dims=(groups, o // groups, i * kh * kw))
    sums = ops.reshape(ops.matmul(kernels, seen), dims=(n, o, rows, columns))
    return sums if bias is None else ops.add(sums, ops.reshape(bias, dims=(o, 1, 1)))


def _draw_windows(draw: Draw) -> dict[str, Any]:
    return {
        "stride": (draw.integer(1, 3), draw.integer(1, 2)),
        "padding": tuple(draw.integer(0, 2) for _ in range(4)),
        "dilation": (draw.integer(1, 2), draw.integer(1, 3)),
    }


def _draw_image(draw: Draw, kernel: Ints, windows: dict[str, Any]) -> list[int]:
    """A height and width that the kernel fits into."""
    given = Windows(kernel, **windows)
    least = [int(s) - given.padding[a] - given.padding[a + 2] for a, s in enumerate(given.spans)]
    return [max(0, n) + draw.integer(0, 4) for n in least]


@conv2d.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    windows, groups, dtype = _draw_windows(draw), draw.integer(1, 3), draw.dtype("f")
    per_group, kernel = draw.integer(1, 3), (draw.integer(1, 3), draw.integer(1, 3))
    image = _draw_image(draw, kernel, windows)
    outputs = groups * draw.integer(0, 3)
    specs = [
        Spec((draw.size(), groups * per_group, *image), dtype, "plain"),
        Spec((outputs, per_group, *kernel), dtype, "plain"),
    ]
    bias = [Spec((outputs,), dtype, "plain")] if draw.coin() else []
    return [*specs, *bias], {**windows, "groups": groups}


# -- pooling --------------------------------------------------------------------------------------


def _pool_shape(x: Shape, *, count_include_pad: bool = False, **geometry: Any) -> Shape:
    windows = Windows(**geometry)
    windows.check()
    for axis, span in enumerate(windows.spans):
        pads = windows.padding[axis], windows.padding[axis + 2]
        if not isinstance(span, Dim) and max(pads) >= span:
            raise GraphError(f"padding: {windows.padding} is not less than the window's {span}")
    return Shape([*x.dims[:2], *windows.counts(x.dims[2:])], x.dtype)


def _pool_flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
    return results[0].num_elements * attrs["kernel"][0] * attrs["kernel"][1]


@op("n[n c h w] -> n[n c ...]", kind=Kind.SPECIAL, shape=_pool_shape, flops=_pool_flops)
def max_pool2d(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil: bool = False,
) -> Array:
    """The greatest element of each window; padding never wins, a NaN does. A window without data
    gives the least value of the dtype."""
    windows = Windows(kernel, stride, padding, dilation, ceil)
    return windows.taps(x, _lowest(DType.of(x.dtype))).max((4, 5))


def _lowest(dtype: DType) -> float:
    """What never wins: an integer dtype's least is 0 or a power of two, so a float holds it."""
    return float(np.iinfo(dtype.numpy).min) if dtype.is_integer else -np.inf


@max_pool2d.lowering
def _(x: Any, **geometry: Any) -> Any:
    best, *rest = Windows(**geometry).shifts(x, _lowest(DType.of(x.dtype)))
    for tap in rest:
        best = ops.maximum(best, tap)
    return best


@op("f[n c h w] -> f[n c ...]", kind=Kind.SPECIAL, shape=_pool_shape, flops=_pool_flops)
def avg_pool2d(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """The mean of each window. `count_include_pad` divides by padding too, though never by what
    `ceil` reaches past it. A window that counts nothing gives 0."""
    windows = Windows(kernel, stride, padding, dilation, ceil)
    sums = windows.taps(x, 0).sum((4, 5))
    image = x.shape[2:]
    inner, outer = _counted(windows, image, count_include_pad)
    ones = np.pad(np.ones((1, 1, *image), x.dtype), _margins(inner), constant_values=1)
    counts = windows.seen(np.pad(ones, _margins(outer)), image).sum((4, 5))
    return np.divide(sums, counts, out=np.zeros_like(sums), where=counts != 0)


def _counted(
    windows: Windows, image: Sequence[DimLike], count_include_pad: bool
) -> tuple[Sequence[DimLike], Sequence[DimLike]]:
    """What the windows reach outside of the image: the part that counts, and the rest."""
    reach = windows.reach(image)
    if not count_include_pad:
        return (0, 0, 0, 0), reach
    return windows.padding, [dim_max(0, r - p) for r, p in zip(reach, windows.padding)]


@avg_pool2d.lowering
def _(x: Any, *, count_include_pad: bool, **geometry: Any) -> Any:
    windows = Windows(**geometry)
    total = _added(windows.shifts(x, 0.0))
    area = geometry["kernel"][0] * geometry["kernel"][1]
    is_whole = not windows.ceil and (count_include_pad or not any(windows.padding))
    if is_whole:
        return ops.div(total, float(area))
    image = shape_of(x).dims[2:]
    inner, outer = _counted(windows, image, count_include_pad)
    ones = padded(ops.expand(_one_like(x), dims=(1, 1, *image)), inner, 1.0)
    counts = _added(windows.shifted(padded(ones, outer, 0.0), image))
    return ops.div(total, ops.maximum(counts, 1.0))


def _added(taps: Sequence[Any]) -> Any:
    total = taps[0]
    for tap in taps[1:]:
        total = ops.add(total, tap)
    return total


def _one_like(x: Any) -> Any:
    one = np.ones((1, 1, 1, 1), DType.of(x.dtype).numpy)
    return x.graph.constant(one) if hasattr(x, "graph") else one


def _draw_pool(draw: Draw, letter: str) -> tuple[list[Spec], dict[str, Any]]:
    kernel = (draw.integer(1, 3), draw.integer(1, 3))
    windows = _draw_windows(draw)
    spans = Windows(kernel, **windows).spans
    windows["padding"] = tuple(
        min(p, int(spans[i % 2]) - 1) for i, p in enumerate(windows["padding"])
    )
    image = _draw_image(draw, kernel, windows)
    spec = Spec((draw.size(), draw.size(), *image), draw.dtype(letter))
    return [spec], {**windows, "kernel": kernel, "ceil": draw.coin()}


@max_pool2d.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    return _draw_pool(draw, "n")


@avg_pool2d.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    (spec,), attrs = _draw_pool(draw, "f")
    plain = Spec(spec.dims, spec.dtype, "plain")
    return [plain], {**attrs, "count_include_pad": draw.coin()}


@op("f[n c h w] -> f[n c 1 1]", kind=Kind.REDUCTION, flops="size0")
def global_avg_pool2d(x: Array) -> Array:
    """The mean of each channel's image; of an empty one it is NaN."""
    return x.sum((2, 3), keepdims=True) / (x.shape[2] * x.shape[3])


@global_avg_pool2d.lowering
def _(x: Any) -> Any:
    return ops.mean(x, axes=(2, 3), keepdims=True)
