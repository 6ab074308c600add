"""A program in memory: params on the device, what follows from them made once, calls that may run
beside each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rlx.backends.base import Program
from rlx.backends.gpu.arrays.device_array import (
    DeviceArray,
    current_stream,
    device_array,
    is_on_device,
)
from rlx.backends.gpu.device import Array, Device
from rlx.backends.gpu.runtime.bound import Begun, BoundCall
from rlx.backends.gpu.runtime.call import Call, Frame, Loaded, Outgrown
from rlx.backends.gpu.runtime.given import Given, Signatures, is_usable, placed
from rlx.backends.gpu.runtime.memory import Block, Context, Contexts
from rlx.backends.gpu.runtime.parts import Part, parts_of
from rlx.backends.gpu.runtime.routine import Artefact, LaunchStep, as_bytes
from rlx.backends.gpu.runtime.states import DeviceState, DeviceStates
from rlx.backends.timing import CodegenSpan
from rlx.core.arrays import as_array
from rlx.core.dim import evaluate
from rlx.core.errors import Error
from rlx.core.extent import FIRST_CAPACITY, ceiling
from rlx.core.shape import Shape
from rlx.ir.interpret import infer_binding

GROWTH = 128
"""Capacities grow by no more at once, so that what a call would need can be compared with what
there is before a product of capacities is beyond all memory."""

NOTHING: Array = np.empty(0, np.uint8)
"""What an array of the device shares with those of the host."""
Outputs: TypeAlias = Callable[[Context, Sequence[int]], list[int]]
"""Makes room for outputs of these sizes."""


@dataclass(slots=True)
class Weights:
    """Params on the device, what follows from them alone, and the contexts of calls with them."""

    params: Mapping[str, Array]
    uploaded: Mapping[str, Block]
    block: Block
    sizes: Mapping[str, int]
    contexts: Contexts
    capacities: dict[str, int]
    """As large as a call needed them so far."""
    signatures: Signatures


@dataclass(eq=False)
class Step:
    """What a step leaves to the Epilogue: a context that no other call uses meanwhile."""

    weights: Weights
    context: Context
    given: Given
    is_on_device: bool
    """Do results stay there?"""
    call: Call
    frame: Frame
    outputs: Sequence[int]
    """Their addresses."""

    def __post_init__(self) -> None:
        release = weakref.finalize(self, _released, self.weights.contexts, self.context)
        release.atexit = False


EPILOGUE_PARTS = 1 << 20
"""The number of its first part: recorded graphs are known by the numbers of parts."""
STEADY_PARTS = 2 << 20


class GpuProgram(Program):
    """A loaded artefact."""

    def __init__(self, artefact: Artefact, device: Device) -> None:
        self.artefact, self.interface, self.device = artefact, artefact.interface, device
        self._loaded = Loaded.of(artefact, device)
        device.ready([self._loaded.kernels[i] for i in _launched(artefact)])
        self._states = DeviceStates(device)
        main, late = artefact.routines[artefact.main], artefact.interface.late
        self._late = late
        self._early = tuple(i for i in range(len(main.outputs)) if i not in late)
        self._steady = parts_of(main.phase(self._early, is_late=False), STEADY_PARTS)
        self._epilogue = parts_of(main.phase(late, is_late=True), EPILOGUE_PARTS)

    @property
    def states(self) -> DeviceStates:
        return self._states

    # -- weights ---------------------------------------------------------------------------------

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        sizes = infer_binding(self.interface.params, params)
        artefact = self.artefact
        contexts = Contexts(self.device, len(artefact.symbols), len(artefact.failures))
        context = contexts.take()
        uploaded = {
            n.name: self._uploaded(n.name, params, old, context) for n in self.interface.params
        }
        block = Block(self.device, max(1, evaluate(ceiling(artefact.weight_bytes), sizes)))
        for constant in artefact.constants:
            raw = as_bytes(constant.value)
            if raw.nbytes:
                context.queue.write(block.address + evaluate(constant.offset, sizes), raw)
        capacities = dict.fromkeys(artefact.capacities, FIRST_CAPACITY)
        held = dict(params)
        signatures = Signatures(self.interface, held)
        weights = Weights(held, uploaded, block, sizes, contexts, capacities, signatures)
        call = Call(self._loaded, context, block.address, {**capacities, **sizes})
        call.prepare(artefact.main, self._externals(weights, None, None), set())
        self._check(context)
        contexts.give(context)
        return weights

    def _uploaded(
        self, name: str, params: Mapping[str, Array], old: Weights | None, context: Context
    ) -> Block:
        array = params[name]
        if old is not None and old.params.get(name) is array:
            return old.uploaded[name]
        made = Block(self.device, array.nbytes)
        if array.nbytes:
            context.queue.write(made.address, np.ascontiguousarray(array))
        return made

    def _externals(
        self, weights: Weights, inputs: Sequence[int] | None, outputs: Sequence[int] | None
    ) -> list[int]:
        """Addresses in the order of the main routine; 0 of what is not known yet."""
        params = [weights.uploaded[n.name].address for n in self.interface.params]
        given = inputs if inputs is not None else [0] * len(self.interface.inputs)
        made = outputs if outputs is not None else [0] * len(self.interface.outputs)
        return [*given, *params, *made]

    # -- phases ----------------------------------------------------------------------------------

    def step(self, weights: Weights, inputs: Sequence[Any]) -> tuple[list[Any], Step]:
        """Outputs are on the device where all inputs are, in memory that is the caller's."""
        context = weights.contexts.take()
        try:
            given = placed(self.interface, weights.signatures, context, inputs, anew=False)
            self._hold(weights, context, given, inputs)
            own = [
                is_on_device(a) for a, n in zip(inputs, self.interface.inputs) if n.op == "input"
            ]
            call, frame, made = self._stepped(weights, context, given, self._steady)
            state = Step(weights, context, given, all(own) and bool(own), call, frame, made)
        except BaseException:
            context.abandon()
            weights.contexts.give(context)
            raise
        found = self._outputs(state, self._early)
        for stream in given.streams:
            context.queue.release_to(stream)
        return found, state

    def finish(self, state: Step) -> list[Any]:
        try:
            state.call.go(state.frame, self._epilogue)
        except Outgrown as error:
            _grow(state.weights, state.context, error)
            both = (*self._steady, *self._epilogue)
            state.call, state.frame, state.outputs = self._stepped(
                state.weights, state.context, state.given, both
            )
        return self._outputs(state, self._late)

    def _hold(
        self, weights: Weights, context: Context, given: Given, inputs: Sequence[Any]
    ) -> None:
        """Copies of arrays of the device that are read at the end: whoever gave them may write them
        before. Where the Epilogue may find too little room, all of them are read again."""
        leaves, everything = self.interface.inputs, bool(weights.capacities)
        for number, (leaf, array) in enumerate(zip(leaves, inputs)):
            is_read = everything or number in self.interface.held_inputs
            if leaf.op != "input" or not is_read or not is_on_device(array):
                continue
            size = evaluate(leaf.shape.size_bytes, given.sizes)
            block = context.staging("held", number, size)
            if size:
                context.queue.copy(block.address, given.addresses[number], size)
            given.addresses[number] = block.address

    def _stepped(
        self, weights: Weights, context: Context, given: Given, parts: Sequence[Part]
    ) -> tuple[Call, Frame, list[int]]:
        """Parts of a call that were run in a frame that stays, and where outputs are."""
        main = self.artefact.routines[self.artefact.main]
        while True:
            sizes = {**weights.capacities, **given.sizes}
            try:
                made = self._staged(context, [evaluate(size, sizes) for size in main.outputs])
                call = self._call(context, weights, sizes)
                frame = call.enter(main.name, self._externals(weights, given.addresses, made))
                call.go(frame, parts)
            except Outgrown as error:
                _grow(weights, context, error)
            else:
                return call, frame, made

    def _outputs(self, state: Step, numbers: Collection[int]) -> list[Any]:
        """These outputs, copied to the host or to memory of the device that is the caller's; None
        for others."""
        context, every = state.context, enumerate(self.interface.outputs)
        shapes = {i: shape.bind(state.call.sizes) for i, (_, shape) in every if i in numbers}
        made = [(state.outputs[i], shape) for i, shape in shapes.items()]
        if state.is_on_device:
            arrays: list[Any] = [self._own(context, *each) for each in made]
            self._check(context)
        else:
            arrays = self._results(context, made)
        found = dict(zip(shapes, arrays))
        return [found.get(i) for i in range(len(self.interface.outputs))]

    def _own(self, context: Context, address: int, shape: Shape) -> DeviceArray:
        size, queue = int(shape.size_bytes), context.queue
        block, dtype = context.room(size), np.dtype(shape.dtype.numpy)
        if size:
            queue.copy(block.address, address, size)
        return DeviceArray(block.address, shape.static_dims, dtype, queue.device_id, queue, block)

    # -- calls -----------------------------------------------------------------------------------

    def run(
        self, weights: Weights, inputs: Sequence[Any], outputs: Sequence[Array | None]
    ) -> list[Array]:
        """Arrays of the host are copied to the device, those of the device read where they are;
        the results are copied to the host."""
        interface = self.interface
        interface.check_no_overlap(outputs, [NOTHING if is_on_device(a) else a for a in inputs])
        with weights.contexts.taken() as context:
            given = placed(interface, weights.signatures, context, inputs, anew=False)
            interface.check_outs(outputs, given.sizes, is_measured=False)
            arrays = self._results(context, self._ran(weights, context, given, self._staged))
        interface.check_found(outputs, arrays)
        return [_delivered(m, o) for m, o in zip(arrays, outputs)]

    def _results(self, context: Context, made: Sequence[tuple[int, Shape]]) -> list[Array]:
        arrays = [np.empty(s.static_dims, s.dtype.numpy) for _, s in made]
        for (address, _), array in zip(made, arrays):
            if array.nbytes:
                context.queue.read(address, array)
        self._check(context)
        return arrays

    def submit(self, weights: Weights, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """All that the host need not know is enqueued when it returns. Results of arrays on the
        device are there, too; others are copied to the host when they are asked for."""
        if inputs and all(map(is_on_device, inputs)):
            return partial(_waited, self.run_on_device(weights, inputs))
        context = weights.contexts.take()
        try:
            given = placed(self.interface, weights.signatures, context, inputs, anew=False)
            made = self._ran(weights, context, given, self._staged)
            for stream in given.streams:
                context.queue.release_to(stream)
        except BaseException:
            context.abandon()
            weights.contexts.give(context)
            raise

        def finish() -> list[Array]:
            with weights.contexts.given_back(context):
                return self._results(context, made)

        return finish

    def quick(self, weights: Weights) -> Callable[..., Any]:
        """Where all inputs are on the device, so are the results, and nothing waits for them."""
        count = len(self.interface.inputs)
        num_inputs = count - len(self.interface.states)

        def call(*arrays: Any) -> Any:
            given, outs = arrays[:count], list(arrays[count:])
            if num_inputs and not outs and all(map(is_on_device, given[:num_inputs])):
                made: Sequence[Any] = self.run_on_device(weights, given)
            else:
                named = zip(given, self.interface.inputs)
                held = [
                    a if is_on_device(a) else as_array(a, f"input {n.name!r}", n.shape.dtype)
                    for a, n in named
                ]
                made = self.run(weights, held, outs or [None] * len(self.interface.outputs))
            return made[0] if len(made) == 1 else tuple(made)

        return call

    def run_on_device(self, weights: Weights, inputs: Sequence[Any]) -> list[DeviceArray]:
        """Arrays on the device, of rlx or of other libraries; the results stay there. Kernels that
        may find something wrong are waited for."""
        blocks: list[Block] = []

        def outputs(context: Context, sizes: Sequence[int]) -> list[int]:
            blocks[:] = [context.room(size) for size in sizes]
            return [b.address for b in blocks]

        with weights.contexts.taken() as context:
            given = placed(self.interface, weights.signatures, context, inputs, anew=True)
            made = self._ran(weights, context, given, outputs)
            for stream in given.streams:
                context.queue.release_to(stream)
            if self.artefact.failures:
                self._check(context)
            queue = context.queue
            for state in (a for a in inputs if isinstance(a, DeviceState)):
                state.queue = queue
        return [
            DeviceArray(
                b.address, s.static_dims, np.dtype(s.dtype.numpy), queue.device_id, queue, b
            )
            for b, (_, s) in zip(blocks, made)
        ]

    def _staged(self, context: Context, sizes: Sequence[int]) -> list[int]:
        return [context.staging("output", i, s).address for i, s in enumerate(sizes)]

    def _ran(
        self, weights: Weights, context: Context, given: Given, outputs: Outputs
    ) -> list[tuple[int, Shape]]:
        """Where the results are, and their shapes. Capacities are as large as they have to be: from
        then on every call has them."""
        while True:
            capacities = dict(weights.capacities)
            try:
                return self._attempt(
                    weights, context, given, {**capacities, **given.sizes}, outputs
                )
            except Outgrown as error:
                _grow(weights, context, error)

    def _attempt(
        self,
        weights: Weights,
        context: Context,
        given: Given,
        sizes: Mapping[str, int],
        outputs: Outputs,
    ) -> list[tuple[int, Shape]]:
        main = self.artefact.routines[self.artefact.main]
        made = outputs(context, [evaluate(size, sizes) for size in main.outputs])
        call = self._call(context, weights, sizes)
        call.run(main.name, self._externals(weights, given.addresses, made))
        shapes = (shape.bind(call.sizes) for _, shape in self.interface.outputs)
        return list(zip(made, shapes))

    def _call(self, context: Context, weights: Weights, sizes: Mapping[str, int]) -> Call:
        return Call(self._loaded, context, weights.block.address, sizes)

    def bind(self, weights: Weights, inputs: Sequence[Any]) -> BoundCall:
        """The call on these inputs. Arrays of the device are read where they are, in order with
        what their library enqueues on its stream; others are copied to the device now."""
        context = weights.contexts.on(current_stream(inputs))
        leaves = self.interface.inputs
        arrays = [
            device_array(a, context.queue, f"input {n.name!r}") if self.takes(a) else a
            for n, a in zip(leaves, inputs, strict=True)
        ]
        stands = [a.stand if isinstance(a, DeviceArray) else a for a in arrays]
        sizes = self.interface.bind(weights.params, stands)
        self.interface.checked(stands, sizes)
        held = [self._held(n.name, a, context) for n, a in zip(leaves, arrays)]
        inside = [a.address for a in held]

        def begin(outgrown: Outgrown | None) -> Begun:
            if outgrown is not None:
                _grow(weights, context, outgrown)
            return self._begun(weights, context, inside, {**weights.capacities, **sizes})

        check = partial(self._check, context)
        return BoundCall(self._loaded, context, begin, check, held, weights)

    def _begun(
        self, weights: Weights, context: Context, inside: Sequence[int], sizes: Mapping[str, int]
    ) -> Begun:
        main = self.artefact.routines[self.artefact.main]
        made = [Block(self.device, max(1, evaluate(size, sizes))) for size in main.outputs]
        call = Call(self._loaded, context, weights.block.address, sizes)
        externals = self._externals(weights, inside, [b.address for b in made])
        outputs = {n: (b, s) for (n, s), b in zip(self.interface.outputs, made)}
        return Begun(call, externals, outputs, dict(sizes))

    def takes(self, value: Any) -> bool:
        return is_on_device(value)

    def _held(self, name: str, array: Array | DeviceArray, context: Context) -> DeviceArray:
        """An input in memory of the device that stays where it is."""
        if isinstance(array, DeviceArray):
            if not is_usable(array):
                raise Error(
                    f"input {name!r} is on the device and not contiguous, or not aligned to 16 "
                    "bytes. Bind a copy of it."
                )
            return array
        block, queue = Block(self.device, max(1, array.nbytes)), context.queue
        if array.nbytes:
            queue.write(block.address, np.ascontiguousarray(array))
        return DeviceArray(block.address, array.shape, array.dtype, queue.device_id, queue, block)

    def _check(self, context: Context) -> None:
        """Wait, and raise what a kernel has noted."""
        rows = self.artefact.failures
        found = np.zeros(len(rows), np.int32)
        if rows:
            context.queue.read(context.failures.address, found)
        context.queue.wait()
        failed = np.flatnonzero(found)
        if failed.size:
            context.clear_failures()
            label, texts = rows[int(failed[0])]
            code = int(found[failed[0]])
            said = texts[code - 1] if 0 < code <= len(texts) else "it failed"
            raise Error(f"{label}: {said}")

    @property
    def codegen_spans(self) -> tuple[CodegenSpan, ...]:
        return self.artefact.codegen_spans

    def scratch_bytes(self, sizes: Mapping[str, int], arena_bytes: int) -> int:
        known = {**dict.fromkeys(self.artefact.capacities, FIRST_CAPACITY), **sizes}
        main = self.artefact.routines[self.artefact.main]
        return max(0, max(evaluate(f, known) for f in main.frame) - arena_bytes)


def _launched(artefact: Artefact) -> list[int]:
    """The codes that calls launch at all sizes, in order."""
    steps = (s for r in artefact.routines.values() for s in (*r.prologue, *r.steps))
    return list(dict.fromkeys(s.code for s in steps if isinstance(s, LaunchStep)))


def _grow(weights: Weights, context: Context, outgrown: Outgrown) -> None:
    """Capacities as large as was found, for this call and all later ones; the kernel that found
    more has noted it."""
    context.abandon()
    more, held = outgrown.capacities, weights.capacities
    weights.capacities = {n: max(c, min(more.get(n, c), c * GROWTH)) for n, c in held.items()}


def _released(contexts: Contexts, context: Context) -> None:
    """Nobody finishes the step any more."""
    context.frames.pop(-1)
    contexts.give(context)


def _waited(arrays: Sequence[DeviceArray]) -> Sequence[DeviceArray]:
    """Results of one call, whose queue has written them."""
    if arrays and (queue := arrays[0].queue) is not None:
        queue.wait()
    return arrays


def _delivered(made: Array, out: Array | None) -> Array:
    if out is None:
        return made
    out[...] = made
    return out
