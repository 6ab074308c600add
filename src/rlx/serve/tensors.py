"""Tensors in KServe's protocol: as JSON, or as bytes behind the JSON."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.op import Array
from rlx.serve.body import Fields
from rlx.serve.errors import Refused

NAMES = {
    DType.BOOL: "BOOL", DType.U8: "UINT8", DType.U16: "UINT16", DType.U32: "UINT32",
    DType.U64: "UINT64", DType.I8: "INT8", DType.I16: "INT16", DType.I32: "INT32",
    DType.I64: "INT64", DType.F16: "FP16", DType.BF16: "BF16", DType.F32: "FP32",
    DType.F64: "FP64",
}  # fmt: skip
"""What the protocol calls dtypes; it has no complex ones."""
TYPES = {name: dtype for dtype, name in NAMES.items()}
BYTES = "BYTES"
"""Strings."""


def described(name: str, shape: Shape | None) -> dict[str, Any]:
    """An input or output in a model's metadata: -1 for dims that vary."""
    if shape is None:
        return {"name": name, "datatype": BYTES, "shape": [-1]}
    dims = [d if isinstance(d, int) else -1 for d in shape.dims]
    return {"name": name, "datatype": NAMES.get(shape.dtype, shape.dtype.value), "shape": dims}


class Binary:
    """The bytes behind a request's JSON, which its tensors take one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def take(self, size: int, name: str) -> memoryview:
        if not 0 <= size <= len(self._data):
            raise Refused(400, f"{name!r}: its {size:,} bytes are not in the body.")
        found, self._data = self._data[:size], self._data[size:]
        return found

    def check_empty(self) -> None:
        if self._data:
            raise Refused(400, f"{len(self._data):,} bytes of the body belong to no tensor.")


def array_of(fields: Fields, binary: Binary) -> Array:
    """The array of a tensor in a request."""
    name, kind, dims = fields.text("name"), fields.text("datatype"), _dims(fields)
    if kind != BYTES and kind not in TYPES:
        raise Refused(400, f"{name[:80]!r}: the datatype {kind[:40]!r} is not known.")
    parameters = fields.fields("parameters")
    if parameters.has("binary_data_size"):
        size = parameters.integer("binary_data_size", 0, 0, 1 << 62)
        found = _from_bytes(binary.take(size, name[:80]), kind)
    else:
        found = _from_json(fields.items("data"), kind, name[:80])
    if found.size != math.prod(dims):
        raise Refused(400, f"{name[:80]!r} has {found.size:,} elements, not those of {dims}.")
    return found.reshape(dims)


def _dims(fields: Fields) -> list[int]:
    dims = fields.items("shape")
    if len(dims) > 32 or not all(type(d) is int and 0 <= d < 1 << 40 for d in dims):
        raise Refused(400, "a 'shape' must be sizes.", param="shape")
    return dims


def _from_bytes(data: memoryview, kind: str) -> Array:
    if kind == BYTES:
        return np.array(_strings(data), object)
    dtype = TYPES[kind].numpy
    if len(data) % dtype.itemsize:
        raise Refused(400, f"{len(data):,} bytes are no {kind} elements.")
    return np.frombuffer(data, dtype)


def _strings(data: memoryview) -> list[str]:
    """Each with its length in front."""
    found: list[str] = []
    at = 0
    try:
        while at < len(data):
            (size,) = struct.unpack_from("<I", data, at)
            text = bytes(data[at + 4 : at + 4 + size])
            if len(text) != size:
                raise ValueError("a string is cut short")
            found.append(text.decode())
            at += 4 + size
    except (struct.error, ValueError) as error:
        raise Refused(400, f"strings cannot be read: {error}.") from None
    return found


def _from_json(data: list[Any], kind: str, name: str) -> Array:
    """Nested lists, or all elements in one."""
    try:
        found = np.array(data)
    except ValueError:
        raise Refused(400, f"{name!r}: its lists differ in length.") from None
    expected = {"B": "b", "U": "iu", "I": "iu", "F": "iuf"}[kind[0]]
    if kind == BYTES:
        expected = "U"
    elif kind == "BF16":
        expected = "iuf"
    if found.size and found.dtype.kind not in expected:
        raise Refused(400, f"{name!r}: its data are not {kind}.")
    return found.astype(object) if kind == BYTES else _fitting(found, TYPES[kind], name)


def _fitting(found: Array, dtype: DType, name: str) -> Array:
    if dtype.is_integer and found.size:
        limits = np.iinfo(dtype.numpy)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise Refused(400, f"{name!r}: a value does not fit {NAMES[dtype]}.")
    with np.errstate(over="ignore"):
        return found.astype(dtype.numpy)


def tensor_of(name: str, array: Any, *, is_binary: bool) -> tuple[dict[str, Any], bytes]:
    """A tensor of a response, and its bytes behind the JSON."""
    values = np.asarray(array)
    kind = _kind(name, values)
    head: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(values.shape)}
    if is_binary:
        data = _packed(values) if kind == BYTES else np.ascontiguousarray(values).tobytes()
        return {**head, "parameters": {"binary_data_size": len(data)}}, data
    if values.dtype.kind in "fV" and not np.isfinite(values.astype(np.float64)).all():
        raise Refused(400, f"{name!r} has values that JSON has not: ask for binary data.")
    return {**head, "data": values.ravel().tolist()}, b""


def _kind(name: str, values: Array) -> str:
    if values.dtype.kind in "OUST":
        return BYTES
    found = NAMES.get(DType.of(values.dtype))
    if found is None:
        raise Refused(400, f"{name!r} is {values.dtype}, which the protocol has no name for.")
    return found


def _packed(values: Array) -> bytes:
    texts = [str(v).encode() for v in values.ravel()]
    return b"".join(struct.pack("<I", len(t)) + t for t in texts)
