"""The IR of a compile as files."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx
from rlx.__main__ import main
from rlx.backends.registry import find_backend
from rlx.pipeline import PASSES


def graph() -> rlx.Graph:
    g = rlx.Graph("net/1")
    x = g.input("x", rlx.Shape([rlx.Dim("n"), 8]))
    g.set_outputs([rlx.ops.softmax(x * 2.0 + 1.0)])
    return g


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_every_pass_is_a_file_that_loads(tmp_path: Path) -> None:
    g = graph()
    result = rlx.CompilePipeline("cuda", dump=tmp_path).compile(g)
    folder = tmp_path / "net_1"
    passes = ["source", *(p.__name__ for p in PASSES)]
    wanted = [f"{i:02}-{name}.ir" for i, name in enumerate(passes)]
    assert names(folder) == [*wanted, f"{len(passes):02}-plan.lir"]
    assert rlx.load(folder / wanted[0]).graph == g
    assert rlx.load(folder / wanted[-1]).graph == result.lir.mir.graph
    assert rlx.load(folder / f"{len(passes):02}-plan.lir").fingerprint == result.lir.fingerprint


def test_the_kernels_are_written_for_a_backend_that_makes_some(tmp_path: Path) -> None:
    exe = rlx.compile(graph(), "cpu", dump=tmp_path)
    (kernels,) = (tmp_path / "net_1").glob("*-kernels.txt")
    assert kernels.read_text() == str(find_backend("cpu").program(exe.lir))  # pyright: ignore
    assert "kernel region over" in kernels.read_text()


def test_a_second_compile_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        rlx.compile(graph(), "reference", dump=tmp_path)
    assert names(tmp_path) == ["net_1", "net_1-2"]


def test_an_equal_request_of_a_session_is_compiled_again(tmp_path: Path) -> None:
    session = rlx.Session("reference", dump=tmp_path)
    session.compile(graph())
    session.compile(graph())
    assert len(names(tmp_path)) == 2


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(rlx.Error, match="cannot be written there"):
        rlx.CompilePipeline(dump=tmp_path / "file" / "inner").compile(graph())


def test_the_command_dumps(tmp_path: Path) -> None:
    rlx.save(graph(), tmp_path / "m.ir")
    made = [str(tmp_path / name) for name in ("m.ir", "m.lir", "dumped")]
    assert main(["compile", made[0], "-o", made[1], "--emit", "lir", "--dump", made[2]]) == 0
    assert len(names(tmp_path / "dumped" / "net_1")) == len(PASSES) + 2
