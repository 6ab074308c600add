"""Convolutions and pools where ONNX's own cases do not reach: dynamic sizes, odd attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx.core.errors import GraphError
from rlx.onnx_backend import Backend
from tests.onnx.nodes import agrees, gives, one_node, ours, same, theirs

RNG = np.random.default_rng(5)


def image(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


DYNAMIC = ["n", 2, "h", "w"]
PADS = [
    {"pads": [1, 0, 2, 1], "strides": [2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
    {"auto_pad": "VALID", "strides": [1, 2]},
    {"auto_pad": "SAME_UPPER"},
]


@pytest.mark.parametrize("attrs", PADS)
@pytest.mark.parametrize("dims", [None, DYNAMIC])
def test_conv(attrs: dict[str, Any], dims: Any) -> None:
    x, w, b = image(2, 2, 8, 7), image(4, 2, 3, 2), image(4)
    agrees("Conv", [x, w, b], known=(1, 2), dims=dims, opset=11, **attrs)


def test_conv_of_many_sizes_by_one_model() -> None:
    w = image(4, 1, 3, 3)
    how: dict[str, Any] = {"auto_pad": "SAME_LOWER", "strides": [2, 2], "group": 2, "opset": 11}
    model = one_node("Conv", [image(1, 2, 5, 5), w], known=(1,), dims=DYNAMIC, **how)
    for height, width in ((5, 5), (6, 9), (1, 2)):
        x = image(2, 2, height, width)
        same(ours(model, [x, w]), theirs(model, [x, w]))


def test_minus_one_is_an_open_size() -> None:
    """Paddle's exporter declares open dims as -1; such a model has ranges like any named one."""
    w = image(4, 2, 3, 3)
    model = one_node("Conv", [image(1, 2, 5, 5), w], known=(1,), dims=[-1, 2, -1, -1], opset=11)
    for height, width in ((3, 3), (6, 9)):
        x = image(2, 2, height, width)
        same(ours(model, [x, w]), theirs(model, [x, w]))


def seen(x: Any, attrs: dict[str, Any], kernel: Any) -> Any:
    """[…, window]: what each window of an image sees, NaN outside of it."""
    steps = attrs.get("strides", [1, 1])
    totals = [(-(-n // s) - 1) * s + k - n for n, s, k in zip(x.shape[2:], steps, kernel)]
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    auto = {"SAME_UPPER": [*less, *more], "SAME_LOWER": [*more, *less], "VALID": [0] * 4}
    top, left, bottom, right = attrs["pads"] if "pads" in attrs else auto[attrs["auto_pad"]]
    wide = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=np.nan)
    every = np.lib.stride_tricks.sliding_window_view(wide, kernel, (2, 3))
    found = every[:, :, :: steps[0], :: steps[1]]
    return found.reshape(*found.shape[:4], -1)


POOLS: dict[str, Callable[[Any], Any]] = {
    "MaxPool": lambda windows: np.nanmax(windows, -1),
    "AveragePool": lambda windows: np.nanmean(windows, -1),
    "LpPool": lambda windows: np.sqrt(np.nansum(windows**2, -1)),
}


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("attrs", PADS)
@pytest.mark.parametrize("dims", [None, DYNAMIC])
def test_pools(op: str, attrs: dict[str, Any], dims: Any) -> None:
    """Not against the evaluator, which has other ideas of uneven padding."""
    x = image(2, 2, 8, 7)
    wanted = POOLS[op](seen(x, attrs, (3, 2)))
    gives(op, [x], wanted, dims=dims, kernel_shape=[3, 2], opset=11, **attrs)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_large_windows_go_by_axes(op: str) -> None:
    x = image(1, 2, 30, 25)
    how: dict[str, Any] = {"kernel_shape": [18, 17], "strides": [2, 3], "pads": [3, 0, 1, 4]}
    agrees(op, [x], opset=12, ceil_mode=1, **how)


@pytest.mark.parametrize("include", [0, 1])
def test_windows_in_wide_padding_are_of_what_is_there(include: int) -> None:
    x = np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 1, 4)
    how: dict[str, Any] = {"kernel_shape": [2], "strides": [2], "opset": 11}
    made = np.array([[[0.0, 1.5, 3.5, 0.0]]], np.float32)
    gives("AveragePool", [x], made, pads=[2, 2], count_include_pad=include, **how)
    empty = np.array([[[-np.inf, 2.0, 4.0, -np.inf]]], np.float32)
    gives("MaxPool", [x], empty, pads=[2, 2], **how)


def test_a_pool_of_the_whole_image_is_a_mean() -> None:
    x = image(2, 3, 20, 20)
    agrees("AveragePool", [x], opset=11, kernel_shape=[20, 20])


def test_indices_by_columns() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)[::-1].copy()
    made = ours(
        one_node("MaxPool", [x], opset=12, outputs=2, kernel_shape=[2, 2], storage_order=1), [x]
    )
    n, _, i, j = np.meshgrid(*map(np.arange, made[0].shape), indexing="ij")
    np.testing.assert_array_equal(made[1], n * 12 + (j + 1) * 3 + i + 1)


