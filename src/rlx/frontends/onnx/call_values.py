"""Conversion of a call's inputs and results: inputs become tensors of numbers, and results the
types that the model declares.

Strings are Python's outside and ids inside; numbers of fewer than 8 bits are arrays of ml_dtypes
outside and codes inside; a map is a dict outside and two rows, its keys and its values, inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.core.arrays import as_array
from rlx.core.dim import Dim
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.frontends.onnx.reader import Reader
from rlx.frontends.onnx.strings import TEXT, Strings, objects
from rlx.frontends.onnx.values import (
    Absent,
    Coded,
    Element,
    Form,
    Given,
    Items,
    Mapped,
    Pairs,
    Value,
)
from rlx.ir.mir import Graph

Array = np.ndarray[Any, Any]


# -- what a model declares ------------------------------------------------------------------------


def declared_input(reader: Reader, graph: Graph, info: Any, shapes: Mapping[str, Form]) -> Value:
    """An input of the graph; of sequences and optionals what a call gave."""
    if info.name in shapes:
        return _formed(reader, graph, info.name, info, shapes[info.name])
    if info.type.WhichOneof("value") == "map_type":
        return _pairs(reader, graph, info.name, info, Dim(f"{_plain(info.name)}_entries"))
    return _tensor(reader, graph, info.name, info, reader.shape_of(info))


def _formed(reader: Reader, graph: Graph, name: str, info: Any, form: Form) -> Value:
    match form:
        case None:
            return Absent()
        case list():
            forms: list[Form] = form
            named = enumerate(forms)
            return Items(tuple(_formed(reader, graph, f"{name}.{i}", info, f) for i, f in named))
        case ("map", int(size)):
            return _pairs(reader, graph, name, info, size)
        case _:
            return _tensor(reader, graph, name, info, reader.shape_of(info, form))


def _tensor(reader: Reader, graph: Graph, name: str, info: Any, shape: Shape) -> Value:
    element = reader.element(_innermost(info.type).tensor_type.elem_type)
    node = graph.input(name, shape)
    return node if element is None else Coded(node, element)


def _pairs(reader: Reader, graph: Graph, name: str, info: Any, size: Any) -> Pairs:
    kind = _innermost(info.type).map_type
    parts: list[Value] = []
    for part, number in (
        ("keys", kind.key_type),
        ("values", kind.value_type.tensor_type.elem_type),
    ):
        element = reader.element(number)
        dtype = element.storage if element else reader.dtype(number, f"input {info.name!r}")
        node = graph.input(f"{name}.{part}", Shape((size,), dtype))
        parts.append(node if element is None else Coded(node, element))
    return Pairs(*parts)


def _innermost(kind: Any) -> Any:
    """What a sequence or optional holds; the type itself where it is neither."""
    while (name := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, name).elem_type
    return kind


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)[:30].strip("_") or "map"


# -- what a call gives ----------------------------------------------------------------------------


def taken(value: Any, kind: Any, reader: Reader, what: str) -> Given:
    """What a call gave for an input of this type, as arrays."""
    match kind.WhichOneof("value"):
        case "sequence_type" if isinstance(value, list | tuple):
            items: Sequence[Any] = value
            return [taken(v, kind.sequence_type.elem_type, reader, what) for v in items]
        case "optional_type":
            inner = kind.optional_type.elem_type
            return None if value is None else taken(value, inner, reader, what)
        case "map_type":
            return _mapped(value, kind.map_type, reader, what)
        case "tensor_type" if reader.element(kind.tensor_type.elem_type) is not None:
            return text_array(np.asarray(value))
        case "tensor_type":
            return as_array(value, what)
        case other:
            raise Error(f"{what} is {type(value).__name__}, expected a {other}.")


def _mapped(value: Any, kind: Any, reader: Reader, what: str) -> Mapped:
    if not isinstance(value, Mapping):
        raise Error(f"{what} is {type(value).__name__}, expected a dict.")
    given: Mapping[Any, Any] = value
    numbers = kind.key_type, kind.value_type.tensor_type.elem_type
    rows = [
        _row(list(part), reader.element(number), number, reader, f"{what}: a {name}")
        for part, number, name in zip((given.keys(), given.values()), numbers, ("key", "value"))
    ]
    return Mapped(*rows)


def _row(part: list[Any], element: Element | None, number: int, reader: Reader, what: str) -> Array:
    """Keys or values, each of the declared type: a string is no number, nor the other way round."""
    if element is TEXT:
        return objects(part)
    dtype = reader.dtype(number, what).numpy
    for each in part:
        if np.ndim(each) or np.asarray(each).dtype.kind not in "biuf":
            raise Error(f"{what} is {str(each)[:40]!r} ({type(each).__name__}), expected {dtype}.")
    return np.array(part, dtype)


def text_array(array: Array) -> Array:
    """Strings as an array of objects, so that none is truncated."""
    return array.astype(object) if array.dtype.kind in "US" else array


def encoded(
    given: Given, kind: Any, reader: Reader, strings: Strings, what: str
) -> Iterator[Array]:
    """The tensors of numbers that a program takes for an input, in order."""
    match given:
        case None:
            return
        case list():
            items: list[Given] = given
            for each in items:
                yield from encoded(each, kind, reader, strings, what)
        case Mapped():
            inner = _innermost(kind).map_type
            numbers = inner.key_type, inner.value_type.tensor_type.elem_type
            for part, number in zip((given.keys, given.values), numbers):
                yield _codes(part, reader.element(number), strings, what)
        case _:
            number = _innermost(kind).tensor_type.elem_type
            yield _codes(given, reader.element(number), strings, what)


def _codes(array: Array, element: Element | None, strings: Strings, what: str) -> Array:
    if element is None:
        return array
    return strings.encode(array, what) if element is TEXT else element.encode(array, what)  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
