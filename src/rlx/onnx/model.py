"""A model that was read: its graph, its weights, and how calls fit it.

Where shapes follow from the values of inputs, those inputs are static: the model is read and
compiled anew for each value of them, as for each shape of inputs whose dims the model cannot name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import Error, GraphError
from rlx.ir.mir import Graph
from rlx.onnx.call import NeedsValue
from rlx.onnx.importer import Importer
from rlx.onnx.reader import NeedsShape, Reader, parsed


@dataclass(frozen=True, slots=True)
class Read:
    """The model for some values of its static inputs."""

    graph: Graph
    params: Mapping[str, np.ndarray[Any, Any]]


@dataclass(slots=True)
class Model:
    """A model from a file. `rlx.compile` takes it."""

    name: str
    reader: Reader
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    static: tuple[str, ...] = ()
    """Inputs whose values decide shapes."""
    why_static: str = ""
    needs_shapes: bool = False
    """Is the model read for each shape of its inputs?"""
    read: Read | None = None
    """The model once and for all, where nothing about it is static."""
    _known: dict[Any, Read] = field(default_factory=dict[Any, Read])

    @property
    def graph(self) -> Graph:
        return self._whole().graph

    @property
    def params(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return self._whole().params

    def _whole(self) -> Read:
        if self.read is None:
            raise Error(f"{self.name}: its graph depends on the call. {self.why_static}")
        return self.read

    def specialised(self, inputs: Sequence[np.ndarray[Any, Any]]) -> Read:
        """The model for these inputs: the values of static ones and, where it must be, shapes."""
        if self.read is not None:
            return self.read
        given = dict(zip(self.inputs, inputs, strict=True))
        while True:
            key = self._key(given)
            if key in self._known:
                return self._known[key]
            try:
                self._known[key] = self._read(given)
            except NeedsValue as needs:
                self.static = tuple(n for n in self.inputs if n in (*self.static, *needs.inputs))
                if key == self._key(given):
                    raise

    def _key(self, given: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        static = tuple((n, given[n].shape, given[n].tobytes()) for n in self.static)
        return static, tuple((n, a.shape) for n, a in given.items() if self.needs_shapes)

    def _read(self, given: Mapping[str, np.ndarray[Any, Any]]) -> Read:
        static = {n: given[n] for n in self.static}
        shapes = {n: a.shape for n, a in given.items()} if self.needs_shapes else {}
        importer = Importer(self.reader, static, shapes)
        return Read(importer.read(), importer.params)


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a file."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        raise Error(f"{file} cannot be read: {error}.") from None
    return from_proto(parsed(data, str(file)), file.parent, file.stem)


def from_proto(proto: Any, folder: Path | None = None, name: str = "") -> Model:
    """The model in a ModelProto."""
    reader = Reader(proto, folder)
    initialised = {t.name for t in proto.graph.initializer}
    initialised |= {t.values.name for t in proto.graph.sparse_initializer}
    inputs = tuple(i.name for i in proto.graph.input if i.name not in initialised)
    outputs = tuple(o.name for o in proto.graph.output)
    for kind, names in (("inputs", inputs), ("outputs", outputs)):
        if len(set(names)) < len(names):
            raise GraphError(f"two {kind} of the model have one name")
    model = Model(name or proto.graph.name or "model", reader, inputs, outputs)
    _settle(model)
    return model


def _settle(model: Model) -> None:
    """Read the model as it is, or find out what it must be read for."""
    try:
        importer = Importer(model.reader)
        model.read = Read(importer.read(), importer.params)
    except NeedsValue as needs:
        model.static, model.why_static, model.needs_shapes = needs.inputs, str(needs), True
    except NeedsShape as needs:
        model.why_static, model.needs_shapes = str(needs), True
    except GraphError as error:
        if not _has_named_dims(model):
            raise
        model.why_static, model.needs_shapes = str(error), True


def _has_named_dims(model: Model) -> bool:
    graph = model.reader.model.graph
    declared = {i.name: i.type.tensor_type.shape.dim for i in graph.input}
    return any(not d.HasField("dim_value") for n in model.inputs for d in declared[n])
