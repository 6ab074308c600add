"""What mlx computes otherwise than ops mean, each by its least example (docs/mlx.md): on target mlx
the result is that of the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlx import Graph, Shape, ops
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.steps import HostStep
from rlx.backends.registry import find_backend
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.fuzz.judge import Expected, compare
from rlx.pipeline import CompilePipeline

mx = pytest.importorskip("mlx.core", reason="mlx is not installed: make test-mlx")
INF, NAN = np.inf, np.nan
LEAST = np.iinfo(np.int32).min


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """mlx's Linux build compiles a fused kernel by a C++ compiler for a second; calls are the same
    without."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@dataclass(frozen=True)
class Fault:
    make: Callable[..., Any]
    operands: Sequence[Any]
    dtype: str = "f32"

    def graph(self) -> tuple[Graph, dict[str, Any]]:
        graph = Graph("fault")
        dtype = DType.of(self.dtype).numpy
        arrays = [a if isinstance(a, np.ndarray) else np.array(a, dtype) for a in self.operands]
        values = {f"x{i}": a for i, a in enumerate(arrays)}
        nodes = [graph.input(n, Shape(a.shape, DType.of(a.dtype))) for n, a in values.items()]
        graph.set_outputs([self.make(*nodes)])
        return graph, values


def _attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return ops.attention(q, k, v, mask, num_heads=1, mask_kind="custom", masked_rows="nan")


ROWS = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
FAULTS = {
    "division by zero ends the process": Fault(ops.rem, ([7, -7], [0, 2]), "i32"),
    "so does the least integer by -1": Fault(ops.floor_div, ([LEAST, 6], [-1, -1]), "i32"),
    "integers are divided as f32": Fault(ops.div, ([2**31 - 1, 5], [1, 0]), "i32"),
    "negative powers of 1 are 0": Fault(ops.pow, ([1, -1, -1, 2], [-1, -3, -2, -1]), "i32"),
    "shifts count modulo the width": Fault(ops.shift_left, ([1, 1], [33, -1]), "i32"),
    "the sign of NaN is 0": Fault(ops.sign, ([NAN, -2.0],)),
    "exp is infinite from 88.5 on": Fault(ops.exp, ([88.6, -86.86303, -100.0],)),
    "softmax gives 0 for a subnormal": Fault(ops.softmax, ([0.0, -88.5],)),
    "exp of doubles is single": Fault(ops.exp, ([0.5, -700.0, -744.0],), "f64"),
    "sin of doubles is single": Fault(ops.sin, ([0.5, 3.141592653589793, 1e10],), "f64"),
    "cos of doubles is single": Fault(ops.cos, ([0.5, 1.5707963267948966, 0.0],), "f64"),
    "sigmoid of doubles is single": Fault(ops.sigmoid, ([0.5, -40.0],), "f64"),
    "erf of doubles is single": Fault(ops.erf, ([0.5, 2.0, -5.0],), "f64"),
    "erf keeps no digits near 0": Fault(ops.erf, ([1e-40, 0.047, -3.0],)),
    "a sum of 2**25 ones is 2**24": Fault(ops.sum, (np.ones(1 << 25, np.float32),)),
    "a product of NaN is infinite": Fault(ops.mul, ([complex(INF, NAN)], [1 + 1j]), "c64"),
    "NaN and 1e10 as u32": Fault(lambda x: ops.cast(x, to="u32"), ([NAN, 1e10, -1.0],)),
    "300.7 as u8 is 44": Fault(lambda x: ops.cast(x, to="u8"), ([300.7, -3.0],)),
    "2**63 as u64": Fault(lambda x: ops.cast(x, to="u64"), ([2.0**63, 2.0**64],)),
    "no integer matrices": Fault(ops.matmul, ([[2**30, 3]], [[2**30 + 1], [5]]), "i32"),
    "a row that sees no key is the mean": Fault(
        _attention, (ROWS, ROWS, ROWS, np.zeros((1, 2), bool))
    ),
    "logsumexp of nothing raises": Fault(
        lambda x: ops.log_sum_exp(x, axes=(1,)), (np.zeros((2, 0), np.float32),)
    ),
    "a product of nothing is 0": Fault(ops.prod, (np.zeros((1, 2, 0), np.float32),)),
    "nothing is not all true": Fault(ops.all, (np.zeros((1, 2, 0), np.float32),)),
    "groups of three axes raise": Fault(
        lambda x, w: ops.conv(x, w, groups=2),
        (np.ones((1, 2, 2, 2, 2), np.float32), np.ones((2, 1, 1, 1, 1), np.float32)),
    ),
    "wrapped edges": Fault(
        lambda x: ops.pad(x, low=(2,), high=(1,), mode="wrap"), ([1.0, 2.0, 3.0],)
    ),
}


def backend() -> EngineBackend:
    found = find_backend("mlx").configured("", None)
    assert isinstance(found, EngineBackend)
    return found


def run(graph: Graph, values: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """The outputs, and the ops that the host computed."""
    own = backend()
    program = own.compile(CompilePipeline(own.target()).compile(graph).lir)
    made = program.run(program.prepare({}, None), [*values.values()], [None] * len(graph.outputs))
    return made, [s.node.op for s in program.steps.call if isinstance(s, HostStep)]


@pytest.mark.parametrize("name", FAULTS)
def test_is_the_reference(name: str) -> None:
    graph, values = FAULTS[name].graph()
    made, hosted = run(graph, values)
    assert compare("mlx", Expected(graph, values), made) == []
    assert hosted == []


def test_an_index_out_of_range_names_the_node() -> None:
    """mlx reads what is behind the array."""
    graph, values = Fault(ops.gather, (np.arange(4.0), np.array([7]))).graph()
    with pytest.raises(Error, match=r"gather.*out of range for axis 0 of size 4"):
        run(graph, values)


def test_the_last_update_stays() -> None:
    """mlx writes repeated indices in any order on a GPU."""
    indices = np.array([1, 1, 0, 1])
    graph, values = Fault(ops.scatter, (np.zeros(3), indices, np.arange(4.0))).graph()
    made, _ = run(graph, values)
    np.testing.assert_array_equal(made[0], [2.0, 3.0, 0.0])


def test_large_arrays_keep_their_dtype() -> None:
    """From 1 MiB on arrays are imported by DLPack, which makes f32 of doubles."""
    engine = find_backend("mlx").opened()
    for dtype in (np.float64, np.float32, np.int64, np.bool_):
        value = np.ones(1 << 20, dtype)
        assert engine.numpy(engine.array(value)).dtype == dtype
