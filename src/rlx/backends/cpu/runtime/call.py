"""Calling a model from Python: the quick way, natively, and the same step by step.

    entry = Entry(binding, Loaded(blob), support())
    entry.set_weights(owner, address, param_addresses)
    fast = entry.callable(slow)

`fast(*inputs)` or `fast(*inputs, *outputs)` runs the model if everything is as it should be, and
else gives what `slow` gives for the same arguments. `slow` checks and mends them, and runs the
model with `entry.invoke`. The callable owns all it needs; the entry knows nothing of it, so that
nothing here refers to itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.binder_code import SMALL
from rlx.backends.cpu.runtime.binding_table import (
    KEPT,
    NUM_BLOCK_SLOTS,
    NUM_OUTPUT_SLOTS,
    NUM_SLOTS,
    Binding,
    Input,
    Needs,
    OutputSlot,
    Slot,
    dlpack_code,
)
from rlx.backends.cpu.runtime.buffer_pool import Block, Keeper
from rlx.backends.cpu.runtime.cpython_layout import (
    array_functions,
    can_bind,
    python_functions,
    warn_slow_calls,
)
from rlx.backends.cpu.runtime.exchange_words import ExchangeWords
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.support_code import Support
from rlx.core.errors import Error
from rlx.core.exchange import ExchangeCall
from rlx.ops.op import Array

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_METHOD = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 4)
_new_method = _METHOD(("PyCMethod_New", ctypes.pythonapi))
_FASTCALL = 0x80
_NAME = ctypes.create_string_buffer(b"rlx_model")


@dataclass(frozen=True, slots=True)
class FailedAt:
    """A step of the model that failed, and the code it gave."""

    step: int
    code: int


Failed = Callable[[FailedAt], Any]
"""What a call gives whose step failed, or the error that it raises."""


@dataclass(frozen=True, slots=True)
class Held:
    """A call whose Epilogue is to come: all the memory that it reads and writes."""

    weights: Array
    inputs: Sequence[Array]
    made: Sequence[Array | Block]
    symbols: Array
    needs: Array
    arena: Block | None
    places: Array


class _Owner(np.ndarray[Any, Any]):
    """Words, and what must live as long as they do."""

    owned: Any = None


def _owner(words: Sequence[int], owned: Any) -> _Owner:
    made = np.array([ctypes.c_int64(w).value for w in words], np.int64).view(_Owner)
    made.owned = owned
    return made


class Entry:
    """A loaded model, ready to be called by any number of threads."""

    def __init__(self, binding: Binding, code: Loaded, support: Support) -> None:
        self.binding, self._code, self._support = binding, code, support
        self._run = code.address("run")
        self._words = np.zeros(NUM_SLOTS, np.int64)
        self._arena_words = np.zeros(KEPT * NUM_BLOCK_SLOTS, np.int64)
        self._inputs = np.array([w for i in binding.inputs for w in _input_words(i)], np.int64)
        self._outputs = np.zeros((len(binding.outputs), NUM_OUTPUT_SLOTS), np.int64)
        self._cached = np.zeros(binding.num_symbols + binding.num_needs, np.int64)
        self._weights: _Owner | None = None
        self._describe_outputs()
        self._arenas = Keeper(self._arena_words, is_bounded=False)
        self._keepers = [Keeper(o[OutputSlot.BLOCKS :], is_bounded=True) for o in self._outputs]
        self._fill()
        self._native = self._bound(_unfit, _as_failed, None) if self._is_native else None

    @property
    def _is_native(self) -> bool:
        """Can calls be bound natively? Where Python takes part in them anyway, they are not."""
        if self.binding.has_host_steps:
            return False
        if not can_bind():
            warn_slow_calls()
        return can_bind()

    def _describe_outputs(self) -> None:
        for words, output in zip(self._outputs, self.binding.outputs):
            known = id(output.dtype), output.rank, output.dtype.itemsize, dlpack_code(output.dtype)
            words[: OutputSlot.BLOCKS] = *known, int(output.is_measured)

    def _fill(self) -> None:
        """All that does not change."""
        binding, pool = self.binding, self._support.pool
        cached = self._cached.ctypes.data
        known = {
            Slot.NUM_INPUTS: len(binding.inputs), Slot.NUM_OUTPUTS: len(binding.outputs),
            Slot.NUM_PARAMS: binding.num_params, Slot.NUM_SYMBOLS: binding.num_symbols,
            Slot.NUM_NEEDS: binding.num_needs, Slot.INPUT_DIMS: binding.input_dims,
            Slot.RUN: self._run, Slot.CALL: pool.call_address, Slot.POOL: pool.address,
            Slot.THREADS: binding.threads,
            Slot.INPUTS: self._inputs.ctypes.data, Slot.OUTPUTS: self._outputs.ctypes.data,
            Slot.ARENAS: self._arena_words.ctypes.data, Slot.CACHED_SYMBOLS: cached,
            Slot.CACHED_NEEDS: cached + 8 * binding.num_symbols, Slot.ARRAY_TYPE: id(np.ndarray),
            Slot.RUNS_ONCE: int(binding.writes_states),
        }  # fmt: skip
        for slot, value in known.items():
            self._words[slot] = value
        if can_bind():
            self._words[Slot.NEW_ARRAY : Slot.SET_BASE + 1] = array_functions()
            self._words[Slot.SAVE_THREAD : Slot.NEW_INT + 1] = python_functions()

    # -- the quick way --------------------------------------------------------------------------

    def callable(
        self, slow: Callable[..., Any], failed: Failed | None = None
    ) -> Callable[..., Any]:
        """A function of Python that is native code; `slow` itself where Python takes part, or
        where objects are laid out in a way that native code does not know. `failed` is called
        where a step fails of a call that cannot be run again."""
        return slow if self._native is None else self._bound(slow, _numbered(failed), self)

    def exchange(
        self, call: ExchangeCall, slow: Callable[..., Any], failed: Failed
    ) -> Callable[..., Any] | None:
        """The same for objects of another library; None where native code cannot call it."""
        if self._native is None:
            return None
        self._support.stay()
        words = ExchangeWords(call, self.binding, self._support.code.address("release"))
        return self._bound(slow, _numbered(failed), (self, words), words.address)

    def _bound(
        self,
        slow: Callable[..., Any],
        failed: Callable[[int], Any],
        owned: Any,
        exchange: int = 0,
    ) -> Callable[..., Any]:
        entry = self._support.code.address("entry")
        method = ctypes.addressof(_NAME), entry, _FASTCALL, 0
        words = self._words.ctypes.data, id(slow), *method, exchange, id(failed)
        bound = _owner(words, (slow, failed, owned))
        return _new_method(bound.ctypes.data + 16, id(bound), None, None)

    # -- weights --------------------------------------------------------------------------------

    def set_weights(
        self, owner: Any, weights: int, params: Sequence[int] = (), symbols: Sequence[int] = ()
    ) -> None:
        """Use other weights from the next call on: the address of the packed ones and of each
        param. The owner lives until no call uses them. `symbols` are the sizes that follow from
        the params, 0 for others."""
        if len(params) != self.binding.num_params:
            raise Error(f"{len(params)} param addresses for {self.binding.num_params} params.")
        sizes = [*symbols, *[0] * (self.binding.num_symbols - len(symbols))]
        made = _owner([weights, *params, *sizes], owner)
        before = self._weights
        self._words[Slot.WEIGHTS] = id(made)
        self._weights = made
        del before

    def set_symbols(self, symbols: Sequence[int]) -> None:
        """Sizes that inputs do not give, from the next call on."""
        assert self._weights is not None
        self._weights[1 + self.binding.num_params :] = symbols

    # -- step by step ---------------------------------------------------------------------------

    def symbols(self, inputs: Sequence[Array]) -> Array:
        """The sizes of named dims that inputs and weights give; the others are 0."""
        count = self.binding.num_symbols
        sizes = np.zeros(count + 1, np.int64)
        if self._weights is not None:
            sizes[:count] = self._weights[1 + self.binding.num_params :]
        every = list(zip(self.binding.inputs, inputs, strict=True))
        for given, array in reversed(every):  # the first input that says it counts
            for number, size in zip(given.symbols, array.shape, strict=True):
                if number is not None:
                    sizes[number] = size
        return sizes

    def needs(self, symbols: Array) -> Needs | FailedAt:
        """What a call takes, for sizes of the named dims."""
        needs = np.zeros(self.binding.num_needs, np.int64)
        words = self._context(symbols, needs)
        words[Word.MODE] = Mode.NEED
        code = _RUN(self._run)(words.ctypes.data)
        return _failure(words, code) if code else self.binding.needs_of(needs)

    def invoke(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        host: int = 0,
        symbols: Array | None = None,
        *,
        is_quick: bool = True,
    ) -> list[Array] | FailedAt:
        """Run the model on arrays that are as they should be: of the dtypes that the binding
        says, contiguous, aligned; outputs disjoint from them and of the right dims. `host` is the
        address of the function for steps of the host; `symbols` are the sizes of named dims, where
        they are known other than as dims of their own, and one word more: what the call
        measures is written there, unless the quick way is tried first and does it."""
        weights = self._weights
        if weights is None:
            raise Error("the model has no weights yet. Call set_params.")
        self._support.pool.grow(self.binding.threads)
        made = self._natively(inputs, outputs) if is_quick else None
        if made is not None:
            return made
        found = self.symbols(inputs) if symbols is None else symbols
        return self._step_by_step(weights, inputs, outputs, host, found)

    def _natively(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array] | FailedAt | None:
        """The quick way, where it is open."""
        is_mixed = len({o is None for o in outputs}) > 1
        if self._native is None or is_mixed:
            return None
        made = self._native(*inputs, *(o for o in outputs if o is not None))
        if isinstance(made, FailedAt):
            return made
        return [made] if isinstance(made, np.ndarray) else made and list(made)

    def _step_by_step(
        self,
        weights: _Owner,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        host: int,
        symbols: Array,
    ) -> list[Array] | FailedAt:
        held = self._held(weights, inputs, outputs, symbols)
        return held if isinstance(held, FailedAt) else self._in_mode(Mode.CALL, held, host)

    def _held(
        self,
        weights: _Owner,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        symbols: Array,
    ) -> Held | FailedAt:
        """The memory of a call, of which nothing has run."""
        wanted = self.needs(symbols)
        if isinstance(wanted, FailedAt):
            return wanted
        self._check(inputs, outputs, wanted)
        made = [self._memory(i, o, wanted) for i, o in enumerate(outputs)]
        arena = self._arenas.take(wanted.arena_bytes) if wanted.arena_bytes else None
        needs = np.array(self.binding.words_of(wanted), np.int64)
        places = self._places(inputs, weights, made)
        return Held(weights, inputs, made, symbols, needs, arena, places)

    def _in_mode(self, mode: Mode, held: Held, host: int) -> list[Array] | FailedAt:
        """Run all of a call, or a phase of it."""
        words = self._context(held.symbols, held.needs)
        words[Word.MODE], words[Word.HOST] = mode, host
        words[Word.ARENA] = held.arena.data if held.arena else 0
        words[Word.WEIGHTS], words[Word.EXTERNALS] = held.weights[0], held.places.ctypes.data
        code = self._call(words)
        return _failure(words, code) if code else self._results(held.made, held.needs)

    def _call(self, words: Array) -> int:
        """Native code, on a context that has all it takes."""
        return self._support.pool.call(words.ctypes.data, self._run)

    def step(
        self, inputs: Sequence[Array], host: int, symbols: Array
    ) -> tuple[Held, list[Array]] | FailedAt:
        """A call up to the Epilogue: what `finish` takes, and all outputs, of which those of the
        Epilogue are not made yet."""
        weights = self._weights
        if weights is None:
            raise Error("the model has no weights yet. Call set_params.")
        self._support.pool.grow(self.binding.threads)
        outputs = [None] * len(self.binding.outputs)
        held = self._held(weights, inputs, outputs, symbols)
        if isinstance(held, FailedAt):
            return held
        made = self._in_mode(Mode.STEP, held, host)
        return made if isinstance(made, FailedAt) else (held, made)

    def finish(self, held: Held, host: int) -> list[Array] | FailedAt:
        """The Epilogue of a call: all outputs."""
        self._support.pool.grow(self.binding.threads)
        return self._in_mode(Mode.FINISH, held, host)

    def _context(self, symbols: Array, needs: Array) -> Array:
        words = np.zeros(NUM_WORDS, np.int64)
        words[Word.SYMBOLS], words[Word.NEEDS] = symbols.ctypes.data, needs.ctypes.data
        words[Word.THREADS] = self.binding.threads
        return words

    def _check(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None], wanted: Needs
    ) -> None:
        """The last line of defence: memory is read and written as these dims say."""
        if not wanted.is_in_range:
            raise Error("the size of a named dim is out of its range.")
        binding = self.binding
        for number, (array, dims) in enumerate(zip(inputs, wanted.inputs, strict=True)):
            _check_array(f"input {number}", array, binding.inputs[number].dtype, dims)
        for number, (array, (_, dims)) in enumerate(zip(outputs, wanted.outputs, strict=True)):
            if array is None:
                continue
            _check_array(f"output {number}", array, binding.outputs[number].dtype, dims)
            if not array.flags.writeable or binding.outputs[number].is_measured:
                raise Error(f"output {number} cannot be written to where it is.")

    def _memory(self, number: int, given: Array | None, wanted: Needs) -> Array | Block:
        if given is not None:
            return given
        output, (size, dims) = self.binding.outputs[number], wanted.outputs[number]
        if size < SMALL and not output.is_measured:
            return np.empty(dims, output.dtype)
        return self._keepers[number].take(size)

    def _places(self, inputs: Sequence[Array], weights: _Owner, made: Sequence[Any]) -> Array:
        params = [int(p) for p in weights[1 : 1 + self.binding.num_params]]
        given = [a.ctypes.data for a in inputs]
        taken = [m.data if isinstance(m, Block) else m.ctypes.data for m in made]
        return np.array([*given, *params, *taken, 0], np.int64)

    def _results(self, made: Sequence[Array | Block], needs: Array) -> list[Array]:
        found: list[Array] = []
        known = self.binding.needs_of(needs).outputs
        for output, memory, (_, dims) in zip(self.binding.outputs, made, known):
            if isinstance(memory, Block):
                start = memory.data - memory.base.ctypes.data
                found.append(np.ndarray(dims, output.dtype, memory.base, start))
            else:
                found.append(memory)
        return found


def _check_array(what: str, array: Array, dtype: Any, dims: tuple[int, ...]) -> None:
    if array.shape != dims or array.dtype != dtype:
        raise Error(f"{what} is {array.dtype}{list(array.shape)}, not {dtype}{list(dims)}.")
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        raise Error(f"{what} is not contiguous, aligned and in native byte order.")


def _unfit(*_: Any) -> None:
    """What the quick way gives where it is not open."""


def _input_words(given: Input) -> list[int]:
    numbers = [-1 if n is None else n for n in given.symbols]
    kind = id(given.dtype), len(numbers), given.dtype.itemsize, dlpack_code(given.dtype)
    return [*kind, *numbers]


def _as_failed(number: int) -> FailedAt:
    """A failure from its number: the step, and 32 bits of its code."""
    return FailedAt(number >> 32, number & 0xFFFFFFFF)


def _numbered(failed: Failed | None) -> Callable[[int], Any]:
    return lambda number: (failed or _unexplained)(_as_failed(number))


def _unexplained(failed: FailedAt) -> Any:
    raise Error(f"step {failed.step} failed with code {failed.code}.")


def _failure(words: Array, code: int) -> FailedAt:
    """The step comes from the context; the code too, where the model says it."""
    failed = int(words[Word.FAILED])
    return FailedAt(failed >> 32, failed & 0xFFFFFFFF or code)
