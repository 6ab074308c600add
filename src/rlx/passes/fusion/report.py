"""FusionReport: what a compile fused, counted in the graph it ended with, and what it missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlx.core.public_calls import public_class
from rlx.cost.decision import Decision
from rlx.ir.mir import Graph
from rlx.passes.bodies import nodes_within
from rlx.passes.fusion.reasons import hint_for

COUNTED = (
    "attention",
    "rope",
    "narrow",
    "silu",
    "mul",
    "fused_matmul_bias_act",
    "fused_swiglu",
    "fused_residual_ln",
    "fused_residual_rms_norm",
    "ada_layer_norm",
    "gated_residual",
    "fused_conv_bias_act",
    "elementwise_region",
    "region",
)


@dataclass(frozen=True, slots=True)
class Missed:
    """A fusion that was in sight and did not happen."""

    pattern: str
    label: str
    reason: str
    hint: str

    def __str__(self) -> str:
        return f"missed {self.pattern} at {self.label}: {self.reason}. Hint: {self.hint}."


@public_class
@dataclass(frozen=True, slots=True)
class FusionReport:
    """Counts of named shapes in the final graph, also inside regions and branches."""

    nodes_before: int = 0
    nodes_after: int = 0
    matmul_before: int = 0
    matmul_after: int = 0
    attention: int = 0
    rope: int = 0
    narrow: int = 0
    silu: int = 0
    mul: int = 0
    fused_matmul_bias_act: int = 0
    fused_swiglu: int = 0
    fused_residual_ln: int = 0
    fused_residual_rms_norm: int = 0
    ada_layer_norm: int = 0
    gated_residual: int = 0
    fused_conv_bias_act: int = 0
    elementwise_region: int = 0
    region: int = 0
    missed: tuple[Missed, ...] = ()

    @classmethod
    def scan(cls, graph: Graph) -> FusionReport:
        """What is in `graph`, as before and after."""
        return cls.analyze(graph, graph)

    @classmethod
    def analyze(
        cls, before: Graph, after: Graph, decisions: Iterable[Decision] = ()
    ) -> FusionReport:
        """What became of `before`: the counts of `after`, and the refusals among `decisions`."""
        first, last = _counts(before), _counts(after)
        counted = {op: last[op] for op in COUNTED}
        return cls(
            nodes_before=len(before.order()),
            nodes_after=len(after.order()),
            matmul_before=first["matmul"],
            matmul_after=last["matmul"],
            missed=tuple(_missed(decisions)),
            **counted,
        )

    @property
    def is_clean(self) -> bool:
        """Was nothing missed?"""
        return not self.missed

    def missed_of(self, pattern: str) -> int:
        """How often `pattern` was missed."""
        return sum(m.pattern == pattern for m in self.missed)

    def summary_line(self) -> str:
        """Every count in one line of key=value."""
        pairs = [
            f"nodes={self.nodes_before}->{self.nodes_after}",
            f"matmul={self.matmul_before}->{self.matmul_after}",
            *(f"{op}={getattr(self, op)}" for op in COUNTED),
            f"missed={len(self.missed)}",
        ]
        return " ".join(pairs)

    def __str__(self) -> str:
        return "\n".join([self.summary_line(), *(f"  {m}" for m in self.missed)])


def _counts(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in nodes_within(graph))


def _missed(decisions: Iterable[Decision]) -> Iterator[Missed]:
    """Refused fusions, each once, in the order they were considered."""
    for d in dict.fromkeys(decisions):
        if d.kind == "fusion" and d.what.startswith("fuse_") and not d.verdict:
            yield Missed(d.what, ", ".join(d.where[:1]), d.reason, hint_for(d.reason))
