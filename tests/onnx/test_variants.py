"""Models that are others for other sizes or values of inputs: executables of several programs."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rlx
from rlx.core.errors import Error
from rlx.frontends.onnx.model import from_proto
from rlx.ops.op import lookup

RNG = np.random.default_rng(17)
WEIGHT = RNG.standard_normal((6, 40)).astype(np.float32)


def value(name: str, dims: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def model(nodes: list[Any], inputs: list[Any], weights: dict[str, Any] | None = None) -> ModelProto:
    held = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "several", inputs, [value("y", ["a", "b"])], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def by_value() -> rlx.Executable:
    """x reshaped to what s says, times a weight: s decides a shape."""
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    inputs = [value("x", ["n"]), value("s", [2], TensorProto.INT64)]
    return rlx.compile(from_proto(model(nodes, inputs, {"w": WEIGHT}), name="several"))


def narrowed() -> rlx.Executable:
    """x halved, rounded up, and doubled again, beside itself: one program for even sizes, and for
    no others but where what is 1 broadcasts."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["h"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node(
            "Resize", ["h", "", "twice"], ["d"], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        ),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]  # fmt: skip
    twice = {"twice": np.array([1, 1, 2, 2], np.float32)}
    return rlx.compile(from_proto(model(nodes, [value("x", [1, 1, "h", "w"])], twice)))


def calls() -> list[tuple[Any, Any]]:
    return [
        (RNG.standard_normal(6 * rows).astype(np.float32), np.array([rows, 6]))
        for rows in (1, 3, 5)
    ]


def product(x: Any, s: Any, w: Any = WEIGHT) -> Any:
    return x.reshape(s) @ w


def agree(made: Any, want: Any) -> None:
    np.testing.assert_allclose(made, want, 1e-5, 1e-5)  # sums of six products


def test_an_executable_of_several_programs_has_all_that_one_has() -> None:
    exe = by_value()
    assert exe.programs == ()
    for x, s in calls():
        agree(exe(x, s), product(x, s))
    assert len(exe.programs) == 3
    assert exe.static == ("s",)
    assert {n: s.dims for n, s in exe.params.items()} == {"w": (6, 40)}
    np.testing.assert_array_equal(exe.get_params()["w"], WEIGHT)
    assert exe.memory().weight_bytes >= WEIGHT.nbytes
    assert exe.memory(n=6).total_bytes <= exe.memory(n=30).total_bytes
    with pytest.raises(Error, match="no program for n=7"):
        exe.memory(n=7)
    x, s = calls()[1]
    agree(exe.submit(x, s).result(), product(x, s))
    agree(exe.step(x, s), product(x, s))
    assert exe.sizes([x, s]) == {}
    assert exe.trace([x, s], calls=1).events


def test_new_weights_are_those_of_all_programs() -> None:
    exe = by_value()
    (x, s), later = calls()[0], calls()[2]
    agree(exe(x, s), product(x, s))
    before = copy.copy(exe)
    new = RNG.standard_normal(WEIGHT.shape).astype(np.float32)
    exe.set_params({"w": new})
    agree(exe(x, s), product(x, s, new))
    agree(exe(*later), product(*later, new))
    agree(before(x, s), product(x, s))
    agree(before(*later), product(*later))
    with pytest.raises(Error, match="no param 'v'"):
        exe.set_params({"v": new})


def test_all_programs_are_in_one_file(tmp_path: Path) -> None:
    exe = by_value()
    with pytest.raises(Error, match="warmup"):
        exe.save(tmp_path / "empty.rlx")
    exe.warmup([{"x": (6 * rows,), "s": np.array([rows, 6])} for rows in (1, 3, 5)])
    exe.save(tmp_path / "m.rlx")
    again = rlx.load(tmp_path / "m.rlx")
    assert isinstance(again, rlx.Executable)
    assert (again.inputs, again.outputs, again.static) == (exe.inputs, exe.outputs, ("s",))
    for each in (again, pickle.loads(pickle.dumps(exe)), pickle.loads(pickle.dumps(again))):
        for x, s in calls():
            agree(each(x, s), product(x, s))
            agree(each.run({"s": s, "x": x})["y"], product(x, s))
        with pytest.raises(Error, match=r"no program for x 12, s = \[2, 6\].*x 18, s = \[3, 6\]"):
            each(np.zeros(12, np.float32), np.array([2, 6]))
    assert (tmp_path / "m.rlx").stat().st_size < 3 * WEIGHT.nbytes + 200_000
    exe.save(tmp_path / "bare.rlx", weights=False)
    bare = rlx.load(tmp_path / "bare.rlx")
    assert isinstance(bare, rlx.Executable)
    bare.set_params({"w": WEIGHT})
    agree(bare(*calls()[0]).shape, (1, 40))


