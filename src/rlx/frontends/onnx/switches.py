"""Switches of a model: the numbers that it compares a scalar input with, such as a rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlx.frontends.onnx.reader import Reader, guarded

COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
SAME = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")
"""Operators that leave a number what it is."""


def switches(reader: Reader) -> dict[str, list[float]]:
    """Input → the constants that it is compared with, in order, those that it may equal first."""
    with guarded("the model"):
        nodes = list(_nodes(reader.model.graph))
        known = dict(_constants(reader, nodes))
        held = {i.name: i.name for i in reader.model.graph.input}
        for node in nodes:
            if node.op_type in SAME and node.input and node.input[0] in held and node.output:
                held[node.output[0]] = held[node.input[0]]
        found: dict[str, list[float]] = {}
        for node in sorted(nodes, key=lambda n: n.op_type != "Equal"):
            for name, value in _compared(node, held, known):
                kept = found.setdefault(name, [])
                kept += [v for v in _around(node.op_type, value) if v not in kept]
    return found


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node at any depth; names of outer values are those of inner ones."""
    todo = [graph]
    for body in todo:
        for node in body.node:
            yield node
            todo += [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]


def _constants(reader: Reader, nodes: list[Any]) -> Iterator[tuple[str, float]]:
    tensors = [(t.name, t) for t in reader.model.graph.initializer]
    for node in nodes:
        if node.op_type != "Constant" or not node.output:
            continue
        for attribute in node.attribute:
            if attribute.name == "value":
                tensors.append((node.output[0], attribute.t))
            elif attribute.name in ("value_int", "value_float"):
                yield node.output[0], attribute.i if attribute.name == "value_int" else attribute.f
    for name, tensor in tensors:
        if all(d == 1 for d in tensor.dims):
            array = reader.tensor(tensor)
            if array.size == 1 and array.dtype.kind in "iuf":
                yield name, array.reshape(-1)[0].item()


def _compared(
    node: Any, held: Mapping[str, str], known: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    if node.op_type not in COMPARED or len(node.input) != 2:
        return
    for one, other in (node.input, reversed(node.input)):
        if one in held and other in known and np.isfinite(known[other]):
            yield held[one], known[other]


def _around(op: str, value: float) -> list[float]:
    """Values on both sides of a comparison."""
    return [value] if op == "Equal" else [value, value + 1, value - 1]