@pytest.mark.parametrize("shape", [[9, 7], [11, 8], [1, 1, 10, 5]])
def test_conv_transpose_to_a_shape(shape: list[int]) -> None:
    """Sizes below the natural 9 x 7 are cut at both ends, more at the front; above, they grow."""
    x, w = image(1, 1, 3, 3), image(1, 2, 3, 3)
    natural = ours(one_node("ConvTranspose", [x, w], opset=11, strides=[3, 2]), [x, w])[0]
    rows, columns = shape[-2:]
    cut = natural[..., (7 - columns + 1) // 2 if columns < 7 else 0 :][..., :columns]
    wanted = np.zeros((1, 2, rows, columns), np.float32)
    wanted[..., : cut.shape[2], : cut.shape[3]] = cut
    gives("ConvTranspose", [x, w], wanted, opset=11, strides=[3, 2], output_shape=shape)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_as_large_as_its_strides(auto: str) -> None:
    x, w = image(1, 2, 4, 3), image(2, 3, 4, 3)
    dims = [1, 2, "h", "w"]
    agrees("ConvTranspose", [x, w], known=(1,), dims=dims, opset=11, auto_pad=auto, strides=[3, 2])


def test_conv_integer_per_channel() -> None:
    x = RNG.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8)
    w = RNG.integers(-127, 127, (3, 2, 2, 2)).astype(np.int8)
    zeros = np.array([3, -2, 0], np.int8)
    wide = x.astype(np.int32) - 7, w.astype(np.int32) - zeros.reshape(3, 1, 1, 1)
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(wide[0], [(0, 0)] * 2 + [(1, 1)] * 2),
                                                    (2, 2), (2, 3))  # fmt: skip
    wanted = np.einsum("nchwij,ocij->nohw", seen, wide[1]).astype(np.int32)
    arrays = [x, w, np.array(7, np.uint8), zeros]
    gives("ConvInteger", arrays, wanted, opset=10, known=(1, 2, 3), pads=[1, 1, 1, 1])


def test_fused_conv() -> None:
    x, w, b, z = image(1, 2, 4, 4), image(3, 2, 3, 3), image(3), image(1, 3, 2, 2)
    plain = theirs(one_node("Conv", [x, w, b], opset=11), [x, w, b])[0]
    wanted = np.where(plain + z > 0, plain + z, np.float32(0.1) * (plain + z))
    how: dict[str, Any] = {"activation": "LeakyRelu", "activation_params": [0.1]}
    gives("FusedConv", [x, w, b, z], wanted, domain="com.microsoft", opset=11, **how)


def test_indices_where_padding_follows_from_sizes() -> None:
    """Of a model that is read for each shape."""
    model = one_node("MaxPool", [image(1, 1, 4, 4)], opset=11, outputs=2, kernel_shape=[2, 2],
                     auto_pad="SAME_UPPER", strides=[3, 3], dims=DYNAMIC)  # fmt: skip
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    made = ours(model, [x])
    np.testing.assert_array_equal(made[1].ravel(), [5, 7, 13, 15, 21, 23, 29, 31])
    np.testing.assert_array_equal(made[0].ravel(), made[1].ravel())


SMALL: list[tuple[dict[str, Any], list[int]]] = [
    ({"kernel_shape": [5], "strides": [3]}, [1, 2, 3, 4, 5, 8]),
    ({"kernel_shape": [5], "strides": [3], "ceil_mode": 1}, [1, 2, 3, 4, 5, 6, 8]),
    ({"kernel_shape": [5], "strides": [2], "dilations": [2], "pads": [1, 0]}, [3, 6, 7, 8, 9]),
    ({"kernel_shape": [3], "strides": [4], "dilations": [3], "ceil_mode": 1}, [2, 3, 5, 7, 9]),
]


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize(("attrs", "sizes"), SMALL)
def test_pools_of_images_that_are_smaller_than_windows(
    op: str, attrs: dict[str, Any], sizes: list[int]
) -> None:
    """One program for all sizes that windows fit into, and others for those they do not: there is
    one window of what there is where it begins less than a stride before it would fit."""
    prepared = Backend.prepare(
        one_node(op, [image(1, 2, 9)], opset=22, dims=["b", 2, "n"], **attrs)
    )
    for n in sizes:
        x = image(3, 2, n)
        wanted = _pooled(op, x, **attrs)
        made = prepared.run([x])[0]
        assert made.shape == wanted.shape
        np.testing.assert_allclose(made, wanted, rtol=1e-5, err_msg=str(n))


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("dims", [None, ["b", 2, "h", "w"]])
def test_the_other_axis_of_a_pool_without_windows(op: str, dims: Any) -> None:
    """Its windows are counted as where there are some: 100 pixels by 3, rounded up."""
    how: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}
    x = image(3, 2, 1, 100)
    model = one_node(op, [x], opset=22, dims=dims, **how)
    assert ours(model, [x])[0].shape == (3, 2, 0, 34)


