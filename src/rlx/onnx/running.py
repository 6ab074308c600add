"""Models that are compiled for each value of their static inputs, when they are called."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.cost.decision import Decision
from rlx.errors import Error
from rlx.onnx.call import NeedsShape
from rlx.onnx.model import MAX_KEPT, Model, Read
from rlx.onnx.values import Given, arrays_of, filled
from rlx.op import Array
from rlx.passes.options import FusionOptions
from rlx.runtime.executable import Executable, as_array
from rlx.shape import Shape

if TYPE_CHECKING:
    from rlx.cost.calibrate import Progress
    from rlx.explain.kernels import KernelTimes
    from rlx.explain.measure import Measurement
    from rlx.explain.report import Report
    from rlx.runtime.executable import Inputs
    from rlx.runtime.session import Session
    from rlx.runtime.trace import Trace


def compiled(
    model: Model,
    session: Session,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
) -> Executable | Specialising:
    """The model ready to run; one program where nothing about it is static, and others for sizes
    that it cannot be one program for."""
    if model.is_static:
        return Specialising(model, session, options, params)
    made = session.executable(model, model.params, options=options, params=params)
    if model.is_narrowed:
        made.otherwise = Specialising(model.by_shapes(), session, options, params)
    return made


class Specialising:
    """Stands for an executable where shapes follow from values: a program for each of them."""

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
        self._made: OrderedDict[int, tuple[Read, Executable]] = OrderedDict()

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
        except NeedsShape:
            return None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Why there are several programs, and the decisions of each that was made so far."""
        with self._lock:
            made = [exe for _, exe in self._made.values()]
        return (*self.model.decisions, *(d for exe in made for d in exe.decisions))

    @property
    def programs(self) -> tuple[Executable, ...]:
        """Those that were made and are kept, the one that was used last at the end."""
        with self._lock:
            return tuple(exe for _, exe in self._made.values())

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

    def profile(self, inputs: Inputs, *, seconds: float = 1.0) -> KernelTimes:
        """How long each kernel of the program for these inputs takes."""
        program, arrays = self.settled(inputs)
        return program.profile(arrays, seconds=seconds)

    def trace(self, inputs: Inputs, *, calls: int = 3) -> Trace:
        """What the program for these inputs did to be compiled, and does in some calls."""
        program, arrays = self.settled(inputs)
        return program.trace(arrays, calls=calls)

    def measure(
        self,
        inputs: Inputs,
        *,
        most: int = 40,
        seconds: float = 1.0,
        progress: Progress | None = None,
    ) -> Measurement:
        """The decisions of the program for these inputs by the clock."""
        program, arrays = self.settled(inputs)
        return program.measure(arrays, most=most, seconds=seconds, progress=progress)

    def __repr__(self) -> str:
        given, made = ", ".join(self.model.inputs), ", ".join(self.model.outputs)
        return f"<Specialising {self.name!r} ({given}) -> ({made})>"

    # -- calls ---------------------------------------------------------------------------------

    def specialised(self, *arrays: Any) -> Executable:
        """The program for these inputs."""
        return self._program(self._read(self._given(arrays)))

    def settled(self, inputs: Inputs) -> tuple[Executable, list[Array]]:
        """The program for these inputs, given by name or in order, and what it takes of them."""
        is_named = isinstance(inputs, Mapping)
        given = self._given(self._in_order(inputs) if is_named else tuple(inputs))
        return self._program(self._read(given)), self._operands(given)

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on positional inputs: the output, or a tuple of them. Sequences are lists of arrays;
        an optional that holds nothing is None."""
        given = self._given(arrays)
        read = self._read(given)
        operands = self._operands(given)
        if read.is_flat:
            return self._program(read)(*operands, out=out)
        made = self._program(read)(*operands) if read.graph.outputs else ()
        rest = iter(made if isinstance(made, tuple) else (made,))
        results = tuple(filled(o, rest) for o in read.outputs)
        return results[0] if len(read.outputs) == 1 else results

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

    def _operands(self, given: list[Given]) -> list[Array]:
        """What a program takes of the inputs; the values of static ones are part of it."""
        named = zip(self.model.inputs, given)
        static = set(self.model.static)
        return [array for name, v in named if name not in static for array in arrays_of(v)]

    def _given(self, arrays: tuple[Any, ...]) -> list[Given]:
        names = self.model.inputs
        if len(arrays) != len(names):
            raise Error(f"{self.name}: takes {len(names)} inputs, got {len(arrays)}.")
        plural = self._plural
        return [_as_given(a, f"input {n!r}", n in plural) for n, a in zip(names, arrays)]

    @functools.cached_property
    def _plural(self) -> frozenset[str]:
        """The inputs that are sequences or optionals."""
        infos = self.model.reader.model.graph.input
        return frozenset(i.name for i in infos if not i.type.HasField("tensor_type"))

    def _read(self, given: list[Given]) -> Read:
        with self._lock:
            return self.model.specialised(given)

    def _program(self, read: Read) -> Executable:
        with self._lock:
            key = id(read)
            if key not in self._made:
                exe = self._session.executable(
                    read.graph, read.params, options=self._options, params=self._params,
                    before=self.model.decisions,
                )  # fmt: skip
                self._made[key] = (read, exe)
                if len(self._made) > MAX_KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key][1]


def _as_given(value: Any, what: str, is_plural: bool) -> Given:
    """An input as arrays: in lists where it is a sequence, None where an optional has nothing."""
    if is_plural and isinstance(value, list | tuple):
        values: Sequence[Any] = value
        return [_as_given(v, what, is_plural) for v in values]
    return None if is_plural and value is None else as_array(value, what)
