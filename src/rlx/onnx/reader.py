"""A model's protobuf, checked where it is used, and its tensors.

Nothing in a file is believed: sizes are compared with the bytes that are there before anything is
made of them, and files beside the model are opened only inside its folder, never through a link.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rlx.dim import Dim, DimLike
from rlx.dtype import DType
from rlx.errors import Error, GraphError, UnsupportedError
from rlx.shape import Shape

MAX_BYTES = 1 << 40
OLDEST_OPSET, NEWEST_OPSET = 7, 28
MAX_FILE = 1 << 31
"""What a protobuf can hold."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An element type of ONNX: how it is kept, and in which field where not as raw bytes."""

    dtype: np.dtype[Any]
    name: str


def _kinds() -> Mapping[int, Kind]:
    from onnx import TensorProto as T

    plain = {
        T.FLOAT: ("float32", "float_data"), T.DOUBLE: ("float64", "double_data"),
        T.INT64: ("int64", "int64_data"), T.UINT64: ("uint64", "uint64_data"),
        T.UINT32: ("uint32", "uint64_data"), T.INT32: ("int32", "int32_data"),
        T.INT16: ("int16", "int32_data"), T.UINT16: ("uint16", "int32_data"),
        T.INT8: ("int8", "int32_data"), T.UINT8: ("uint8", "int32_data"),
        T.BOOL: ("bool", "int32_data"), T.FLOAT16: ("float16", "int32_data"),
        T.COMPLEX64: ("complex64", "float_data"), T.COMPLEX128: ("complex128", "double_data"),
    }  # fmt: skip
    found = {k: Kind(np.dtype(d), f) for k, (d, f) in plain.items()}
    return {**found, T.BFLOAT16: Kind(np.dtype(ml_dtypes.bfloat16), "int32_data")}


