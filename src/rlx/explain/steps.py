"""What a backend says of the steps of a plan: how each runs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx.errors import Error

if TYPE_CHECKING:
    from rlx.explain.build import Steps
    from rlx.ir.lir import LirModule


def steps_of(lir: LirModule, options: Any = None) -> Steps:
    """Step → how the target's backend runs it; nothing where none is there to be asked."""
    from rlx.backends.base import find_backend

    try:
        backend = find_backend(lir.target.name)
    except Error:
        return {}
    describe = getattr(backend, "describe", None)
    return {} if describe is None else describe(lir)
