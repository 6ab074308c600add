"""How the factors of a product are read: the axes of each in order, and vectors along one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import is_aligned, traffic_bytes
from rlx.core.dim import exact_div
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Axis, Expr, Load, postorder


@dataclass(frozen=True, slots=True)
class Loader:
    """How a factor's tiles are read: vectors along an axis."""

    axes: tuple[Axis, ...]
    """Rows or columns, the last the fastest."""
    along: Literal["inner", "outer"]
    vector: Axis
    """The last of the axes, or of the inner ones."""
    width: int
    source: Load | None = None
    """What is copied to shared memory as it is, while threads go on; none where something is
    computed of it."""


def outer_axes(contract: Contract) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]:
    """Axes that are gone along as rows, as columns, and those that both factors vary with."""
    columns = tuple(a for a in contract.batch if a not in contract.left.free)
    rest = tuple(a for a in contract.batch if a in contract.left.free)
    rows = tuple(a for a in rest if a not in contract.right.free)
    batch = tuple(a for a in rest if a in contract.right.free)
    return (*rows, contract.rows), (*columns, contract.columns), batch


def inner_order(contract: Contract, machine: GpuMachine) -> tuple[Axis, ...]:
    """The inner axes with the one last that most elements are contiguous along, of factors that
    are not so along rows or columns."""
    rows, columns, _ = outer_axes(contract)
    sides = ((contract.left, rows[-1]), (contract.right, columns[-1]))
    found = [([n for n in postorder([x]) if isinstance(n, Load)], last) for x, last in sides]

    def worth(axis: Axis) -> int:
        along = [loads for loads, last in found if _bytes(loads, axis) > _bytes(loads, last)]
        return sum(_bytes(loads, axis) * _width(loads, axis, machine) for loads in along)

    last = max(reversed(contract.inner), key=worth)
    return (*(a for a in contract.inner if a is not last), last)


def loader_of(
    contract: Contract,
    factor: Expr,
    axes: tuple[Axis, ...],
    inner: Axis,
    is_large: bool,
    machine: GpuMachine,
) -> Loader:
    """Vectors along the axis that more elements are contiguous along. Copies along the inner axis
    are of single elements, which are rows apart in shared memory: large tiles, whose products take
    longer than loads, do with vectors in registers."""
    loads = [n for n in postorder([factor]) if isinstance(n, Load)]
    worth = {a: (_bytes(loads, a), _width(loads, a, machine)) for a in (axes[-1], inner)}
    source = _source(contract, factor) if machine.has_async_copy else None
    if worth[inner] > worth[axes[-1]]:
        width = worth[inner][1]
        is_copied = source is not None and (width == 1 or not is_large)
        return Loader(axes, "inner", inner, *((1, source) if is_copied else (width, None)))
    width = worth[axes[-1]][1]
    if source is not None and not is_aligned(source.at, axes[-1], width):
        width = 1
    return Loader(axes, "outer", axes[-1], width, source)


def _source(contract: Contract, factor: Expr) -> Load | None:
    """The load that a factor is, where its elements are the sums' numbers."""
    is_load = isinstance(factor, Load) and not factor.args
    is_held = factor.dtype is contract.sums and factor.dtype.itemsize in (4, 8)
    return factor if isinstance(factor, Load) and is_load and is_held else None


def _bytes(loads: list[Load], axis: Axis) -> int:
    return sum(traffic_bytes(n.free, n.dtype) for n in loads if n.at.coefficient(axis) == 1)


def _width(loads: list[Load], axis: Axis, machine: GpuMachine) -> int:
    """Neighbours of a vector: at most what a thread stores to shared memory at once."""
    sizes = [n.dtype.itemsize for n in loads if n.at.coefficient(axis) == 1]
    width = min(4, machine.vector_bytes // min(sizes, default=machine.vector_bytes))
    while width > 1 and not (
        exact_div(axis.extent, width) is not None
        and any(is_aligned(n.at, axis, width, n.stride) for n in loads)
    ):
        width //= 2
    return width


def store_width(contract: Contract, machine: GpuMachine) -> int:
    axis = contract.columns
    width = max(1, min(4, machine.vector_bytes // contract.sums.itemsize))
    while width > 1 and not (
        exact_div(axis.extent, width) is not None
        and any(is_aligned(s.at, axis, width) for s in contract.stores)
    ):
        width //= 2
    return width