def _pooled(op: str, x: Any, **attrs: Any) -> Any:
    """Windows by their definition: each is what it sees of the image."""
    (k,), (s,) = attrs["kernel_shape"], attrs["strides"]
    (d,), (low, high) = attrs.get("dilations", [1]), attrs.get("pads", [0, 0])
    room = x.shape[2] + low + high - d * (k - 1) - 1
    is_up = attrs.get("ceil_mode", 0) or room < 0
    count = max(0, (-(-room // s) if is_up else room // s) + 1)
    starts = [i * s - low for i in range(count) if i * s - low < x.shape[2]]
    seen = np.full((*x.shape[:2], len(starts), k), np.nan, np.float32)
    for i, start in enumerate(starts):
        for tap in range(k):
            if 0 <= start + tap * d < x.shape[2]:
                seen[:, :, i, tap] = x[:, :, start + tap * d]
    return POOLS[op](seen)


def test_conv_transpose_of_every_size() -> None:
    """A transposed convolution has no window that must fit into its image."""
    rng = np.random.default_rng(3)
    for k, s, d, pads in (
        (2, 3, 1, [0, 0]),
        (5, 3, 1, [1, 2]),
        (4, 1, 2, [2, 0]),
        (3, 2, 1, [2, 1]),
    ):
        w = image(2, 3, k)
        how: dict[str, Any] = {"strides": [s], "dilations": [d], "pads": pads}
        arrays = [image(1, 2, 5), w]
        model = one_node("ConvTranspose", arrays, known=(1,), dims=["b", 2, "n"], opset=22, **how)
        prepared = Backend.prepare(model)
        for n in range(1, 6):
            if (n - 1) * s + d * (k - 1) + 1 - sum(pads) < 1:
                continue
            x = rng.normal(size=(2, 2, n)).astype(np.float32)
            whole = np.zeros((2, 3, (n - 1) * s + d * (k - 1) + 1), np.float32)
            for i, j in np.ndindex(n, k):
                whole[:, :, i * s + j * d] += x[:, :, i] @ w[:, :, j]
            wanted = whole[:, :, pads[0] : whole.shape[2] - pads[1]]
            same(prepared.run([x]), [wanted])


def test_a_convolution_says_where_its_window_does_not_fit() -> None:
    arrays = [image(1, 1, 9), image(1, 1, 5)]
    prepared = Backend.prepare(one_node("Conv", arrays, known=(1,), dims=["b", 1, "n"], opset=22))
    assert prepared.run([image(1, 1, 6)])[0].shape == (1, 1, 2)
    with pytest.raises(GraphError, match="the window spans 5, but the padded axis 2 is 3"):
        prepared.run([image(1, 1, 3)])


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_pools_of_integers(dtype: Any) -> None:
    """As torch has them: -7 and 2 have the mean -2."""
    x = np.array([[[7, 2, 3, 4, 5, 6]]]).astype(dtype)
    x = -x if np.dtype(dtype).kind == "i" else x
    how: dict[str, Any] = {"kernel_shape": [2], "strides": [2], "opset": 11}
    pairs = x.reshape(1, 1, 3, 2)
    means = np.trunc(pairs.mean(-1)).astype(dtype)
    gives("AveragePool", [x], means, dims=["a", "b", "n"], **how)
    gives("MaxPool", [x], pairs.max(-1), dims=["a", "b", "n"], **how)
    norms = np.trunc(np.sqrt((pairs.astype(float) ** 2).sum(-1))).astype(dtype)
    gives("LpPool", [x], norms, **how)
    whole = np.trunc(x.mean(-1, keepdims=True)).astype(dtype)
    gives("GlobalAveragePool", [x], whole, opset=11)


def test_pools_of_truth_values() -> None:
    x = np.array([[[True, False, False, False]]])
    gives("MaxPool", [x], x[:, :, ::2], opset=12, kernel_shape=[2], strides=[2])
    gives("GlobalMaxPool", [x], x[:, :, :1], opset=11)
