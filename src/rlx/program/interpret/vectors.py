"""Vector programs on NumPy, one task after the other, with every access to memory watched.

An access outside of its buffer, a read of bytes that nothing wrote, an address that is not aligned
as the program says, and two tasks that touch one byte of which one writes, are errors that name
the kernel, the buffer and the bytes. What no program may depend on has bits that none expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.errors import ProgramError
from rlx.program.interpret.arithmetic import UNEXPECTED, Array, evaluate, unexpected
from rlx.program.nodes import Node, Region, Value
from rlx.program.types import Address, dtype_of
from rlx.program.vector_program import VectorProgram

NOBODY, SEVERAL = -1, -2


class Memory:
    """A buffer: its bytes, which of them were written, and the tasks that read or wrote each."""

    def __init__(
        self, name: str, array: Array, *, is_written: bool = True, is_padded: bool = False
    ) -> None:
        """Of a padded one, a vector may be read whose first element alone was written."""
        self.name, self.is_padded = name, is_padded
        self.bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        self.is_written = np.full(self.bytes.size, is_written)
        self.writer = np.full(self.bytes.size, NOBODY)
        self.reader = np.full(self.bytes.size, NOBODY)
        self.places: dict[int, Place] = {}
        """Addresses that are stored in it."""

    def array(self, dtype: np.dtype[Any]) -> Array:
        return self.bytes.view(dtype)


@dataclass(frozen=True, slots=True)
class Place:
    """An address, or one for each lane: a buffer, and bytes from its start."""

    memory: Memory
    offset: Array


class FunctionReturn(Exception):
    """The function has returned."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Kernel:
    """A program with its buffers and sizes, to be run task by task."""

    program: VectorProgram
    buffers: Sequence[Memory]
    sizes: Sequence[int]
    scratch_bytes: int = 0
    task: int = field(default=NOBODY, init=False)

    def run(self, start: int, stop: int) -> int:
        """One task: what the function returns."""
        self.task += 1
        try:
            with np.errstate(all="ignore"):
                _Run(self, start, stop).whole()
        except FunctionReturn as end:
            return end.code
        return 0


