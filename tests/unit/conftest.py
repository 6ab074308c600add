"""What several tests of ops share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ir.verify import verify
from rlx.ops import op as table
from tests.unit.op_examples import CLOSE


def lowered_result(
    name: str, arrays: Sequence[Any], dims: Sequence[Sequence[Any]], attrs: Mapping[str, Any]
) -> Any:
    """The lowering of `name` built once on operands of symbolic `dims`, evaluated on `arrays`."""
    op = table.lookup(name)
    graph = Graph()
    inputs = [
        graph.input(f"x{i}", Shape(ds, DType.of(a.dtype)))
        for i, (ds, a) in enumerate(zip(dims, arrays, strict=True))
    ]
    attrs = op.canonical(attrs, [n.shape for n in inputs])
    graph.set_outputs(list(op.lowered(inputs, attrs)))
    verify(graph)
    assert graph.outputs[0].shape == op.infer([n.shape for n in inputs], attrs)[0]
    return evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})[0]


@pytest.fixture(name="lowered_result")
def lowered_result_fixture() -> Callable[..., Any]:
    return lowered_result


@pytest.fixture
def assert_lowers() -> Callable[..., None]:
    """The lowering over symbolic dims gives what the reference gives on the arrays."""

    def check(name: str, arrays: Sequence[Any], dims: Sequence[Any], **attrs: Any) -> None:
        given = lowered_result(name, arrays, dims, attrs)
        np.testing.assert_allclose(given, table.lookup(name)(*arrays, **attrs), **CLOSE)

    return check
