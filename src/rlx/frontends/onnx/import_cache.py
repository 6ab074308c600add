"""The cache of imports: a model that was compiled before needs neither graph nor parser, only the
offsets of its weights.

An entry is found by the bytes of the model's file. Files beside it hold weights, and small ones of
them are in the graph as numbers, so that each counts by its name, size, time of change and place on
the disk.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.core.disk_cache import Cache, key_of
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.sections import Bytes, Sections
from rlx.frontends.onnx.files import Beside, ModelFile
from rlx.frontends.onnx.model import Array, Model, Summary, reader_of
from rlx.frontends.onnx.reader import Reader, aligned

KIND = "onnx"
MAX_MADE_BYTES = 1 << 28
"""Weights that are not in a file as they are, but were made of those that are."""


def recalled(file: ModelFile, cache: Cache) -> Model | None:
    """The model, if it was read before and nothing has changed since."""
    entry = cache.get(_key(file))
    if entry is None:
        return None
    try:
        return _restored(entry, file)
    except (Error, KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None


def keep(model: Model, file: ModelFile, cache: Cache) -> None:
    """Store what a compile must know of the model."""
    head: dict[str, Any] = {
        "kind": KIND, "name": model.name, "inputs": model.inputs, "outputs": model.outputs,
        "static": model.static, "why": model.why_static, "needs_shapes": model.needs_shapes,
        "is_narrowed": model.is_narrowed, "dims": model.reader.named.learned(),
        "files": model.reader.beside.stamps(),
    }  # fmt: skip
    sections: dict[str, Bytes] = {}
    if not model.is_static:
        head |= {"digest": model.digest, "is_of_rlx": model.is_of_rlx}
        head["params"], sections = _places(model, file)
        model.reader.copies.clear()
    if sum(map(len, sections.values())) <= MAX_MADE_BYTES:
        cache.put(_key(file), head, sections)


def _key(file: ModelFile) -> str:
    """An entry is a function of the bytes of the file, and the name of its path."""
    return key_of(KIND, file.digest(), file.path.stem)


def _places(model: Model, file: ModelFile) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """Where each weight is: in the model's file, in one beside it, or in the entry."""
    held = _Places.of(file, model.reader.beside)
    places: dict[str, Any] = {}
    sections: dict[str, Bytes] = {}
    for number, (name, array) in enumerate(model.params.items()):
        found = held.place(model.reader.source_of(array))
        if found is None:
            found = (str(number), -1)
            sections[str(number)] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        places[name] = [*found, DType.of(array.dtype).value, list(array.shape)]
    return places, sections


@dataclass(frozen=True, slots=True)
class _Places:
    """Which bytes of which file are where in memory: in order of their addresses, and disjoint."""

    starts: list[int]
    ranges: list[tuple[int, str, int]]
    """How many bytes, of which file, and from which byte on."""

    @classmethod
    def of(cls, file: ModelFile, beside: Beside) -> _Places:
        own = np.frombuffer(file.data, np.uint8)
        found = [(own.ctypes.data, (own.size, "", 0))]
        for name, opened in beside.opened.items():
            for (start, _), data in opened.tensors.items():
                found.append((data.ctypes.data, (data.size, name, start)))
        found.sort()
        return cls([address for address, _ in found], [held for _, held in found])

    def place(self, array: Array) -> tuple[str, int] | None:
        """The file that an array is a view of, and from which byte on."""
        at = bisect.bisect_right(self.starts, array.ctypes.data) - 1
        if at < 0 or not array.flags.c_contiguous or array.size == 0:
            return None
        size, name, first = self.ranges[at]
        offset = array.ctypes.data - self.starts[at]
        return (name, first + offset) if offset + array.nbytes <= size else None


def _restored(entry: Sections, file: ModelFile) -> Model:
    head = entry.head
    beside = file.beside()
    for name, stamp in head["files"].items():
        if beside.file(name, file.path.name).held.stamp != stamp:
            raise Error(f"{name} has changed")

    def opened() -> Reader:
        reader = reader_of(file)
        reader.named.recall(head["dims"])
        return reader

    model = Model(head["name"], tuple(head["inputs"]), tuple(head["outputs"]), opened)
    model.static, model.why_static = tuple(head["static"]), head["why"]
    model.needs_shapes, model.is_narrowed = head["needs_shapes"], head["is_narrowed"]
    if not model.is_static:
        params = {k: _array(entry, file, beside, *v) for k, v in head["params"].items()}
        model.summary = Summary(head["digest"], head["is_of_rlx"], params)
    return model


def _array(
    entry: Sections, file: ModelFile, beside: Beside, where: str, offset: int, kind: str, dims: Any
) -> Array:
    dtype = DType.of(kind).numpy
    size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
    if offset < 0:
        raw = np.frombuffer(entry.section(where), np.uint8)
    elif where == "":
        raw = np.frombuffer(file.data, np.uint8)[offset : offset + size]
    else:
        raw = beside.range_of(where, (offset, offset + size), where)
    return aligned(raw, dtype).reshape(dims)
