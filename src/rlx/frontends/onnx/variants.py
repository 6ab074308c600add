"""Variants of ONNX models: programs for the values of static inputs, and for shapes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.core.dim import symbols_of
from rlx.core.errors import Error, OpenSizesError, UnsupportedError
from rlx.core.shape import OutOfRange, Shape
from rlx.cost.decision import Decision
from rlx.frontends.onnx.call_values import encoded, taken
from rlx.frontends.onnx.host_steps import Stage, staged
from rlx.frontends.onnx.model import Model, Read
from rlx.frontends.onnx.strings import Strings, strings_of_call
from rlx.frontends.onnx.values import Given, arrays_of, filled
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.runtime.executable import Executable
from rlx.runtime.variants import Signature, Table, VariantCache, Variants, described, signature_of

if TYPE_CHECKING:
    from rlx.runtime.session import Session


def compiled(
    model: Model,
    session: Session,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
) -> Executable:
    """The model ready to run: one program where nothing about it is static, and others for sizes
    that it cannot be one program for."""
    try:
        return _compiled(model, session, options, params)
    except OpenSizesError as error:
        variants = ModelVariants(model.by_shapes(str(error)), session, options, params)
        return Executable(None, variants, source=model)


def _compiled(
    model: Model,
    session: Session,
    options: FusionOptions | None,
    params: Mapping[str, Any] | None,
) -> Executable:
    others = None
    if model.is_narrowed and not model.is_static:
        others = ModelVariants(model.by_shapes(), session, options, params)
    if model.is_plain:
        return session.executable(
            model, model.params, options=options, params=params, variants=others
        )
    variants = ModelVariants(model, session, options, params, others)
    if not model.is_static:
        variants.compile_whole()
    return Executable(None, variants, source=model)


class ModelVariants(Variants):
    """A program, or several with host steps between them, for each reading of a model."""

    def __init__(
        self,
        model: Model,
        session: Session,
        options: FusionOptions | None,
        params: Mapping[str, Any] | None = None,
        others: ModelVariants | None = None,
    ) -> None:
        if options is not None:
            options.require_all_outputs(model.name, "it is several programs, all of one interface")
            shapes = model.declared.values() if options.sizes else ()
            options.require_dims(model.name, symbols_of(d for s in shapes if s for d in s.dims))
        self.model, self._session, self._options = model, session, options
        self.name, self.backend = model.name, session.backend
        self._params = dict(params or {})
        self._lock = threading.Lock()
        self._compiled: VariantCache[tuple[Staged, Signature]] = VariantCache(model.name)
        """By reading: its programs, and what they are for where inputs are tensors."""
        self._others = others
        """Runs a call whose sizes are outside of those that the programs serve."""

    # -- what it is ----------------------------------------------------------------------------

    @property
    def static(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.model.static

    @property
    def inputs(self) -> Mapping[str, Shape | None]:
        return self.model.declared

    @property
    def outputs(self) -> Mapping[str, Shape | None]:
        infos = self.model.reader.model.graph.output
        return {n: self.model.shape_of(i) for n, i in zip(self.model.outputs, infos, strict=True)}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return (*self.model.decisions, *(d for exe in self.programs for d in exe.decisions))

    @property
    def programs(self) -> tuple[Executable, ...]:
        with self._lock:
            own = tuple(exe for _, (staged, _) in self._compiled.items() for exe in staged.programs)
        return (*(self._others.programs if self._others else ()), *own)

    # -- weights -------------------------------------------------------------------------------

    def has_param(self, name: str) -> bool:
        return any(t.name == name for t in self.model.reader.model.graph.initializer)

    def set_params(self, params: Mapping[str, Any]) -> None:
        self._params |= params
        for program in self.programs:
            known = program.params
            program.set_params({k: v for k, v in params.items() if k in known})

    def copied(self) -> ModelVariants:
        """Programs of the copy are those of the session, which compiles nothing twice."""
        others = self._others and self._others.copied()
        made = ModelVariants(self.model, self._session, self._options, self._params, others)
        with self._lock:
            entries = [(k, (staged.copied(), s)) for k, (staged, s) in self._compiled.items()]
        made._compiled = VariantCache(self.name, entries)
        return made

    # -- files ---------------------------------------------------------------------------------

    def table(self) -> Table:
        with self._lock:
            compiled = [entry for _, entry in self._compiled.items()]
        if not self.model.is_static or not all(staged.is_one for staged, _ in compiled):
            raise UnsupportedError(
                f"{self.name}: it has steps that Python runs, or strings, sequences or maps, which "
                "no file of programs holds. Keep the model's own file: it is compiled from the "
                "cache."
            )
        current = [(staged.main, s) for staged, s in compiled if self._is_current(s)]
        programs = {signature: main for main, signature in current if main}
        return Table(self.model.static, programs)

    def _is_current(self, signature: Signature) -> bool:
        """Are the inputs whose values count those that they are known to be now?"""
        return tuple(n for n, _, *rest in signature if rest) == self.model.static

    # -- calls ---------------------------------------------------------------------------------

    def settled(self, arrays: tuple[Any, ...]) -> tuple[Executable, list[Array]]:
        given = self._given(arrays)
        try:
            read = self._read(given)
            staged, strings = self._staged(read, given), Strings(read.strings)
            if staged.main is None:
                raise Error(f"{self.name}: nothing of it is compiled: every node is a host step.")
            operands = self._operands(given, strings)
            return staged.main, staged.inputs_of(staged.main, operands, strings)
        except OutOfRange:
            if self._others is None:
                raise
            return self._others.settled(arrays)

    def prepare(self, arrays: tuple[Any, ...]) -> None:
        given = self._given(arrays)
        self._staged(self._read(given), given)

    def compile_whole(self) -> None:
        """Compile what is the same for every call."""
        self._staged(self.model.whole(), ())

    def call(self, arrays: tuple[Any, ...], out: Any) -> Any:
        """Sequences are lists of arrays; an optional that holds nothing is None; strings are
        Python's, and maps are dicts."""
        try:
            return self._called(arrays, out)
        except OutOfRange:
            if self._others is None:
                raise
            return self._others.call(arrays, out)

    def _called(self, arrays: tuple[Any, ...], out: Any) -> Any:
        given = self._given(arrays)
        read = self._read(given)
        strings = Strings(read.strings)
        staged, operands = self._staged(read, given), self._operands(given, strings)
        if read.is_plain or out is not None:
            return self._into(staged, operands, out)
        rest = iter(staged.run(operands, strings))
        results = tuple(filled(o, rest, strings) for o in read.outputs)
        return results[0] if len(read.outputs) == 1 else results

    def _into(self, staged: Staged, operands: list[Array], out: Any) -> Any:
        if not staged.is_one or staged.main is None:
            raise Error(f"{self.name}: `out` is for models whose results are tensors of numbers.")
        return staged.main(*operands, out=out)

    def _operands(self, given: Sequence[Given], strings: Strings) -> list[Array]:
        """What programs take of the inputs; the values of static ones are part of them."""
        reader, static = self.model.reader, set(self.model.static)
        return [
            array
            for name, value in zip(self.model.inputs, given)
            if name not in static
            for array in encoded(value, self._kinds[name], reader, strings, f"input {name!r}")
        ]

    def _given(self, arrays: tuple[Any, ...]) -> list[Given]:
        reader, kinds = self.model.reader, self._kinds
        pairs = zip(self.model.inputs, arrays, strict=True)
        return [taken(a, kinds[n], reader, f"input {n!r}") for n, a in pairs]

    @functools.cached_property
    def _kinds(self) -> dict[str, Any]:
        """The types of inputs."""
        return {i.name: i.type for i in self.model.reader.model.graph.input}

    # -- programs ------------------------------------------------------------------------------

    def _read(self, given: Sequence[Given]) -> Read:
        with self._lock:
            return self.model.specialised(given)

    def _staged(self, read: Read, given: Sequence[Given]) -> Staged:
        """The programs of a reading."""

        def build() -> tuple[Staged, Signature]:
            return Staged.of(read, self._executable), self._signature(given)

        def purpose() -> tuple[str, str]:
            return described(self._signature(given)), self.model.why_static

        with self._lock:
            why = purpose if self.model.is_static else None
            return self._compiled.obtain(id(read), build, why)[0]

    def _signature(self, given: Sequence[Given]) -> Signature:
        """What a program for this call is for."""
        named = {n: a for n, g in zip(self.model.inputs, given) for a in arrays_of(g)}
        return signature_of(named, self.model.static) if self.model.is_static else ()

    def _executable(self, graph: Graph, read: Read) -> Executable:
        named = {n.attrs["name"] for n in graph.params}
        own = {k: v for k, v in read.params.items() if k in named}
        before = (*self.model.decisions, *(s.decision for s in read.steps if self.model.is_static))
        options = self._options and self._options.with_dims(map(str, graph.dynamic_symbols))
        return self._session.executable(
            graph, own, options=options, before=before,
            params={k: v for k, v in self._params.items() if k in named},
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """The programs of one reading of a model, and what the host does between them."""

    read: Read
    stages: tuple[tuple[Stage, Executable | None], ...]
    main: Executable | None
    """The program of most nodes."""

    @classmethod
    def of(cls, read: Read, compiled: Callable[[Graph, Read], Executable]) -> Staged:
        if not read.steps:
            inputs, outputs = tuple(read.graph.inputs), tuple(read.graph.outputs)
            stages = [Stage(read.graph, inputs, outputs, ())]
        else:
            stages = staged(read.graph, read.steps)
        return cls.made_of(
            read, [(s, compiled(s.graph, read) if s.outputs else None) for s in stages]
        )

    @classmethod
    def made_of(cls, read: Read, made: Sequence[tuple[Stage, Executable | None]]) -> Staged:
        found = [(len(s.graph.order()), -i, exe) for i, (s, exe) in enumerate(made) if exe]
        return cls(read, tuple(made), max(found, key=lambda f: f[:2])[2] if found else None)

    def copied(self) -> Staged:
        """The same programs; weights of one are not the other's."""
        return Staged.made_of(self.read, [(s, exe and exe.__copy__()) for s, exe in self.stages])

    @property
    def is_one(self) -> bool:
        """Is it one program, of tensors?"""
        return self.read.is_plain and self.main is not None

    @property
    def programs(self) -> tuple[Executable, ...]:
        return tuple(exe for _, exe in self.stages if exe is not None)

    def run(self, operands: Sequence[Array], strings: Strings) -> list[Array]:
        """The graph's outputs."""
        values = self._values(operands, strings, None)
        return [values[n] for n in self.read.graph.outputs]

    def inputs_of(
        self, program: Executable, operands: Sequence[Array], strings: Strings
    ) -> list[Array]:
        """What one of the programs is given in a call."""
        values = self._values(operands, strings, program)
        return [values[n] for stage, exe in self.stages if exe is program for n in stage.inputs]

    def _values(
        self, operands: Sequence[Array], strings: Strings, last: Executable | None
    ) -> dict[Node, Array]:
        """Every value that a stage reads, up to a program."""
        made = {r for step in self.read.steps for r in step.results}
        given = [n for n in self.read.graph.inputs if n not in made]
        values: dict[Node, Array] = dict(zip(given, operands, strict=True))
        values |= {n: n.attrs["value"].array for n in self._constants()}
        with strings_of_call(strings):
            for stage, exe in self.stages:
                if exe is not None and exe is last:
                    break
                if exe is not None:
                    results = exe(*(values[n] for n in stage.inputs))
                    outputs = results if isinstance(results, tuple) else (results,)
                    values |= dict(zip(stage.outputs, outputs))
                for step in stage.steps:
                    found = step(strings, [values[n] for n in step.operands])
                    values |= dict(zip(step.results, found))
        return values

    def _constants(self) -> list[Node]:
        """Those that are results, or that a host step reads."""
        read = [*self.read.graph.outputs, *(n for s in self.read.steps for n in s.operands)]
        return [n for n in read if n.op == "constant"]
