"""Imports go down the layers only, those inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import rlx

LAYERS = (
    "core", "ops", "ir", "blocks", "rules", "cost", "plan", "passes", "kernel", "program",
    "pipeline",    "backends", "explain", "runtime", "frontends", "lm", "serve", "fuzz",
    "cli",
)  # fmt: skip
"""From the lowest: a module imports from its own layer and from those before it."""
ABOVE_ALL = frozenset(("__init__", "__main__", "onnx_backend", "torch"))
"""The public names, those for PyTorch, the command, and the interface for other people's test
suites."""
BELOW_ALL = frozenset(("_version",))
FOR_ANNOTATIONS = {
    ("ops", "ir"): "what an op's build and lowering are given",
    ("ir", "cost"): "the target that a plan is for",
    ("ir", "passes"): "the options that a bundle is compiled with",
    ("ir", "runtime"): "the session that a bundle is compiled by, and what it gives",
    ("explain", "runtime"): "the executable that is measured",
    ("runtime", "frontends"): "what a compiled module of PyTorch is",
}
"""Imports that only type checkers read may name what is above, for these reasons."""
LAZY = {
    "runtime/session.py": ("frontends", "a path is loaded by the front end of its format"),
    "explain/__init__.py": ("frontends", "a path is loaded by the front end of its format"),
    "cost/targets.py": ("backends", "documented targets claim the kernels that are registered"),
}
"""Modules that import from a layer above them when a function is called, and why."""
ROOT = Path(rlx.__file__).parent
RELATIVE = "."
"""What a relative import is read as."""


@dataclass(frozen=True)
class Import:
    """One module that another imports, and where."""

    layer: str
    wanted: str
    place: str
    is_typing: bool
    is_lazy: bool
    """Is it inside of a function?"""


def is_listed(found: Import) -> bool:
    return LAZY.get(found.place.partition(":")[0], ("", ""))[0] == found.wanted


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports() -> Iterator[Import]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("rlx", *path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__main__":
            continue  # a command: `python -m rlx.fuzz` is `rlx fuzz`
        yield from imports_of(path, parts[1])


def imports_of(path: Path, layer: str) -> Iterator[Import]:
    todo: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text()), False, False)]
    while todo:
        node, typing, lazy = todo.pop()
        typing, lazy = typing or is_typing(node), lazy or is_function(node)
        for wanted in names(node):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            yield Import(layer, wanted, place, typing, lazy)
        todo += [(n, typing, lazy) for n in ast.iter_child_nodes(node)]


def is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def names(node: ast.AST) -> list[str]:
    """The layers of rlx that a statement imports from."""
    if isinstance(node, ast.Import):
        return [layer_of(a.name) for a in node.names if a.name.split(".")[0] == "rlx"]
    if isinstance(node, ast.ImportFrom) and node.level:
        return [RELATIVE]
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlx":
        full = [f"rlx.{a.name}" if node.module == "rlx" else str(node.module) for a in node.names]
        return [layer_of(module) for module in full]
    return []


@pytest.fixture(scope="module")
def found() -> list[Import]:
    made = list(imports())
    assert len(made) > 1000  # they are read at all
    return made


def test_every_package_is_a_layer() -> None:
    here = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert here - ABOVE_ALL - BELOW_ALL == set(LAYERS)


def test_imports_go_down(found: list[Import]) -> None:
    rank = {name: i for i, name in enumerate(LAYERS)}
    up = [
        f"{i.place}: {i.layer} imports {i.wanted}"
        for i in found
        if i.layer in rank
        and i.wanted not in BELOW_ALL
        and rank.get(i.wanted, len(rank)) > rank[i.layer]
        and not (i.is_typing and (i.layer, i.wanted) in FOR_ANNOTATIONS)
        and not (i.is_lazy and is_listed(i))
    ]
    assert not up, "\n".join(up)


def test_no_relative_imports(found: list[Import]) -> None:
    assert not [i.place for i in found if i.wanted == RELATIVE]


def test_every_exception_is_used(found: list[Import]) -> None:
    used = {(i.layer, i.wanted) for i in found if i.is_typing}
    assert set(FOR_ANNOTATIONS) <= used
    assert set(LAZY) <= {i.place.partition(":")[0] for i in found if i.is_lazy and is_listed(i)}
