"""Convolution and pooling against plain loops and worked numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim, evaluate
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir import interpret
from rlx.ir.mir import Graph
from rlx.ops.op import lookup

F32 = DType.F32
RNG = np.random.default_rng(7)


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


def plain_conv2d(x, w, bias, stride, padding, dilation, groups):
    """One output at a time, in f64."""
    top, left, bottom, right = padding
    n, _, height, width = x.shape
    o, i, kh, kw = w.shape
    rows = (height + top + bottom - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    columns = (width + left + right - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, o, rows, columns))
    for b, q, r, s in itertools.product(range(n), range(o), range(rows), range(columns)):
        group = q // (o // groups)
        for k, u, v in itertools.product(range(i), range(kh), range(kw)):
            a = r * stride[0] - top + u * dilation[0]
            e = s * stride[1] - left + v * dilation[1]
            if 0 <= a < height and 0 <= e < width:
                y[b, q, r, s] += float(x[b, group * i + k, a, e]) * float(w[q, k, u, v])
        y[b, q, r, s] += 0 if bias is None else bias[q]
    return y


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("has_bias", [True, False])
def test_conv2d_is_the_plain_loop(groups, has_bias):
    x, w = normal(2, 4, 6, 5), normal(4, 4 // groups, 3, 2)
    bias = normal(4) if has_bias else None
    geometry = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": groups}
    got = ops.conv2d(x, w, bias, **geometry)
    want = plain_conv2d(x, w, bias, **geometry)
    # at most 24 products: 25 roundings of eps times terms that are below 20
    np.testing.assert_allclose(got, want, rtol=0, atol=25 * 2**-23 * 20)


def test_conv2d_has_floor_division_dims():
    h = Dim("h", 3, 512)
    x, w = Shape([rlx.sym.BATCH, 3, h, 32], F32), Shape([8, 3, 3, 3], F32)
    made = lookup("conv2d")(x, w, stride=(2, 2), padding=(1, 1, 1, 1))
    assert made.dims[0] == rlx.sym.BATCH
    for size in (3, 4, 17, 512):
        concrete = lookup("conv2d")(
            Shape([1, 3, size, 32], F32), w, stride=(2, 2), padding=(1, 1, 1, 1)
        )
        assert evaluate(made.dims[2], {"h": size}) == concrete.dims[2]


@pytest.mark.parametrize("op", ["conv2d", "max_pool2d", "avg_pool2d", "stft"])
def test_strided_windows_lower_over_named_dims(op):
    """The lowering holds for every size in the range: slices are proved to be inside."""
    n = Dim("n", 8, 64)
    g = Graph("open")
    if op == "stft":
        operands, attrs = [g.input("x", Shape([n], F32))], {"n_fft": 8, "hop": 3}
    else:
        operands = [g.input("x", Shape([1, 2, n, 9], F32))]
        attrs = {"stride": (2, 3), "padding": (1, 0, 1, 0)}
        if op == "conv2d":
            operands.append(g.input("w", Shape([4, 2, 3, 3], F32)))
        else:
            attrs |= {"kernel": (3, 2)}
    decl = lookup(op)
    node = g.node(decl, operands, attrs)
    g.set_outputs([node, *decl.lowered(operands, node.attrs)])
    for size in (8, 9, 10, 11):
        dims = [s.shape.bind({"n": size}).static_dims for s in operands]
        values = {o.attrs["name"]: normal(*d) for o, d in zip(operands, dims)}
        whole, lowered = interpret.evaluate(g, values)
        # at most 18 products of numbers below 5
        np.testing.assert_allclose(lowered, whole, rtol=0, atol=19 * 2**-23 * 25)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "reason"),
    [
        ([1, 4, 5, 5], [4, 3, 3, 3], {}, "4 channels"),
        ([1, 4, 5, 5], [3, 2, 3, 3], {"groups": 2}, "2 groups do not divide"),
        ([1, 4, 2, 5], [3, 4, 3, 3], {}, "spans 3, but the padded axis 2 is 2"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"stride": (0, 1)}, "stride"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"padding": (1, 1)}, "padding"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"dilation": (1, -1)}, "dilation"),
        ([1, 4, 5, 5], [3, 4, 0, 3], {}, "kernel"),
        ([4, 5, 5], [3, 4, 1, 3], {}, "expected 3 dims, as operand 0"),
    ],
)
def test_conv2d_refuses_what_does_not_fit(x, w, attrs, reason):
    with pytest.raises(GraphError, match=reason):
        lookup("conv2d")(Shape(x, F32), Shape(w, F32), **attrs)


def test_pools_by_hand():
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    most = ops.max_pool2d(x, kernel=(2, 2), stride=(2, 2))
    np.testing.assert_array_equal(most[0, 0], [[6, 8], [14, 16]])
    mean = ops.avg_pool2d(x, kernel=(2, 2), stride=(2, 2))
    np.testing.assert_array_equal(mean[0, 0], [[3.5, 5.5], [11.5, 13.5]])
    np.testing.assert_array_equal(ops.global_avg_pool2d(x), [[[[8.5]]]])
    with_pads = {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    inside = ops.avg_pool2d(x, **with_pads)
    np.testing.assert_array_equal(inside[0, 0, 0], [1, 2.5, 4])
    counted = ops.avg_pool2d(x, **with_pads, count_include_pad=True)
    np.testing.assert_array_equal(counted[0, 0, 0], [0.25, 1.25, 1])


def test_ceil_adds_a_window_but_not_one_without_data():
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    kwargs = {"kernel": (1, 2), "stride": (1, 2)}
    assert ops.max_pool2d(x, **kwargs).shape == (1, 1, 1, 2)
    np.testing.assert_array_equal(ops.max_pool2d(x, **kwargs, ceil=True)[0, 0, 0], [1, 3, 4])
    # the last window has one element of data and one past the padding, which never counts
    mean = ops.avg_pool2d(x, **kwargs, ceil=True, count_include_pad=True)
    np.testing.assert_array_equal(mean[0, 0, 0], [0.5, 2.5, 4])
    # a window that would start in the padding after the data is not there
    padded = {"kernel": (1, 2), "stride": (1, 2), "padding": (0, 0, 0, 1)}
    assert ops.max_pool2d(x[..., :4], **padded, ceil=True).shape == (1, 1, 1, 2)


def test_max_pool_of_integers_and_nan():
    x = np.full((1, 1, 2, 2), -100, np.int8)
    got = ops.max_pool2d(x, kernel=(2, 2), padding=(1, 1, 1, 1))
    np.testing.assert_array_equal(got, np.full((1, 1, 3, 3), -100))
    y = np.array([[[[1, np.nan]]]], np.float32)
    assert np.isnan(ops.max_pool2d(y, kernel=(1, 2))).all()


def test_pool_padding_is_less_than_the_window():
    with pytest.raises(GraphError, match="padding"):
        lookup("max_pool2d")(Shape([1, 1, 4, 4]), kernel=(2, 2), padding=(2, 0, 0, 0))
