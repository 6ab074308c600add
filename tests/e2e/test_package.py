"""The package as a user meets it: built, installed elsewhere, extended."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, *, cwd: Path, path: Path | None = None) -> str:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import numpy as np, rlx
print(rlx.__file__, rlx.__version__)
g = rlx.Graph("g")
x = g.input("x", rlx.Shape([2, 3]))
g.set_outputs([rlx.ops.softmax(x * 2.0, axis=-1)])
print(rlx.compile(g, like="cuda")(np.zeros((2, 3), np.float32))[0, 0])
"""


def test_a_wheel_installed_elsewhere_works(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    wheel = next(tmp_path.glob("rlx-*.whl"))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert (site / "rlx" / "py.typed").exists()
    out = run(USE, cwd=tmp_path, path=site)
    assert str(site) in out
    assert "0.33333" in out
    out = run((ROOT / "tests" / "e2e" / "newcomer.py").read_text(), cwd=tmp_path, path=site)
    assert f"12 steps, with rlx 0.1.0 of {site / 'rlx'}" in out


SOFTCLIP = '''
import numpy as np, rlx
from rlx import ops
from rlx.ops.op import Kind, op


@op("f[*s] -> f[*s]", kind=Kind.ELEMENTWISE, flops="3*out")
def softclip(x):
    """x / (1 + |x|)."""
    return x / (1 + np.abs(x))


@softclip.lowering
def _(x):
    return ops.div(x, ops.add(ops.abs(x), 1.0))


import rlx.ops.op
from rlx.ops.draw import Draw
from rlx.ops.__main__ import page
from rlx.ir.text import read, show

g = rlx.Graph("g")
x = g.input("x", rlx.Shape([rlx.Dim("n"), 3], "bf16"))
g.set_outputs([g.softclip(x) * 2])
assert read(show(g)) == g
assert "x / (1 + \\\\|x\\\\|)" in page()
for seed in range(20):
    draw = Draw(seed)
    case = draw.case(rlx.ops.op.lookup("softclip"))
    ops.softclip(*draw.arrays(case))
for target in rlx.FusionTarget:
    exe = rlx.compile(g, like=target.value)
    y = exe(np.ones((4, 3), rlx.DType.BF16.numpy))
    assert y.shape == (4, 3) and float(y[0, 0]) == 1.0, target
print("softclip runs")
'''


def test_an_elementwise_op_is_one_declaration(tmp_path: Path) -> None:
    assert "softclip runs" in run(SOFTCLIP, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 0), (["--help"], 0), (["nonsense"], 2), (["explain", "missing.ir"], 2)],
)
def test_the_command_line(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlx", *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_explain_reads_a_file(tmp_path: Path) -> None:
    import rlx

    g = rlx.Graph("net")
    x = g.input("x", rlx.Shape([4, 8]))
    w, b = g.param("w", rlx.Shape([8, 8])), g.param("b", rlx.Shape([8]))
    g.set_outputs([g.relu(g.mm(x, w) + b)])
    (tmp_path / "net.ir").write_text(str(g))
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "explain", "net.ir", "--plan", "--svg", "net.svg"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "fuse_matmul_bias_act" in done.stdout
    assert (tmp_path / "net.svg").read_text().startswith("<svg")
