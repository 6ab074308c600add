"""ONNX's own reference evaluator on one node: what ops are compared with where ONNX has them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx import TensorProto, helper
    from onnx.defs import onnx_opset_version
    from onnx.reference import ReferenceEvaluator

OPSET = min(onnx_opset_version(), 25)


def run_onnx(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    opset: int = OPSET,
    domain: str = "",
) -> list[np.ndarray]:
    """The outputs of one `op_type` node; None stands for an operand that is left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    fed = {n: np.asarray(x) for n, x in zip(names, inputs) if x is not None}
    results = [f"y{i}" for i in range(n_outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **(attrs or {}))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in fed.items()
        ],
        [helper.make_tensor_value_info(r, TensorProto.UNDEFINED, None) for r in results],
    )
    domains = {"": opset} | ({domain: 1} if domain else {})
    imports = [helper.make_opsetid(d, v) for d, v in domains.items()]
    model = helper.make_model(graph, opset_imports=imports)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, fed)
