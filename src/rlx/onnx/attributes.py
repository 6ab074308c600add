"""Attributes of nodes as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx.errors import GraphError

if TYPE_CHECKING:
    from rlx.onnx.reader import Reader


def attributes_of(node: Any, reader: Reader) -> dict[str, Any]:
    """By name: numbers, texts, arrays, and graphs as they are."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise GraphError(f"ONNX {node.op_type}: attribute {attribute.name!r} comes twice")
        if attribute.ref_attr_name:
            continue  # of a function, and its caller did not give it
        found[attribute.name] = _value(attribute, reader)
    return found


def _value(attribute: Any, reader: Reader) -> Any:
    from onnx import AttributeProto as A

    match attribute.type:
        case A.FLOAT:
            return float(attribute.f)
        case A.INT:
            return int(attribute.i)
        case A.STRING:
            return _text(attribute.s)
        case A.TENSOR:
            return reader.tensor(attribute.t)
        case A.SPARSE_TENSOR:
            return reader.sparse(attribute.sparse_tensor)[1]
        case A.GRAPH:
            return attribute.g
        case A.FLOATS:
            return tuple(float(f) for f in attribute.floats)
        case A.INTS:
            return tuple(int(i) for i in attribute.ints)
        case A.STRINGS:
            return tuple(_text(s) for s in attribute.strings)
        case A.TENSORS:
            return tuple(reader.tensor(t) for t in attribute.tensors)
        case A.GRAPHS:
            return tuple(attribute.graphs)
        case A.TYPE_PROTO:
            return attribute.tp
        case _:
            raise GraphError(f"attribute {attribute.name!r} has no type rlx knows")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
