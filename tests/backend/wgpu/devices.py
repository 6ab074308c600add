"""A wgpu device for tests, or the reason why there is none."""

from __future__ import annotations

import pytest

from rlx.backends.wgpu.backend import backend
from rlx.backends.wgpu.device import WgpuDevice


def opened() -> WgpuDevice:
    """A device of its own; the test is skipped where there can be none."""
    missing = backend.missing()
    if missing is not None:
        pytest.skip(f"{missing.reason}: {missing.command}")
    return WgpuDevice(0)
