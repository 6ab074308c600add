"""Models whose reports are looked at, and their pages in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.explain.html import page_of
from rlx.explain.with_measurements import timed_report
from rlx.ir.mir import Origin

NODES = 1500
LAYERS, MANY_LAYERS = 4, 12
VIEWS = ("Overview", "Graph", "Kernels", "Memory", "Decisions", "Roofline", "Trace")
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
Model = tuple[rlx.Executable, dict[str, Any]]


def large() -> Model:
    """Products, norms and elementwise work, of as many nodes as a large model has."""
    g = rlx.Graph("a model of 1,500 nodes <script>alert(1)</script>")
    x = g.input("x", rlx.Shape([8, 32]))
    layer = 0
    while len(g.nodes) < NODES:
        w = g.constant(np.full((32, 32), 0.01 * (1 + layer % 7), np.float32))
        gate = g.sigmoid(g.matmul(x, w))
        x = g.softmax(x + gate * g.tanh(x), axis=-1)
        layer += 1
    g.set_outputs([x])
    return rlx.compile(g, "cpu"), {"x": np.ones((8, 32), np.float32)}


def layered(layers: int = LAYERS) -> Model:
    """Named layers, an input that every one of them reads, and two outputs."""
    g = rlx.Graph("layered")
    x, mask = g.input("tokens", rlx.Shape([64, 96])), g.input("mask", rlx.Shape([64, 96]))
    weights: dict[str, Any] = {}
    rng = np.random.default_rng(0)

    def weight(name: str, *dims: int) -> Any:
        weights[name] = 0.1 * rng.standard_normal(dims).astype(np.float32)
        return g.param(name, rlx.Shape(dims))

    for i in range(layers):
        with g.scope(Origin("block", f"encoder.layer.{i}")):
            up, down = weight(f"up.{i}", 96, 384), weight(f"down.{i}", 384, 96)
            hidden = g.gelu(g.matmul(x, up) + weight(f"bias.{i}", 384))
            x = g.softmax(x + g.matmul(hidden, down), axis=-1) * mask
    g.set_outputs({"scores": x, "sum": g.sum(x, axes=[1])})
    given = {"tokens": np.ones((64, 96), np.float32), "mask": np.ones((64, 96), np.float32)}
    return rlx.compile(g, "cpu", params=weights), given


def branched() -> Model:
    """Kernels beside each other, whose results have shapes that are wider than their cards."""
    dims = (10, 1, 11, 1, 12, 1, 13, 14)
    g = rlx.Graph("branched")
    x = g.exp(g.input("x", rlx.Shape(dims)))
    beside = [g.cumsum(g.softmax(x, axis=axis), axis=axis) for axis in (0, 2, 4)]
    g.set_outputs([g.sum(y, axes=list(range(len(dims)))) for y in beside])
    return rlx.compile(g, "cpu"), {"x": np.ones(dims, np.float32)}


def page(model: Model, path: Path) -> Path:
    exe, given = model
    report = timed_report(exe, given, seconds=0.05)
    path.write_text(page_of(report, exe.trace(given, calls=2)), "utf-8")
    return path
