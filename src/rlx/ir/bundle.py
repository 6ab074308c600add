"""Models with their weights, as front ends load them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rlx.core.errors import UnsupportedError

if TYPE_CHECKING:
    from rlx.ir.mir import Graph
    from rlx.ops.op import Array
    from rlx.passes.options import FusionOptions
    from rlx.runtime.session import Session


class Bundle(ABC):
    """A graph and its weights. Where both are known by their digest, neither need be read to find
    the program that was made of them before."""

    name: str

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """What is computed; read when it is asked for."""

    @property
    @abstractmethod
    def params(self) -> Mapping[str, Array]:
        """The weights by name, in memory that nobody changes."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """What request keys hold in place of the graph: equal graphs have equal ones."""

    @property
    @abstractmethod
    def is_of_rlx(self) -> bool:
        """Is every op of the graph one that rlx itself brings?"""

    @abstractmethod
    def compiled(
        self, session: Session, options: FusionOptions | None, params: Mapping[str, Any] | None
    ) -> Any:
        """What `Session.compile` gives for it; `params` replace weights of its own."""

    def __copy__(self) -> Self:
        """Nobody changes a model."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            f"{self.name}: a loaded model cannot be pickled. Pickle the path or the bytes of its "
            "file, or what was compiled: pickle.dumps(rlx.compile(model))."
        )
