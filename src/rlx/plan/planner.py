"""The planner: schedule, live ranges, buffer reuse and offsets of a final graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlx.core.dim import Dim, DimLike, dim_max, evaluate, symbols_of
from rlx.core.errors import Error, UnsupportedError
from rlx.core.extent import ceiling
from rlx.core.representative import representative
from rlx.cost.terms import Terms
from rlx.ir.lir import BufferPlan, IoManifest, LirModule, Phase, Slot, Space, View
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.plan_nodes import items_of, planned_nodes, planned_symbols, with_all_items
from rlx.ir.states import deferred_updates, is_state_update, rows_of, with_isolated_updates
from rlx.plan.alternatives import Choice, Choices, choices_of, names_plan, reversed_choices
from rlx.plan.arena import Span, place
from rlx.plan.dynamic import FormulaSpan, place_formulas
from rlx.plan.liveness import Lifetime, Steps, find_in_place, lifetimes
from rlx.plan.phases import derive_phases, mark_demanded
from rlx.plan.size_proofs import round_up
from rlx.plan.views import place_in_concats, resolve_views

if TYPE_CHECKING:
    from rlx.cost.target import Target

MAX_SIZES_TRIED = 40
"""Sizes at which one that no proof shows to be positive is looked at."""


def plan_module(
    graph: Graph, target: Target, *, options: Any = None, alignment: int = 64
) -> LirModule:
    """The plan of a final graph for a target. `rlx.plan.check.checker` judges it."""
    if alignment < 1 or alignment & (alignment - 1):
        raise Error(f"alignment {alignment} is not a power of two. Give 64, or another that is.")
    final = with_all_items(with_isolated_updates(graph))
    at_end: tuple[str, ...] | None = getattr(options, "at_end", None)
    if at_end is not None:
        at_end = tuple(name for name in at_end if name in final.output_names)
        mark_demanded(final, at_end)
    plan = plan_buffers(final, target, alignment)
    if plan.capacities and graph.updates:
        raise UnsupportedError(
            f"{graph.updates[0].label}: it updates a state, and nothing bounds a size of the graph "
            f"({plan.capacities[0]}), so that a call may be run twice. Bound the size."
        )
    force: Mapping[str, bool] = getattr(options, "force", {})
    split: Mapping[Node, bool] = {}
    if any(map(names_plan, force)):
        chosen = reversed_choices(choices_of(plan, target, Terms(target), {}, plan), force)
        plan, split = plan_buffers(final, target, alignment, chosen), chosen.split
    asked = "" if options is None else options.text()
    plan = replace(plan, io=replace(plan.io, at_end=at_end))
    return LirModule(MirModule(final), plan, target, asked, split)


def plan_choices(lir: LirModule, options: Any = None) -> list[Choice]:
    """Every choice that the plan of a module is made of, each with its price."""
    force: Mapping[str, bool] = getattr(options, "force", {})
    plan, terms = lir.plan, Terms(lir.target, sizes=getattr(options, "sizes", None))
    is_turned = any(map(names_plan, force))
    usual = plan_buffers(lir.mir.graph, lir.target, plan.alignment) if is_turned else plan
    return choices_of(plan, lir.target, terms, force, usual)


def plan_buffers(
    graph: Graph, target: Target, alignment: int = 64, choices: Choices | None = None
) -> BufferPlan:
    """The plan of a graph that has an item for every result."""
    chosen = choices or Choices()
    nodes = planned_nodes(graph)
    phases = derive_phases(nodes, chosen.per_call)
    aliases = resolve_views(nodes, graph.outputs, phases, target, chosen.copied)
    free = [n for n in nodes if n not in chosen.copied_concats]
    views, assembled = place_in_concats(nodes, free, graph.outputs, phases, aliases, alignment)
    kernels = [n for n in nodes if _is_kernel(n, aliases) and n not in assembled]
    last = set(deferred_updates(nodes, graph.outputs))
    schedule = tuple(sorted(kernels, key=lambda k: (phases[k], k in last)))
    steps = Steps(schedule, items_of(nodes), views)
    draft = _Draft(graph, nodes, phases, steps, alignment, chosen.not_in_place)
    return draft.plan()


def _is_kernel(node: Node, aliases: Mapping[Node, View]) -> bool:
    if node.is_leaf or node.op == "item":
        return False
    return node not in aliases or is_state_update(node)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan whose order is settled and whose offsets are not."""

    graph: Graph
    nodes: Sequence[Node]
    phases: Mapping[Node, Phase]
    steps: Steps
    alignment: int
    not_in_place: frozenset[Node] = frozenset()

    def plan(self) -> BufferPlan:
        graph, steps = self.graph, self.steps
        in_arena = {n: n.op == "input" or self.phases[n] is not Phase.PROLOGUE for n in self.nodes}
        written = {n: rows_of(n) for n in steps.schedule if is_state_update(n)}
        lives = lifetimes(steps, graph.inputs, graph.outputs, self.phases)
        found = find_in_place(steps, lives, in_arena)
        in_place = {k: operand for k, operand in found.items() if k not in self.not_in_place}
        symbols = planned_symbols(graph)
        sizes = representative(symbols)
        weights, weight_bytes = self._weights(in_arena)
        arena, total = self._arena(lives, in_arena, in_place, sizes)
        slots = arena | weights | self._states()
        return BufferPlan(
            arena_bytes=evaluate(total, sizes),
            weight_bytes=evaluate(weight_bytes, sizes),
            assignments={n: slots[n] for n in self.nodes if n in slots},
            schedule=tuple(steps.schedule),
            views=steps.views,
            in_place=in_place,
            written=written,
            phases=self.phases,
            io=IoManifest.collect(graph),
            alignment=self.alignment,
            dynamic_symbols=symbols,
            arena_formula=total,
            representative=sizes,
        )

    def _size(self, node: Node) -> DimLike:
        """Not negative as it is written: that n - n // 3 - 1 is not, is not proved of every sum.
        What is negative at some size stays so, and no plan of it is sound."""
        size = round_up(ceiling(node.shape.size_bytes), self.alignment)
        least = dim_max(0, size)
        return size if least == size or any(map(_is_negative, node.shape.dims)) else least

    def _owners(self) -> list[Node]:
        """Every node with bytes of its own."""
        return [n for n in self.nodes if n not in self.steps.views and not n.has_items]

    def _weights(self, in_arena: Mapping[Node, bool]) -> tuple[dict[Node, Slot], DimLike]:
        """Consecutive; static sizes first, so that their offsets are static."""
        owners = [n for n in self._owners() if not in_arena[n] and n.op != "state"]
        slots: dict[Node, Slot] = {}
        end: DimLike = 0
        for node in sorted(owners, key=lambda n: isinstance(self._size(n), Dim)):
            slots[node] = Slot(end, self._size(node), Space.WEIGHTS)
            end = end + self._size(node)
        return slots, end

    def _arena(
        self,
        lives: Mapping[Node, Lifetime],
        in_arena: Mapping[Node, bool],
        in_place: Mapping[Node, Node],
        sizes: Mapping[str, int],
    ) -> tuple[dict[Node, Slot], DimLike]:
        """Inputs first, as they live throughout; then the rest, packed."""
        slots, base = self._inputs()
        owners = [n for n in self._owners() if in_arena[n] and n.op != "input"]
        buffer, spans = self._buffers(owners, lives, in_place)
        offsets, total = _placed(spans, sizes)
        outputs = {self.steps.root(o) for o in self.graph.outputs}
        for node in owners:
            offset = base + offsets[buffer[node]]
            slots[node] = Slot(offset, self._size(node), Space.ARENA, node in outputs)
        return slots, base + total

    def _states(self) -> dict[Node, Slot]:
        """Consecutive, outside the arena: sessions hold them."""
        slots: dict[Node, Slot] = {}
        end: DimLike = 0
        for node in self.graph.states:
            slots[node] = Slot(end, self._size(node), Space.STATE, True)
            end = end + self._size(node)
        return slots

    def _inputs(self) -> tuple[dict[Node, Slot], DimLike]:
        slots: dict[Node, Slot] = {}
        end: DimLike = 0
        for node in self.graph.inputs:
            slots[node] = Slot(end, self._size(node), Space.ARENA, True)
            end = end + self._size(node)
        return slots, end

    def _buffers(
        self, owners: Sequence[Node], lives: Mapping[Node, Lifetime], in_place: Mapping[Node, Node]
    ) -> tuple[dict[Node, int], list[FormulaSpan]]:
        """Values that overwrite each other in place are one buffer with one longer life."""
        buffer: dict[Node, int] = {}
        spans: list[FormulaSpan] = []
        for node in sorted(owners, key=lambda n: lives[n].birth):
            life, size = lives[node], self._size(node)
            if node in in_place:
                at = buffer[self.steps.root(in_place[node])]
                spans[at] = FormulaSpan(size, spans[at].birth, life.death)
            else:
                at = len(spans)
                spans.append(FormulaSpan(size, life.birth, life.death))
            buffer[node] = at
        return buffer, spans


def _placed(
    spans: Sequence[FormulaSpan], sizes: Mapping[str, int]
) -> tuple[Sequence[DimLike], DimLike]:
    """Tightly where every size is known, by formula where one is not."""
    numbers = [Span(s.size, s.birth, s.death) for s in spans if not isinstance(s.size, Dim)]
    if len(numbers) == len(spans):
        tight = place(numbers)
        return tight.offsets, tight.total
    placed = place_formulas(spans, sizes)
    return placed.offsets, placed.total


def _is_negative(dim: DimLike) -> bool:
    """Is it at one of a few sizes, the same for all named dims as far as their ranges go?"""
    most = ceiling(dim)
    ranges = [(s.name, s.min or 0, s.max) for s in symbols_of([most])]
    for n in range(MAX_SIZES_TRIED):
        sizes = {name: max(low, n if high is None else min(n, high)) for name, low, high in ranges}
        if evaluate(most, sizes) < 0:
            return True
    return False