def test_a_compile_for_one_call_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    exe = by_value()
    x, s = calls()[1]
    with caplog.at_level(logging.INFO, "rlx"):
        exe(x, s)
        exe(x, s)
    (record,) = [r for r in caplog.records if "compiled for x" in r.getMessage()]
    assert "several: compiled for x 18, s = [3, 6] in " in record.getMessage()
    assert "decides a shape" in record.getMessage() or "depends" in record.getMessage()


def test_sizes_outside_of_those_of_one_program(tmp_path: Path) -> None:
    exe = narrowed()
    assert [n for n, _ in exe.inputs.items()] == ["x"]

    def right(each: Any, h: int, w: int) -> None:
        x = RNG.standard_normal((1, 1, h, w)).astype(np.float32)
        half = x[:, :, ::2, ::2]
        np.testing.assert_array_equal(each(x), half.repeat(2, 2).repeat(2, 3) + x)

    for h, w in ((2, 4), (10, 6)):
        right(exe, h, w)
    assert len(exe.programs) == 1
    with pytest.raises(Error):
        exe(np.zeros((1, 1, 3, 5), np.float32))
    exe.warmup([{"h": 8, "w": 8}, {"x": (1, 1, 0, 2)}])
    assert len(exe.programs) == 2
    exe.save(tmp_path / "n.rlx")
    again = rlx.load(tmp_path / "n.rlx")
    assert isinstance(again, rlx.Executable)
    for each in (exe, again):
        right(each, 12, 2)
        right(each, 0, 2)
    with pytest.raises(Error, match="no program"):
        again(np.zeros((1, 1, 3, 4), np.float32))


def test_what_is_said_of_calls_to_come_is_checked() -> None:
    exe = narrowed()
    with pytest.raises(Error, match="no input or named dim 'height'"):
        exe.warmup([{"height": 3}])
    with pytest.raises(Error, match=r"nothing says what .* of input 'x' is"):
        exe.warmup([{"h": 4}])
    with pytest.raises(Error, match="Give a dict"):
        exe.warmup(["x"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(Error, match=r"input 'x' .* is given as \[1, 3, 5, 9\]"):
        exe.warmup([{"x": (np.int64(1), 3, np.int64(5), 9)}])
    with pytest.raises(Error, match="dim h cannot be '4'"):
        exe.warmup([{"h": "4", "w": 4}])
    by_both = by_value()
    with pytest.raises(Error, match=r"input 's' is .* and is given as \[3\]"):
        by_both.warmup([{"x": (6,), "s": np.array([1, 2, 3])}])
    assert by_both.programs == ()


def test_what_no_lowering_holds_for_at_every_size_is_a_program_per_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = lookup("instance_norm")
    plain = norm.lower

    def lower(x: Any, *rest: Any, **attrs: Any) -> Any:
        if not x.shape.is_static:
            raise rlx.GraphError("narrow: length is n - 1, which may be negative")
        return plain(x, *rest, **attrs)

    monkeypatch.setattr(norm, "lower", lower)
    nodes = [helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])]
    weights = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}
    graph = model(nodes, [value("x", [1, 3, "n"])], weights)
    session = rlx.Session(target="cpu", cache=None)
    exe = session.compile(from_proto(graph, name="open"))
    (why,) = [d.reason for d in exe.decisions if d.what == "compile_per_shapes"]
    assert why.startswith("instance_norm at ")
    assert "does not hold for every size of n: narrow" in why
    for n in (4, 9):
        x = RNG.standard_normal((1, 3, n)).astype(np.float32)
        want = (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
        np.testing.assert_allclose(exe(x), want, atol=1e-5)  # sums of 9 numbers around 1
    assert len(exe.programs) == 2


def test_inputs_without_dims_are_in_the_file(tmp_path: Path) -> None:
    """A shape of no dims is one: x reshaped to what s says, times a number."""
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Mul", ["r", "k"], ["y"]),
    ]
    inputs = [value("x", ["n"]), value("s", [2], TensorProto.INT64), value("k", [])]
    exe = rlx.compile(from_proto(model(nodes, inputs)), cache=False)
    x, s, k = np.arange(6, dtype=np.float32), np.array([2, 3]), np.float32(2)
    want = x.reshape(2, 3) * 2
    np.testing.assert_array_equal(exe(x, s, k), want)
    exe.save(tmp_path / "k.rlx")
    again: Any = rlx.load(tmp_path / "k.rlx")
    np.testing.assert_array_equal(again(x, s, k), want)
    assert again.inputs["k"] == rlx.Shape([])
