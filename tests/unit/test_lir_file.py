"""Planned modules as files: exact there and back, checked, and never believed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.__main__ import main
from rlx.plan.lir_text import lir_text
from rlx.runtime.lir_file import read_lir
from tests.unit.test_phase_steps import WEIGHTS, decoder

TARGETS = [t.value for t in rlx.FusionTarget]


def small(rows: Any = 4) -> rlx.Graph:
    """Views, a concat, weights joined once, several results, a branch, and a measured size."""
    g = rlx.Graph("small")
    x = g.input("x", rlx.Shape([rows, 8]))
    w = g.concat([g.param("a", rlx.Shape([8, 4])), g.param("b", rlx.Shape([8, 4]))], axis=1)
    y = g.matmul(x, w)
    values, places = g.top_k(g.tanh(y), k=2)
    then, other = rlx.Graph("then"), rlx.Graph("else")
    then.set_outputs([then.exp(then.input("v", values.shape))])
    other.set_outputs([other.neg(other.input("v", values.shape))])
    on = g.input("on", rlx.Shape([], rlx.DType.BOOL))
    side = g.node("if", (on, values), {"then": then, "else": other})
    g.set_outputs({
        "parts": g.concat([g.cumsum(y, axis=0), y], axis=0), "places": places,
        "side": g.node("item", (side,), {"index": 0}), "found": g.nonzero(g.greater(y, 0.0)),
    })  # fmt: skip
    return g


def planned(target: str = "cuda", rows: Any = 4) -> rlx.LirModule:
    return rlx.CompilePipeline(target).compile(small(rows)).lir


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [4, rlx.Dim("rows", 1, 64)], ids=str)
def test_there_and_back_is_exact(target: str, rows: Any, tmp_path: Path) -> None:
    lir = planned(target, rows)
    rlx.save(lir, tmp_path / "m.lir")
    back = rlx.load(tmp_path / "m.lir")
    assert isinstance(back, rlx.LirModule)
    assert back.fingerprint == lir.fingerprint
    assert back.target == lir.target
    assert lir_text(back) == lir_text(lir)


def test_a_target_that_nobody_knows_comes_back() -> None:
    metal = rlx.Target.of("metal")
    own = replace(metal, name="own", machine=replace(metal.machine, vector_bytes=8))
    lir = rlx.CompilePipeline(own).compile(small()).lir
    assert read_lir(lir_text(lir)).target == own
    claimed = rlx.CompilePipeline("cuda").with_supported_ops(["add", "matmul", "exp"])
    g = rlx.Graph("g")
    g.set_outputs([g.exp(g.input("x", rlx.Shape([4])))])
    lir = claimed.compile(g).lir
    assert read_lir(lir_text(lir)).target.claimed == {"add", "matmul", "exp"}


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_plan_that_was_read_runs(target: str, tmp_path: Path) -> None:
    """Phases are the plan's own, though the file says nothing of where nodes come from."""
    lir = rlx.CompilePipeline(target).compile(decoder(rlx.Dim("batch", 1, 8))).lir
    rlx.save(lir, tmp_path / "m.lir")
    back = rlx.load(tmp_path / "m.lir")
    x = np.ones((3, 8), np.float32)
    given = x, x, np.int64(2)
    expected = rlx.compile(lir, target="reference", params=WEIGHTS)(*given)
    exe = rlx.compile(back, target="reference", params=WEIGHTS)
    for one, other in zip(exe(*given), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    exe.step(*given)
    np.testing.assert_array_equal(exe.finish(), expected[1])
    static = rlx.CompilePipeline(target).compile(back).specialize({"batch": 3}).lir
    assert static.is_static
    assert static.plan.phase_of(static.plan.io.outputs[1]) is rlx.Phase.EPILOGUE


def test_a_backend_runs_plans_of_its_own() -> None:
    with pytest.raises(rlx.Error, match="small was planned for cuda, not for cpu"):
        rlx.compile(planned("cuda"), target="cpu", cache=False)


# -- files that are not what they should be -------------------------------------------------------


def changed(text: str, **head: Any) -> str:
    """The text with other entries in its plan."""
    start, end = text.index("{"), text.index("\n}\n") + 2
    plan = {**json.loads(text[start:end]), **head}
    return text[:start] + json.dumps(plan) + text[end:]


def test_a_plan_that_was_changed_is_found_out() -> None:
    lir = planned()
    text = lir_text(lir)
    plan = json.loads(text[text.index("{") : text.index("\n}\n") + 2])
    with pytest.raises(rlx.Error, match="the plan is not sound"):
        read_lir(changed(text, schedule=plan["schedule"][::-1]), "m.lir")
    with pytest.raises(rlx.Error, match="the plan is not sound"):
        read_lir(changed(text, slots=[[s[0], 0, *s[2:]] for s in plan["slots"]]))
    with pytest.raises(rlx.Error, match=r"m\.lir was changed: its fingerprint is another"):
        read_lir(changed(text, options="other"), "m.lir")
    with pytest.raises(rlx.Error, match="was made by rlx 9"):
        read_lir(text.replace(rlx.__version__, "9.9", 1))
    with pytest.raises(rlx.Error, match="does not begin with lir"):
        read_lir(str(small()))


WRONG: dict[str, dict[str, Any]] = {
    "a node that is not there": {"schedule": [10**9]},
    "a number that is none": {"schedule": [True]},
    "a phase that is none": {"phases": ["sometimes"]},
    "too few phases": {"phases": []},
    "a slot of three parts": {"slots": [[0, 0, 64]]},
    "a space that is none": {"slots": [[0, 0, 64, "moon", True]]},
    "a negative arena": {"arena_bytes": -1},
    "an alignment of three": {"alignment": 3},
    "a target without a name": {"target": {}},
    "nothing as a target": {"target": None},
    "a formula of unknown names": {"arena": [[1, "nobody"]]},
    "a formula that is text": {"arena": "1"},
    "names that are none": {"names": [["x"]]},
    "options that are none": {"options": 3},
    "a view of nothing": {"views": [[0]]},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_hostile_file_is_one_error(case: str) -> None:
    with pytest.raises(rlx.Error):
        read_lir(changed(lir_text(planned()), **WRONG[case]), "m.lir")


def test_mutated_files_are_errors_or_the_same_module() -> None:
    """What a body is called is no part of its meaning; all else is."""
    lir = planned("cuda", rlx.Dim("rows", 1, 64))
    text = lir_text(lir)
    rng = random.Random(5)
    for _ in range(150):
        at, kind = rng.randrange(len(text)), rng.randrange(3)
        size = rng.choice((1, 1, 1, 3, 40))
        middle = ("", rng.choice('0123456789"[]{}%, -x'), text[at : at + size] * 2)[kind]
        mutated = text[:at] + middle + text[at + size :]
        try:
            back = read_lir(mutated)
        except rlx.Error:
            continue
        assert back.mir == lir.mir
        assert (back.fingerprint, back.target) == (lir.fingerprint, lir.target)
    with pytest.raises(rlx.Error, match="RecursionError"):
        read_lir('lir "{}" "a"\n{}'.format(rlx.__version__, "[" * 200_000))


# -- on the command line --------------------------------------------------------------------------


def test_the_verbs_take_planned_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = tmp_path / "m.ir", tmp_path / "m.lir"
    source.write_text(str(small()), encoding="utf-8")
    assert main(["compile", str(source), "-t", "cuda", "--emit", "lir", "-o", str(plan)]) == 0
    assert "kernels for cuda" in capsys.readouterr().out
    assert rlx.load(plan).fingerprint == planned("cuda").fingerprint  # pyright: ignore
    assert main(["explain", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["name"] == "cuda"
    assert main(["run", str(plan)]) == 0
    assert "out places" in capsys.readouterr().out
    plan.write_text(plan.read_text(encoding="utf-8").replace("arena", "moon"), encoding="utf-8")
    capsys.readouterr()
    assert main(["run", str(plan)]) != 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["graph", "mir", "hir"])
def test_modules_of_every_level_are_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    graph = rlx.Graph("g")
    graph.set_outputs([graph.exp(graph.input("x", rlx.Shape([2])))])
    module = rlx.HirModule("m")
    module.set_outputs([module.exp(module.input("x", rlx.Shape([2])))])
    model = {"graph": graph, "mir": rlx.MirModule(graph), "hir": module}[kind]
    rlx.save(model, tmp_path / "m.ir")
    assert str(rlx.load(tmp_path / "m.ir")) == str(model)


def test_what_is_no_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(rlx.Error, match="cannot save a int"):
        rlx.save(3, tmp_path / "m.ir")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "m.ir").exists()
