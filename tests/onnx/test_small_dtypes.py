"""Element types that rlx has no dtype for: floats of a byte or less, integers of less than one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.frontends.onnx.model import from_proto
from tests.onnx.nodes import one_node, ours

FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"]
INTEGERS = ["INT4", "UINT4", "INT2", "UINT2"]
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""Every number of f16: among them every number of a byte, what is halfway between, and beyond."""
FINITE = HALVES[~np.isnan(HALVES)]


def number(kind: str) -> int:
    return int(getattr(TensorProto, kind))


def numpy_of(kind: str) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(number(kind)))


def cast(x: np.ndarray[Any, Any], kind: str, **attrs: Any) -> Any:
    model = one_node("Cast", [x], opset=24, dims=["n"], to=number(kind), **attrs)
    return ours(model, [x])[0]


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("saturate", [1, 0])
def test_floats_round_as_ml_dtypes_does(kind: str, saturate: int) -> None:
    """To the bit, zeros of both signs and what is out of range among them."""
    dtype, x = numpy_of(kind), FINITE.astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = numpy_helper.saturate_cast(x, dtype) if saturate else x.astype(dtype)
    made = cast(x, kind, saturate=saturate)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("kind", FLOATS[:4])
def test_what_is_no_number_stays_so(kind: str) -> None:
    x = HALVES[np.isnan(HALVES)]
    assert np.isnan(cast(x, kind).astype(np.float32)).all()


@pytest.mark.parametrize("kind", FLOATS)
def test_every_code_is_the_number_it_stands_for(kind: str) -> None:
    dtype = numpy_of(kind)
    codes = np.arange(16 if kind == "FLOAT4E2M1" else 256, dtype=np.uint8).view(dtype)
    np.testing.assert_array_equal(cast(codes, "FLOAT"), codes.astype(np.float32))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_keep_the_bits_there_is_room_for(kind: str) -> None:
    x = np.arange(-300, 300, dtype=np.int32)
    made = cast(x, kind)
    assert made.dtype == numpy_of(kind)
    np.testing.assert_array_equal(made, x.astype(numpy_of(kind)))
    np.testing.assert_array_equal(cast(made, "FLOAT"), made.astype(np.float32))


POWERS = {"up": [2.0, 2.0, 4.0], "nearest": [1.0, 2.0, 2.0], "down": [1.0, 1.0, 2.0]}


@pytest.mark.parametrize("mode", POWERS)
def test_powers_of_two_round_by_the_fraction(mode: str) -> None:
    x = np.array([1.25, 1.5, 2.25, np.inf, 0.0, np.nan, 2.0**-127], np.float32)
    made = cast(x, "FLOAT8E8M0", round_mode=mode).astype(np.float32)
    largest, smallest = np.float32(2.0**127), np.float32(2.0**-127)
    wanted = [*POWERS[mode], largest, smallest, np.nan, smallest]
    np.testing.assert_array_equal(made, np.array(wanted, np.float32))


def test_what_moves_elements_moves_those_of_few_bits() -> None:
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.float8_e5m2)
    (made,) = ours(one_node("Transpose", [x], opset=25, perm=[1, 0]), [x])
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made.view(np.uint8), x.T.copy().view(np.uint8))
    y = x.astype(ml_dtypes.int4)
    (joined,) = ours(one_node("Concat", [y, y], opset=25, known=(1,), axis=0), [y, y])
    np.testing.assert_array_equal(joined, np.concatenate([y, y]))


def test_a_branch_gives_few_bits_too() -> None:
    kind = TensorProto.FLOAT8E4M3FN
    info = helper.make_tensor_value_info
    sides = [
        helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [info(name, kind, [2])])
        for op, name in (("Identity", "same"), ("Identity", "other"))
    ]
    sides[1].node[0].CopyFrom(helper.make_node("Concat", ["t", "h"], ["other"], axis=0))
    sides[1].node.insert(0, helper.make_node("Split", ["x"], ["h", "t"], num_outputs=2))
    node = helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])
    inputs = [info("c", TensorProto.BOOL, []), info("x", kind, [2])]
    graph = helper.make_graph([node], "g", inputs, [info("y", kind, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    exe = rlx.compile(from_proto(model))
    x = np.array([1, 2], ml_dtypes.float8_e4m3fn)
    for taken, wanted in ((True, [1.0, 2.0]), (False, [2.0, 1.0])):
        made = exe(np.array(taken), x)
        assert made.dtype == x.dtype
        assert made.astype(np.float32).tolist() == wanted


def test_an_input_of_another_dtype_is_an_error() -> None:
    x = np.ones(3, ml_dtypes.float8_e5m2)
    model = one_node("Cast", [x], opset=24, to=number("FLOAT"))
    with pytest.raises(rlx.Error, match="input 'x0' is float32, expected float8_e5m2"):
        ours(model, [np.ones(3, np.float32)])
