"""Executables: compiled models that run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlx.backends.base import Backend, Program
from rlx.core.arguments import COUNT, FLAG, FUNCTION, INPUTS, NONE, SECONDS, instance, takes
from rlx.core.arrays import as_array
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.shape import OutOfRange, Shape
from rlx.ops.op import Array
from rlx.plan.largest import largest
from rlx.runtime.compile_record import Record
from rlx.runtime.pending import Background, Pending
from rlx.runtime.weights import Pool, WeightSet, checked

if TYPE_CHECKING:
    import os

    from rlx.backends.timing import CodegenSpan, Timed
    from rlx.cost.calibrate import Numbers, Progress
    from rlx.cost.decision import Decision
    from rlx.cost.gate import GraphIoProfile
    from rlx.explain.measure_decisions import Measurement
    from rlx.explain.report import Report
    from rlx.explain.roofline import KernelTimes
    from rlx.explain.trace import Trace
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Node
    from rlx.passes.fusion.report import FusionReport
    from rlx.pipeline import CompileResult

Inputs: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
"""Arrays by name, or in order."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes an executable needs before it runs: per running call, and once for the weights."""

    arena_bytes: int
    weight_bytes: int
    scratch_bytes: int = 0
    """What the kernels of a call take behind its arena: temporaries, and a part for each thread."""

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + self.weight_bytes + self.scratch_bytes


