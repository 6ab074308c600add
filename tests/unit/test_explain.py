"""Reports: true to the compile, the same from run to run, and enough to replay it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.registry import target_of
from rlx.cli.explain import _times_kernels  # pyright: ignore[reportPrivateUsage]
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.cost.decision import Decision
from rlx.explain.html import facts_of
from rlx.explain.kernel_notes import priced_split
from rlx.explain.naming import clipped, layers_of, merged, place_text
from rlx.explain.report import Report
from rlx.explain.shapes import sized
from rlx.explain.text import lines_of, report_text, sections
from rlx.explain.trace import CALLS, Event, Trace
from rlx.ir.mir import Graph, Origin
from rlx.passes.fusion.reasons import HINTS
from rlx.passes.options import DispatchPolicy, FusionOptions
from rlx.pipeline import CompilePipeline
from rlx.rules.engine import Missed


def by_hand() -> Graph:
    """A gated unit, a softmax, two outputs, weights that are joined, a value folded."""
    g = Graph("hand")
    x = g.input("x", Shape([8, 16]))
    up, gate, down = (g.param(n, Shape(s)) for n, s in
                      (("up", [16, 32]), ("gate", [16, 32]), ("down", [32, 16])))  # fmt: skip
    with g.scope(Origin("block", "ffn.0")):
        h = ops.silu(ops.matmul(x, gate)) * ops.matmul(x, up)
        y = ops.matmul(h, down) + x
    scale = ops.sqrt(g.constant(np.float32(4.0))) * g.constant(np.float32(0.5))
    soft = ops.softmax(ops.neg(ops.neg(y)) * scale, axis=-1)
    g.set_outputs({"probs": soft, "hidden": y})
    return g


def branches() -> Graph:
    then, other = Graph("then"), Graph("else")
    for body in (then, other):
        a, b = (body.input(n, Shape([4])) for n in "ab")
        body.set_outputs([ops.exp(a + b) * 2.0 if body is then else ops.tanh(a - b) + a])
    g = Graph("branch")
    a, b = (g.input(n, Shape([4])) for n in "ab")
    pred = g.input("pred", Shape((), rlx.DType.BOOL))
    g.set_outputs(list(ops.if_(pred, a, b, then=then, else_=other)))
    return g


def dynamic() -> Graph:
    g = Graph("dynamic")
    n = rlx.Dim("n", 1, 64)
    x = g.input("x", Shape([n, 8]))
    w, b = g.param("w", Shape([8, 8])), g.param("b", Shape([8]))
    scale, shift = g.param("scale", Shape([8])), g.param("shift", Shape([8]))
    y = ops.relu(ops.matmul(x, w) + b)
    g.set_outputs([ops.layer_norm(y + x, scale, shift, axis=-1)])
    return g


def encoder() -> rlx.HirModule:
    """Two layers like MiniLM's, small."""
    m = rlx.HirModule("encoder")
    x = m.input("x", Shape([2, 6, 16]))
    for i in range(2):
        shapes = {
            "wq": [16, 16], "bq": [16], "wk": [16, 16], "bk": [16], "wv": [16, 16], "bv": [16],
            "wo": [16, 16], "bo": [16], "g1": [16], "b1": [16], "up": [16, 32], "ub": [32],
            "down": [32, 16], "db": [16], "g2": [16], "b2": [16],
        }  # fmt: skip
        weights = [m.param(f"layer.{i}.{k}", Shape(v)) for k, v in shapes.items()]
        x = m.encoder_block(x, *weights, num_heads=2)
    m.set_outputs([x])
    return m


MODELS: dict[str, Callable[[], Graph]] = {
    "by_hand": by_hand,
    "branches": branches,
    "dynamic": dynamic,
    "encoder": lambda: encoder().lower().graph,
}


def report(graph: Graph, target: str = "cpu", options: FusionOptions | None = None) -> Report:
    return rlx.explain(graph, target, options=options)


