"""Custom ops: built, run, read back, and what they do wrong."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir import interpret
from rlx.ir.mir import Graph
from rlx.ir.text import read, show

F32 = DType.F32


def triple(x: np.ndarray, *, by: float = 3.0) -> np.ndarray:
    return x * np.asarray(by, x.dtype)


def same_shape(x: Shape, *, by: float = 3.0) -> Shape:
    return x


def test_a_custom_op_builds_runs_and_reads_back():
    op = rlx.custom_op("tests.triple", triple, same_shape)
    assert rlx.custom_op("tests.triple", triple, same_shape) == op
    g = Graph("custom")
    x = g.input("x", Shape([2], F32))
    g.set_outputs([op(x, by=2.0)])
    assert read(show(g)) == g
    ones = {"x": np.ones(2, np.float32)}
    np.testing.assert_array_equal(interpret.evaluate(read(show(g)), ones)[0], [2, 2])
    np.testing.assert_array_equal(op(np.ones(2, np.float32)), [3, 3])


def test_a_custom_name_means_one_thing():
    rlx.custom_op("tests.once", triple, same_shape)
    with pytest.raises(Error, match="already registered"):
        rlx.custom_op("tests.once", lambda x: x, same_shape)


def test_an_unknown_custom_name_in_text_is_a_graph_error():
    text = 'mir "t" {\n %0 = input(name="x", shape=f32[]) : f32[]\n' \
           ' %1 = custom(%0, name="never.seen") : (f32[],)\n return %0\n}'  # fmt: skip
    with pytest.raises(GraphError, match=r"3: .*never\.seen"):
        read(text)


def test_whatever_a_custom_function_raises_is_an_rlx_error():
    def broken(*given: object) -> object:
        raise KeyError("oops")

    op = rlx.custom_op("tests.broken_rule", triple, broken)
    with pytest.raises(GraphError, match="oops"):
        op(np.ones(2, np.float32))
    run = rlx.custom_op("tests.broken_run", broken, same_shape)
    with pytest.raises(Error, match="oops"):
        run(np.ones(2, np.float32))
    wrong = rlx.custom_op("tests.wrong_rule", triple, lambda x: 3)
    with pytest.raises(GraphError, match=r"expected a rlx\.Shape"):
        wrong(np.ones(2, np.float32))
