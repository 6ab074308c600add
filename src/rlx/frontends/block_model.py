"""Models that front ends build of blocks, with weights that stay in their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.mir import Graph
from rlx.ops.op import Array

if TYPE_CHECKING:
    from rlx.passes.options import FusionOptions
    from rlx.runtime.session import Session


class BlockModel(Bundle):
    """Blocks, and weights by name. `rlx.compile` takes it."""

    def __init__(self, module: HirModule, params: Mapping[str, Array]) -> None:
        self.name, self.module = module.name, module
        self._params = params
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        """The blocks as ops."""
        if self._graph is None:
            self._graph = self.module.lower().graph
        return self._graph

    @property
    def params(self) -> Mapping[str, Array]:
        return self._params

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(n.attrs["name"] for n in self.module.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.module.graph.output_names)

    @property
    def digest(self) -> str:
        return f"{self.graph.name} {self.graph.digest()}"

    @property
    def is_of_rlx(self) -> bool:
        return True

    def compiled(
        self, session: Session, options: FusionOptions | None, params: Mapping[str, Any] | None
    ) -> Any:
        return session.executable(self, self.params, options=options, params=params)
