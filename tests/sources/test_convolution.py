"""Convolutions and pools against SciPy, ONNX's reference and test cases, plain loops, and torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import signal

from rlx import ops
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.op import lookup
from tests.sources.onnx_cases import OnnxCase, cases, on_cases, padding
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "conv": "scipy.signal.correlate; ONNX's test cases of Conv",
    "conv_transpose": "ONNX's test cases of ConvTranspose; the transpose of conv's matrix",
    "depthwise_conv1d_causal": "scipy.signal.lfilter, whose zi is the state",
    "im2col": "plain loops; columns times kernels are scipy.signal.correlate",
    "col2im": "onnx.reference and ONNX's test cases of Col2Im",
    "deform_conv": "ONNX's test cases and onnx.reference of DeformConv",
    "max_pool": "plain loops; ONNX's test cases of MaxPool",
    "max_pool_with_indices": "plain loops; ONNX's test cases of MaxPool with two outputs",
    "max_unpool": "ONNX's test cases of MaxUnpool",
    "avg_pool": "plain loops; ONNX's test cases of AveragePool",
    "lp_pool": "plain loops; ONNX's test cases of LpPool",
    "global_avg_pool": "ONNX's test cases of GlobalAveragePool",
    "global_max_pool": "ONNX's test cases of GlobalMaxPool",
    "global_lp_pool": "numpy.linalg.norm of each image",
}
RNG = np.random.default_rng(11)


def whole(*dims: int) -> np.ndarray:
    """Whole numbers as floats: sums of products are exact, in any order."""
    return RNG.integers(-4, 5, dims).astype(np.float32)


def draw_geometry(axes: int, *, for_pool: bool = False) -> tuple[tuple[int, ...], dict[str, Any]]:
    """A kernel with its stride, padding and dilation."""
    kernel = tuple(int(k) for k in RNG.integers(1, 4, axes))
    dilation = tuple(int(d) for d in RNG.integers(1, 3, axes))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    most = [min(3, s) if for_pool else 3 for s in spans * 2]
    return kernel, {
        "stride": tuple(int(s) for s in RNG.integers(1, 4, axes)),
        "padding": tuple(int(RNG.integers(0, m)) for m in most),
        "dilation": dilation,
    }


def image_for(kernel: tuple[int, ...], dilation: tuple[int, ...], **_: Any) -> tuple[int, ...]:
    return tuple(d * (k - 1) + 1 + int(RNG.integers(0, 4)) for k, d in zip(kernel, dilation))


def windows_of(image, kernel, stride, padding, dilation, ceil=False):
    """Per axis and window, the positions of its taps, as ONNX says: the rule is
    floor or ceil((n + pads - span) / stride + 1), and no window starts past the data."""
    found = []
    for axis, n in enumerate(image):
        low, high = padding[axis], padding[axis + len(image)]
        span = dilation[axis] * (kernel[axis] - 1) + 1
        exact = (n + low + high - span) / stride[axis] + 1
        count = int(np.ceil(exact) if ceil else np.floor(exact))
        if ceil and (count - 1) * stride[axis] >= n + low:
            count -= 1
        starts = [t * stride[axis] - low for t in range(count)]
        found.append([[s + k * dilation[axis] for k in range(kernel[axis])] for s in starts])
    return found


def each_window(x, kernel, **geometry):
    """(place of the window, [(place in its image, value)], taps in the padded image)."""
    image, axes = x.shape[2:], x.ndim - 2
    ends = [n + geometry["padding"][a + axes] for a, n in enumerate(image)]
    lines = windows_of(image, kernel, **geometry)
    for place in itertools.product(*(range(len(line)) for line in lines)):
        taps = list(itertools.product(*(line[p] for line, p in zip(lines, place))))
        inside = [t for t in taps if all(0 <= i < n for i, n in zip(t, image))]
        padded = [t for t in taps if all(i < e for i, e in zip(t, ends))]
        yield place, inside, padded


def counts_of(image, kernel, **geometry) -> tuple[int, ...]:
    return tuple(map(len, windows_of(image, kernel, **geometry)))


# -- convolution ----------------------------------------------------------------------------------


def by_scipy(x, w, stride, padding, dilation, groups):
    """Each pair of channels correlated over the padded image, then strided."""
    axes, (o, i, *kernel) = len(stride), w.shape
    wide = np.pad(x, [(0, 0), (0, 0), *zip(padding[:axes], padding[axes:])]).astype(np.float64)
    sparse = np.zeros((o, i, *(d * (k - 1) + 1 for k, d in zip(kernel, dilation))))
    sparse[(..., *(slice(None, None, d) for d in dilation))] = w
    rows = []
    for n, q in itertools.product(range(len(x)), range(o)):
        first = q // (o // groups) * i
        pairs = [signal.correlate(wide[n, first + c], sparse[q, c], "valid") for c in range(i)]
        rows.append(np.sum(pairs, axis=0)[tuple(slice(None, None, s) for s in stride)])
    return np.reshape(rows, (len(x), o, *rows[0].shape))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_is_scipys_correlation(axes, groups):
    for _ in range(4):
        kernel, geometry = draw_geometry(axes)
        image = image_for(kernel, **geometry)
        x, w, bias = whole(2, 4, *image), whole(6, 4 // groups, *kernel), whole(6)
        want = by_scipy(x, w, **geometry, groups=groups)
        got = ops.conv(x, w, **geometry, groups=groups)
        # whole numbers below 2^24: exact in f32; SciPy may go through an FFT in f64
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
        with_bias = ops.conv(x, w, bias, **geometry, groups=groups)
        np.testing.assert_array_equal(with_bias, got + bias.reshape(-1, *[1] * axes))


@on_cases("conv", "Conv")
def test_conv_on_onnx_cases(case: OnnxCase):
    x, w = case.inputs
    got = ops.conv(x, w, stride=case.attrs.get("strides", ()), padding=pads_of(case, w.shape[2:]))
    np.testing.assert_array_equal(got, case.outputs[0])


def pads_of(case: OnnxCase, kernel: tuple[int, ...]) -> tuple[int, ...]:
    dilations = case.attrs.get("dilations", (1,) * len(kernel))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations)]
    return padding(case.attrs, case.inputs[0].shape[2:], spans)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_is_the_transpose_of_conv(axes, groups):
    """⟨conv(a), b⟩ = ⟨a, conv_transpose(b)⟩ for every a and b, exactly in whole numbers."""
    for _ in range(4):
        kernel, geometry = draw_geometry(axes)
        image = image_for(kernel, **geometry)
        a, w = whole(2, 4, *image), whole(6, 4 // groups, *kernel)
        forward = ops.conv(a, w, **geometry, groups=groups)
        b = whole(*forward.shape)
        seen = [line[-1][-1] + 1 for line in windows_of(image, kernel, **geometry)]
        more = tuple(n + p - e for n, p, e in zip(image, geometry["padding"][axes:], seen))
        back = ops.conv_transpose(b, w, **geometry, groups=groups, output_padding=more)
        assert back.shape == a.shape
        sums = [np.sum(p * q, dtype=np.float64) for p, q in ((forward, b), (a, back))]
        assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("kernel", "geometry"),
    [
        ((9,), {"stride": (4,), "padding": (1, 2), "output_padding": (1,)}),
        ((12, 7), {}),
        ((3, 1), {"stride": (2, 1), "dilation": (1, 2), "padding": (2, 0, 2, 1)}),
        ((2, 3), {"stride": (2, 2), "dilation": (2, 1)}),
    ],
)
def test_lowered_transposed_convolutions_are_what_they_were(kernel, geometry):
    """Kernels larger than the image and smaller, every residue of a stride, and what is cut off."""
    rng, declared = np.random.default_rng(0), lookup("conv_transpose")
    x = rng.integers(-8, 8, (2, 3, *(2, 3)[: len(kernel)])).astype(np.float64)
    w = rng.integers(-8, 8, (3, 2, *kernel)).astype(np.float64)
    graph = Graph("g")
    nodes = [graph.input(f"x{i}", Shape(a.shape, "f64")) for i, a in enumerate((x, w))]
    node = graph.node(declared, nodes, declared.canonical(geometry, [n.shape for n in nodes]))
    got = declared.lower(x, w, **node.attrs)
    np.testing.assert_array_equal(got, declared(x, w, **geometry))


@on_cases("convtranspose", "ConvTranspose")
def test_conv_transpose_on_onnx_cases(case: OnnxCase):
    (x, w), attrs, axes = case.inputs, case.attrs, case.inputs[0].ndim - 2
    stride, dilation = attrs.get("strides", (1,) * axes), attrs.get("dilations", (1,) * axes)
    more, pads = attrs.get("output_padding", (0,) * axes), attrs.get("pads", (0,) * (2 * axes))
    free = [(m - 1) * s + d * (k - 1) + 1 + p for m, s, d, k, p in
            zip(x.shape[2:], stride, dilation, w.shape[2:], more)]  # fmt: skip
    wanted = attrs.get("output_shape", ())[-axes:]
    if attrs.get("auto_pad") == "SAME_UPPER":
        wanted = [m * s for m, s in zip(x.shape[2:], stride)]
    if len(wanted):
        cut = [f - n for f, n in zip(free, wanted)]
        more = tuple(p + max(0, -c) for p, c in zip(more, cut))
        half = [max(0, c) // 2 for c in cut]
        pads = (*half, *(max(0, c) - h for c, h in zip(cut, half)))
    got = ops.conv_transpose(
        x, w, stride=stride, padding=tuple(pads), dilation=dilation, output_padding=more,
        groups=attrs.get("group", 1),
    )  # fmt: skip
    np.testing.assert_array_equal(got, case.outputs[0])


def test_depthwise_causal_is_scipys_filter():
    x, w, k = RNG.normal(size=(2, 9, 3)), RNG.normal(size=(3, 4)), 4
    got = ops.depthwise_conv1d_causal(x, w)
    for n, c in itertools.product(range(2), range(3)):
        want = signal.lfilter(w[c, ::-1], [1.0], x[n, :, c])
        np.testing.assert_allclose(got[n, :, c], want, rtol=0, atol=1e-14)  # 4 products of f64
    for cut in range(10):
        first, second = x[:, :cut], x[:, cut:]
        state = ops.causal_conv_state(first, size=k - 1)
        parts = [ops.depthwise_conv1d_causal(first, w),
                 ops.depthwise_conv1d_causal(second, w, state)]  # fmt: skip
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), got)


# -- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_im2col_is_the_plain_loop(axes):
    kernel, geometry = draw_geometry(axes)
    image = image_for(kernel, **geometry)
    x = whole(2, 3, *image)
    got = ops.im2col(x, kernel=kernel, **geometry)
    columns = []
    for place in itertools.product(*map(range, counts_of(image, kernel, **geometry))):
        lines = [w[p] for w, p in zip(windows_of(image, kernel, **geometry), place)]
        taps = [
            x[(..., *t)] if all(0 <= i < n for i, n in zip(t, image)) else np.zeros((2, 3))
            for t in itertools.product(*lines)
        ]
        columns.append(np.stack(taps, axis=2).reshape(2, -1))
    np.testing.assert_array_equal(got, np.stack(columns, axis=2))
    w = whole(5, 3, *kernel)
    product = (w.reshape(5, -1) @ got).reshape(2, 5, *counts_of(image, kernel, **geometry))
    np.testing.assert_allclose(product, by_scipy(x, w, **geometry, groups=1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("axes", [2, 3])
def test_col2im_is_onnxs(axes):
    for _ in range(3):
        kernel, geometry = draw_geometry(axes)
        image = image_for(kernel, **geometry)
        count = int(np.prod(counts_of(image, kernel, **geometry)))
        x = whole(2, 3 * int(np.prod(kernel)), count)
        attrs = {"strides": geometry["stride"], "pads": geometry["padding"],
                 "dilations": geometry["dilation"]}  # fmt: skip
        (want,) = run_onnx("Col2Im", [x, np.array(image), np.array(kernel)], attrs)
        np.testing.assert_array_equal(ops.col2im(x, image=image, kernel=kernel, **geometry), want)


@on_cases("col2im", "Col2Im")
def test_col2im_on_onnx_cases(case: OnnxCase):
    x, image, kernel = case.inputs
    got = ops.col2im(
        x, image=tuple(map(int, image)), kernel=tuple(map(int, kernel)),
        stride=case.attrs.get("strides", ()), padding=case.attrs.get("pads", ()),
        dilation=case.attrs.get("dilations", ()),
    )  # fmt: skip
    np.testing.assert_array_equal(got, case.outputs[0])


@on_cases("deformconv", "DeformConv")
def test_deform_conv_on_onnx_cases(case: OnnxCase):
    x, w, offset, bias, mask = (*case.inputs, None, None)[:5]
    got = ops.deform_conv(
        x, w, offset, mask, padding=case.attrs["pads"],
        offset_groups=case.attrs.get("offset_group", 1),
    )  # fmt: skip
    got = got if bias is None else got + bias[:, None, None]
    # a handful of products of numbers below 100
    np.testing.assert_allclose(got, case.outputs[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("groups", "movers"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_deform_conv_is_onnxs(groups, movers):
    for has_mask in (False, True):
        kernel, geometry = draw_geometry(2)
        image = tuple(n + 1 for n in image_for(kernel, **geometry))  # ONNX's divides by n - 1
        counts, taps = counts_of(image, kernel, **geometry), int(np.prod(kernel))
        x, w = RNG.normal(size=(2, 4, *image)), RNG.normal(size=(6, 4 // groups, *kernel))
        offset = RNG.normal(size=(2, movers * taps * 2, *counts)) * 2
        mask = RNG.random((2, movers * taps, *counts)) if has_mask else None
        attrs = {"strides": geometry["stride"], "pads": geometry["padding"],
                 "dilations": geometry["dilation"], "group": groups, "offset_group": movers,
                 "kernel_shape": kernel}  # fmt: skip
        (want,) = run_onnx("DeformConv", [x, w, offset, None, mask], attrs)
        got = ops.deform_conv(x, w, offset, mask, **geometry, groups=groups, offset_groups=movers)
        # ONNX's samples in f32: 36 roundings of 6e-8 times values below 5 or so
        np.testing.assert_allclose(got, want, rtol=0, atol=36 * 6e-8 * 5)


# -- pools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("ceil", [False, True])
def test_pools_are_the_plain_loop(axes, ceil):
    for _ in range(4):
        kernel, geometry = draw_geometry(axes, for_pool=True)
        geometry["ceil"] = ceil
        x = whole(2, 3, *image_for(kernel, **geometry))
        x[0] += np.arange(x[0].size).reshape(x[0].shape) / 1024  # so that greatest are unique
        counts = counts_of(x.shape[2:], kernel, **geometry)
        most, means, wide, norms = (np.zeros((2, 3, *counts)) for _ in range(4))
        where = np.zeros(most.shape, np.int64)
        for place, inside, padded in each_window(x, kernel, **geometry):
            for n, c in itertools.product(range(2), range(3)):
                seen = [float(x[(n, c, *t)]) for t in inside]
                at = (n, c, *place)
                most[at] = max(seen, default=-np.inf)
                first = next((t for t, v in zip(inside, seen) if v == most[at]), None)
                where[at] = -1 if first is None else np.ravel_multi_index((n, c, *first), x.shape)
                means[at] = sum(seen) / max(1, len(seen))
                wide[at] = sum(seen) / max(1, len(padded))
                norms[at] = sum(abs(v) ** 3 for v in seen) ** (1 / 3)
        got, indices = ops.max_pool_with_indices(x, kernel=kernel, **geometry)
        np.testing.assert_array_equal(got, most)
        np.testing.assert_array_equal(indices, where)
        np.testing.assert_array_equal(ops.max_pool(x, kernel=kernel, **geometry), most)
        close = {"rtol": 1e-5, "atol": 1e-5}  # 27 terms below 10 in f32, and a cube root
        np.testing.assert_allclose(ops.avg_pool(x, kernel=kernel, **geometry), means, **close)
        counted = ops.avg_pool(x, kernel=kernel, **geometry, count_include_pad=True)
        np.testing.assert_allclose(counted, wide, **close)
        np.testing.assert_allclose(ops.lp_pool(x, kernel=kernel, **geometry, p=3), norms, **close)


def geometry_of(case: OnnxCase) -> dict[str, Any]:
    attrs = case.attrs
    return {
        "kernel": attrs["kernel_shape"],
        "stride": attrs.get("strides", ()),
        "padding": pads_of(case, attrs["kernel_shape"]),
        "dilation": attrs.get("dilations", ()),
        "ceil": bool(attrs.get("ceil_mode", 0)),
    }


@on_cases("maxpool", "MaxPool")
def test_max_pool_on_onnx_cases(case: OnnxCase):
    (x,), geometry = case.inputs, geometry_of(case)
    np.testing.assert_array_equal(ops.max_pool(x, **geometry), case.outputs[0])
    order = bool(case.attrs.get("storage_order", 0))
    got, indices = ops.max_pool_with_indices(x, **geometry, column_major=order)
    np.testing.assert_array_equal(got, case.outputs[0])
    if len(case.outputs) > 1:
        np.testing.assert_array_equal(indices, case.outputs[1])


@on_cases("averagepool", "AveragePool")
def test_avg_pool_on_onnx_cases(case: OnnxCase):
    counts = bool(case.attrs.get("count_include_pad", 0))
    got = ops.avg_pool(case.inputs[0], **geometry_of(case), count_include_pad=counts)
    # a mean of at most 125 numbers below 5 in f32, summed in another order; one case states its
    # expected numbers with four digits
    has_digits = case.name == "test_averagepool_2d_ceil_last_window_starts_on_pad"
    atol = 1e-4 if has_digits else 1e-6
    np.testing.assert_allclose(got, case.outputs[0], rtol=1e-5, atol=atol)


@on_cases("lppool", "LpPool")
def test_lp_pool_on_onnx_cases(case: OnnxCase):
    got = ops.lp_pool(case.inputs[0], **geometry_of(case), p=float(case.attrs["p"]))
    # a root of a sum of at most 27 powers in f32; ONNX's goes through a mean
    np.testing.assert_allclose(got, case.outputs[0], rtol=1e-5, atol=0)


@on_cases("maxunpool", "MaxUnpool")
def test_max_unpool_on_onnx_cases(case: OnnxCase):
    """An output shape leaves room after the image that the kernel and stride give."""
    x, indices, *more = case.inputs
    strides, kernel = case.attrs["strides"], case.attrs["kernel_shape"]
    image = tuple((m - 1) * s + k for m, s, k in zip(x.shape[2:], strides, kernel))
    got = ops.max_unpool(x, indices, image=image)
    want = case.outputs[0]
    high = tuple(int(n) for n in np.subtract(want.shape, got.shape))
    np.testing.assert_array_equal(ops.pad(got, low=(0,) * 4, high=high), want)
    assert bool(more) == any(high)


def test_max_unpool_puts_back_what_max_pool_took():
    x = RNG.permutation(96).reshape(2, 3, 4, 4).astype(np.float32) + 1
    got, indices = ops.max_pool_with_indices(x, kernel=(2, 2), stride=(2, 2))
    back = ops.max_unpool(got, indices, image=(4, 4))
    np.testing.assert_array_equal(back, np.where(np.isin(x, got), x, 0))
    with pytest.raises(Error, match="out of range"):
        ops.max_unpool(got, indices + 96, image=(4, 4))


def test_indices_by_columns_are_those_of_turned_images():
    x = whole(2, 3, 5, 4)
    geometry = {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 1, 0, 1)}
    by_rows = ops.max_pool_with_indices(x, **geometry)[1]
    by_columns = ops.max_pool_with_indices(x, **geometry, column_major=True)[1]
    n, c, row, column = np.unravel_index(by_rows, x.shape)
    turned = np.ravel_multi_index((n, c, column, row), (2, 3, 4, 5))
    np.testing.assert_array_equal(by_columns, turned)


@pytest.mark.parametrize(
    ("name", "page", "op_type"),
    [
        ("global_avg_pool", "globalaveragepool", "GlobalAveragePool"),
        ("global_max_pool", "globalmaxpool", "GlobalMaxPool"),
    ],
)
def test_global_pools_on_onnx_cases(name, page, op_type):
    found = cases(page, op_type)
    assert found
    for case in found:
        got = lookup(name)(case.inputs[0])
        np.testing.assert_allclose(got, case.outputs[0], rtol=1e-6, atol=1e-7)  # a mean of 25


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_global_lp_pool_is_the_norm(p):
    x = RNG.normal(size=(2, 3, 4, 5))
    want = np.linalg.norm(x.reshape(2, 3, 20), ord=p, axis=-1).reshape(2, 3, 1, 1)
    np.testing.assert_allclose(ops.global_lp_pool(x, p=p), want, rtol=1e-13)  # 20 terms of f64


def test_what_does_not_fit_is_refused():
    x, w = Shape([1, 4, 5]), Shape([4, 2, 3])
    with pytest.raises(GraphError, match="output_padding"):
        lookup("conv_transpose")(x, w, output_padding=(1, 1))
    with pytest.raises(GraphError, match="3 groups"):
        lookup("conv_transpose")(x, w, groups=3)
    with pytest.raises(GraphError, match="would have -1"):
        lookup("conv_transpose")(x, w, padding=(4, 4))
    with pytest.raises(GraphError, match="one per window"):
        lookup("col2im")(Shape([1, 4, 5]), image=(3, 3), kernel=(2, 2))
    with pytest.raises(GraphError, match="operand 2"):
        lookup("depthwise_conv1d_causal")(Shape([1, 4, 5]), Shape([5, 3]), Shape([1, 3, 5]))
    with pytest.raises(GraphError, match="operand 2"):
        lookup("deform_conv")(Shape([1, 4, 5, 5]), Shape([4, 4, 3, 3]), Shape([1, 9, 3, 3]))


# -- torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_torch_agrees(axes):
    """A second source: torch has symmetric padding only."""
    torch = pytest.importorskip("torch", reason="torch is installed for tests that ask for it")
    f = torch.nn.functional
    kernel, geometry = draw_geometry(axes, for_pool=True)
    pads = tuple(min(p, k // 2) for p, k in zip(geometry["padding"], kernel))
    geometry["padding"] = pads * 2
    x, w = whole(2, 4, *image_for(kernel, **geometry)), whole(6, 2, *kernel)
    given = {"stride": geometry["stride"], "padding": pads, "dilation": geometry["dilation"]}
    want = getattr(f, f"conv{axes}d")(torch.tensor(x), torch.tensor(w), groups=2, **given)
    np.testing.assert_array_equal(ops.conv(x, w, **geometry, groups=2), want.numpy())
    back = getattr(f, f"conv_transpose{axes}d")(want, torch.tensor(w), groups=2, **given)
    got = ops.conv_transpose(want.numpy(), w, **geometry, groups=2)
    np.testing.assert_array_equal(got, back.numpy())
    most = getattr(f, f"max_pool{axes}d")(torch.tensor(x), kernel, ceil_mode=True, **given)
    got = ops.max_pool(x, kernel=kernel, **geometry, ceil=True)
    np.testing.assert_array_equal(got, most.numpy())
    geometry["dilation"], given["dilation"] = (1,) * axes, None
    del given["dilation"]
    for counts in (False, True):
        mean = getattr(f, f"avg_pool{axes}d")(
            torch.tensor(x), kernel, ceil_mode=True, count_include_pad=counts, **given
        )
        attrs = {**geometry, "ceil": True, "count_include_pad": counts}
        got = ops.avg_pool(x, kernel=kernel, **attrs)
        np.testing.assert_allclose(got, mean.numpy(), rtol=1e-6, atol=1e-6)  # one division
