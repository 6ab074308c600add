"""Corruptions of plans: random changes of a sound one, whatever they make of it.

Each is one of: other offsets, sizes, spaces and slots; another order of steps; other views; another
arena, alignment or table of sizes; other phases; another manifest; values that are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rlx
from rlx.ir.lir import BufferPlan, LirModule, Phase, Slot, Space, View
from rlx.ir.mir import Graph, Node

Array = np.ndarray[Any, Any]
Calls = list[dict[str, Array]]


@dataclass(frozen=True)
class Model:
    """A graph, and calls of it: each a value for every input and param."""

    graph: Graph
    calls: Calls


@dataclass
class Corruption:
    """One random change; `rng` decides which."""

    rng: np.random.Generator
    lir: LirModule

    @property
    def plan(self) -> BufferPlan:
        return self.lir.plan

    # -- draws ---------------------------------------------------------------------------------

    def pick(self, values: Any) -> Any:
        row = list(values)
        return row[int(self.rng.integers(len(row)))]

    def coin(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def node(self) -> Node:
        """A node of the graph; rarely one of another."""
        if self.coin(0.08):
            other = Graph("other")
            other.set_outputs([other.exp(other.input("x", rlx.Shape([4])))])
            return self.pick(other.nodes)
        return self.pick(self.lir.mir.graph.nodes)

    def key(self, table: Mapping[Node, Any]) -> Node:
        return self.pick(table) if table and self.coin(0.9) else self.node()

    def number(self, old: Any) -> Any:
        """Another number in the place of one, or what is none."""
        slots = list(self.plan.assignments.values())
        own: list[Any] = [s.offset for s in slots] + [s.size for s in slots]
        near: list[Any] = (
            [
                old + 64,
                old - 64,
                old + 4,
                old - 4,
                old + 1,
                old * 2,
                old // 2,
                old + 4096,
                old * -1,
            ]
            if isinstance(old, int | rlx.Dim)
            else []
        )
        far: list[Any] = [0, 1, 64, -64, 1 << 20, 1 << 40, 1 << 62, 1 << 63, -(1 << 62)]
        named: list[Any] = [*self.plan.dynamic_symbols, rlx.Dim("alien"), rlx.Dim("n", 1, 9) * 64]
        none: list[Any] = [64.0, None, "64", True, np.int64(64), float("nan"), (), b"64"]
        kinds = [own, own, near, near, near, far, named, none]
        return self.pick(self.pick([k for k in kinds if k]))

    # -- changes -------------------------------------------------------------------------------

    def slot(self) -> dict[str, Any]:
        table = dict(self.plan.assignments)
        node = self.key(table)
        old = table.get(node) or Slot(0, 64)
        match self.pick(["offset", "offset", "offset", "size", "space", "external", "drop", "swap",
                         "exact", "junk"]):  # fmt: skip
            case "offset":
                table[node] = replace(old, offset=self.number(old.offset))
            case "size":
                table[node] = replace(old, size=self.number(old.size))
            case "space":
                table[node] = replace(old, space=self.pick([*Space, "arena", None]))
            case "external":
                table[node] = replace(old, is_external=self.pick([True, False, 0, None]))
            case "drop":
                table.pop(node, None)
            case "swap":
                other = self.key(table)
                table[node], table[other] = table.get(other) or old, old
            case "exact":
                table = {n: replace(s, offset=old.offset) for n, s in table.items()}
            case _:
                table[self.pick([node, None, 3])] = self.pick([None, (0, 64), 3, "slot", old])  # pyright: ignore
        return {"assignments": self.junk(table)}

    def junk(self, value: Any) -> Any:
        return self.pick([None, 3, "x", [1], {"a": "b"}, ()]) if self.coin(0.01) else value

    def schedule(self) -> dict[str, Any]:
        steps = list(self.plan.schedule)
        at = int(self.rng.integers(len(steps) + 1))
        match self.pick(["swap", "swap", "drop", "twice", "reverse", "shuffle", "insert", "none",
                         "junk"]):  # fmt: skip
            case "swap" if len(steps) > 1:
                i, j = self.rng.integers(0, len(steps), 2)
                steps[i], steps[j] = steps[j], steps[i]
            case "drop":
                steps = steps[:at] + steps[at + 1 :]
            case "twice":
                steps.insert(at, self.pick(steps or [None]))
            case "reverse":
                steps.reverse()
            case "shuffle":
                self.rng.shuffle(steps)  # pyright: ignore
            case "insert":
                steps.insert(at, self.node())
            case "none":
                steps = []
            case _:
                steps.insert(at, self.pick([None, 3, "exp", Slot(0, 64)]))  # pyright: ignore
        return {"schedule": self.junk(tuple(steps))}

    def layout(self, old: Any) -> Any:
        dims, strides = list(old.dims), list(old.strides)
        match self.pick(["offset", "stride", "dim", "swap", "rank", "junk"]):
            case "offset":
                return replace(old, offset=self.number(old.offset))
            case "stride" if strides:
                i = int(self.rng.integers(len(strides)))
                strides[i] = self.number(strides[i])
            case "dim" if dims:
                i = int(self.rng.integers(len(dims)))
                dims[i] = self.number(dims[i])
            case "swap":
                dims.reverse()
            case "rank":
                strides = strides[1:]
            case _:
                return self.pick([None, (), 3, replace(old, dims=None), replace(old, strides=3)])
        return replace(old, dims=tuple(dims), strides=tuple(strides))

    def view(self) -> dict[str, Any]:
        views, table = dict(self.plan.views), dict(self.plan.assignments)
        node = self.key(views)
        shape = node.shape if not node.has_items else node.shapes[0]
        old = views.get(node) or View(self.node(), rlx.Layout.contiguous(shape.dims))
        match self.pick(["layout", "layout", "root", "drop", "own", "alias", "operand", "junk"]):
            case "layout":
                views[node] = replace(old, layout=self.layout(old.layout))
            case "root":
                views[node] = replace(old, root=self.node())
            case "drop":
                views.pop(node, None)
            case "own":
                views.pop(node, None)
                table[node] = self.pick(list(table.values()) or [Slot(0, 64)])
            case "alias":
                alias = self.key(table)
                table.pop(alias, None)
                views[alias] = View(self.node(), rlx.Layout.contiguous(alias.shapes[0].dims))
            case "operand":
                movers = [n for n in table if n.decl.view_rule is not None and n.inputs]
                for moved in movers:
                    source = moved.inputs[0]
                    base = self.plan.layout(source) if not source.has_items else None
                    layout = base and moved.decl.view_rule(base, **moved.attrs)  # pyright: ignore
                    if layout:
                        views[moved] = View(self.plan.root(source), layout)
                        del table[moved]
                steps = tuple(s for s in self.plan.schedule if s not in views)
                return {"views": views, "assignments": table, "schedule": steps}
            case _:
                views[node] = self.pick([None, 3, View(None, None), View(node, old.layout)])  # pyright: ignore
        return {"views": self.junk(views), "assignments": table}

    def in_place(self) -> dict[str, Any]:
        table, slots = dict(self.plan.in_place), dict(self.plan.assignments)
        if table and self.coin(0.3):
            del table[self.pick(table)]
            return {"in_place": table}
        kernel, operand = self.node(), self.node()
        if kernel.inputs and self.coin(0.8):
            operand = self.pick(kernel.inputs)
        table[kernel] = operand
        root = self.plan.views[operand].root if operand in self.plan.views else operand
        if root in slots and kernel in slots and self.coin(0.8):
            slots[kernel] = replace(slots[kernel], offset=slots[root].offset)
        if self.coin(0.05):
            table[self.pick([kernel, None])] = self.pick([None, 3])  # pyright: ignore
        return {"in_place": self.junk(table), "assignments": slots}

    def written(self) -> dict[str, Any]:
        table = dict(self.plan.written)
        node = self.key(table)
        old = table.get(node) or rlx.Layout.contiguous(node.shapes[0].dims)
        table[node] = self.layout(old)
        if self.coin(0.2):
            del table[node]
        return {"written": self.junk(table)}

    def phases(self) -> dict[str, Any]:
        table = dict(self.plan.phases)
        node = self.key(table)
        match self.pick(["change", "change", "change", "down", "drop", "all", "junk"]):
            case "change":
                table[node] = self.pick(list(Phase))
            case "down":
                phase = self.pick(list(Phase))
                late = set(
                    self.plan.schedule[int(self.rng.integers(len(self.plan.schedule) + 1)) :]
                )
                table = {n: phase if n in late else p for n, p in table.items()}
            case "drop":
                table.pop(node, None)
            case "all":
                table = dict.fromkeys(table, self.pick(list(Phase)))
            case _:
                table[node] = self.pick([None, 1, 7, "prologue"])  # pyright: ignore
        return {"phases": self.junk(table)}

    def manifest(self) -> dict[str, Any]:
        field = self.pick(["inputs", "params", "outputs", "states"])
        row = list(getattr(self.plan.io, field))
        match self.pick(["reverse", "drop", "none", "more", "junk"]):
            case "reverse":
                row.reverse()
            case "drop":
                row = row[1:]
            case "none":
                row = []
            case "more":
                node = self.node()
                row.append(node if field == "outputs" else ("extra", node))
            case _:
                row = self.pick([None, [3], [None], [("x",)], 3])
        return {"io": self.junk(replace(self.plan.io, **{field: row}))}

    def total(self) -> dict[str, Any]:
        field = self.pick(["arena_bytes", "arena_formula", "weight_bytes", "both"])
        if field == "both":
            new = self.number(self.plan.arena_formula)
            return {"arena_bytes": new, "arena_formula": new}
        return {field: self.number(getattr(self.plan, field))}

    def alignment(self) -> dict[str, Any]:
        return {"alignment": self.pick([1, 2, 4, 16, 48, 0, -64, 128, 1 << 20, 1 << 63, None, 64.0,
                                        "64"])}  # fmt: skip

    def sizes(self) -> dict[str, Any]:
        if self.coin():
            table = dict(self.plan.representative)
            name = self.pick([*table, "n", "alien"])
            table[name] = self.pick([0, 1, -3, 5, 1 << 40, None, "3", 2.0])  # pyright: ignore
            if self.coin(0.3):
                del table[name]
            return {"representative": self.junk(table)}
        row = list(self.plan.dynamic_symbols)
        match self.pick(["drop", "reverse", "more", "range", "junk"]):
            case "drop":
                row = row[1:]
            case "reverse":
                row.reverse()
            case "more":
                row.append(rlx.Dim("alien"))
            case "range":
                row = [rlx.Dim(d.name, 2, 3) for d in row]
            case _:
                row = self.pick([None, [3], ["n"]])
        return {"dynamic_symbols": self.junk(row if row is None else tuple(row))}


def _changes() -> list[Callable[[Corruption], dict[str, Any]]]:
    c = Corruption
    return [
        c.slot, c.slot, c.slot, c.slot, c.schedule, c.schedule, c.view, c.view, c.in_place,
        c.written, c.phases, c.phases, c.manifest, c.total, c.total, c.alignment, c.sizes,
    ]  # fmt: skip


def corrupted(lir: LirModule, seed: int) -> LirModule:
    """The module with one to three random changes of its plan."""
    rng = np.random.default_rng([0xC0, seed])
    for _ in range(int(rng.integers(1, 4)) if rng.random() < 0.3 else 1):
        made = Corruption(rng, lir)
        change = made.pick(_changes())
        lir = replace(lir, plan=replace(lir.plan, **change(made)))
    return lir
