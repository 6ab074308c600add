"""Quantised operators of opsets, dtypes and shapes that ONNX's own cases do not have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from rlx.core.errors import UnsupportedError
from tests.onnx.nodes import agrees, gives, one_node, ours, theirs

RNG = np.random.default_rng(8)
SMALL = ("int4", "uint4", "int2", "uint2")
FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")


def values(*dims: int, dtype: Any = np.float32) -> Any:
    return (3 * RNG.normal(size=dims)).astype(dtype)


def scales(*dims: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.01, 0.1, dims).astype(dtype)


def whole(dtype: Any, *dims: int) -> Any:
    """Numbers of an integer dtype, of ml_dtypes too."""
    name = np.dtype(dtype)
    info = ml_dtypes.iinfo(name) if name.kind == "V" else np.iinfo(name)
    return RNG.integers(int(info.min), int(info.max) + 1, dims).astype(name)


def dequantises(arrays: list[Any], *, opset: int, **how: Any) -> None:
    """As the evaluator does, which knows no opset before 19; nothing changed there."""
    wanted = theirs(one_node("DequantizeLinear", arrays, opset=max(19, opset), **how), arrays)
    gives("DequantizeLinear", arrays, *wanted, opset=opset, **how)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25, 28])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_one_scale(opset: int, dtype: Any) -> None:
    x, scale, zero = values(2, 3, 4), scales(), np.array(7, dtype)
    agrees("QuantizeLinear", [x, scale, zero], opset=opset)
    dequantises([whole(dtype, 2, 3), scale, zero], opset=opset)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_index_of_an_axis(axis: int) -> None:
    x = values(2, 3, 4)
    count = x.shape[axis]
    arrays = [x, scales(count), whole(np.int8, count)]
    agrees("QuantizeLinear", arrays, opset=13, axis=axis, dims=["a", "b", "c"])
    dequantises([whole(np.int8, 2, 3, 4), *arrays[1:]], opset=13, axis=axis)


def test_of_one_axis_it_is_meant() -> None:
    dequantises([whole(np.uint8, 4), scales(1), whole(np.uint8, 1)], opset=13)


@pytest.mark.parametrize("length", [6, 5])
def test_a_scale_for_each_block(length: int) -> None:
    how: dict[str, Any] = {"opset": 21, "axis": 1, "block_size": 2}
    x, scale = values(2, length, 3), scales(2, 3, 3)
    agrees("QuantizeLinear", [x, scale, whole(np.int16, 2, 3, 3)], **how)
    agrees("DequantizeLinear", [whole(np.uint16, 2, length, 3), scale], **how)


def test_whole_numbers_are_quantised_and_i32_dequantised() -> None:
    x = whole(np.int8, 3, 4).astype(np.int32)
    agrees("QuantizeLinear", [x, np.float32(0.5).reshape(()), np.array(3, np.uint8)], opset=13)
    dequantises([x, scales()], opset=13)


def test_the_dtype_of_the_result_is_an_attribute() -> None:
    x, scale = values(3, 4), scales()
    agrees("QuantizeLinear", [x, scale], opset=21, output_dtype=TensorProto.INT16)
    q = whole(np.int8, 3, 4)
    agrees("DequantizeLinear", [q, scale], opset=23, output_dtype=TensorProto.FLOAT16)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("how", ["one", "axis", "block"])
def test_weights_of_few_bits(kind: str, how: str) -> None:
    """An odd number of them, so that the last byte is not full."""
    dtype = np.dtype(getattr(ml_dtypes, kind))
    dims: dict[str, tuple[int, ...]] = {"one": (), "axis": (5,), "block": (3, 3)}
    arrays = [whole(dtype, 3, 5), scales(*dims[how]), whole(dtype, *dims[how])]
    attrs = {"block_size": 2} if how == "block" else {}
    opset = 25 if kind.endswith("2") else 21
    agrees("DequantizeLinear", arrays, opset=opset, known=(0, 2), axis=1, **attrs)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("how", ["one", "axis"])
def test_weights_that_are_floats_of_a_byte(kind: str, how: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind))
    arrays = [values(3, 5, dtype=dtype), scales(*((5,) if how == "axis" else ()))]
    agrees("DequantizeLinear", arrays, opset=23, known=(0,), axis=1)


def test_weights_of_few_bits_are_nothing_else() -> None:
    arrays = [whole(ml_dtypes.int4, 3, 5)]
    with pytest.raises(UnsupportedError, match="tensor of int4s, which it does not take"):
        ours(one_node("Neg", arrays, opset=21, known=(0,)), arrays)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
def test_to_few_bits_saturates_at_their_own_ends(kind: str) -> None:
    """What quantisation means: rounded to even, moved by the zero point, then clipped."""
    dtype, scale = np.dtype(getattr(ml_dtypes, kind)), np.float32(0.75)
    info, zero = ml_dtypes.iinfo(dtype), np.array(1, dtype)
    x = np.linspace(-20, 20, 121, dtype=np.float32)
    (made,) = ours(one_node("QuantizeLinear", [x, scale, zero], opset=25, known=(2,)), [x, scale])
    assert made.dtype == dtype
    wanted = np.clip(np.rint(x / scale) + 1, info.min, info.max)
    np.testing.assert_array_equal(made.astype(np.int32), wanted.astype(np.int32))


@pytest.mark.parametrize("given", [(False, False), (True, False), (False, True), (True, True)])
def test_integer_products_with_some_zero_points(given: tuple[bool, bool]) -> None:
    a, b = whole(np.uint8, 2, 3, 4), whole(np.int8, 4, 5)
    zeros = [np.array(100, np.uint8), np.array(-3, np.int8)]
    arrays = [a, b, *(z if g else None for z, g in zip(zeros, given))]
    left, right = (
        x.astype(np.int32) - (int(z) if g else 0) for x, z, g in zip((a, b), zeros, given)
    )
    gives("MatMulInteger", arrays, left @ right, opset=10)


def test_a_zero_point_for_each_row_and_column() -> None:
    a, b = whole(np.uint8, 3, 4), whole(np.uint8, 4, 5)
    rows, columns = whole(np.uint8, 3), whole(np.uint8, 5)
    wanted = (a.astype(np.int32) - rows[:, None]) @ (b.astype(np.int32) - columns)
    gives("MatMulInteger", [a, b, rows, columns], wanted.astype(np.int32), opset=10)


@pytest.mark.parametrize("dims", [None, ["n", 2, "h", "w"]])
def test_a_quantised_convolution_pads_itself(dims: Any) -> None:
    """SAME padding of an image whose size may not be known stands for the zero point."""
    x, w = whole(np.uint8, 1, 2, 7, 6), whole(np.int8, 3, 2, 3, 3)
    arrays = [
        x, scales(), np.array(9, np.uint8), w, scales(3), np.zeros(3, np.int8),
        np.float32(5).reshape(()), np.array(120, np.uint8), whole(np.int8, 3).astype(np.int32),
    ]  # fmt: skip
    known = tuple(range(1, 9))
    how: dict[str, Any] = {"opset": 10, "auto_pad": "SAME_UPPER", "strides": [2, 2]}
    agrees("QLinearConv", arrays, known=known, dims=dims, **how)
