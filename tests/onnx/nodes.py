"""Models of one node, run by rlx and by ONNX's own evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rlx.onnx_backend import Backend


def one_node(
    op: str,
    arrays: Sequence[Any],
    *,
    opset: int,
    known: Sequence[int] = (),
    dims: Sequence[Any] | None = None,
    outputs: int = 1,
    domain: str = "",
    **attrs: Any,
) -> ModelProto:
    """`known` operands are initialisers; `dims` are those of the first operand, where it is not
    to have its array's."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    given = [(n, a) for n, a in zip(names, arrays) if a is not None]
    shapes = {"x0": dims} if dims is not None else {}
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), shapes.get(n, a.shape)
            )
            for n, a in given
            if int(n[1:]) not in known
        ],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in results],
        [numpy_helper.from_array(a, n) for n, a in given if int(n[1:]) in known],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        graph, opset_imports=opsets + [helper.make_opsetid(domain, 1)] * bool(domain)
    )


def ours(model: ModelProto, arrays: Sequence[Any]) -> tuple[Any, ...]:
    return Backend.prepare(model).run(_wanted(model, arrays))


def theirs(model: ModelProto, arrays: Sequence[Any]) -> Sequence[Any]:
    names = [i.name for i in model.graph.input]
    made = ReferenceEvaluator(model).run(None, dict(zip(names, _wanted(model, arrays))))
    return list(made)


def _wanted(model: ModelProto, arrays: Sequence[Any]) -> list[Any]:
    found = [arrays[int(i.name[1:])] for i in model.graph.input]
    return [a for a in found if a is not None]


def same(made: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Equal dtypes and dims. Floats may differ by the rounding of some sums in f32."""
    assert len(made) == len(wanted)
    for m, w in zip(made, wanted):
        assert (m.dtype, m.shape) == (w.dtype, w.shape)
        if m.dtype.kind == "f":
            rtol = 1e-2 if m.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(m, w, rtol=rtol, atol=rtol / 4)
        else:
            np.testing.assert_array_equal(m, w)


def agrees(op: str, arrays: Sequence[Any], **how: Any) -> None:
    """rlx gives what ONNX's evaluator gives."""
    model = one_node(op, arrays, **how)
    same(ours(model, arrays), theirs(model, arrays))


def gives(op: str, arrays: Sequence[Any], *wanted: Any, **how: Any) -> None:
    """rlx gives this; for operators that the evaluator has not, or has otherwise."""
    same(ours(one_node(op, arrays, **how), arrays), wanted)
