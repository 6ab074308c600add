"""The backend of mlx: Apple's GPUs, and the processor on Linux."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from rlx.backends.base import Missing
from rlx.backends.engine.backend import EngineBackend
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.backends.mlx.engine import MlxEngine

NO_PACKAGE = Missing("the package mlx is not installed", "pip install 'rlx[mlx]'")


@dataclass(frozen=True, slots=True)
class MlxBackend(EngineBackend):
    """Functions that mlx compiles."""

    name: ClassVar[str] = "mlx"
    package: ClassVar[str] = "mlx"
    summary: ClassVar[str] = "Apple silicon by mlx, or the processor on Linux"

    cache: Cache | None = None

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> MlxBackend:
        self._check_threads(threads)
        if variant:
            raise Error(f"target 'mlx' has no variant {variant!r}. Use target='mlx'.")
        return replace(self, cache=cache)

    def missing(self) -> Missing | None:
        return NO_PACKAGE if find_spec("mlx") is None else None

    def devices(self) -> tuple[str, ...]:
        """mlx's default device."""
        return () if self.missing() else (f"mlx: {self.opened().version}",)

    def opened(self) -> MlxEngine:
        return _engine()


@functools.cache
def _engine() -> MlxEngine:
    from rlx.backends.mlx.engine import MlxEngine
    from rlx.backends.mlx.namespaces import mx

    return MlxEngine(is_gpu=mx.default_device() == mx.Device(mx.gpu))


backend = MlxBackend()
