"""onnxruntime's interface on rlx."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import rlx

X, N = np.float32([[1, 2]]), np.int64([3])


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    inputs = [
        h.make_tensor_value_info("x", T.FLOAT, ["batch", 2]),
        h.make_tensor_value_info("n", T.INT64, [1]),
    ]
    outputs = [
        h.make_tensor_value_info("y", T.FLOAT, ["batch", 2]),
        h.make_tensor_value_info("m", T.INT64, [1]),
    ]
    nodes = [h.make_node("Relu", ["x"], ["y"]), h.make_node("Neg", ["n"], ["m"])]
    model = h.make_model(
        h.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_session_is_used_as_onnxruntimes(path: Path) -> None:
    options = SimpleNamespace(intra_op_num_threads=1)
    session = rlx.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )
    facts = [(a.name, a.shape, a.type) for a in session.get_inputs()]
    assert facts == [("x", ["batch", 2], "tensor(float)"), ("n", [1], "tensor(int64)")]
    assert [a.type for a in session.get_outputs()] == ["tensor(float)", "tensor(int64)"]
    assert [a.tolist() for a in session.run(None, {"x": X, "n": N})] == [[[1, 2]], [-3]]
    assert [a.tolist() for a in session.run(["m"], {"n": N, "x": X})] == [[-3]]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.executable.threads == 1


def test_a_program_and_bytes_make_sessions(path: Path, tmp_path: Path) -> None:
    session = rlx.InferenceSession(path.read_bytes())
    session.executable.save(tmp_path / "m.rlx")
    again = rlx.InferenceSession(tmp_path / "m.rlx")
    assert [a.type for a in again.get_inputs()] == ["tensor(float)", "tensor(int64)"]
    assert [a.shape for a in again.get_inputs()] == [["batch", 2], [1]]
    assert again.run(["y"], {"x": X, "n": N})[0].tolist() == X.tolist()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: s.io_binding(), r"session\.executable\.bind"),
        (lambda s: s.run(["q"], {"x": X, "n": N}), "there is no output 'q'. It has: y, m"),
        (lambda s: s.run(None, {"x": X}), "no value for n"),
        (lambda s: s.run(None, X), "given by name, as a dict"),
        (lambda s: s.end_profiling(), r"has no 'end_profiling'.* session\.executable"),
    ],
)
def test_what_is_not_offered_names_what_is(path: Path, call: Any, told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        call(rlx.InferenceSession(path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"providers": ["FooExecutionProvider"]}, "there is no provider 'FooExecutionProvider'"),
        ({"providers": "CPUExecutionProvider"}, r"Give a list such as \['CPUExecutionProvider'\]"),
        ({"sess_options": 5}, "intra_op_num_threads"),
    ],
)
def test_wrong_options_are_errors(path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        rlx.InferenceSession(path, **options)
