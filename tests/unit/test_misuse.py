"""Calls with arguments of the wrong type: every public callable, every argument, one error.

For each call below every argument is replaced in turn by values that it is not meant for. What
comes back is a result or an rlx.Error, never what some line inside happened to raise. A public name
that has no call here fails the test of coverage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.__main__ import main
from tests.effort import sample

X = np.ones((3, 4), np.float32)
PARAMS = {"w": np.ones((4, 2), np.float32)}
WRONG: list[Any] = [
    None, 0, -1, 1.5, float("nan"), True, "x", "", b"x", [], {}, object(), np.ones(2), [None],
    {"x": object()}, {5: 5}, 10**30, "cuda", ("a",), {1, 2}, Path("q"), rlx.Shape([2]), "\ud800",
    "a\0b",
]  # fmt: skip
Call = tuple[Callable[..., Any], dict[str, Any]]


def graph() -> rlx.Graph:
    g = rlx.Graph("g")
    x, w = g.input("x", rlx.Shape([rlx.Dim("n", 1, 9), 4])), g.param("w", rlx.Shape([4, 2]))
    g.set_outputs({"y": g.mm(x, w)})
    return g


def stateful() -> rlx.StateSession:
    g = rlx.Graph("kept")
    x, n = g.input("x", [1, 2]), g.state("n", [], rlx.DType.I64)
    rows = g.state("rows", [3, rlx.Dim("k", 1, 9), 2])
    at = g.input("at", [3], rlx.DType.I64)
    kept = g.append(rows, g.tile(g.reshape(x, (1, 1, 2)), repeats=(3, 1, 1)), at, axis=1)
    g.assign(n, g.add(n, 1))
    g.set_outputs({"y": g.sum(kept)})
    return rlx.compile(g, "cpu", cache=False).session(k=4, history=9)


def module() -> rlx.HirModule:
    m = rlx.HirModule("m")
    m.set_outputs([m.exp(m.input("x", rlx.Shape([2])))])
    return m


def fresh(method: str) -> Callable[..., Any]:
    """A method of a graph that nothing was built in."""
    return lambda **given: getattr(rlx.Graph("g"), method)(**given)


EXE = rlx.compile(graph(), "cpu", cache=False, params=PARAMS)
KEPT, ROW = stateful(), {"x": np.ones((1, 2), np.float32), "at": np.zeros(3, np.int64)}
PIPELINE, SESSION = rlx.CompilePipeline(), rlx.Session("reference", cache=False)
PROFILE = rlx.profile_graph_io(graph())
NODE = EXE.lir.mir.graph.outputs[0]
REPORT = EXE.explain()
LEAF = {"name": "x", "shape": rlx.Shape([2]), "dtype": None}
REQUEST: dict[str, Any] = {
    "model": graph(), "threads": 1, "cache": False, "precision": None, "options": None,
    "params": PARAMS,
}  # fmt: skip

CALLS: dict[str, Call] = {
    "compile": (rlx.compile, {**REQUEST, "target": "reference", "like": "cuda"}),
    "compile on cpu": (lambda **o: rlx.compile(graph(), "cpu", **o), {"threads": 1}),
    "Session": (rlx.Session, {"target": "cpu", "like": None, "threads": None, "cache": False}),
    "Session.compile": (
        SESSION.compile, {k: REQUEST[k] for k in ("model", "precision", "options", "params")},
    ),
    "load": (rlx.load, {"source": "m.rlx", "threads": 1}),
    "load_program": (rlx.load_program, {"source": "m.rlx", "threads": 1}),
    "load of text": (rlx.load, {"source": "m.ir", "threads": 1}),
    "InferenceSession": (rlx.InferenceSession, {
        "path_or_bytes": "m.rlx", "sess_options": None, "providers": ["CPUExecutionProvider"],
        "provider_options": [{}],
    }),
    "InferenceSession.run": (
        lambda names, feed: rlx.InferenceSession("m.rlx").run(names, feed),
        {"names": None, "feed": {"x": X}},
    ),
    "InferenceSession.run of names": (
        lambda name: rlx.InferenceSession("m.rlx").run([name, name], {"x": X}), {"name": "y"},
    ),
    "explain": (rlx.explain, {"model": graph(), "target": "cpu", "options": None}),
    "explain of a path": (rlx.explain, {"model": "m.ir"}),
    "explain.why": (rlx.explain.why, {"report": REPORT, "name": "y"}),
    "explain.diff": (rlx.explain.diff, {"before": REPORT, "after": REPORT}),
    "explain.replay": (rlx.explain.replay, {"model": graph(), "report": REPORT}),
    "threads": (rlx.threads, {"most": 2}),
    "save": (rlx.save, {"model": graph(), "path": "a.ir"}),
    "export_web": (
        rlx.export_web,
        {
            "model": graph(), "folder": "web", "params": PARAMS, "options": None, "has_f16": False,
            "engines": ("wasm",), "inputs": None,
        },
    ),
    "Executable.session": (
        lambda history, k: rlx.Executable(KEPT._loaded).session(history=history, k=k),  # pyright: ignore[reportPrivateUsage]
        {"history": 1, "k": 3},
    ),
    "StateSession.__call__": (lambda x, at: KEPT(x, at=at), ROW),
    "StateSession.run": (KEPT.run, {"inputs": ROW, "outputs": ["y"], "out": None}),
    "StateSession.state": (KEPT.state, {"name": "n"}),
    "StateSession.set_state": (KEPT.set_state, {"name": "n", "value": np.array(3)}),
    "StateSession.rewind": (lambda calls: [KEPT(**ROW), KEPT.rewind(calls)], {"calls": 1}),
    "StateSession.shift_rows": (KEPT.shift_rows, {"entry": 0, "first": 1, "count": 2}),
    "StateSession.copy_rows": (KEPT.copy_rows, {"source": 0, "target": 1, "count": 2}),
    "StateSession.save": (KEPT.save, {"path": "s.rlx"}),
    "StateSession.load": (lambda path: [KEPT.save("s.rlx"), KEPT.load(path)], {"path": "s.rlx"}),
    "Executable.save": (EXE.save, {"path": "a.rlx", "weights": True}),
    "Executable": (
        rlx.Executable, {"loaded": EXE.loaded, "variants": None, "source": None, "before": ()},
    ),
    "Executable.load": (
        lambda path, threads, device: [EXE.save("e.rlx"), rlx.Executable.load(
            path, threads=threads, device=device
        )],
        {"path": "e.rlx", "threads": None, "device": None},
    ),
    "Executable.warmup": (EXE.warmup, {"calls": [{"n": 3}]}),
    "Executable.warmup of an input": (lambda x: EXE.warmup([{"x": x}]), {"x": (2, 4)}),
    "Executable.settled": (EXE.settled, {"inputs": [X]}),
    "Executable.step": (lambda x: [EXE.step(x), EXE.finish()], {"x": X}),
    "Executable.measure": (EXE.measure, {
        "inputs": [X], "most": 1, "seconds": 0.01, "progress": None,
    }),
    "Executable.prologue": (EXE.prologue, {"params": PARAMS}),
    "Executable.code_facts": (EXE.code_facts, {"n": 3}),
    "Executable.set_params": (EXE.set_params, {"params": PARAMS}),
    "Executable.run": (EXE.run, {"inputs": {"x": X}, "outputs": ["y"], "out": None}),
    "Executable.__call__": (lambda x, out: EXE(x, out=out), {"x": X, "out": None}),
    "Executable.__call__ by keyword": (lambda x, out: EXE(x=x, out=out), {"x": X, "out": None}),
    "Executable.submit": (lambda x: EXE.submit(x=x).result(), {"x": X}),
    "Executable.memory": (EXE.memory, {"n": 3}),
    "Executable.explain": (EXE.explain, {
        "inputs": [X], "measure": False, "most": 1, "seconds": 0.01, "progress": None,
    }),
    "Executable.profile": (EXE.profile, {"inputs": [X], "seconds": 0.01}),
    "Executable.trace": (EXE.trace, {"inputs": [X], "calls": 1}),
    "Executable.arrays": (EXE.arrays, {"inputs": [X]}),
    "Executable.sizes": (EXE.sizes, {"inputs": [X]}),
    "CompilePipeline": (rlx.CompilePipeline, {
        "target": "cpu", "options": None, "alignment": 64, "assert_fusion_clean": False,
    }),
    "CompilePipeline.compile": (PIPELINE.compile, {"model": graph()}),
    "CompilePipeline.compile_hir": (PIPELINE.compile_hir, {"module": module()}),
    "CompilePipeline.compile_mir": (PIPELINE.compile_mir, {"module": rlx.MirModule(graph())}),
    "CompilePipeline.compile_graph": (PIPELINE.compile_graph, {"graph": graph()}),
    "CompilePipeline.compile_module": (PIPELINE.compile_module, {"module": EXE.lir}),
    "CompilePipeline.dispatch": (PIPELINE.dispatch, {"model": graph()}),
    "CompileResult.specialize": (EXE.result.specialize, {"binding": {"n": 3}}),
    "Graph": (rlx.Graph, {"name": "g"}),
    "Graph.input": (fresh("input"), LEAF),
    "Graph.state": (fresh("state"), {**LEAF, "init": 1.0}),
    "Graph.param": (fresh("param"), LEAF),
    "Graph.constant": (fresh("constant"), {"value": 1}),
    "Graph.node": (fresh("node"), {"op": "constant", "inputs": (), "attrs": {"value": X}}),
    "Graph.set_outputs": (fresh("set_outputs"), {"outputs": []}),
    "Graph.find": (graph().find, {"name": "x"}),
    "Graph.bind": (graph().bind, {"binding": {"n": 3}}),
    "Graph.rebuild": (graph().rebuild, {"make": None}),
    "HirModule": (rlx.HirModule, {"name": "m", "policy": rlx.FusionPolicy.DIRECT}),
    "HirModule.input": (lambda **given: rlx.HirModule().input(**given), LEAF),
    "HirModule.set_outputs": (lambda **o: rlx.HirModule().set_outputs(**o), {"outputs": []}),
    "MirModule": (rlx.MirModule, {"graph": graph()}),
    "GraphModule": (rlx.GraphModule, {"value": module()}),
    "GraphModule.define": (rlx.GraphModule.define, {
        "name": "d", "policy": rlx.FusionPolicy.DIRECT,
        "build": lambda m: m.exp(m.input("x", rlx.Shape([2]))),
    }),
    "GraphModule.from_graph": (rlx.GraphModule.from_graph, {"graph": graph()}),
    "GraphModule.from_hir": (rlx.GraphModule.from_hir, {"module": module()}),
    "Shape": (rlx.Shape, {"dims": [2, 3], "dtype": "f32"}),
    "Shape.dim": (rlx.Shape([2, 3]).dim, {"axis": 0}),
    "Shape.with_dim": (rlx.Shape([2, 3]).with_dim, {"axis": 0, "dim": 3}),
    "Shape.with_dims": (rlx.Shape([2, 3]).with_dims, {"dims": [3]}),
    "Shape.with_dtype": (rlx.Shape([2, 3]).with_dtype, {"dtype": "f64"}),
    "Shape.bind": (rlx.Shape([rlx.Dim("n")]).bind, {"binding": {"n": 3}}),
    "Shape.broadcast_with": (rlx.Shape([2, 3]).broadcast_with, {"other": rlx.Shape([3])}),
    "Dim": (rlx.Dim, {"name": "n", "min": 1, "max": 5}),
    "DimBinding": (rlx.DimBinding, {"sizes": {"n": 3}}),
    "DType.of": (rlx.DType.of, {"value": "f32"}),
    "FusionOptions": (rlx.FusionOptions, {
        "skip_fusion": False, "limits": None, "dispatch": None, "force": {}, "precision": None,
        "sizes": {},
    }),
    "DispatchPolicy": (rlx.DispatchPolicy, {
        "mode": "prefer_native", "force_common": frozenset(), "force_native": frozenset(),
    }),
    "FusionLimits": (
        rlx.FusionLimits, dict.fromkeys(inspect.signature(rlx.FusionLimits).parameters),
    ),
    "IoFusionGate": (rlx.IoFusionGate, {
        f: getattr(rlx.Target.of("cpu").gate, f)
        for f in inspect.signature(rlx.IoFusionGate).parameters
    }),
    "Target": (rlx.Target.of, {"target": "cpu"}),
    "profile_graph_io": (rlx.profile_graph_io, {"graph": graph()}),
    "host_sync_op_kinds": (rlx.host_sync_op_kinds, {"target": None}),
    "fusion_benefit": (rlx.fusion_benefit, {"before": PROFILE, "after": PROFILE}),
    "custom_op": (
        rlx.custom_op, {"name": "misuse", "reference": np.exp, "shape": rlx.Shape.broadcast_with},
    ),
    "trace": (
        lambda function, shape, name: rlx.trace(function, shape, name=name),
        {"function": lambda x: x, "shape": rlx.Shape([2]), "name": "t"},
    ),
    "jit": (rlx.jit, {"function": lambda x: x}),
    "jit with options": (
        lambda target: rlx.jit(target=target)(lambda x: x)(np.ones(2)), {"target": "reference"},
    ),
    "jit called": (lambda x: rlx.jit(lambda x: x, target="reference")(x), {"x": np.ones(2)}),
    "cond": (
        lambda **o: rlx.cond(*o.values()),
        {"pred": True, "then": lambda x: x, "else": lambda x: x, "value": np.ones(2)},
    ),
    "while_loop": (
        lambda c, b, x, most: rlx.while_loop(c, b, x, max_iterations=most),
        {"c": lambda x: rlx.ops.less(x, 3.0), "b": lambda x: x + 1, "x": np.float32(0), "most": 5},
    ),
    "scan_loop": (rlx.scan_loop, {
        "body_fn": lambda c, x, *_: (c + x, c), "init": np.float32(0),
        "xs": np.ones(3, np.float32), "bcasts": (), "length": None, "reverse": False,
    }),
    "BufferPlan.bind": (EXE.lir.plan.bind, {"sizes": {"n": 3}}),
    "BufferPlan.phase_of": (EXE.lir.plan.phase_of, {"node": NODE}),
    "BufferPlan.slot": (EXE.lir.plan.slot, {"node": NODE}),
}  # fmt: skip

NO_CALL = {
    "Decision", "DispatchReport", "FusionBenefit", "FusionReport", "GraphIoOptions",
    "GraphIoProfile", "LirModule", "CompileResult", "Node", "Error", "GraphError",
    "UnsupportedError", "FusionPolicy", "FusionTarget", "GraphStage", "Phase", "DType",
    "BufferPlan", "IoManifest", "Layout", "Slot", "Space", "View", "__version__",
    "ops", "sym", "lm", "torch",
    "from_pretrained",  # needs torch: tests/torch
}  # fmt: skip
"""Values that rlx gives, enumerations, errors and modules: nobody calls them with arguments."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.ir").write_text(str(graph()))
    EXE.save("m.rlx")


