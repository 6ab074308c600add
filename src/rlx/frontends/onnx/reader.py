"""A model's protobuf, checked where it is used, and its tensors.

Nothing in a file is believed: sizes are compared with the bytes that are there before anything is
made of them, and files beside the model are opened only inside its folder or its cache.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape
from rlx.frontends.named_dims import NamedDims, is_open
from rlx.frontends.onnx.files import Beside
from rlx.frontends.onnx.node_call import NeedsShape
from rlx.frontends.onnx.protobuf_wire import Bulk
from rlx.frontends.onnx.small_dtypes import bytes_of_fields, small_kinds
from rlx.frontends.onnx.strings import TEXT, objects
from rlx.frontends.onnx.values import Element

MAX_BYTES = 1 << 40
LEAST_NODES, MAX_GROWTH = 4_000, 20
OLDEST_PACKAGE = (1, 21)
OLDEST_OPSET, NEWEST_OPSET = 1, 28
UNCHANGED = 6
"""Operators are read as of this opset; of an older one, where they meant the same in it."""
MAX_SPARSE = 1 << 28
"""Of a sparse tensor once it is written out; a few bytes of a file may claim anything."""
MAX_FILE = 1 << 31
"""What a protobuf can hold."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An element type of ONNX: how it is stored, and in which field where not as raw bytes."""

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
    """A parsed model, and the files beside it."""

    model: Any
    beside: Beside
    bulk: Bulk | None = None
    copies: dict[int, tuple[Any, Any]] = field(default_factory=dict[int, tuple[Any, Any]])
    """Address → an array that had to be copied, and the bytes that it is a copy of."""
    opsets: dict[str, int] = field(default_factory=dict[str, int])
    functions: dict[tuple[str, str, str], Any] = field(default_factory=dict[Any, Any])
    """By domain, name and overload."""
    named: NamedDims = field(default_factory=NamedDims)
    """The sizes that the model leaves open."""
    max_nodes: int = 0
    """How many nodes the model's functions may come to where they are written out."""
    _kinds: Mapping[int, Kind] = field(default_factory=_kinds)

    def __post_init__(self) -> None:
        self.opsets = self._opsets(self.model.opset_import)
        version = self.opsets.get("", 1)
        if "" in self.opsets and not OLDEST_OPSET <= version <= NEWEST_OPSET:
            raise UnsupportedError(
                f"the model is of opset {version}; rlx reads {OLDEST_OPSET} to {NEWEST_OPSET}. "
                "onnx.version_converter changes it."
            )
        with guarded("the model"):
            self._note_functions()
            bodies = [self.model.graph, *self.model.functions]
            self.max_nodes = LEAST_NODES + MAX_GROWTH * _num_nodes(bodies)

    def _note_functions(self) -> None:
        for function in self.model.functions:
            domain = "" if function.domain == "ai.onnx" else function.domain
            key = domain, function.name, function.overload
            if key in self.functions:
                raise GraphError(f"two functions are called {function.name[:80]!r}")
            self.functions[key] = function

    def _opsets(self, given: Any) -> dict[str, int]:
        return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in given}

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the results are called. A model that returns one value twice names it twice: the
        second is `y.2`."""
        given = [text(o.name) for o in self.model.graph.output]
        taken, counts = set(given), dict[str, int]()
        return tuple(_numbered(name, taken, counts) for name in given)

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
        """What an input is declared as, in codes where rlx lacks the element type; dims without a
        size are named."""
        kind, tensor = _tensor_of(info.type)
        if tensor is None:
            raise UnsupportedError(f"input {info.name!r} is no tensor but a {kind}")
        coded = self.element(tensor.elem_type)
        dtype = coded.storage if coded else self.dtype(tensor.elem_type, f"input {info.name!r}")
        if known is not None:
            _check_dims(info, tensor, known)
            return Shape(known, dtype)
        if kind != "tensor_type":
            raise NeedsShape(f"input {info.name!r} is a {kind}, of which calls say how long it is")
        if not tensor.HasField("shape"):
            raise NeedsShape(f"input {info.name!r} has no shape in the model")
        dims = [
            self.named.dim(info.name, i, d, text(d.dim_param) if d.HasField("dim_param") else "")
            for i, d in enumerate(tensor.shape.dim)
        ]
        return Shape(dims, dtype)

    def check_input(self, info: Any, array: np.ndarray[Any, Any]) -> None:
        """The error of an array that cannot be this input."""
        shape = self.shape_of(info, array.shape)
        tensor = _tensor_of(info.type)[1]
        if self.element(tensor.elem_type) is None and array.dtype != shape.dtype.numpy:
            raise Error(f"input {info.name!r} is {array.dtype}, expected {shape.dtype.name}.")

    def element(self, kind: int) -> Element | None:
        """An element type that rlx has no dtype for; None where it has one, or neither."""
        from onnx import TensorProto

        return TEXT if kind == TensorProto.STRING else small_kinds().get(kind)

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
        return text(tensor.name), self.tensor(tensor)

    def tensor(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The numbers of a tensor, of exactly its dims; large ones stay in the file. Strings are
        Python's."""
        what, dims = f"tensor {tensor.name[:80]!r}", tuple(tensor.dims)
        small = small_kinds().get(tensor.data_type)
        if any(d < 0 for d in dims):
            raise GraphError(f"{what} has a negative dim")
        if self.element(tensor.data_type) is TEXT:
            return _texts(tensor, dims, what)
        if small is not None:
            size = small.num_bytes(dims)
            raw = self._bytes(tensor, size, what)
            raw = bytes_of_fields(tensor.int32_data, what) if raw is None else raw
            return small.read(_checked(raw, size, dims, what), dims)
        self.dtype(tensor.data_type, what)
        kind = self._kinds[tensor.data_type]
        size = math.prod(dims) * kind.dtype.itemsize
        raw = self._bytes(tensor, size, what)
        if raw is None:
            return _from_fields(tensor, kind, dims, what)
        raw = _checked(raw, size, dims, what)
        made = aligned(raw, kind.dtype)
        if self.bulk is not None and made.size and made.ctypes.data != raw.ctypes.data:
            self.copies[made.ctypes.data] = (made, raw)
        return made.reshape(dims)

    def source_of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The bytes in a file that an array was copied from; else the array itself."""
        copy, raw = self.copies.get(array.ctypes.data, (array, array))
        is_whole = array.flags.c_contiguous and array.nbytes == copy.nbytes
        return raw if is_whole and array.dtype == copy.dtype else array

    def _bytes(self, tensor: Any, size: int, what: str) -> np.ndarray[Any, Any] | None:
        """A tensor's bytes, in the model or beside it; None where it has numbers instead."""
        from onnx import TensorProto

        if size > MAX_BYTES:
            raise GraphError(f"{what} would be {size} bytes")
        if tensor.data_location == TensorProto.EXTERNAL:
            return self.beside.bytes_of(tensor.external_data, size, what)
        return self._raw(tensor) if tensor.HasField("raw_data") else None

    def _raw(self, tensor: Any) -> np.ndarray[Any, Any]:
        raw = tensor.raw_data
        held = self.bulk.found(raw) if self.bulk else None
        return np.frombuffer(raw if held is None else held, np.uint8)

    def sparse(self, tensor: Any) -> tuple[str, np.ndarray[Any, Any]]:
        """A sparse tensor as the dense one it means."""
        values, indices = self.tensor(tensor.values), self.tensor(tensor.indices)
        dims = tuple(int(d) for d in tensor.dims)
        name = tensor.values.name
        size = math.prod(dims)
        if any(d < 0 for d in dims) or size * values.itemsize > MAX_SPARSE:
            raise GraphError(f"sparse tensor {name!r} is too large")
        flat = indices if indices.ndim == 1 else _flat(indices, dims)
        if values.ndim != 1 or len(flat) != len(values):
            raise GraphError(f"sparse tensor {name!r}: its values and indices do not match")
        if flat.size and (flat.min() < 0 or flat.max() >= size):
            raise GraphError(f"sparse tensor {name!r}: an index is out of range")
        dense = np.zeros(size, values.dtype)
        dense[flat] = values
        return name, dense.reshape(dims)


