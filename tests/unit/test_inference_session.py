"""onnxruntime's interface on rlx."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
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


def test_a_name_that_is_asked_for_twice_is_given_twice(path: Path) -> None:
    session = rlx.InferenceSession(path)
    made = session.run(["m", "y", "m"], {"x": X, "n": N})
    assert [a.tolist() for a in made] == [[-3], [[1, 2]], [-3]]
    assert len(session.run((), {"x": X, "n": N})) == 2


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("is_warm", [False, True])
def test_sessions_are_copied_and_pickled(
    path: Path,
    copied: Callable[[Any], Any],
    is_warm: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the import was in the cache or not."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    if is_warm:
        rlx.InferenceSession(path)
    session = rlx.InferenceSession(path)
    other = copied(session)
    assert other.executable is not session.executable
    assert other.get_inputs() == session.get_inputs()
    assert other.get_outputs() == session.get_outputs()
    assert other.get_inputs()[0].shape == ["batch", 2]
    assert other.get_providers() == ["CPUExecutionProvider"]
    assert [a.tolist() for a in other.run(None, {"x": X, "n": N})] == [[[1, 2]], [-3]]


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_model_is_shared_by_copies_and_not_pickled(
    path: Path, is_warm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    if is_warm:
        rlx.load(path)
    model = rlx.load(path)
    assert copy.copy(model) is copy.deepcopy(model) is model
    with pytest.raises(rlx.UnsupportedError, match=r"pickle\.dumps\(rlx\.compile\(model\)\)"):
        pickle.dumps(model)


@pytest.mark.parametrize(
    ("providers", "unavailable"),
    [
        ([], []),
        (("CPUExecutionProvider",), []),
        ([("CPUExecutionProvider", {"arena": 1})], []),
        (["AzureExecutionProvider", "CPUExecutionProvider"], ["Azure"]),
        (["CPUExecutionProvider", "AzureExecutionProvider"], []),
        (["foo", "foo", "OpenVINOExecutionProvider"], ["foo", "OpenVINO"]),
    ],
)
def test_providers_that_cannot_run_are_one_warning_each(
    path: Path, providers: Any, unavailable: list[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = rlx.InferenceSession(path, providers=providers)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.executable.backend.name == "cpu"
    told = [str(w.message) for w in caught]
    assert len(told) == len(unavailable)
    assert all(f"{n}" in t and "cannot run here" in t for n, t in zip(unavailable, told))
    assert all(w.filename == __file__ for w in caught)


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
        ({"providers": [5]}, "a provider is 5. Give its name"),
        (
            {"providers": [("CPUExecutionProvider",)]},
            r"its name, or \(name, dict of options\)",
        ),
        ({"providers": 5}, "providers is 5. Give a list"),
        (
            {"providers": ["CPUExecutionProvider"], "provider_options": []},
            "provider_options is .* a dict for each",
        ),
        ({"providers": "CPUExecutionProvider"}, r"Give a list such as \['CPUExecutionProvider'\]"),
        ({"sess_options": 5}, "intra_op_num_threads"),
    ],
)
def test_wrong_options_are_errors(path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        rlx.InferenceSession(path, **options)