def test_every_public_name_is_called() -> None:
    called = {name.split(".")[0].split()[0] for name in CALLS}
    missing = set(rlx.__all__) - called - NO_CALL
    assert not {n for n in missing if callable(getattr(rlx, n))}, missing


@pytest.mark.filterwarnings("ignore:.* cannot run here")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_an_error_of_rlx(name: str) -> None:
    call, good = CALLS[name]
    call(**good)
    for argument in good:
        for value in WRONG:
            try:
                call(**{**good, argument: value})
            except rlx.Error:
                continue
            except Exception as error:
                pytest.fail(f"{name}({argument}={value!r}): {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("argument", "value", "told"),
    [
        ("threads", "2", "threads is '2'. Give None, or a whole number"),
        ("threads", 1.5, "threads is 1.5. Give None, or a whole number"),
        ("threads", True, "threads is True. Give None, or a whole number"),
        ("target", 5, "target is 5. Give None, or a string"),
        ("cache", 5, "cache is 5. Give a path"),
        ("precision", 8, "precision is 8. Give None, or a string"),
        ("params", [1], "params is [1]. Give None, or a dict by name"),
        ("options", {}, "options is {}. Give None, or a rlx.FusionOptions"),
    ],
)
def test_the_error_names_the_argument_and_what_to_give(
    argument: str, value: Any, told: str
) -> None:
    with pytest.raises(rlx.Error) as caught:
        rlx.compile(graph(), **{"target": "cpu", argument: value})
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("path", ["", None, 5])
def test_no_path_is_an_error(path: Any) -> None:
    with pytest.raises(rlx.Error, match="the path is"):
        rlx.load(path)
    with pytest.raises(rlx.Error, match="the path is"):
        EXE.save(path)


