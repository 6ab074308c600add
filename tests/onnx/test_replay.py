"""A report of an ONNX model replays it in a process that has the file and the JSON alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import helper

import rlx
from rlx.cost.target import Target
from tests.onnx.test_loading import saved, value


def model(tmp_path: Path) -> Path:
    """Two dense layers, a norm spelled out, a convolution, shapes computed from shapes."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (8, 8), "b0": (8,), "w1": (8, 8), "k": (4, 1, 3)}
    weights = {n: rng.random(s, np.float32) for n, s in shapes.items()}
    weights |= {"dims": np.array([0, 1, -1], np.int64)}
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"], "dense0/MatMul"),
        node("Add", ["m0", "b0"], ["a0"], "dense0/Add"),
        node("Relu", ["a0"], ["r0"], "dense0/Relu"),
        node("MatMul", ["r0", "w1"], ["m1"], "dense1/MatMul"),
        node("Add", ["m1", "x"], ["s"], "residual/Add"),
        node("ReduceMean", ["s"], ["mean"], "norm/Mean", axes=[-1]),
        node("Sub", ["s", "mean"], ["c"], "norm/Sub"),
        node("Identity", ["c"], ["same"], "norm/Identity"),
        node("Reshape", ["same", "dims"], ["image"], "conv/Reshape"),
        node("Conv", ["image", "k"], ["conv"], "conv/Conv"),
        node("Softmax", ["conv"], ["y"], "out/Softmax", axis=-1),
    ]
    inputs, outputs = [value("x", (5, 8))], [value("y", (5, 4, 6)), value("s", (5, 8))]
    return saved(tmp_path / "net.onnx", nodes, inputs, outputs, weights)


def test_a_fresh_process_replays_a_file(tmp_path: Path) -> None:
    told = rlx.explain(rlx.load(model(tmp_path)))
    assert {d.what for d in told.decisions} >= {"fuse_matmul_bias_act", "fuse_region"}
    (tmp_path / "net.json").write_text(told.to_json(), encoding="utf-8")
    code = (
        "import rlx; text = open('net.json', encoding='utf-8').read(); "
        "print(rlx.explain.replay(rlx.load('net.onnx'), text).digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == told.graph


def test_prices_do_not_matter_to_a_replay(tmp_path: Path) -> None:
    """A target measured on another machine replays here: verdicts are told, not weighed."""
    loaded = rlx.load(model(tmp_path))
    cpu = Target.of("cpu")
    gate = replace(cpu.gate, dispatch_ns=9e6, min_gain_ns=5e6)
    dear = replace(cpu, machine=replace(cpu.machine, gate=gate, caches=()))
    told = rlx.explain(loaded, dear)
    assert rlx.explain.replay(loaded, told.to_json()).digest() == told.graph


def test_why_knows_the_names_of_the_file(tmp_path: Path) -> None:
    told = rlx.explain(rlx.load(model(tmp_path)))
    found = rlx.explain.why(told, "dense0/MatMul")
    assert [n.op for n in found.source if n.op != "constant"] == ["matmul"]
    assert found.kernels[0].ops[0] in ("fused_matmul_bias_act", "matmul")
    assert any(d.what == "fuse_matmul_bias_act" for d in found.decisions)
    layer = {n.op for n in rlx.explain.why(told, "dense0").source}
    assert layer - {"constant"} == {"matmul", "add", "relu"}
