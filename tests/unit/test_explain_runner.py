"""Reports state what runs a plan, wherever that is not the code of its target."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.backends.cpu import backend as cpu
from rlx.explain.report import Report
from rlx.runtime import session

CRASH = "native code ends the process here (SIGILL)"


def net() -> rlx.Graph:
    g = rlx.Graph("net")
    x = g.input("x", [8, 8])
    g.set_outputs([g.relu(g.mm(x, x))])
    return g


def without_llvm(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "llvmlite", None)


def without_native_code(patch: pytest.MonkeyPatch) -> None:
    """A system, a Python or a processor that its code does not run on."""
    patch.setattr(cpu, "why_no_native_code", lambda *_: CRASH)
    session._warn_of_numpy.cache_clear()  # pyright: ignore[reportPrivateUsage]


def compiled() -> Report:
    with pytest.warns(UserWarning, match="NumPy"):
        return rlx.compile(net(), cache=False).explain()


def named() -> Report:
    with pytest.warns(UserWarning, match="NumPy"):
        return rlx.compile(net(), "cpu", cache=False).explain()


def reference() -> Report:
    return rlx.compile(net(), "reference", like="cpu").explain()


def planned() -> Report:
    return rlx.explain(net(), "cpu")


def unchanged(patch: pytest.MonkeyPatch) -> None:
    del patch


@pytest.mark.parametrize(
    ("break_it", "report_of", "why"),
    [
        (without_llvm, compiled, "llvmlite is not installed"),
        (without_llvm, planned, "llvmlite is not installed"),
        (without_native_code, compiled, CRASH),
        (without_native_code, named, CRASH),
        (without_native_code, planned, CRASH),
        (unchanged, reference, "target='reference'"),
    ],
)  # fmt: skip
def test_numpy_is_named_where_numpy_runs(
    break_it: Callable[[pytest.MonkeyPatch], None], report_of: Callable[[], Report], why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In text, JSON and on the page: no threads, and no predicted time of what does not run."""
    break_it(monkeypatch)
    report = report_of()
    head = " ".join(str(report).partition("inputs:")[0].split())
    assert head.startswith("net on NumPy (")
    assert why in head
    assert "not predicted" in head
    assert "thread" not in head
    assert "as code of cpu" in str(report).partition("kernels by")[2]
    found = json.loads(report.to_json())
    assert found["runner"]["name"] == "NumPy"
    assert why in found["runner"]["why"]
    assert found["runner"]["is_target"] is False
    assert found["machine"]["threads"] == 0
    assert Report.from_json(report.to_json()).runner == report.runner
    page = report.to_html()
    assert "NumPy" in page
    assert "predicted time, as code of cpu per call" in page
    if report_of is not planned:
        assert {k.strategy for k in report.kernels} == {"NumPy"}


def test_a_slow_way_into_native_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "why_not_bound", lambda: "a test breaks it")
    report = rlx.explain(net(), "cpu")
    assert report.runner.is_target
    assert "a test breaks it" in str(report)


def test_native_code_is_what_runs_otherwise() -> None:
    report = rlx.explain(net(), "cpu")
    assert report.runner.is_target
    assert report.runner.threads == report.machine["threads"] > 0
    assert "not predicted" not in str(report)


def test_steps_in_python_are_named() -> None:
    """Their time is in no prediction: an op of the caller's, and one of ONNX on texts."""
    twice = rlx.custom_op("test_explain_runner.twice", lambda a: 2 * a, lambda s: s)
    g = rlx.Graph("net")
    g.set_outputs([g.relu(twice(g.relu(g.input("x", [8]))))])
    assert "1 step in Python, whose time is not predicted" in str(rlx.explain(g, "cpu"))
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER"),
        helper.make_node("Relu", ["z"], ["r"]),
    ]
    texts = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in "xy"]
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "zr"]
    graph = helper.make_graph(nodes, "texts", [texts[0], floats[0]], [texts[1], floats[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    exe = rlx.compile(model.SerializeToString(), cache=False)
    exe(np.array(["a", "b"], object), np.zeros(2, np.float32))
    assert "1 step in Python, whose time is not predicted" in str(exe.explain())
