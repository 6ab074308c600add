"""Graphs as bodies of ops: evaluation, inlining, tracing."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlx.ops.graphs import GraphBase


class Bodies(GraphBase):
    """What a graph does for the ops that hold it."""

    inputs: Any
    is_traced: bool

    def evaluate(self, values: Mapping[str, Any]) -> list[Any]:
        from rlx.ir.interpret import evaluate

        graph: Any = self
        return evaluate(graph, values)

    def infer_binding(self, values: Mapping[str, Any]) -> dict[str, int]:
        from rlx.ir.interpret import infer_binding

        return infer_binding(self.inputs, values)

    def inline(self, body: Any, operands: Sequence[Any]) -> list[Any]:
        from rlx.ir.inline import inline

        graph: Any = self
        return inline(graph, body, operands)

    @contextmanager
    def tracing(self) -> Generator[None]:
        before, self.is_traced = self.is_traced, True
        try:
            yield
        finally:
            self.is_traced = before
