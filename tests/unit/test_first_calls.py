"""Calls that a newcomer writes first: by keyword, by name, of paths and bytes, pickled."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import rlx
from rlx.backends.cpu.runtime.thread_pool import limits
from rlx.core.arrays import as_array
from rlx.core.dlpack import CODES, CPU, Described, dense, produce

BF16 = rlx.DType.BF16.numpy


def two() -> rlx.Executable:
    """Two inputs, a weight, two outputs."""
    g = rlx.Graph("two")
    x, y = g.input("x", rlx.Shape([3])), g.input("y", rlx.Shape([3]))
    w = g.param("w", rlx.Shape([3]))
    g.set_outputs({"sum": x + y * w, "product": x * y})
    return rlx.compile(g, "cpu", cache=False, threads=1, params={"w": np.ones(3, np.float32)})


def added() -> Any:
    values = [h.make_tensor_value_info(n, T.FLOAT, [2]) for n in "xyz"]
    graph = h.make_graph([h.make_node("Add", ["x", "y"], ["z"])], "added", values[:2], values[2:])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


EXE = two()
X, Y = np.float32([1, 2, 3]), np.float32([4, 5, 6])


# -- calls ---------------------------------------------------------------------------------------


def test_inputs_by_keyword_are_those_by_position() -> None:
    wanted = [a.tolist() for a in EXE(X, Y)]
    assert [a.tolist() for a in EXE(x=X, y=Y)] == wanted
    assert [a.tolist() for a in EXE(y=Y, x=X)] == wanted
    assert [a.tolist() for a in EXE(X, y=Y)] == wanted
    assert [a.tolist() for a in EXE.submit(y=Y, x=X).result()] == wanted


def test_run_gives_the_outputs_that_are_asked_for_and_writes_into_arrays() -> None:
    feed, out = {"y": Y, "x": X}, np.empty(3, np.float32)
    assert list(EXE.run(feed)) == ["sum", "product"]
    assert list(EXE.run(feed, ["product"])) == ["product"]
    made = EXE.run(feed, outputs=["product", "sum"], out={"sum": out})
    assert list(made) == ["product", "sum"]
    assert made["sum"] is out
    assert out.tolist() == [5, 7, 9]
    assert EXE(X, y=Y, out={"sum": out})[0] is out


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: EXE(X), r"two: takes 2 inputs \(x, y\), got 1\."),
        (lambda: EXE(), "two: no value for x, y. Inputs: x, y"),
        (lambda: EXE(X, Y, X), r"two: takes 2 inputs \(x, y\), got 3\."),
        (lambda: EXE(X, x=X), "two: x is given by position and by name"),
        (lambda: EXE(X, z=X), "two: there is no input 'z'. It has: x, y"),
        (lambda: EXE(x=X), "two: no value for y"),
        (lambda: EXE({"x": X}, Y), r"input 'x' is a dict. Arrays by name are keywords, exe\(\*\*"),
        (lambda: EXE.run([X, Y]), r"two: inputs are given by name, as a dict.* In order: exe\(x\)"),
        (lambda: EXE.run(None, {"x": X}), r"rlx\.InferenceSession"),
        (lambda: EXE.run({"x": X, "y": Y}, "sum"), "outputs is 'sum'. Give a list of names: sum"),
        (lambda: EXE.run({"x": X, "y": Y}, ["q"]), "there is no output 'q'. It has: sum, product"),
        (lambda: EXE.run({"x": X, "y": Y}, out={"q": X}), "there is no output 'q'"),
    ],
)
def test_the_error_names_the_call_that_works(call: Any, told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        call()


ASKED = r"Give numbers, of f32: rlx has no dtype"
NOT_ARRAYS: list[tuple[Any, str]] = [
    (None, "no value for input 'x'"),
    ("abc", ASKED + " <U3"),
    (b"abc", ASKED + r" \|S3"),
    (object(), ASKED + " object"),
    (np.array([None] * 3), r"got object\[3\]\. " + ASKED + " object"),
    (np.zeros(3, "M8[s]"), ASKED + " datetime64"),
    (np.zeros(3, [("a", "f4")]), ASKED),
    ([1.0, 2, 3], r"'x' is f32, got f64\[3\] in a list\. Give np\.asarray\(…, 'float32'\)"),
    ((1, 2, 3), r"got i64\[3\] in a tuple\. Give np\.asarray\(…, 'float32'\)"),
    (3, r"got i64\[\] in a int\. Give np\.asarray\(…, 'float32'\)"),
    ([[1], [1, 2]], "input 'x' cannot be read as an array"),
    (np.zeros(3), r"got f64\[3\]\. Cast it: x\.astype\('float32'\)"),
    (np.zeros(4, np.float32), r"got f32\[4\]\. Reshape it first"),
]


@pytest.mark.parametrize(("value", "told"), NOT_ARRAYS)
@pytest.mark.parametrize(
    "call",
    [
        EXE,
        lambda x, y: EXE.run({"x": x, "y": y}),
        lambda x, y: EXE.submit(x, y).result(),
        lambda x, y: EXE.step(x, y),
        lambda x, y: rlx.compile(EXE.source, "reference", params=EXE.get_params())(x, y),
    ],
)
def test_what_is_no_array_of_the_input(call: Any, value: Any, told: str) -> None:
    """The advice is one that can be followed: no reshape makes numbers of objects, and lists have
    no method that casts them."""
    with pytest.raises(rlx.Error, match=told):
        call(value, Y)


def test_lists_of_the_declared_dtype_are_arrays() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.input("i", [3], "i64") + 1])
    assert rlx.compile(g, "cpu")([1, 2, 3]).tolist() == [2, 3, 4]


def rows() -> rlx.Executable:
    g = rlx.Graph("rows")
    g.set_outputs([g.input("x", [rlx.Dim("n", 0, 1 << 50), 3]) + 1.0])
    return rlx.compile(g, "reference")


WRONG_CALLS: list[tuple[Any, str]] = [
    (None, "calls is None. Give a list of dicts"),
    (3, "calls is 3. Give a list of dicts"),
    ({"n": 3}, "calls is .* Give a list of dicts"),
    ([3], "rows: a call is 3. Give a dict"),
    ([{"n": -1}], "rows: dim n cannot be -1"),
    ([{"n": "5"}], "rows: dim n cannot be '5'"),
    ([{"n": None}], "rows: dim n cannot be None"),
    ([{"n": 1.5}], "rows: dim n cannot be 1.5"),
    ([{"n": 2**62}], "rows: .*more than 2^63 bytes"),
    ([{"n": 2**50}], "input 'x', .* takes .* bytes, and this machine has"),
    ([{"n": 2**50 + 1, "x": (0, 3)}], r"is f32\[n, 3\] at n=.*, and is given as \[0, 3\]"),
    ([{"x": (1 << 51, 3)}], "input 'x', .* takes .* bytes, and this machine has"),
    ([{"x": (5, 4)}], r"rows: input 'x' is f32\[n, 3\], and is given as \[5, 4\]"),
    ([{"x": (5,)}], r"rows: input 'x' is f32\[n, 3\], and is given as \[5\]"),
    ([{"x": "a"}], r"rows: input 'x' is given as 'a'. Give its shape, x=\(…\), or an array"),
    ([{"x": None}], "rows: input 'x' is given as None"),
    ([{"x": (1.5, 3)}], r"rows: input 'x' is given as \(1.5, 3\)"),
    ([{"x": np.zeros((2, 3))}], r"Cast it: x\.astype\('float32'\)"),
    ([{"x": np.zeros((2, 4), np.float32)}], r"and is given as \[2, 4\]"),
]


@pytest.mark.parametrize(("calls", "told"), WRONG_CALLS)
def test_calls_that_are_described_are_checked(calls: Any, told: str) -> None:
    """Also where one program serves all sizes, and there is nothing to compile."""
    with pytest.raises(rlx.Error, match=told.replace("^", r"\^")):
        rows().warmup(calls)


def test_sizes_are_what_python_takes_for_an_index() -> None:
    rows().warmup(iter([{"n": np.int64(3)}, {"x": (np.int32(5), 3)}, {"x": [0, 3]}, {"n": 4}]))
    rows().warmup([{"x": np.zeros((2, 3), np.float32)}, {"x": Foreign(np.zeros((2, 3), "f4"))}])


def test_one_array_is_the_one_input_and_not_its_rows() -> None:
    x = np.ones((2, 3), np.float32)
    exe = rows()
    assert exe.sizes(x) == exe.sizes([x]) == exe.sizes({"x": x}) == {"n": 2}
    assert exe.arrays(Foreign(x))[0].tolist() == x.tolist()
    assert rlx.compile(exe.source, "cpu").profile(x, seconds=0.001).kernels
    with pytest.raises(rlx.Error, match=r"two: takes 2 inputs \(x, y\), got 1\."):
        EXE.arrays(np.ones((2, 3), np.float32))
    g = rlx.Graph("kept")
    total = g.state("total", [2, 3])
    g.set_outputs([g.assign(total, total + g.input("x", [2, 3]))])
    session = rlx.compile(g, "cpu", cache=False).session()
    assert session.profile(x, seconds=0.001).kernels


def test_an_input_called_out_is_given_by_position_or_by_run() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.input("out", rlx.Shape([2])) + 1.0])
    exe = rlx.compile(g, "reference")
    given = np.ones(2, np.float32)
    assert exe(given).tolist() == exe.run({"out": given})["output0"].tolist() == [2, 2]
    with pytest.raises(rlx.Error, match="The keyword out is for results: give it by position"):
        exe(out=given)


def test_weights_are_given_back() -> None:
    held = EXE.get_params()
    assert held["w"].tolist() == [1, 1, 1]
    assert not held["w"].flags.writeable
    assert rlx.compile(EXE.source, "cpu", cache=False).get_params() == {}


# -- copies --------------------------------------------------------------------------------------


def test_pickled_executables_compute_the_same() -> None:
    made = pickle.loads(pickle.dumps(EXE))
    assert [a.tolist() for a in made(X, Y)] == [a.tolist() for a in EXE(X, Y)]
    assert made.threads == 1
    assert made.get_params()["w"].tolist() == [1, 1, 1]
    with pytest.raises(rlx.UnsupportedError, match="does not write its programs"):
        pickle.dumps(rlx.compile(EXE.source, "reference"))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_have_weights_of_their_own(copied: Any) -> None:
    other = copied(EXE)
    other.set_params({"w": np.zeros(3, np.float32)})
    assert other(X, Y)[0].tolist() == X.tolist()
    assert EXE(X, Y)[0].tolist() == [5, 7, 9]


# -- models of paths, bytes, files and protobufs -------------------------------------------------


def test_a_model_is_loaded_from_whatever_holds_it(tmp_path: Path) -> None:
    path, proto = tmp_path / "m.onnx", added()
    onnx.save(proto, path)
    data = path.read_bytes()
    with path.open("rb") as file:
        sources: list[Any] = [
            path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data), file, proto,
        ]  # fmt: skip
        for source in sources:
            exe = rlx.compile(source, "reference", cache=False)
            assert exe(x=X[:2], y=Y[:2]).tolist() == [5, 7]
    assert rlx.load(path).name == "m"
    assert rlx.load(data).name == "added"


def test_explain_takes_what_load_takes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(added(), path)
    wanted = rlx.explain(rlx.load(path), "cuda")
    assert wanted.target.name == "cuda"
    with path.open("rb") as file:
        for source in (path, str(path), file):
            assert rlx.explain(source, "cuda") == wanted
    assert rlx.explain.replay(path, wanted) == rlx.explain.replay(rlx.load(path), wanted)
    EXE.save(tmp_path / "two.rlx")
    assert rlx.explain(tmp_path / "two.rlx").model.name == "two"
    with pytest.raises(rlx.Error, match="cannot compile a int"):
        rlx.explain(3)
    with pytest.raises(rlx.Error, match="cannot compile a int"):
        rlx.explain.replay(3, wanted)


def test_bytes_are_what_they_begin_with(tmp_path: Path) -> None:
    text = str(EXE.source)
    assert rlx.load(text.encode()) == rlx.load(io.StringIO(text)) == rlx.MirModule(EXE.source)
    rlx.save(EXE.lir, tmp_path / "a.lir")
    assert isinstance(rlx.load((tmp_path / "a.lir").read_bytes()), rlx.LirModule)


def test_machine_code_is_opened_where_a_program_is_asked_for_and_nowhere_else(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "a.rlx", tmp_path / "a.onnx"
    EXE.save(path)
    EXE.save(other)
    data = path.read_bytes()
    for source in (path, other, data, memoryview(data), io.BytesIO(data)):
        assert rlx.load_program(source, threads=1)(X, Y)[1].tolist() == [4, 10, 18]
    assert isinstance(rlx.load(path), rlx.Executable)
    with path.open("rb") as file:
        for source in (data, bytearray(data), memoryview(data), io.BytesIO(data), file, other):
            for call in (rlx.load, rlx.compile, rlx.InferenceSession, rlx.explain):
                with pytest.raises(rlx.Error, match=r"rlx\.load_program|no ONNX model"):
                    call(source)
                if hasattr(source, "seek"):
                    source.seek(0)
    with pytest.raises(rlx.Error, match=r"no file of rlx"):
        rlx.load_program(b"xyz")
    with pytest.raises(rlx.Error, match=r"ModelProto is a model"):
        rlx.load_program(added())


def test_what_holds_no_model_is_an_error(tmp_path: Path) -> None:
    EXE.save(tmp_path / "a.rlx")
    with pytest.raises(rlx.Error, match=r"two is compiled already, for cpu. Use rlx\.load"):
        rlx.compile(tmp_path / "a.rlx")
    (tmp_path / "model").touch()
    with pytest.raises(rlx.Error, match=r"model: its name has no suffix\. It loads"):
        rlx.compile(tmp_path / "model")
    with pytest.raises(rlx.Error, match=r"rlx does not know '\.h5' files"):
        rlx.compile(tmp_path / "model.h5")
    with pytest.raises(rlx.Error, match="what was given is no ONNX model"):
        rlx.load(b"xyz")
    with pytest.raises(rlx.Error, match=r"rlx\.jit compiles it"):
        rlx.compile(lambda x: x)  # pyright: ignore[reportCallIssue, reportArgumentType]
    module = type("Net", (), {"forward": 0, "state_dict": 0})()
    with pytest.raises(rlx.Error, match=r"cannot compile a Net.*torch\.onnx\.export"):
        rlx.compile(module)


# -- arrays of others, and threads ---------------------------------------------------------------


class Foreign:
    """An array of another library: DLPack, and nothing of NumPy's."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, **asked: Any) -> Any:
        array = self.array
        described = Described(
            array.ctypes.data, (CPU, 0), array.dtype, array.shape, dense(array.shape)
        )
        is_versioned = "max_version" in asked  # NumPy writes to no others
        return produce(described, array, is_versioned=is_versioned, is_readonly=False)


