"""Draws as ONNX models: one node each, or a batch of independent nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnx import AttributeProto, ModelProto, helper, numpy_helper

from tests.onnx.differential.drawing import MICROSOFT_OPSET, ML, Array, Node

IR_VERSION = 10
"""Of onnxruntime's releases of the last years; it has every element type that is drawn."""


def model_of(nodes: Sequence[Node]) -> ModelProto:
    """A model of these nodes, which must be of one opset."""
    made = [_parts(f"n{i}", node) for i, node in enumerate(nodes)]
    graph = helper.make_graph(
        [p for p, _, _, _ in made],
        "drawn",
        [x for _, inputs, _, _ in made for x in inputs],
        [x for _, _, outputs, _ in made for x in outputs],
        [x for _, _, _, weights in made for x in weights],
    )
    first = nodes[0]
    beside = MICROSOFT_OPSET if first.domain == ML else first.opset
    versions = {"": beside} | {n.domain: n.opset if n.domain == ML else 1 for n in nodes}
    versions[""] = beside
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _parts(prefix: str, node: Node) -> tuple[Any, list[Any], list[Any], list[Any]]:
    names = [f"{prefix}_x{i}" if o is not None else "" for i, o in enumerate(node.operands)]
    results = [f"{prefix}_y{i}" for i in range(node.outputs)]
    proto = helper.make_node(node.op, names, results, domain=node.domain)
    proto.attribute.extend(_attribute(k, v) for k, v in node.attrs.items())
    given = [(n, o) for n, o in zip(names, node.operands) if o is not None]
    inputs = [
        helper.make_tensor_value_info(n, _kind(o.array), _dims(prefix, n, o, node.naming))
        for n, o in given
        if not o.is_known
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in results]
    weights = [numpy_helper.from_array(o.array, n) for n, o in given if o.is_known]
    return proto, inputs, outputs, weights


def _attribute(name: str, value: Any) -> Any:
    """An empty list is one of whole numbers."""
    is_empty = isinstance(value, list | tuple) and not value
    return helper.make_attribute(name, value, attr_type=AttributeProto.INTS if is_empty else None)


def _kind(array: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _dims(prefix: str, name: str, operand: Any, naming: str) -> Any:
    if naming == "static" or not operand.has_names:
        return list(operand.dims)
    if naming == "open":
        return None
    if naming == "shared":
        return [f"{prefix}_d{d}" for d in operand.dims]
    return [f"{name}_d{i}" for i in range(operand.rank)]


def inputs_of(nodes: Sequence[Node]) -> list[Array]:
    """What goes into the model, in its order."""
    return list(_inputs(nodes))


def _inputs(nodes: Sequence[Node]) -> Iterator[Array]:
    for node in nodes:
        yield from (o.array for o in node.operands if o is not None and not o.is_known)