# -- replay ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "cuda", "wgpu", "tpu"])
@pytest.mark.parametrize("name", MODELS)
def test_the_json_alone_replays_the_compile(name: str, target: str) -> None:
    told = report(MODELS[name](), target)
    made = rlx.explain.replay(MODELS[name](), told.to_json())
    compiled = rlx.explain._target(target)  # pyright: ignore[reportPrivateUsage]
    assert made == CompilePipeline(compiled).compile(MODELS[name]()).lir.mir.graph


@pytest.mark.parametrize(
    "options",
    [
        FusionOptions(skip_fusion=True),
        FusionOptions(precision="bf16"),
        FusionOptions(dispatch=DispatchPolicy(force_common={"layer_norm", "softmax"})),
    ],
    ids=["unfused", "bf16", "common"],
)
def test_options_are_replayed(options: FusionOptions) -> None:
    told = report(by_hand(), "cpu", options)
    assert rlx.explain.replay(by_hand(), told.to_json()).digest() == told.graph


def test_a_forced_verdict_is_replayed() -> None:
    plain = report(by_hand())
    turned = next(d for d in plain.decisions if d.verdict and d.what == "fuse_region")
    told = report(by_hand(), "cpu", FusionOptions(force={turned.id: False}))
    assert told.graph != plain.graph
    assert rlx.explain.replay(by_hand(), told.to_json()).digest() == told.graph


def test_each_missing_change_is_noticed() -> None:
    """Delete any one thing that changed the graph, and the replay says which it misses."""
    whole = json.loads(report(by_hand()).to_json())
    changes = [("rules", r["id"]) for r in whole["rules"]]
    changes += [("decisions", d["id"]) for d in whole["decisions"]
                if d["verdict"] and d["kind"] in ("fusion", "lowering")]  # fmt: skip
    assert len(changes) >= 5
    for part, id_ in changes:
        less = {**whole, part: [row for row in whole[part] if row["id"] != id_]}
        with pytest.raises(Error, match=r"does not list it|not the one of the report"):
            rlx.explain.replay(by_hand(), json.dumps(less))


def test_a_report_of_another_graph_is_refused() -> None:
    with pytest.raises(Error, match=r"do not apply|does not list it|not the one of the report"):
        rlx.explain.replay(branches(), report(by_hand()).to_json())


