"""Executables: compiled models that run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from rlx.core.arguments import CALLS, COUNT, FLAG, FUNCTION, INPUTS, NONE, SECONDS, takes
from rlx.core.arrays import as_array
from rlx.core.dim import symbols_of
from rlx.core.errors import Error
from rlx.core.public_calls import public_class
from rlx.core.shape import OutOfRange, Shape
from rlx.ops.op import Array
from rlx.runtime.loaded_program import LoadedProgram, MemoryNeed
from rlx.runtime.named_calls import NamedCalls, given_of, not_ready
from rlx.runtime.pending import Background, Pending
from rlx.runtime.variants import Variants, described_inputs

if TYPE_CHECKING:
    import os

    from rlx.backends.base import Backend
    from rlx.backends.code_facts import CodeFacts
    from rlx.cost.calibrate import Progress
    from rlx.cost.decision import Decision
    from rlx.cost.gate import GraphIoProfile
    from rlx.explain.measure_decisions import Measurement
    from rlx.explain.report import Report
    from rlx.explain.roofline import KernelTimes
    from rlx.explain.trace import Trace
    from rlx.ir.lir import LirModule
    from rlx.passes.fusion.report import FusionReport
    from rlx.pipeline import CompileResult
    from rlx.runtime.state_session import StateSession

Inputs: TypeAlias = "Mapping[str, Any] | Sequence[Any] | Any"
"""Arrays by name, or in order, or the one that there is."""


@public_class
class Executable(NamedCalls):
    """A compiled model: one program, or several by the sizes and values of inputs that they are
    for. Calls may run concurrently; `set_params` swaps weights between calls."""

    def __init__(
        self,
        loaded: LoadedProgram | None,
        variants: Variants | None = None,
        *,
        source: Any = None,
        before: tuple[Decision, ...] = (),
    ) -> None:
        held = variants if loaded is None else loaded
        if held is None:
            raise Error("an executable has a program. rlx.compile and rlx.load make them.")
        self._held: LoadedProgram | Variants = held
        self.before = before
        """What a front end decided before there was a graph to compile."""
        self.source = source
        """What it was compiled from, for compiling it otherwise; None where that is not known."""
        self._loaded, self._variants = loaded, variants
        self._quick: Callable[..., Any] = not_ready
        self._num_quick = -1
        """How many inputs the native function of a call takes; -1 where there is none."""
        self._steps = threading.local()
        self._background = Background()
        self._followers: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = []
        self._take_quick()

    def _take_quick(self) -> None:
        if self._loaded is not None and not self._loaded.interface.states:
            self._quick, self._num_quick = self._loaded.quick, self._loaded.num_quick
        for held, function in self._followers:
            if (value := held()) is not None:
                function(value)

    def follow(self, value: Any, function: Callable[[Any], None]) -> None:
        """Call the function with the value, as long as it lives, when there are other weights: a
        native function of a call has those of when it was made."""
        self._followers = [f for f in self._followers if f[0]() is not None]
        self._followers.append((weakref.ref(value), function))

    @property
    def native(self) -> LoadedProgram | None:
        """The program, where one serves all calls."""
        return self._loaded if self._variants is None else None

    @property
    def loaded(self) -> LoadedProgram:
        """The program itself, for what measures, saves and serves it; where there is none for all
        calls, the one that was used last. Its interface may change with every release."""
        held = self._held
        return held if isinstance(held, LoadedProgram) else held.last().loaded

    # -- what it is ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._held.name

    @property
    def inputs(self) -> dict[str, Shape | None]:
        """Name → shape, in the order of positional arguments; None where a model states none."""
        return dict(self._held.inputs)

    @property
    def outputs(self) -> dict[str, Shape | None]:
        """Name → shape, in order; None where a model states none."""
        return dict(self._held.outputs)

    @property
    def params(self) -> dict[str, Shape]:
        """Name → shape of every weight; of several programs those that there are so far."""
        return {n: s for p in self._each() for n, s in p.params.items()}

    @property
    def missing_params(self) -> tuple[str, ...]:
        """The weights that have no value yet."""
        return () if self._loaded is None else self._loaded.missing_params

    @property
    def programs(self) -> tuple[Executable, ...]:
        """The programs, each as an executable; those for some sizes or values are made when a call
        or `warmup` needs them."""
        more = self._variants.programs if self._variants else ()
        return more if self._loaded is None else (self, *more)

    @property
    def static(self) -> tuple[str, ...]:
        """The inputs whose values a program is compiled for."""
        return self._held.static

    def _each(self) -> list[LoadedProgram]:
        return [exe.loaded for exe in self.programs]

    @property
    def result(self) -> CompileResult:
        """What the compile gave; of a cached program, its record is read now."""
        return self.loaded.result

    @property
    def lir(self) -> LirModule:
        """The planned module that it runs."""
        return self.result.lir

    @property
    def fusion(self) -> FusionReport:
        """What was fused, and what was not."""
        return self.result.fusion

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided; of several programs also why there are several."""
        return self._held.decisions

    @property
    def io_profile(self) -> GraphIoProfile:
        """What one call costs in launches, syncs and bytes, as the target counts them."""
        from rlx.cost.profile import profile_graph_io

        return profile_graph_io(self.lir, target=self.lir.target)

    def memory(self, **sizes: int) -> MemoryNeed:
        """The bytes needed, known before running. Named dims need their sizes."""
        stated = symbols_of(d for s in self.inputs.values() if s is not None for d in s.dims)
        own = () if self._loaded is None else self.lir.dynamic_symbols
        self._check_names("named dim", sizes, dict.fromkeys(d.name for d in (*own, *stated)))
        return self._held.memory(sizes)

    def code_facts(self, **sizes: int) -> CodeFacts | None:
        """Code, arithmetic and memory of a call as the target's compiler counts them, per device;
        None where it does not say. Named dims without a size have a usual one."""
        usual = {**self.lir.plan.representative, **self.result.options.sizes}
        return self.loaded.program.code_facts({**usual, **sizes})

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
        """Every decision: what, where, verdict, why, and the predicted saving. Print it, or take
        its JSON. With `measure`, kernels are timed on `inputs`, or on random ones, and decisions
        are reversed and timed, as `measure` does. Of several programs the report is that of the
        one for `inputs`, or of the one that was used last."""
        how: dict[str, Any] = {"most": most, "seconds": seconds, "progress": progress}
        program, arrays = (self._last(), None) if inputs is None else self.settled(inputs)
        if program is not self:
            return program.explain(arrays, measure=measure, **how)
        if measure:
            from rlx.explain.with_measurements import measured_report

            return measured_report(self, inputs, **how)
        from rlx.explain.build import report_of

        sizes = None if inputs is None else self.sizes(inputs)
        code = self.code_facts(**sizes or {}) if self.backend.is_compile_only else None
        compiled = self.result, self.before, self.backend, code
        return report_of(*compiled, sizes=sizes, model=self.source)

    @takes(inputs=INPUTS, seconds=SECONDS)
    def profile(self, inputs: Inputs, *, seconds: float = 1.0) -> KernelTimes:
        """The time of each kernel on these inputs, and its share of the roofline. The kernels are
        timed in an instrumented build: this one stays as it is."""
        from rlx.explain.roofline import profile

        program, arrays = self.settled(inputs)
        return profile(program.loaded, program.arrays(arrays), seconds=seconds)

    @takes(inputs=INPUTS, calls=COUNT)
    def trace(self, inputs: Inputs, *, calls: int = 3) -> Trace:
        """Compile passes, code generation, and some calls kernel by kernel and thread by thread, as
        a file that Perfetto and Chrome show: `exe.trace(inputs).save("trace.json")`."""
        from rlx.explain.trace import trace

        program, arrays = self.settled(inputs)
        return trace(program.loaded, program.arrays(arrays), calls=calls)

    @takes(inputs=INPUTS, most=COUNT, seconds=SECONDS, progress=NONE | FUNCTION)
    def measure(
        self,
        inputs: Inputs,
        *,
        most: int = 40,
        seconds: float = 1.0,
        progress: Progress | None = None,
    ) -> Measurement:
        """Reverse decisions, at most `most`, compile each time, and time both builds in interleaved
        rounds for `seconds`: the measured gain of every verdict, and the predicted one."""
        from rlx.explain.measure_decisions import measure

        program, arrays = self.settled(inputs)
        return measure(program, arrays, most=most, seconds=seconds, progress=progress)

    @property
    def backend(self) -> Backend:
        """What runs it."""
        return self._held.backend

    @property
    def threads(self) -> int:
        """How many cores a call may use."""
        return self.loaded.program.threads

    @takes(inputs=INPUTS)
    def arrays(self, inputs: Inputs) -> list[Array]:
        """Inputs in order, given by name or in order, as they are run."""
        if self._loaded is not None and self._loaded.interface.states:
            raise self._loaded.no_session()
        pairs = zip(self.inputs.items(), self._ordered(inputs))
        return [as_array(a, f"input {n!r}", None if s is None else s.dtype) for (n, s), a in pairs]

    def sizes(self, inputs: Inputs) -> dict[str, int]:
        """The sizes of named dims that these inputs have."""
        program, arrays = self.settled(inputs)
        return program.loaded.sizes(arrays)

    # -- several programs ----------------------------------------------------------------------

    @takes(inputs=INPUTS)
    def settled(self, inputs: Inputs) -> tuple[Executable, list[Array]]:
        """The program that runs these inputs, given by name or in order, and what it takes of
        them; it is compiled where it is not there."""
        given = self._ordered(inputs)
        if self._variants is None:
            return self, self.arrays(given)
        if self._loaded is not None:
            arrays = self.arrays(given)
            if self._loaded.is_in_range(arrays):
                return self, arrays
        return self._variants.settled(given)

    @takes(calls=CALLS)
    def warmup(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Compile now what calls will need: for each a dict of the shapes of inputs, of arrays
        where values count, or of the sizes of named dims, such as
        `exe.warmup([{"height": 320, "width": 640}, {"images": (1, 3, 31, 31)}])`. Where one program
        serves all sizes, they are checked, and nothing else is to be done."""
        for call in calls:
            given = described_inputs(self.name, self.inputs, call)
            try:
                if self._loaded is not None:
                    self._loaded.check(self.arrays(given))
                    continue
            except OutOfRange:
                if self._variants is None:
                    raise
            assert self._variants is not None
            self._variants.prepare(given)

    def _last(self) -> Executable:
        """Itself, or the program that was used last."""
        return self if isinstance(self._held, LoadedProgram) else self._held.last()

    @takes(weights=FLAG)
    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Write a `.rlx` file, which `rlx.load` opens without compiling; with its weights, unless
        they are left out. It holds machine code: load only one that you would run."""
        from rlx.runtime.artefact_file import write

        write(path, self._loaded, self._variants, weights=weights)

    def __copy__(self) -> Executable:
        """The same programs and weights; `set_params` of one is not the other's."""
        loaded = None if self._loaded is None else self._loaded.copied()
        variants = None if self._variants is None else self._variants.copied()
        return Executable(loaded, variants, source=self.source, before=self.before)

    def __deepcopy__(self, memo: Any) -> Executable:
        """Nobody changes a program or weights in memory: they are shared."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what `save` writes, machine code and weights: unpickle only what you trust."""
        from rlx.runtime.artefact_file import contents, unpickled

        data = b"".join(contents(self._loaded, self._variants, weights=True))
        return unpickled, (data, self.backend.asked_threads)

    def __repr__(self) -> str:
        given = ", ".join(f"{k}: {v}" for k, v in self.inputs.items())
        made = ", ".join(f"{k}: {v}" for k, v in self.outputs.items())
        return f"<Executable {self.name!r} ({given}) -> ({made})>"

    def _repr_html_(self) -> str | None:
        """For notebooks; before there is a program, its text."""
        from rlx.explain.notebook import executable_html

        return executable_html(self) if self.programs else None

    # -- weights -------------------------------------------------------------------------------

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Give weights by name. A subset replaces those and re-runs only what depends on them.

        The new set is built first and swapped in at once: calls in flight keep the old one.
        """
        if self._loaded is not None:
            self._check_names("param", params, self._loaded.params)
            self._loaded.set_params(params)
            self._take_quick()
        if self._variants is not None:
            known = [n for n in params if self._variants.has_param(n)]
            if self._loaded is None:
                self._check_names("param", params, known or self.params)
            self._variants.set_params(params)

    def get_params(self) -> dict[str, Array]:
        """The weights by name, as far as they have values; arrays that cannot be written."""
        return {n: p.given[n] for p in self._each() for n in p.params if n in p.given}

    def _adopt(self, params: Mapping[str, Array]) -> None:
        """Give weights in memory that nobody changes, such as a file's: they are not copied."""
        self.loaded.adopt(params)
        self._take_quick()

    # -- calls ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on inputs in order or by keyword, `exe(x, y)` or `exe(x=x, y=y)`: the output, or a
        tuple of them.

        `out=` is an array for the output, or a list with an array or None for each, or a dict by
        name: contiguous, and sharing no memory with the inputs or one another.
        """
        if named or len(arrays) != self._num_quick:
            return self._general(arrays, named)
        try:
            return self._quick(*arrays)
        except MemoryError as error:
            raise self.loaded.out_of_memory(error, arrays) from None
        except OutOfRange as error:
            return self._elsewhere(arrays, None, error)

    def _general(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> Any:
        out = self._outs(named.pop("out", None))
        given = arrays if not named and arrays else self._in_order(arrays, named)
        if self._loaded is None:
            return self._elsewhere(self._counted(given), out, None)
        try:
            return self._loaded.call(given, out)
        except MemoryError as error:
            raise self._loaded.out_of_memory(error, given) from None
        except OutOfRange as error:
            return self._elsewhere(given, out, error)

    def _elsewhere(self, given: tuple[Any, ...], out: Any, error: OutOfRange | None) -> Any:
        """The call by a program for its sizes; a size that no program is for is an error."""
        if self._variants is None:
            assert error is not None
            raise error
        return self._variants.call(given, out)

    def submit(self, *arrays: Any, **named: Any) -> Pending:
        """Begin a call on inputs in order or by keyword, which stay as they are until it is done:
        `result()` of what this gives waits for it, and gives what the call gives. On a GPU the work
        is enqueued when this returns; on others a thread runs such calls one after the other."""
        ordered = self._in_order(arrays, named) if named else self._counted(arrays)
        if self._loaded is None:
            return self._background.pending(self, *ordered)
        given = self._loaded.given_inputs(ordered)
        try:
            finish = self._loaded.program.submit(self._loaded.ready().memory, given)
        except MemoryError as error:
            raise self._loaded.out_of_memory(error, given) from None
        except OutOfRange:
            finish = None
        if finish is None:
            return self._background.pending(self, *given)
        return Pending(partial(self._finished, finish))

    def _finished(self, finish: Callable[[], Sequence[Any]]) -> Any:
        """Results need memory of the host's own."""
        try:
            return given_of(finish())
        except MemoryError as error:
            raise self.loaded.out_of_memory(error) from None

    def bind(self, *given: Any, **named: Any) -> Any:
        """The call on these inputs, prepared: what it gives is called without arguments and runs
        on memory of the device, where nothing has to be copied, checked or allocated again. Arrays
        that are there already, of any library with DLPack, are read where they are."""
        arrays = self._in_order(given, named) if named else self._counted(given)
        if self._loaded is not None and self._variants is None:
            return self._loaded.bind(arrays)
        program, taken = self.settled(arrays)
        return program.loaded.bind(taken)

    def session(self, *, history: int | None = None, **sizes: int) -> StateSession:
        """What calls keep: the states of the program, at these sizes of their named dims. Call it
        as an executable. The last `history` calls can be undone."""
        from rlx.runtime.state_session import open_session

        return open_session(self.loaded, sizes, history)

    # -- phases --------------------------------------------------------------------------------

    def prologue(self, params: Mapping[str, Any] | None = None) -> None:
        """Give weights by name and run the Prologue: what depends on those that changed."""
        self.set_params(params or {})

    def step(self, *inputs: Any) -> Any:
        """Run SteadyState alone, on inputs in order or in one dict by name: the outputs that are
        known before the Epilogue, the output itself where it is one, () where there are none.

        The state it leaves is this thread's until its next step; `finish` gives the other outputs.
        """
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        exe, arrays = self.settled(inputs[0] if named else inputs)
        made, state = exe.loaded.step(arrays)
        self._steps.last = exe.loaded, state
        return given_of(made)

    def finish(self) -> Any:
        """Run the Epilogue on the state of this thread's last step: the outputs that `step` did
        not give, the output itself where it is one. It changes nothing of that state."""
        last: tuple[LoadedProgram, Any] | None = getattr(self._steps, "last", None)
        if last is None:
            raise self._error("there is nothing to finish in this thread yet. Call step first.")
        loaded, state = last
        return given_of(loaded.finish(state))

    @property
    def step_outputs(self) -> tuple[str, ...]:
        """The names of what `step` gives, in order."""
        return self.loaded.interface.names(is_late=False)

    @property
    def finish_outputs(self) -> tuple[str, ...]:
        """The names of what `finish` gives, in order."""
        return self.loaded.interface.names(is_late=True)


def adopt(exe: Executable, params: Mapping[str, Array]) -> None:
    """Give weights in memory that nobody changes, such as a file's: they are not copied."""
    exe._adopt(params)  # pyright: ignore[reportPrivateUsage]