def _numbered(name: str, taken: set[str], counts: dict[str, int]) -> str:
    """The name itself the first time, then with a number that makes it none of those taken."""
    found = name
    while counts.setdefault(name, 0) and found in taken:
        counts[name] += 1
        found = f"{name}.{counts[name]}"
    counts[name] = counts[name] or 1
    taken.add(found)
    return found


def _texts(tensor: Any, dims: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    """Strings are always in a field of their own."""
    if len(tensor.string_data) != math.prod(dims):
        raise GraphError(f"{what} has {len(tensor.string_data)} strings for {list(dims)}")
    try:
        return objects([t.decode() for t in tensor.string_data]).reshape(dims)
    except UnicodeDecodeError:
        raise GraphError(f"{what}: a string is not UTF-8") from None


def _checked(
    raw: np.ndarray[Any, Any], size: int, dims: tuple[int, ...], what: str
) -> np.ndarray[Any, Any]:
    if raw.nbytes != size:
        raise GraphError(f"{what} has {raw.nbytes} bytes for {list(dims)}, which takes {size}")
    return raw


def _check_dims(info: Any, tensor: Any, dims: tuple[int, ...]) -> None:
    """The error of dims that are not the declared ones."""
    if not tensor.HasField("shape"):
        return
    declared = [-1 if is_open(d) else d.dim_value for d in tensor.shape.dim]
    if len(declared) != len(dims) or any(d not in (-1, n) for d, n in zip(declared, dims)):
        shown = ["?" if d == -1 else d for d in declared]
        raise Error(f"input {info.name!r} is {list(dims)}, expected {shown}.")


SURPRISES = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError,
    RecursionError, MemoryError,
)  # fmt: skip
"""What reading a file that makes no sense may raise, beside the errors of rlx."""


