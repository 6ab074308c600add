"""A .safetensors file: the length of a header, the header as JSON, and the bytes of all tensors.

Nothing in the header is believed: each tensor's bytes are as many as its shape takes, and together
they are all of the file, without a gap or an overlap. Tensors are copied out of it, so that what
happens to the file later changes nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.files import HeldFile, opened
from rlx.frontends.onnx.reader import aligned
from rlx.ops.op import Array

MAX_HEADER_BYTES = 1 << 24
"""About 100,000 tensors; a longer header is a mistake, or an attack."""
MAX_JSON_BYTES, MAX_INDEX_BYTES = 1 << 20, 1 << 24
WEIGHTS = "model.safetensors"
MAX_RANK = 32
_LENGTH = 8
_NUMBERS = (
    "bool u8 u16 u32 u64 i8 i16 i32 i64 f16 bf16 f32 f64"  # complex ones are not in the format
)
DTYPES = {name.upper(): DType.of(name) for name in _NUMBERS.split()}

Object: TypeAlias = "dict[str, Any]"


class TensorFile:
    """A file whose header is checked: tensors are read when they are asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name, self._data = str(path), opened(path)
        where, data = self.name, self._data
        if len(data) < _LENGTH:
            raise _broken(where, f"it has {len(data)} bytes, not even the length of a header")
        size = int.from_bytes(data[:_LENGTH], "little")
        if size > min(MAX_HEADER_BYTES, len(data) - _LENGTH):
            raise _broken(where, f"its header would take {size:,} bytes of {len(data):,}")
        header = parsed(bytes(data[_LENGTH : _LENGTH + size]), where)
        _check_metadata(header.pop("__metadata__", {}), where)
        self._begin = _LENGTH + size
        self._places = {name: _place(name, entry, where) for name, entry in header.items()}
        _check_cover(self._places, len(data) - self._begin, where)

    @property
    def tensors(self) -> Iterable[str]:
        return self._places

    def dtype(self, name: str) -> DType:
        return self._places[name][0]

    def dims(self, name: str) -> tuple[int, ...]:
        return self._places[name][1]

    def read(self, name: str) -> Array:
        """A tensor, read-only."""
        return _tensor(self._data, self._begin, *self._places[name])


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Every tensor of a file by name, read-only."""
    file = TensorFile(path)
    return {name: file.read(name) for name in file.tensors}


def tensor_files(folder: Path) -> dict[str, TensorFile]:
    """The file of each tensor of a folder: of one, or of several that an index lists."""
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        whole = TensorFile(folder / WEIGHTS)
        return dict.fromkeys(whole.tensors, whole)
    names = parsed(_small(index, MAX_INDEX_BYTES), str(index)).get("weight_map")
    if not isinstance(names, dict) or not all(_is_plain(n) for n in names.values()):
        raise _broken(str(index), "its weight_map is no map of tensors to files of the folder")
    files = {name: TensorFile(folder / name) for name in sorted(set(names.values()))}
    for tensor, name in names.items():
        if tensor not in files[name].tensors:
            raise _broken(str(index), f"{name} has no tensor {_short(tensor)}")
    return {tensor: files[name] for tensor, name in names.items()}


def _is_plain(name: Any) -> bool:
    """A file of the folder itself, wherever the index came from."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def read_object(path: Path, most: int | None = None) -> Object:
    """The JSON object in a small file, of at most so many bytes."""
    return parsed(_small(path, most or MAX_JSON_BYTES), str(path))


def read_list(path: Path) -> list[Object]:
    """The JSON list of objects in a small file."""
    found = _loaded(_small(path), str(path))
    if not isinstance(found, list) or not all(isinstance(f, dict) for f in found):
        raise _broken(str(path), "it is no list of JSON objects")
    return found


def parsed(data: bytes, where: str) -> Object:
    """A JSON object whose names occur once each."""
    found = _loaded(data, where)
    if not isinstance(found, dict):
        raise _broken(where, "it is no JSON object")
    return found


def _loaded(data: bytes, where: str) -> Any:
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise _broken(where, "its JSON is nested too deeply") from None
    except ValueError as error:
        reason = str(error).partition(": line")[0][:120]
        raise _broken(where, f"its JSON cannot be read: {reason}") from None


def _small(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    data = opened(path)
    if len(data) > most:
        raise _broken(str(path), f"it has {len(data):,} bytes, more than {most:,}")
    return bytes(data[:])


def _once(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _check_metadata(metadata: Any, where: str) -> None:
    is_map = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    if not is_map:
        raise _broken(where, "its __metadata__ is no map of texts")


def _place(name: str, entry: Any, where: str) -> tuple[DType, tuple[int, ...], int, int]:
    """The dtype and dims of a tensor, and where its bytes begin and end."""
    match entry:
        case {"dtype": str(kind), "shape": list(dims), "data_offsets": [begin, end], **rest}:
            pass
        case _:
            raise _broken(where, f"tensor {_short(name)} lacks a dtype, a shape or its offsets")
    if rest:
        raise _broken(where, f"tensor {_short(name)} has {_short(str(next(iter(rest))))}")
    if kind not in DTYPES:
        raise Error(f"{where}: tensor {_short(name)} is of {_short(kind)}, which rlx has not.")
    if len(dims) > MAX_RANK or not all(map(_is_count, (*dims, begin, end))):
        raise _broken(where, f"the shape or the offsets of tensor {_short(name)} are no counts")
    dtype = DTYPES[kind]
    size = math.prod(dims, start=dtype.itemsize)
    if end - begin != size:
        reason = f"{end - begin:,} bytes for a shape that takes {size:,}"
        raise _broken(where, f"tensor {_short(name)} has {reason}")
    return dtype, tuple(dims), begin, end


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _check_cover(places: Mapping[str, Any], size: int, where: str) -> None:
    """The tensors are all of the bytes, one after the other."""
    at = 0
    for name, (_, _, begin, end) in sorted(places.items(), key=lambda p: p[1][2:]):
        if begin != at:
            what = "overlap those of another" if begin < at else "follow a gap"
            raise _broken(where, f"the bytes of tensor {_short(name)} {what}")
        at = end
    if at != size:
        raise _broken(where, f"its tensors take {at:,} bytes, and it has {size:,}")


def _tensor(
    file: HeldFile, base: int, dtype: DType, dims: tuple[int, ...], begin: int, end: int
) -> Array:
    raw = np.frombuffer(file.read(base + begin, base + end), np.uint8)
    return aligned(raw, dtype.numpy).reshape(dims)


def _short(text: str) -> str:
    return repr(text[:80])


def _broken(where: str, why: str) -> Error:
    return Error(f"{where} is damaged: {why}.")
