"""Provenance: the origins of nodes, kept in a side table of the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: a source line, a front end's name, a block, a rule or a pass.
    The kind "value" says that a model's file names its result, of dtypes that not all targets have.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text if self.kind == "line" else f"{self.kind} {self.text}"


STEADY = Origin("phase", "steady_state")
LATE = Origin("phase", "epilogue")
"""Which phase the source of a node is in, where some of the source is in the Epilogue. What comes
of both is steady work."""
