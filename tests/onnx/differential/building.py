"""Draws as ONNX models: one node each, or a batch of independent nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from tests.onnx.differential.drawing import MICROSOFT_OPSET, ML, Array, Node, Operand

IR_VERSION = 10
"""Of onnxruntime's releases of the last years; it has every element type that is drawn."""


def model_of(nodes: Sequence[Node]) -> ModelProto:
    """A model of these nodes, which must be of one opset."""
    made = [_parts(f"n{i}", node) for i, node in enumerate(nodes)]
    graph = helper.make_graph(
        [x for part in made for x in part.nodes],
        "drawn",
        [x for part in made for x in part.inputs],
        [x for part in made for x in part.outputs],
        [x for part in made for x in part.weights],
    )
    first = nodes[0]
    beside = MICROSOFT_OPSET if first.domain == ML else first.opset
    versions = {"": beside} | {n.domain: n.opset if n.domain == ML else 1 for n in nodes}
    versions[""] = beside
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


@dataclass(frozen=True, slots=True)
class Parts:
    """What one draw brings into a graph."""

    nodes: list[Any]
    inputs: list[Any]
    outputs: list[Any]
    weights: list[Any]


def _parts(prefix: str, node: Node) -> Parts:
    names = [f"{prefix}_x{i}" if o is not None else "" for i, o in enumerate(node.operands)]
    results = [f"{prefix}_y{i}" for i in range(node.outputs)]
    proto = helper.make_node(node.op, names, results, domain=node.domain)
    proto.attribute.extend(_attribute(k, v) for k, v in node.attrs.items())
    given = {n: o for n, o in zip(names, node.operands) if o is not None}
    inputs = [
        helper.make_tensor_value_info(n, _kind(o.array), _dims(prefix, n, o, node.naming))
        for n, o in given.items()
        if is_input(node, o)
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in results]
    known = {n: o.array for n, o in given.items() if o.is_known}
    computed = [n for n, o in given.items() if not o.is_known and not is_input(node, o)]
    steps: list[Any] = []
    for name in computed:
        made, numbers = _from_size(name, f"{prefix}_x0", given[name].array, node.array(0))
        steps += made
        known |= numbers
    weights = [numpy_helper.from_array(a, n) for n, a in known.items()]
    return Parts([*steps, proto], inputs, outputs, weights)


def is_input(node: Node, operand: Operand) -> bool:
    """Is it given by a call?"""
    return not operand.is_known and not (operand.is_computed and _can_compute(node, operand))


def _can_compute(node: Node, operand: Operand) -> bool:
    first, array = node.operands[0], operand.array
    has_size = first is not None and not first.is_known and not first.is_computed and first.rank
    is_small = array.size == 0 or np.abs(array.astype(np.float64)).max() < 2.0**40
    return (
        bool(has_size)
        and node.opset >= 7
        and array.dtype == np.int64
        and array.ndim <= 1
        and bool(is_small)
    )


def _from_size(name: str, source: str, wanted: Array, first: Array) -> tuple[list[Any], Any]:
    """The wanted numbers as n + (wanted - n), where n is the first size of the first input."""
    at = np.zeros((1,) if wanted.ndim else (), np.int64)
    numbers = {f"{name}_at": at, f"{name}_more": wanted - first.shape[0]}
    steps = [
        helper.make_node("Shape", [source], [f"{name}_sizes"]),
        helper.make_node("Gather", [f"{name}_sizes", f"{name}_at"], [f"{name}_size"]),
        helper.make_node("Add", [f"{name}_size", f"{name}_more"], [name]),
    ]
    return steps, numbers


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
        yield from (o.array for o in node.operands if o is not None and is_input(node, o))