# -- the command line ------------------------------------------------------------------------------

SKIPPED = {"help", "install_completion", "show_completion"}
TEXTS = ["", "x", "-1", "1.5", "nan", "=", "x=", "=x", "n=1.5", "n=99", "x=nothing.npy", "\ud800"]
FIXED = {
    "bench": ["m.ir", "--rounds", "1", "--threads", "1"], "cache": ["list"], "calibrate": [],
    "check": ["m.ir"], "compile": ["m.ir", "-o", "o.rlx"], "diff": ["m.ir", "m.ir"],
    "doctor": [], "explain": ["m.ir", "-t", "cuda"], "fuzz": ["--graphs", "1"], "run": ["m.ir"],
    "trace": ["m.ir", "--calls", "1"],
}  # fmt: skip
LONG = {"bench", "calibrate", "compile", "fuzz", "trace"}
"""Verbs that take long where their options are right: few texts, which no option takes."""


def options_of(verb: str) -> list[str]:
    from typer.main import get_command

    from rlx.cli.app import app

    command: Any = get_command(app()).commands[verb]  # pyright: ignore[reportAttributeAccessIssue]
    valued = [p for p in command.params if p.opts[0].startswith("-") and not p.is_flag]
    return [p.opts[0] for p in valued if p.name not in SKIPPED]


@pytest.mark.parametrize("verb", FIXED)
def test_wrong_options_are_one_line_and_an_exit_code(
    verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for i, option in enumerate(options_of(verb)):
        for text in sample(TEXTS, 3, i % 3) if verb not in LONG else ["", "\ud800"]:
            code = main([verb, *FIXED[verb], option, text])
            told = capfd.readouterr().err
            assert code in (0, 1, 2), (option, text)
            assert "a bug of rlx" not in told, (option, text, told)
            assert "Traceback" not in told, (option, text, told)
            assert code == 0 or verb == "fuzz" or told.count("\n") == 1, (option, text, told)
