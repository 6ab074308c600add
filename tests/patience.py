"""Waiting in tests: for what must come, however slow or busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""What takes this long hangs on any machine. A test that passes never waits so long."""


def eventually(holds: Callable[[], object], what: str, pause_s: float = 0.002) -> None:
    """Until `holds` is true; fail where it never is."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(pause_s)
