"""What XLA computes otherwise than ops mean: on target tpu the result is that of the reference.

All cases are outputs of two graphs, as compiling a function takes XLA far longer than running it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import Graph, Shape, ops
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.steps import HostStep, Segment
from rlx.backends.registry import find_backend
from rlx.core.arrays import frozen_copy
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.ir.interpret import evaluate
from rlx.pipeline import CompilePipeline

jax: Any = pytest.importorskip("jax", reason="jax is not installed: make test-tpu")
INF, NAN = np.inf, np.nan
LEAST = int(np.iinfo(np.int32).min)
Make = Callable[..., Any]


def of(dtype: str, *values: Any) -> list[np.ndarray[Any, Any]]:
    return [np.array(v, DType.of(dtype).numpy) for v in values]


ORDER = of("f32", [0.0, 1.0, NAN, -0.0, INF, -INF, NAN, 1.0])
TABLE = of("f32", np.zeros((4, 2)))
CASES: dict[str, tuple[Make, list[np.ndarray[Any, Any]]]] = {
    "an integer over zero is -1": (ops.div, of("i32", [7, -7, LEAST], [0, 0, -1])),
    "so it is where it is floored": (ops.floor_div, of("u8", [7, 200], [0, 3])),
    "powers of integers have six bits of the exponent": (ops.pow, of("i64", [3, -1], [1001, -3])),
    "complex infinity is no NaN": (ops.div, of("c64", [1 + 1j], [complex(NAN, -INF)])),
    "conversions are the device's": (
        lambda x: ops.cast(x, to="u8"),
        of("f32", [NAN, INF, -INF, 300.0, -1.5, 254.9]),
    ),
    "a shift by the width is not stated": (ops.shift_right, of("i8", [-9, 9, -9], [8, -1, 2])),
    "top_k tells zeros apart": (lambda x: ops.top_k(x, k=8)[1], ORDER),
    "sorts fall by reversal": (lambda x: ops.argsort(x, descending=True), ORDER),
    "equal places are written in any order": (
        ops.scatter,
        [*TABLE, *of("i64", [1, 3, 1]), *of("f32", [[1, 1], [2, 2], [3, 3]])],
    ),
    "random bits are the engine's": (
        lambda counter: ops.random_bits(counter, dims=(3, 5), seed=7, stream=2**63),
        of("u64", 2**64 - 2),
    ),
    "an average counts what it reaches": (
        lambda x: ops.avg_pool(x, kernel=(3,), stride=(2,), padding=(1, 1), ceil=True),
        of("f32", np.arange(8).reshape(1, 1, 8)),
    ),
    "subnormal numbers of f32 are 0": (
        lambda x, scale: ops.block_dequantize(x, scale, packing="fp8_e4m3", block=8),
        [*of("u8", [0, 1, 7, 8, 128, 129, 135, 126]), *of("f32", [1.0])],
    ),
    "a singular matrix has an inverse": (ops.solve, of("f32", [[1, 2], [2, 4]], [[1], [1]])),
}


def backend() -> EngineBackend:
    found = find_backend("tpu").configured("cpu", None)
    assert isinstance(found, EngineBackend)
    return found


def together(*names: str) -> tuple[Graph, dict[str, Any]]:
    """The cases as one graph, and its values."""
    graph, values, outputs = Graph("faults"), dict[str, Any](), list[Any]()
    for i, name in enumerate(names):
        make, arrays = CASES[name]
        given = {f"x{i}_{j}": a for j, a in enumerate(arrays)}
        values |= given
        nodes = [graph.input(n, Shape(a.shape, DType.of(a.dtype))) for n, a in given.items()]
        outputs.append(make(*nodes))
    graph.set_outputs(outputs)
    return graph, values


def run(graph: Graph, values: dict[str, Any]) -> list[Any]:
    program = backend().compile(CompilePipeline(backend().target()).compile(graph).lir)
    assert not any(isinstance(s, HostStep) for s in program.steps.call)
    inputs = [values[n.attrs["name"]] for n in graph.inputs]
    return program.run(program.prepare({}, None), inputs, [None] * len(graph.outputs))


def test_what_xla_does_otherwise_is_as_ops_mean_it() -> None:
    graph, values = together(*CASES)
    for name, got, want in zip(CASES, run(graph, values), evaluate(graph, values), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_an_index_out_of_range_names_its_node_and_reads_nothing_else() -> None:
    graph, values = together("equal places are written in any order")
    values["x0_1"] = np.array([1, 4, 1])
    with pytest.raises(Error, match=r"scatter.*: an index is out of range for axis 0 of size 4"):
        run(graph, values)


def test_products_of_f32_are_not_rounded_to_bf16() -> None:
    """XLA on processors multiplies f32 whatever it is asked for: what it is asked for is told."""
    graph = Graph("product")
    x, w = graph.input("x", Shape((4, 8))), graph.input("w", Shape((8, 3)))
    image = graph.input("image", Shape((1, 2, 5, 5)))
    kernel = graph.input("kernel", Shape((3, 2, 3, 3)))
    graph.set_outputs([ops.matmul(x, w), ops.conv(image, kernel)])
    program = backend().compile(CompilePipeline(backend().target()).compile(graph).lir)
    (segment,) = program.steps.call
    assert isinstance(segment, Segment)
    function = program.functions.of(segment, {})
    shapes = [jax.ShapeDtypeStruct(n.shape.static_dims, np.float32) for n in segment.inputs]
    text = str(jax.make_jaxpr(lambda *arrays: function.traced(*arrays))(*shapes))
    assert text.count("HIGHEST") >= 2


def test_weights_are_read_where_the_runtime_holds_them() -> None:
    """A copy more would double the memory of a model on jax's processor."""
    graph = Graph("scaled")
    x, w = graph.input("x", Shape((40, 40))), graph.param("w", Shape((40, 40)))
    graph.set_outputs([ops.mul(x, w)])
    program = backend().compile(CompilePipeline(backend().target()).compile(graph).lir)
    given = np.arange(1600, dtype=np.float32).reshape(40, 40).T
    held = frozen_copy(given)
    weights = program.prepare({"w": held}, None)
    (array,) = weights.values.values()
    assert array.unsafe_buffer_pointer() == held.ctypes.data
    (made,) = program.run(weights, [np.ones((40, 40), np.float32)], [None])
    np.testing.assert_array_equal(made, given)
