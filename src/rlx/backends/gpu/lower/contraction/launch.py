"""Launches of contractions on matrix instructions."""

from __future__ import annotations

from rlx.backends.gpu.lower.contraction.mma import emit
from rlx.backends.gpu.lower.expressions import failure_text, gathers
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.mma import choose
from rlx.backends.gpu.schedule.product import product_of
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import upper_bound
from rlx.kernel.contract import Contract
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.kernel.structure import structure_of

GEMV_MAX_ROWS = 16
"""Rows up to which a product is bound by the bytes of its weights."""


def mma_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """Products of half floats with more than a few rows, by matrix instructions of warps."""
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
    product = product_of(contract)
    if isinstance(product, Refusal):
        return product
    choice = choose(product, machine, constants)
    if choice is None:
        return Refusal(f"{contract.name}: its tiles do not fit shared memory")
    every = buffers(len(contract.operands), len(contract.results))
    names = tuple(f"{'x' if b.kind == 'operand' else 'y'}{b.index}" for b in every)
    key = structure_of(contract.kernel()), choice
    meanings = tuple(failure_text(n) for n in gathers(product.kernel()))
    launch = Launch(
        name, lambda n: emit(product, choice, n), key, names, every, meanings, choice.text
    )
    return Schedule((launch,))
