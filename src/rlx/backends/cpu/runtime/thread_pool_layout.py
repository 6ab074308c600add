"""Where the words of the pool are: what the threads of a process share."""

from __future__ import annotations

from enum import IntEnum

LINE = 16
"""Words of two cache lines, which prefetchers take together: what different workers write lies on
different pairs."""
MAX_THREADS = 256


class Place(IntEnum):
    """Where the words of the pool are."""

    STATE = 0
    ASLEEP = LINE
    """A bit for each sleeping worker, its number modulo 32."""
    LOCK = 2 * LINE
    ASKED = 2 * LINE + 1
    """The most threads that anybody asked for, so far."""
    COUNT = 2 * LINE + 2
    """How many there are: the workers, and the caller."""
    CALLER_CPU = 2 * LINE + 3
    PINS = 2 * LINE + 4
    """Not 0 where every thread can have a processor of its own."""
    POLL = 2 * LINE + 5
    """As `Word.POLL`, for workers: not 0 where the region has failed."""
    FUNCTION = 3 * LINE
    BUFFERS = 3 * LINE + 1
    SIZES = 3 * LINE + 2
    UNITS = 3 * LINE + 3
    GRAIN = 3 * LINE + 4
    SCRATCH = 3 * LINE + 5
    SCRATCH_BYTES = 3 * LINE + 6
    PARTS = 3 * LINE + 7
    CODE = 4 * LINE
    """The code of a part that failed, or 0."""
    CONTEXT = 4 * LINE + 1
    """That of the call whose region is open."""
    ENSURE = 4 * LINE + 3
    """From here on functions of Python: its lock, and its handlers of signals."""
    RELEASE = 4 * LINE + 4
    CHECK_SIGNALS = 4 * LINE + 5
    SAVE_THREAD = 4 * LINE + 6
    RESTORE_THREAD = 4 * LINE + 7
    ALLOWED = 5 * LINE
    """The processors that the process may use, a bit each."""
    WAIT = 7 * LINE
    """From here on functions of the system: see `backends/cpu/system/waiting_code.py`."""
    WAKE = 7 * LINE + 1
    YIELD = 7 * LINE + 2
    CLOCK = 7 * LINE + 3
    GETCPU = 7 * LINE + 4
    PIN = 7 * LINE + 5
    RANGES = 8 * LINE
    """For each worker a line: its next chunk, and where it ends."""


MASK_WORDS = 16
POOL_WORDS = Place.RANGES + MAX_THREADS * LINE
