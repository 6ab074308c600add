"""What the documents say is run."""

from __future__ import annotations

import os
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from bench import chart
from docs import tables
from rlx.pipeline import PASSES
from tests import snippets
from tests.unit.test_layers import LAYERS

ROOT = Path(__file__).parents[2]
PROGRAMS, COMMANDS = snippets.programs(), snippets.commands()


def test_documents_have_code() -> None:
    assert len(PROGRAMS) >= 8
    assert COMMANDS


@pytest.mark.parametrize("where", PROGRAMS)
def test_code_of_documents_runs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(PROGRAMS[where])
    monkeypatch.chdir(tmp_path)
    models: list[onnx.ModelProto] = []

    def made(*args: Any, _make: Any = helper.make_model, **how: Any) -> onnx.ModelProto:
        models.append(_make(*args, **how))
        return models[-1]

    monkeypatch.setattr(helper, "make_model", made)
    runpy.run_path(str(path))
    for model in models:
        assert model.ir_version <= helper.find_min_ir_version_for(model.opset_import)


def test_models_that_documents_write_are_for_all_runtimes() -> None:
    """A file of the newest IR version is one that onnxruntime cannot read yet."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    calls = [c for p in pages for c in re.findall(r"make_model\(.*?\)\n", p.read_text(), re.S)]
    assert len(calls) >= 3
    assert all("ir_version=" in call for call in calls)


@pytest.mark.parametrize("where", COMMANDS)
def test_commands_of_documents_run(where: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(small_model().SerializeToString())
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash", "-ec", COMMANDS[where]], cwd=tmp_path, env=os.environ | {"PATH": search},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def small_model() -> onnx.ModelProto:
    """Two operators on a named number of rows."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 8])
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    graph = helper.make_graph(nodes, "small", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path: Path) -> None:
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+\.py)` \|", (ROOT / "examples" / "README.md").read_text(), re.M)
    assert sorted(listed) == [path.name for path in EXAMPLES]


def test_the_chart_of_results_is_up_to_date() -> None:
    assert chart.FILE.read_text() == chart.svg(chart.rows()), "run `make docs`"


def test_the_tour_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "tour.py"))
    assert "That was the compiler" in capsys.readouterr().out


def test_the_op_page_is_up_to_date() -> None:
    from rlx.ops.__main__ import page

    assert (ROOT / "docs" / "ops.md").read_text() == page(), "run `make docs`"


DESIGN = ROOT / "docs" / "design"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *snippets.PAGES,
    *sorted(DESIGN.glob("*.md")),
    *sorted((ROOT / "bench" / "results").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
PACKAGE = ROOT / "src" / "rlx"
FOLDERS = {p.name for top in (ROOT, PACKAGE) for p in top.iterdir() if p.is_dir()} - {"build"}


def paths_named(text: str) -> list[str]:
    """Files of Python in backticks, and paths that begin with a folder of the tree or of rlx."""
    spans = re.findall(r"`([\w./*-]+)`", text)
    return [s for s in spans if s.endswith(".py") or ("/" in s and s.split("/")[0] in FOLDERS)]


def is_there(name: str, beside: Path = ROOT) -> bool:
    """Is there such a file or folder? A star matches."""
    tops = ROOT, PACKAGE, beside
    if "*" in name:
        return any(any(top.glob(name)) for top in tops)
    return any(
        (top / name).is_dir() or (not name.endswith("/") and (top / name).is_file()) for top in tops
    )


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("`core/dim.py`", True), ("`kernel/lower/loop.py`", True), ("`plan/`", True),
        ("`explain/page/*.js`", True), ("`tests/kernel/interpreted.py`", True),
        ("`core/no_such.py`", False), ("`dim.py`", False), ("`ops/no_such/`", False),
        ("`explain/page/*.rs`", False), ("`core/dim.py/`", False),
    ],
)  # fmt: skip
def test_a_path_that_a_page_names_is_looked_up(text: str, is_named: bool) -> None:
    (name,) = paths_named(text)
    assert is_there(name) is is_named


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_pages_name_are_there(page: Path) -> None:
    named = paths_named(page.read_text())
    missing = [name for name in named if not is_there(name, page.parent)]
    assert not missing, f"{page.name} names files that are not below src/rlx: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """To a file of the tree; from a page below docs/ to one that the site has a page for."""
    targets = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())
    made = {ROOT / "docs" / "generated" / f"{name}.md" for name in tables.pages()}
    found = {(page.parent / target).resolve() for target in targets} - made
    assert not [f for f in found if not f.exists()]
    if page in snippets.PAGES:
        site = {(ROOT / file).resolve() for file in tables.SITE}
        assert not [f for f in found if f not in site and page.parent not in f.parents]


def test_files_that_the_source_names_are_there() -> None:
    """Beside a file, below src/rlx, or below the root."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md")]
        for name in re.findall(r"`([\w./]+\.py)`", path.read_text())
        if not is_there(name, path.parent)
    ]
    assert not missing, "\n".join(missing)


def test_modules_that_pages_name_are_there() -> None:
    """`rlx.module.name` resolves: modules first, attributes of the last one then."""
    for page in PAGES:
        for name in set(re.findall(r"`(rlx(?:\.\w+)+)", page.read_text())):
            if not name.endswith((".backends", ".rlx", ".js")):  # entry points; a file of browsers
                assert pkgutil.resolve_name(name) is not None, name


CONCEPTS = (
    "softmax: the op", "softmax: CPU kernel", "softmax: GPU kernel", "Winograd", "KV cache",
    "WebAssembly", "scheduler of the server", "depthwise", "implicit GEMM", "im2col", "NHWC",
    "epilogue", "packing", "twiddles", "NMS", "zero-point", "thread pool", "arena", "liveness",
    "CSE", "constant folding", "legalisation", "fusion gate", "decisions", "machine model",
    "plan checker", "verifier", "race detection", "PTX", "WGSL", "tokenizers",
    "speculative decoding", "roofline", "fuzzer", "promotion", "provenance", "DLPack", "top-k",
)  # fmt: skip
"""Words that a reader of other compilers looks for."""


def test_every_concept_has_its_file() -> None:
    """The index of the design has the files of each concept of the field, in alphabetical order."""
    page = (DESIGN / "where-is.md").read_text()
    rows = re.findall(r"^\| (?!concept)(.+) \| (.+) \|$", page, re.M)
    concepts = [re.sub(r"[`.(]", "", concept).casefold() for concept, _ in rows]
    assert concepts == sorted(set(concepts))
    assert len(concepts) >= 300
    cells = [re.sub(r"`[\w./*]+`", "", files).strip(", ") for _, files in rows]
    assert not any(cells), "a cell has nothing but files"
    assert not [w for w in CONCEPTS if not any(w.casefold() in c for c in concepts)]


def test_every_page_of_the_design_is_listed() -> None:
    """In its index, and in the table of contents of the site."""
    names = {page.stem for page in DESIGN.glob("*.md")}
    index = (DESIGN / "README.md").read_text()
    assert {*re.findall(r"\]\(([\w-]+)\.md\)", index), "README"} == names
    site = (ROOT / "docs" / "index.md").read_text()
    assert set(re.findall(r"^design/([\w-]+)$", site, re.M)) == names


def test_every_pass_is_in_the_design() -> None:
    table = (DESIGN / "pipeline.md").read_text()
    named = re.findall(r"^\| `(\w+)` \| `[\w./]+\.py`", table, re.M)
    assert named == [run.__name__ for run in PASSES]


def test_every_layer_is_in_the_design() -> None:
    page = (DESIGN / "layers.md").read_text()
    table = page.partition("## The layers")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.M)) == LAYERS


MAKEFILE = (ROOT / "Makefile").read_text()
RULES = re.findall(r"^([\w-]+(?: [\w-]+)*):(?!=)", MAKEFILE, re.M)
TARGETS = {target for rule in RULES for target in rule.split()}


def test_make_help_lists_every_target() -> None:
    listed = re.findall(r"^#:   ([\w-]+) ", MAKEFILE, re.M)
    assert sorted([*listed, "help"]) == sorted(TARGETS)
    assert len(listed) >= 40


def test_documents_name_targets_of_make() -> None:
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z][\w-]*)", page.read_text()))
        assert named <= TARGETS, f"{page.name}: {sorted(named - TARGETS)}"


def test_pre_commit_runs_what_make_check_runs() -> None:
    recipe = MAKEFILE.partition("\ncheck: setup\n")[2].partition("\n\n")[0]
    steps = [line.strip().removesuffix(" .") for line in recipe.splitlines()]
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M)
    assert hooks == [step.replace("$(VENV)", ".venv") for step in steps]
    assert len(hooks) == 3


KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
"""Of changes, as Keep a Changelog has them."""


def test_the_changelog_lists_each_kind_of_change_once() -> None:
    """Branches are merged by the union of their lines, which may repeat some."""
    text = (ROOT / "CHANGELOG.md").read_text()
    head, *releases = re.split(r"^## ", text, flags=re.M)
    assert releases[0].startswith("[Unreleased]\n")
    assert not re.findall(r"^- ", head, re.M), "entries belong to a release"
    assert all(re.match(r"\[[\w.]+\]( - [\d-]+)?\n", release) for release in releases)
    for release in releases:
        kinds = re.findall(r"^### (.+)$", release, re.M)
        assert kinds == [kind for kind in KINDS if kind in kinds]
    entries = re.findall(r"^- .+$|^#+ .+$", text, re.M)
    assert len(entries) == len(set(entries))
