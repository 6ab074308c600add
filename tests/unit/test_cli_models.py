"""The verbs that take models, as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlx.__main__ import main

F = TensorProto.FLOAT


@pytest.fixture
def model(tmp_path: Path) -> str:
    """relu(x · w) of any number of rows."""
    weights = numpy_helper.from_array(np.full((80, 4), 0.5, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Relu", ["m"], ["y"], "cut"),
    ]
    return _saved(tmp_path, nodes, [weights], ["n", 80], ["n", 4])


def _saved(folder: Path, nodes: list, weights: list, given: list, made: list) -> str:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", F, given)],
        [helper.make_tensor_value_info("y", F, made)], weights,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return str(path)


def test_check_says_what_runs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", model]) == 0
    assert "runs on cpu: 2 native" in capsys.readouterr().out
    assert main(["check", model, "--json", "--target", "cuda"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] is True
    assert [(n["name"], n["op"]) for n in found["nodes"]] == [
        ("product", "MatMul"), ("cut", "Relu"),
    ]  # fmt: skip


def test_check_names_every_operator_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("Nowhere", ["x"], ["m"], "first"),
        helper.make_node("Else", ["m"], ["y"], "second", domain="other"),
    ]
    path = _saved(tmp_path, nodes, [], [4], [4])
    assert main(["check", path]) == 1
    out = capsys.readouterr().out
    assert "cannot run" in out
    assert "Nowhere 'first'" in out
    assert "Else 'second'" in out
    assert main(["check", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"] is False


def test_check_names_the_node_that_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"], "turn", perm=[5])]
    assert main(["check", _saved(tmp_path, nodes, [], [4], [4])]) == 1
    assert "'turn'" in capsys.readouterr().out


def test_run_on_files(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 80), np.float32))
    folder = tmp_path / "made"
    assert main(["run", model, "--input", f"x={tmp_path}/x.npy", "--output", str(folder)]) == 0
    assert "out y: f32[3, 4] 40 to 40" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(folder / "y.npy"), np.full((3, 4), 40, np.float32))


def test_run_on_random_inputs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "--dim", "n=5"]) == 0
    first = capsys.readouterr().out
    assert "in  x: f32[5, 80]" in first
    assert main(["run", model, "--dim", "n=5"]) == 0
    assert capsys.readouterr().out == first


def test_bench_times_calls(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", model, "--rounds", "1", "--threads", "1"]) == 0
    assert " ms " in capsys.readouterr().out


def test_bench_without_the_other_runtime_says_how_to_get_it(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["bench", model, "--against", "onnxruntime"]) == 1
    assert capsys.readouterr().err == (
        "rlx bench: onnxruntime is not installed: pip install onnxruntime.\n"
    )


def test_explain_reads_onnx(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model]) == 0
    assert "for cpu" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["check", "run", "bench"])
def test_errors_are_one_line(
    verb: str, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"hello")
    for arguments in (
        [str(tmp_path / "missing.onnx")],
        [str(tmp_path / "bad.onnx")],
        *([] if verb == "check" else [[model, "--input", "z=a.npy"]]),
        *([] if verb == "check" else [[model, "--input", f"x={tmp_path}/none.npy"]]),
    ):
        assert main([verb, *arguments]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"rlx {verb}: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["check", "run", "bench"])
def test_wrong_calls_exit_with_2_and_help_has_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["a.onnx", "--nonsense"], ["a.onnx", "--dim", "n"]):
        with pytest.raises(SystemExit) as stop:
            main([verb, *arguments])
        assert stop.value.code == 2
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"example: rlx {verb} model.onnx" in capsys.readouterr().out
