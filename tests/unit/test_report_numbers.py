"""Every number of a report is at the sizes in its head, whatever it was compiled for."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.registry import target_of
from rlx.core.shape import Shape
from rlx.explain.build import report_of
from rlx.explain.priced_again import ELSEWHERE, at_sizes
from rlx.explain.report import Report
from rlx.ir.mir import Graph
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult

MOST_SAVED = 20
"""Of a call's predicted time, what one decision may save: a kernel of many fused ops saves the
traffic of each, so that a call may have taken several times as long. What is priced at other sizes
than the call (128 for 1, in two dims) is beyond it."""
TARGETS = ("cpu", "cuda", "wgpu", "metal")


def mlp() -> Graph:
    g = Graph("mlp")
    x = g.input("x", Shape([rlx.Dim("batch"), rlx.Dim("seq"), 64]))
    for i in range(3):
        up, bias, down = (g.param(f"{n}.{i}", Shape(s)) for n, s in
                          (("up", [64, 96]), ("bias", [96]), ("down", [96, 64])))  # fmt: skip
        x = ops.matmul(ops.gelu(ops.matmul(x, up) + bias), down) + x
    g.set_outputs({"y": x, "best": ops.argmax(x, axis=-1)})
    return g


def images() -> Graph:
    g = Graph("images")
    x = g.input("x", Shape([rlx.Dim("batch"), 32, rlx.Dim("height"), rlx.Dim("width")]))
    for i in range(3):
        w, scale = g.param(f"w.{i}", Shape([32, 32, 3, 3])), g.param(f"s.{i}", Shape([1, 32, 1, 1]))
        x = ops.relu(ops.conv(x, w, padding=[1] * 4) * scale) + x
    g.set_outputs([ops.transpose(x, perm=(0, 2, 3, 1))])
    return g


def chain() -> Graph:
    g = Graph("chain")
    x = y = g.input("x", Shape([rlx.Dim("rows"), rlx.Dim("columns")]))
    for _ in range(4):
        y = ops.tanh(y * 0.5) + x
    g.set_outputs([ops.softmax(y, axis=-1), ops.sum(y, axes=(0,))])
    return g


MODELS: dict[str, Callable[[], Graph]] = {"mlp": mlp, "images": images, "chain": chain}
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 1, "seq": 2},
    "images": {"batch": 1, "height": 16, "width": 16},
    "chain": {"rows": 2, "columns": 3},
}


def compiled(name: str, target: str, sizes: Mapping[str, int] | None = None) -> CompileResult:
    options = FusionOptions(sizes=sizes or {})
    return CompilePipeline(target_of(target), options=options).compile(MODELS[name]())


def reports(name: str, target: str) -> dict[str, Report]:
    """Compiled for the sizes it is reported at, and for usual ones."""
    sizes = SIZES[name]
    return {
        "weighed": report_of(compiled(name, target, sizes)),
        "priced again": report_of(compiled(name, target), sizes=sizes),
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_no_decision_saves_many_times_the_call(name: str, target: str) -> None:
    for how, made in reports(name, target).items():
        assert made.model.sizes == SIZES[name], how
        most = MOST_SAVED * made.totals.predicted_ns + target_of(target).machine.fork_join_ns
        beyond = [d for d in made.decisions if abs(d.predicted_ns) > most]
        assert not beyond, how
        assert made.totals.output_bytes <= made.totals.traffic_bytes, how
        assert all(a.bytes_saved <= made.totals.arena_bytes for a in made.advice
                   if a.what == "fix_dims"), how  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_prices_are_those_of_a_compile_for_these_sizes(name: str, target: str) -> None:
    """Of decisions that both have with the same verdict, and everything that is counted."""
    of = reports(name, target)
    weighed = {(d.id, d.verdict): d for d in of["weighed"].decisions if d.kind == "fusion"}
    again = {(d.id, d.verdict): d for d in of["priced again"].decisions if d.kind == "fusion"}
    both = weighed.keys() & again.keys()
    assert any(again[k].predicted_ns for k in both)
    if of["weighed"].graph == of["priced again"].graph:
        assert all(weighed[k] == again[k] for k in both)
        assert of["weighed"].totals == of["priced again"].totals


def test_verdicts_are_those_of_the_program_at_any_size() -> None:
    made = compiled("mlp", "cpu")
    again = at_sizes(made, {"batch": 1, "seq": 1})
    assert [(d.id, d.verdict) for d in again.decisions] == [
        (d.id, d.verdict) for d in made.decisions
    ]
    assert [d.predicted_ns for d in again.decisions] != [d.predicted_ns for d in made.decisions]


def test_without_a_model_a_decision_has_no_price_at_other_sizes() -> None:
    made = compiled("mlp", "cpu")
    kept = CompileResult(made.lir, made.fusion, made.decisions, made.rewrites, made.options)
    again = at_sizes(kept, {"batch": 1, "seq": 1})
    assert any(d.reason.startswith(ELSEWHERE) for d in again.decisions)
    assert not any(d.predicted_ns or d.bytes_saved for d in again.decisions)
    assert (
        at_sizes(kept, {"batch": 1, "seq": 1}, mlp()).decisions
        == at_sizes(made, {"batch": 1, "seq": 1}).decisions
    )


def test_a_program_is_explained_at_the_sizes_of_inputs() -> None:
    exe = rlx.compile(mlp())
    given = {"x": np.zeros((1, 3, 64), np.float32)}
    assert exe.explain().model.sizes == {"batch": 128, "seq": 128}
    told = exe.explain(given)
    assert told.model.sizes == {"batch": 1, "seq": 3}
    assert told.totals.output_bytes == 3 * (64 * 4 + 8)
    assert max(d.predicted_ns for d in told.decisions) <= MOST_SAVED * told.totals.predicted_ns
