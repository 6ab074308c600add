"""Normalisations of opsets and shapes that ONNX's own cases do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.core.errors import UnsupportedError
from tests.onnx.nodes import agrees, gives, one_node, ours

RNG = np.random.default_rng(6)


def values(*dims: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=dims).astype(dtype)


def channels(count: int) -> list[Any]:
    """Scale, bias, mean and variance."""
    return [values(count), values(count), values(count), abs(values(count)) + 0.1]


def standard(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(eps))


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm(opset: int) -> None:
    x, given = values(2, 3, 4, 5), channels(3)
    s, b, m, v = (a.reshape(3, 1, 1) for a in given)
    wanted = (x - m) / np.sqrt(v + np.float32(1e-5)) * s + b
    gives("BatchNormalization", [x, *given], wanted, opset=opset, dims=["n", 3, "h", 5])


def test_batch_norm_per_element() -> None:
    x, given = values(2, 3, 4), [values(3, 4) for _ in range(3)] + [abs(values(3, 4)) + 0.1]
    s, b, m, v = given
    wanted = (x - m) / np.sqrt(v + np.float32(1e-5)) * s + b
    gives("BatchNormalization", [x, *given], wanted, opset=7, spatial=0)


def test_batch_norm_that_trains_before_modes_is_refused() -> None:
    arrays = [values(2, 3, 4), *channels(3)]
    with pytest.raises(UnsupportedError, match="trains"):
        ours(one_node("BatchNormalization", arrays, opset=9, outputs=3), arrays)


def test_batch_norm_of_other_dtypes() -> None:
    x, given = values(2, 3, 4, dtype=np.float16), channels(3)
    s, b, m, v = (a.reshape(3, 1) for a in given)
    wanted = ((x - m) / np.sqrt(v + np.float32(1e-5)) * s + b).astype(np.float16)
    gives("BatchNormalization", [x, *given], wanted, opset=15)


@pytest.mark.parametrize("dims", [(4,), (1,), (3, 1), (3, 4)])
def test_layer_norm_broadcasts_its_scale(dims: tuple[int, ...]) -> None:
    x, scale = values(2, 3, 4), values(*dims)
    wanted = standard(x, (1, 2)) * scale + scale
    gives("LayerNormalization", [x, scale, scale], wanted, opset=17, axis=1)


def test_layer_norm_stashes_wider_than_its_operands() -> None:
    x = values(2, 6, dtype=np.float16)
    scale = values(6, dtype=np.float16)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    inverse = 1 / np.sqrt(variance + 1e-5)
    wanted = ((wide - mean) * inverse * scale).astype(np.float16)
    model = one_node("LayerNormalization", [x, scale], opset=17, outputs=3, stash_type=11)
    made = ours(model, [x, scale])
    np.testing.assert_allclose(made[0], wanted, rtol=2e-3)
    np.testing.assert_allclose(made[1], mean, rtol=1e-6)
    np.testing.assert_allclose(made[2], inverse, rtol=1e-6)
    assert made[1].dtype == made[2].dtype == np.float64


@pytest.mark.parametrize(("opset", "count"), [(18, 2), (21, 6)])
def test_group_norm_by_group_then_by_channel(opset: int, count: int) -> None:
    x, scale, bias = values(2, 6, 4), values(count), values(count)
    s, b = (np.repeat(v, 6 // count).reshape(6, 1) for v in (scale, bias))
    wanted = standard(x.reshape(2, 2, 12), (2,)).reshape(x.shape) * s + b
    gives("GroupNormalization", [x, scale, bias], wanted, opset=opset, num_groups=2)


def test_group_norm_with_channels_last() -> None:
    x, scale, bias = values(2, 3, 5, 4), values(4), values(4)
    grouped = standard(x.reshape(2, 15, 2, 2), (1, 3)).reshape(x.shape) * scale + bias
    wanted = grouped / (1 + np.exp(-grouped))
    gives("GroupNorm", [x, scale, bias], wanted, opset=17, domain="com.microsoft", groups=2,
          activation=1)  # fmt: skip


def test_rms_norm_in_the_dtype_of_its_scale() -> None:
    x, scale = values(2, 4, dtype=np.float16), values(4)
    wide = x.astype(np.float32)
    wanted = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(1e-5)) * scale
    gives("RMSNormalization", [x, scale], wanted, opset=23)
    gives("SimplifiedLayerNormalization", [x, scale], wanted, opset=17)


def test_of_sizes_that_are_not_known() -> None:
    x = values(2, 4, 5, 3)
    how: dict[str, Any] = {"opset": 9, "dims": ["n", 4, "h", "w"]}
    agrees("InstanceNormalization", [x, values(4), values(4)], **how)
    wanted = x / abs(x).sum(2, keepdims=True)
    gives("LpNormalization", [x], wanted, axis=2, p=1, **how)
    squares = np.pad(x * x, [(0, 0), (1, 2), (0, 0), (0, 0)])
    total = np.sum([squares[:, i : i + 4] for i in range(4)], axis=0)
    wanted = x / (1 + np.float32(0.5 / 4) * total) ** np.float32(0.75)
    gives("LRN", [x], wanted, size=4, alpha=0.5, **how)