@dataclass(slots=True)
class Reader:
    """A parsed model, and the folder of its files."""

    model: Any
    folder: Path | None = None
    opsets: dict[str, int] = field(default_factory=dict[str, int])
    functions: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    _dims: dict[str, Dim] = field(default_factory=dict[str, Dim])
    _kinds: Mapping[int, Kind] = field(default_factory=_kinds)

    def __post_init__(self) -> None:
        self.opsets = self._opsets(self.model.opset_import)
        version = self.opsets.get("", 1)
        if "" in self.opsets and not OLDEST_OPSET <= version <= NEWEST_OPSET:
            raise UnsupportedError(
                f"the model is of opset {version}; rlx reads {OLDEST_OPSET} to {NEWEST_OPSET}. "
                "onnx.version_converter changes it."
            )
        for function in self.model.functions:
            domain = "" if function.domain == "ai.onnx" else function.domain
            self.functions[domain, function.name] = function

    def _opsets(self, given: Any) -> dict[str, int]:
        return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in given}

    def opsets_of(self, function: Any) -> dict[str, int]:
        return {**self.opsets, **self._opsets(function.opset_import)}

    def with_attributes(self, function: Any, given: Mapping[str, Any]) -> Iterator[Any]:
        """The nodes of a function, with the attributes that its caller gives, or its defaults."""
        from onnx import helper

        defaults = {a.name: a for a in function.attribute_proto}
        for node in function.node:
            yield _filled(node, given, defaults, helper)

    # -- types ----------------------------------------------------------------------------------

    def shape_of(self, info: Any, known: tuple[int, ...] | None = None) -> Shape:
        """What an input is declared as; dims without a size are named."""
        if not info.type.HasField("tensor_type"):
            kind = info.type.WhichOneof("value") or "nothing"
            raise UnsupportedError(f"input {info.name!r} is no tensor but a {kind}")
        tensor = info.type.tensor_type
        dtype = self.dtype(tensor.elem_type, f"input {info.name!r}")
        if known is not None:
            return Shape(known, dtype)
        if not tensor.HasField("shape"):
            raise NeedsShape(f"input {info.name!r} has no shape in the model", info.name)
        return Shape([self._dim(info.name, i, d) for i, d in enumerate(tensor.shape.dim)], dtype)

    def _dim(self, name: str, number: int, dim: Any) -> DimLike:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        if dim.HasField("dim_value") and dim.dim_value != -1:
            raise GraphError(f"input {name!r}: a dim is {dim.dim_value}")
        given = dim.dim_param if dim.HasField("dim_param") else ""
        text = given or f"{name}.{number}"
        if text not in self._dims:
            self._dims[text] = Dim(self._unique(text))
        return self._dims[text]

    def _unique(self, text: str) -> str:
        """A name that a dim can have, and no other has."""
        plain = re.sub(r"\W+", "_", text, flags=re.ASCII)[:40].strip("_") or "dim"
        plain = f"d_{plain}" if plain[0].isdigit() else plain
        taken = {d.name for d in self._dims.values()}
        found, number = plain, 2
        while found in taken:
            found, number = f"{plain}_{number}", number + 1
        return found

    def dtype(self, kind: int, what: str) -> DType:
        if kind not in self._kinds:
            from onnx import TensorProto

            values = {v: k for k, v in TensorProto.DataType.items()}
            name = values.get(kind, kind)
            raise UnsupportedError(f"{what} is of type {name}, which rlx has not")
        return DType.of(self._kinds[kind].dtype)

    # -- tensors --------------------------------------------------------------------------------

    def initialiser(self, tensor: Any) -> tuple[str, np.ndarray[Any, Any]]:
        if hasattr(tensor, "indices"):
            return self.sparse(tensor)
        return tensor.name, self.tensor(tensor)

    def tensor(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The numbers of a tensor, of exactly its dims; large ones stay in the file."""
        what = f"tensor {tensor.name[:80]!r}"
        self.dtype(tensor.data_type, what)
        kind, dims = self._kinds[tensor.data_type], tuple(tensor.dims)
        if any(d < 0 for d in dims):
            raise GraphError(f"{what} has a negative dim")
        size = math.prod(dims) * kind.dtype.itemsize
        if size > MAX_BYTES:
            raise GraphError(f"{what} would be {size} bytes")
        from onnx import TensorProto

        if tensor.data_location == TensorProto.EXTERNAL:
            raw = self._external(tensor, size, what)
        elif tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            return _from_fields(tensor, kind, dims, what)
        if raw.nbytes != size:
            raise GraphError(f"{what} has {raw.nbytes} bytes for {list(dims)}, which takes {size}")
        return raw.view(kind.dtype.newbyteorder("<")).reshape(dims)

    def sparse(self, tensor: Any) -> tuple[str, np.ndarray[Any, Any]]:
        """A sparse tensor as the dense one it means."""
        values, indices = self.tensor(tensor.values), self.tensor(tensor.indices)
        dims = tuple(int(d) for d in tensor.dims)
        name = tensor.values.name
        size = math.prod(dims)
        if any(d < 0 for d in dims) or size * values.itemsize > MAX_FILE:
            raise GraphError(f"sparse tensor {name!r} is too large")
        flat = indices if indices.ndim == 1 else _flat(indices, dims)
        if values.ndim != 1 or len(flat) != len(values):
            raise GraphError(f"sparse tensor {name!r}: its values and indices do not match")
        if flat.size and (flat.min() < 0 or flat.max() >= size):
            raise GraphError(f"sparse tensor {name!r}: an index is out of range")
        dense = np.zeros(size, values.dtype)
        dense[flat] = values
        return name, dense.reshape(dims)

    # -- files beside the model -----------------------------------------------------------------

    def _external(self, tensor: Any, size: int, what: str) -> np.ndarray[Any, Any]:
        """Bytes of a file in the model's folder, mapped."""
        if self.folder is None:
            raise Error(f"{what} is in another file, but the model was not read from one")
        keys = {e.key: e.value for e in tensor.external_data}
        offset, length = (_whole(keys.get(k, ""), what) for k in ("offset", "length"))
        path = keys.get("location", "")
        fd = open_inside(self.folder, path, what)
        try:
            end = os.fstat(fd).st_size
            length = size if "length" not in keys else length
            if length != size or offset + length > end:
                raise GraphError(
                    f"{what}: bytes {offset} to {offset + length} of {path!r} are not the {size} "
                    f"that it takes of {end}"
                )
            if length == 0:
                return np.empty(0, np.uint8)
            whole = mmap.mmap(fd, offset + length, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        return np.frombuffer(whole, np.uint8, length, offset)


class NeedsShape(UnsupportedError):
    """An input whose rank the model does not say."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(what)
        self.name = name


def parsed(data: bytes, what: str) -> Any:
    """A ModelProto from bytes."""
    import onnx
    from google.protobuf.message import DecodeError

    if len(data) > MAX_FILE:
        raise Error(
            f"{what} is larger than a protobuf can be. Keep its weights in files beside it."
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError) as error:
        raise Error(f"{what} is no ONNX model: {error}") from None
    if not model.HasField("graph"):
        raise Error(f"{what} is no ONNX model: it has no graph")
    return model


def open_inside(folder: Path, path: str, what: str) -> int:
    """A file of the folder or of one inside it, opened part by part without following a link."""
    parts = path.split("/")
    if not path or len(path) > 4096 or any(p in ("", ".", "..") for p in parts) or "\\" in path:
        raise Error(f"{what}: {path[:200]!r} is not a file inside the model's folder")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        found = os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=here)
    except (OSError, ValueError) as error:
        raise Error(f"{what}: {path[:200]!r} cannot be opened: {error}") from None
    finally:
        os.close(here)
    info = os.fstat(found)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        os.close(found)
        raise Error(f"{what}: {path[:200]!r} is not a plain file of its own (a link, or a device)")
    return found


def _whole(text: str, what: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise GraphError(f"{what}: {text[:40]!r} is not a number of bytes")
    return int(text)


def _flat(indices: np.ndarray[Any, Any], dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if indices.ndim != 2 or indices.shape[1] != len(dims):
        raise GraphError("a sparse tensor's indices do not fit its dims")
    if (indices < 0).any() or (indices >= np.array(dims)).any():
        raise GraphError("a sparse tensor's index is out of range")
    return indices @ np.array([math.prod(dims[i + 1 :]) for i in range(len(dims))], np.int64)


def _from_fields(tensor: Any, kind: Kind, dims: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    """Numbers kept one by one; halves are kept as the integers of their bits."""
    values = getattr(tensor, kind.name)
    count = math.prod(dims) * (2 if kind.dtype.kind == "c" else 1)
    if len(values) != count:
        raise GraphError(f"{what} has {len(values)} numbers for {list(dims)}")
    if kind.dtype in (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)):
        wide = np.array(values, np.int64)
        if wide.size and (wide.min() < 0 or wide.max() > 0xFFFF):
            raise GraphError(f"{what}: a number is no half float")
        return wide.astype(np.uint16).view(kind.dtype).reshape(dims)
    if kind.dtype.kind == "c":
        part = np.float32 if kind.dtype == np.complex64 else np.float64
        return np.array(values, part).view(kind.dtype).reshape(dims)
    wide = np.array(values, np.uint64 if kind.dtype.kind == "u" else None)
    return wide.astype(kind.dtype).reshape(dims)


def _filled(node: Any, given: Mapping[str, Any], defaults: Mapping[str, Any], helper: Any) -> Any:
    """A function's node whose references to attributes are replaced by what they mean."""
    if not any(a.ref_attr_name for a in node.attribute) and not any(
        a.HasField("g") for a in node.attribute
    ):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        copy.attribute.extend(_meant(attribute, given, defaults, helper))
    return copy


def _meant(
    attribute: Any, given: Mapping[str, Any], defaults: Mapping[str, Any], helper: Any
) -> Any:
    reference = attribute.ref_attr_name
    if not reference:
        if attribute.HasField("g"):
            inner = type(attribute)()
            inner.CopyFrom(attribute)
            for i, node in enumerate(attribute.g.node):
                inner.g.node[i].CopyFrom(_filled(node, given, defaults, helper))
            return [inner]
        return [attribute]
    made = type(attribute)()
    if reference in given:
        made.CopyFrom(_made(attribute, given[reference], helper))
    elif reference in defaults:
        made.CopyFrom(defaults[reference])
    else:
        return []
    made.name = attribute.name
    return [made]


def _made(attribute: Any, value: Any, helper: Any) -> Any:
    from onnx import numpy_helper

    if isinstance(value, np.ndarray):
        value = numpy_helper.from_array(value)
    if isinstance(value, tuple) and not value:
        return helper.make_attribute(attribute.name, [], attr_type=attribute.type)
    return helper.make_attribute(attribute.name, list(value) if isinstance(value, tuple) else value)
