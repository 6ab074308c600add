"""States of sessions as arrays of an engine, which no call changes: each gives new ones, over the
memory of the old where the engine consumes those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.engine.engine import Engine
from rlx.backends.state_memory import StateMemory
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.ops.op import Array


@dataclass(slots=True, eq=False)
class EngineState:
    """A state: its value of now, of the engine, or of the host where the engine has no such
    dtype."""

    array: Any
    bound: Shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bound.static_dims

    @property
    def nbytes(self) -> int:
        return int(self.bound.size_bytes)


@dataclass(frozen=True, slots=True)
class EngineStates(StateMemory):
    """What is done to states between calls."""

    engine: Engine

    def filled(self, shape: Shape, value: float) -> EngineState:
        return EngineState(self._array(np.full(shape.static_dims, value, shape.dtype.numpy)), shape)

    def copied(self, held: EngineState) -> EngineState:
        made = EngineState(None, held.bound)
        self.copy(held, made)
        return made

    def copy(self, source: EngineState, target: EngineState) -> None:
        with self.engine.scope():
            target.array = self._copied(source.array)

    def read(self, held: EngineState) -> Array:
        """NumPy may share the memory of an engine's array, which a call consumes: that of a copy
        is nobody else's."""
        with self.engine.scope():
            made = self._copied(held.array)
            return made if isinstance(made, np.ndarray) else self.engine.numpy(made)

    def write(self, held: EngineState, value: Array) -> None:
        """An engine may read memory of the host in place, which the caller may change."""
        held.array = self._array(np.array(value, order="C"))

    def copy_rows(self, held: EngineState, source: int, target: int, count: int) -> None:
        value = np.array(self.read(held))
        value[target, :count] = value[source, :count]
        self.write(held, value)

    def _array(self, value: Array) -> Any:
        if not self.engine.holds(DType.of(value.dtype)):
            return value
        with self.engine.scope():
            return self.engine.array(value)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        if self.engine.is_consumed(value):
            raise Error(
                "a call that failed has consumed a state of the session. Reset it, or load a file: "
                "session.reset()."
            )
        return self.engine.copied(value)
