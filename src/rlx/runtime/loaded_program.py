"""A loaded program: its compile record, its weights, and the calls that its backend runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.base import Backend, Program
from rlx.core.arrays import as_array, stand
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.params import Params
from rlx.core.public_calls import public_class
from rlx.core.shape import OutOfRange, Shape
from rlx.ops.op import Array
from rlx.plan.largest import largest
from rlx.runtime.compile_record import Record
from rlx.runtime.named_calls import listed, not_ready, sequence, wrong_count
from rlx.runtime.weights import Pool, WeightSet, checked, prepared

if TYPE_CHECKING:
    from rlx.backends.timing import Timed
    from rlx.core.exchange import ExchangeCall
    from rlx.cost.decision import Decision
    from rlx.pipeline import CompileResult


@public_class
@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes an executable needs before it runs: per running call, and once for the weights."""

    arena_bytes: int
    weight_bytes: int
    scratch_bytes: int = 0
    """What the kernels of a call take behind its arena: temporaries, and a part for each thread."""
    state_bytes: int = 0
    """What a session keeps."""

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.arena_bytes + self.weight_bytes + self.scratch_bytes + self.state_bytes


class LoadedProgram:
    """A program of a backend, and its weights. Calls may run concurrently."""

    static: tuple[str, ...] = ()
    """No input's value counts."""

    def __init__(
        self,
        result: CompileResult | Record,
        program: Program,
        backend: Backend,
        params: Mapping[str, Any] | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.record, self.program, self.backend = result, program, backend
        self.pool = Pool() if pool is None else pool
        self.interface = program.interface
        self.given = Params({})
        self._lock = threading.Lock()
        self._weights: WeightSet | None = None
        self.quick: Callable[..., Any] = not_ready
        self.num_quick = -1
        """How many inputs the native function of a call takes; -1 where there is none yet."""
        if params or not self.interface.params:
            self.set_params(params or {})

    def copied(self) -> LoadedProgram:
        """The same program and weights; new weights of one are not the other's."""
        made = LoadedProgram(self.record, self.program, self.backend, pool=self.pool)
        made.adopt(self.given)
        return made

    def compiled(self, result: CompileResult) -> LoadedProgram:
        """Another compile of the same model, with the same weights."""
        made = LoadedProgram(result, self.backend.compile(result.lir), self.backend)
        made.adopt(self.given)
        return made

    def timed(self) -> tuple[Timed, Any]:
        """The program in a build that keeps times, and its weights."""
        self.ready()
        program = self.backend.timed(self.result.lir)
        return program, prepared(program, self.given)

    @property
    def result(self) -> CompileResult:
        """What the compile gave; of a cached program, its record is read now."""
        if isinstance(self.record, Record):
            self.record = self.record.result()
        return self.record

    @property
    def name(self) -> str:
        return self.interface.name

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.result.decisions

    @property
    def outputs(self) -> dict[str, Shape]:
        return dict(self.interface.outputs)

    @property
    def inputs(self) -> dict[str, Shape]:
        return {n.name: n.shape for n in self.interface.inputs if n.op == "input"}

    @property
    def params(self) -> dict[str, Shape]:
        return {n.name: n.shape for n in self.interface.params}

    @property
    def missing_params(self) -> tuple[str, ...]:
        return tuple(n.name for n in self.interface.params if n.name not in self.given)

    def memory(self, sizes: Mapping[str, int]) -> MemoryNeed:
        bound = self.result.lir.plan.bind(sizes)
        scratch = self.program.scratch_bytes(bound.sizes, bound.arena_bytes)
        return MemoryNeed(bound.arena_bytes, bound.weight_bytes, scratch, bound.state_bytes)

    def sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """The sizes of named dims that these inputs, and states behind them, have."""
        stands = [stand(a) if hasattr(a, "shape") else a for a in arrays]
        return self.interface.bind(self.given, stands)

    def is_in_range(self, arrays: Sequence[Array]) -> bool:
        """Was it compiled for sizes such as these?"""
        try:
            self.sizes(arrays)
        except OutOfRange:
            return False
        except Error:  # what is wrong with them the call says
            return True
        return True

    def check(self, arrays: Sequence[Array]) -> None:
        """Are these inputs of the declared dtypes, and of dims that it was compiled for?"""
        self.interface.checked(arrays, self.sizes(arrays))

    # -- weights -------------------------------------------------------------------------------

    def set_params(self, params: Mapping[str, Any]) -> None:
        """The new set is built first and swapped in at once: calls in flight keep the old one."""
        declared = {n.name: n for n in self.interface.params}
        arrays = {k: checked(declared[k], v) for k, v in params.items()}
        with self._lock:
            self._set(Params.of({k: self.pool.frozen(k, array) for k, array in arrays.items()}))

    def adopt(self, params: Mapping[str, Array]) -> None:
        """Give weights in memory that nobody changes, such as a file's: they are not copied. Those
        that are read when they are asked for are as declared: their readers see to it."""
        declared = {n.name: n for n in self.interface.params}
        if not isinstance(params, Params):
            params = Params.of({k: checked(declared[k], v) for k, v in params.items()})
        with self._lock:
            self._set(params)

    def _set(self, params: Params) -> None:
        given = self.given | params
        if all(n.name in given for n in self.interface.params):
            try:
                self._weights = self.pool.prepared(self.program, given, self._weights)
            except MemoryError as error:
                raise self.out_of_memory(error) from None
            quick = self.program.quick(self._weights.memory)
            if quick is not None:
                self.quick, self.num_quick = quick, len(self.interface.inputs)
        self.given = given

    def exchange(self, call: ExchangeCall, slow: Callable[..., Any]) -> Callable[..., Any] | None:
        """A native function of objects of another library, with the weights of now."""
        held = self._weights
        return None if held is None else self.program.exchange(held.memory, call, slow)

    def ready(self) -> WeightSet:
        if self._weights is None:
            missing = listed(self.missing_params)
            raise self._error(f"params have no value yet: {missing}. Call set_params.")
        return self._weights

    # -- calls ---------------------------------------------------------------------------------

    def call(self, arrays: Sequence[Any], out: Any) -> Any:
        """The output, or a tuple of them."""
        if len(arrays) == self.num_quick:
            outs = sequence(out)
            is_whole = len(outs) == len(self.interface.outputs)
            if out is None or (is_whole and all(isinstance(o, np.ndarray) for o in outs)):
                return self.quick(*arrays, *outs)
        given, targets = self._held(arrays), self._targets(out)
        results = self.program.run(self.ready().memory, given, targets)
        return results[0] if len(results) == 1 else tuple(results)

    def step(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """A call up to the Epilogue: all outputs, None for those that come at the end, and what
        `finish` goes on with. States of a session stand behind the inputs, as in `call`."""
        given = self._held(arrays)
        try:
            return self.program.step(self.ready().memory, given)
        except MemoryError as error:
            raise self.out_of_memory(error, given) from None

    def finish(self, state: Any) -> list[Any]:
        """The Epilogue of a step: all outputs, None for those that the step gave."""
        try:
            return self.program.finish(state)
        except MemoryError as error:
            raise self.out_of_memory(error) from None

    def bind(self, arrays: Sequence[Any]) -> Any:
        """The call on these inputs, prepared to be run many times."""
        given = self.given_inputs(arrays)
        try:
            return self.program.bind(self.ready().memory, given)
        except MemoryError as error:
            raise self.out_of_memory(error, given) from None

    def _held(self, arrays: Sequence[Any]) -> list[Any]:
        """Inputs, and the states of a session behind them."""
        count, held = len(self.inputs), len(self.interface.states)
        if not held or len(arrays) != count + held:
            return self.given_inputs(arrays)
        return [*self._taken(arrays[:count]), *arrays[count:]]

    def no_session(self) -> Error:
        """The error of a call that has no states to read and to write."""
        states = self.interface.states
        dims = dict.fromkeys(d.name for n in states for d in n.shape.dynamic_symbols)
        sizes = ", ".join(f"{name}=…" for name in dims)
        held = listed([n.name for n in states])
        return self._error(
            f"it keeps states from call to call ({held}), which a session holds. Open one, and "
            f"call that: session = exe.session({sizes})."
        )

    def given_inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the device as they are, others as NumPy's; the states of a session are not
        among them."""
        if self.interface.states:
            raise self.no_session()
        return self._taken(arrays)

    def _taken(self, arrays: Sequence[Any]) -> list[Any]:
        given, takes = zip(self.inputs.items(), self.counted(arrays)), self.program.takes
        return [a if takes(a) else as_array(a, f"input {n!r}", s.dtype) for (n, s), a in given]

    def counted(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """So many as there are inputs."""
        names = list(self.inputs)
        if len(arrays) != len(names):
            raise self._error(wrong_count(names, arrays))
        return arrays

    def _targets(self, out: Any) -> list[Array | None]:
        count = len(self.interface.outputs)
        if out is None:
            return [None] * count
        given: Any = [out] if _is_array(out) else out
        if not isinstance(given, list | tuple) or not all(a is None or _is_array(a) for a in given):
            raise self._error(f"out is {out!r}, expected an array, or a list of arrays or None.")
        if len(given) != count:
            raise self._error(f"out has {len(given)} arrays for {count} outputs.")
        return [None if a is None else as_array(a, "out") for a in given]

    def _error(self, text: str) -> Error:
        return Error(f"{self.name}: {text}")

    def out_of_memory(self, error: MemoryError, inputs: Sequence[Any] = ()) -> OutOfMemoryError:
        message = f"{self.name}: a call needs more memory than there is: {error}"
        with contextlib.suppress(Error, ValueError):
            node, size = largest(self.result.lir.plan, self.sizes(inputs) if inputs else {})
            message += f" Its largest value is that of {node.label}, {size:,} bytes."
        return OutOfMemoryError(message)


def _is_array(value: Any) -> bool:
    """NumPy's, or one of another library that can be written through DLPack."""
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")
