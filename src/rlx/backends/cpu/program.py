"""A program in memory: weights prepared once, calls that may run side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.artefact import Artefact, HostStep
from rlx.backends.cpu.context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.native.code import Loaded
from rlx.dim import evaluate
from rlx.errors import Error
from rlx.ir.interpret import infer_binding
from rlx.op import Array, lookup
from rlx.runtime.interface import Interface

RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
HOST = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Weights:
    """Params, and what follows from them alone."""

    def __init__(self, memory: Array, params: Mapping[str, Array], sizes: dict[str, int]) -> None:
        self.memory, self.params, self.sizes = memory, params, sizes


class CpuProgram:
    """A loaded artefact."""

    def __init__(self, artefact: Artefact, interface: Interface, threads: int) -> None:
        self.artefact, self.interface, self.threads = artefact, interface, threads
        self._loaded = Loaded(artefact.blob)
        self._run = RUN(self._loaded.address("run"))

    # -- weights -------------------------------------------------------------------------------

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        """Pack the weights and compute what follows from them alone: all of it, or what follows
        from params that are not the old ones."""
        sizes = infer_binding(self.interface.params, params)
        call = _Call(self, sizes)
        call.measure()
        memory = aligned(call.needs[1])
        if old is not None and old.sizes == sizes:
            memory[:] = old.memory
            call.choose(self._stale(params, old))
        for constant in self.artefact.constants:
            _put(memory, evaluate(constant.offset, sizes), constant.value)
        arrays = [params[n.attrs["name"]] for n in self.interface.params]
        call.place(memory, [None] * len(self.interface.inputs), arrays, [])
        call.run(Mode.PROLOGUE)
        return Weights(memory, dict(params), sizes)

    def _stale(self, params: Mapping[str, Array], old: Weights) -> bytes:
        """For each step of the prologue, must it be done again?"""
        names = [n.attrs["name"] for n in self.interface.params]
        changed = {i for i, n in enumerate(names) if old.params[n] is not params[n]}
        return bytes(not changed.isdisjoint(read) for read in self.artefact.prologue)

    # -- calls ---------------------------------------------------------------------------------

    def run(
        self, weights: Weights, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        interface = self.interface
        sizes = interface.bind(weights.params, inputs)
        given = [np.require(a, requirements=["C", "A"]) for a in interface.checked(inputs, sizes)]
        interface.check_outs(outputs, sizes, is_measured=False)
        interface.check_apart(outputs, inputs)
        call = _Call(self, sizes)
        call.measure()
        params = [weights.params[n.attrs["name"]] for n in interface.params]
        blocks = call.outputs(outputs)
        call.place(weights.memory, given, params, blocks)
        call.run(Mode.CALL)
        return call.results(blocks, outputs)

    def host(self, step: HostStep, symbols: Mapping[str, int], places: Sequence[int]) -> None:
        """Run an op that the program registered, on memory of the call."""
        shapes = [s.bind(symbols) for s in (*step.operands, *step.results)]
        arrays = [_at(place, s.static_dims, s.dtype.numpy) for place, s in zip(places, shapes)]
        operands, results = arrays[: len(step.operands)], arrays[len(step.operands) :]
        attrs = {"name": step.name, "options": step.options}
        made = lookup("custom").evaluate(operands, attrs, shapes[len(operands) :])
        for value, result in zip(made, results):
            result[...] = value


class _Call:
    """One call's context."""

    def __init__(self, program: CpuProgram, sizes: Mapping[str, int]) -> None:
        self.program, interface = program, program.interface
        symbols = program.artefact.symbols
        self.sizes = (ctypes.c_int64 * (len(symbols) + 1))(*(sizes.get(s.name, 0) for s in symbols))
        ranks = sum(1 + s.rank for _, s in interface.outputs)
        ranks += sum(n.shape.rank for n in interface.inputs)
        self.needs = (ctypes.c_int64 * (ranks + 3))()
        self.words = (ctypes.c_int64 * NUM_WORDS)()
        self.words[Word.SYMBOLS] = ctypes.addressof(self.sizes)
        self.words[Word.NEEDS] = ctypes.addressof(self.needs)
        self.words[Word.THREADS] = program.threads
        self.kept: list[Any] = []
        self.error: BaseException | None = None

    def measure(self) -> None:
        self.run(Mode.NEED)

    def place(
        self,
        weights: Array,
        inputs: Sequence[Array | None],
        params: Sequence[Array],
        outputs: Sequence[Array],
    ) -> None:
        arena = aligned(self.needs[0])
        every = [None if a is None else a.ctypes.data for a in (*inputs, *params, *outputs)]
        externals = (ctypes.c_void_p * (len(every) + 1))(*every)
        self.kept += [arena, weights, externals, inputs, params, outputs]
        self.words[Word.ARENA] = arena.ctypes.data
        self.words[Word.WEIGHTS] = weights.ctypes.data
        self.words[Word.EXTERNALS] = ctypes.addressof(externals)
        if self.program.artefact.hosts:
            host = HOST(self._host)
            self.kept.append(host)
            self.words[Word.HOST] = ctypes.cast(host, ctypes.c_void_p).value or 0

    def choose(self, steps: bytes) -> None:
        """Of the prologue do these steps only."""
        chosen = ctypes.create_string_buffer(steps)
        self.kept.append(chosen)
        self.words[Word.CHANGED] = ctypes.addressof(chosen)

    def run(self, mode: Mode) -> None:
        self.words[Word.MODE] = mode
        code = self.program._run(ctypes.addressof(self.words))  # pyright: ignore[reportPrivateUsage]
        if code:
            raise self.error or self._failure()

    def _failure(self) -> Error:
        number, code = divmod(self.words[Word.FAILED], 1 << 32)
        label, texts = self.program.artefact.failures[number]
        return Error(f"{label}: {texts[code - 1] if code <= len(texts) else 'it failed'}")

    def _host(self, context: int, number: int, buffers: int) -> int:
        """Called from native code, which an exception must not cross."""
        step = self.program.artefact.hosts[number]
        count = len(step.operands) + len(step.results)
        places = (ctypes.c_size_t * count).from_address(buffers)
        symbols = {s.name: n for s, n in zip(self.program.artefact.symbols, self.sizes)}
        try:
            self.program.host(step, symbols, list(places))
        except Error as error:
            self.error = Error(f"{step.label}: {error}")
        except BaseException as error:
            self.error = error
        return 1 if self.error else 0

    def outputs(self, given: Sequence[Array | None]) -> list[Array]:
        """Memory for each output: the caller's, or its own."""
        found: list[Array] = []
        at = 2
        for (_, shape), out in zip(self.program.interface.outputs, given):
            is_given = out is not None and not shape.is_measured
            found.append(out if is_given else aligned(self.needs[at]))  # pyright: ignore[reportArgumentType]
            at += 1 + shape.rank
        return found

    def results(self, blocks: Sequence[Array], given: Sequence[Array | None]) -> list[Array]:
        """The outputs as arrays, of the dims they turned out to have."""
        made: list[Array] = []
        at = 2
        for (_, shape), block, out in zip(self.program.interface.outputs, blocks, given):
            dims = tuple(self.needs[at + 1 : at + 1 + shape.rank])
            at += 1 + shape.rank
            is_own = out is None or shape.is_measured
            made.append(np.ndarray(dims, shape.dtype.numpy, block) if is_own else block)
        return made


def aligned(size: int, alignment: int = 64) -> Array:
    """Bytes whose address is a multiple of `alignment`."""
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


def _put(memory: Array, at: int, value: Array) -> None:
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    memory[at : at + raw.nbytes] = raw


def _at(address: int, dims: tuple[int, ...], dtype: Any) -> Array:
    size = int(np.prod(dims)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(raw), np.uint8).view(dtype).reshape(dims)
