"""What editors and type checkers see of ops and blocks: signatures, docstrings, stubs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rlx
from rlx.ir import block, stubs
from rlx.ops.op import Op, table

EVERY: list[Op] = [*table().values(), *block.table().values()]


@pytest.mark.parametrize("path", stubs.files(), ids=lambda p: p.name)
def test_stubs_are_current(path: Path) -> None:
    assert path.read_text() == stubs.files()[path], "run `make docs`"


def test_builders_list_their_methods() -> None:
    assert {"softmax", "matmul", "mm", "if_", "input"} <= set(dir(rlx.Graph))
    assert {"linear", "softmax", "while_"} <= set(dir(rlx.HirModule))
    assert "linear" not in dir(rlx.Graph)
    assert {"softmax", "nodes"} <= set(dir(rlx.Graph("g")))
    assert dir(rlx.explain) == ["diff", "replay", "why"]


@pytest.mark.parametrize("op", EVERY, ids=lambda o: o.name)
def test_each_op_has_a_docstring_and_a_signature(op: Op) -> None:
    assert inspect.getdoc(op)
    named = {p.removesuffix("_") for p in inspect.signature(op).parameters}
    assert named >= op.attr_specs.keys() - {"without"}


def test_methods_have_the_signatures_of_their_ops() -> None:
    g, m = rlx.Graph("g"), rlx.HirModule("m")
    own = inspect.signature(rlx.ops.softmax)
    assert inspect.signature(g.softmax) == own
    assert [*inspect.signature(rlx.Graph.softmax).parameters] == ["self", *own.parameters]
    assert "bias" in inspect.signature(m.linear).parameters
    assert g.softmax.__doc__ == inspect.getdoc(rlx.ops.softmax)
    x = g.input("x", [2, 3])
    assert rlx.Graph.softmax(g, x) is g.softmax(x)


CHECKED = """
import numpy as np
import rlx

g = rlx.Graph("g")
x = g.input("x", [2, 3])
made: rlx.Node = rlx.ops.concat([g.softmax(x, -1) * np.ones(3), 1.0 - x], axis=0).sum(axis=0)
ran: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]" = rlx.ops.softmax(np.ones(3), axis=0)
first, second = rlx.ops.top_k(x, k=2)
report = rlx.explain(g)
rlx.explain.why(report, "x")
"""
REFUSED = ("g.sofmax(x)", "g.softmax(x, axs=1)", "rlx.ops.sofmax(x)", "rlx.ops.softmax(x, axs=1)",
           "g.linear(x, x)", "rlx.HirModule('m').liner(x)", "x.foo", "rlx.compil(g)")  # fmt: skip


def test_misspelt_ops_do_not_type_check(tmp_path: Path) -> None:
    lines = CHECKED.count("\n")
    (tmp_path / "use.py").write_text(CHECKED + "\n".join(REFUSED))
    package = Path(rlx.__file__).parents[1]
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "standard", "extraPaths": ["{package}"]}}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [int(t.split(":")[1]) for t in done.stdout.splitlines() if " - error: " in t]
    assert sorted(set(found)) == [lines + 1 + i for i in range(len(REFUSED))], done.stdout
