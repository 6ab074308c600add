"""rlx as an ONNX backend: `onnx.backend.base.Backend` for those who test or swap runtimes by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.backend.base import Backend as BaseBackend
from onnx.backend.base import BackendRep

from rlx.frontends.onnx.handlers.tensor.random import draws
from rlx.frontends.onnx.model import from_proto
from rlx.frontends.onnx.variants import compiled
from rlx.runtime.session import Session


class Prepared(BackendRep):  # pyright: ignore[reportUntypedBaseClass]
    """A compiled model."""

    def __init__(self, exe: Any) -> None:
        self._exe = exe

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Inputs in the model's order; outputs in its order."""
        given: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]
        made = self._exe(*(a if a is None or isinstance(a, list) else np.asarray(a) for a in given))
        return made if isinstance(made, tuple) else (made,)


class Backend(BaseBackend):  # pyright: ignore[reportUntypedBaseClass]
    """Target cpu, or another by its device: `prepare(model, "cpu:avx2")`."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """False where numbers are drawn at random: rlx runs such models, but what another runtime
        drew is nothing to compare with."""
        return not draws(model)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        return Prepared(compiled(from_proto(model), Session(device.lower(), **kwargs)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        from rlx.backends.registry import find_backend
        from rlx.core.errors import Error

        try:
            find_backend(device.lower().partition(":")[0])
        except Error:
            return False
        return True