@pytest.mark.parametrize("dtype", sorted(CODES, key=str), ids=str)
def test_arrays_of_every_dtype_of_dlpack_are_read_without_a_copy(dtype: np.dtype[Any]) -> None:
    given = np.arange(6).reshape(2, 3).astype(dtype)
    found = as_array(Foreign(given), "x")
    assert found.dtype == dtype
    assert found.tobytes() == given.tobytes()
    assert found.ctypes.data == given.ctypes.data


def test_bf16_of_another_library_is_an_input() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", rlx.Shape([2], "bf16")) * 2.0])
    exe = rlx.compile(g, "cpu", cache=False)
    assert exe(Foreign(np.ones(2, BF16))).tolist() == [2, 2]


def test_blocks_limit_threads() -> None:
    before = limits.most
    with rlx.threads(3):
        with rlx.threads(1), rlx.threads(2):
            assert limits.most == 1
            assert EXE(X, Y)[0].tolist() == [5, 7, 9]
        assert limits.most == 3
    assert limits.most == before


class Converted:
    """An object that NumPy can make an array of, and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array


@pytest.mark.parametrize("kind", [Foreign, Converted])
def test_jit_takes_the_arrays_that_executables_take(kind: Any) -> None:
    """By position, by keyword, and in structures; compiled for their shapes and dtypes."""
    x, y = kind(X), kind(Y)

    @rlx.jit
    def added(pair: Any, *, scale: Any) -> Any:
        return pair["x"] + pair["y"] * scale

    assert EXE(x, y)[0].tolist() == [5, 7, 9]
    assert rlx.jit(lambda x: x + 1.0)(x).tolist() == [2, 3, 4]
    assert added({"x": x, "y": y}, scale=x).tolist() == [5, 12, 21]
    assert added({"x": X, "y": y}, scale=x).tolist() == [5, 12, 21]
    assert added.compiled == 1
    assert added.graph({"x": x, "y": rlx.Shape([3])}, scale=2.0).inputs[0].shape == rlx.Shape([3])
    assert rlx.trace(lambda x: x, x).inputs[0].shape == rlx.Shape([3])
    with pytest.raises(rlx.Error, match="cannot be read as an array"):
        rlx.jit(lambda x: x)([[1], [1, 2]])
    with pytest.raises(rlx.GraphError, match="by position"):
        rlx.jit(lambda x: x)(np.float32)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_8_bit_floats_are_widened_to_what_is_declared(kind: str, dtype: str) -> None:
    """As inputs and as weights; results are written into arrays of other libraries."""
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", [4], dtype) * g.param("w", [4], dtype)])
    exe = rlx.compile(g, "cpu", cache=False)
    x = np.array([0.5, 1, 2, 64], np.float32).astype(getattr(ml_dtypes, kind))
    if (kind, dtype) == ("float8_e8m0fnu", "f16"):
        with pytest.raises(rlx.Error, match=r"Cast it: w\.astype\('float16'\)"):
            exe.set_params({"w": Foreign(x)})
        return
    exe.set_params({"w": Foreign(x)})
    out = np.zeros(4, rlx.DType.of(dtype).numpy)
    assert exe(Foreign(x)).astype(float).tolist() == [0.25, 1, 4, 4096]
    exe(Foreign(x), out=Foreign(out))
    assert out.astype(float).tolist() == [0.25, 1, 4, 4096]
    assert exe.run({"x": x})["output0"].astype(float).tolist() == [0.25, 1, 4, 4096]


def test_8_bit_floats_are_not_rounded_to_integers() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", [4], "i32") + 1])
    with pytest.raises(rlx.Error, match=r"Cast it: x\.astype\('int32'\)"):
        rlx.compile(g, "cpu", cache=False)(np.ones(4, ml_dtypes.float8_e4m3fn))
