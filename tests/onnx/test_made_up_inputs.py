"""Inputs that are made up: related dims and switches are found, and where none fit, they are blamed
and not the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from rlx.__main__ import main
from rlx.core.errors import Error, GraphError, MisfitError, UnsupportedError
from rlx.core.shape import Shape
from rlx.frontends.made_up_inputs import made_up_inputs
from rlx.frontends.onnx.model import from_proto, load
from rlx.frontends.onnx.switches import switches
from rlx.runtime.fitting_inputs import Wanted, fitting_inputs

F32, I64 = T.FLOAT, T.INT64


def value(name: str, dims: list[Any], kind: int = F32) -> Any:
    return h.make_tensor_value_info(name, kind, dims)


def made(nodes: list[Any], inputs: list[Any], *held: tuple[str, Any]) -> Any:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in held]
    outputs = [value("y", None)]  # pyright: ignore[reportArgumentType]
    graph = h.make_graph(nodes, "m", inputs, outputs, weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def recurrent() -> Any:
    """A signal and a state whose batches the file does not say to be equal, and a rate that says
    how many samples are read."""
    rng = np.random.default_rng(0)
    weights = [("w", (1, 16, 4)), ("r", (1, 16, 4))]
    held = [(n, rng.standard_normal(d).astype(np.float32)) for n, d in weights]
    then = h.make_graph([h.make_node("Identity", ["steps"], ["t"])], "t", [], [value("t", None)])  # pyright: ignore[reportArgumentType]
    other = h.make_graph([h.make_node("Neg", ["steps"], ["e"])], "e", [], [value("e", None)])  # pyright: ignore[reportArgumentType]
    nodes = [
        h.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        h.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        h.make_node("If", ["is_wide"], ["chosen"], then_branch=then, else_branch=other),
        h.make_node("LSTM", ["chosen", "w", "r", "", "", "state", "state"], ["", "y"],
                    hidden_size=4),
    ]  # fmt: skip
    inputs = [value("x", [None, 5, 4]), value("state", [1, None, 4]), value("rate", [], I64)]
    return made(nodes, inputs, *held, ("wide", np.int64(16000)))


def impossible() -> Any:
    """Rows that are to be 7 and 9 at once, in two branches that are both read."""
    nodes = [
        h.make_node("Reshape", ["x", "seven"], ["a"]),
        h.make_node("Reshape", ["x", "nine"], ["b"]),
        h.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    inputs = [value("x", [None, None])]
    return made(nodes, inputs, ("seven", np.int64([7, 3])), ("nine", np.int64([9, 3])))


def test_related_dims_and_switches_are_found() -> None:
    model = from_proto(recurrent())
    assert switches(model.reader) == {"rate": [16000]}
    found = made_up_inputs(model)
    assert found.arrays["x"].shape[0] == found.arrays["state"].shape[1]
    assert found.arrays["rate"] == 16000
    assert found.names == ("x", "state", "rate")
    assert "rate = 16000" in str(found)
    model.specialised(list(found.arrays.values()))


def test_what_is_given_stays() -> None:
    given = {"state": np.zeros((1, 3, 4), np.float32)}
    found = made_up_inputs(from_proto(recurrent()), Wanted(given, values={"rate": 8000}))
    assert found.arrays["x"].shape == (3, 5, 4)
    assert found.arrays["rate"] == 8000
    assert found.names == ("x",)


def windowed() -> Any:
    """A signal that is long enough for one side of a branch at a size at which it is too short for
    the other, which is the one that is taken; and a state of its batch."""
    sides: dict[str, Any] = {}
    for name, width in (("then_branch", 64), ("else_branch", 16)):
        nodes = [
            h.make_node("Slice", ["x", "first", f"w{width}", "along"], [f"{name}.s"]),
            h.make_node("Reshape", [f"{name}.s", f"to{width}"], [f"{name}.r"]),
            h.make_node("ReduceMax", [f"{name}.r"], [f"{name}.y"], axes=[1], keepdims=1),
        ]
        sides[name] = h.make_graph(nodes, name, [], [value(f"{name}.y", None)])  # pyright: ignore[reportArgumentType]
    nodes = [
        h.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        h.make_node("If", ["is_wide"], ["top"], **sides),
        h.make_node("Concat", ["top", "state"], ["y"], axis=1),
    ]
    inputs = [value("x", ["n", "length"]), value("state", ["b", 3]), value("rate", [], I64)]
    held = [(f"w{w}", np.int64([w])) for w in (64, 16)]
    shapes = [(f"to{w}", np.int64([-1, w])) for w in (64, 16)]
    ends = [("first", np.int64([0])), ("along", np.int64([1])), ("wide", np.int64(16000))]
    return made(nodes, inputs, *held, *shapes, *ends)


VERBS = [["check"], ["run"], ["bench", "--rounds", "1"], ["explain"]]


@pytest.mark.parametrize("model", [recurrent, windowed])
def test_every_verb_makes_up_the_same(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    lines: list[str] = []
    for verb in VERBS:
        assert main([verb[0], str(path), *verb[1:]]) == 0
        shown = capsys.readouterr().out
        lines += [line for line in shown.splitlines() if line.startswith("made up: ")]
    assert len(lines) == len(VERBS)
    assert len(set(lines)) == 1
    assert "rate = 16000 (--dim" in lines[0]


def test_what_was_given_is_not_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(recurrent(), path)
    for verb in VERBS:
        assert main([verb[0], str(path), *verb[1:], "--input", "rate=8000"]) == 0
        shown = capsys.readouterr().out
        line = next(line for line in shown.splitlines() if line.startswith("made up: "))
        assert "state: f32" in line
        assert "rate" not in line


def test_where_all_was_given_nothing_is_sought() -> None:
    def trial(arrays: Mapping[str, Any]) -> Error:
        return GraphError("never")

    with pytest.raises(GraphError, match="never"):
        fitting_inputs({"x": Shape([], "i64")}, Wanted(values={"x": 3}), trial)


def test_a_model_that_was_read_before_makes_up_the_same(tmp_path: Path) -> None:
    """What reading it showed of its sizes is in the cache of imports."""
    path = tmp_path / "m.onnx"
    onnx.save(windowed(), path)
    first, again = (load(path, cache=tmp_path / "cache") for _ in range(2))
    assert first.declared == again.declared
    assert str(made_up_inputs(first)) == str(made_up_inputs(again))


def test_where_none_fit_the_inputs_are_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(impossible(), path)
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no inputs were made up that fit the model, which may run on others" in told.err
    assert told.err.rstrip().endswith("--input x=FILE.npy")
    assert "--dim " in told.err


# -- the search ------------------------------------------------------------------------------------

ROWS = {"x": Shape([], "i64"), "y": Shape([3], "f32")}


def test_a_number_that_is_checked_while_a_model_runs_is_found() -> None:
    def trial(arrays: Mapping[str, Any]) -> Error | None:
        return None if arrays["x"] == 320 else GraphError("too short: x")

    assert fitting_inputs(ROWS, Wanted(), trial).arrays["x"] == 320


def test_steps_that_fail_in_new_ways_are_pursued() -> None:
    shapes = {"x": Shape([], "i64"), "z": Shape([], "i64")}

    def trial(arrays: Mapping[str, Any]) -> Error | None:
        if arrays["x"] != 224:
            return GraphError("x")
        return None if arrays["z"] == 512 else GraphError("z")

    found = fitting_inputs(shapes, Wanted(), trial).arrays
    assert (found["x"], found["z"]) == (224, 512)


@pytest.mark.parametrize("error", [UnsupportedError("no such op"), MemoryError])
def test_what_other_inputs_do_not_mend_is_not_searched(error: Any) -> None:
    calls: list[int] = []

    def trial(arrays: Mapping[str, Any]) -> Error | None:
        calls.append(1)
        if error is MemoryError:
            raise MemoryError
        return error

    with pytest.raises((UnsupportedError, MemoryError)):
        fitting_inputs(ROWS, Wanted(), trial)
    assert len(calls) == 1


def test_where_nothing_is_made_up_the_error_is_the_models() -> None:
    arrays = {"x": np.int64(1), "y": np.zeros(3, np.float32)}
    with pytest.raises(GraphError, match="wrong"):
        fitting_inputs(ROWS, Wanted(arrays), lambda _: GraphError("wrong"))
    with pytest.raises(MisfitError, match=r"wrong\. Give what fits: --input x=NUMBER, --input y="):
        fitting_inputs(ROWS, Wanted(), lambda _: GraphError("wrong"))
