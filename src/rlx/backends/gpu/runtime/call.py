"""One call of a program: routines run step by step, the device's work enqueued or replayed.

Steps that the device does by itself, in a row, are a segment. A segment that comes again, at the
same sizes and addresses, is recorded and from then on replayed as one graph. Only what the host
must know in between makes it wait: conditions, measured sizes, and ops that it computes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.gpu.device import VECTOR_BYTES, Array, ByteSpan, Device, Graph, Kernel
from rlx.backends.gpu.runtime.memory import Context
from rlx.backends.gpu.runtime.parts import Part, Segment, parts_of
from rlx.backends.gpu.runtime.routine import (
    AnyStep,
    Artefact,
    BranchStep,
    CallStep,
    ChoiceStep,
    CopyStep,
    Found,
    HostStep,
    LaunchStep,
    Operand,
    Place,
    Routine,
    ScanStep,
    SizesStep,
    Span,
    WhileStep,
)
from rlx.core.attrs import bind
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.extent import is_capacity, measure, outgrown
from rlx.core.layout import Layout
from rlx.ops.op import lookup

MAX_GRAPHS = 256
"""Of one context: where sizes or addresses keep changing, recording does not pay."""


class Outgrown(Exception):
    """More was found than a capacity holds; capacities as they are to be."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        super().__init__(capacities)
        self.capacities = capacities


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an array. Kernels count on aligned addresses, so a row that may be at another is
    copied to a room, or from it."""

    start: int
    size: int
    room: int

    @property
    def address(self) -> int:
        """What a routine is given."""
        return self.room or self.start

    def at(self, number: int) -> Row:
        """The row so many behind this one."""
        return Row(self.start + number * self.size, self.size, self.room)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An artefact whose code is loaded on a device, with the parts of its routines."""

    artefact: Artefact
    device: Device
    kernels: tuple[Kernel, ...]
    prologues: Mapping[str, tuple[Part, ...]]
    bodies: Mapping[str, tuple[Part, ...]]

    @classmethod
    def of(cls, artefact: Artefact, device: Device) -> Loaded:
        routines = artefact.routines.values()
        return cls(
            artefact,
            device,
            tuple(map(device.load, artefact.codes)),
            {r.name: parts_of(r.prologue) for r in routines},
            {r.name: parts_of(r.steps) for r in routines},
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """A routine that runs."""

    routine: Routine
    address: int
    externals: tuple[int, ...]


class Call:
    """A call in a context, with weights at an address and sizes of named dims."""

    def __init__(
        self, loaded: Loaded, context: Context, weights: int, sizes: Mapping[str, int]
    ) -> None:
        self.loaded, self.context, self.weights = loaded, context, weights
        self.queue, self.routines = context.queue, loaded.artefact.routines
        self.begin(sizes)
        self.replayed: Graph | None = None
        """The graph of the last segment, if it was replayed."""

    def begin(self, sizes: Mapping[str, int]) -> None:
        """Run from now on with these sizes, until more are measured."""
        self.sizes = dict(sizes)
        self._values: dict[Dim, int] = {}
        """Of dims, at the sizes known."""

    # -- routines --------------------------------------------------------------------------------

    def run(self, name: str, externals: Sequence[int]) -> None:
        """A routine on the addresses of its inputs, params and outputs."""
        routine = self.routines[name]
        self._run(routine, externals, self.loaded.bodies[name], routine.frame)

    def enter(self, name: str, externals: Sequence[int]) -> Frame:
        """The frame of a routine that runs phase by phase. It stays until the context is given
        back."""
        routine = self.routines[name]
        address, _ = self.context.frames.push(self._frame_bytes(routine, routine.frame))
        return Frame(routine, address, tuple(externals))

    def go(self, frame: Frame, parts: Sequence[Part]) -> None:
        """Some of the parts of a routine."""
        for part in parts:
            self._part(part, frame)

    def prepare(self, name: str, externals: Sequence[int], done: set[str]) -> None:
        """The prologue of a routine and of those that it calls: what follows from params alone.
        Inputs and outputs are not known yet."""
        if name in done:
            return
        done.add(name)
        routine = self.routines[name]
        self._run(routine, externals, self.loaded.prologues[name], routine.prologue_frame)
        frame = Frame(routine, 0, tuple(externals))
        for step in (*routine.prologue, *routine.steps):
            for body, operands in _bodies(step):
                given = [self._known(p, frame) for p in operands]
                outputs = [0] * len(self.routines[body].outputs)
                self.prepare(body, self.routines[body].externals([*given, *outputs]), done)

    def _known(self, place: Place, frame: Frame) -> int:
        """The address of a weight; 0 of what only a call has."""
        return 0 if place.space == "frame" else self._at(place, frame)

    def _run(
        self,
        routine: Routine,
        externals: Sequence[int],
        parts: Sequence[Part],
        sizes: Sequence[DimLike],
    ) -> None:
        if not parts:
            return
        address, mark = self.context.frames.push(self._frame_bytes(routine, sizes))
        frame = Frame(routine, address, tuple(externals))
        for part in parts:
            self._part(part, frame)
        self.context.frames.pop(mark)

    def _frame_bytes(self, routine: Routine, sizes: Sequence[DimLike]) -> int:
        """The greatest of the sizes of a frame, of which there are hundreds."""
        key = routine.name, sizes is routine.frame, tuple(self.sizes.items())
        found = self.context.frame_bytes.get(key)
        if found is None:
            found = max(map(self._int, sizes))
            if len(self.context.frame_bytes) < MAX_GRAPHS:
                self.context.frame_bytes[key] = found
        return found

    def _part(self, part: Part, frame: Frame) -> None:
        match part:
            case Segment():
                self._segment(part, frame)
            case SizesStep():
                self._read_sizes(part)
            case HostStep():
                self._host(part, frame)
            case CallStep():
                self._called(part.body, self._all(part.operands, part.results, frame))
            case BranchStep():
                self._branch(part, frame)
            case WhileStep():
                self._while(part, frame)
            case ScanStep():
                self._scan(part, frame)

    def _called(self, body: str, given: list[int]) -> None:
        self.run(body, self.routines[body].externals(given))

    # -- addresses -------------------------------------------------------------------------------

    def _int(self, dim: DimLike) -> int:
        if not isinstance(dim, Dim):
            return dim
        found = self._values.get(dim)
        if found is None:
            found = self._values[dim] = evaluate(dim, self.sizes)
        return found

    def _at(self, place: Place, frame: Frame) -> int:
        match place.space:
            case "frame":
                return frame.address + self._int(place.offset)
            case "weights":
                return self.weights + self._int(place.offset)
            case "external":
                return frame.externals[place.index] + self._int(place.offset)
            case "size":
                return self.context.sizes.address + 8 * place.index
            case "failure":
                return self.context.failures.address + 4 * place.index

    def _all(self, operands: Sequence[Place], results: Sequence[Place], frame: Frame) -> list[int]:
        return [self._at(p, frame) for p in (*operands, *results)]

    def _bytes_of(self, span: Span) -> ByteSpan:
        """The first byte of what a layout has, and the end; nothing where it is empty."""
        _, _, _, low, high = self._reach(span.layout, span.itemsize)
        return low, high

    # -- segments --------------------------------------------------------------------------------

    def _segment(self, segment: Segment, frame: Frame) -> None:
        context = self.context
        sizes = tuple(self.sizes.items())
        key = frame.routine.name, segment.number, frame.address, frame.externals, sizes
        self.replayed = graph = context.graphs.get(key)
        if graph is not None:
            graph.replay()
        elif key not in context.seen or len(context.graphs) >= MAX_GRAPHS:
            if len(context.seen) < MAX_GRAPHS:
                context.seen.add(key)
                launched = (s.code for s in self.launches([segment]))
                self.loaded.device.ready([self.loaded.kernels[code] for code in launched])
            self._enqueue(segment, frame)
        else:
            self.replayed = graph = context.graphs[key] = self.queue.record(
                lambda: self._enqueue(segment, frame)
            )
            graph.replay()

    def _enqueue(self, segment: Segment, frame: Frame) -> None:
        self.queue.order()
        for step in self._chosen(segment):
            if isinstance(step, LaunchStep):
                self._launch(step, frame)
            elif size := self._int(step.size):
                self.queue.copy(self._at(step.to, frame), self._at(step.source, frame), size)

    def _launch(self, step: LaunchStep, frame: Frame) -> None:
        addresses = [self._at(p, frame) for p in step.places]
        kernel = self.loaded.kernels[step.code]
        try:
            self.queue.launch_within(
                kernel, addresses, self.sizes, lambda: list(map(self._bytes_of, step.spans))
            )
        except UnsupportedError as error:
            raise UnsupportedError(f"{step.label}: {error}") from None

    def _chosen(self, segment: Segment) -> Iterator[LaunchStep | CopyStep]:
        """The steps as they are at these sizes."""
        for step in segment.steps:
            if isinstance(step, ChoiceStep):
                yield from step.alternatives[step.buckets.at(self._int)]
            else:
                yield step

    def launches(self, parts: Sequence[Part]) -> Iterator[LaunchStep]:
        """Those of segments, at these sizes."""
        segments = (p for p in parts if isinstance(p, Segment))
        steps = (s for segment in segments for s in self._chosen(segment))
        return (s for s in steps if isinstance(s, LaunchStep))

    def segment_times(
        self, parts: Sequence[Part], externals: Sequence[int], repeats: int
    ) -> Iterator[tuple[str, float]]:
        """The launches of the main routine's segments, each repeated as a graph: names and µs."""
        routine = self.routines[self.loaded.artefact.main]
        address, mark = self.context.frames.push(max(self._int(f) for f in routine.frame))
        frame = Frame(routine, address, tuple(externals))
        for step in self.launches(parts):
            one = Segment(0, (step,) * repeats)
            graph = self.queue.record(lambda o=one: self._enqueue(o, frame))
            graph.replay()
            times = sorted(self.queue.time_ns(graph.replay) for _ in range(5))
            graph.close()
            code = self.loaded.artefact.codes[step.code]
            yield f"{step.label} {code.name}", times[2] / repeats / 1e3
        self.context.frames.pop(mark)

    # -- what the host must know -----------------------------------------------------------------

    def _bytes(self, address: int, size: int) -> Array:
        """Bytes of the device, as they are when all before is done."""
        found = np.empty(size, np.uint8)
        if size:
            self.queue.read(address, found)
            self.queue.wait()
        return found

    def found(self, sizes: Mapping[str, int]) -> None:
        """Sizes that a step has measured; a capacity may have to grow first."""
        self.begin({**self.sizes, **sizes})
        if more := outgrown(self.sizes):
            raise Outgrown(more)

    def _read_sizes(self, step: SizesStep) -> None:
        symbols, table = self.loaded.artefact.symbols, self.context.sizes.address
        rows = {n: symbols.index(n) for n in step.names if n in symbols}
        raw = {n: self._bytes(table + 8 * row, 8).view(np.int64) for n, row in rows.items()}
        self.found({n: int(v[0]) for n, v in raw.items()})

    def settle(self, found: Found) -> None:
        self.found({name: self._int(dim) for name, dim in found})

    def _host(self, step: HostStep, frame: Frame) -> None:
        """An op by its NumPy meaning, between two transfers."""
        operands = [self._read(o, frame) for o in step.operands]
        known = {n: s for n, s in self.sizes.items() if not is_capacity(n)}
        known = {n: s for n, s in known.items() if n not in step.measured}
        attrs = {k: bind(v, known) for k, v in step.attrs.items()} if known else step.attrs
        shapes = [r.shape.bind(known) for r in step.results]
        try:
            made = lookup(step.op).evaluate(operands, attrs, shapes)
        except GraphError:
            raise
        except Error as error:
            raise Error(f"{step.label}: {error}") from None
        arrays: Sequence[Any] = made if isinstance(made, tuple) else (made,)
        for shape, array in zip(shapes, arrays):
            if shape.is_measured:
                known.update(measure(shape.dims, array.shape))
        self.found({n: known[n] for n in step.measured if n in known})
        for operand, array in zip(step.results, arrays):
            self._write(operand, np.asarray(array, operand.shape.dtype.numpy), frame)

    def _read(self, operand: Operand, frame: Frame) -> Array:
        """A value as an array: the bytes that its layout reaches."""
        dims, strides, offset, low, high = self._reach(operand.layout, operand.shape.dtype.itemsize)
        dtype = np.dtype(operand.shape.dtype.numpy)
        if 0 in dims:
            return np.empty(dims, dtype)
        raw = self._bytes(self._at(operand.place, frame) + low, high - low)
        return np.ndarray(dims, dtype, raw, offset - low, strides)

    def _write(self, operand: Operand, array: Array, frame: Frame) -> None:
        dims, strides, offset, low, high = self._reach(operand.layout, operand.shape.dtype.itemsize)
        if 0 in dims:
            return
        address = self._at(operand.place, frame) + low
        dense = operand.layout.is_contiguous
        raw = np.empty(high - low, np.uint8) if dense else self._bytes(address, high - low)
        view = np.ndarray(dims, np.dtype(operand.shape.dtype.numpy), raw, offset - low, strides)
        view[...] = array
        self.queue.write(address, raw)

    def _reach(self, layout: Layout, size: int) -> tuple[list[int], list[int], int, int, int]:
        """Dims and byte strides of a layout, its first element's byte, and the first byte that it
        has and the end of them."""
        dims = [self._int(d) for d in layout.dims]
        strides = [self._int(s) * size for s in layout.strides]
        offset = self._int(layout.offset) * size
        if 0 in dims:
            return dims, strides, offset, 0, 0
        ends = [(n - 1) * s for n, s in zip(dims, strides)]
        low = offset + sum(e for e in ends if e < 0)
        return dims, strides, offset, low, offset + sum(e for e in ends if e > 0) + size

    # -- control flow ----------------------------------------------------------------------------

    def _branch(self, step: BranchStep, frame: Frame) -> None:
        side = 0 if self._bytes(self._at(step.condition, frame), 1)[0] else 1
        self._called(step.bodies[side], self._all(step.operands, step.results, frame))
        self.settle(step.found[side])

    def _carried(self, body: str, count: int) -> list[int]:
        """New room for what a body carries on."""
        outputs = self.routines[body].outputs[:count]
        return [self.context.frames.push(self._int(size))[0] for size in outputs]

    def _while(self, step: WhileStep, frame: Frame) -> None:
        given = self._all(step.operands, (), frame)
        results = self._all((), step.results, frame)
        carries, seen = given[: step.num_carries], given[step.num_carries :]
        mark = self.context.frames.mark
        flag, _ = self.context.frames.push(1)
        self.settle(step.first)
        ends = results[step.num_carries :]
        turn = 0
        while step.limit is None or turn < step.limit:
            self._called(step.condition, [*carries, *seen, flag])
            if not self._bytes(flag, 1)[0]:
                break
            turn += 1
            self._stacked(step, turn)
            made = self._carried(step.body, step.num_carries)
            sizes = [self._int(s) for s in step.row_sizes]
            rows = [Row(e, s, self._room(e, s)) for e, s in zip(ends, sizes)]
            self._called(step.body, [*carries, *seen, *made, *(r.address for r in rows)])
            self._stored(rows)
            self.settle(step.next)
            carries = made
            ends = [e + self._int(s) for e, s in zip(ends, step.row_sizes)]
        self._stacked(step, turn)
        self._copied(results, carries, step.sizes)
        self.context.frames.pop(mark)

    def _stacked(self, step: WhileStep, turn: int) -> None:
        if step.rows:
            self.found({step.rows: turn})

    def _copied(self, to: Sequence[int], sources: Sequence[int], sizes: Sequence[DimLike]) -> None:
        for target, source, size in zip(to, sources, sizes):
            if target != source and (count := self._int(size)):
                self.queue.copy(target, source, count)

    def _scan(self, step: ScanStep, frame: Frame) -> None:
        count, end = step.num_carries, step.num_carries + step.num_bcasts
        given = self._all(step.operands, (), frame)
        results = self._all((), step.results, frame)
        carries, length = given[:count], self._int(step.length)
        mark = self.context.frames.mark
        rooms = [self._carried(step.body, count) for _ in range(2)]
        slices = self._rows(given[end:], step.slice_sizes)
        rows = self._rows(results[count:], step.row_sizes)
        for turn in range(length):
            at = length - 1 - turn if step.is_reversed else turn
            read, written = ([r.at(at) for r in each] for each in (slices, rows))
            self._loaded(read)
            made = rooms[turn % 2]
            addresses = [r.address for r in (*read, *written)]
            inputs, outputs = addresses[: len(read)], addresses[len(read) :]
            self._called(step.body, [*carries, *given[count:end], *inputs, *made, *outputs])
            self._stored(written)
            carries = made
        self._copied(results, carries, step.sizes)
        self.context.frames.pop(mark)

    # -- rows that routines are given -------------------------------------------------------------

    def _rows(self, addresses: Sequence[int], sizes: Sequence[DimLike]) -> list[Row]:
        """The first row of each of some arrays."""
        known = [(a, self._int(s)) for a, s in zip(addresses, sizes)]
        return [Row(a, size, self._room(a, size)) for a, size in known]

    def _room(self, address: int, size: int) -> int:
        """A place for a row, where those from an address on are not all aligned; 0 where they
        are."""
        is_aligned = address % VECTOR_BYTES == 0 and size % VECTOR_BYTES == 0
        return 0 if is_aligned else self.context.frames.push(size)[0]

    def _loaded(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.room and row.size:
                self.queue.copy(row.room, row.start, row.size)

    def _stored(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.room and row.size:
                self.queue.copy(row.start, row.room, row.size)


def _bodies(step: AnyStep) -> Iterator[tuple[str, tuple[Place, ...]]]:
    """The routines that a step calls, and the operands that each is given."""
    match step:
        case CallStep():
            yield step.body, step.operands
        case BranchStep():
            for body in step.bodies:
                yield body, step.operands
        case WhileStep():
            yield step.condition, step.operands
            yield step.body, step.operands
        case ScanStep():
            yield step.body, step.operands
        case _:
            return
