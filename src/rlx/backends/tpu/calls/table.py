"""The table that pages of calls fill."""

from __future__ import annotations

from rlx.backends.engine.calls import CallTable

TABLE = CallTable("jax")
