"""What the text of a report says: verdicts that agree with the numbers beside them, in lines that
fit."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.shape import Shape
from rlx.explain.measured import Measured
from rlx.explain.measured_text import call_text, measured_section
from rlx.explain.naming import NO_BREAK, clipped_shapes
from rlx.explain.report import Report
from rlx.explain.roofline import KernelTime
from rlx.explain.text import op_text, report_text, sections
from rlx.explain.text_table import WIDTH, aligned
from rlx.explain.with_measurements import decision_times
from rlx.ir.mir import Graph, Origin


def report(target: str = "cpu") -> Report:
    g = Graph("layers")
    x = g.input("tokens_of_a_batch", Shape([rlx.Dim("batch"), 16, 64]))
    for i in range(3):
        with g.scope(Origin("onnx", f"/encoder/layer.{i}/attention/output/dense/MatMul")):
            w = g.param(f"w{i}", Shape([64, 64]))
            x = ops.softmax(ops.relu(ops.matmul(x, w) * 1.0) + x, axis=-1)
    g.set_outputs([x])
    return rlx.explain(g, target)


def measured(told: Report, call_ns: float, kernel_ns: float, **timings: Any) -> Report:
    """As if a call and all of its kernels together took so long."""
    called = [k.id for k in told.kernels if k.phase != "prologue"]
    each = kernel_ns / len(called)
    kernels = tuple(
        replace(k, measured=asdict(KernelTime(
            k.name, k.op, 1, each, k.bytes, k.flops, 1.0, 1.0, k.predicted_ns,
            k.predicted_ns / each, 1 / len(called),
        ))) if k.id in called else k for k in told.kernels
    )  # fmt: skip
    share = told.totals.predicted_ns / kernel_ns
    more = {"call_ns": call_ns, "roofline_share": share, **timings}
    return replace(told, kernels=kernels, timings={**told.timings, **more})


@pytest.mark.parametrize("target", ["cpu", "cuda", "wgpu"])
def test_lines_fit(target: str) -> None:
    for made in (report(target), measured(report(target), 9e4, 8e4)):
        for section in sections(made, None):
            widest = max(map(len, aligned([section.columns, *section.rows])))
            figures = sum(len(c) + 2 for c in section.columns)
            assert widest <= max(WIDTH, 2 * figures), section.title
        heads = report_text(made).partition("\n\n")[0].splitlines()
        assert max(map(len, heads)) <= WIDTH


def test_sentences_are_below_their_rows_where_a_table_is_too_wide() -> None:
    rows = [("verdict", "why"), ("taken", "so " * 60)]
    first, why, row, *below = aligned(rows)
    assert (first, why, row) == ("verdict", "    why", "taken")
    assert " ".join(" ".join(below).split()) == ("so " * 60).strip()
    assert aligned([("verdict", "why"), ("taken", "so")]) == ["verdict  why", "taken    so"]
    long = [("where", "n"), ("a" * 300, "1")]
    assert max(map(len, aligned(long))) <= WIDTH
    assert "".join(line.split()[0] for line in aligned(long)[1:]) == "a" * 300


def test_a_call_faster_than_its_kernels_says_why() -> None:
    told = report()
    predicted = told.totals.predicted_ns
    text = call_text(measured(told, 11_000, 27_000))
    assert "measured 11.0 µs beside 27.0 µs in kernels" in text
    assert "instrumented build" in text
    slow = call_text(measured(told, 80 * predicted, 40 * predicted))
    assert "of it in kernels, the rest in the call itself" in slow
    plain = call_text(measured(told, predicted, predicted))
    assert "in kernels" not in plain


def test_only_kernels_are_faster_than_the_rates_that_predict_them() -> None:
    told = report()
    predicted = told.totals.predicted_ns
    fast = call_text(measured(told, 1.5 * predicted, 0.5 * predicted))
    assert "kernels are faster than the target's default rates" in fast
    assert "of the roofline" in call_text(measured(told, 3 * predicted, 2 * predicted))


def test_times_of_a_busy_machine_are_marked() -> None:
    made = measured(report(), 5e4, 4e4, call_busy_cores=1.0)
    assert "measured 50.0 µs *" in call_text(made)
    assert "kernels by measured time *" in report_text(made)
    assert "*" not in call_text(measured(report(), 5e4, 4e4, call_busy_cores=0.1))


def test_measured_figures_are_of_all_that_were_reversed() -> None:
    told = report()
    same = [d for d in told.decisions if d.what == "fuse_region"][:3]
    ids = tuple(d.id for d in same)
    row = Measured(ids, "fuse_region", ("x",), True, 100.0, 1_000.0, 900.0, 1_100.0, 0.9, 12)
    rule = Measured(("r",), "mul_by_one", ("y",), True, 0.0, -2_000.0, -3_000.0, -1_000.0, 0.0, 12)
    held = {d.id: decision_times(row) for d in same}
    assert len(held) > 1
    decisions = tuple(replace(d, measured=held.get(d.id)) for d in told.decisions)
    fired = told.rules[0]
    rules = {fired.id: decision_times(rule)}
    made = replace(measured(told, 10_000, 9_000, rules=rules), decisions=decisions)
    cells = [dict(zip(measured_section(made).columns, r)) for r in measured_section(made).rows]
    (fusion,) = (c for c in cells if c["decision"] == "fuse_region")
    count = len(ids)
    assert fusion["count"] == f"×{count}"
    assert fusion["of the call"] == f"{count * 1_000 / 10_000:.1%}"
    assert fusion["measured"] == f"{count}.00 µs"
    assert fusion["predicted"] == f"{count * 100} ns"
    (mul,) = (c for c in cells if c["decision"] == fired.rule)
    assert (mul["outcome"], mul["measured"]) == ("refuted", "-2.00 µs")


def test_schedules_of_launches_are_not_called_parallelisation() -> None:
    titles = {s.title: s for s in sections(report("wgpu"), None)}
    assert {r[titles["schedules of launches"].columns.index("decision")]
            for r in titles["schedules of launches"].rows} == {"choose_schedule"}  # fmt: skip
    split = sections(report(), None)
    (parallel,) = (s for s in split if s.title == "parallelisation")
    assert all("split_work" in row for row in parallel.rows)


def test_shapes_are_at_the_sizes_of_the_head_and_clipped_each() -> None:
    (kernels,) = (s for s in sections(report()) if s.title.startswith("kernels"))
    shapes = {row[kernels.columns.index("shape")].replace(NO_BREAK, " ") for row in kernels.rows}
    assert "f32[128, 16, 64]" in shapes
    assert not any("batch" in s for s in shapes)
    long = f"f32[{'n' * 60}, 1], f32[2, {'m' * 60}]"
    first, second = clipped_shapes(long, 20).split(", ")
    assert (first[:5], first[-2:], second[:4], second[-2:]) == ("f32[n", "1]", "f32[", "m]")
    assert max(len(first), len(second)) <= 20


def test_ops_of_branches_are_counted() -> None:
    then, other = Graph("then"), Graph("else")
    for body in (then, other):
        x = body.input("x", Shape([4]))
        body.set_outputs([ops.tanh(ops.exp(x) + x)])
    g = Graph("branch")
    x = g.input("x", Shape([4]))
    g.set_outputs(list(ops.if_(ops.sum(x) > np.float32(0), x, then=then, else_=other)))
    told = rlx.explain(g)
    assert op_text(told).endswith("ops and 6 inside of branches and loops")
    assert "inside" not in op_text(report())
    assert Report.from_json(told.to_json()).source == told.source
