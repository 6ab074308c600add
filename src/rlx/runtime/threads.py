"""A limit on threads for a block of code."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rlx.core.arguments import COUNT
from rlx.core.public_calls import public


@public
def threads(most: int) -> AbstractContextManager[None]:
    """`with rlx.threads(1):` calls inside use at most so many threads of the CPU, whatever their
    executables were compiled for; results are the same bits. It holds for the whole process."""
    COUNT.check("threads", most)
    from rlx.backends.cpu.runtime.thread_pool import limits

    return limits.limited(most)
