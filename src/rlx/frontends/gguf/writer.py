"""Writing .gguf files: metadata, the table of tensors, then their blocks, each aligned.

Tensors are written one after the other as they are made: the table needs their sizes only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from rlx.core.errors import Error
from rlx.core.files import writing
from rlx.frontends.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, TYPES, TensorInfo, Texts, Value
from rlx.ops.op import Array

VERSION = 3
_NUMBERS = {
    "u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11,
    "f8": 12,
}  # fmt: skip
"""Types of values, by NumPy's kind and bytes."""
_STRING, _ARRAY = 8, 9
_KINDS = {scheme: number for number, scheme in TYPES.items()}


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value],
    tensors: Sequence[tuple[str, tuple[int, ...], str]],
    blocks: Iterable[Array],
) -> None:
    """A file of these tensors, each a name, dims as NumPy has them, and a block format; `blocks`
    are their bytes in the same order."""
    infos = _placed(tensors)
    stated = {**metadata, "general.alignment": DEFAULT_ALIGNMENT}
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(infos), len(stated))]
    head += [_text(key) + _typed(key, value) for key, value in stated.items()]
    head += [_row(info) for info in infos]
    with writing(path) as file:
        _padded(file, b"".join(head))
        for info, made in zip(infos, blocks, strict=True):
            if made.nbytes != info.nbytes:
                raise Error(f"tensor {info.name} has {made.nbytes:,} bytes, not {info.nbytes:,}.")
            _padded(file, made.tobytes())


def _placed(tensors: Sequence[tuple[str, tuple[int, ...], str]]) -> list[TensorInfo]:
    made: list[TensorInfo] = []
    offset = 0
    for name, dims, scheme in tensors:
        made.append(TensorInfo(name, dims, scheme, offset))
        offset += -(-made[-1].nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    return made


def _padded(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.write(bytes(-len(data) % DEFAULT_ALIGNMENT))


def _row(info: TensorInfo) -> bytes:
    dims = info.dims[::-1]
    numbers = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return _text(info.name) + numbers + struct.pack("<IQ", _KINDS[info.scheme], info.offset)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(key: str, value: Any) -> bytes:
    """The type of a value, and the value."""
    kind, data = _value(key, value)
    return struct.pack("<I", kind) + data


def _value(key: str, value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return _NUMBERS["b1"], struct.pack("<?", value)
        case int():
            return _whole(key, value)
        case float():
            return _NUMBERS["f4"], struct.pack("<f", value)
        case str():
            return _STRING, _text(value)
        case np.ndarray():
            return _ARRAY, _numbers(value)
        case Texts():
            return _ARRAY, struct.pack("<IQ", _STRING, len(value)) + value.raw
        case list() | tuple():
            return _ARRAY, _list(key, value)
        case _:
            raise Error(f"metadata {key} is a {type(value).__name__}, which GGUF has not.")


def _whole(key: str, value: int) -> tuple[int, bytes]:
    """The first type that holds it: readers expect u32 of sizes and i32 of what is below 0."""
    for kind in ("u4", "i4", "u8", "i8"):
        bounds = np.iinfo(kind)
        if bounds.min <= value <= bounds.max:
            return _NUMBERS[kind], np.array(value, f"<{kind}").tobytes()
    raise Error(f"metadata {key} is {value}, beyond 64 bits.")


def _numbers(value: Array) -> bytes:
    kind = value.dtype.kind + str(value.dtype.itemsize)
    flat = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return struct.pack("<IQ", _NUMBERS[kind], len(flat)) + flat.tobytes()


def _list(key: str, values: Sequence[Any]) -> bytes:
    made = [_value(key, v) for v in values]
    kinds = {kind for kind, _ in made}
    if len(kinds) > 1:
        raise Error(f"metadata {key} is a list of several types, which GGUF has not.")
    kind = next(iter(kinds), _STRING)
    return struct.pack("<IQ", kind, len(made)) + b"".join(data for _, data in made)
