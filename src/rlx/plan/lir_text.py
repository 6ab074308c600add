"""A planned module as text, which `rlx.load` reads from a `.lir` file (`runtime/lir_file.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlx._version import __version__
from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.cost.target_json import target_json
from rlx.ir.fingerprint import numbers
from rlx.ir.json_form import dim_json, symbols_json
from rlx.ir.lir import BufferPlan, LirModule, Slot
from rlx.ir.mir import Node
from rlx.ir.text import show


def lir_text(lir: LirModule) -> str:
    """A planned module as text: equal modules give equal texts."""
    held = {"target": target_json(lir.target), **plan_json(lir)}
    parts = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in held.items())
    plan = ",\n".join(parts)
    head = f"lir {json.dumps(__version__)} {json.dumps(lir.fingerprint)}"
    return f"{head}\n{{\n{plan}\n}}\n{show(lir.mir.graph)}"


def plan_json(lir: LirModule) -> dict[str, Any]:
    """All of a module but its target and its graph, whose nodes are numbered as planned."""
    plan = lir.plan
    number = numbers(lir.mir.graph)
    symbols = [d.symbol for d in plan.dynamic_symbols if d.symbol is not None]
    return {
        "options": lir.options,
        "alignment": plan.alignment,
        "names": symbols_json(symbols, _dims(plan)),
        "symbols": [d.name for d in plan.dynamic_symbols],
        "representative": dict(plan.representative),
        "arena_bytes": plan.arena_bytes,
        "arena": dim_json(plan.arena_formula),
        "weight_bytes": plan.weight_bytes,
        "schedule": [number[n] for n in plan.schedule],
        "phases": [plan.phase_of(n).name.lower() for n in number],
        "slots": [[n, *_slot_json(s)] for n, s in _by_number(plan.assignments, number)],
        "views": [
            [n, number[v.root], *_layout_json(v.layout)] for n, v in _by_number(plan.views, number)
        ],
        "in_place": [[n, number[o]] for n, o in _by_number(plan.in_place, number)],
        "written": [[n, *_layout_json(rows)] for n, rows in _by_number(plan.written, number)],
        "split": [[n, is_split] for n, is_split in _by_number(lir.split, number)],
        **({} if plan.io.at_end is None else {"at_end": list(plan.io.at_end)}),
    }


def _by_number(table: Mapping[Node, Any], number: Mapping[Node, int]) -> list[tuple[int, Any]]:
    return sorted(((number[n], value) for n, value in table.items()), key=lambda pair: pair[0])


def _slot_json(slot: Slot) -> list[Any]:
    return [dim_json(slot.offset), dim_json(slot.size), slot.space.value, slot.is_external]


def _layout_json(layout: Layout) -> list[Any]:
    dims, strides = ([dim_json(d) for d in each] for each in (layout.dims, layout.strides))
    return [dims, strides, dim_json(layout.offset)]


def _dims(plan: BufferPlan) -> Iterator[DimLike]:
    yield plan.arena_formula
    for slot in plan.assignments.values():
        yield from (slot.offset, slot.size)
    for layout in (*(v.layout for v in plan.views.values()), *plan.written.values()):
        yield from (*layout.dims, *layout.strides, layout.offset)
