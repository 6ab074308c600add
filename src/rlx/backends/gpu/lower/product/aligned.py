"""Packed weights laid out anew, once, so that they are read as aligned vectors.

Blocks of a quantised format have any number of bytes, such as 18: a scale of two and 16 with two
weights each. Every load of the matrix becomes an array of its own, contiguous along the axes that
it varies with, all in one buffer of about the same size; the product reads those.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.product.block_scales import decoded_scales
from rlx.backends.gpu.lower.product.gemv import gemv_schedule
from rlx.backends.gpu.lower.product.tile import tile_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import is_aligned
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Load, Store, postorder
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.kernel.refusal import Refusal
from rlx.kernel.rewrite import Rewriter

ALIGN = 16
"""Bytes that the arrays begin at multiples of."""
MAX_GROWTH = 1.25
"""Of the bytes: weights that are read under many indices are not written down for each."""


def aligned_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """A product whose constant bytes are packed anew; refused where they are aligned as they are,
    or may change."""
    number, kernels, made = len(contract.operands), list[Kernel](), contract
    for pack in (decoded_scales, _aligned):
        found = pack(made, constants | set(range(number, number + len(kernels))))
        if found is not None:
            made = found[0]
            kernels.append(found[1])
    if not kernels:
        return Refusal(f"{contract.name}: no constant bytes of it are out of line")
    behind = {Buffer("operand", number + i): Buffer("packed", i) for i in range(len(kernels))}
    packed = [_packed(k, machine, f"{name}.packing{i or ''}") for i, k in enumerate(kernels)]
    held = constants | {b.index for b in behind}
    for form in (gemv_schedule, tile_schedule) if contract.is_plain else (gemv_schedule,):
        schedule = form(made, machine, name, held)
        # one that packs weights itself writes them down decoded: where bytes lie is nothing to it
        if not isinstance(schedule, Refusal) and not schedule.packed and None not in packed:
            moved = schedule.moved(lambda b: behind.get(b, b))
            return replace(moved, packed=tuple(p for p in packed if p is not None))
    return Refusal(f"{contract.name}: no form of product takes its packed weights")


def _packed(kernel: Kernel, machine: GpuMachine, name: str) -> PackedWeights[GpuTask] | None:
    """What a kernel packs, if it is one launch."""
    task, *more = loop_schedule(kernel, machine, name).tasks
    return None if more else PackedWeights(task, kernel.results[0].size_bytes)


def _aligned(contract: Contract, constants: frozenset[int]) -> tuple[Contract, Kernel] | None:
    """The contraction that reads packed bytes as one more operand, and the kernel that packs."""
    loads = [n for n in _loads(contract.right) if n.operand in constants]
    every = _loads(contract.right)
    if contract.more or not loads or len(loads) < len([n for n in every if n.dtype.itemsize == 1]):
        return None
    bytes_ = [n for n in loads if n.dtype is DType.U8]
    if all(_is_in_line(n) for n in bytes_) or len({n.operand for n in bytes_}) != 1:
        return None
    order = (*contract.batch, contract.columns, *contract.inner)
    places, size = _places(bytes_, order)
    given = contract.operands[bytes_[0].operand].num_elements
    if size is None or not is_static(given) or size > MAX_GROWTH * given + ALIGN * len(bytes_):
        return None
    shape = Shape((size,), DType.U8)
    kernel = _packing(contract, bytes_, places, order, shape)
    return _reading(contract, bytes_, places, shape), kernel


def _loads(factor: Expr) -> list[Load]:
    return [n for n in postorder([factor]) if isinstance(n, Load)]


def _is_in_line(load: Load) -> bool:
    """Is it contiguous along no axis that is long enough for vectors, or aligned along it?"""
    along = [a for a, c in load.at.terms if c == 1]
    if load.args or not along or not is_static(along[0].extent) or along[0].extent % ALIGN:
        return True
    return is_aligned(load.at, along[0], ALIGN)


def _places(loads: list[Load], order: tuple[Axis, ...]) -> tuple[list[Affine], int | None]:
    """Where the bytes of each load lie, and the bytes of all; none where an extent is unknown."""
    places: list[Affine] = []
    start = 0
    for load in loads:
        axes = [a for a in order if a in load.at.axes]
        axes.sort(key=lambda a: load.at.coefficient(a) == 1)
        count = product(a.extent for a in axes)
        if not is_static(count) or load.args or load.free - set(order):
            return [], None
        at, weight = Affine((), start), 1
        for axis in reversed(axes):
            at, weight = at + Affine.of(axis) * weight, weight * int(axis.extent)
        places.append(at)
        start += -(-int(count) // ALIGN) * ALIGN
    return places, start


def _packing(
    contract: Contract,
    loads: list[Load],
    places: list[Affine],
    order: tuple[Axis, ...],
    shape: Shape,
) -> Kernel:
    exprs = Exprs()
    stores = tuple(
        Store(0, at, exprs.load(n.operand, n.at, n.dtype)) for n, at in zip(loads, places)
    )
    used = frozenset[Axis]().union(*(n.free for n in loads))
    axes = tuple(a for a in order if a in used)
    # flat, as those of a bucket of sizes are: what is packed is the same for all of them
    operands = tuple(Shape((s.num_elements,), s.dtype) for s in contract.operands)
    return Kernel(f"{contract.name}.packing", axes, stores, operands, (shape,))


def _reading(contract: Contract, loads: list[Load], places: list[Affine], shape: Shape) -> Contract:
    exprs, number = Exprs(), len(contract.operands)
    replaced: dict[Expr, Expr] = {
        n: exprs.load(number, at, n.dtype) for n, at in zip(loads, places)
    }
    right = Rewriter(exprs, replaced=replaced)(contract.right)
    return replace(contract, right=right, operands=(*contract.operands, shape))
