"""The IR of a compile as files."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx
from rlx.__main__ import main
from rlx.backends.registry import find_backend
from rlx.fuzz.generate import grow
from rlx.ir.diff import diff
from rlx.pipeline import PASSES
from tests.effort import tries


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
    plan = f"{len(passes):02}-plan"
    rest = [f"{plan}.lir", f"{plan}.txt", f"{len(passes) + 1:02}-fusion.txt"]
    assert [n for n in names(folder) if not n.endswith(".diff")] == [*wanted, *rest]
    assert (folder / rest[2]).read_text() == f"{result.fusion}\n"
    assert result.lir.plan.report() in (folder / rest[1]).read_text()
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
    found = names(tmp_path / "dumped" / "net_1")
    assert len([n for n in found if not n.endswith(".diff")]) == len(PASSES) + 4


def blocks() -> rlx.HirModule:
    m = rlx.HirModule("blocks")
    x, w = m.input("x", [4, 8]), m.param("w", [8, 8])
    y = m.mir("mul", m.linear(x, w), m.constant(1.0))
    m.set_outputs([m.mir("add", y, m.mir("exp", x))])
    return m


def test_a_module_of_blocks_is_dumped_before_it_is_lowered(tmp_path: Path) -> None:
    rlx.CompilePipeline("cuda", dump=tmp_path).compile(blocks())
    folder = tmp_path / "blocks"
    assert rlx.load(folder / "00-hir.ir") == blocks()
    assert rlx.load(folder / "01-source.ir") == blocks().lower()
    lowered = (folder / "01-source.diff").read_text().splitlines()
    assert lowered[0].startswith("# source: 7 nodes, 7 before; 1 added, 1 removed, 1 changed")
    assert "- %old2 = linear(%0, %1, activation=none) : f32[4, 8]" in lowered
    assert "+ %2 = matmul(%0, %1) : f32[4, 8]" in lowered


def test_neighbours_are_compared_where_a_pass_changed_something(tmp_path: Path) -> None:
    rlx.CompilePipeline("cuda", dump=tmp_path).compile(graph())
    folder = tmp_path / "net_1"
    graphs = sorted(folder.glob("*.ir"))
    texts = [p.read_text() for p in graphs]
    changed = [b.stem for b, old, new in zip(graphs[1:], texts, texts[1:]) if old != new]
    assert changed
    assert changed == sorted(p.stem for p in folder.glob("*.diff"))


def chain(*ops: str) -> rlx.Graph:
    g = rlx.Graph("chain")
    x = g.input("x", [8])
    for op in ops:
        x = g.node(op, (x,))
    g.set_outputs([x])
    return g


def test_a_diff_shows_what_changed_under_shared_names() -> None:
    assert diff(chain("exp", "sin", "cos", "tanh"), chain("exp", "neg", "cos", "tanh"), "swap") == (
        "# swap: 5 nodes, 5 before; 1 added, 1 removed, 1 changed\n"
        '  %0 = input(name="x", shape=f32[8]) : f32[8]\n'
        "  %1 = exp(%0) : f32[8]\n"
        "+ %2 = neg(%1) : f32[8]\n"
        "- %old2 = sin(%1) : f32[8]\n"
        "- %3 = cos(%old2) : f32[8]\n"
        "+ %3 = cos(%2) : f32[8]\n"
        "  %4 = tanh(%3) : f32[8]\n"
        "  return %4\n"
    )
    same = diff(chain("exp"), chain("exp"), "nothing")
    assert same == "# nothing: 2 nodes, 2 before; nothing changed\n"


def test_a_diff_of_long_chains_takes_time_linear_in_the_nodes() -> None:
    """Two thousand equal nodes: comparing each with each would be four million steps."""
    ops = ["exp", "neg"] * 1000
    text = diff(chain(*ops), chain(*ops[:1000], "sin", *ops[1000:]), "more")
    assert text.startswith("# more: 2002 nodes, 2001 before; 1 added, 0 removed, 1 changed")
    assert len(text.splitlines()) < 12


@pytest.mark.parametrize("seed", range(tries(6, 200)))
def test_a_diff_counts_what_is_not_in_both(seed: int) -> None:
    """The nodes of the one are those of the other, less what is gone, and what is new."""
    before = grow(seed, 6).graph
    after = rlx.CompilePipeline("cpu").optimize(before).graph
    head, *lines = diff(before, after, "all").splitlines()
    count = {sign: sum(line.startswith(f"{sign} %") for line in lines) for sign in "+-"}
    assert head.startswith(f"# all: {len(after.order())} nodes, {len(before.order())} before")
    assert count["+"] - count["-"] == len(after.order()) - len(before.order())
