"""Models with named dims that run at every size at which they have a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.core.errors import Error
from rlx.frontends.onnx.model import from_proto
from rlx.onnx_backend import Backend
from tests.onnx.nodes import one_node

RNG = np.random.default_rng(9)


def floats(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("start", [1, 2, 6])
def test_strided_slices(start: int, step: int) -> None:
    arrays = [floats(2, 7), *(np.array([v]) for v in (start, 2**63 - 1, 1, step))]
    model = one_node("Slice", arrays, known=(1, 2, 3, 4), dims=["b", "n"], opset=13)
    prepared = Backend.prepare(model)
    for n in (0, 1, 2, 3, 6, 7, 8, 20):
        x = floats(3, n)
        np.testing.assert_array_equal(prepared.run([x])[0], x[:, start::step])


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_join_of_many_named_dims(target: str) -> None:
    """On cpu in time that is nearly in proportion to how many there are: 200 took minutes."""
    count = 200 if target == "cpu" else 100
    g = rlx.Graph("join")
    parts = [g.input(f"x{i}", rlx.Shape([2, rlx.Dim(f"n{i}")])) for i in range(count)]
    g.set_outputs([g.concat(parts, axis=1)])
    exe = rlx.compile(g, target)
    arrays = [floats(2, int(RNG.integers(0, 4))) for _ in range(count)]
    np.testing.assert_array_equal(exe(*arrays), np.concatenate(arrays, 1))


@pytest.mark.parametrize("axes", [[1], None])
def test_squeeze_of_what_is_one(axes: list[int] | None) -> None:
    """An axis that must be 1 for the model to mean anything, and one that may be."""
    arrays = [floats(2, 1, 3), *([np.array(axes)] if axes else [])]
    model = one_node("Squeeze", arrays, known=(1,), dims=["a", "n", "c"], opset=13)
    prepared = Backend.prepare(model)
    x = floats(2, 1, 3)
    np.testing.assert_array_equal(prepared.run([x])[0], x[:, 0])
    wide = floats(2, 2, 1)
    if axes is None:
        np.testing.assert_array_equal(prepared.run([wide])[0], wide[:, :, 0])
    else:
        with pytest.raises(Error, match="is 2, not 1"):
            prepared.run([wide])


def test_squeeze_of_dims_that_are_provably_one() -> None:
    g = rlx.Graph("ones")
    n, one = rlx.Dim("n", 1), rlx.Dim("one", 1, 1)
    x = g.input("x", rlx.Shape([n, one, 4]))
    last = g.slice(x, starts=(-1, 0, 0), stops=(n, one, 4))
    g.set_outputs([g.squeeze(last, axes=(0, 1)), g.squeeze(x)])
    exe = rlx.compile(g)
    value = floats(5, 1, 4)
    made = exe(value)
    np.testing.assert_array_equal(made[0], value[-1, 0])
    np.testing.assert_array_equal(made[1], value[:, 0])


def test_dims_that_must_be_equal_are_one() -> None:
    """Inputs that were exported each with a size of its own: one program where they agree, and what
    broadcasts is still right where they do not."""
    arrays = [floats(3, 2), floats(3, 2)]
    model = one_node("Add", arrays, opset=14)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].Clear()
    prepared = rlx.compile(from_proto(model))
    assert isinstance(prepared, rlx.Executable)
    for n, m in ((3, 3), (1, 1), (5, 5), (1, 4), (4, 1)):
        a, b = floats(n, 2), floats(m, 2)
        np.testing.assert_array_equal(prepared(a, b), a + b)
    with pytest.raises(Error, match="broadcast"):
        prepared(floats(2, 2), floats(3, 2))


def test_an_input_may_be_a_multiple_of_a_number() -> None:
    """Halved and doubled again it is what it was; other sizes are refused with the reason."""
    n = rlx.Dim("n", 4) // 4 * 4
    g = rlx.Graph("doubled")
    x = g.input("x", rlx.Shape([n, 2]))
    halves = [g.slice(x, starts=(i, 0), stops=(n, 2), steps=(2, 1)) for i in (0, 1)]
    g.set_outputs([g.add(x, g.concat(halves, axis=0))])
    for target in ("cpu", "reference"):
        exe = rlx.compile(g, target)
        for size in (4, 12, 20, 8):
            a = floats(size, 2)
            np.testing.assert_array_equal(exe(a), a + np.concatenate([a[::2], a[1::2]]))
            assert exe.sizes([a]) == {"n": size}
        with pytest.raises(Error, match="no n makes it 6"):
            exe(floats(6, 2))


@pytest.mark.parametrize("cast", [True, False])
def test_ranges_up_to_a_size(cast: bool) -> None:
    """Exporters count in floats, too."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    kind = TensorProto.FLOAT if cast else TensorProto.INT64
    ends = [helper.make_tensor(n, kind, [], [v]) for n, v in (("zero", 2), ("one", 1))]
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Cast", ["size"], ["end"], to=kind),
        helper.make_node("Range", ["zero", "end", "one"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "range", [x], [y], ends),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    loaded = from_proto(model)
    assert not loaded.is_static, loaded.why_static
    exe = rlx.compile(loaded)
    for n in (0, 1, 2, 3, 50):
        made = exe(floats(n))
        assert made.dtype == (np.float32 if cast else np.int64)
        np.testing.assert_array_equal(made, np.arange(2, n))
