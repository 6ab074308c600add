"""Planting an op with a carry: its page, its kernel, one registration, and no list elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rlx

PLANTED = Path(__file__).parent / "planted"
PACKAGE = Path(rlx.__file__).parent
TABLE = "DEDICATED = (\n"
ROW = '    _row("leaky_sum", "codegen.scan.leaky_sum:make_leaky_sum"),\n'

USE = '''
import numpy as np, rlx
from rlx import ops
from rlx.backends.registry import find_backend
from rlx.ir.text import read, show
from rlx.ops.__main__ import page
from rlx.ops.draw import Draw
from rlx.ops.op import lookup, table

OP = lookup("leaky_sum")


def meaning(x, axis, decay):
    """y[t] = decay y[t - 1] + x[t], rounded to the dtype of the sum at every step."""
    rows = np.moveaxis(x, axis, 0)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    state, made = np.zeros(rows.shape[1:], wide), []
    for row in rows:
        state = state * wide(decay) + row.astype(wide)
        made.append(state.astype(x.dtype))
    return np.moveaxis(np.array(made, x.dtype).reshape(rows.shape), 0, axis)


def graph_of(shape, **attrs):
    g = rlx.Graph("g")
    g.set_outputs([g.leaky_sum(g.input("x", shape), **attrs)])
    return g


def ops_of(exe):
    return {n.op for n in exe.lir.mir.graph.order()}


# It is in the table, in the text, and in the documentation.
assert "leaky_sum" in table()
named = graph_of(rlx.Shape([rlx.Dim("n"), rlx.Dim("t"), 3], "f32"), axis=1, decay=0.75)
assert read(show(named)) == named
assert "y[t] = decay" in page()

# The documented cpu and the installed one claim it; a target without the kernel lowers it.
documented, installed = rlx.Target.of("cpu"), find_backend("cpu").target()
assert "leaky_sum" in documented.native and documented.native == installed.native
assert not rlx.Target.of("cuda").has_kernel("leaky_sum")
assert "leaky_sum" in ops_of(rlx.CompilePipeline("cpu").compile(named))

rng = np.random.default_rng(0)
exe = rlx.compile(named, "cpu", cache=False)
assert "leaky_sum" in ops_of(exe)
for n, t in ((1, 1), (2, 9), (5, 40)):
    x = rng.standard_normal((n, t, 3)).astype(np.float32)
    np.testing.assert_array_equal(exe(x), meaning(x, 1, 0.75))

x = rng.standard_normal((2, 9, 3)).astype(np.float32)
other = rlx.compile(graph_of(rlx.Shape(x.shape), axis=1, decay=0.75), like="cuda")
assert "leaky_sum" not in ops_of(other)
np.testing.assert_array_equal(other(x), meaning(x, 1, 0.75))

# A strided operand, a result that a loop follows, and whatever the table draws for the signature.
g = rlx.Graph("between")
given = g.input("x", rlx.Shape([4, 6], "f64"))
turned = g.transpose(given, perm=(1, 0))
g.set_outputs([g.leaky_sum(g.exp(turned), axis=0, decay=0.5) * 2.0])
x = rng.standard_normal((4, 6))
want = 2 * meaning(np.exp(x.T), 0, 0.5)
np.testing.assert_allclose(rlx.compile(g, "cpu", cache=False)(x), want, rtol=1e-14)  # exp: 1 ulp

for seed in range(12):
    draw = Draw(seed)
    case = draw.case(OP)
    (x,), (spec,) = draw.arrays(case), case.specs
    exe = rlx.compile(graph_of(rlx.Shape(spec.dims, spec.dtype), **case.attrs), "cpu", cache=False)
    attrs = OP.canonical(case.attrs, [rlx.Shape(spec.dims, spec.dtype)])
    np.testing.assert_array_equal(exe(x), meaning(x, attrs["axis"], attrs["decay"]), str(case))
print("leaky_sum runs")
'''


def planted(site: Path) -> None:
    """A copy of the package with two new files and one row."""
    root = site / "rlx"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PLANTED / "leaky_sum.py", root / "ops/math/leaky_sum.py")
    shutil.copy(PLANTED / "leaky_sum_kernel.py", root / "backends/cpu/codegen/scan/leaky_sum.py")
    kernels = root / "backends/cpu/kernels.py"
    text = kernels.read_text()
    assert text.count(TABLE) == 1
    kernels.write_text(text.replace(TABLE, TABLE + ROW))


def test_a_scan_op_is_a_page_a_kernel_and_a_registration(tmp_path: Path) -> None:
    planted(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "RLX_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaky_sum runs\n"
