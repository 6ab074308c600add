"""The reference backend: NumPy, executing a plan inside its arena.

It is slow and exact, and it checks the planner: memory is poisoned before a run and whenever a
buffer dies, so that a value read too late or from the wrong place shows in the result.
"""

from __future__ import annotations

from rlx.backends.reference.program import ReferenceBackend

backend = ReferenceBackend()

__all__ = ["backend"]
