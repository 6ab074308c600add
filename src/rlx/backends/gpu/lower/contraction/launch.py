"""Launches of contractions on matrix instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlx.backends.gpu.lower.contraction.mma import emit as emit_mma
from rlx.backends.gpu.lower.contraction.pack import packed
from rlx.backends.gpu.lower.contraction.wgmma import emit as emit_wgmma
from rlx.backends.gpu.lower.expressions import failure_text, gathers
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule import mma, wgmma
from rlx.backends.gpu.schedule.mma import MmaSchedule
from rlx.backends.gpu.schedule.product import Product, in_halves, product_of
from rlx.backends.gpu.schedule.wgmma import WgmmaSchedule
from rlx.backends.gpu.task import GpuTask, Launch, Resize, Variant
from rlx.core.dim import upper_bound
from rlx.kernel.contract import Contract
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.kernel.structure import structure_of
from rlx.program.program import Program

AnySchedule = MmaSchedule | WgmmaSchedule
GEMV_MAX_ROWS = 16
"""Rows up to which a product is bound by the bytes of its weights."""


def mma_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """Products of half floats with more than a few rows, by matrix instructions."""
    product = product_of(contract)
    if isinstance(product, Refusal):
        return product
    most = upper_bound(product.sizes[2 if product.is_swapped else 1])
    if most is not None and most <= GEMV_MAX_ROWS:
        return Refusal(f"{contract.name}: it has at most {GEMV_MAX_ROWS} rows")
    return any_mma_schedule(contract, machine, name, constants)


def any_mma_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The same for any number of rows: convolutions, and what no form for few rows takes."""
    if not machine.tiles:
        return Refusal(f"{contract.name}: the device has no matrix instructions")
    contract = in_halves(contract)
    moved = packed(contract, machine, name, constants)
    if moved is None:
        return _launched(contract, machine, name, constants)
    own = len(contract.operands)
    made = _launched(moved[0], machine, name, constants | {own})
    if isinstance(made, Refusal):
        return made
    tasks = tuple(t.on(tuple(map(_as_packed(own), t.buffers))) for t in made.tasks)
    return replace(made, tasks=tasks, packed=(moved[1],))


def _as_packed(operand: int) -> Callable[[Buffer], Buffer]:
    """The operand behind the others is made of weights."""
    return lambda b: Buffer("packed", 0) if b == Buffer("operand", operand) else b


def _launched(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    product = product_of(contract)
    if isinstance(product, Refusal):
        return product
    found = candidates(product, machine, constants)
    if not found:
        return Refusal(f"{contract.name}: its tiles do not fit shared memory")
    ranked = sorted(dict.fromkeys(found), key=lambda w: predicted(product, w, machine))
    every = buffers(len(contract.operands), len(contract.results))
    names = tuple(f"{'x' if b.kind == 'operand' else 'y'}{b.index}" for b in every)
    key = structure_of(contract.kernel()), ranked[0]
    meanings = tuple(failure_text(n) for n in gathers(product.kernel()))
    taken, *rest = (_variant(product, w, machine) for w in ranked)
    launch = Launch.of(name, key, names, every, meanings, taken, rest)
    return Schedule((launch,))


def _variant(product: Product, schedule: AnySchedule, machine: GpuMachine) -> Variant:
    def price(resize: Resize) -> float:
        return predicted(product.resized(resize), schedule, machine) / machine.clock_ghz

    ns = predicted(product, schedule, machine) / machine.clock_ghz
    write = lambda n: emit(product, schedule, n)
    return Variant(write, schedule.text, ns, schedule.order, price)


def candidates(
    product: Product, machine: GpuMachine, constants: frozenset[int]
) -> list[AnySchedule]:
    """Every schedule that is considered, of both kinds."""
    by_groups = wgmma.candidates(product, machine, constants)
    by_warps = mma.candidates(product, machine, constants)
    return [*by_warps, *([] if isinstance(by_groups, Refusal) else by_groups)]


def predicted(product: Product, schedule: AnySchedule, machine: GpuMachine) -> float:
    """Cycles of a schedule."""
    if isinstance(schedule, WgmmaSchedule):
        return wgmma.cycles(product, schedule, machine)
    return mma.cycles(product, schedule, machine)


def emit(product: Product, choice: AnySchedule, name: str) -> Program:
    """The program of a product."""
    if isinstance(choice, WgmmaSchedule):
        return emit_wgmma(product, choice, name)
    return emit_mma(product, choice, name)
