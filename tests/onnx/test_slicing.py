"""Slice by the standard's own words, at bounds before the front and past the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rlx
from rlx.frontends.onnx.model import from_proto

LOW, HIGH = -(2**63), 2**63 - 1
BOUNDS = (LOW, LOW + 1, -(2**31), -100, -5, -4, -3, -1, 0, 1, 3, 4, 100, 2**31 - 1, HIGH)
STEPS = (1, 3, HIGH, -1, -2, -7, LOW)
CASES = [(a, b, c) for a in BOUNDS for b in BOUNDS for c in STEPS][::13]
"""Every bound and step with many others: 13 divides none of their numbers."""


def standard(start: int, end: int, step: int, length: int) -> list[int]:
    """The indices that are taken: negative bounds count from the back; steps forward clamp both to
    [0, length], steps back the start to [0, length - 1] and the end to [-1, length - 1]."""
    first, stop = (v + length if v < 0 else v for v in (start, end))
    low, high = (0, length) if step > 0 else (-1, length - 1)
    first = min(max(first, 0), high)
    return list(range(first, min(max(stop, low), high), step))


def sliced(dims: Sequence[Any], bounds: Sequence[int], given: Sequence[str] = ()) -> ModelProto:
    """Along the last axis; bounds whose names are `given` are inputs."""
    arrays = {n: np.array([v], np.int64) for n, v in zip(("start", "end", "step"), bounds)}
    node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    known = {"axis": np.array([-1]), **{n: a for n, a in arrays.items() if n not in given}}
    graph = helper.make_graph(
        [node],
        "slice",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, dims),
            *(helper.make_tensor_value_info(n, TensorProto.INT64, [1]) for n in given),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def matrix(length: int) -> Any:
    return np.arange(2 * length, dtype=np.float32).reshape(2, length)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_the_same_elements_as_the_standard_takes(length: int) -> None:
    x = matrix(length)
    for case in CASES:
        made = rlx.compile(from_proto(sliced([2, length], case)), "reference")(x)
        np.testing.assert_array_equal(made, x[:, standard(*case, length)], str(case))


def test_named_sizes_take_the_same_elements() -> None:
    for case in CASES[::3]:
        exe = rlx.compile(from_proto(sliced(["rows", "n"], case)), "reference")
        for length in (0, 1, 4):
            x = matrix(length)
            np.testing.assert_array_equal(exe(x), x[:, standard(*case, length)], str(case))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("end", [-5, -100, -(2**31), LOW, LOW + 1])
def test_an_end_before_the_front_reverses_the_whole_axis(target: str, end: int) -> None:
    """What x[::-1] and a flip are exported to; as a constant and as data, static and named."""
    x = matrix(4)
    for dims in ([2, 4], ["rows", "n"]):
        exe = rlx.compile(from_proto(sliced(dims, (-1, end, -1))), target)
        np.testing.assert_array_equal(exe(x), x[:, ::-1])
        exe = rlx.compile(from_proto(sliced(dims, (-1, end, -1), ["end"])), target)
        np.testing.assert_array_equal(exe(x, np.array([end])), x[:, ::-1])


def test_a_reversed_axis_has_the_size_that_it_had() -> None:
    model = from_proto(sliced(["rows", "n"], (-1, LOW, -1)))
    assert model.graph.outputs[0].shape == model.graph.inputs[0].shape


def test_an_end_computed_from_shapes_may_be_before_the_front() -> None:
    """The end is -1 - n, the start n - 1: as exporters write a flip of a size they do not know."""
    text = """
        <ir_version: 10, opset_import: ["" : 17]>
        agraph (float[n] x) => (float[m] y, int64[k] z) {
            one = Constant <value_ints = [1]> ()
            back = Constant <value_ints = [-1]> ()
            s = Shape(x)
            last = Sub(s, one)
            past = Sub(back, s)
            axis = Constant <value_ints = [0]> ()
            y = Slice(x, last, past, axis, back)
            far = Constant <value_ints = [-9223372036854775808]> ()
            two = Concat <axis = 0> (s, one)
            z = Slice(two, back, far, axis, back)
        }"""
    from onnx import parser

    exe = rlx.compile(from_proto(parser.parse_model(text)), "reference")
    for length in (1, 2, 5):
        made, sizes = exe(np.arange(length, dtype=np.float32))
        np.testing.assert_array_equal(made, np.arange(length)[::-1])
        np.testing.assert_array_equal(sizes, [1, length])


@pytest.mark.parametrize("step", [2, 3, 5, -2, -3])
def test_steps_along_a_named_size_from_any_start(step: int) -> None:
    """The count is not negative for any size, and its formula shows it: memory can be planned."""
    n = rlx.Dim("n", 0, 100)
    for start, stop in ((1, 50), (-3, 100), (3, -101), (-2, -4), (2, 1)):
        g = rlx.Graph("g")
        x = g.input("x", rlx.Shape([2, n]))
        g.set_outputs([rlx.ops.slice(x, starts=(0, start), stops=(2, stop), steps=(1, step))])
        exe = rlx.compile(g, "reference")
        for length in (0, 1, 2, 7):
            x = matrix(length)
            np.testing.assert_array_equal(exe(x), x[:, start:stop:step])


def test_more_starts_than_a_tensor_has_axes_are_refused_at_once() -> None:
    """Each would be some nodes of the graph."""
    names = ("x", "starts", "ends")
    dims = {"x": [4], "starts": [65535], "ends": [65535]}
    kinds = {"x": TensorProto.FLOAT, "starts": TensorProto.INT64, "ends": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, kinds[n], dims[n]) for n in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Slice", list(names), ["y"])
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(rlx.Error, match="its graph depends on the call"):
        assert from_proto(model).graph
