"""A .gguf file: key-value metadata, a table of tensors, and their blocks of quantised weights.

Nothing in the file is believed: counts and lengths are compared with the bytes that are left before
anything of that size is made, extents before they are multiplied, and tensors lie inside the file
without overlapping. Tensors are copied out of it when they are asked for, so that what happens to
the file later changes nothing; one that is asked for again, of a file that changed, is an error.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import HeldFile, opened
from rlx.frontends.tracked_fields import TrackedFields
from rlx.ops.op import Array
from rlx.ops.quant.gguf_formats import SCHEMES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 1 << 28
"""Metadata and tables of the largest vocabularies take some 10 MB."""
CHUNK_BYTES = 1 << 20
MAX_PAIRS, MAX_TENSORS, MAX_RANK, MAX_DEPTH = 1 << 16, 1 << 16, 4, 4
MAX_NAME_BYTES = 1 << 10
DEFAULT_ALIGNMENT = 32

Value: TypeAlias = "int | float | bool | str | Array | Texts | list[Any]"

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k",
    11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs",
    18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 29: "iq1_m",
    30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip
"""Numbers of block formats in files."""
OTHER_TYPES = {9: "Q8_1", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}


class Texts(Sequence[str]):
    """An array of texts, such as a vocabulary: bytes that are decoded one by one."""

    def __init__(self, raw: bytes, bounds: Array, where: str, what: str) -> None:
        self.raw, self._bounds, self._where, self._what = raw, bounds, where, what

    def __len__(self) -> int:
        return len(self._bounds)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        begin, end = self._bounds[index]
        return _decoded(self.raw[begin:end], self._where, self._what)

    def __iter__(self) -> Iterator[str]:
        raw, where, what = self.raw, self._where, self._what
        for begin, end in self._bounds.tolist():
            yield _decoded(raw[begin:end], where, what)

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the table of tensors. `dims` are NumPy's: rows of blocks are the last axis."""

    name: str
    dims: tuple[int, ...]
    scheme: str
    offset: int

    @property
    def packed_dims(self) -> tuple[int, ...]:
        """The dims of its bytes."""
        *lead, columns = self.dims or (1,)
        form = SCHEMES[self.scheme]
        return (*lead, columns // form.weights * form.block_bytes)

    @property
    def nbytes(self) -> int:
        return math.prod(self.packed_dims)

    @property
    def count(self) -> int:
        """How many weights it has."""
        return math.prod(self.dims)


class GgufFile:
    """The metadata of a file, and its tensors by name."""

    def __init__(
        self,
        file: HeldFile,
        metadata: Mapping[str, Value],
        tensors: Mapping[str, TensorInfo],
        start: int,
    ) -> None:
        self.metadata = TrackedFields(metadata, file.name)
        self.tensors = tensors
        self._file, self._start = file, start

    @property
    def name(self) -> str:
        return self._file.name

    def packed(self, name: str) -> Array:
        """The bytes of a tensor as they are stored, u8[…, bytes of a row]."""
        info = self.tensors[name]
        begin = self._start + info.offset
        held = self._file.read(begin, begin + info.nbytes)
        return np.frombuffer(held, np.uint8).reshape(info.packed_dims)

    def floats(self, name: str) -> Array:
        """A tensor that is not quantised, as f32."""
        info = self.tensors[name]
        if info.scheme not in ("f32", "f16", "bf16"):
            raise UnsupportedError(
                f"{self.name}: tensor {name!r} is {info.scheme}, where floats are expected."
            )
        raw = self.packed(name)
        if info.scheme == "f32":
            return raw.view("<f4").astype(np.float32, copy=False)
        if info.scheme == "f16":
            return raw.view("<f2").astype(np.float32)
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def read_gguf(path: str | Path) -> GgufFile:
    """The header of a file, checked."""
    file = opened(path)
    head = _Cursor(file)
    if bytes(head.take(4, "its first bytes")) != MAGIC:
        raise _broken(file.name, "it does not begin with GGUF")
    version = head.number("<I", "its version")
    if version not in VERSIONS:
        raise UnsupportedError(
            f"{file.name} is GGUF version {version}. rlx reads versions 2 and 3, little-endian."
        )
    n_tensors, n_pairs = (head.number("<Q", what) for what in ("its tensors", "its metadata"))
    if n_tensors > MAX_TENSORS or n_pairs > MAX_PAIRS:
        raise _broken(file.name, f"it would have {n_tensors:,} tensors and {n_pairs:,} pairs")
    metadata = _unique(file.name, "key", (_pair(head) for _ in range(n_pairs)))
    rows = ((t.name, t) for t in (_tensor(head) for _ in range(n_tensors)))
    tensors = _unique(file.name, "tensor", rows)
    alignment = _alignment(metadata, file.name)
    start = -(-head.at // alignment) * alignment
    _check_extents(file, tensors, start, alignment)
    return GgufFile(file, metadata, tensors, start)


# -- the header ------------------------------------------------------------------------------------


class _Cursor:
    """A position in the file, and what is read from there on, some megabytes at a time."""

    def __init__(self, file: HeldFile) -> None:
        self.name, self.at = file.name, 0
        self._file = file
        self._most = min(len(file), MAX_HEADER_BYTES)
        self._bytes = file[: min(self._most, CHUNK_BYTES)]

    def take(self, count: int, what: str) -> memoryview:
        self.require(count, what)
        self.at += count
        return self._bytes[self.at - count : self.at]

    def require(self, count: int, what: str) -> None:
        """So many bytes follow, and have been read."""
        if count > self._most - self.at:
            left = self._most - self.at
            raise _broken(self.name, f"{what} would take {count:,} bytes, and {left:,} are left")
        if self.at + count > len(self._bytes):
            wanted = max(self.at + count, 2 * len(self._bytes))
            self._bytes = self._file[: min(self._most, wanted)]

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def text(self, what: str, most: int | None = None) -> str:
        count = self.number("<Q", what)
        if most is not None and count > most:
            raise _broken(self.name, f"{what} has {count:,} bytes, more than {most:,}")
        return _decoded(self.take(count, what), self.name, what)

    def texts(self, count: int, what: str) -> Texts:
        """Lengths are followed; texts are decoded when they are asked for."""
        length, begin = struct.Struct("<Q").unpack_from, self.at
        bounds = array("q")
        at = begin
        for _ in range(count):
            if at + 8 > len(self._bytes):
                self.at = at
                self.require(8, what)
            (size,) = length(self._bytes, at)
            at += 8
            if size > self._most - at:
                self.at = at
                self.require(size, what)
            bounds.append(at)
            at += size
            bounds.append(at)
        self.at = at
        self.require(0, what)
        places = np.frombuffer(bounds, np.int64).reshape(count, 2) - begin
        return Texts(bytes(self._bytes[begin:at]), places.astype(np.uint32), self.name, what)

    def numbers(self, form: str, count: int, what: str) -> Array:
        dtype = np.dtype(form.replace("<?", "?"))
        self.require(count * dtype.itemsize, what)
        made = np.frombuffer(self._bytes, dtype, count, self.at).copy()
        self.at += made.nbytes
        return made


def _decoded(raw: memoryview | bytes, where: str, what: str) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise _broken(where, f"{what} is no UTF-8") from None


def _pair(head: _Cursor) -> tuple[str, Value]:
    key = head.text("a key of its metadata", MAX_NAME_BYTES)
    return key, _value(head, head.number("<I", f"the type of {_short(key)}"), _short(key), 0)


def _value(head: _Cursor, kind: int, what: str, depth: int) -> Value:
    if kind in _SCALARS:
        return head.number(_SCALARS[kind], what)
    if kind == _STRING:
        return head.text(what)
    if kind != _ARRAY:
        raise _broken(head.name, f"{what} is of the unknown type {kind}")
    if depth == MAX_DEPTH:
        raise _broken(head.name, f"{what} is nested too deeply")
    inner, count = head.number("<I", what), head.number("<Q", what)
    if inner in _SCALARS:
        return head.numbers(_SCALARS[inner], count, what)
    head.require(8 * count, what)  # the least that a text or an array takes
    if inner == _STRING:
        return head.texts(count, what)
    return [_value(head, inner, what, depth + 1) for _ in range(count)]


def _tensor(head: _Cursor) -> TensorInfo:
    name = head.text("the name of a tensor", MAX_NAME_BYTES)
    rank = head.number("<I", f"the rank of {_short(name)}")
    if rank > MAX_RANK:
        raise _broken(head.name, f"tensor {_short(name)} has {rank} dims, more than {MAX_RANK}")
    dims = tuple(int(d) for d in head.numbers("<Q", rank, f"the dims of {_short(name)}"))[::-1]
    kind = head.number("<I", f"the type of {_short(name)}")
    offset = head.number("<Q", f"the offset of {_short(name)}")
    return TensorInfo(name, dims, _scheme(head.name, name, kind), offset)


def _scheme(where: str, name: str, kind: int) -> str:
    if kind in TYPES:
        return TYPES[kind]
    called = OTHER_TYPES.get(kind, f"the unknown type {kind}")
    known = ", ".join(scheme.upper() for scheme in TYPES.values())
    raise UnsupportedError(f"{where}: tensor {_short(name)} is {called}. rlx reads {known}.")


def _unique(where: str, what: str, pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _broken(where, f"{what} {_short(name)} occurs twice")
        found[name] = value
    return found


def _alignment(metadata: Mapping[str, Value], where: str) -> int:
    found = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(found) is not int or not 0 < found <= 1 << 20 or found & (found - 1):
        raise _broken(where, f"general.alignment is {found!r}, no power of two")
    return found


def _check_extents(
    file: HeldFile, tensors: Mapping[str, TensorInfo], start: int, alignment: int
) -> None:
    """Each tensor is whole blocks, inside the file, aligned, and overlaps no other."""
    end = 0
    for info in sorted(tensors.values(), key=lambda t: t.offset):
        _check_blocks(file.name, info, len(file))
        if info.offset % alignment:
            raise _broken(file.name, f"tensor {_short(info.name)} is not at a multiple of it")
        if info.offset < end:
            raise _broken(file.name, f"tensor {_short(info.name)} overlaps another")
        end = info.offset + info.nbytes
        if start + end > len(file):
            raise _broken(file.name, f"tensor {_short(info.name)} would end behind the file")


def _check_blocks(where: str, info: TensorInfo, most: int) -> None:
    """Extents whose product is no more than the file could hold, and rows of whole blocks."""
    count, form = 1, SCHEMES[info.scheme]
    for dim in info.dims:
        count *= dim
        if dim == 0 or count > most * 8 * form.weights:
            dims = "×".join(map(str, info.dims))
            raise _broken(where, f"tensor {_short(info.name)} would have {dims} weights")
    if (columns := (info.dims or (1,))[-1]) % form.weights:
        wanted = f"{info.scheme} has blocks of {form.weights}"
        raise _broken(where, f"tensor {_short(info.name)} has rows of {columns}: {wanted}")


def _short(text: str) -> str:
    return repr(text[:80])


def _broken(where: str, why: str) -> Error:
    return Error(f"{where} is damaged: {why}.")
