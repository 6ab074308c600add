"""What an engine runs of a plan: its final graph, and the phase of every node.

Offsets and the schedule of a plan are not the engine's: it has memory and an order of its own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlx.core.errors import Error
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Graph, Node, Origin
from rlx.ir.size_requirements import size_requirements
from rlx.ir.text import read
from rlx.passes.bodies import nodes_within
from rlx.plan.check.checker import opened

_MOST_BYTES = 1 << 30
"""What claims to be larger when decompressed is damaged."""


@dataclass(frozen=True, slots=True)
class Module:
    """A planned graph."""

    graph: Graph
    phases: Mapping[Node, Phase]
    interface: Interface

    @classmethod
    def of(cls, lir: LirModule) -> Module:
        graph, plan = lir.mir.graph, opened(lir)
        phases = {n: plan.phases[n] for n in graph.order()}
        return cls(graph, phases, Interface.planned(lir))

    @property
    def name(self) -> str:
        return self.interface.name

    # -- as bytes ----------------------------------------------------------------------------------

    def packed(self) -> bytes:
        """The graph in its text form, with origins, which name nodes in errors, and phases."""
        interface = self.interface
        held = {
            "graph": str(self.graph),
            "origins": [[asdict(o) for o in n.origins] for n in nodes_within(self.graph)],
            "phases": [int(self.phases[n]) for n in self.graph.order()],
            "interface": [interface.late, interface.held_inputs, interface.held_outputs],
        }
        return zlib.compress(json.dumps(held).encode(), 1)

    @classmethod
    def unpacked(cls, data: bytes, source: str) -> Module:
        """What `packed` gave; whatever is wrong with it is an Error."""
        try:
            return cls._read(data)
        except Error:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Error(f"{source} holds no planned graph ({reason:.80}). Make it again.") from None

    @classmethod
    def _read(cls, data: bytes) -> Module:
        unpack = zlib.decompressobj()
        held: dict[str, Any] = json.loads(unpack.decompress(data, _MOST_BYTES))
        graph = read(held["graph"])
        nodes = list(nodes_within(graph))
        for node in nodes:
            node.graph.origins.clear()
        for node, origins in zip(nodes, held["origins"], strict=True):
            node.graph.add_origins(node, tuple(Origin(**o) for o in origins))
        phases = dict(zip(graph.order(), map(Phase, held["phases"]), strict=True))
        early = Interface.of(graph)
        late = (tuple(numbers) for numbers in held["interface"])
        fields = (early.name, early.inputs, early.params, early.outputs)
        return cls(graph, phases, Interface(*fields, *late, required=size_requirements(graph)))
