"""A model that was read: its graph, its weights, and how calls fit it.

Where shapes follow from the values of inputs, those inputs are static: the model is read and
compiled anew for each value of them, as for each shape of inputs whose dims the model cannot name.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.disk_cache import Cache, CacheLike
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import OutOfRange, Shape
from rlx.cost.decision import Decision
from rlx.frontends.dim_ranges import MAX_NARROWED, mended, ranges_for
from rlx.frontends.named_dims import is_open
from rlx.frontends.onnx.files import Beside, ModelFile
from rlx.frontends.onnx.host_steps import HostStep
from rlx.frontends.onnx.importer import Importer
from rlx.frontends.onnx.node_call import NeedsShape, NeedsValue
from rlx.frontends.onnx.reader import Reader, guarded, parsed, text
from rlx.frontends.onnx.strings import Strings
from rlx.frontends.onnx.values import (
    Given,
    Mapped,
    Value,
    arrays_of,
    form_of,
    frozen,
    is_plain,
    key_of,
)
from rlx.ir.bundle import Bundle
from rlx.ir.interpret import infer_binding
from rlx.ir.mir import Graph

if TYPE_CHECKING:
    from rlx.passes.options import FusionOptions
    from rlx.runtime.executable import Executable
    from rlx.runtime.session import Session

MAX_KEPT = 32
"""Readings for values of static inputs; the one that was not used longest goes."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """The model for some values of its static inputs."""

    graph: Graph
    params: Mapping[str, Array]
    inputs: tuple[Value, ...] = ()
    """What calls give, but for what is static."""
    outputs: tuple[Value, ...] = ()
    """The results; sequences, strings and maps are made of the graph's outputs, in order."""
    strings: Strings = field(default_factory=Strings)
    """The strings of the model."""
    steps: tuple[HostStep, ...] = ()
    """What the host does between programs."""

    @property
    def is_plain(self) -> bool:
        """Is it one program, of tensors that rlx has a dtype for?"""
        return not self.steps and all(is_plain(v) for v in (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compile must know of a model, without its graph."""

    digest: str
    is_of_rlx: bool
    params: Mapping[str, Array]


@dataclass(slots=True, eq=False, repr=False)
class Model(Bundle):
    """A model from a file. `rlx.compile` takes it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opened: Callable[[], Reader]
    """Parses the file, where that has not been done."""
    static: tuple[str, ...] = ()
    """Inputs whose values decide shapes."""
    why_static: str = ""
    needs_shapes: bool = False
    """Is the model read for each shape of its inputs?"""
    is_narrowed: bool = False
    """Is the program one for some of the sizes only that named dims can have?"""
    read: Read | None = None
    """The model once and for all, where nothing about it is static and it has been read."""
    summary: Summary | None = None
    _reader: Reader | None = None
    _known: OrderedDict[Any, Read] = field(default_factory=OrderedDict[Any, Read])
    _passed: set[Any] = field(default_factory=set[Any])
    """Names, dtypes and shapes of inputs that were found right."""

    def __repr__(self) -> str:
        return f"<Model {self.name!r} ({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})>"

    @property
    def is_static(self) -> bool:
        """Is the model another for other values or shapes of inputs?"""
        return self.needs_shapes or bool(self.static)

    @property
    def is_plain(self) -> bool:
        """Is it one program, of tensors that rlx has a dtype for?"""
        return not self.is_static and (self.summary is not None or self.whole().is_plain)

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            self._reader = self.opened()
        return self._reader

    @property
    def declared(self) -> dict[str, Shape | None]:
        """Input → shape, in order, as the file has it; None where it says none."""
        by_name = {i.name: i for i in self.reader.model.graph.input}
        return {n: self.shape_of(by_name[n]) for n in self.inputs}

    def shape_of(self, info: Any) -> Shape | None:
        """The shape of a declared input or output; None where it has none."""
        try:
            return self.reader.shape_of(info)
        except UnsupportedError:
            return None

    @property
    def graph(self) -> Graph:
        return self.whole().graph

    @property
    def params(self) -> Mapping[str, Array]:
        return self.summary.params if self.summary else self.whole().params

    @property
    def digest(self) -> str:
        return self.summary.digest if self.summary else f"{self.graph.name} {self.graph.digest()}"

    @property
    def is_of_rlx(self) -> bool:
        from rlx.runtime.request_keys import comes_with_rlx

        return self.summary.is_of_rlx if self.summary else comes_with_rlx(self.graph)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Why the model cannot be one program, where it cannot."""
        if not self.is_static:
            return () if self.summary else tuple(s.decision for s in self.whole().steps)
        what = "values" if self.static else "shapes"
        where = self.static or self.inputs
        made = Decision(
            f"static {what}", f"compile_per_{what}", where, True, self.why_static,
            is_reversible=False, kind="import",
        )  # fmt: skip
        return (made,)

    def whole(self) -> Read:
        """The model, where it is the same for all calls."""
        if self.is_static:
            raise Error(
                f"{self.name}: its graph depends on the call. {self.why_static}. Compile it: what "
                "rlx.compile gives has a graph for every call."
            )
        if self.read is None:
            _settle(self)
        assert self.read is not None, "a model that was one program before"
        return self.read

    def compiled(
        self, session: Session, options: FusionOptions | None, params: Mapping[str, Any] | None
    ) -> Executable:
        from rlx.frontends.onnx.variants import compiled

        return compiled(self, session, options, params)

    def by_shapes(
        self, why: str = "the sizes are outside of those that one program serves"
    ) -> Model:
        """The same model, read for each shape of its inputs."""
        return Model(
            self.name, self.inputs, self.outputs, lambda: self.reader, self.static, why, True
        )

    # -- for a call ------------------------------------------------------------------------------

    def specialised(self, inputs: Sequence[Given]) -> Read:
        """The model for these inputs: the values of static ones and, where it must be, shapes."""
        given = dict(zip(self.inputs, inputs, strict=True))
        if not self.is_static:
            whole = self.whole()
            is_for = not self.is_narrowed or _is_in_range(whole, given)
            return whole if is_for else self.by_shapes().specialised(inputs)
        self._check(given)
        while True:
            key = self._key(given)
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            try:
                self._known[key] = self._read(given)
            except NeedsValue as needs:
                self.static = tuple(n for n in self.inputs if n in (*self.static, *needs.inputs))
                if key == self._key(given):
                    raise
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)

    def _check(self, given: Mapping[str, Given]) -> None:
        """Each input of the dtype that is declared, and of dims that can be it."""
        arrays = [(name, a) for name, value in given.items() for a in arrays_of(value)]
        forms = {(name, a.dtype, a.shape) for name, a in arrays}
        if forms <= self._passed:
            return
        declared = {i.name: i for i in self.reader.model.graph.input}
        for name, array in arrays:
            if not isinstance(given[name], Mapped):
                self.reader.check_input(declared[name], array)
        self._passed = forms

    def _key(self, given: Mapping[str, Given]) -> Any:
        static = tuple((n, key_of(given[n])) for n in self.static)
        return static, tuple((n, frozen(form_of(g))) for n, g in given.items() if self.needs_shapes)

    def _read(self, given: Mapping[str, Given]) -> Read:
        static = {n: given[n] for n in self.static}
        shapes = {n: form_of(g) for n, g in given.items()} if self.needs_shapes else {}
        return _imported(Importer(self.reader, static, shapes, name=self.name))


def load(path: str | os.PathLike[str], *, cache: CacheLike = None) -> Model:
    """The model in a file."""
    return read_file(ModelFile.open(path), cache=cache)


def read_file(file: ModelFile, *, cache: CacheLike = None) -> Model:
    """The model in these bytes. One that was read before is known by them: it is read again only
    where its graph is needed."""
    from rlx.frontends.onnx.import_cache import keep, recalled

    kept = Cache.of(cache, os.environ)
    model = recalled(file, kept) if kept is not None else None
    if model is None:
        reader = reader_of(file)
        model = model_of(reader, file.path.stem)
        if kept is not None and (model.is_static or model.is_plain):
            keep(model, file, kept)
    return model


def reader_of(file: ModelFile) -> Reader:
    """The parsed file."""
    proto, bulk = parsed(file.data, str(file.path) if file.is_on_disk else "what was given")
    return Reader(proto, file.beside(), bulk)


def from_proto(proto: Any, folder: Path | None = None, name: str = "") -> Model:
    """The model in a ModelProto."""
    return model_of(Reader(proto, Beside(folder)), name)


def model_of(reader: Reader, name: str) -> Model:
    """The model that a reader has parsed."""
    graph = reader.model.graph
    with guarded("the model"):
        initialised = {t.name for t in graph.initializer}
        initialised |= {t.values.name for t in graph.sparse_initializer}
        inputs = tuple(text(i.name) for i in graph.input if i.name not in initialised)
        outputs = reader.output_names
        called = name or text(graph.name)[:80] or "model"
    if len(set(inputs)) < len(inputs):
        raise GraphError(f"{called}: two inputs of the model have one name")
    model = Model(called, inputs, outputs, lambda: reader)
    _settle(model)
    return model


def _settle(model: Model) -> None:
    """Read the model as it is, or find out what it must be read for."""
    attributes: dict[int, tuple[Any, dict[str, Any]]] = {}
    for _ in range(MAX_NARROWED):
        try:
            read = _imported(Importer(model.reader, name=model.name, attributes=attributes))
            model.read, model.why_static, model.needs_shapes = read, "", False
            return
        except NeedsValue as needs:
            model.static, model.why_static, model.needs_shapes = needs.inputs, str(needs), True
            return
        except NeedsShape as needs:
            model.why_static, model.needs_shapes = str(needs), True
            return
        except GraphError as error:  # calls of other sizes are read for themselves
            if not _has_named_dims(model):
                raise
            is_mended = mended(model.reader.named, error)
            model.why_static, model.needs_shapes = str(error), not is_mended
        if not is_mended:
            return
        model.is_narrowed = True
    model.needs_shapes = True


def _imported(importer: Importer) -> Read:
    """The model as it is read; where sizes that it finds out while it runs do not fit together, and
    no range of named dims settles that, it is read without such, for the values that they follow
    from."""
    try:
        return _read_by(importer)
    except (NeedsValue, NeedsShape):
        raise
    except (GraphError, UnsupportedError) as error:
        if not importer.has_measured or ranges_for(error) is not None:
            raise
        return _without_measured(importer, error)


def _without_measured(importer: Importer, error: Error) -> Read:
    """The model as it is read without sizes that it finds out; the reason why it cannot be read is
    that of the reading with such."""
    try:
        return _read_by(importer.again(measures=False))
    except (NeedsValue, NeedsShape):
        raise
    except (GraphError, UnsupportedError):
        raise error from None


def _read_by(importer: Importer) -> Read:
    with guarded("the model"):
        graph = importer.read()
        return Read(
            graph, importer.params, importer.inputs, importer.outputs, importer.strings,
            tuple(importer.steps),
        )  # fmt: skip


def _is_in_range(read: Read, given: Mapping[str, Given]) -> bool:
    """Are these inputs of sizes that a narrowed model is for? What else is wrong with them the
    call says."""
    try:
        infer_binding(read.graph.inputs, given)
    except OutOfRange:
        return False
    except GraphError:
        return True
    return True


def _has_named_dims(model: Model) -> bool:
    graph = model.reader.model.graph
    declared = {i.name: i.type.tensor_type.shape.dim for i in graph.input}
    return any(is_open(d) for n in model.inputs for d in declared[n])
