"""The compiled graph that Dynamo calls: flat inputs, weights among them, and flat results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.frontends.torch.model import TorchModel
from rlx.frontends.torch.native_call import native_call
from rlx.frontends.torch.program import TorchProgram

if TYPE_CHECKING:
    from rlx.core.exchange import ExchangeCall
    from rlx.frontends.torch.variants import OtherSizes
    from rlx.runtime.executable import Executable


class GraphProgram(TorchProgram):
    """A graph of Dynamo's. Its weights come with each call: other tensors in their places, and ones
    that were changed, are noticed, and only what depends on them is prepared again."""

    def __init__(
        self,
        model: TorchModel,
        exe: Executable,
        replaced: frozenset[str],
        places: Mapping[str, int],
        others: OtherSizes | None = None,
    ) -> None:
        self._places = places
        super().__init__(model, exe, replaced, others)

    def __call__(self, *flat: Any) -> Any:
        return self._quick(*flat)

    def _general(self, *flat: Any) -> Any:
        return self.run_current(flat)

    def run_current(self, flat: Sequence[Any]) -> list[Any]:
        if self._names:
            given = [flat[self._places[n]] for n in self._names]
            if not self._watch.is_same(given):
                self._adopt(given)
        return self.run(flat)

    def _loaded(self, model: TorchModel, exe: Executable, replaced: frozenset[str]) -> GraphProgram:
        return GraphProgram(model, exe, replaced, self._places)

    def _native_call(self) -> ExchangeCall | None:
        places = [self._places[n] for n in self._names]
        return native_call(self.model, self._watch, places, is_tuple=True)
