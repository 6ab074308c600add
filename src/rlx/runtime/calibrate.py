"""Calibration: the prices of a target, measured by its backend and written to the cache."""

from __future__ import annotations

import os

from rlx.backends.registry import find_backend
from rlx.core.disk_cache import Cache, CacheLike
from rlx.core.errors import Error
from rlx.cost.calibrate import Calibration, Progress, machine, note_name


def calibrate(
    target: str = "cpu", *, cache: CacheLike = None, progress: Progress | None = None
) -> Calibration:
    """Measure the prices of `target` on this machine, which takes some seconds, and write them to
    the cache's folder, where `rlx.compile` finds them."""
    name, _, variant = target.partition(":")
    backend = find_backend(name).configured(variant, None)
    folder = Cache.of(cache, os.environ)
    numbers = backend.measure(progress or _silent)
    made = Calibration(name, machine(backend.hardware), numbers)
    if folder is not None and not folder.write_note(note_name(name), made.text()):
        raise Error(f"the calibration cannot be written to {folder.folder}: it is not writable.")
    return made


def _silent(_done: int, _total: int, _what: str) -> None:
    pass
