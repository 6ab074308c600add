"""Target eager: NumPy, one array per value, freed after its last use."""

from __future__ import annotations

from rlx_eager.backend import EagerBackend

backend = EagerBackend()

__all__ = ["backend"]
