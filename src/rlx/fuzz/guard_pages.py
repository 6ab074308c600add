"""Guard pages around every buffer of native code: an access outside a buffer ends the process.

Inputs, params and outputs are each between guard pages, and so is every slot of the plan.
Slots keep the plan's alignment, so at the end up to a line behind a slot can still be touched; what
the caller gives ends with its last byte.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.program.artefact import Artefact
from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.support_code import support
from rlx.backends.cpu.system.posix import c_library
from rlx.core.dim import evaluate as sized
from rlx.core.errors import Error
from rlx.core.extent import FIRST_CAPACITY, is_capacity, outgrown
from rlx.fuzz.generate import Grown
from rlx.fuzz.judge import Expected, Mismatch, compare
from rlx.ir.interpret import infer_binding
from rlx.ir.lir import BufferPlan, Slot, Space
from rlx.ir.mir import Graph
from rlx.ops.op import Array, lookup
from rlx.pipeline import CompilePipeline

PAGE = mmap.PAGESIZE
LINE = 64
POISON = 0xA5
HOST = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Side(enum.Enum):
    """Where buffers touch what is forbidden."""

    STARTS = "starts"
    """At the start of every slot."""
    ENDS = "ends"
    """At the end of every slot."""
    TAIL = "tail"
    """At the end of the arena as planned: the scratch memory of the step that runs."""


def judge_guarded(
    grown: Grown, variant: str, sides: Sequence[Side] = tuple(Side)
) -> list[Mismatch]:
    """What the native code of one graph computes wrongly when every buffer is guarded."""
    graph, values = grown.graph, grown.values
    expected = Expected(graph, values)
    found: list[Mismatch] = []
    for side in sides:
        made = Guarded(graph, variant, side)(values)
        found += compare(f"cpu:{variant} {side.value}", expected, made)
    return found


class Guarded:
    """A graph's program whose buffers are guarded."""

    def __init__(self, graph: Graph, variant: str, side: Side) -> None:
        backend = CpuBackend(variant=variant)
        lir = CompilePipeline(backend.target()).compile(graph).lir
        plan, self.holes = _spread(lir.plan, side)
        self.graph, self.side = graph, side
        spread = replace(lir, plan=plan)
        self.artefact = backend.build(backend.program(spread))
        self._loaded = Loaded(self.artefact.blob)
        self._run = self._loaded.address("run")

    def __call__(self, values: Mapping[str, Array]) -> list[Array]:
        """The outputs; what was given is still what it was. Where more is found than a capacity
        holds, the call is made again with a larger one."""
        sizes: dict[str, int] = {
            s.name: FIRST_CAPACITY for s in self.artefact.symbols if is_capacity(s.name)
        }
        sizes |= infer_binding(self.graph.leaves, values)
        while True:
            call = _Call(self.artefact, sizes)
            try:
                return self._ran(call, values)
            except Error:
                larger = outgrown(call.sizes_by_name())
                if not larger:
                    raise
                sizes |= larger

    def _ran(self, call: _Call, values: Mapping[str, Array]) -> list[Array]:
        leaves = [*self.graph.given, *self.graph.params]
        given = [self._copy(values[n.attrs["name"]]) for n in leaves]
        self._do(call, Mode.NEED)
        arena = self._guarded(int(call.needs[0]), self.holes[Space.ARENA])
        weights = self._guarded(int(call.needs[1]), self.holes[Space.WEIGHTS])
        for constant in self.artefact.constants:
            _put(weights, sized(constant.offset, call.sizes_by_name()), constant.value)
        blocks = [self._guarded(n) for n in call.output_bytes(self.graph)]
        call.place(arena, weights, [*given, *blocks])
        self._do(call, Mode.PROLOGUE)
        self._do(call, Mode.CALL)
        _require_same(given, [values[n.attrs["name"]] for n in leaves])
        return call.results(self.graph, blocks)

    def _do(self, call: _Call, mode: Mode) -> None:
        call.words[Word.MODE] = mode
        if support().pool.call(ctypes.addressof(call.words), self._run):
            raise call.failure()

    def _copy(self, array: Array) -> Array:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        block = self._guarded(raw.nbytes)
        block[:] = raw
        return block.view(array.dtype).reshape(array.shape)

    def _guarded(self, size: int, holes: Sequence[int] = ()) -> Array:
        """Poisoned bytes between forbidden pages; `holes` are pages inside that are so too."""
        pages = -(-size // PAGE)
        whole = np.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), np.uint8)
        first = PAGE if self.side is Side.STARTS or holes else (pages + 1) * PAGE - size
        whole[first : first + size] = POISON
        for at in (0, (pages + 1) * PAGE, *(PAGE + h for h in holes)):
            _forbid(whole.ctypes.data + at)
        return whole[first : first + size]


