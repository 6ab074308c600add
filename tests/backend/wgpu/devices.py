"""A wgpu device for tests, or the reason why there is none."""

from __future__ import annotations

import pytest

from rlx.backends.wgpu.backend import backend
from rlx.backends.wgpu.device import WgpuDevice


def required() -> WgpuDevice:
    """The first adapter's device; the test is skipped where there is none."""
    missing = backend.missing()
    if missing is not None:
        pytest.skip(f"{missing.reason}: {missing.command}")
    return backend.device()


def opened() -> WgpuDevice:
    """A device of its own."""
    return WgpuDevice(required().number)
