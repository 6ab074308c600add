"""The command line as a user calls it: every verb, on a file of ONNX's and on a graph by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.__main__ import main
from rlx.backends.cpu.backend import CpuBackend
from rlx.cli.app import VERBS
from rlx.core.errors import InternalError
from rlx.cost.calibrate import Numbers
from rlx.runtime.doctor import TargetState

F = TensorProto.FLOAT
ON_MODELS = ("bench", "check", "compile", "explain", "run", "trace")
"""Verbs whose first argument is a model."""
QUICK = {"bench": ["--rounds", "1", "--threads", "1"], "compile": ["-o", "made.rlx"]}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model() -> str:
    """relu(x · w) of any number of rows."""
    weights = numpy_helper.from_array(np.full((80, 4), 0.5, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Relu", ["m"], ["y"], "cut"),
    ]
    return saved(nodes, [weights], ["n", 80], ["n", 4])


@pytest.fixture
def text() -> str:
    """The same, by hand: its weights are in no file."""
    g = rlx.Graph("net")
    x, w = g.input("x", rlx.Shape([rlx.Dim("n"), 80])), g.param("w", rlx.Shape([80, 4]))
    g.set_outputs({"y": g.relu(g.mm(x, w))})
    Path("net.ir").write_text(str(g))
    return "net.ir"


def saved(nodes: list, weights: list, given: list, made: list) -> str:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", F, given)],
        [helper.make_tensor_value_info("y", F, made)], weights,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(proto, "model.onnx")
    return "model.onnx"


def called(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a call prints; one that fails says why in one line."""
    got = main(list(arguments))
    out, err = capsys.readouterr()
    assert got == code, err
    if code:
        assert err.startswith("rlx"), err
        assert err.count("\n") == 1, err
        return err
    return out


