"""Modules of torch, which are imported when they are first used."""

from __future__ import annotations

from rlx.backends.engine.lazy import lazy

torch = lazy("torch")
pytree = lazy("torch.utils._pytree")
