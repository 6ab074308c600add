"""What a compile would take from the cache, asked without compiling."""

from __future__ import annotations

import os
from typing import Any

from rlx.core.disk_cache import Cache
from rlx.passes.options import FusionOptions
from rlx.runtime.session import Session

Answer = tuple[bool, str]
"""Is the program cached, and what is to be said of it?"""
PER_CALL = "programs are made for the inputs of a call, so that nothing is asked for before"


class _Answered(Exception):
    """A program would have to be compiled."""


class _Asking(Session):
    """A session that opens what is cached, and stops where it would compile."""

    @property
    def says_why(self) -> bool:
        return True

    def _compiled(self, model: Any, options: FusionOptions, reason: str) -> Any:
        raise _Answered(reason.removeprefix("cache miss: "))


def asked(
    model: str | os.PathLike[str], target: str | None, threads: int | None, cache: Cache
) -> list[Answer]:
    """Whether the program of a model is cached; one that is made per call has none of its own."""
    session = _Asking(target, threads=threads, cache=cache)
    try:
        session.compile(model)
    except _Answered as answered:
        return [(False, str(answered))]
    return [(True, f"in {cache.folder}")] if session.cached else [(False, PER_CALL)]