class Executable:
    """A compiled model. Calls may run concurrently; `set_params` swaps weights between calls."""

    def __init__(
        self,
        result: CompileResult | Record,
        program: Program,
        params: Mapping[str, Any] | None = None,
        *,
        backend: Backend,
        pool: Pool | None = None,
        source: Any = None,
        before: tuple[Decision, ...] = (),
    ) -> None:
        self.before = before
        """What a front end decided before there was a graph to compile."""
        self.source = source
        """What it was compiled from, for compiling it otherwise; None where that is not known."""
        self._result, self._program, self._backend = result, program, backend
        self._pool = Pool() if pool is None else pool
        self._interface = program.interface
        self._lock = threading.Lock()
        self._given: Mapping[str, Array] = {}
        self._weights: WeightSet | None = None
        self._quick: Callable[..., Any] | None = None
        self.fallback: Callable[..., Any] | None = None
        """Runs a call whose sizes are outside of the ranges that this was compiled for, where a
        front end chose them; a size that is invalid for the model is an error there."""
        self._steps = threading.local()
        self._background = Background()
        self._num_inputs = len(self._interface.inputs)
        self._num_outputs = len(self._interface.outputs)
        if params or not self._interface.params:
            self.set_params(params or {})

    # -- what it is ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._interface.name

    @property
    def inputs(self) -> dict[str, Shape]:
        """Name → shape, in the order of positional arguments."""
        return {n.name: n.shape for n in self._interface.inputs}

    @property
    def outputs(self) -> dict[str, Shape]:
        """Name → shape, in order."""
        return dict(self._interface.outputs)

    @property
    def params(self) -> dict[str, Shape]:
        """Name → shape of every weight."""
        return {n.name: n.shape for n in self._interface.params}

    @property
    def missing_params(self) -> tuple[str, ...]:
        """The weights that have no value yet."""
        return tuple(n.name for n in self._interface.params if n.name not in self._given)

    @property
    def result(self) -> CompileResult:
        """The result of the compile; of a cached program, its record is read now."""
        if isinstance(self._result, Record):
            self._result = self._result.result()
        return self._result

    @property
    def lir(self) -> LirModule:
        return self.result.lir

    @property
    def fusion(self) -> FusionReport:
        return self.result.fusion

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.result.decisions

    @property
    def io_profile(self) -> GraphIoProfile:
        """What one call costs in launches, syncs and bytes, as the target counts them."""
        from rlx.cost.profile import profile_graph_io

        return profile_graph_io(self.lir, target=self.lir.target)

    def memory(self, **sizes: int) -> MemoryNeed:
        """The bytes needed, known before running. Named dims need their sizes."""
        bound = self.lir.plan.bind(sizes)
        scratch = self._program.scratch_bytes(bound.sizes, bound.arena_bytes)
        return MemoryNeed(bound.arena_bytes, bound.weight_bytes, scratch)

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
        are reversed and timed, as `measure` does."""
        if measure:
            from rlx.explain.with_measurements import measured_report

            return measured_report(self, inputs, most=most, seconds=seconds, progress=progress)
        from rlx.explain.build import report_of

        return report_of(self.result, self.before, self._backend)

    @takes(inputs=INPUTS, seconds=SECONDS)
    def profile(self, inputs: Inputs, *, seconds: float = 1.0) -> KernelTimes:
        """The time of each kernel on these inputs, and its share of the roofline. The kernels are
        timed in an instrumented build: this one stays as it is."""
        from rlx.explain.roofline import profile

        return profile(self, inputs, seconds=seconds)

    @takes(inputs=INPUTS, calls=COUNT)
    def trace(self, inputs: Inputs, *, calls: int = 3) -> Trace:
        """Compile passes, code generation, and some calls kernel by kernel and thread by thread, as
        a file that Perfetto and Chrome show: `exe.trace(inputs).save("trace.json")`."""
        from rlx.explain.trace import trace

        return trace(self, inputs, calls=calls)

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

        return measure(self, inputs, most=most, seconds=seconds, progress=progress)

    def rebuilt(self, result: CompileResult) -> Executable:
        """Another compile of the same model, with the same weights."""
        from rlx.pipeline import CompileResult

        instance(CompileResult).check("result", result)
        made = Executable(result, self._backend.compile(result.lir), backend=self._backend)
        made.adopt(self._given)
        return made

    @property
    def codegen_spans(self) -> tuple[CodegenSpan, ...]:
        """What its native code took, part by part; nothing where that was kept from before."""
        return self._program.codegen_spans

    @property
    def backend(self) -> Backend:
        """What runs it."""
        return self._backend

    @property
    def threads(self) -> int:
        """How many cores a call may use."""
        return self._program.threads

    def numbers(self, threads: int) -> Numbers | None:
        """What its target was measured to cost on this machine, with so many threads."""
        return self._backend.calibrated(threads)

    def splits(self, sizes: Mapping[str, int]) -> Mapping[Node, bool]:
        """Step → is it split into parallel tasks, at these sizes of named dims?"""
        return self._backend.splits(self.lir, sizes)

    def timed(self) -> tuple[Timed, Any]:
        """The program in a build that keeps times, and its weights."""
        self._ready()
        program = self._backend.timed(self.lir)
        return program, program.prepare(self._given, None)

    @takes(inputs=INPUTS)
    def arrays(self, inputs: Inputs) -> list[Array]:
        """Inputs in order, given by name or in order, as they are run."""
        names = list(self.inputs)
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs))
        if len(given) != len(inputs):
            raise self._error(f"takes {len(names)} inputs ({_listed(names)}), got {len(inputs)}.")
        self._check_names("input", given, names)
        missing = [n for n in names if n not in given]
        if missing:
            raise self._error(f"no value for {_listed(missing)}. Inputs: {_listed(names)}.")
        return [as_array(given[n], f"input {n!r}") for n in names]

    def sizes(self, inputs: Inputs) -> dict[str, int]:
        """The sizes of named dims that these inputs have."""
        return self._interface.bind(self._given, self.arrays(inputs))

    @takes(weights=FLAG)
    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Write a `.rlx` file, which `rlx.load` opens without compiling; with its weights, unless
        they are left out. It holds machine code: load only one that you would run."""
        from rlx.runtime.artefact_file import write

        if weights:
            self._ready()
        record = self._result
        write(path, self._backend, self._program, record, self._given if weights else None)

    def __repr__(self) -> str:
        given = ", ".join(f"{k}: {v}" for k, v in self.inputs.items())
        made = ", ".join(f"{k}: {v}" for k, v in self.outputs.items())
        return f"<Executable {self.name!r} ({given}) -> ({made})>"

    # -- weights -------------------------------------------------------------------------------

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Give weights by name. A subset replaces those and re-runs only what depends on them.

        The new set is built first and swapped in at once: calls in flight keep the old one.
        """
        declared = {n.name: n for n in self._interface.params}
        self._check_names("param", params, declared)
        arrays = {k: checked(declared[k], v) for k, v in params.items()}
        with self._lock:
            self._set({k: self._pool.frozen(k, array) for k, array in arrays.items()})

    def adopt(self, params: Mapping[str, Array]) -> None:
        """Give weights in memory that nobody changes, such as a file's: they are not copied."""
        declared = {n.name: n for n in self._interface.params}
        with self._lock:
            self._set({k: checked(declared[k], v) for k, v in params.items()})

    def _set(self, params: Mapping[str, Array]) -> None:
        given = {**self._given, **params}
        if all(n.name in given for n in self._interface.params):
            try:
                self._weights = self._pool.prepared(self._program, given, self._weights)
            except MemoryError as error:
                raise self._out_of_memory(error) from None
            self._quick = self._program.quick(self._weights.memory)
        self._given = given

    def _ready(self) -> WeightSet:
        if self._weights is None:
            missing = _listed(self.missing_params)
            raise self._error(f"params have no value yet: {missing}. Call set_params.")
        return self._weights

    # -- calls ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on positional inputs: the output, or a tuple of them.

        `out` is an array for the output, or a list with an array or None for each: contiguous,
        and sharing no memory with the inputs or one another.
        """
        try:
            if out is None and self._quick is not None and len(arrays) == self._num_inputs:
                return self._quick(*arrays)
            return self._called(arrays, out)
        except MemoryError as error:
            raise self._out_of_memory(error) from None
        except OutOfRange as error:
            return call_fallback(error, self.fallback, arrays, out)

    def _called(self, arrays: tuple[Any, ...], out: Any) -> Any:
        if self._quick is not None and out is not None and len(arrays) == self._num_inputs:
            outs = _sequence(out)
            if len(outs) == self._num_outputs and all(isinstance(o, np.ndarray) for o in outs):
                return self._quick(*arrays, *outs)
        given, targets = self._given_inputs(arrays), self._targets(out)
        results = self._program.run(self._ready().memory, given, targets)
        return results[0] if len(results) == 1 else tuple(results)

    def submit(self, *arrays: Any) -> Pending:
        """Begin a call on positional inputs, which stay as they are until it is done: `result()` of
        what this gives waits for it, and gives what the call gives. On a GPU the work is enqueued
        when this returns; on others a thread runs such calls one after the other."""
        given = self._given_inputs(arrays)
        try:
            finish = self._program.submit(self._ready().memory, given)
        except MemoryError as error:
            raise self._out_of_memory(error) from None
        except OutOfRange:
            finish = None
        if finish is None:
            return self._background.pending(self, *given)
        return Pending(partial(self._finished, finish))

    def _finished(self, finish: Callable[[], Sequence[Any]]) -> Any:
        """Results need memory of the host's own."""
        try:
            return _given_of(finish())
        except MemoryError as error:
            raise self._out_of_memory(error) from None

    def bind(self, *arrays: Any) -> Any:
        """The call on these inputs, prepared: what it gives is called without arguments and runs
        on memory of the device, where nothing has to be copied, checked or allocated again. Arrays
        that are there already, of any library with DLPack, are read where they are."""
        if not any(map(self._program.takes, arrays)):
            return self._program.bind(self._ready().memory, self.arrays(arrays))
        return self._program.bind(self._ready().memory, self._given_inputs(arrays))

    def _given_inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the device as they are, others as NumPy's."""
        names, takes = self._counted(arrays), self._program.takes
        return [a if takes(a) else as_array(a, f"input {n!r}") for n, a in zip(names, arrays)]

    def _counted(self, arrays: Sequence[Any]) -> list[str]:
        """The names of so many inputs."""
        names = list(self.inputs)
        if len(arrays) != len(names):
            raise self._error(f"takes {len(names)} inputs ({_listed(names)}), got {len(arrays)}.")
        return names

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
        arrays = self.arrays(inputs[0] if named else inputs)
        try:
            made, state = self._program.step(self._ready().memory, arrays)
        except MemoryError as error:
            raise self._out_of_memory(error) from None
        self._steps.state = state
        return _given_of(made)

    def finish(self) -> Any:
        """Run the Epilogue on the state of this thread's last step: the outputs that `step` did
        not give, the output itself where it is one. It changes nothing of that state."""
        state = getattr(self._steps, "state", None)
        if state is None:
            raise self._error("there is nothing to finish in this thread yet. Call step first.")
        try:
            return _given_of(self._program.finish(state))
        except MemoryError as error:
            raise self._out_of_memory(error) from None

    @property
    def step_outputs(self) -> tuple[str, ...]:
        """The names of what `step` gives, in order."""
        return self._names(is_late=False)

    @property
    def finish_outputs(self) -> tuple[str, ...]:
        """The names of what `finish` gives, in order."""
        return self._names(is_late=True)

    def _names(self, *, is_late: bool) -> tuple[str, ...]:
        named, late = enumerate(self._interface.outputs), self._interface.late
        return tuple(name for i, (name, _) in named if (i in late) is is_late)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name: outputs by name."""
        names = [n.name for n in self._interface.inputs]
        self._check_names("input", inputs, names)
        missing = [n for n in names if n not in inputs]
        if missing:
            raise self._error(f"no value for {_listed(missing)}. Inputs: {_listed(names)}.")
        made = self(*(inputs[n] for n in names))
        results = made if isinstance(made, tuple) else (made,)
        return {name: r for (name, _), r in zip(self._interface.outputs, results)}

    def _targets(self, out: Any) -> list[Array | None]:
        count = len(self._interface.outputs)
        if out is None:
            return [None] * count
        given: Any = [out] if isinstance(out, np.ndarray) else out
        if not isinstance(given, list | tuple) or not all(
            a is None or isinstance(a, np.ndarray) for a in given
        ):
            raise self._error(f"out is {out!r}, expected an array, or a list of arrays or None.")
        if len(given) != count:
            raise self._error(f"out has {len(given)} arrays for {count} outputs.")
        return list(given)

    def _check_names(self, kind: str, given: Any, known: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            raise self._error(f"{kind}s are given by name, as a dict, not {given!r}.")
        for name in given:
            if name not in known:
                raise self._error(f"there is no {kind} {name!r}. It has: {_listed(known)}.")

    def _out_of_memory(self, error: MemoryError) -> OutOfMemoryError:
        message = f"{self.name}: a call needs more memory than there is: {error}"
        with contextlib.suppress(Error, ValueError):
            node, size = largest(self.lir.plan)
            message += f" Its largest value is that of {node.label}, {size:,} bytes."
        return OutOfMemoryError(message)

    def _error(self, text: str) -> Error:
        return Error(f"{self.name}: {text}")


def call_fallback(
    error: OutOfRange, fallback: Callable[..., Any] | None, arrays: Sequence[Any], out: Any
) -> Any:
    """The call of sizes outside of the compiled ranges, by what compiles for them; the error where
    there is nothing of the kind."""
    if fallback is None:
        raise error
    return fallback(*arrays, out=out)


def _given_of(made: Sequence[Array | None]) -> Any:
    """Of what was made the one array, or all in order."""
    found = tuple(m for m in made if m is not None)
    return found[0] if len(found) == 1 else found


def _sequence(out: Any) -> tuple[Any, ...]:
    """What is given for the outputs, one by one; nothing where it is no such thing."""
    if isinstance(out, np.ndarray):
        return (out,)
    return tuple(out) if isinstance(out, list | tuple) else ()


def _listed(names: Collection[str], most: int = 8) -> str:
    """The names, or the first of many."""
    shown = ", ".join(list(names)[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
