"""WebAssembly of exported models, run by node with the module that pages import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx import Dim, Graph, Shape, ops
from rlx.frontends.web import export_web
from tests.backend.web import node
from tests.browser import graphs, web

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""Sums of up to 300 terms of f32, in another order than NumPy's."""

pytestmark = pytest.mark.skipif(node.missing() is not None, reason=str(node.missing()))


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `graphs.layers`, for WebAssembly."""
    folder = tmp_path_factory.mktemp("layers")
    graph, params, _ = graphs.layers()
    export_web(graph, folder, params=params, engines=("wasm",))
    return folder


def dtypes_of(graph: Graph) -> dict[str, Any]:
    return {n: o.shape.dtype.numpy for n, o in zip(graph.output_names, graph.outputs)}


@pytest.mark.parametrize("name", graphs.CASES)
def test_webassembly_computes_what_numpy_does(tmp_path: Path, name: str) -> None:
    graph, params, calls = graphs.CASES[name]()
    export_web(graph, tmp_path, params=params, engines=("wasm",))
    for given, found in zip(calls, node.outputs(tmp_path, dtypes_of(graph), calls)):
        for output, array in web.expected(graph, params, given).items():
            assert found[output].shape == array.shape
            np.testing.assert_allclose(found[output], array, **CLOSE, err_msg=output)


def test_a_model_that_webgpu_refuses_runs(tmp_path: Path) -> None:
    g = Graph("doubles")
    x = g.input("x", Shape([Dim("n", 1, 64), 4], "f64"))
    g.set_outputs({"y": ops.exp(x) * 3.0})
    assert "webgpu" in export_web(g, tmp_path).refused
    given = {"x": graphs.normal(0, 5, 4).astype(np.float64)}
    answer = node.answered(tmp_path, [{"inputs": web.sent(given)}])
    assert answer["engine"] == "wasm"
    assert "WGSL has no 64-bit floats" in answer["why"]
    (found,) = (web.received(c["outputs"], {"y": np.float64}) for c in answer["calls"])
    np.testing.assert_allclose(found["y"], 3 * np.exp(given["x"]), rtol=1e-14)


def test_without_webgpu_a_folder_of_both_engines_runs(tmp_path: Path) -> None:
    graph, params, (few, *_) = graphs.branching()
    export_web(graph, tmp_path, params=params)
    calls = [{"inputs": web.sent(few)}, {"inputs": web.sent(few), "options": {"keep": True}}]
    answer = node.answered(tmp_path, calls)
    assert answer["engine"] == "wasm"
    assert "there is no WebGPU" in answer["why"]
    made, kept = answer["calls"]
    want = web.expected(graph, params, few)
    found = web.received(made["outputs"], dtypes_of(graph))
    np.testing.assert_allclose(found["y"], want["y"], **CLOSE)
    assert "stay on the GPU" in kept["error"]
    assert "there is no WebGPU" in node.answered(tmp_path, [], engine="webgpu")["error"]
    assert 'no engine "cpu"' in node.answered(tmp_path, [], engine="cpu")["error"]


def test_relaxed_simd_is_used_where_it_is_there(layers: Path) -> None:
    graph, params, (few, *_) = graphs.layers()
    want = web.expected(graph, params, few)["y"]
    calls = [{"inputs": web.sent(few)}]
    relaxed = node.answered(layers, calls, simd="relaxed")
    has_it = "error" not in relaxed
    assert has_it or "no WebAssembly with 128-bit relaxed SIMD" in relaxed["error"]
    usual, plain = node.answered(layers, calls), node.answered(layers, calls, simd="simd")
    assert ("relaxed" in usual["adapter"]) == has_it
    assert plain["adapter"] == "128-bit SIMD, one thread"
    for answer in (usual, plain):
        found = web.received(answer["calls"][0]["outputs"], dtypes_of(graph))
        np.testing.assert_allclose(found["y"], want, **CLOSE)


def test_memory_grows_with_sizes_alone(layers: Path) -> None:
    _, _, (few, many, *_) = graphs.layers()
    few, many = ({"inputs": web.sent(g)} for g in (few, many))
    once, often = (node.answered(layers, [few, many, few] * n)["memory"] for n in (1, 30))
    assert once == often


def test_failures_name_their_node_and_leave_the_model_whole(tmp_path: Path) -> None:
    graph, params, calls = graphs.gathering()
    export_web(graph, tmp_path, params=params, engines=("wasm",))
    answer = node.answered(tmp_path, [{"inputs": web.sent(c)} for c in calls])
    good, bad, again = answer["calls"]
    assert (bad["name"], "range" in bad["error"]) == ("RlxError", True)
    assert "gather" in bad["node"]
    assert again == good


def test_more_memory_than_webassembly_has_is_refused(tmp_path: Path) -> None:
    graph, params, calls = graphs.measuring()
    export_web(graph, tmp_path, params=params, engines=("wasm",))
    huge = {**calls[0], "n": np.array(1 << 30)}
    answer = node.answered(tmp_path, [{"inputs": web.sent(c)} for c in (calls[0], huge, calls[0])])
    good, bad, again = answer["calls"]
    assert "WebAssembly has at most 4294967296" in bad["error"]
    assert again == good


def test_what_was_changed_is_not_run(layers: Path) -> None:
    for name in ("program.wasm", "weights.bin"):
        path, raw = layers / name, (layers / name).read_bytes()
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        assert "another SHA-256" in node.answered(layers, [], simd="simd")["error"]
        path.write_bytes(raw)
    assert "error" not in node.answered(layers, [])