class _Call:
    """The context of one run, as the program's code reads it."""

    def __init__(self, artefact: Artefact, sizes: Mapping[str, int]) -> None:
        self.artefact, self.error = artefact, None
        names = [s.name for s in artefact.symbols]
        self.sizes = (ctypes.c_int64 * (len(names) + 1))(*(sizes.get(n, 0) for n in names))
        self.needs = (ctypes.c_int64 * 65536)()
        self.words = (ctypes.c_int64 * NUM_WORDS)()
        self.words[Word.SYMBOLS] = ctypes.addressof(self.sizes)
        self.words[Word.NEEDS] = ctypes.addressof(self.needs)
        self.words[Word.THREADS] = 1
        self._host = HOST(self._called)
        self.words[Word.HOST] = ctypes.cast(self._host, ctypes.c_void_p).value or 0

    def sizes_by_name(self) -> dict[str, int]:
        return {s.name: n for s, n in zip(self.artefact.symbols, self.sizes)}

    def output_bytes(self, graph: Graph) -> list[int]:
        ranks = [o.shape.rank for o in graph.outputs]
        return [int(self.needs[at]) for at in _places(ranks)]

    def place(self, arena: Array, weights: Array, externals: Sequence[Array]) -> None:
        places = [a.ctypes.data for a in externals]
        self._externals = (ctypes.c_void_p * (len(places) + 1))(*places)
        self.words[Word.ARENA] = arena.ctypes.data
        self.words[Word.WEIGHTS] = weights.ctypes.data
        self.words[Word.EXTERNALS] = ctypes.addressof(self._externals)

    def results(self, graph: Graph, blocks: Sequence[Array]) -> list[Array]:
        shapes = [o.shape for o in graph.outputs]
        made: list[Array] = []
        for shape, at, block in zip(shapes, _places([s.rank for s in shapes]), blocks):
            dims = tuple(self.needs[at + 1 : at + 1 + shape.rank])
            made.append(np.ndarray(dims, shape.dtype.numpy, block))
        return made

    def failure(self) -> BaseException:
        if self.error is not None:
            return self.error
        number, code = divmod(self.words[Word.FAILED], 1 << 32)
        label, texts = self.artefact.failures[number]
        return Error(f"{label}: {texts[code - 1] if 0 < code <= len(texts) else 'it failed'}")

    def _called(self, context: int, number: int, buffers: int) -> int:
        """A custom op, called from native code, which an exception must not cross."""
        try:
            self._custom(number, buffers)
        except BaseException as error:
            self.error = error
        return 1 if self.error else 0

    def _custom(self, number: int, buffers: int) -> None:
        step = self.artefact.hosts[number]
        shapes = [s.bind(self.sizes_by_name()) for s in (*step.operands, *step.results)]
        places = (ctypes.c_size_t * len(shapes)).from_address(buffers)
        arrays = [_at(p, s.static_dims, s.dtype.numpy) for p, s in zip(places, shapes)]
        count = len(step.operands)
        attrs = {"name": step.name, "options": step.options}
        made = lookup("custom").evaluate(arrays[:count], attrs, shapes[count:])
        for value, result in zip(made, arrays[count:]):
            result[...] = value


def _spread(plan: BufferPlan, side: Side) -> tuple[BufferPlan, dict[Space, list[int]]]:
    """The plan with every slot in pages of its own, and the pages between, by where they begin.

    A plan whose sizes are formulas stays as it is; only its ends are guarded.
    """
    holes: dict[Space, list[int]] = {space: [] for space in Space}
    slots = plan.assignments.items()
    is_static = all(isinstance(v, int) for _, s in slots for v in (s.offset, s.size))
    if side is Side.TAIL or not is_static:
        return plan, holes
    ends = dict.fromkeys(Space, 0)
    moved: dict[Any, Slot] = {}
    for node, slot in slots:
        if slot.space is Space.STATE:
            moved[node] = slot
            continue
        size = -(-sized(slot.size, {}) // LINE) * LINE
        room = -(-max(size, 1) // PAGE) * PAGE
        at = ends[slot.space]
        holes[slot.space].append(at + room)
        ends[slot.space] += room + PAGE
        offset = at if side is Side.STARTS else at + room - size
        moved[node] = replace(slot, offset=offset, size=at + room + PAGE - offset)
    arena, weights = ends[Space.ARENA], ends[Space.WEIGHTS]
    spread = replace(
        plan,
        assignments=moved,
        in_place={},
        arena_bytes=arena,
        arena_formula=arena,
        weight_bytes=weights,
    )
    return spread, holes


def _places(ranks: Sequence[int]) -> list[int]:
    """Where the needs of each output begin: its bytes, then its dims."""
    starts = np.cumsum([2, *(1 + r for r in ranks)])
    return [int(s) for s in starts[:-1]]


def _forbid(address: int) -> None:
    if c_library().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


def _require_same(given: Sequence[Array], values: Sequence[Array]) -> None:
    for after, before in zip(given, values):
        if after.tobytes() != np.ascontiguousarray(before).tobytes():
            raise Error("the code changed what it was given.")


def _put(memory: Array, at: int, value: Array) -> None:
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    memory[at : at + raw.nbytes] = raw


def _at(address: int, dims: tuple[int, ...], dtype: Any) -> Array:
    size = int(np.prod(dims)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(raw), np.uint8).view(dtype).reshape(dims)
