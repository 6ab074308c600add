"""Attributes of nodes as plain values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from rlx.core.errors import GraphError
from rlx.frontends.onnx.reader import UNCHANGED, Reader, guarded


def attributes_of(node: Any, reader: Reader, domain: str, version: int) -> dict[str, Any]:
    """By name: numbers, texts, arrays, and graphs as they are; each of the type that the operator
    declares for it."""
    found: dict[str, Any] = {}
    types = declared(node.op_type, domain, version) if node.attribute else {}
    for attribute in node.attribute:
        name = attribute.name
        if name in found:
            raise GraphError(f"{_label(node)}: attribute {name[:80]!r} comes twice")
        if attribute.ref_attr_name:
            continue  # of a function, and its caller did not give it
        if types.get(name, attribute.type) != attribute.type:
            raise GraphError(f"{_label(node)}: attribute {name[:80]!r} is of another type")
        with guarded(f"{_label(node)}: attribute {name[:80]!r}"):
            found[name] = _value(attribute, reader)
    return found


@functools.lru_cache(4096)
def declared(op: str, domain: str, version: int) -> Mapping[str, int]:
    """Attribute → its type, of an operator of ONNX's own; nothing is known of others."""
    from onnx import defs

    try:
        schema = defs.get_schema(op, version, domain)
    except (defs.SchemaError, TypeError, OverflowError):
        return {}
    types: dict[str, Any] = {name: a.type for name, a in schema.attributes.items()}
    return {name: int(kind.value) for name, kind in types.items()}


@functools.lru_cache(4096)
def first_version(op: str) -> int:
    """The opset since which an operator is what it is in the oldest one that is read as it is."""
    from onnx import defs

    try:
        return defs.get_schema(op, UNCHANGED, "").since_version
    except defs.SchemaError:
        return 1


def _label(node: Any) -> str:
    return f"ONNX {node.op_type[:80]} {node.name[:80]!r}"


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
            return tuple(attribute.floats)
        case A.INTS:
            return tuple(attribute.ints)
        case A.STRINGS:
            texts = {raw: _text(raw) for raw in set(attribute.strings)}
            return tuple(map(texts.__getitem__, attribute.strings))
        case A.TENSORS:
            return tuple(reader.tensor(t) for t in attribute.tensors)
        case A.GRAPHS:
            return tuple(attribute.graphs)
        case A.TYPE_PROTO:
            return attribute.tp
        case _:
            raise GraphError(f"attribute {attribute.name[:80]!r} has no type rlx knows")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
