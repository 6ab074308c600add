"""A third party's backend, installed as a distribution of its own: a new backend is one folder.

`rlx-eager` beside this file is what somebody else would publish. It is laid into a folder as an
installer would, with the entry points that its pyproject.toml lists, and nothing of rlx changes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.__main__ import main
from rlx.backends.registry import backend_names, find_backend, has_backend
from rlx.runtime.calibrate import calibrate
from rlx.runtime.doctor import examine
from rlx.runtime.random_inputs import random_inputs

PROJECT = Path(__file__).parent / "rlx-eager"
GRAPHS = sorted((Path(__file__).parents[1] / "ir").glob("*.ir"))
NO_SAVE = "target 'eager' does not write its programs to files"
NO_CLOCK = "target 'eager' does not time its kernels"


def install(project: Path, site: Path) -> None:
    """What an installer leaves of a project: its packages, and its metadata."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    shutil.copytree(project / "src", site, dirs_exist_ok=True)
    lay_out(site, facts["name"], facts["version"], facts["entry-points"])


def lay_out(site: Path, name: str, version: str, entries: dict[str, dict[str, str]]) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install(PROJECT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    for name in [n for n in sys.modules if n.partition(".")[0] == "rlx_eager"]:
        del sys.modules[name]


def called(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    got = main(list(arguments))
    out, err = capsys.readouterr()
    assert got == code, err
    return err if code else out


def made_up(shapes: Any, seed: int, **sizes: int) -> dict[str, Any]:
    return random_inputs(shapes, sizes, seed, typical=5)


def network() -> rlx.Graph:
    g = rlx.Graph("net")
    x = g.input("x", rlx.Shape([rlx.Dim("n"), 6]))
    w, b = g.param("w", rlx.Shape([6, 4])), g.param("b", rlx.Shape([4]))
    g.set_outputs([g.softmax(g.relu(g.mm(x, w) + b), axis=-1)])
    return g


def compiled(model: Any, **options: Any) -> Any:
    exe = rlx.compile(model, target="eager", cache=False, **options)
    if exe.missing_params:
        exe.set_params(made_up(exe.params, 1))
    return exe


# -- it is found ---------------------------------------------------------------------------------


def test_it_is_found_by_name_and_is_a_target_of_its_own() -> None:
    assert has_backend("eager")
    assert backend_names()[-1] == "eager"
    backend = find_backend("eager")
    assert type(backend).__module__ == "rlx_eager.backend"
    known = {rlx.Target.of(t).digest() for t in rlx.FusionTarget}
    assert backend.target().name == "eager"
    assert backend.target().digest() not in known


def test_without_the_distribution_there_is_no_such_target(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(site)])
    with pytest.raises(rlx.Error, match="there is no target 'eager'"):
        rlx.compile(network(), target="eager")


# -- it runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: p.stem)
def test_it_computes_what_the_reference_does_with_its_plan(path: Path) -> None:
    """Convolution, attention, control flow, named dims, constants, blocks: the same bits."""
    model = rlx.load(path)
    exe = compiled(model)
    plan = rlx.compile(model, target="reference", like=exe.lir.target, cache=False)
    assert exe.lir.target.name == "eager"
    assert exe.lir.fingerprint == plan.lir.fingerprint
    if plan.params:
        plan.set_params(made_up(plan.params, 1))
    for seed in range(3):
        given = made_up(exe.inputs, seed)
        for (name, got), want in zip(exe.run(given).items(), plan.run(given).values(), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_named_dims_and_params(n: int) -> None:
    exe = compiled(network())
    x = made_up(exe.inputs, 0, n=n)["x"]
    first, out = exe(x), np.empty((n, 4), np.float32)
    np.testing.assert_allclose(first.sum(-1), 1, rtol=1e-6)  # a softmax of 4 f32 values
    assert exe(x, out=out) is out
    np.testing.assert_array_equal(out, first)
    exe.set_params({"b": np.array([9, 0, 0, 0], np.float32)})
    assert (exe(x)[:, 0] > first[:, 0]).all()


def test_its_claims_decide_what_is_lowered() -> None:
    g = rlx.Graph("claims")
    x = g.input("x", rlx.Shape([2, 8]))
    g.set_outputs([g.softmax(x, axis=-1), g.log_softmax(x, axis=-1)])
    ops = {n.op for n in compiled(g).lir.mir.graph.order()}
    assert "softmax" in ops
    assert not {"log_softmax", "region", "elementwise_region"} & ops


def test_a_plan_of_another_target_is_refused() -> None:
    plan = rlx.CompilePipeline("cpu").compile(network()).lir
    with pytest.raises(rlx.Error, match="planned for cpu, not for eager"):
        rlx.compile(plan, target="eager")


def test_the_reference_runs_its_plans_by_name() -> None:
    exe = rlx.compile(network(), target="reference", like="eager", cache=False)
    assert exe.lir.target == find_backend("eager").target()


# -- the tools know it -----------------------------------------------------------------------------


def test_explain() -> None:
    exe = compiled(network())
    for report in (rlx.explain(network(), "eager"), exe.explain()):
        assert report.target.name == "eager"
        assert report.kernels
        assert "eager" in str(report)
        replayed = rlx.explain.replay(network(), report)
        assert replayed.digest() == exe.lir.mir.graph.digest()


def test_explain_and_run_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = str(tmp_path / "net.ir"), str(tmp_path / "net.lir")
    (tmp_path / "net.ir").write_text(str(network()))
    found = json.loads(called(capsys, "explain", path, "-t", "eager", "--json"))
    assert found["target"]["name"] == "eager"
    assert called(capsys, "run", path, "-t", "eager")
    assert "for eager" in called(
        capsys, "compile", path, "-t", "eager", "--emit", "lir", "-o", plan
    )
    assert rlx.load(plan).target == find_backend("eager").target()
    assert called(capsys, "run", plan)


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    state = examine(False).targets[-1]
    assert (state.name, state.is_here) == ("eager", True)
    assert state.detail == "NumPy without an arena, from rlx-eager"
    assert "eager" in called(capsys, "doctor")


def test_fuzz(capsys: pytest.CaptureFixture[str]) -> None:
    told = called(
        capsys, "fuzz", "--backend", "eager", "--graphs", "30", "--jobs", "1", "--json"
    )  # fmt: skip
    tally = json.loads(told)
    assert (tally["graphs"], tally["wrong"]) == (30, 0)
    assert tally["refused"] < 30
    assert "qr" not in tally["ops"]  # what the target refuses is not drawn


def test_in_a_process_of_its_own(site: Path) -> None:
    """As a user has it: an import path with two distributions, and the command."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "doctor", "--json"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"][-1]["name"] == "eager"


# -- what it does not have -------------------------------------------------------------------------


def test_what_it_cannot_do_is_one_error_that_names_it(tmp_path: Path) -> None:
    exe = compiled(network())
    given = [np.ones((2, 6), np.float32)]
    with pytest.raises(rlx.UnsupportedError, match=NO_SAVE):
        exe.save(tmp_path / "net.rlx")
    assert not list(tmp_path.iterdir())
    for ask in (exe.profile, exe.trace):
        with pytest.raises(rlx.UnsupportedError, match=NO_CLOCK):
            ask(given)
    with pytest.raises(rlx.UnsupportedError, match="target 'eager' cannot be calibrated"):
        calibrate("eager", cache=tmp_path / "cache")
    with pytest.raises(rlx.UnsupportedError, match="net: EagerProgram does not run SteadyState"):
        exe.step(*given)
    with pytest.raises(rlx.Error, match="target 'eager' has no variant 'fast'"):
        rlx.compile(network(), target="eager:fast")
    assert exe.threads == 1
    assert exe.memory(n=2).scratch_bytes == 0
    assert exe.loaded.program.codegen_spans == ()


def test_a_refused_op_says_why() -> None:
    g = rlx.Graph("factors")
    g.set_outputs(list(g.qr(g.input("x", rlx.Shape([3, 3])))))
    with pytest.raises(rlx.UnsupportedError, match="eager leaves factorisations to others"):
        rlx.compile(g, target="eager")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            "rlx_broken:missing",
            "is brought by rlx-broken, which cannot be imported: AttributeError",
        ),
        (
            "rlx_absent:backend",
            "is brought by rlx-broken, which cannot be imported: ModuleNotFound",
        ),
        ("rlx_broken:number", "but rlx_broken:number is no rlx.backends.base.Backend"),
        ("rlx_eager:backend", "but rlx_eager:backend is called 'eager'"),
    ],
)
def test_a_broken_distribution_is_named(
    entry: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rlx_broken.py").write_text("number = 3\n")
    lay_out(tmp_path, "rlx-broken", "1.0", {"rlx.backends": {"broken": entry}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(rlx.Error, match=text):
        rlx.compile(network(), target="broken")
    state = next(t for t in examine(False).targets if t.name == "broken")
    assert not state.is_here
    assert "rlx-broken" in state.detail
