"""Specialisation: models that are compiled per call, for the values of their static inputs."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.core.arguments import COUNT, FLAG, FUNCTION, INPUTS, NONE, SECONDS, takes
from rlx.core.errors import Error, UnsupportedError
from rlx.core.shape import OutOfRange, Shape
from rlx.cost.decision import Decision
from rlx.frontends.onnx.call_values import encoded, taken
from rlx.frontends.onnx.host_steps import Stage, staged
from rlx.frontends.onnx.model import MAX_KEPT, Model, Read
from rlx.frontends.onnx.strings import Strings, strings_of_call
from rlx.frontends.onnx.values import Given, filled
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.runtime.executable import Executable, call_fallback

if TYPE_CHECKING:
    from rlx.cost.calibrate import Progress
    from rlx.explain.measure_decisions import Measurement
    from rlx.explain.report import Report
    from rlx.explain.roofline import KernelTimes
    from rlx.explain.trace import Trace
    from rlx.runtime.executable import Inputs
    from rlx.runtime.session import Session


def compiled(
    model: Model,
    session: Session,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
) -> Executable | Specialising:
    """The model ready to run; one program where nothing about it is static, and others for sizes
    that it cannot be one program for."""
    if not model.is_plain:
        hosted = Specialising(model, session, options, params)
        if model.is_narrowed and not model.is_static:
            hosted.fallback = Specialising(model.by_shapes(), session, options, params)
        hosted.prepare()
        return hosted
    made = session.executable(model, model.params, options=options, params=params)
    if model.is_narrowed:
        made.fallback = Specialising(model.by_shapes(), session, options, params)
    return made


class Specialising:
    """An executable of a model whose shapes depend on values: a program for each of them."""

    def __init__(
        self,
        model: Model,
        session: Session,
        options: FusionOptions | None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self._session, self._options = model, session, options
        self._params = dict(params or {})
        self._lock = threading.Lock()
        self._made: OrderedDict[int, Staged] = OrderedDict()
        self.fallback: Specialising | None = None
        """Runs a call whose sizes are outside of those that the programs serve."""

    # -- what it is ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def static(self) -> tuple[str, ...]:
        """The inputs whose values a program is compiled for."""
        return self.model.static

    @property
    def inputs(self) -> dict[str, Shape | None]:
        """Name → shape, in the order of positional arguments; None where the model says none."""
        by_name = {i.name: i for i in self.model.reader.model.graph.input}
        return {n: self._shape(by_name[n]) for n in self.model.inputs}

    @property
    def outputs(self) -> dict[str, Shape | None]:
        """Name → shape, in order; None where the model says none."""
        infos = self.model.reader.model.graph.output
        return {n: self._shape(i) for n, i in zip(self.model.outputs, infos, strict=True)}

    def _shape(self, info: Any) -> Shape | None:
        try:
            return self.model.reader.shape_of(info)
        except UnsupportedError:
            return None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Why there are several programs, and the decisions of each that was made so far."""
        return (*self.model.decisions, *(d for exe in self.programs for d in exe.decisions))

    @property
    def programs(self) -> tuple[Executable, ...]:
        """Those that are cached, the one that was used last at the end."""
        with self._lock:
            return tuple(exe for staged in self._made.values() for exe in staged.programs)

    def prepare(self) -> None:
        """Compile now what is the same for every call."""
        if not self.model.is_static:
            self._staged(self.model.whole())

    @takes(
        inputs=NONE | INPUTS, measure=FLAG, most=COUNT, seconds=SECONDS, progress=NONE | FUNCTION
    )
    def explain(
        self,
        inputs: Inputs | None = None,
        *,
        measure: bool = False,
        most: int = 40,
        seconds: float = 1.0,
        progress: Progress | None = None,
    ) -> Report:
        """The report of the program for `inputs`, or of the one that was used last, as
        `Executable.explain` gives it; it says why there are several."""
        how: dict[str, Any] = {"most": most, "seconds": seconds, "progress": progress}
        if inputs is not None:
            program, arrays = self.settled(inputs)
            return program.explain(arrays, measure=measure, **how)
        if not self.programs:
            raise Error(
                f"{self.name}: it is compiled when it is called, and it was not yet. Call it, or "
                "say for which inputs: explain(inputs)."
            )
        return self.programs[-1].explain(measure=measure, **how)

    @takes(inputs=INPUTS, seconds=SECONDS)
    def profile(self, inputs: Inputs, *, seconds: float = 1.0) -> KernelTimes:
        """How long each kernel of the program for these inputs takes."""
        program, arrays = self.settled(inputs)
        return program.profile(arrays, seconds=seconds)

    @takes(inputs=INPUTS, calls=COUNT)
    def trace(self, inputs: Inputs, *, calls: int = 3) -> Trace:
        """What the program for these inputs did to be compiled, and does in some calls."""
        program, arrays = self.settled(inputs)
        return program.trace(arrays, calls=calls)

    @takes(inputs=INPUTS, most=COUNT, seconds=SECONDS, progress=NONE | FUNCTION)
    def measure(
        self,
        inputs: Inputs,
        *,
        most: int = 40,
        seconds: float = 1.0,
        progress: Progress | None = None,
    ) -> Measurement:
        """The measured decisions of the program for these inputs."""
        program, arrays = self.settled(inputs)
        return program.measure(arrays, most=most, seconds=seconds, progress=progress)

    def __repr__(self) -> str:
        given, made = ", ".join(self.model.inputs), ", ".join(self.model.outputs)
        return f"<Specialising {self.name!r} ({given}) -> ({made})>"

    # -- calls ---------------------------------------------------------------------------------

    def specialised(self, *arrays: Any) -> Executable:
        """The program for these inputs; the largest of several."""
        return self._main(self._staged(self._read(self._given(arrays))))

    def settled(self, inputs: Inputs) -> tuple[Executable, list[Array]]:
        """The program for these inputs, given by name or in order, and what it takes of them; the
        largest of several."""
        is_named = isinstance(inputs, Mapping)
        given = self._given(self._in_order(inputs) if is_named else tuple(inputs))
        read = self._read(given)
        staged, strings = self._staged(read), Strings(read.strings)
        program = self._main(staged)
        return program, staged.inputs_of(program, self._operands(given, strings), strings)

    def _main(self, staged: Staged) -> Executable:
        if staged.main is None:
            raise Error(f"{self.name}: nothing of it is compiled: every node is a host step.")
        return staged.main

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on positional inputs: the output, or a tuple of them. Sequences are lists of arrays;
        an optional that holds nothing is None; strings are Python's, and maps are dicts."""
        try:
            return self._called(arrays, out)
        except OutOfRange as error:
            return call_fallback(error, self.fallback, arrays, out)

    def _called(self, arrays: tuple[Any, ...], out: Any) -> Any:
        given = self._given(arrays)
        read = self._read(given)
        strings = Strings(read.strings)
        staged, operands = self._staged(read), self._operands(given, strings)
        if read.is_plain or out is not None:
            return self._into(staged, operands, out)
        rest = iter(staged.run(operands, strings))
        results = tuple(filled(o, rest, strings) for o in read.outputs)
        return results[0] if len(read.outputs) == 1 else results

    def _into(self, staged: Staged, operands: list[Array], out: Any) -> Any:
        if not staged.read.is_plain or staged.main is None:
            raise Error(f"{self.name}: `out` is for models whose results are tensors of numbers.")
        return staged.main(*operands, out=out)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name: outputs by name."""
        made = self(*self._in_order(inputs))
        return dict(zip(self.model.outputs, made if isinstance(made, tuple) else (made,)))

    def _in_order(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        for name in (*inputs, *self.model.inputs):
            if name not in inputs or name not in self.model.inputs:
                known = ", ".join(self.model.inputs)
                raise Error(f"{self.name}: takes {known}; {name!r} is missing or unknown.")
        return tuple(inputs[n] for n in self.model.inputs)

    def _operands(self, given: list[Given], strings: Strings) -> list[Array]:
        """What programs take of the inputs; the values of static ones are part of them."""
        reader, static = self.model.reader, set(self.model.static)
        return [
            array
            for name, value in zip(self.model.inputs, given)
            if name not in static
            for array in encoded(value, self._kinds[name], reader, strings, f"input {name!r}")
        ]

    def _given(self, arrays: tuple[Any, ...]) -> list[Given]:
        names = self.model.inputs
        if len(arrays) != len(names):
            raise Error(f"{self.name}: takes {len(names)} inputs, got {len(arrays)}.")
        reader = self.model.reader
        return [
            taken(a, self._kinds[n], reader, f"input {n!r}") for n, a in zip(names, arrays)
        ]  # fmt: skip

    @functools.cached_property
    def _kinds(self) -> dict[str, Any]:
        """The types of inputs."""
        return {i.name: i.type for i in self.model.reader.model.graph.input}

    def _read(self, given: list[Given]) -> Read:
        with self._lock:
            return self.model.specialised(given)

    def _staged(self, read: Read) -> Staged:
        with self._lock:
            key = id(read)
            if key not in self._made:
                self._made[key] = Staged.of(read, self._executable)
                if len(self._made) > MAX_KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]

    def _executable(self, graph: Graph, read: Read) -> Executable:
        named = {n.attrs["name"] for n in graph.params}
        own = {k: v for k, v in read.params.items() if k in named}
        before = (*self.model.decisions, *(s.decision for s in read.steps if self.model.is_static))
        return self._session.executable(
            graph, own, options=self._options, before=before,
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
        made = tuple((s, compiled(s.graph, read) if s.outputs else None) for s in stages)
        found = [(len(s.graph.order()), -i, exe) for i, (s, exe) in enumerate(made) if exe]
        return cls(read, made, max(found, key=lambda f: f[:2])[2] if found else None)

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