def test_a_fresh_process_replays(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text(str(by_hand()), encoding="utf-8")
    graph = rlx.load(tmp_path / "net.ir").graph
    (tmp_path / "net.json").write_text(report(graph).to_json(), encoding="utf-8")
    code = (
        "import rlx; text = open('net.json', encoding='utf-8').read(); "
        "print(rlx.explain.replay(rlx.load('net.ir'), text).digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == report(graph).graph


# -- the value ------------------------------------------------------------------------------------


def test_json_is_the_same_from_process_to_process(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text(str(by_hand()), encoding="utf-8")
    code = "import rlx; print(rlx.explain(rlx.load('net.ir')).without_timings().to_json())"
    said = [
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True,
                       env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1]
    assert len(said[0]) > 1000


def test_json_reads_back() -> None:
    told = report(by_hand())
    assert Report.from_json(told.to_json()) == told
    assert Report.from_json(told.to_json()).to_json() == told.to_json()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 99}', '{"schema": 1}'])
def test_what_is_no_report_is_an_error(text: str) -> None:
    with pytest.raises(Error, match="no report of rlx"):
        Report.from_json(text)


def test_a_report_is_that_of_the_plan() -> None:
    exe = rlx.compile(by_hand(), "cpu", cache=False)
    told, plan = exe.explain(), exe.lir.plan
    assert [k.op for k in told.kernels] == [n.op for n in plan.schedule]
    assert told.totals.arena_bytes == plan.arena_bytes
    assert told.totals.launches == exe.io_profile.kernel_launches
    assert sorted(i for ids in told.phases.values() for i in ids) == list(range(len(plan.schedule)))
    ends = [b.offset + b.bytes for b in told.buffers if b.space == "arena"]
    assert max(ends) == plan.arena_bytes
    assert [v.name for v in told.model.outputs] == ["probs", "hidden"]


def test_live_buffers_do_not_overlap_in_the_timeline() -> None:
    held = [b for b in report(by_hand()).buffers if b.space == "arena" and b.bytes]
    for i, a in enumerate(held):
        for b in held[:i]:
            apart_in_time = a.last < b.first or b.last < a.first
            apart_in_space = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart_in_time or apart_in_space or b.id == a.over or a.id == b.over


def test_explaining_changes_no_code() -> None:
    exe = [rlx.compile(by_hand(), "cpu", cache=False) for _ in range(2)]
    exe[0].explain()
    blobs = [e.loaded.program.artefact.blob.to_bytes() for e in exe]  # pyright: ignore
    assert blobs[0] == blobs[1]


def test_a_kept_program_gives_the_same_report(tmp_path: Path) -> None:
    fresh = rlx.compile(by_hand(), "cpu", cache=tmp_path).explain()
    kept = rlx.compile(by_hand(), "cpu", cache=tmp_path).explain()
    assert kept == fresh
    assert kept.without_timings().to_json() == fresh.without_timings().to_json()


def test_text_has_every_section_and_groups_layers_alike() -> None:
    text = str(report(encoder().lower().graph))
    assert "×2" in text
    text = str(report(by_hand()))
    for title in ("advice:", "decisions:", "rewrites:", "kernels by predicted time"):
        assert title in text


def test_text_lists_what_matters_and_counts_the_rest() -> None:
    told = report(encoder().lower().graph)
    lines = lines_of(d for d in told.decisions if d.kind != "schedule")
    short, whole = report_text(told, 2), report_text(told, None)
    (listed,) = (s for s in sections(told, 2) if s.title == "decisions")
    assert len(listed.rows) == 2
    assert listed.note in " ".join(short.split())
    assert "more:" in listed.note
    counted = sum(int(n) for n in re.findall(r"×(\d+)", listed.note))
    assert counted + sum(x.count for x in lines[:2]) == sum(x.count for x in lines)
    assert all(d.what in whole for d in told.decisions)
    assert "more" not in whole


def test_text_has_work_that_moves_together_once() -> None:
    g = Graph("weights")
    w = g.param("w", Shape([64, 64]))
    with g.scope(Origin("onnx", "made")):
        fixed = ops.exp(ops.matmul(w, w))
    g.set_outputs([ops.matmul(g.input("x", Shape([4, 64])), fixed)])
    told = report(g)
    hoisted = [d for d in told.decisions if d.what == "hoist"]
    (line,) = (x for x in lines_of(told.decisions) if x.decision.what == "hoist")
    assert len(hoisted) > 1
    assert line.predicted_ns == max(d.predicted_ns for d in hoisted)


def test_text_says_which_sizes_are_representative() -> None:
    assert "n=64, the representative sizes" in str(report(dynamic()))
    asked = str(report(dynamic(), options=FusionOptions(sizes={"n": 7})))
    assert "at n=7\n" in asked


# -- advice ---------------------------------------------------------------------------------------


def test_a_sum_that_a_region_takes_is_no_advice() -> None:
    g = Graph("broadcast")
    x, y = g.input("x", Shape([256, 64])), g.input("y", Shape([1, 64]))
    scale, shift = g.param("scale", Shape([64])), g.param("shift", Shape([64]))
    g.set_outputs([ops.layer_norm(ops.exp(x) + y, scale, shift, axis=-1)])
    told = report(g)
    assert [d for d in told.decisions if d.what == "fuse_residual_ln" and not d.verdict]
    assert not [a for a in told.advice if a.what == "mend_fusion"]


def test_narrower_weights_are_advised_where_a_call_waits_for_them() -> None:
    for rows, is_advised in ((1, True), (4096, False)):
        g = Graph("product")
        g.set_outputs(
            [ops.matmul(g.input("x", Shape([rows, 512])), g.param("w", Shape([512, 512])))]
        )
        found = [a.what for a in report(g).advice]
        assert ("narrower_weights" in found) is is_advised


def test_what_a_model_is_for_is_not_advised_away() -> None:
    g = Graph("two")
    x = g.input("x", Shape([256, 256]))
    g.set_outputs({"main": ops.exp(ops.matmul(x, x)), "side": ops.neg(x)})
    assert [a.where for a in report(g).advice if a.what == "drop_output"] == [("side",)]


def test_dropping_an_output_is_priced_by_the_gate() -> None:
    told = report(by_hand())
    found = {a.where[0]: a for a in told.advice if a.what == "drop_output"}
    size, rate = 8 * 16 * 4, told.target.gate["unified_readback_gb_s"]
    assert found["hidden"].predicted_ns == pytest.approx(size / rate)
    assert found["probs"].predicted_ns > size / rate
    assert found["probs"].launches_saved >= 1


def test_one_output_is_not_advised_away() -> None:
    assert not [a for a in report(branches()).advice if a.what == "drop_output"]


# -- why ------------------------------------------------------------------------------------------


def test_why_follows_a_block_to_its_kernels() -> None:
    found = rlx.explain.why(report(by_hand()), "ffn.0")
    assert {n.op for n in found.source} == {"matmul", "silu", "mul", "add"}
    assert any(d.what == "fuse_swiglu_dual_matmul" and d.verdict for d in found.decisions)
    assert found.kernels
    assert found.buffers
    assert "matmul" in str(found)


def test_why_knows_kernels_outputs_leaves_and_decisions() -> None:
    told = report(by_hand())
    assert rlx.explain.why(told, "k1").kernels[0].id == 1
    assert rlx.explain.why(told, "probs").kernels
    assert rlx.explain.why(told, "down").nodes[0].op == "param"
    assert rlx.explain.why(told, told.decisions[0].id).decisions


def test_why_of_a_name_that_is_not_there_gives_near_ones() -> None:
    with pytest.raises(Error, match=r"no node or kernel 'ffn\.1'.*Did you mean ffn\.0"):
        rlx.explain.why(report(by_hand()), "ffn.1")
    with pytest.raises(Error, match=r"Did you mean matmul"):
        rlx.explain.why(report(by_hand()), "MATML")
    with pytest.raises(Error, match=r"It has (?!k\d)\w"):
        rlx.explain.why(report(by_hand()), "#")


def test_why_finds_kernels_by_op_kind_and_function() -> None:
    told = report(by_hand())
    ops = {op for k in told.kernels for op in k.ops}
    assert "softmax" in ops
    found = rlx.explain.why(told, "Softmax").kernels
    assert found
    assert all("softmax" in (k.op, *k.ops) for k in found)
    kind = told.kernels[0].strategy
    assert rlx.explain.why(told, kind.upper()).kernels == tuple(
        k for k in told.kernels if k.strategy == kind
    )
    functions = {k.id: k.schedule[-1].partition(":")[0] for k in told.kernels if k.schedule}
    for number, function in functions.items():
        assert function.startswith("f"), "a step is k0, what it runs is f0"
        assert number in {k.id for k in rlx.explain.why(told, function).kernels}


# -- diff -----------------------------------------------------------------------------------------


def test_diff_of_the_same_is_nothing() -> None:
    found = rlx.explain.diff(report(by_hand()), report(by_hand()))
    assert found.is_same
    assert str(found).endswith("the same\n")


def test_diff_tells_what_fusion_did() -> None:
    off = report(by_hand(), "cpu", FusionOptions(skip_fusion=True))
    found = rlx.explain.diff(off, report(by_hand()))
    totals = {c.what: (c.before, c.after) for c in found.totals}
    assert totals["kernels"][0] > totals["kernels"][1]
    assert totals["traffic_bytes"][0] > totals["traffic_bytes"][1]
    assert [c.what for c in found.asked] == ["options.skip_fusion"]
    assert {d.what for d in found.added} >= {"fuse_swiglu_dual_matmul"}
    assert "kernels" in str(found)
    assert re.search(r"option skip fusion +yes +no\n", str(found))
    assert json.dumps(found.to_dict())


def test_diff_has_words_and_units() -> None:
    graph = by_rows()
    made = [report(graph, t, FusionOptions(sizes={"n": 7})) for t in ("cpu", "cuda")]
    made.append(report(graph))
    found = rlx.explain.diff(made[0], made[1])
    assert re.search(r"price of a launch +50 ns +2.00 µs\n", str(found))
    assert re.search(r"copying out of shared memory +50 GB/s +1 GB/s\n", str(found))
    assert re.search(r"memory bandwidth +50 GB/s +800 GB/s\n", str(found))
    assert re.search(r"memory shared with the host +yes +no\n", str(found))
    assert "gate." not in str(found)
    found = rlx.explain.diff(made[0], made[2])
    assert [c.what for c in found.asked] == ["sizes.n"]
    assert re.search(r"size of n +7 +128\n", str(found))
    assert re.search(r"arithmetic +[\d.]+ k?FLOP", str(found))


def by_rows() -> Graph:
    g = Graph("sized")
    x, w = g.input("x", Shape([rlx.Dim("n"), 8])), g.param("w", Shape([8, 8]))
    g.set_outputs([g.relu(g.mm(x, w))])
    return g


# -- reversal -------------------------------------------------------------------------------------


def layers() -> Graph:
    """Two layers alike, told apart by their names."""
    g = Graph("layers")
    x = g.input("x", Shape([4, 8]))
    for i in range(2):
        with g.scope(Origin("layer", f"net.{i}")):
            w, b = g.param(f"w{i}", Shape([8, 8])), g.param(f"b{i}", Shape([8]))
            y = ops.gelu(ops.matmul(x, w) + b)
            x = ops.softmax(y * 2.0 + x, axis=-1)
    g.set_outputs([x])
    return g


def test_every_reversible_decision_can_be_turned_and_no_other_layer_notices() -> None:
    plain = report(layers())
    rng = np.random.default_rng(0)
    params = {n.attrs["name"]: rng.random(n.shape.static_dims, np.float32)
              for n in layers().params}  # fmt: skip
    x = rng.random((4, 8), np.float32)
    want = rlx.compile(layers(), "cpu", params=params, cache=False)(x)
    reversible = [(d.id, not d.verdict, d.where) for d in plain.decisions if d.is_reversible]
    reversible += [(r.id, False, (r.before,)) for r in plain.rules]
    assert len(reversible) >= 6
    for id_, verdict, where in reversible:
        options = FusionOptions(force={id_: verdict})
        exe = rlx.compile(layers(), "cpu", options=options, params=params, cache=False)
        np.testing.assert_allclose(exe(x), want, rtol=1e-5)
        turned = exe.explain()
        after = {d.id: d.verdict for d in turned.decisions} | {r.id: True for r in turned.rules}
        assert after.get(id_, False) is verdict
        other = "layer net.1" if "net.0" in where[0] else "layer net.0"
        kept = [d.id for d in plain.decisions if d.is_reversible and d.where[0].endswith(other)]
        assert kept
        assert set(kept) <= set(after)


@pytest.mark.parametrize("target", ["cpu", "cuda", "wgpu"])
def test_facts_and_predictions_are_those_of_the_targets_machine(target: str) -> None:
    """The roofline: a launch, and the longer of the bytes and of the arithmetic."""
    given = target_of(target)
    machine, report = given.machine, rlx.explain(by_hand(), given)
    facts = report.target
    assert facts.gate == asdict(machine.gate)
    assert [(c["bytes"], c["gb_s"]) for c in facts.caches] == [
        (c.bytes, c.gb_s) for c in machine.caches
    ]
    assert facts.peak_gflops == {str(k): v for k, v in machine.peak_gflops.items()}
    assert (facts.vector_bytes, facts.transpose_gb_s) == (
        machine.vector_bytes, machine.transpose_gb_s,
    )  # fmt: skip
    assert report.kernels
    for k in report.kernels:
        moved, rate = k.bytes / machine.memory_gb_s(k.bytes), machine.gflops(DType(k.dtype))
        assert k.predicted_ns == machine.gate.dispatch_ns + max(moved, k.flops / rate)


@pytest.mark.parametrize(
    ("target", "is_timed"), [("cpu", True), ("reference", False), ("cuda", False)]
)
def test_a_page_has_a_timeline_where_the_backend_times_kernels(target: str, is_timed: bool) -> None:
    assert _times_kernels(target) is is_timed


def test_the_backend_says_how_each_step_runs() -> None:
    told = report(layers())
    assert all(k.strategy and k.schedule for k in told.kernels)
    assert {d.kind for d in told.decisions} >= {"fusion", "kernel", "schedule"}
    assert any("GEMM of" in line for k in told.kernels for line in k.schedule)


def test_sharing_work_out_is_told_and_priced_at_the_sizes_asked_for() -> None:
    g = Graph("rows")
    x, w = g.input("x", Shape([rlx.Dim("n"), 8])), g.param("w", Shape([8, 8]))
    g.set_outputs([ops.matmul(x, w)])
    exe = rlx.compile(g, "cpu", threads=2, options=FusionOptions(sizes={"n": 1_000_000}))
    (large,) = (d for d in exe.explain().decisions if d.what == "split_work")
    exe = rlx.compile(g, "cpu", threads=2, options=FusionOptions(sizes={"n": 300}))
    (small,) = (d for d in exe.explain().decisions if d.what == "split_work")
    assert (large.verdict, small.verdict) == (True, False)
    assert large.predicted_ns > 0 > small.predicted_ns
    alone = rlx.compile(g, "cpu", threads=1, options=FusionOptions(sizes={"n": 1_000_000}))
    (one,) = (d for d in alone.explain().decisions if d.what == "split_work")
    assert one.predicted_ns == 0


def test_the_parts_of_a_kernel_are_one_span_of_the_page() -> None:
    step = [0] * 500 + [1] * 3 + [0] * 2
    events = [Event("part", "kernel", CALLS, 1, 2 * i, 2 * i + 1, (("step", s),))
              for i, s in enumerate(step)]  # fmt: skip
    facts = facts_of(report(by_hand()), Trace("hand", "cpu", tuple(events)))
    (track,) = facts["trace"][0]["tracks"]
    assert [s["parts"] for s in track["spans"]] == [500, 3, 2]
    assert [s["ns"] for s in track["spans"]] == [999, 5, 3]


def test_notebooks_show_reports_and_programs() -> None:
    """Summaries in HTML of elements that are closed, in which names are text."""
    g = Graph("net <b>")
    x = g.input("x <i>", Shape([8, 16]))
    with g.scope(Origin("block", "layer.0 <u>")):
        g.set_outputs({"y": ops.softmax(ops.matmul(x, g.param("w", Shape([16, 16]))), axis=-1)})
    exe = rlx.compile(g, "cpu", params={"w": np.ones((16, 16), np.float32)})
    for shown in (exe, exe.explain()):
        html = shown._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert "net &lt;b&gt; on cpu" in html
        assert "x &lt;i&gt;" in html
        assert not re.search(r"<[biu]>(?!net)", html)
        for tag in ("div", "p", "table", "tr", "td", "details"):
            assert len(re.findall(f"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag
    assert "kernels per call" in exe.explain()._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert exe.explain().to_html().rstrip().endswith("</html>")


def test_layers_are_found_in_names() -> None:
    """Blocks as they are, paths up to the number that repeats most, else runs of nodes."""
    blocks = [["block encoder.layer.0", "block attention"], ["block encoder.layer.1"], ["line 3"]]
    assert layers_of(blocks) == ["encoder.layer.0", "encoder.layer.1", ""]
    paths = [[f"onnx /model.0/layer.{i}/attention/MatMul_{i}"] for i in range(3)]
    assert layers_of(paths) == [f"model.0/layer.{i}" for i in range(3)]
    flat = [[f"onnx /Conv_{i}"] for i in range(100)]
    found = layers_of(flat)
    assert found[0] == found[8] == "0–8"
    assert found[99] == "99"
    assert layers_of(flat[:9]) == [""] * 9


def test_names_that_differ_in_numbers_are_one() -> None:
    assert merged(["layer.0/MatMul_3", "layer.1/MatMul_9"]) == "layer.0–1/MatMul_3…9"
    assert merged(["layer.7"]) == "layer.7"
    assert place_text(["net.py:4", "onnx /Conv_2"]) == "/Conv_2, net.py:4"
    assert place_text(["add at net.py:4, block layer.0"]) == "add at layer.0"
    assert place_text(["mul at pass lower gelu"]) == "mul from lowering gelu"
    assert place_text(["input 'x'"]) == "input x"
    assert clipped("matmul at /a/very/long/path/MatMul", 24) == "matmul at …/path/MatMul"


def test_formulas_of_dims_are_shown_as_sizes() -> None:
    g = Graph("sizes")
    n = rlx.Dim("n", 1, 64)
    g.set_outputs([ops.exp(ops.concat([g.input("x", Shape([n, 8]))] * 2, axis=0))])
    told = report(g, options=FusionOptions(sizes={"n": 7}))
    shown = sized(told)
    assert shown("f32[2*n, 8], i64[n, min(3, n), (n + 1)//2]") == "f32[14, 8], i64[7, 3, 4]"
    assert shown("f32[m//2, a b]") == "f32[m//2, a b]"
    assert "f32[14, 8]" in str(told)


@pytest.mark.parametrize("verdict", [True, False])
def test_a_verdict_against_its_price_says_why(verdict: bool) -> None:
    """Where a kernel's schedule and the roofline disagree, the reason has both."""
    made = Decision("", "split_work", (), verdict, "so many tasks", kind="schedule")
    with_it, against = (priced_split(made, ns if verdict else -ns) for ns in (9.0, -9.0))
    assert (with_it.reason, abs(with_it.predicted_ns)) == ("so many tasks", 9.0)
    assert against.predicted_ns == 0
    assert against.reason.startswith("so many tasks, as its loops are estimated")
    assert (
        f"by bytes and FLOP alone it would {'cost' if verdict else 'save'} 9 ns" in against.reason
    )


@pytest.mark.parametrize("target", ["cpu", "cuda", "wgpu"])
@pytest.mark.parametrize("name", MODELS)
def test_no_verdict_contradicts_its_price_in_silence(name: str, target: str) -> None:
    """What is taken at a loss, or refused at a gain, says so, or names what makes it impossible."""
    for d in report(MODELS[name](), target).decisions:
        if d.predicted_ns and d.verdict != (d.predicted_ns > 0):
            known = ("by bytes and FLOP alone", "all the same", *HINTS)
            assert any(k in d.reason for k in known), (d.what, d.reason)


def test_every_key_of_the_json_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    told = json.loads(report(by_hand()).to_json())
    keys = set(told) | set(told["model"]) | set(told["target"]) | set(told["totals"])
    keys |= set(told["options"])
    for part in ("source", "nodes", "kernels", "buffers", "decisions", "rules", "advice"):
        keys |= set(told[part][0])
    assert not [k for k in sorted(keys) if f"`{k}`" not in text]


def test_a_softmax_between_products_that_is_no_attention_has_its_reason() -> None:
    g = rlx.Graph("by depth")
    q, k, v = (
        g.input(n, rlx.Shape(d)) for n, d in (("q", [2, 8, 4]), ("k", [2, 4, 8]), ("v", [2, 8, 4]))
    )
    g.set_outputs([ops.matmul(ops.softmax(ops.matmul(q, k)), v)])
    found = report(g)
    (miss,) = found.missed_rules
    assert miss.rule == "attention_formula"
    assert "stored by depth" in miss.reason
    text = str(found)
    assert "rewrites that nearly applied" in text
    assert miss.reason in text


def test_a_rewrite_that_applied_in_the_end_was_no_miss() -> None:
    """The other reader of the scores is gone after the first sweep."""
    g = rlx.Graph("later")
    q, k, v = (g.input(n, rlx.Shape([2, 8, 4])) for n in "qkv")
    s = ops.matmul(q, ops.transpose(k, perm=(0, 2, 1)))
    other = ops.where(g.constant(np.array(True)), q, ops.narrow(s, axis=2, start=0, length=4))
    g.set_outputs([ops.matmul(ops.softmax(s), v), other])
    result = CompilePipeline("cpu").compile(g)
    assert any(isinstance(e, Missed) for e in result.rewrites)
    assert "attention" in {n.op for n in result.lir.mir.graph.order()}
    assert not report(g).missed_rules