# -- every verb ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ON_MODELS)
@pytest.mark.parametrize("kind", ["model", "text"])
def test_models_of_both_kinds(
    verb: str, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(kind)
    assert called(capsys, verb, path, *QUICK.get(verb, []))
    assert json.loads(called(capsys, verb, path, "--json", *QUICK.get(verb, [])))


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Example: rlx {verb}" in called(capsys, verb, "--help")


@pytest.mark.parametrize("verb", ON_MODELS)
def test_bad_models_are_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.onnx").write_bytes(b"hello")
    Path("bad.ir").write_text("hello")
    Path("bad.rlx").write_bytes(b"hello")
    Path("bad.txt").write_text("hello")
    Path("folder").mkdir()
    for path in ("missing.onnx", "bad.onnx", "bad.ir", "bad.rlx", "bad.txt", "folder"):
        assert Path(path).stem in called(capsys, verb, path, code=2)


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_calls_are_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"rlx {verb} --help" in called(capsys, verb, "--nonsense", code=2)


@pytest.mark.parametrize("verb", ON_MODELS)
def test_unknown_targets_are_named(
    verb: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'abacus'" in called(capsys, verb, model, "--target", "abacus", code=2)
    called(capsys, verb, code=2)


@pytest.mark.parametrize("verb", ["bench", "run"])
def test_bad_inputs_are_one_line(
    verb: str, model: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("x.npy", np.ones((3, 7), np.float32))
    for option, value in (
        ("--input", "z=x.npy"), ("--input", "x=none.npy"), ("--input", f"x={model}"),
        ("--input", "x=x.npy"), ("--dim", "z=3"),
    ):  # fmt: skip
        called(capsys, verb, model, option, value, code=2)
    for value in ("z=x.npy", "w=none.npy", "w=x.npy"):
        called(capsys, verb, text, "--param", value, code=2)
    for option in ("--input", "--param", "--dim", "--threads", "--seed"):
        called(capsys, verb, model, option, "nothing", code=2)


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        ("run", "--output"),
        ("compile", "--output"),
        ("trace", "--output"),
        ("explain", "--svg"),
        ("explain", "--html"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    verb: str, option: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (f"{model}/inside", "/proc/none/inside"):
        assert "cannot be written" in called(capsys, verb, model, option, path, code=2)


# -- each ------------------------------------------------------------------------------------------


def test_check_says_what_runs(model: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs on cpu: of 2 nodes, 2 run by native kernels" in called(capsys, "check", model)
    assert "runs on cpu: of 2 nodes, 2 run by native kernels" in called(capsys, "check", text)
    found = json.loads(called(capsys, "check", model, "--json", "--target", "cuda"))
    assert found["runs"] is True
    assert "2 run by native kernels" in called(capsys, "check", model, "--target", "rocm")
    assert [(n["name"], n["op"]) for n in found["nodes"]] == [
        ("product", "MatMul"), ("cut", "Relu"),
    ]  # fmt: skip


def test_check_names_every_operator_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("Nowhere", ["x"], ["m"], "first"),
        helper.make_node("Else", ["m"], ["y"], "second", domain="other"),
    ]
    path = saved(nodes, [], [4], [4])
    assert main(["check", path]) == 1
    out = capsys.readouterr().out
    assert "cannot run" in out
    assert "Nowhere 'first'" in out
    assert "Else 'second'" in out
    assert main(["check", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"] is False


def test_check_names_the_node_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"], "turn", perm=[5])]
    assert "'turn'" in called(capsys, "check", saved(nodes, [], [4], [4]), code=2)


@pytest.mark.parametrize("error", [InternalError("a loop comes twice"), KeyError("loop")])
def test_a_bug_of_rlx_is_no_lack_of_the_target(
    error: Exception,
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table of nodes stays, and stderr says what went wrong, of which kernel and node."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setenv("RLX_CACHE", "off")
    monkeypatch.setattr("rlx.backends.cpu.schedule.loop.check", broken)
    assert main(["check", model]) == 1
    out, err = capsys.readouterr()
    assert "cannot run on cpu: compiling it meets a bug of rlx\nof 2 nodes, 2 run by native" in out
    assert "not supported" not in out
    assert "This is a bug of rlx: please report it." in err
    assert err.count("\n") == 1
    if isinstance(error, InternalError):
        assert "a loop comes twice" in err
        assert "at onnx product" in err
    assert main(["check", model, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["is_bug"], found["counts"]["missing"]) == (False, True, 0)
    assert "loop" in found["failure"]


def test_verbs_share_the_program_of_a_model(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no size is stated, what one verb compiled the others find."""
    monkeypatch.setenv("RLX_CACHE", "on")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    for words in (["run"], ["check"], ["bench", "--rounds", "1"]):
        called(capsys, words[0], model, *words[1:])
    held = json.loads(called(capsys, "cache", "--json"))["entries"]
    assert [e["name"] for e in held if e["kind"] == "program"] == ["model"]
    called(capsys, "bench", model, "--rounds", "1", "--dim", "n=9")
    held = json.loads(called(capsys, "cache", "--json"))["entries"]
    assert len([e for e in held if e["kind"] == "program"]) == 2, "it is priced at n=9"


def test_run_on_files(model: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.ones((3, 80), np.float32))
    np.save("w.npy", np.full((80, 4), 0.25, np.float32))
    out = called(capsys, "run", model, "--input", "x=x.npy", "--output", "made")
    assert "out y: f32[3, 4] 40 to 40" in out
    np.testing.assert_array_equal(np.load("made/y.npy"), np.full((3, 4), 40, np.float32))
    out = called(capsys, "run", text, "--input", "x=x.npy", "--param", "w=w.npy", "--json")
    assert json.loads(out)["outputs"]["y"]["mean"] == 20


def test_run_on_random_inputs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = called(capsys, "run", model, "--dim", "n=5")
    assert "in  x: f32[5, 80]" in first
    assert called(capsys, "run", model, "--dim", "n=5") == first
    assert called(capsys, "run", model, "--dim", "n=5", "--seed", "1") != first


def test_run_on_a_number(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An input is filled with it, as models ask for rates and thresholds that no draw would hit."""
    out = called(capsys, "run", model, "--input", "x=1", "--dim", "n=3")
    assert "in  x: f32[3, 80] 1 to 1" in out
    assert "out y: f32[3, 4] 40 to 40" in out


def test_compile_writes_a_program(
    model: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "with weights" in called(capsys, "compile", model)
    x = np.ones((3, 80), np.float32)
    np.testing.assert_array_equal(rlx.load("model.rlx")(x), np.full((3, 4), 40, np.float32))
    for verb in ("run", "explain"):
        assert called(capsys, verb, "model.rlx")
    assert "without weights" in called(capsys, "compile", model, "--no-weights", "-o", "bare.rlx")
    told = called(capsys, "compile", model, "--tune", "fast", code=2)
    assert "Invalid value for '--tune': 'fast' is not one of" in told
    found = json.loads(called(capsys, "compile", text, "--json"))
    assert found["file"] == "net.rlx"
    assert not found["has_weights"]
    assert "compiled already" in called(capsys, "check", "net.rlx", code=2)
    assert "does not write its programs" in called(
        capsys, "compile", model, "-t", "reference", code=1
    )


def test_compile_for_inputs_that_decide_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["dims"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["dims"], ["y"]),
    ]
    path = saved(nodes, [], [2], ["a", "b"])
    np.save("x.npy", np.array([3, 5], np.float32))
    found = json.loads(called(capsys, "compile", path, "--input", "x=x.npy", "--json"))
    program = rlx.load(found["file"])
    for dims in ((3, 5), (2, 0), (40, 7)):  # sizes that data decide are found by the program itself
        assert program(np.array(dims, np.float32)).shape == dims


def test_bench_without_the_other_runtime_says_how_to_get_it(
    model: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert called(capsys, "bench", model, "--against", "onnxruntime", code=1) == (
        "rlx bench: onnxruntime is not installed: pip install onnxruntime.\n"
    )
    assert "net.ir" in called(capsys, "bench", text, "--against", "onnxruntime", code=2)


def test_explain_reads_onnx(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "on cpu" in called(capsys, "explain", model, "--plan", "--svg", "arena.svg")
    assert Path("arena.svg").read_text().startswith("<svg")
    found = json.loads(called(capsys, "explain", model, "--json", "--target", "cuda"))
    assert found["target"]["name"] == "cuda"


def test_nodes_without_a_name_are_called_by_what_they_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = numpy_helper.from_array(np.ones((80, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]),
             helper.make_node("Relu", ["m"], ["y"])]  # fmt: skip
    path = saved(nodes, [weights], ["n", 80], ["n", 4])
    told = json.loads(called(capsys, "explain", path, "--json"))
    assert told["model"]["name"] == "model"
    assert told["kernels"][0]["where"] == ["onnx m", "onnx y"]
    checked = json.loads(called(capsys, "check", path, "--json"))
    assert [n["name"] for n in checked["nodes"]] == ["m", "y"]
    assert "matmul" in called(capsys, "explain", path, "--why", "m")


def test_explain_counts_at_the_sizes_of_what_is_given(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("x.npy", np.zeros((3, 80), np.float32))
    assert " at n=1\n" in called(capsys, "explain", model)
    for given in (["--dim", "n=3"], ["--input", "x=x.npy"]):
        told = called(capsys, "explain", model, *given)
        assert "at n=3\n" in told
    assert "at n=1\n" in called(
        capsys, "explain", model, "--measure", "--most", "1", "--seconds", "0.01", "--threads", "1"
    )


def test_explain_lists_all_if_asked(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "run_as_gemm taken" in called(capsys, "explain", model)
    told = called(capsys, "explain", model, "--all")
    assert "more:" not in told
    assert "weights are packed once" in told


def test_explain_follows_a_node(model: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "kernel" in called(capsys, "explain", model, "--why", "product")
    assert json.loads(called(capsys, "explain", text, "--why", "w", "--json"))["name"] == "w"
    assert "'nowhere'" in called(capsys, "explain", model, "--why", "nowhere", code=2)


@pytest.mark.parametrize("kind", ["model", "text"])
def test_explain_measures(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(kind)
    quick = ("--measure", "--most", "1", "--seconds", "0.01", "--threads", "1")
    out = called(capsys, "explain", path, *quick, "--html", "report.html")
    assert "cost model: " in out
    assert "kernels by measured time" in out
    assert "</html>" in Path("report.html").read_text()
    assert "cuda" in called(capsys, "explain", path, *quick, "--target", "cuda", code=1)
    called(capsys, "explain", path, "--most", "0", code=2)
    assert "Add --measure" in called(capsys, "explain", path, "--seconds", "1", code=1)
    assert "with --measure" in called(capsys, "explain", path, "--most", "2", code=1)
    assert "no step" in called(capsys, "explain", path, "--depth", "9", code=1)


def test_diff(model: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.json").write_text(called(capsys, "explain", model, "--json"))
    assert "the same" in called(capsys, "diff", model, "old.json")
    assert main(["diff", "old.json", model, "--other", "cuda"]) == 1
    assert "cuda" in capsys.readouterr().out
    assert main(["diff", model, text, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["after"] == "net for cpu"
    Path("bad.json").write_text("{}")
    for other in ("missing.onnx", "missing.json", "bad.json", "bad.ir"):
        called(capsys, "diff", model, other, code=2)
    called(capsys, "diff", model, code=2)
    assert "'abacus'" in called(capsys, "diff", model, model, "--other", "abacus", code=2)


def test_cache(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    where = ("--folder", str(kept))
    assert "not a folder" in called(capsys, "cache", *where, code=2)
    rlx.compile(rlx.load(model), "cpu", cache=kept)
    found = json.loads(called(capsys, "cache", *where, "--json"))
    assert found["count"] == len(found["entries"]) > 0
    assert "program" in {e["kind"] for e in found["entries"]}
    assert found["bytes"] == sum(p.stat().st_size for p in kept.iterdir())
    assert all(e["name"] for e in found["entries"])
    listed = called(capsys, "cache", *where).splitlines()
    assert listed[0].split() == ["used", "bytes", "kind", "name", "key"]
    at = listed[0].index("name")
    rows = {line[at:].rpartition("  ")[0].strip() for line in listed[1:-1]}
    assert rows == {e["name"] for e in found["entries"]}
    assert str(found["count"]) in called(capsys, "cache", "size", *where)
    assert "0 damaged" in called(capsys, "cache", "verify", *where)
    damaged = kept / f"{found['entries'][0]['key']}.rlx"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert main(["cache", "verify", *where]) == 1
    assert "1 damaged" in capsys.readouterr().out
    called(capsys, "cache", "clear", *where)
    assert list(kept.iterdir()) == []
    assert "'nothing'" in called(capsys, "cache", "nothing", code=2)


def test_cache_that_is_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "RLX_CACHE" in called(capsys, "cache", code=1)


def test_trace_shows_passes_and_kernels(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote trace.json" in called(capsys, "trace", model, "--calls", "2", "--threads", "1")
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    kinds = [e["cat"] for e in events if e["ph"] == "X"]
    assert kinds.count("call") == 2
    assert kinds.count("pass") > 3
    assert "kernel" in kinds
    assert "does not time" in called(capsys, "trace", model, "-t", "reference", code=1)


def test_calibrate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers.of({
        **{f.name: 9.0 for f in fields(Numbers)}, "threads": 1, "gflops": {"f32": 7.0},
        "caches": [{"bytes": 1 << 15, "gb_s": 99.0}],
    })  # fmt: skip
    monkeypatch.setattr(CpuBackend, "measure", lambda self, progress: (numbers,))
    monkeypatch.setenv("RLX_CACHE", "on")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "kept"))
    assert "99 GB/s" in called(capsys, "calibrate")
    found = json.loads(called(capsys, "calibrate", "--json"))
    assert found["numbers"][0]["gflops"] == {"f32": 7.0}
    assert rlx.Session("cpu", threads=1).target.machine.gflops(rlx.DType.F32) == 7.0
    monkeypatch.setenv("RLX_CACHE_DIR", "/proc/none")
    assert "cannot be written" in called(capsys, "calibrate", code=1)
    assert "'abacus'" in called(capsys, "calibrate", "--target", "abacus", code=2)
    called(capsys, "calibrate", "--target", "reference", code=1)


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "targets:" in called(capsys, "doctor")
    found = json.loads(called(capsys, "doctor", "--json"))
    assert {t["name"] for t in found["targets"] if t["is_here"]} >= {"cpu", "reference"}
    monkeypatch.setattr("rlx.runtime.doctor._target", lambda name: TargetState(name, False, ""))
    assert main(["doctor"]) == 1


def test_fuzz(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--graphs", "2", "--steps", "3", "--jobs", "1", "--targets", "cpu,tpu")
    assert "2 graphs, 0 with mismatches" in called(capsys, "fuzz", *few)
    assert "'abacus'" in called(capsys, "fuzz", "--targets", "abacus", code=2)
    assert "'abacus'" in called(capsys, "fuzz", "--backend", "abacus", code=2)
    assert "--backend cpu" in called(capsys, "fuzz", "--guard", code=2)


# -- the whole -------------------------------------------------------------------------------------


def test_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "--version") == f"rlx {rlx.__version__}\n"
    out = called(capsys)
    assert all(f"  {verb} " in out for verb in VERBS)
    assert "'nonsense'" in called(capsys, "nonsense", code=2)


def test_bugs_are_one_line_unless_asked(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("two\nlines")

    monkeypatch.setattr("rlx.cli.models.load", broken)
    assert "TypeError: two lines" in called(capsys, "run", model, code=1)
    assert main(["--traceback", "run", model]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_without_typer_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlx.__main__.NEEDED", ("typer", "no_such_package"))
    assert "pip install 'rlx[cli]'" in called(capsys, "run", "x.onnx", code=1)


def test_shells_complete_verbs_and_targets() -> None:
    def completed(words: str, at: int) -> list[str]:
        env = {"_RLX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from rlx.__main__ import main; sys.exit(main())"],
            env={**os.environ, **env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.split()

    assert completed("rlx ex", 1) == ["explain"]
    assert completed("rlx run --target c", 3) == ["cpu", "cuda"]


def test_neither_rlx_nor_its_use_imports_the_command_line(text: str) -> None:
    code = (
        "import sys, numpy as np, rlx; exe = rlx.compile(rlx.load('net.ir'), 'reference');"
        "exe.set_params({'w': np.ones((80, 4), np.float32)}); exe(np.ones((1, 80), np.float32));"
        "told = str(exe.explain());"
        "print([m for m in ('typer', 'rich', 'rlx.cli') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_explain_reads_branches_over_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """A branch takes one operand more than its sides do."""
    g = rlx.Graph("branch")
    x, w = g.input("x", rlx.Shape([4])), g.param("w", rlx.Shape([4]))
    chosen = g.input("chosen", rlx.Shape([], "bool"))
    g.set_outputs([rlx.cond(chosen, lambda x, w: x * w, lambda x, w: x + w, x, w)])
    Path("branch.ir").write_text(str(g))
    assert "branch on cpu" in called(capsys, "explain", "branch.ir")
