"""Loading a file and compiling it: names, weights, caches, and models that calls complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error
from rlx.explain.html import page_of
from rlx.explain.report import Report
from rlx.frontends.onnx import model as reading
from rlx.frontends.onnx.files import CHUNK, ModelFile
from rlx.frontends.onnx.import_cache import recalled

F, I = TensorProto.FLOAT, TensorProto.INT64
WEIGHTS = np.linspace(-1, 1, 32 * 16, dtype=np.float32).reshape(32, 16)


def value(name: str, dims: Any, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def saved(path: Path, nodes: Any, inputs: Any, outputs: Any, weights: Any = ()) -> Path:
    held = [numpy_helper.from_array(a, n) for n, a in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """Two outputs, of two inputs given in another order than they are used."""
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["second/out"]),
        helper.make_node("Neg", ["a:0"], ["first"]),
    ]
    return saved(
        tmp_path / "product.onnx", nodes, [value("a:0", ["n"]), value("b", ["batch", 32])],
        [value("first", ["n"]), value("second/out", ["batch", 16])], {"w": WEIGHTS},
    )  # fmt: skip


A, B = np.arange(3, dtype=np.float32), np.ones((2, 32), np.float32)


def test_names_and_order_are_the_files(product: Path) -> None:
    exe = rlx.compile(rlx.load(product))
    assert list(exe.inputs) == ["a:0", "b"]
    assert list(exe.outputs) == ["first", "second/out"]
    assert [d.name for d in exe.inputs["b"].dims if isinstance(d, rlx.Dim)] == ["batch"]
    first, second = exe(A, B)
    np.testing.assert_array_equal(first, -A)
    by_name = exe.run({"b": B, "a:0": A})
    assert list(by_name) == ["first", "second/out"]
    np.testing.assert_array_equal(by_name["second/out"], second)
    np.testing.assert_allclose(second, B @ WEIGHTS, rtol=1e-5, atol=1e-5)


def test_one_compile_serves_all_sizes(product: Path) -> None:
    exe = rlx.compile(rlx.load(product))
    for batch in range(1, 21):
        made = exe(A, np.ones((batch, 32), np.float32))[1]
        np.testing.assert_allclose(made, np.ones((batch, 32)) @ WEIGHTS, rtol=1e-5, atol=1e-5)


def test_given_params_replace_the_models(product: Path) -> None:
    model = rlx.load(product)
    exe = rlx.compile(model, params={"w": WEIGHTS * 2})
    np.testing.assert_allclose(exe(A, B)[1], B @ WEIGHTS * 2, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rlx.compile(model)(A, B)[1], B @ WEIGHTS, rtol=1e-5, atol=1e-5)
    with pytest.raises(Error, match="no param 'v'"):
        rlx.compile(model, params={"v": WEIGHTS})


def test_weights_are_not_copied_where_they_can_be_used_as_they_are(product: Path) -> None:
    model = rlx.load(product)
    exe = rlx.compile(model, "reference")
    assert exe.loaded.given["w"] is model.params["w"]


def test_large_files_are_mapped_and_their_weights_read_there(tmp_path: Path) -> None:
    weights = np.zeros(1 << 19, np.float32)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    for pad in range(4):  # by how much the weights are shifted in the file
        nodes[0].name = "n" * pad
        path = saved(tmp_path / "large.onnx", nodes, [value("x", [1])], [value("y", [1 << 19])],
                     {"w": weights})  # fmt: skip
        held = rlx.load(path).params["w"]
        if not held.flags.owndata and held.base is not None:
            data = np.frombuffer(path.read_bytes(), np.uint8)
            assert held.nbytes < data.nbytes
            return
    pytest.fail("one of four places is a multiple of four")


# -- the cache ----------------------------------------------------------------------------------

TWICE = """
import sys, numpy as np, rlx
from rlx.frontends.onnx import importer
from rlx.passes import simplify
model = rlx.load(sys.argv[1])
exe = rlx.compile(model, cache=sys.argv[2])
made = exe(np.arange(3, dtype=np.float32), np.ones((2, 32), np.float32))
print("onnx" in sys.modules, model.read is not None, float(made[1].sum()), list(exe.outputs))
print(exe.decisions is not None, len(model.graph.outputs))
"""


def test_a_file_compiled_before_is_not_even_parsed(product: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = {**os.environ, "RLX_CACHE_DIR": str(cache)}
    env.pop("RLX_CACHE", None)
    lines = [
        subprocess.run(
            [sys.executable, "-c", TWICE, str(product), str(cache)],
            env=env, capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]  # fmt: skip
    first, second = lines
    assert first[0].startswith("True True ")
    assert second[0].startswith("False False ")
    assert first[0].removeprefix("True True ") == second[0].removeprefix("False False ")
    assert first[1] == second[1] == "True 2"


def load(path: Path, cache: Path) -> Any:
    return reading.load(path, cache=cache)


def test_a_changed_file_is_read_anew(product: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert load(product, cache).summary is None
    assert load(product, cache).summary is not None
    data = product.read_bytes()
    at = data.index(WEIGHTS.tobytes())
    product.write_bytes(data[:at] + (WEIGHTS + 1).tobytes() + data[at + WEIGHTS.nbytes :])
    changed = load(product, cache)
    assert changed.summary is None
    np.testing.assert_array_equal(changed.params["w"], WEIGHTS + 1)


def test_what_is_recalled_is_what_was_read(product: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read, known = load(product, cache), load(product, cache)
    assert (known.inputs, known.outputs, known.name) == (read.inputs, read.outputs, read.name)
    assert known.digest == read.digest
    assert list(known.params) == list(read.params)
    for name, array in read.params.items():
        np.testing.assert_array_equal(known.params[name], array)
    assert known.graph == read.graph


def beside(folder: Path) -> Path:
    """A model whose weights, also one that is a constant of the graph, are in a file beside it."""
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["m"]),
        helper.make_node("Mul", ["m", "s"], ["y"]),
    ]
    path = saved(folder / "m.onnx", nodes, [value("b", ["batch", 32])], [value("y", ["batch", 16])],
                 {"w": WEIGHTS, "s": np.float32([3])})  # fmt: skip
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def test_weights_beside_the_model_count_by_their_stamp(tmp_path: Path) -> None:
    path, cache = beside(tmp_path), tmp_path / "cache"
    assert load(path, cache).summary is None
    known = load(path, cache)
    assert known.summary is not None
    np.testing.assert_allclose(rlx.compile(known)(B), B @ WEIGHTS * 3, rtol=1e-5, atol=1e-5)
    data = tmp_path / "m.data"
    content = data.read_bytes().replace(np.float32(3).tobytes(), np.float32(5).tobytes())
    data.unlink()
    data.write_bytes(content)
    changed = load(path, cache)
    assert changed.summary is None
    np.testing.assert_allclose(rlx.compile(changed)(B), B @ WEIGHTS * 5, rtol=1e-5, atol=1e-5)


def test_weights_beside_the_model_that_went_away_are_an_error(tmp_path: Path) -> None:
    path, cache = beside(tmp_path), tmp_path / "cache"
    load(path, cache)
    (tmp_path / "m.data").unlink()
    with pytest.raises(Error, match=r"m\.data"):
        load(path, cache)


def test_a_torn_entry_is_read_anew(product: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    load(product, folder)
    for entry in folder.iterdir():
        entry.write_bytes(entry.read_bytes()[:-7])
    assert recalled(ModelFile.open(product), Cache(folder)) is None
    assert load(product, folder).summary is None


# -- models that calls complete -----------------------------------------------------------------


@pytest.fixture
def reshaped(tmp_path: Path) -> Path:
    """A shape that is an input."""
    return saved(
        tmp_path / "r.onnx", [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [value("x", ["n"]), value("s", [2], I)], [value("y", ["a", "b"])],
    )  # fmt: skip


def test_a_shape_that_is_an_input_makes_it_static(reshaped: Path) -> None:
    exe = rlx.compile(rlx.load(reshaped))
    assert isinstance(exe, rlx.Executable)
    assert list(exe.inputs) == ["x", "s"]
    assert list(exe.outputs) == ["y"]
    x = np.arange(6, dtype=np.float32)
    for dims in ((2, 3), (3, 2), (6, 1), (2, 3)):
        np.testing.assert_array_equal(exe(x, np.array(dims)), x.reshape(dims))
    np.testing.assert_array_equal(exe.run({"s": np.array([1, 6]), "x": x})["y"], x.reshape(1, 6))
    assert exe.static == ("s",)
    why = exe.decisions[0]
    assert (why.what, why.where, why.kind) == ("compile_per_values", ("s",), "import")
    assert "decides a shape" in why.reason or "depends" in why.reason


def test_a_program_for_each_call_is_explained_like_one_for_all(reshaped: Path) -> None:
    exe = rlx.compile(rlx.load(reshaped), "cpu")
    with pytest.raises(Error, match="Call it, or"):
        rlx.explain(exe)
    x = np.arange(6, dtype=np.float32)
    wide = exe.explain([x, np.array([2, 3])])
    tall = exe.explain({"s": np.array([3, 2]), "x": x})
    assert exe.explain() == rlx.explain(exe) == tall
    assert len(exe.programs) == 2
    assert [o.shape for o in (*wide.model.outputs, *tall.model.outputs)] == [
        "f32[2, 3]",
        "f32[3, 2]",
    ]
    assert wide.decisions[0].what == "compile_per_values"
    assert Report.from_json(wide.to_json()) == wide
    assert "compile_per_values" in str(wide)
    assert "</html>" in page_of(wide, exe.trace([x, np.array([2, 3])], calls=1))
    assert rlx.explain.diff(wide, exe.explain([x, np.array([2, 3])])).is_same
    assert "kernel" in str(rlx.explain.why(wide, "y"))
    timed = exe.explain([x, np.array([2, 3])], measure=True, most=1, seconds=0)
    assert "gate" in timed.timings
    assert any(k.measured for k in timed.kernels)


def test_wrong_inputs_of_a_static_model_are_errors(reshaped: Path) -> None:
    exe = rlx.compile(rlx.load(reshaped))
    x, good = np.arange(6, dtype=np.float32), np.array([2, 3])
    for given in (
        (x,), (x, good, good), (x.astype(np.float64), good), (x, good.astype(np.int32)),
        (x, np.array([2, 3, 1])), (x.reshape(2, 3), good), (x, np.array([4, 4])),
        (x, np.array([-1, -1])), (x, np.array([1 << 62, 4])),
    ):  # fmt: skip
        with pytest.raises(Error):
            exe(*given)
    with pytest.raises(Error, match="no value for s"):
        exe.run({"x": x})


def test_readings_are_bounded(reshaped: Path) -> None:
    model = rlx.load(reshaped)
    x = np.zeros(1 << 10, np.float32)
    for i in range(1, 60):
        model.specialised([x[: 2 * i], np.array([2, i])])
    assert len(model._known) <= reading.MAX_KEPT  # pyright: ignore


def test_without_the_package_one_line_says_how_to_get_it(
    product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Error, match=r"pip install 'rlx\[onnx\]'\.$"):
        rlx.load(product)


def test_the_digest_of_a_file_is_that_of_all_its_bytes(tmp_path: Path) -> None:
    """In chunks that threads hash, each byte and its place count, and the length."""
    data = bytearray(3 * CHUNK + 17)
    path, found = tmp_path / "model", set[str]()
    cases = [data, data[:-1], data[:CHUNK], data[:10], data[:0]]
    for place in (0, CHUNK - 1, CHUNK, len(data) - 1):
        cases.append(bytearray(data))
        cases[-1][place] = 1
    for case in cases:
        path.write_bytes(case)
        file = ModelFile.open(path)
        assert file.digest() == file.digest()
        found.add(file.digest())
    assert len(found) == len(cases)
