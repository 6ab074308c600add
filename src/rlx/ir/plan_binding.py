"""Plan binding: offset formulas evaluated at given sizes, in microseconds.

Every distinct formula is compiled once per plan and evaluated once per binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rlx.core.dim import DimLike
from rlx.core.extent import FIRST_CAPACITY, is_measured
from rlx.core.formulas import compile_dims
from rlx.core.layout import Layout
from rlx.core.shape import DimBinding
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Node

T = TypeVar("T")
Pick = Callable[[Sequence[int]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """All offsets at one set of sizes.

    What depends on a measured size is not in here: it is known when the size is.
    """

    sizes: Mapping[str, int]
    arena_bytes: int
    weight_bytes: int
    offsets: Mapping[Node, int]
    """Value → the byte offset of its first element in its space."""
    shapes: Mapping[Node, tuple[int, ...]]
    """Value → its dims."""
    layouts: Mapping[Node, Layout]
    """View → its layout in its root's slot, in elements."""
    state_bytes: int = 0


def bind(plan: BufferPlan, sizes: DimBinding | Mapping[str, int]) -> BoundPlan:
    """The plan at `sizes`, which must have every named dim, inside its range."""
    binder = plan.memo.get("binder")
    if binder is None:
        binder = plan.memo["binder"] = Binder(plan)
    return binder(sizes)


class Binder:
    """A plan's formulas, compiled."""

    def __init__(self, plan: BufferPlan) -> None:
        self._symbols = plan.dynamic_symbols
        self._capacities = dict.fromkeys(plan.capacities, FIRST_CAPACITY)
        nodes = [n for n in plan.phases if not n.has_items]
        table = _Formulas()
        self._totals = table.pick([plan.arena_formula, plan.weight_formula, plan.state_formula])
        offsets = {n: _offset(plan, n) for n in nodes}
        self._placed = [n for n in nodes if not is_measured(offsets[n])]
        self._offsets = table.pick([offsets[n] for n in self._placed])
        self._nodes = [n for n in nodes if not n.shape.is_measured]
        shapes = [tuple(n.shape.dims) for n in self._nodes]
        self._views = [n for n, view in plan.views.items() if not _is_measured(view.layout)]
        layouts = [plan.views[n].layout for n in self._views]
        self._shapes, self._shape_of = _distinct(shapes)
        self._shape_picks = [table.pick(s) for s in self._shapes]
        self._layouts, self._layout_of = _distinct(layouts)
        self._layout_picks = [
            tuple(table.pick(part) for part in (x.dims, x.strides, [x.offset]))
            for x in self._layouts
        ]
        self._values = compile_dims(table.dims, [d.name for d in self._symbols])

    def __call__(self, sizes: DimBinding | Mapping[str, int]) -> BoundPlan:
        given = DimBinding.of(sizes)
        if self._capacities:
            given = DimBinding({**self._capacities, **given.sizes})
        bound = given.checked(self._symbols)
        values = self._values(*bound.values())
        arena_bytes, weight_bytes, state_bytes = self._totals(values)
        shapes = [pick(values) for pick in self._shape_picks]
        layouts = [
            Layout(dims(values), strides(values), offset(values)[0])
            for dims, strides, offset in self._layout_picks
        ]
        return BoundPlan(
            bound,
            arena_bytes,
            weight_bytes,
            dict(zip(self._placed, self._offsets(values))),
            dict(zip(self._nodes, [shapes[i] for i in self._shape_of])),
            dict(zip(self._views, [layouts[i] for i in self._layout_of])),
            state_bytes,
        )


class _Formulas:
    """Distinct formulas, numbered."""

    def __init__(self) -> None:
        self._number: dict[DimLike, int] = {}

    @property
    def dims(self) -> list[DimLike]:
        return list(self._number)

    def pick(self, dims: Iterable[DimLike]) -> Pick:
        """A function from all values to those of `dims`."""
        at = [self._number.setdefault(d, len(self._number)) for d in dims]
        return lambda values: tuple([values[i] for i in at])


def _distinct(values: Sequence[T]) -> tuple[list[T], list[int]]:
    """The distinct values, and the number of each."""
    number: dict[T, int] = {}
    at = [number.setdefault(v, len(number)) for v in values]
    return list(number), at


def _is_measured(layout: Layout) -> bool:
    return any(map(is_measured, (*layout.dims, *layout.strides, layout.offset)))


def _offset(plan: BufferPlan, node: Node) -> DimLike:
    return plan.slot(node).offset + plan.layout(node).offset * node.shape.dtype.itemsize