class _Run:
    """One call of a function."""

    def __init__(self, kernel: Kernel, start: int, stop: int) -> None:
        self.kernel, self.program = kernel, kernel.program
        self.lanes = self.program.lanes
        self.values: dict[Value, Any] = {}
        given: dict[str, Any] = {
            "%start": np.array([start]), "%stop": np.array([stop]),
            "%sizes": _place(Memory("sizes", np.array([*kernel.sizes, 0], np.int64))),
            "%buffers": _place(self._pointers(kernel.buffers)),
            "%scratch": _place(
                Memory(
                    "scratch",
                    np.full(kernel.scratch_bytes, UNEXPECTED, np.uint8),
                    is_written=False,
                    is_padded=True,
                )
            ),
            **self._tables(),
        }  # fmt: skip
        for name, value in self.program.arguments.items():
            if name in given:
                self.values[value] = given[name]

    def _pointers(self, buffers: Sequence[Memory]) -> Memory:
        memory = Memory("buffers", np.zeros(8 * len(buffers), np.uint8))
        memory.places = {8 * i: _place(b) for i, b in enumerate(buffers)}
        return memory

    def _tables(self) -> dict[str, Place]:
        tables = self.program.tables.items()
        return {n: _place(Memory(n, np.array(v, d.numpy))) for n, (d, v) in tables}

    def whole(self) -> None:
        self._constants(self.program.constants)
        self.nodes(self.program.nodes)

    def _constants(self, constants: Mapping[Value, ir.Number]) -> None:
        for value, number in constants.items():
            count = self.lanes if isinstance(value.type, DType) else 1
            self.values[value] = np.repeat(_number(number, value.dtype), count)

    # -- nodes ----------------------------------------------------------------------------------

    def nodes(self, nodes: Any) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        act = _ACTS.get(type(node))
        if act is not None:
            act(self, node)
            return
        result = evaluate(node, [self.values[a] for a in node.args])
        if result is None:
            raise self.error(f"{type(node).__name__} cannot be interpreted")
        self.values[node.result] = result

    def args(self, node: Node) -> list[Any]:
        return [self.values[a] for a in node.args]

    def error(self, why: str) -> ProgramError:
        return ProgramError(f"{self.program.name}, task {self.kernel.task}: {why}.")

    # -- lanes ----------------------------------------------------------------------------------

    def broadcast(self, node: vec.Broadcast) -> None:
        self.values[node.result] = np.repeat(self.args(node)[0], self.lanes)

    def lane_index(self, node: vec.LaneIndex) -> None:
        self.values[node.result] = np.arange(self.lanes, dtype=node.result.dtype.numpy)

    def vector_const(self, node: vec.VectorConst) -> None:
        numbers = [_number(n, node.result.dtype) for n in node.numbers]
        self.values[node.result] = np.concatenate(numbers)

    def first_lane(self, node: vec.FirstLane) -> None:
        mask = np.zeros(self.lanes, bool)
        mask[:1] = self.args(node)[0]
        self.values[node.result] = mask

    def extract(self, node: vec.ExtractLane) -> None:
        self.values[node.result] = self.args(node)[0][node.lane : node.lane + 1]

    def permute(self, node: vec.Permute) -> None:
        both = np.concatenate(self.args(node))
        picks = np.array(node.picks)
        chosen = both[np.maximum(picks, 0)]
        self.values[node.result] = np.where(picks < 0, unexpected(both.dtype), chosen)

    def opaque_mask(self, node: vec.OpaqueMask) -> None:
        self.values[node.result] = self.args(node)[0]

    def scale(self, node: vec.Scale) -> None:
        x, n = self.args(node)
        self.values[node.result] = np.ldexp(x, np.clip(n, -4096, 4096).astype(np.int32))

    def any_lane(self, node: vec.AnyLane) -> None:
        self.values[node.result] = np.array([self.args(node)[0].any()])

    def unordered(self, node: vec.Unordered) -> None:
        left, right = self.args(node)
        self.values[node.result] = np.isnan(left) | np.isnan(right)

    def saturating(self, node: vec.SaturatingConvert) -> None:
        dtype = node.result.dtype.numpy
        number = np.trunc(np.nan_to_num(self.args(node)[0], nan=0.0, posinf=np.inf, neginf=-np.inf))
        low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
        inside = (number > low) & (number < high)
        with np.errstate(invalid="ignore"):
            whole = np.where(inside, number, 0).astype(dtype)
        ends = np.where(number >= high, np.iinfo(dtype).max, np.iinfo(dtype).min).astype(dtype)
        self.values[node.result] = np.where(inside, whole, ends)

    def intrinsic(self, node: vec.Intrinsic) -> None:
        function = _INTRINSICS.get(node.name)
        if function is None:
            raise self.error(f"the instruction {node.name} cannot be interpreted")
        self.values[node.result] = function(*self.args(node))

    def call(self, node: ir.Call) -> None:
        self.values[node.result] = _FUNCTIONS[node.function](*self.args(node))

    def function_call(self, node: vec.FunctionCall) -> None:
        outline = self.program.outlines[node.function]
        self._constants(outline.constants)
        for name, value in outline.tables.items():
            dtype, numbers = self.program.tables[name]
            self.values[value] = _place(Memory(name, np.array(numbers, dtype.numpy)))
        (result,) = self.region(outline.region, self.args(node))
        self.values[node.result] = result

    # -- memory ---------------------------------------------------------------------------------

    def advance(self, node: vec.Advance) -> None:
        base, index = self.args(node)
        size = 8 if isinstance(node.element, Address) else dtype_of(node.element).itemsize
        offset = base.offset + index.astype(np.int64) * size
        self.values[node.result] = Place(base.memory, offset)

    def local(self, node: vec.Local) -> None:
        kind = node.kind
        count = self.lanes if isinstance(kind, DType) else 1
        size = 8 if isinstance(kind, Address) else dtype_of(kind).itemsize
        memory = Memory("a local variable", np.zeros(count * size, np.uint8), is_written=False)
        self.values[node.result] = _place(memory)

    def load(self, node: vec.Load) -> None:
        where, *mask = self.args(node)
        kind = node.result.type
        if isinstance(kind, Address):
            self._touch(where, 8, np.ones(1, bool), 0, is_store=False)
            self.values[node.result] = where.memory.places[int(where.offset[0])]
            return
        dtype = dtype_of(kind).numpy
        lanes = self._lanes(where, isinstance(kind, DType), dtype.itemsize)
        active = mask[0] if mask else np.ones(lanes.offset.size, bool)
        places = self._touch(lanes, dtype.itemsize, active, node.align, is_store=False)
        found = np.zeros(lanes.offset.size, dtype)
        found[active] = where.memory.bytes[places].view(dtype).reshape(-1)
        self.values[node.result] = found

    def store(self, node: vec.Store) -> None:
        where, value, *mask = self.args(node)
        if isinstance(value, Place):
            places = self._touch(where, 8, np.ones(1, bool), 0, is_store=True)
            where.memory.places[int(where.offset[0])] = value
            where.memory.is_written[places] = True
            return
        is_vector = isinstance(node.args[1].type, DType)
        lanes = self._lanes(where, is_vector, value.dtype.itemsize)
        active = mask[0] if mask else np.ones(lanes.offset.size, bool)
        places = self._touch(lanes, value.dtype.itemsize, active, node.align, is_store=True)
        data = np.ascontiguousarray(value[active]).view(np.uint8).reshape(places.shape)
        where.memory.bytes[places] = data
        where.memory.is_written[places] = True

    def _lanes(self, where: Place, is_vector: bool, size: int) -> Place:
        """The address of each element."""
        if not is_vector or where.offset.size == self.lanes > 1:
            return where
        return Place(where.memory, where.offset + np.arange(self.lanes) * size)

    def _touch(self, where: Place, size: int, mask: Array, align: int, *, is_store: bool) -> Array:
        """The bytes of each element that is accessed, if it may be."""
        memory, word = where.memory, "writes" if is_store else "reads"
        offsets = where.offset[mask]
        places = offsets[:, None] + np.arange(size)
        if align and mask.any() and (where.offset[:1] % min(align, size)).any():
            raise self.error(f"{word} {memory.name} at an address that is not aligned to {align}")
        if places.size and (places.min() < 0 or places.max() >= memory.bytes.size):
            end = memory.bytes.size
            raise self.error(
                f"{word} bytes {places.min()}..{places.max()} of {memory.name}, which has {end}"
            )
        vital = places[:1] if memory.is_padded else places
        if not is_store and not memory.is_written[vital].all():
            raise self.error(f"reads bytes of {memory.name} that nothing wrote: {_span(places)}")
        self._order(memory, places, word, is_store=is_store)
        return places

    def _order(self, memory: Memory, places: Array, word: str, *, is_store: bool) -> None:
        """No other task may have written these bytes, nor read what is written here."""
        task = self.kernel.task
        others = [memory.writer, *([memory.reader] if is_store else [])]
        for touched in others:
            if ((touched[places] != NOBODY) & (touched[places] != task)).any():
                raise self.error(f"{word} bytes of {memory.name} that another task touches")
        if is_store:
            memory.writer[places] = task
        else:
            is_new = np.isin(memory.reader[places], (NOBODY, task))
            memory.reader[places] = np.where(is_new, task, SEVERAL)

    # -- control --------------------------------------------------------------------------------

    def region(self, region: Region, params: Sequence[Any]) -> list[Any]:
        self.values.update(zip(region.params, params))
        self.nodes(region.nodes)
        return [self.values[v] for v in region.yields]

    def count(self, node: ir.For) -> None:
        low, high, step = (int(a[0]) for a in self.args(node))
        for number in range(low, high, step):
            self.region(node.regions[0], [np.array([number])])

    def branch(self, node: ir.If) -> None:
        if self.args(node)[0][0]:
            self.region(node.regions[0], [])

    def repeat(self, node: ir.While) -> None:
        condition, step = node.regions
        values = self.args(node)
        while self.region(condition, values)[0][0]:
            values = self.region(step, values)
        self.values.update(zip(node.results, values))

    def poll(self, node: vec.Poll) -> None:
        """Nothing interrupts."""

    def function_return(self, node: vec.Return) -> None:
        raise FunctionReturn(node.code)

    def fail_if(self, node: vec.FailIf) -> None:
        if self.args(node)[0][0]:
            raise FunctionReturn(node.code)

    def verbatim(self, node: vec.Verbatim) -> None:
        raise self.error(f"nothing is known of {node.lines[0].strip()!r}")


