"""How attention runs by single threads: where a barrier costs more than the loads it saves.

A thread has some rows, all keys of them, and reads both straight from global memory.
"""

from __future__ import annotations

from rlx.backends.gpu.machine import GpuMachine
from rlx.kernel.attention import Attention

KEY_LOADS = 256
"""Of a thread from a tile of keys that a block shares."""
THREAD_SUMS = 128
"""Of weighted values that a thread holds."""
MAX_ROWS = 4


def refused_by_threads(form: Attention) -> str | None:
    """Why single threads do not take it; None where they do."""
    if form.rotary is not None or form.past is not None:
        return "a thread reads queries and keys as they are, in one place"
    return None


def thread_rows(
    values: int, rows: int | None, heads: int, machine: GpuMachine
) -> tuple[int, int, int]:
    """Rows of a thread, threads of a block, and keys at a time. A few rows share what is read of
    each key: as many as have registers for their sums, and leave some to every SIMD group."""
    each, lanes = MAX_ROWS, machine.processors * machine.simd
    while each > 1 and (
        each * values > THREAD_SUMS or (rows is not None and -(-rows // each) * heads < lanes)
    ):
        each //= 2
    threads = machine.simd
    while threads > 1 and rows is not None and threads * each >= 2 * rows:
        threads //= 2
    return each, threads, 8 if each * values <= THREAD_SUMS // 2 else 4