class ReadError(GraphError):
    """A model that could not be read for a reason nobody thought of: its cause says more."""


@contextmanager
def guarded(what: str) -> Generator[None]:
    """Whatever goes wrong in here is an error that says where."""
    try:
        yield
    except Error:
        raise
    except MemoryError as error:
        raise ReadError(f"{what}: there is not enough memory for it.") from error
    except SURPRISES as error:
        cause = f"{type(error).__name__}: {str(error)[:200]}"
        raise ReadError(f"{what}: it cannot be read as it is ({cause}).") from error


def _num_nodes(bodies: list[Any]) -> int:
    """How many nodes are written in these, and in the graphs inside."""
    count, todo = 0, list(bodies)
    while todo:
        nodes = todo.pop().node
        count += len(nodes)
        todo += [a.g for n in nodes for a in n.attribute if a.HasField("g")]
    return count


def _tensor_of(kind: Any) -> tuple[str, Any]:
    """What a type is called, and the tensors that it holds."""
    name = inner = kind.WhichOneof("value") or "nothing"
    while inner in ("sequence_type", "optional_type"):
        kind = getattr(kind, inner).elem_type
        inner = kind.WhichOneof("value") or "nothing"
    return name, kind.tensor_type if inner == "tensor_type" else None


def parsed(data: bytes | memoryview, what: str) -> tuple[Any, Bulk]:
    """A ModelProto from bytes, and what its long tensors are, which it has no copy of."""
    onnx = onnx_package()
    from google.protobuf.message import DecodeError

    if len(data) > MAX_FILE:
        raise Error(
            f"{what} is larger than a protobuf can be. Keep its weights in files beside it."
        )
    bulk = Bulk(memoryview(data))
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bulk.light())
    except (DecodeError, RecursionError, ValueError) as error:
        raise Error(f"{what} is no ONNX model: {error}.") from None
    if not model.HasField("graph"):
        raise Error(f"{what} is no ONNX model: it has no graph.")
    return model, bulk


def onnx_package() -> Any:
    """The package that parses models, or an error that says how to get it."""
    try:
        import onnx
    except ImportError:
        raise UnsupportedError(
            "ONNX models need the package onnx: pip install 'rlx[onnx]'."
        ) from None
    numbers = onnx.__version__.split(".")
    if tuple(int(n) for n in numbers[:2] if n.isdecimal()) < OLDEST_PACKAGE:
        raise UnsupportedError(f"onnx {onnx.__version__} is too old: pip install 'rlx[onnx]'.")
    return onnx


def name_of(node: Any) -> str:
    """What a user finds a node by: its name, or that of its first result, which no other has."""
    return node.name or next((o for o in node.output if o), "") or node.op_type


def text(name: str | bytes) -> str:
    """A name, which the parser gives as bytes where it is no text."""
    if isinstance(name, bytes):
        raise GraphError(f"{name[:80]!r} is no name: it is not UTF-8")
    return name


def aligned(raw: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Bytes as numbers: where they are, if numbers of this size can be there."""
    made = raw.view(dtype.newbyteorder("<"))
    if made.flags.aligned and made.dtype.isnative:
        return made
    copy = made.astype(dtype)
    copy.setflags(write=False)
    return copy


def _flat(indices: np.ndarray[Any, Any], dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if indices.ndim != 2 or indices.shape[1] != len(dims):
        raise GraphError("a sparse tensor's indices do not fit its dims")
    if (indices < 0).any() or (indices >= np.array(dims)).any():
        raise GraphError("a sparse tensor's index is out of range")
    return indices @ np.array([math.prod(dims[i + 1 :]) for i in range(len(dims))], np.int64)


def _from_fields(tensor: Any, kind: Kind, dims: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    """Numbers stored one per field element; f16 and bf16 as the integers of their bits."""
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
