"""A program in memory: weights prepared once, calls that may run concurrently."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlx.backends.base import Program
from rlx.backends.cpu.program.artefact import Artefact, HostStep
from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.binding_table import Binding, Input, Output
from rlx.backends.cpu.runtime.buffer_pool import Block, new_block
from rlx.backends.cpu.runtime.call import Entry, FailedAt, Held
from rlx.backends.cpu.runtime.digest_code import NativeDigests
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.support_code import Support
from rlx.core.arrays import as_array
from rlx.core.dim import Dim, evaluate
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.exchange import ExchangeCall
from rlx.core.extent import CAPACITY_EXCEEDED, FIRST_CAPACITY, is_capacity, outgrown
from rlx.core.memory_digests import MemoryDigests
from rlx.core.memory_limits import memory_bytes
from rlx.core.page_writes import Span
from rlx.core.params import Params
from rlx.core.requirements import some_sizes
from rlx.core.shape import Shape
from rlx.ir.interpret import infer_binding
from rlx.ops.op import Array, lookup

if TYPE_CHECKING:
    from rlx.backends.timing import CodegenSpan

T = TypeVar("T")
HOST = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
GROWTH = 128
"""Capacities grow by no more at once: so what a call would need is a number of 64 bits, and refused
where it is more than the machine has, before a product of capacities wraps around."""


PACKED_AT_ONCE = 16 << 20
"""Bytes of params that are read before they are packed, and given up then."""


class Weights:
    """Params, what follows from them alone, and the way into the program with them."""

    def __init__(self, block: Block, params: Params, sizes: dict[str, int]) -> None:
        self.block, self.params, self.sizes = block, params, sizes
        self.entry: Entry | None = None
        self.capacities: dict[str, int] = {}
        """As large as a call needed them so far."""

    @property
    def memory(self) -> Array:
        start = self.block.data - self.block.base.ctypes.data
        return self.block.base[start : start + self.block.size]


@dataclass(frozen=True, slots=True)
class State:
    """What a step leaves to the Epilogue."""

    weights: Weights
    inputs: Sequence[Array]
    sizes: Mapping[str, int]
    held: Held


class CpuProgram(Program):
    """A loaded artefact."""

    streams_params = True

    def __init__(self, artefact: Artefact, threads: int, support: Support) -> None:
        self.artefact, self.interface, self._threads = artefact, artefact.interface, threads
        self._support, self._loaded = support, Loaded(artefact.blob)
        self._binding = self._bound()

    def _bound(self) -> Binding:
        numbers = {s.name: i for i, s in enumerate(self.artefact.symbols)}
        inputs = [
            Input(n.shape.dtype.numpy, tuple(_number(d, numbers) for d in n.shape.dims))
            for n in self.interface.inputs
        ]
        outputs = [Output(s.dtype.numpy, s.rank, s.is_measured) for _, s in self.interface.outputs]
        return Binding(
            tuple(inputs),
            tuple(outputs),
            len(self.interface.params),
            len(numbers),
            self.threads,
            bool(self.artefact.hosts),
            any(n.update for n in self.interface.states),
        )

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def codegen_spans(self) -> tuple[CodegenSpan, ...]:
        """What its native code took; nothing where that was kept from before."""
        return self.artefact.codegen_spans

    # -- weights -------------------------------------------------------------------------------

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        """Pack the weights and compute what follows from them alone: all of it, or what follows
        from params that are not the old ones. Params that no call reads are not held."""
        given, leaves = Params.of(params), self.interface.params
        sizes = infer_binding(self.interface.sized_params, given)
        self._support.pool.grow(self.threads)
        call = _Prologue(self, sizes)
        arena_bytes, weight_bytes = call.needs()
        packed_at = evaluate(self.artefact.packed_at, sizes)
        weights = Weights(new_block(weight_bytes, packed_at), given, sizes)
        weights.capacities = call.capacities if old is None else dict(old.capacities)
        stale = bytes([1] * len(self.artefact.prologue))
        if old is not None and old.sizes == sizes:
            weights.memory[:] = old.memory
            stale = self._stale(given, old)
        for constant in self.artefact.constants:
            _put(weights.memory, evaluate(constant.offset, sizes), constant.value)
        held = {i: given[leaves[i].name] for i in self.artefact.call_params}
        call.run(weights.block, new_block(arena_bytes), self._batches(given, held, stale))
        weights.entry = self._entry(weights, held)
        return weights

    def _batches(
        self, params: Params, held: Mapping[int, Array], stale: bytes
    ) -> Iterator[tuple[bytes | None, Mapping[int, Array]]]:
        """Steps of the prologue, and the params that they read beside those that are held: all at
        once where calls read all params, and otherwise so many as fill some memory."""
        leaves, steps = self.interface.params, self.artefact.prologue
        if len(held) == len(leaves):
            yield (None if all(stale) else stale), held
            return
        chosen, arrays, size = bytearray(len(steps)), dict(held), 0
        for number in (i for i, is_stale in enumerate(stale) if is_stale):
            new = {i: params[leaves[i].name] for i in steps[number].params if i not in arrays}
            arrays |= new
            size += sum(a.nbytes for a in new.values())
            chosen[number] = 1
            if size >= PACKED_AT_ONCE:
                yield bytes(chosen), arrays
                chosen, arrays, size = bytearray(len(steps)), dict(held), 0
        yield bytes(chosen), arrays

    def _entry(self, weights: Weights, held: Mapping[int, Array]) -> Entry:
        entry = self._way_in()
        symbols = self._symbols({**weights.capacities, **weights.sizes})
        places = [held[i].ctypes.data if i in held else 0 for i in range(self._binding.num_params)]
        owner = weights.block, tuple(held.values())
        entry.set_weights(owner, weights.block.data, places, symbols)
        return entry

    def _way_in(self) -> Entry:
        return Entry(self._binding, self._loaded, self._support)

    def _stale(self, params: Params, old: Weights) -> bytes:
        """For each step of the prologue, must it be done again?"""
        pairs = enumerate(n.name for n in self.interface.params)
        changed = {i for i, n in pairs if old.params.identity(n) != params.identity(n)}
        stale = bytearray()
        for reads in self.artefact.prologue:
            is_stale = not changed.isdisjoint(reads.params) or any(stale[i] for i in reads.steps)
            stale.append(is_stale)
        return bytes(stale)

    # -- calls ---------------------------------------------------------------------------------

    def quick(self, weights: Weights) -> Callable[..., Any]:
        """A native function of the inputs in order; what it cannot take as it is goes the long
        way."""
        assert weights.entry is not None
        return weights.entry.callable(functools.partial(_slow, self, weights), self._raise)

    def exchange(
        self, weights: Weights, call: ExchangeCall, slow: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A native function of objects of another library."""
        assert weights.entry is not None
        return weights.entry.exchange(call, slow, self._raise)

    @property
    def copied_params(self) -> frozenset[str]:
        read = frozenset[int]().union(*(reads.params for reads in self.artefact.prologue))
        return frozenset(self.interface.params[i].name for i in read)

    def digests(self, spans: Sequence[Span], *, counts_writes: bool = False) -> MemoryDigests:
        self._support.pool.grow(self.threads)
        return NativeDigests(self._support, self.threads, spans, counts_writes=counts_writes)

    def run(
        self, weights: Weights, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        interface = self.interface
        sizes = interface.bind(weights.params, inputs)
        given = [np.require(a, requirements=["C", "A"]) for a in interface.checked(inputs, sizes)]
        interface.check_outs(outputs, sizes, is_measured=False)
        interface.check_no_overlap(outputs, inputs)
        shapes = [s for _, s in interface.outputs]
        direct = [o if _is_direct(o, s) else None for s, o in zip(shapes, outputs)]
        entry = weights.entry
        assert entry is not None
        made = self._ran(
            weights,
            sizes,
            lambda host, symbols, quick: entry.invoke(given, direct, host, symbols, is_quick=quick),
        )
        interface.check_found(outputs, made)
        return [_delivered(m, o) for m, o in zip(made, outputs)]

    def step(self, weights: Weights, inputs: Sequence[Array]) -> tuple[list[Array | None], State]:
        interface, entry = self.interface, weights.entry
        assert entry is not None
        sizes = interface.bind(weights.params, inputs)
        checked, grows = interface.checked(inputs, sizes), bool(weights.capacities)
        kept = interface.held(checked, everything=grows)
        given = [np.require(a, requirements=["C", "A"]) for a in kept]
        held, made = self._ran(
            weights, sizes, lambda host, symbols, _: entry.step(given, host, symbols)
        )
        return interface.early(made), State(weights, given, sizes, held)

    def finish(self, state: State) -> list[Array | None]:
        entry = state.weights.entry
        assert entry is not None
        host = _Host(self.artefact)
        made = entry.finish(state.held, host.address)
        if isinstance(made, FailedAt):
            if host.error is not None or self._text(made) != CAPACITY_EXCEEDED:
                raise host.error or self.failure(made)
            made = self._ran(
                state.weights, state.sizes, functools.partial(_again, entry, state.inputs)
            )
        late = self.interface.late
        return [np.array(m) if i in late else None for i, m in enumerate(made)]

    def _ran(
        self, weights: Weights, sizes: Mapping[str, int], attempt: Callable[..., T | FailedAt]
    ) -> T:
        """What an attempt with the address of host steps, a table of sizes, and whether the quick
        way may be tried gives, with capacities as large as they had to be: from then on every call
        has them, unless there was no memory for them."""
        entry = weights.entry
        assert entry is not None
        capacities = dict(weights.capacities)
        while True:
            host = _Host(self.artefact)
            symbols = np.array([*self._symbols({**capacities, **sizes}), 0], np.int64)
            made = attempt(host.address, symbols, not capacities)
            if isinstance(made, FailedAt):
                if host.error is not None or self._text(made) != CAPACITY_EXCEEDED:
                    raise host.error or self.failure(made)
                capacities = self._grown(entry, capacities, symbols)
                continue
            if capacities != weights.capacities:
                weights.capacities = _greatest(weights.capacities, capacities)
                entry.set_symbols(self._symbols({**weights.capacities, **weights.sizes}))
            return made

    def _symbols(self, sizes: Mapping[str, int]) -> list[int]:
        """The table of sizes; those that nobody knows yet are 0."""
        return [sizes.get(s.name, 0) for s in self.artefact.symbols]

    def _grown(self, entry: Entry, capacities: Mapping[str, int], symbols: Array) -> dict[str, int]:
        """Room for what a call found, if the machine has as much."""
        sizes = dict(zip((s.name for s in self.artefact.symbols), symbols.tolist()))
        more = outgrown(sizes)
        if not more:
            raise Error(f"{self.interface.name}: a step found more than its bound allows.")
        made = {n: min(more.get(n, c), c * GROWTH) for n, c in capacities.items()}
        needs = entry.needs(np.array([*self._symbols({**sizes, **made}), 0], np.int64))
        if not isinstance(needs, FailedAt) and needs.total_bytes > memory_bytes():
            raise OutOfMemoryError(
                f"{self.interface.name}: a call needs more memory than there is: a size that "
                f"follows from data has outgrown it ({', '.join(sorted(more))})."
            )
        return made

    def scratch_bytes(self, sizes: Mapping[str, int], arena_bytes: int) -> int:
        """What a call takes behind an arena of so many bytes, at these sizes of named dims."""
        needs = self._way_in().needs(np.array([*self._symbols(sizes), 0], np.int64))
        return 0 if isinstance(needs, FailedAt) else max(0, needs.arena_bytes - arena_bytes)

    def failure(self, failed: FailedAt) -> Error:
        """What the step that failed says of its codes."""
        label, _ = self.artefact.failures[failed.step]
        return Error(f"{label}: {self._text(failed)}")

    def _raise(self, failed: FailedAt) -> Any:
        raise self.failure(failed)

    def _text(self, failed: FailedAt) -> str:
        _, texts = self.artefact.failures[failed.step]
        is_known = 0 < failed.code <= len(texts)
        return texts[failed.code - 1] if is_known else "it failed"

    @property
    def run_address(self) -> int:
        return self._loaded.address("run")

    @property
    def pool(self) -> Any:
        return self._support.pool

    @property
    def binding(self) -> Binding:
        return self._binding


def _again(
    entry: Entry, inputs: Sequence[Array], host: int, symbols: Array, _: bool
) -> list[Array] | FailedAt:
    """Both phases, where the Epilogue found more than the step had room for."""
    made = entry.step(inputs, host, symbols)
    return made if isinstance(made, FailedAt) else entry.finish(made[0], host)


def _slow(program: CpuProgram, weights: Weights, *arrays: Any) -> Any:
    """A call that the native way in does not take: checked, mended, or refused with a reason."""
    leaves = program.interface.inputs
    given = [as_array(a, f"input {n.name!r}", n.shape.dtype) for n, a in zip(leaves, arrays)]
    outs = list(arrays[len(leaves) :]) or [None] * len(program.interface.outputs)
    made = program.run(weights, given, outs)
    return made[0] if len(made) == 1 else tuple(made)


def _greatest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Concurrent calls may have grown capacities."""
    return {n: max(c, other.get(n, 0)) for n, c in one.items()}


def _number(dim: Any, numbers: Mapping[str, int]) -> int | None:
    """The symbol that has the size of a dim."""
    symbol = dim.bound_symbol if isinstance(dim, Dim) else None
    return None if symbol is None else numbers.get(symbol.name)


def _is_direct(out: Array | None, shape: Shape) -> bool:
    """Can native code write the result where the caller wants it?"""
    return out is not None and out.flags.aligned and not shape.is_measured


def _delivered(made: Array, out: Array | None) -> Array:
    if out is None or out is made:
        return made
    out[...] = made
    return out


class _Prologue:
    """The context of a run that prepares weights."""

    def __init__(self, program: CpuProgram, sizes: Mapping[str, int]) -> None:
        self.program = program
        names = [s.name for s in program.artefact.symbols]
        self.capacities = {n: FIRST_CAPACITY for n in names if is_capacity(n)}
        free = some_sizes(program.artefact.symbols, program.interface.required)
        symbols = [{**free, **self.capacities, **sizes}.get(n, 0) for n in names]
        self._sizes = np.array([*symbols, 0], np.int64)
        self._needs = np.zeros(program.binding.num_needs, np.int64)
        self._first_param = len(program.interface.inputs)
        self._places = np.zeros(self._first_param + len(program.interface.params) + 1, np.int64)
        self._words = np.zeros(NUM_WORDS, np.int64)
        self._words[Word.SYMBOLS] = self._sizes.ctypes.data
        self._words[Word.NEEDS] = self._needs.ctypes.data
        self._words[Word.EXTERNALS] = self._places.ctypes.data
        self._words[Word.THREADS] = program.threads
        self._host = _Host(program.artefact)
        self._words[Word.HOST] = self._host.address

    def needs(self) -> tuple[int, int]:
        """Bytes of the arena and of the weights."""
        self._call(Mode.NEED)
        return int(self._needs[0]), int(self._needs[1])

    def run(
        self,
        weights: Block,
        arena: Block,
        batches: Iterable[tuple[bytes | None, Mapping[int, Array]]],
    ) -> None:
        """Do steps, or all where none are chosen, on params by number."""
        self._words[Word.WEIGHTS], self._words[Word.ARENA] = weights.data, arena.data
        for steps, params in batches:
            chosen = np.frombuffer((steps or b"") + b"\0", np.uint8)
            self._words[Word.CHANGED] = 0 if steps is None else chosen.ctypes.data
            self._places[:] = 0
            for number, array in params.items():
                self._places[self._first_param + number] = array.ctypes.data
            self._call(Mode.PROLOGUE)

    def _call(self, mode: Mode) -> None:
        self._words[Word.MODE] = mode
        pool = self.program.pool
        code = pool.call(self._words.ctypes.data, self.program.run_address)
        if code:
            failed = int(self._words[Word.FAILED])
            known = FailedAt(failed >> 32, failed & 0xFFFFFFFF)
            raise self._host.error or self.program.failure(known)


class _Host:
    """The steps of one call that only the host can do. They are called from native code, which no
    exception may cross."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact
        self.error: BaseException | None = None
        self._function = HOST(self._called) if artefact.hosts else None

    @property
    def address(self) -> int:
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0 if self._function else 0

    def _called(self, context: int, number: int, buffers: int) -> int:
        step, symbols = self._artefact.hosts[number], self._artefact.symbols
        words = (ctypes.c_int64 * NUM_WORDS).from_address(context)
        sizes = (ctypes.c_int64 * max(1, len(symbols))).from_address(words[Word.SYMBOLS])
        count = len(step.operands) + len(step.results)
        places = (ctypes.c_size_t * count).from_address(buffers)
        try:
            _host(step, {s.name: n for s, n in zip(symbols, sizes)}, list(places))
        except Error as error:
            self.error = Error(f"{step.label}: {error}")
        except BaseException as error:
            self.error = error
        return 1 if self.error else 0


def _host(step: HostStep, symbols: Mapping[str, int], places: Sequence[int]) -> None:
    """Run an op that the program registered, on memory of the call."""
    shapes = [s.bind(symbols) for s in (*step.operands, *step.results)]
    arrays = [_at(place, s.static_dims, s.dtype.numpy) for place, s in zip(places, shapes)]
    operands, results = arrays[: len(step.operands)], arrays[len(step.operands) :]
    attrs = {"name": step.name, "options": step.options}
    made = lookup("custom").evaluate(operands, attrs, shapes[len(operands) :])
    for value, result in zip(made, results):
        result[...] = value


def _put(memory: Array, at: int, value: Array) -> None:
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    memory[at : at + raw.nbytes] = raw


def _at(address: int, dims: tuple[int, ...], dtype: Any) -> Array:
    size = int(np.prod(dims)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(raw), np.uint8).view(dtype).reshape(dims)
