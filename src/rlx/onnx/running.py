"""Models that are compiled for each value of their static inputs, when they are called."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import Error
from rlx.onnx.model import Model, Read
from rlx.op import Array
from rlx.passes.options import FusionOptions
from rlx.runtime.executable import Executable, as_array

if TYPE_CHECKING:
    from rlx.runtime.session import Session

MAX_KEPT = 32
"""Programs for values of static inputs; the one that was not used longest goes."""


def compiled(
    model: Model, session: Session, options: FusionOptions | None = None
) -> Executable | Specialising:
    """The model ready to run; one program where nothing about it is static."""
    if model.read is None:
        return Specialising(model, session, options)
    return session.compile(model.graph, options=options, params=model.params)


class Specialising:
    """Stands for an executable where shapes follow from values: a program for each of them."""

    def __init__(self, model: Model, session: Session, options: FusionOptions | None) -> None:
        self.model, self._session, self._options = model, session, options
        self._made: OrderedDict[int, tuple[Read, Executable]] = OrderedDict()

    @property
    def static(self) -> tuple[str, ...]:
        """The inputs whose values a program is compiled for."""
        return self.model.static

    def specialised(self, *arrays: Any) -> Executable:
        """The program for these inputs."""
        return self._program(self._given(arrays))

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        given = self._given(arrays)
        exe = self._program(given)
        static = set(self.model.static)
        return exe(*(a for n, a in zip(self.model.inputs, given) if n not in static), out=out)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name: outputs by name."""
        for name in (*inputs, *self.model.inputs):
            if name not in inputs or name not in self.model.inputs:
                known = ", ".join(self.model.inputs)
                raise Error(f"{self.model.name}: takes {known}; {name!r} is missing or unknown.")
        made = self(*(inputs[n] for n in self.model.inputs))
        return dict(zip(self.model.outputs, made if isinstance(made, tuple) else (made,)))

    def _given(self, arrays: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
        names = self.model.inputs
        if len(arrays) != len(names):
            raise Error(f"{self.model.name}: takes {len(names)} inputs, got {len(arrays)}.")
        return [as_array(a, f"input {n!r}") for n, a in zip(names, arrays)]

    def _program(self, given: list[np.ndarray[Any, Any]]) -> Executable:
        read = self.model.specialised(given)
        key = id(read)
        if key not in self._made:
            exe = self._session.compile(read.graph, options=self._options, params=read.params)
            self._made[key] = (read, exe)
            if len(self._made) > MAX_KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key][1]