def _number(number: ir.Number, dtype: DType) -> Array:
    """A constant: of integers the low bits."""
    if dtype.is_float or dtype is DType.BOOL:
        return np.array([number], dtype.numpy)
    bits = int(number) & ((1 << 8 * dtype.itemsize) - 1)
    return np.array([bits], f"u{dtype.itemsize}").view(dtype.numpy)


def _place(memory: Memory) -> Place:
    return Place(memory, np.array([0]))


def _span(places: Array) -> str:
    return f"{places.min()}..{places.max()}"


_FUNCTIONS: dict[str, Callable[..., Any]] = {"sqrt": np.sqrt, "copysign": np.copysign}
_INTRINSICS: dict[str, Callable[..., Any]] = {
    "smin": np.minimum, "smax": np.maximum, "umin": np.minimum, "umax": np.maximum,
}  # fmt: skip
_ACTS: dict[type[Node], Callable[[_Run, Any], None]] = {
    vec.Broadcast: _Run.broadcast, vec.LaneIndex: _Run.lane_index,
    vec.VectorConst: _Run.vector_const,
    vec.OpaqueMask: _Run.opaque_mask, vec.Scale: _Run.scale, vec.FirstLane: _Run.first_lane,
    vec.ExtractLane: _Run.extract, vec.Permute: _Run.permute,
    vec.AnyLane: _Run.any_lane, vec.Unordered: _Run.unordered, ir.Call: _Run.call,
    vec.SaturatingConvert: _Run.saturating, vec.Intrinsic: _Run.intrinsic,
    vec.FunctionCall: _Run.function_call, vec.Advance: _Run.advance, vec.Local: _Run.local,
    vec.Load: _Run.load, vec.Store: _Run.store, ir.For: _Run.count, ir.If: _Run.branch,
    ir.While: _Run.repeat, vec.Poll: _Run.poll, vec.Return: _Run.function_return,
    vec.FailIf: _Run.fail_if, vec.Verbatim: _Run.verbatim,
}  # fmt: skip
