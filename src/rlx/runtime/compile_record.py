"""The record of a compile as bytes: the final graph, every decision, every rule that fired.

It is stored beside the code and not read until it is needed. The plan is read as that of a `.lir`
file is: checked, and of the fingerprint that was recorded.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.cost.target import Target
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, Origin
    from rlx.ir.outline import Row
    from rlx.passes.options import FusionOptions
    from rlx.pipeline import CompileResult
    from rlx.rules.engine import Event

_MOST_BYTES = 1 << 30
"""A record that claims to be larger when decompressed is damaged."""


def recorded(result: CompileResult) -> bytes:
    """All of a result, without the code made of it."""
    from rlx.cost.target_json import machine_json
    from rlx.plan.lir_text import plan_json

    lir = result.lir
    record = {
        **graph_json(lir.mir.graph),
        "source": [
            [r.op, r.shape, r.inputs, _origins(r.origins), r.name, r.inside]
            for r in result.source_rows
        ],
        "decisions": [asdict(d) for d in result.decisions],
        "fusion": asdict(result.fusion),
        "rewrites": [[type(e).__name__, asdict(e)] for e in result.rewrites],
        "options": options_json(result.options),
        "plan": plan_json(lir),
        "target": [lir.target.name, lir.target.digest()],
        "machine": machine_json(lir.target.machine),
        "fingerprint": lir.fingerprint,
    }
    return zlib.compress(json.dumps(record).encode(), 1)


def graph_json(graph: Graph) -> dict[str, Any]:
    """A graph with the provenance of its nodes, which its text has not."""
    from rlx.passes.bodies import nodes_within

    return {"graph": str(graph), "origins": [_origins(n.origins) for n in nodes_within(graph)]}


def read_graph(held: Mapping[str, Any]) -> Graph:
    """The graph that was written."""
    from rlx.ir.text import read

    graph = read(held["graph"])
    _restore_origins(graph, held["origins"])
    return graph


def _origins(origins: Iterable[Origin]) -> list[list[str]]:
    return [[o.kind, o.text] for o in origins]


def options_json(options: FusionOptions) -> dict[str, Any]:
    """Every option."""
    policy, limits = options.dispatch, options.limits
    return {
        "skip_fusion": options.skip_fusion,
        "limits": limits and asdict(limits),
        "dispatch": policy
        and [policy.mode, sorted(policy.force_common), sorted(policy.force_native)],
        "force": dict(options.force),
        "precision": options.precision,
        "sizes": dict(options.sizes),
        "f64": options.f64,
        "one_of": list(options.one_of),
        "at_end": options.at_end if options.at_end is None else list(options.at_end),
    }


@dataclass(frozen=True, slots=True)
class Record:
    """A record that has not been read."""

    data: bytes
    target: Target
    """That of the one who asks: the record holds the hash of its own."""
    name: str

    def result(self) -> CompileResult:
        """What the compile gave."""
        try:
            return _restored(self._decoded(), self.target)
        except Error as error:
            raise Error(
                f"{self.name}: the record of its compile cannot be restored: {error}"
            ) from None
        except Exception as error:
            raise Error(f"{self.name}: the record of its compile is damaged: {error}") from None

    def _decoded(self) -> dict[str, Any]:
        unpack = zlib.decompressobj()
        text = unpack.decompress(self.data, _MOST_BYTES)
        if unpack.unconsumed_tail:
            raise Error(f"the record has more than {_MOST_BYTES:,} bytes.")
        return json.loads(text)


def _restored(record: dict[str, Any], target: Target) -> CompileResult:
    from rlx.cost.decision import Decision
    from rlx.passes.fusion.report import FusionReport, Missed
    from rlx.pipeline import CompileResult

    options = read_options(record["options"])
    fusion: dict[str, Any] = record["fusion"]
    missed = tuple(Missed(**m) for m in fusion.pop("missed"))
    decisions = [Decision(**d) for d in record["decisions"]]
    return CompileResult(
        _restored_lir(record, target),
        FusionReport(**fusion, missed=missed),
        tuple(replace(d, where=tuple(d.where)) for d in decisions),
        tuple(_event(*e) for e in record["rewrites"]),
        options,
        source=tuple(_row(*row) for row in record["source"]),
    )


def _row(
    op: str, shape: str, inputs: list[int], origins: list[list[str]], name: str, inside: int = 0
) -> Row:
    from rlx.ir.outline import Row

    return Row(op, shape, tuple(inputs), _read_origins(origins), name, inside)


def _read_origins(held: Iterable[Sequence[str]]) -> tuple[Origin, ...]:
    from rlx.ir.mir import Origin

    return tuple(Origin(kind, text) for kind, text in held)


def _event(kind: str, fields: dict[str, Any]) -> Event:
    from rlx.rules.engine import Fired, Missed

    return {"Fired": Fired, "Missed": Missed}[kind](**fields)


def read_options(held: Mapping[str, Any]) -> FusionOptions:
    """The options that were written."""
    from rlx.cost.target import FusionLimits
    from rlx.passes.options import DispatchPolicy, FusionOptions

    limits, dispatch = held["limits"], held["dispatch"]
    return FusionOptions(
        held["skip_fusion"],
        limits and FusionLimits(**limits),
        dispatch and DispatchPolicy(*dispatch),
        held["force"],
        held["precision"],
        held["sizes"],
        held.get("f64"),
        held.get("one_of", ()),
        held.get("at_end"),
    )


def _restored_lir(record: dict[str, Any], target: Target) -> LirModule:
    from rlx.ir.plan_nodes import with_all_items
    from rlx.plan.check.checker import require_sound
    from rlx.runtime.lir_file import planned

    graph = with_all_items(read_graph(record))
    lir = planned(record["plan"], graph, _meant(target, record))
    require_sound(lir)
    if lir.fingerprint != record["fingerprint"]:
        raise Error("its fingerprint is another. Compile the model again.")
    return lir


def _meant(target: Target, record: dict[str, Any]) -> Target:
    """The target that was compiled for: the given one or the documented one of its name, at the
    prices that were weighed with."""
    from rlx.cost.target import FusionTarget, Target
    from rlx.cost.target_json import read_machine

    name, digest = record["target"]
    documented = [Target.of(t) for t in FusionTarget if t.value == name]
    for known in (target, *documented):
        if known.digest() == digest:
            return known
        priced = replace(known, machine=read_machine(record["machine"]))
        if priced.digest() == digest:
            return priced
    raise Error(f"it was compiled for another target {name!r} than this. Compile the model again.")


def _restore_origins(graph: Graph, origins: Sequence[Any]) -> None:
    from rlx.passes.bodies import nodes_within

    nodes = list(nodes_within(graph))
    for node in nodes:
        node.graph.origins.clear()
    for node, its in zip(nodes, origins, strict=True):
        node.graph.add_origins(node, _read_origins(its))
