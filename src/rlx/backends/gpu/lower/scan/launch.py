"""Launches of scans: contractions of all positions first, then the steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.scan.associative import (
    Associative,
    associative,
    fold_of_chunks,
    folds_before,
)
from rlx.backends.gpu.lower.scan.blocks import emit_blocks
from rlx.backends.gpu.lower.scan.channels import emit_channels
from rlx.backends.gpu.lower.scan.rows import emit_rows
from rlx.backends.gpu.lower.scan.steps import ScanKernels, directions
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.contraction import contraction_schedule
from rlx.backends.gpu.schedule.scan import RowSchedule, by_blocks, by_channels, by_prefixes
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import DimLike
from rlx.kernel.contract import Contract
from rlx.kernel.program.schedule import Buffer, Move, Schedule, joined
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.scan import Scan
from rlx.kernel.structure import structure_of


def scan_schedule(
    scan: Scan, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launches of a scan, or why the device does not run it."""
    values = [v.name for v in scan.memory.values]
    parts: list[tuple[Schedule[GpuTask], Move]] = []
    temps = [scan.memory.values[values.index(b.value)].shape.size_bytes for b in scan.before]
    places = {values.index(b.value): i for i, b in enumerate(scan.before)}
    for number, one in enumerate(scan.before):
        made = _product(one.contract, machine, f"{name}_before{number}", constants)
        parts.append((made, _into_temp(number)))
    for number, kernels in enumerate(directions(scan)):
        own = f"{name}_way{number}" if number else name
        steps = attempt(lambda k=kernels, n=own: _steps(k, machine, n, constants))
        if isinstance(steps, Refusal):
            return steps
        parts.append((steps, _from_temps(len(scan.operands), places)))
    return joined(temps, parts)


def _product(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask]:
    """A contraction for all positions; one with nothing to sum is a loop nest."""
    if any(a.extent == 0 for a in contract.inner):
        return loop_schedule(contract.kernel(), machine, name, constants)
    return contraction_schedule(contract, machine, name, constants)


def _into_temp(number: int) -> Move:
    """The result of a contraction before all steps is a temporary."""
    return lambda b: Buffer("temp", number) if b.kind == "result" else b


def _from_temps(operands: int, places: Mapping[int, int]) -> Move:
    """Values that were made before are operands behind the scan's."""

    def moved(buffer: Buffer) -> Buffer:
        is_value = buffer.kind == "operand" and buffer.index >= operands
        return Buffer("temp", places[buffer.index - operands]) if is_value else buffer

    return moved


def _steps(
    kernels: ScanKernels, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """All steps of a direction, in the first form that takes them."""
    step = associative(kernels)
    if step is not None:
        return _prefixes(step, machine, name, constants)
    is_dependent = machine.has_dependent_launch
    channels = by_channels(kernels, machine)
    if not isinstance(channels, Refusal):
        write = lambda n: emit_channels(kernels, channels, constants, is_dependent, n)
        key = "channels", *_key(kernels), machine, constants
        return Schedule((Launch(name, write, key, *_buffers(kernels), (), channels.text),))
    blocks = by_blocks(kernels, machine)
    if isinstance(blocks, Refusal):
        return blocks
    write = lambda n: emit_blocks(kernels, blocks, constants, is_dependent, n)
    names, buffers, temps = _with_values(kernels, frozenset(blocks.local))
    key = "blocks", *_key(kernels), machine, constants
    return Schedule((Launch(name, write, key, names, buffers, (), blocks.text),), temps)


def _prefixes(
    step: Associative, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask]:
    """A prefix scan in one launch, or in three where its time axis is split."""
    kernels, is_dependent = step.kernels, machine.has_dependent_launch
    choice = by_prefixes(step, machine)
    names, buffers = _buffers(kernels)
    key = "prefixes", *_key(kernels), machine, constants
    if isinstance(choice, RowSchedule):
        write = lambda n: emit_rows(step, choice, constants, is_dependent, n)
    else:
        write = lambda n: emit_channels(kernels, choice, constants, is_dependent, n)
    if choice.chunks is None:
        return Schedule((Launch(name, write, key, names, buffers, (), choice.text),))
    folds = fold_of_chunks(step, choice.chunks, choice.points)
    before = folds_before(step, choice.chunks, choice.points)
    start = Buffer("operand", len(kernels.scan.operands))
    last = Launch(name, write, key, (*names, "start"), (*buffers, start), (), choice.text)
    size = folds.results[0].size_bytes
    parts: list[tuple[Schedule[GpuTask], Move]] = [
        (loop_schedule(folds, machine, f"{name}_folds", constants), _into_temp(0)),
        (loop_schedule(before, machine, f"{name}_before"), _between),
        (Schedule((last,)), _from_temps(len(kernels.scan.operands), {0: 1})),
    ]
    return joined([size, size], parts)


def _between(buffer: Buffer) -> Buffer:
    """From the folds of chunks to those of all before each."""
    return Buffer("temp", 0 if buffer.kind == "operand" else 1)


def _buffers(kernels: ScanKernels) -> tuple[tuple[str, ...], tuple[Buffer, ...]]:
    """Operands that are read and results that are written, by name and as the scan has them."""
    read = sorted({n.operand for n in kernels.loads if kernels.value_of(n) is None})
    made = sorted({s.result for s in kernels.whole.stores if kernels.stored_value(s) is None})
    names = (*(f"x{i}" for i in read), *(f"y{i}" for i in made))
    return names, (*(Buffer("operand", i) for i in read), *(Buffer("result", i) for i in made))


def _with_values(
    kernels: ScanKernels, local: frozenset[str]
) -> tuple[tuple[str, ...], tuple[Buffer, ...], tuple[DimLike, ...]]:
    """The same with values in global memory: those made before are further operands, the others
    temporaries, one part for each direction."""
    names, buffers = _buffers(kernels)
    read = {v.name for n in kernels.loads if (v := kernels.value_of(n)) is not None}
    temps: list[DimLike] = []
    for number, value in enumerate(kernels.memory.values):
        if value.name in local or value.name not in read | kernels.written:
            continue
        names = (*names, f"v{number}")
        if value.name in kernels.written:
            buffers = (*buffers, Buffer("temp", len(temps)))
            temps.append(value.shape.size_bytes * len(kernels.reversals))
        else:
            buffers = (*buffers, Buffer("operand", len(kernels.scan.operands) + number))
    return names, buffers, tuple(temps)


def _key(kernels: ScanKernels) -> tuple[Hashable, ...]:
    """Of all that a program of steps depends on."""
    scan = kernels.scan
    shapes = [structure_of(k) for k in kernels.all]
    counts = len(kernels.start), len(kernels.steps)
    time = scan.time.extent, scan.has_first, kernels.reversals, kernels.first
    return *shapes, counts, time
