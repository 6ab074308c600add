"""Graphs as bodies of ops: evaluation, inlining, tracing."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlx.core.public_calls import public_class
from rlx.ops.graphs import GraphBase


@public_class
class Bodies(GraphBase):
    """What a graph does for the ops that hold it."""

    inputs: Any
    is_traced: bool

    def evaluate(self, values: Mapping[str, Any]) -> list[Any]:
        """The outputs by the ops' references, on arrays by name."""
        from rlx.ir.interpret import evaluate

        graph: Any = self
        return evaluate(graph, values)

    def infer_binding(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of named dims that inputs by name have."""
        from rlx.ir.interpret import infer_binding

        return infer_binding(self.inputs, values)

    def inline(self, body: Any, operands: Sequence[Any]) -> list[Any]:
        """The nodes of another graph, on these operands in place of its inputs: its outputs."""
        from rlx.ir.inline import inline

        graph: Any = self
        return inline(graph, body, operands)

    @contextmanager
    def tracing(self) -> Generator[None]:
        """Constants that operations on nodes need are made here meanwhile."""
        before, self.is_traced = self.is_traced, True
        try:
            yield
        finally:
            self.is_traced = before
