"""Programs of a model for the sizes of single calls that its own is not for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.frontends.torch.reading import CallSizes, Reading, sizes_of_call
from rlx.runtime.variants import VariantCache

if TYPE_CHECKING:
    from rlx.frontends.torch.model import TorchModel
    from rlx.frontends.torch.program import TorchProgram
    from rlx.passes.options import FusionOptions
    from rlx.runtime.executable import Executable
    from rlx.runtime.session import Session

    Load = Callable[[TorchModel, Executable, frozenset[str]], TorchProgram]
    """Makes a program on tensors of a model and what was compiled of it."""


class OtherSizes:
    """Reads and compiles a model for the sizes of a call that its program is not for."""

    def __init__(
        self,
        model: TorchModel,
        session: Session,
        options: FusionOptions | None,
        params: Mapping[str, Any] | None,
    ) -> None:
        self._model, self._session, self._options = model, session, options
        self._params = dict(params or {})
        self._lock = threading.Lock()
        self._programs: VariantCache[TorchProgram] = VariantCache(model.name)

    @property
    def programs(self) -> tuple[TorchProgram, ...]:
        """Those that there are so far."""
        with self._lock:
            return tuple(program for _, program in self._programs.items())

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Have programs with these weights from now on."""
        with self._lock:
            self._params |= params
            self._programs.clear()

    def clear(self) -> None:
        """Make the programs anew."""
        self.set_params({})

    def program(self, flat: Sequence[Any], load: Load) -> TorchProgram:
        """The program for a call with these arguments."""
        sizes = sizes_of_call(flat)

        def build() -> TorchProgram:
            model = self._reading.for_call(flat).for_session(self._session)
            exe = model.executable(self._session, self._options, self._params)
            return load(model, exe, frozenset(self._params))

        def purpose() -> tuple[str, str]:
            return _described(sizes), self._model.why_static or _OUTSIDE

        with self._lock:
            return self._programs.obtain(sizes, build, purpose)

    @property
    def _reading(self) -> Reading:
        reading = self._model.reading
        assert reading is not None, "a model that is read for sizes of calls"
        return reading


_OUTSIDE = "the sizes are outside of those that one program serves"


def _described(sizes: CallSizes) -> str:
    return ", ".join("×".join(map(str, s)) if isinstance(s, tuple) else str(s) for s in sizes)
