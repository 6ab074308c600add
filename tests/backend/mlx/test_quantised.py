"""Block-scaled weights as mlx's quantised product: every packing and group that is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlx import Graph, Shape, ops
from rlx.backends.registry import find_backend
from rlx.core.dtype import DType
from rlx.fuzz.judge import Expected, compare
from rlx.pipeline import CompilePipeline

mx = pytest.importorskip("mlx.core", reason="mlx is not installed: make test-mlx")
RNG = np.random.default_rng(4)
ROWS, COLUMNS = 3, 5


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()


def product(packing: str, block: int, scale: str, zero: bool) -> tuple[Graph, dict[str, Any]]:
    depth = 2 * block
    size = depth // 2 if packing.endswith("4") else depth
    values: dict[str, Any] = {
        "x": RNG.normal(size=(ROWS, depth)).astype(DType.of(scale).numpy),
        "w": RNG.integers(0, 256, (COLUMNS, size)).astype(np.uint8),
        "s": RNG.uniform(0.1, 2.0, (COLUMNS, 2)).astype(DType.of(scale).numpy),
    }
    if zero:
        values["z"] = RNG.integers(-7, 8, (COLUMNS, 2)).astype(np.int8)
    graph = Graph("quantised")
    made = {n: (graph.input if n == "x" else graph.param)(n, Shape(a.shape, DType.of(a.dtype)))
            for n, a in values.items()}  # fmt: skip
    graph.set_outputs([ops.dequant_matmul(*made.values(), packing=packing, block=block)])
    return graph, values


def run(graph: Graph, values: dict[str, Any]) -> tuple[list[Any], set[str]]:
    backend = find_backend("mlx").configured("", None)
    lir = CompilePipeline(backend.target()).compile(graph).lir
    program = backend.compile(lir)
    x, *_ = values.values()
    weights = program.prepare({k: v for k, v in values.items() if k != "x"}, None)
    return program.run(weights, [x], [None]), {n.op for n in lir.mir.graph.nodes}


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("packing", ["uint4", "int4", "uint8", "int8"])
@pytest.mark.parametrize(("scale", "zero"), [("f32", False), ("f16", True), ("bf16", False)])
def test_is_the_reference(packing: str, block: int, scale: str, zero: bool) -> None:
    graph, values = product(packing, block, scale, zero)
    made, ops_left = run(graph, values)
    assert "dequant_matmul" in ops_left
    assert compare("mlx", Expected(graph, values), made) == []


@pytest.mark.parametrize(
    ("packing", "block", "scale", "zero"),
    [("fp8_e4m3", 32, "f32", False), ("int4", 16, "f32", False), ("uint8", 32, "f32", True)],
)
def test_other_weights_are_dequantised_once(
    packing: str, block: int, scale: str, zero: bool
) -> None:
    graph, values = product(packing, block, scale, zero)
    made, ops_left = run(graph, values)
    assert "dequant_matmul" not in ops_left
    assert compare("mlx", Expected(graph, values), made) == []
