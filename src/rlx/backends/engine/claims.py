"""What an engine's target claims, and where each node of a plan runs.

An op that has a call is claimed. One that has none is lowered, or, where it has no lowering, the
host computes it by its NumPy meaning between two functions of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from rlx.backends.engine.calls import CallTable
from rlx.backends.engine.engine import Engine
from rlx.core.attrs import HeldGraph, dims_in
from rlx.core.dim import Dim, is_static
from rlx.core.dtype import DType
from rlx.cost.machine import DOCUMENTED
from rlx.cost.target import LOOPS, FusionLimits, KernelLimit, Target
from rlx.cost.targets import CallLimit
from rlx.ir.mir import Node
from rlx.ops.op import Kind, Op, lookup
from rlx.ops.op import table as ops

HEAVY = frozenset({Kind.CONTRACTION, Kind.CONVOLUTION, Kind.ATTENTION})
UNROLLED_STEPS = 16
"""Of a scan that becomes part of a function although the engine has no scan, those of scans inside
of it counted as often as they run."""
MEASURES = "its size is found out from data, and functions of {} have fixed sizes"
MEASURED = "a size of it is found out from data: {} would compile anew for each"
NO_CALL = "{} has no call for {}, nor has the op a lowering"
NO_DTYPE = "{} has no arrays of {}"
NO_LOOP = "{} has no {}: the host takes it, and its bodies are functions of {}"
WHY_BODY = "a body holds {}, which is not part of a function of {}"
NO_VIEWS: frozenset[str] = frozenset()


def target(
    name: str, table: CallTable, own_control: frozenset[str], views: frozenset[str] = NO_VIEWS
) -> Target:
    """The documented target of an engine: it fuses by itself, so that no regions are made."""
    return Target(
        name, DOCUMENTED[name], FusionLimits(), frozenset(), _native(table),
        _limits(name, table), {}, {}, views=views, syncs=_syncs(table, own_control),
        regions=frozenset(), loops=frozenset(LOOPS),
    )  # fmt: skip


def _syncs(table: CallTable, own_control: frozenset[str]) -> frozenset[str]:
    """What the host computes, and the conditions that it reads; a scan has none."""
    hosted = {o.name for o in ops().values() if _is_hosted(o, table)}
    return frozenset(hosted) | (frozenset(LOOPS) - own_control - {"scan"})


def _is_hosted(op: Op, table: CallTable) -> bool:
    if op.kind is Kind.LEAF or op.name == "item":
        return False
    return op.measures or (op.lower is None and op.name not in table)


def _native(table: CallTable) -> frozenset[str]:
    """Primitives need no claim: what has no call, the host computes."""
    return frozenset(op for op in table if lookup(op).lower)


def _limits(name: str, table: CallTable) -> dict[str, KernelLimit]:
    """Beyond what an op is lowered; one without a lowering is left to the host."""
    rows = [r for r in table.rows.values() if lookup(r.op).lower]
    plain = {r.op: KernelLimit(r.dtypes) for r in rows if r.dtypes is not None}
    own = {r.op: CallLimit(r.dtypes, target=name, op=r.op) for r in rows if r.lowers}
    return plain | own


@dataclass(frozen=True, slots=True)
class Placement:
    """Which nodes of a graph the engine computes."""

    engine: Engine
    is_measured_here: bool
    """Does the engine compute what has measured sizes, compiled for each?"""

    @classmethod
    def of(cls, engine: Engine, nodes: Iterable[Node]) -> Placement:
        """Products of measured sizes are worth a function for each size; little else is."""
        heavy = any(n.decl.kind in HEAVY and is_measured(n) for n in nodes)
        return cls(engine, heavy)

    def why_host(self, node: Node) -> str | None:
        """Why a node is not part of a function of the engine; None if it is."""
        engine, name = self.engine, self.engine.name
        if node.decl.measures:
            return MEASURES.format(name)
        missing = next((d for d in _dtypes(node) if not engine.holds(d)), None)
        if missing is not None:
            return NO_DTYPE.format(name, missing)
        if is_measured(node) and not self.is_measured_here:
            return MEASURED.format(name)
        if node.op in LOOPS:
            return self._why_not_loop(node)
        row = engine.table.get(node.op)
        return NO_CALL.format(name, node.op) if row is None else row.why_not(node)

    def _why_not_loop(self, node: Node) -> str | None:
        name, bodies = self.engine.name, bodies_of(node)
        if node.op not in self.engine.own_control and not is_unrolled(node):
            return NO_LOOP.format(name, node.op, name)
        if node.attrs.get("extent"):
            return MEASURES.format(name)
        inner = (n for b in bodies for n in b.order() if n.decl.kind is not Kind.LEAF)
        for each in inner:
            if each.op != "item" and (self.why_host(each) or is_measured(each)):
                return WHY_BODY.format(each.op, name)
        return None


def is_unrolled(node: Node) -> bool:
    """Is it a scan of so few steps that a function holds each of them?"""
    return node.op == "scan" and _unrolled_steps(node) <= UNROLLED_STEPS


def _unrolled_steps(scan: Node) -> float:
    """Of a scan and the longest nest of scans inside of it: bodies are written so many times."""
    if not is_static(scan.attrs["length"]):
        return inf
    inner = (n for b in bodies_of(scan) for n in b.order() if n.op == "scan")
    return int(scan.attrs["length"]) * max(map(_unrolled_steps, inner), default=1)


def bodies_of(node: Node) -> list[Any]:
    return [v for v in node.attrs.values() if isinstance(v, HeldGraph)]


def is_measured(node: Node) -> bool:
    """Does a size of it depend on data?"""
    shapes = (*node.shapes, *(s for i in node.inputs for s in i.shapes))
    if any(s.is_measured for s in shapes):
        return True
    return any(_is_measured_dim(d) for v in node.attrs.values() for d in dims_in(v))


def _is_measured_dim(dim: Dim) -> bool:
    return dim.is_measured


def _dtypes(node: Node) -> list[DType]:
    shapes = (*node.shapes, *(s for i in node.inputs for s in i.shapes))
    named = [v for v in node.attrs.values() if isinstance(v, DType)]
    return [*(s.dtype for s in shapes), *named]
